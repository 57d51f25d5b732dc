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
enum { HEADS_Q = 2, HEADS_KV = 1, WINDOW = 9, OFFSET = 3, PAGE = 5, SEGMENT = 2560 };

/* Rows that two tiles of each step are less than, within limits: groups of a backward
 * step own queries or keys and visit the others. */
static int64_t two_tiles(const attn_problem *p, const attn_choice *choice)
{
    const attn_step *first = &choice->step[0];
    int64_t most = 8, cut, segment;

    while (!first->piece && first < &choice->step[choice->n_steps - 1])
        first++;
    segment = attn_max(first->piece, first->lead); /* the first one's */
    cut = first->over == ATTN_OVER_KEY_STATES ? p->lk : p->lq;
    for (int i = 0; i < choice->n_steps; i++)
        most = attn_max(most, attn_max(choice->step[i].tile_q, choice->step[i].tile_k));
    most = attn_min(most + 3, 67);
    /* of linear attention: two segments, but no more than were planned */
    if (p->op == ATTN_OP_LINEAR && segment && segment <= SEGMENT && cut > segment)
        most = attn_max(most, segment + 3);
    return most;
}

static void shrink(attn_problem *tiny, const attn_problem *p, const attn_choice *choice)
{
    const attn_step *const step = &choice->step[0];
    const int many = choice->variant->traits & ATTN_TRAIT_VENDOR ? 3 : 1; /* products */

    *tiny = *p;
    tiny->b = 1;
    tiny->hq = many * HEADS_Q;
    tiny->hkv = many * HEADS_KV;
    tiny->lq = attn_min(attn_max(step->tile_q, 8) + 1, 17);
    tiny->lk = attn_min(step->tile_k + 3, 131);
    if (step->piece) /* two, but no more than were planned: a merge has room for those */
        tiny->lk = p->lk > step->piece ? step->piece + attn_min(step->tile_k, 3)
                                       : attn_min(tiny->lk, step->piece);
    if (p->pass == ATTN_PASS_BWD)
        tiny->lq = tiny->lk = two_tiles(p, choice);
    tiny->offset = p->features & ATTN_FEAT_OFFSET ? OFFSET : 0;
    tiny->window_left = attn_min(p->window_left, WINDOW);
    tiny->window_right = attn_min(p->window_right, WINDOW);
    tiny->page_size = attn_min(p->page_size, PAGE);
    tiny->scale = (float)(1.0 / sqrt((double)p->d));
    if (p->op == ATTN_OP_LINEAR) /* two chunks, and the edge of the second */
        tiny->lq = tiny->lk = two_tiles(p, choice);
}

static void put(attn_type type, void *data, int64_t i, float x)
{
    if (type == ATTN_F32)
        ((float *)data)[i] = x;
    else
        ((uint16_t *)data)[i] =
            type == ATTN_F16 ? attn_f16_from_f32(x) : attn_bf16_from_f32(x);
}

/* Multiples of 1/8 from -1 to 1, exact in every type. */
static void fill(attn_type type, void *data, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float x = (float)((int)((seed >> 16) % 17) - 8) / 8.0f;
        put(type, data, i, x);
    }
}

static float value(attn_type type, const void *data, int64_t i)
{
    if (type == ATTN_F32)
        return ((const float *)data)[i];
    return type == ATTN_F16 ? attn_f32_from_f16(((const uint16_t *)data)[i])
                            : attn_f32_from_bf16(((const uint16_t *)data)[i]);
}

/* One call's tensors, in host memory and as the device's copies; by their place in
 * attn_arg_list. */
typedef struct trial {
    attn_problem p;
    attn_extent extent;
    attn_args args; /* shapes                              */
    void *host[ATTN_ARGS];
    void *want[ATTN_ARGS]; /* the oracle's outputs                */
    void *device[ATTN_ARGS];
    void *workspace;
} trial;

static size_t bytes_of(const attn_tensor *t)
{
    return (size_t)(t->size[0] * t->size[1] * t->size[2] * t->size[3]) *
           attn_type_bytes(t->type);
}

/* Integers that make odd but valid sequences: all of the queries and keys but the last,
 * pages in reverse order. */
