/* SPDX-License-Identifier: MIT */
/* api/selftest.c: a known answer for every kernel instance at its first use.
 * Drivers miscompile: a kernel that answers wrong must never be taken. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "core/float16.h"
#include "core/size.h"
#include "core/status.h"

/* The instance under test keeps its head sizes, types, features and tile; the
 * rest is small and odd: two tiles of keys and the edges of both. */
enum { HEADS_Q = 2, HEADS_KV = 1, WINDOW = 9, OFFSET = 3 };

static void shrink(attn_problem *tiny, const attn_problem *p, const attn_step *step)
{
    *tiny = *p;
    tiny->b = 1;
    tiny->hq = HEADS_Q;
    tiny->hkv = HEADS_KV;
    tiny->lq = attn_min(step->tile_q + 1, 17);
    tiny->lk = attn_min(step->tile_k + 3, 131);
    tiny->offset = p->features & ATTN_FEAT_OFFSET ? OFFSET : 0;
    tiny->window_left = attn_min(p->window_left, WINDOW);
    tiny->window_right = attn_min(p->window_right, WINDOW);
    tiny->scale = (float)(1.0 / sqrt((double)p->d));
}

/* Multiples of 1/8 from -1 to 1, exact in every type. */
static void fill(attn_type type, void *data, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float x = (float)((int)((seed >> 16) % 17) - 8) / 8.0f;
        if (type == ATTN_F32)
            ((float *)data)[i] = x;
        else
            ((uint16_t *)data)[i] =
                type == ATTN_F16 ? attn_f16_from_f32(x) : attn_bf16_from_f32(x);
    }
}

static float value(attn_type type, const void *data, int64_t i)
{
    if (type == ATTN_F32)
        return ((const float *)data)[i];
    return type == ATTN_F16 ? attn_f32_from_f16(((const uint16_t *)data)[i])
                            : attn_f32_from_bf16(((const uint16_t *)data)[i]);
}

/* One call's tensors, in host memory and as the device's copies. */
enum { Q, K, V, O, LSE, LENS, N_TENSORS };

typedef struct trial {
    attn_problem p;
    attn_tensor host[N_TENSORS];
    void *want[N_TENSORS]; /* the oracle's outputs                */
    void *device[N_TENSORS];
    void *workspace;
} trial;

static size_t bytes_of(const attn_tensor *t)
{
    return (size_t)(t->size[0] * t->size[1] * t->size[2] * t->size[3]) *
           attn_type_bytes(t->type);
}

static attn_status make(trial *t)
{
    const attn_problem *p = &t->p;

    t->host[Q] = attn_tensor_bhld(NULL, p->type, p->b, p->hq, p->lq, p->d);
    t->host[K] = attn_tensor_bhld(NULL, p->type, p->b, p->hkv, p->lk, p->d);
    t->host[V] = attn_tensor_bhld(NULL, p->type, p->b, p->hkv, p->lk, p->dv);
    t->host[O] = attn_tensor_bhld(NULL, p->type, p->b, p->hq, p->lq, p->dv);
    if (p->features & ATTN_FEAT_LSE)
        t->host[LSE] = attn_tensor_bhld(NULL, ATTN_F32, p->b, p->hq, p->lq, 1);
    if (p->features & ATTN_FEAT_LENS_KV)
        t->host[LENS] = attn_tensor_vector(NULL, ATTN_I32, p->b);
    for (int i = 0; i < N_TENSORS; i++) {
        const size_t bytes = bytes_of(&t->host[i]);
        if (!bytes)
            continue;
        t->host[i].data = calloc(1, bytes);
        t->want[i] = calloc(1, bytes);
        if (!t->host[i].data || !t->want[i])
            return attn_fail(ATTN_ERR_NO_MEMORY, "%zu bytes", bytes);
        if (i <= V)
            fill(p->type, t->host[i].data, (int64_t)(bytes / attn_type_bytes(p->type)),
                 (uint32_t)i + 1);
    }
    if (t->host[LENS].data)
        *(int32_t *)t->host[LENS].data = (int32_t)(p->lk - 1);
    return ATTN_OK;
}

static attn_args args_of(const trial *t, void *const data[N_TENSORS])
{
    attn_args a = { .size = sizeof a,
                    .q = t->host[Q],
                    .k = t->host[K],
                    .v = t->host[V],
                    .o = t->host[O],
                    .lse = t->host[LSE],
                    .lens_kv = t->host[LENS] };
    attn_tensor *to[N_TENSORS] = { &a.q, &a.k, &a.v, &a.o, &a.lse, &a.lens_kv };

    for (int i = 0; i < N_TENSORS; i++)
        to[i]->data = data[i];
    return a;
}

