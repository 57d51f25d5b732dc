/* SPDX-License-Identifier: MIT */
/* tests/planner_cuda.h: CUDA devices made up, and plans for them. */
#ifndef ATTN_TESTS_PLANNER_CUDA_H
#define ATTN_TESTS_PLANNER_CUDA_H

#include "tests/check.h"

#include <stdio.h>

#include <attn/attn.h>

#include "core/size.h"
#include "plan/plan.h"

static const struct {
    const char *name;
    int64_t fast_bytes, max_group, compute_units, capability;
} made_up[] = {
    { "compute capability 7.5", 64 * 1024, 1024, 40, 75 },
    { "8.0", 163 * 1024, 1024, 108, 80 },
    { "8.6, 8.9, 12.0", 99 * 1024, 1024, 84, 86 },
    { "9.0", 227 * 1024, 1024, 132, 90 },
    { "groups of 128", 227 * 1024, 128, 4, 90 },
};

enum { N_DEVICES = sizeof made_up / sizeof made_up[0] };

static inline attn_target target_of(int i)
{
    attn_target t = { .backend = "cuda",
                      .caps = { .kind = ATTN_DEVICE_GPU,
                                .compute_units = made_up[i].compute_units,
                                .fast_bytes = made_up[i].fast_bytes,
                                .max_group = made_up[i].max_group,
                                .subgroup = 32,
                                .vector_width = 1,
                                .blas = 1,
                                .cudnn_version = 91900,
                                .memory_bytes = (int64_t)16 << 30,
                                .max_alloc_bytes = (int64_t)16 << 30,
                                .clock_mhz = 1500,
                                .capability = made_up[i].capability } };

    t.variants = attn_variants_for(t.backend, &t.caps);
    return t;
}

/* With that variant; NULL: with the planner's. */
static inline attn_choice plan_with(int device, const char *problem, const char *variant,
                                    int64_t splits)
{
    const attn_options options = { .size = sizeof options,
                                   .variant = variant,
                                   .splits = splits };
    const attn_target t = target_of(device);
    attn_problem p;
    attn_choice c;

    check_ok(attn_problem_parse(&p, problem));
    check_ok(attn_choose(&p, &t, &options, &c));
    return c;
}

static inline attn_choice plan(int device, const char *problem)
{
    return plan_with(device, problem, "softmax_fwd_tile", 0);
}

static inline int64_t define(const attn_step *s, const char *name)
{
    for (int i = 0; i < s->n_defines; i++)
        if (!strcmp(s->define[i].name, name))
            return s->define[i].value;
    fail_msg("%s: no %s", s->kernel, name);
    return 0;
}

#endif