static void fill_index(const trial *t, int k, int32_t *data, int64_t n)
{
    const attn_extent *e = &t->extent;

    switch (attn_arg_list[k].feature) {
    case ATTN_FEAT_LENS_Q: data[0] = (int32_t)attn_max(e->len_q - 1, 1); break;
    case ATTN_FEAT_LENS_KV: data[0] = (int32_t)(e->len_kv - 1); break;
    case ATTN_FEAT_OFFSETS: data[0] = OFFSET; break;
    case ATTN_FEAT_PACKED_Q: data[0] = 0, data[1] = (int32_t)e->len_q; break;
    case ATTN_FEAT_PACKED_K: data[0] = 0, data[1] = (int32_t)e->len_kv; break;
    default:
        for (int64_t i = 0; i < n; i++)
            data[i] = (int32_t)(n - 1 - i);
    }
}

/* Numbers of linear attention that no sum cancels under a normaliser and no rule lets grow:
 * queries, keys and z not negative, decays not positive, betas small. */
static void tame(const trial *t, int k, int64_t n)
{
    const attn_tensor *const x = attn_arg_tensor((attn_args *)&t->args, k);
    const size_t at = attn_arg_list[k].at;
    const bool positive = at == offsetof(attn_args, q) || at == offsetof(attn_args, k) ||
                          at == offsetof(attn_args, z_in);
    const bool decay = at == offsetof(attn_args, decay);
    const bool beta = at == offsetof(attn_args, beta);

    for (int64_t i = 0; i < n; i++) {
        const float y = value(x->type, t->host[k], i);

        if (positive && t->p.features & ATTN_FEAT_NORMALIZE)
            put(x->type, t->host[k], i, fabsf(y));
        else if (decay)
            put(x->type, t->host[k], i, -fabsf(y));
        else if (beta)
            put(x->type, t->host[k], i, fabsf(y) / (float)t->p.d);
    }
}

static attn_status make_tensor(trial *t, int k)
{
    const attn_arg *arg = &attn_arg_list[k];
    attn_tensor *x = attn_arg_tensor(&t->args, k);
    uint32_t may;
    int64_t n;

    if (!attn_arg_belongs(&t->p, k) || arg->at == offsetof(attn_args, status))
        return ATTN_OK;
    if (arg->feature == ATTN_FEAT_PAGES)
        x->size[1] = t->extent.pages;
    attn_arg_want(&t->p, &t->args, &t->extent, k, &x->type, x->size, &may);
    *x = attn_tensor_bhld(NULL, x->type, x->size[0], x->size[1], x->size[2], x->size[3]);
    n = (int64_t)(bytes_of(x) / attn_type_bytes(x->type));
    t->host[k] = calloc(1, bytes_of(x) + 1);
    t->want[k] = calloc(1, bytes_of(x) + 1);
    if (!t->host[k] || !t->want[k])
        return attn_fail(ATTN_ERR_NO_MEMORY, "%zu bytes", bytes_of(x));
    if (arg->index)
        fill_index(t, k, t->host[k], n);
    else if (x->type == ATTN_BOOL)
        for (int64_t i = 0; i < n; i++)
            ((unsigned char *)t->host[k])[i] = i % 3 != 1;
    else if (!attn_arg_is_output(&t->p, k))
        fill(x->type, t->host[k], n, (uint32_t)k + 1);
    if (t->p.op == ATTN_OP_LINEAR)
        tame(t, k, n);
    if (arg->feature == ATTN_FEAT_ALIBI) /* small: 16-bit scores are not exact far away */
        for (int64_t i = 0; i < n; i++)
            ((float *)t->host[k])[i] /= 64;
    return ATTN_OK;
}

static attn_status make(trial *t)
{
    const attn_problem *p = &t->p;
    attn_status st = ATTN_OK;

    t->extent = (attn_extent){
        .len_q = p->lq, .len_kv = p->lk, .tokens_q = p->lq, .tokens_k = p->lk
    };
    t->args.dropout_seed = UINT64_C(0x243f6a8885a308d3);
    t->args.dropout_offset = UINT64_C(0x13198a2e03707344);
    if (p->page_size)
        t->extent.pages = attn_ceil_div(p->lk, p->page_size);
    for (int k = 0; k < ATTN_ARGS && st == ATTN_OK; k++)
        st = make_tensor(t, k);
    return st;
}