/* The oracle's answer, through the host back end. */
static attn_status run_oracle(const trial *t)
{
    const attn_backend *host = attn_backend_find("host");
    const attn_caps one = { .kind = ATTN_DEVICE_HOST,
                            .compute_units = 1,
                            .vector_width = 1 };
    const attn_target target = { .backend = "host",
                                 .caps = one,
                                 .variants = attn_variants_for("host", &one) };
    void *data[N_TENSORS];
    const attn_kernel *kernel;
    attn_device *device = NULL;
    attn_choice choice;
    attn_args args;
    attn_call call;
    int64_t limit;
    attn_status st;

    for (int i = 0; i < N_TENSORS; i++)
        data[i] = i == O || i == LSE ? t->want[i] : t->host[i].data;
    args = args_of(t, data);
    call = attn_call_of(&t->p, &args, t->p.lq, t->p.lk);
    if ((st = attn_choose(&t->p, &target, "softmax_fwd_reference", &choice)) == ATTN_OK &&
        (st = host->open(&(attn_env){ 0 }, 0, &device)) == ATTN_OK &&
        (st = host->kernel(device, choice.step, &kernel, &limit)) == ATTN_OK)
        st = host->launch(device, 1, &kernel, choice.step, &call, &(attn_stream){ 0 });
    host->close(&device);
    return st;
}

static attn_status run_device(const attn_ctx *ctx, trial *t, const attn_choice *choice,
                              const attn_kernel *const kernel[])
{
    const attn_backend *b = ctx->backend;
    attn_args args;
    attn_call call;
    attn_status st;

    for (int i = 0; i < N_TENSORS; i++) {
        const size_t bytes = bytes_of(&t->host[i]);
        if (bytes && ((st = b->alloc(ctx->device, bytes, &t->device[i])) != ATTN_OK ||
                      (st = b->upload(ctx->device, t->device[i], 0, t->host[i].data,
                                      bytes)) != ATTN_OK))
            return st;
    }
    args = args_of(t, t->device);
    if (choice->workspace_bytes &&
        (st = b->alloc(ctx->device, (size_t)choice->workspace_bytes, &t->workspace)) !=
            ATTN_OK)
        return st;
    args.workspace = t->workspace;
    args.workspace_bytes = (size_t)choice->workspace_bytes;
    call = attn_call_of(&t->p, &args, t->p.lq, t->p.lk);
    if ((st = b->launch(ctx->device, choice->n_steps, kernel, choice->step, &call,
                        &(attn_stream){ 0 })) != ATTN_OK ||
        (st = b->wait(ctx->device)) != ATTN_OK)
        return st;
    for (int i = O; i <= LSE && st == ATTN_OK; i++)
        if (t->device[i])
            st = b->download(ctx->device, t->host[i].data, t->device[i], 0,
                             bytes_of(&t->host[i]));
    return st;
}

/* Wide enough for any right order of operations; a wrong kernel is far off. */
static void compare(const trial *t, char *denial, size_t cap)
{
    static const float tolerance[] = {
        [ATTN_F32] = 1e-4f, [ATTN_F16] = 4e-3f, [ATTN_BF16] = 3e-2f
    };

    for (int i = O; i <= LSE; i++) {
        const attn_tensor *h = &t->host[i];
        const int64_t n = h->data ? (int64_t)(bytes_of(h) / attn_type_bytes(h->type)) : 0;
        for (int64_t k = 0; k < n; k++) {
            const float have = value(h->type, h->data, k);
            const float want = value(h->type, t->want[i], k);
            if (have == want ||
                fabsf(have - want) <= tolerance[h->type] * (1 + fabsf(want)))
                continue;
            snprintf(denial, cap, "failed its self-test here: %s[%lld] = %g, want %g",
                     i == O ? "o" : "lse", (long long)k, (double)have, (double)want);
            return;
        }
    }
}

attn_status attn_selftest(attn_ctx *ctx, const attn_problem *problem,
                          const attn_choice *choice, const attn_kernel *const kernel[],
                          char *denial, size_t cap)
{
    trial t = { .workspace = NULL };
    attn_status st;

    denial[0] = '\0';
    shrink(&t.p, problem, &choice->step[0]);
    if ((st = make(&t)) == ATTN_OK && (st = run_oracle(&t)) == ATTN_OK &&
        (st = run_device(ctx, &t, choice, kernel)) == ATTN_OK)
        compare(&t, denial, cap);
    for (int i = 0; i < N_TENSORS; i++) {
        free(t.host[i].data);
        free(t.want[i]);
        if (t.device[i])
            ctx->backend->free(ctx->device, t.device[i]);
    }
    if (t.workspace)
        ctx->backend->free(ctx->device, t.workspace);
    return st;
}
