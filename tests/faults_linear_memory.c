/* SPDX-License-Identifier: MIT */
/* tests/faults_linear_memory.c: linear attention in memory of each device itself, where a
 * state may be updated in place: every group must have read what the last one writes. */
#include "tests/linear_case.h"

#include <stdlib.h>

#include "src/core/float16.h"

#define AT(field) offsetof(attn_args, field)

/* What a call may have; outputs last. */
static const size_t places[] = { AT(q),    AT(k),     AT(v),         AT(state_in),
                                 AT(z_in), AT(decay), AT(beta),      AT(lens_kv),
                                 AT(den),  AT(o),     AT(state_out), AT(z_out) };

enum { PLACES = sizeof places / sizeof places[0], OUTPUTS_FROM = 8 };

static attn_tensor *tensor(attn_args *args, int i)
{
    return (attn_tensor *)(void *)((char *)args + places[i]);
}

static int64_t count(const attn_tensor *t)
{
    return t->size[0] * t->size[1] * t->size[2] * t->size[3];
}

static bool typed(int i)
{
    return places[i] == AT(q) || places[i] == AT(k) || places[i] == AT(v) ||
           places[i] == AT(o);
}

/* The host's array of a tensor, rounded to the problem's type where it has that; to be
 * freed. */
static void *packed(const attn_tensor *t, attn_type type, size_t *bytes)
{
    const int64_t n = count(t);
    void *const to = malloc((size_t)n * sizeof(float) + 1);

    assert_non_null(to);
    *bytes = (size_t)n * (type == ATTN_F32 ? sizeof(float) : sizeof(uint16_t));
    if (type == ATTN_F32)
        memcpy(to, t->data, *bytes); /* lengths, too */
    for (int64_t i = 0; i < n && type != ATTN_F32; i++)
        ((uint16_t *)to)[i] = type == ATTN_F16 ? attn_f16_from_f32(((float *)t->data)[i])
                                               : attn_bf16_from_f32(((float *)t->data)[i]);
    return to;
}

static void upload(attn_ctx *ctx, attn_tensor *t, attn_type type)
{
    void *const from = packed(t, type, &t->data_bytes);

    check_ok(attn_memory_alloc(ctx, t->data_bytes + 1, &t->data));
    check_ok(attn_memory_upload(ctx, t->data, 0, from, t->data_bytes));
    if (t->type == ATTN_F32)
        t->type = type;
    free(from);
}

static void download(attn_ctx *ctx, const attn_tensor *t, float *to)
{
    const int64_t n = count(t);
    uint16_t *const wide = malloc(t->data_bytes + 1);

    assert_non_null(wide);
    check_ok(attn_memory_download(ctx, t->type == ATTN_F32 ? (void *)to : (void *)wide,
                                  t->data, 0, t->data_bytes));
    for (int64_t i = 0; i < n && t->type != ATTN_F32; i++)
        to[i] =
            t->type == ATTN_F16 ? attn_f32_from_f16(wide[i]) : attn_f32_from_bf16(wide[i]);
    free(wide);
}

static void state_in_place(const subject *who)
{
    const attn_options options = { .size = sizeof options, .variant = who->variant };
    linear_comparison found = { .norm = 0 };
    attn_plan *plan = NULL;
    attn_args host, args;
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    linear_case_want(&c);
    host = args = c.args;
    for (int i = 0; i < PLACES - 2; i++)
        if (tensor(&host, i)->type != ATTN_TYPE_NONE)
            upload(who->ctx, tensor(&args, i), typed(i) ? c.desc.type : ATTN_F32);
    args.state_out = args.state_in;
    args.z_out = args.z_in;
    check_ok(attn_plan_linear_with(who->ctx, &c.desc, &options, &plan));
    args.workspace_bytes = attn_plan_workspace_bytes(plan);
    if (args.workspace_bytes)
        check_ok(attn_memory_alloc(who->ctx, args.workspace_bytes, &args.workspace));
    check_ok(attn_execute(plan, &args, NULL));
    for (int i = OUTPUTS_FROM; i < PLACES; i++)
        if (tensor(&host, i)->type != ATTN_TYPE_NONE)
            download(who->ctx, tensor(&args, i), tensor(&host, i)->data);
    for (int o = 0; o < LINEAR_OUTPUTS; o++)
        if (c.out[o])
            linear_compare(&c.want, (linear_output)o, c.out[o], &found);
    if (found.share > 1)
        fail_msg("%s: %s", c.name, found.what);
    for (int i = 0; i < PLACES - 2; i++)
        if (tensor(&host, i)->type != ATTN_TYPE_NONE)
            attn_memory_free(who->ctx, &tensor(&args, i)->data);
    attn_memory_free(who->ctx, &args.workspace);
    attn_plan_destroy(&plan);
    linear_case_free(&c);
}

/* Heads that share a state, slices of its columns, segments of the sequence, single steps. */
static const char *const state_in_place_problems[] = {
    "linear_fwd:f32,b2,hq4,hkv2,lq70,lk70,d40,dv72,causal,phi=elu1,normalize,state,den",
    "linear_fwd:f32,b2,hq4,hkv1,lq70,lk90,d40,dv136,phi=elu1,normalize,lens,state,den",
    "linear_fwd:f32,b2,hq6,hkv2,lq1,lk1,d64,dv80,causal,phi=elu1,normalize,state,den",
    "linear_fwd:f32,b1,hq2,hkv1,lq1030,lk1030,d16,dv136,causal,phi=elu1,normalize,state",
    "linear_fwd:f32,b1,hq2,hkv1,lq600,lk1030,d24,dv100,normalize,state",
    "linear_fwd:bf16,b1,hq2,hkv1,lq1030,lk1030,d64,dv128,causal,phi=elu1,normalize,state",
    "linear_fwd:f16,b2,hq4,hkv1,lq200,lk200,d128,dv64,causal,phi=relu,normalize,state",
    "linear_fwd:f32,b1,hq4,hkv2,lq9,lk9,d8,dv20,causal,phi=elu1,normalize,rule=gated,"
    "decay=f32,state,den",
    "linear_fwd:f32,b1,hq4,hkv2,lq9,lk9,d8,dv20,causal,rule=gated_delta,decay=f32,"
    "beta=f32,state",
};
EACH_OF(state_in_place, state_in_place_problems)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_in_place),
    };
    return LINEAR_RUN(tests);
}