static attn_args args_of(const trial *t, void *const data[ATTN_ARGS])
{
    attn_args a = t->args;

    a.size = sizeof a;
    for (int k = 0; k < ATTN_ARGS; k++)
        attn_arg_tensor(&a, k)->data = data[k];
    return a;
}

/* The answer of one of the host's variants to a problem. */
static attn_status run_on_host(const trial *t, const attn_problem *p, const char *variant,
                               attn_args *args)
{
    const attn_backend *host = attn_backend_find("host");
    const attn_caps one = { .kind = ATTN_DEVICE_HOST,
                            .compute_units = 1,
                            .vector_width = 1 };
    const attn_target target = { .backend = "host",
                                 .caps = one,
                                 .variants = attn_variants_for("host", &one) };
    const attn_options reference = { .size = sizeof reference, .variant = variant };
    const attn_kernel *kernel;
    attn_device *device = NULL;
    attn_choice choice;
    attn_call call;
    int64_t limit;
    attn_status st;

    if ((st = attn_choose(p, &target, &reference, &choice)) != ATTN_OK)
        return st;
    args->workspace_bytes = (size_t)choice.workspace_bytes;
    args->workspace = calloc(1, args->workspace_bytes + 1);
    if (!args->workspace)
        return attn_fail(ATTN_ERR_NO_MEMORY, "%zu bytes", args->workspace_bytes);
    call = attn_call_of(p, args, &t->extent);
    if ((st = host->open(&(attn_env){ 0 }, 0, &device)) == ATTN_OK &&
        (st = host->kernel(device, choice.step, &kernel, &limit)) == ATTN_OK)
        st = host->launch(device, 1, &kernel, choice.step, &call, &(attn_stream){ 0 });
    host->close(&device);
    free(args->workspace);
    return st;
}

/* The plain loops that compute a problem. */
static const char *oracle_of(const attn_problem *p)
{
    static const char *const names[2][2] = {
        { "softmax_fwd_reference", "softmax_bwd_reference" },
        { "linear_fwd_reference", "linear_bwd_reference" },
    };

    return names[p->op][p->pass];
}

/* The forward's results, which a backward problem is given. */
static attn_status run_forward(const trial *t)
{
    attn_problem forward = t->p;
    attn_args args = args_of(t, t->host);

    forward.pass = ATTN_PASS_FWD;
    forward.grad = 0;
    return run_on_host(t, &forward, oracle_of(&forward), &args);
}

/* The oracle's answer. */
static attn_status run_oracle(const trial *t)
{
    const bool backward = t->p.pass == ATTN_PASS_BWD;
    void *data[ATTN_ARGS];
    attn_args args;
    attn_status st;

    if (backward && (st = run_forward(t)) != ATTN_OK)
        return st;
    for (int k = 0; k < ATTN_ARGS; k++)
        data[k] = attn_arg_is_output(&t->p, k) ? t->want[k] : t->host[k];
    args = args_of(t, data);
    return run_on_host(t, &t->p, oracle_of(&t->p), &args);
}

/* The kernels of `choice` on the tiny problem, which may have more rows, and more pieces
 * of keys, than the planned one: its rounds and its workspace. */
static attn_status fit(const attn_ctx *ctx, const trial *t, attn_choice *choice)
{
    const int64_t piece = choice->variant->splits ? choice->step[0].piece : 0;
    const attn_options same = { .size = sizeof same,
                                .variant = choice->variant->name,
                                .splits = piece ? attn_ceil_div(t->p.lk, piece) : 0 };
    attn_choice tiny;
    const attn_status st = attn_choose(&t->p, &ctx->target, &same, &tiny);

    if (st != ATTN_OK)
        return st;
    for (int i = 0; i < choice->n_steps; i++) {
        choice->step[i].round_heads = tiny.step[i].round_heads;
        choice->step[i].round_queries = tiny.step[i].round_queries;
    }
    /* rows of the tiny problem, but pieces of the planned one */
    choice->workspace_bytes += tiny.workspace_bytes;
    return ATTN_OK;
}

static attn_status run_device(const attn_ctx *ctx, trial *t, const attn_choice *planned,
                              const attn_kernel *const kernel[])
{
    const attn_backend *b = ctx->backend;
    attn_choice choice = *planned;
    attn_args args;
    attn_call call;
    attn_status st;

    for (int k = 0; k < ATTN_ARGS; k++) {
        const size_t bytes = bytes_of(attn_arg_tensor(&t->args, k));
        if (bytes &&
            ((st = b->alloc(ctx->device, bytes, &t->device[k])) != ATTN_OK ||
             (st = b->upload(ctx->device, t->device[k], 0, t->host[k], bytes)) != ATTN_OK))
            return st;
    }
    args = args_of(t, t->device);
    if ((st = fit(ctx, t, &choice)) != ATTN_OK)
        return st;
    args.workspace_bytes = (size_t)choice.workspace_bytes;
    if (args.workspace_bytes &&
        (st = b->alloc(ctx->device, args.workspace_bytes, &t->workspace)) != ATTN_OK)
        return st;
    args.workspace = t->workspace;
    call = attn_call_of(&t->p, &args, &t->extent);
    if ((st = b->launch(ctx->device, choice.n_steps, kernel, choice.step, &call,
                        &(attn_stream){ 0 })) != ATTN_OK ||
        (st = b->wait(ctx->device)) != ATTN_OK)
        return st;
    for (int k = 0; k < ATTN_ARGS && st == ATTN_OK; k++)
        if (attn_arg_is_output(&t->p, k) && t->device[k])
            st = b->download(ctx->device, t->host[k], t->device[k], 0,
                             bytes_of(attn_arg_tensor(&t->args, k)));
    return st;
}

/* What an element may be off besides its own share. Without a normaliser sums of linear
 * attention cancel, so the largest of all is what counts. */
static float scale_of(const trial *t, attn_type type, const void *want, int64_t n)
{
    float most = 1;

    if (t->p.op == ATTN_OP_LINEAR)
        for (int64_t i = 0; i < n; i++) {
            const float x = fabsf(value(type, want, i));

            if (isfinite(x)) /* an infinity would let everything pass */
                most = fmaxf(most, x);
        }
    return most;
}

/* Wide enough for any right order of operations; a wrong kernel is far off. */
static void compare(trial *t, char *denial, size_t cap)
{
    static const float tolerance[] = {
        [ATTN_F32] = 1e-4f, [ATTN_F16] = 4e-3f, [ATTN_BF16] = 3e-2f
    };
    /* TF32 has the bits of f16 */
    const float most = tolerance[t->p.allow_tf32 ? ATTN_F16 : t->p.type];

    for (int k = 0; k < ATTN_ARGS; k++) {
        const attn_tensor *x = attn_arg_tensor(&t->args, k);
        const bool output = attn_arg_is_output(&t->p, k) && t->host[k];
        const int64_t n = output ? (int64_t)(bytes_of(x) / attn_type_bytes(x->type)) : 0;
        const float scale = scale_of(t, x->type, t->want[k], n);

        for (int64_t i = 0; i < n; i++) {
            const float have = value(x->type, t->host[k], i);
            const float want = value(x->type, t->want[k], i);
            if (have == want || fabsf(have - want) <= most * (scale + fabsf(want)))
                continue;
            snprintf(denial, cap, "failed its self-test here: %s[%lld] = %g, want %g",
                     attn_arg_list[k].name, (long long)i, (double)have, (double)want);
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
    shrink(&t.p, problem, choice);
    /* kernels that take a query head for each of keys alone have it */
    if (problem->hq == problem->hkv &&
        (choice->ungrouped || choice->variant->applicable(&t.p, &ctx->target.caps)))
        t.p.hq = t.p.hkv;
    if ((st = make(&t)) == ATTN_OK && (st = run_oracle(&t)) == ATTN_OK &&
        (st = run_device(ctx, &t, choice, kernel)) == ATTN_OK)
        compare(&t, denial, cap);
    for (int k = 0; k < ATTN_ARGS; k++) {
        free(t.host[k]);
        free(t.want[k]);
        if (t.device[k])
            ctx->backend->free(ctx->device, t.device[k]);
    }
    if (t.workspace)
        ctx->backend->free(ctx->device, t.workspace);
    return st;
}
