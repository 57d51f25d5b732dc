/* SPDX-License-Identifier: MIT */
/* tests/fuzz_args.c: libFuzzer target; descriptors and tensors over small buffers of
 * known size. What is accepted must stay inside them, write its outputs alone, and what
 * is refused must leave every byte as it was. Build and run: tests/fuzz.sh
 *
 * The first bytes choose a problem, for which right tensors are made, each in a block
 * of its own; those that follow, three at a time, spoil something: one field of one
 * tensor or of the problem, or one number in a tensor of integers. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attn/attn.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)                                                      \
    do {                                                                   \
        if (!(cond)) {                                                     \
            fprintf(stderr, "not so: %s\n%s\n", #cond, attn_last_error()); \
            abort();                                                       \
        }                                                                  \
    } while (0)

enum { Q, K, V, O, LSE, STATUS = 15, FORWARD = 16, N = 23 }; /* gradients come last */
enum { GRAD_O = FORWARD, GRAD_LSE, GRAD_Q, GRAD_K, GRAD_V, GRAD_BIAS, GRAD_SINKS };
enum { MOST_WORK = 1 << 15, MOST_MARKS = 1 << 16 };

typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

/* The call: tensors, and the blocks they lie in. */
typedef struct trial {
    attn_softmax_desc desc;
    attn_options options;
    attn_args args;
    attn_tensor *tensor[N];
    uint8_t *block[N], *before[N];
    size_t block_bytes[N];
} trial;

static int take(bytes *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

/* Mostly small, else one of those at which arithmetic ends. */
static int64_t number(bytes *in)
{
    static const int64_t ends[] = { -1,
                                    -2,
                                    -8,
                                    17,
                                    64,
                                    255,
                                    65536,
                                    INT32_MAX,
                                    INT32_MIN,
                                    (int64_t)INT32_MAX + 1,
                                    -((int64_t)1 << 40),
                                    (int64_t)1 << 32,
                                    (int64_t)1 << 61,
                                    (int64_t)1 << 62,
                                    INT64_MAX,
                                    INT64_MIN };
    const int c = take(in);

    return c < 0xc0 ? c & 31 : ends[c & 15];
}

static float real(bytes *in)
{
    static const float some[] = {
        1, 0, -1, 0.5f, 100, 3e38f, -3e38f, 1e-40f, NAN, INFINITY
    };

    return some[take(in) % 10];
}

static attn_type float_type(bytes *in)
{
    return (attn_type)(ATTN_F32 + take(in) % 3);
}

static void describe(bytes *in, attn_softmax_desc *d)
{
    uint32_t use = (uint32_t)take(in) | (uint32_t)take(in) << 8;
    const int more = take(in);

    use |= (uint32_t)(more & 3) << 16 | (more & 0x80 ? ATTN_USE_GRAD : 0);
    *d = (attn_softmax_desc){ .size = sizeof *d, .use = use, .type = float_type(in) };
    d->grad = (uint32_t)more >> 2 & 31;
    d->batch = take(in) % 4;
    d->heads_kv = take(in) % 3;
    d->heads_q = d->heads_kv * (1 + take(in) % 3);
    d->len_q = take(in) % 9;
    d->len_kv = take(in) % 20;
    d->dim_qk = 1 + take(in) % 9;
    d->dim_v = take(in) % 9;
    d->align = (attn_align)(take(in) % 2);
    d->offset = (int8_t)take(in);
    d->window_left = take(in) % 8 - 1;
    d->window_right = take(in) % 8 - 1;
    d->scale = real(in);
    d->softcap = real(in);
    d->type_bias = float_type(in);
    d->page_size = 1 + take(in) % 5;
    d->layout_q = (attn_layout)(take(in) % 5);
    d->layout_k = (attn_layout)(take(in) % 5);
    d->layout_v = (attn_layout)(take(in) % 5);
    d->layout_o = (attn_layout)(take(in) % 5);
    d->dropout = d->softcap / 4; /* no byte of its own: the corpus stays what it is */
}

static void place(trial *t, int k, attn_type type, int64_t b, int64_t h, int64_t l,
                  int64_t d)
{
    const size_t n = (size_t)(b * h * l * d) * attn_type_bytes(type);
    attn_tensor *x = t->tensor[k];

    t->block_bytes[k] = n ? n : 1;
    t->block[k] = malloc(t->block_bytes[k]);
    t->before[k] = malloc(t->block_bytes[k]);
    REQUIRE(t->block[k] && t->before[k]);
    memset(t->block[k], 0, t->block_bytes[k]);
    *x = attn_tensor_bhld(t->block[k], type, b, h, l, d);
    x->data_bytes = t->block_bytes[k];
}

/* Tensors of the sizes that the problem wants. */
static void place_all(bytes *in, trial *t)
{
    const attn_softmax_desc *d = &t->desc;
    const uint32_t use = d->use;
    const int64_t b = d->batch, dv = d->dim_v ? d->dim_v : d->dim_qk;
    const bool packed_q = (use & ATTN_USE_PACKED_Q) != 0;
    const bool packed_k = (use & ATTN_USE_PACKED_K) != 0;
    const bool pages = (use & ATTN_USE_PAGES) != 0;
    const int64_t bq = packed_q ? 1 : b, lq = packed_q ? take(in) % 24 : d->len_q;
    const int64_t bk = pages ? 1 + take(in) % 5 : packed_k ? 1 : b;
    const int64_t lk = pages ? d->page_size : packed_k ? take(in) % 40 : d->len_kv;
    const int broadcast = take(in);

    place(t, Q, d->type, bq, d->heads_q, lq, d->dim_qk);
    place(t, K, d->type, bk, d->heads_kv, lk, d->dim_qk);
    place(t, V, d->type, bk, d->heads_kv, lk, dv);
    place(t, O, d->type, bq, d->heads_q, lq, dv);
    if (use & (ATTN_USE_LSE | ATTN_USE_GRAD))
        place(t, LSE, ATTN_F32, bq, d->heads_q, lq, 1);
    for (int k = 0; k < 2; k++) /* bias, mask */
        if (use & (k ? ATTN_USE_MASK : ATTN_USE_BIAS))
            place(t, 6 + k, k ? ATTN_BOOL : d->type_bias, broadcast & 1 ? 1 : b,
                  broadcast & 2 ? 1 : d->heads_q, broadcast & 4 ? 1 : d->len_q,
                  broadcast & 8 ? 1 : d->len_kv);
    if (use & ATTN_USE_ALIBI)
        place(t, 8, ATTN_F32, broadcast & 16 ? 1 : b, d->heads_q, 1, 1);
    if (use & ATTN_USE_SINKS)
        place(t, 9, ATTN_F32, 1, d->heads_q, 1, 1);
    const uint32_t vectors[] = { ATTN_USE_LENS_KV, ATTN_USE_LENS_Q, ATTN_USE_OFFSETS,
                                 ATTN_USE_PACKED_Q, ATTN_USE_PACKED_K };
    static const int at[] = { 5, 10, 11, 12, 13 };
    for (int k = 0; k < 5; k++)
        if (use & vectors[k])
            place(t, at[k], ATTN_I32, k < 3 ? b : b + 1, 1, 1, 1);
    if (pages)
        place(t, 14, ATTN_I32, b, 1 + take(in) % 4, 1, 1);
    if (use & ATTN_USE_GRAD) {
        const int64_t *bias = t->tensor[6]->size;

        if (!(broadcast & 64))
            place(t, GRAD_O, d->type, bq, d->heads_q, lq, dv);
        if (!(broadcast & 128))
            place(t, GRAD_LSE, ATTN_F32, bq, d->heads_q, lq, 1);
        if (d->grad & ATTN_GRAD_Q)
            place(t, GRAD_Q, d->type, bq, d->heads_q, lq, d->dim_qk);
        if (d->grad & ATTN_GRAD_K)
            place(t, GRAD_K, d->type, bk, d->heads_kv, lk, d->dim_qk);
        if (d->grad & ATTN_GRAD_V)
            place(t, GRAD_V, d->type, bk, d->heads_kv, lk, dv);
        if (d->grad & ATTN_GRAD_BIAS)
            place(t, GRAD_BIAS, ATTN_F32, bias[0], bias[1], bias[2], bias[3]);
        if (d->grad & ATTN_GRAD_SINKS)
            place(t, GRAD_SINKS, ATTN_F32, 1, d->heads_q, 1, 1);
    }
    if (broadcast & 32)
        place(t, STATUS, ATTN_I32, 1, 1, 1, 1);
}

/* Small numbers of every type, in the blocks of floats; boundaries that ascend. */
static void fill(trial *t, int seed)
{
    for (int k = 0; k < N; k++) {
        const attn_tensor *x = t->tensor[k];

        for (size_t i = 0; t->block[k] && i < t->block_bytes[k]; i++)
            if (x->type == ATTN_F32)
                t->block[k][i] = (uint8_t)(i % 4 == 3 ? 0x3f : i * 7 + (size_t)seed);
            else if (x->type == ATTN_F16 || x->type == ATTN_BF16)
                t->block[k][i] = (uint8_t)(i % 2 ? 0x3b : i * 7 + (size_t)seed);
            else if (x->type == ATTN_BOOL)
                t->block[k][i] = (uint8_t)(i % 3);
        for (size_t i = 0; x->type == ATTN_I32 && k != STATUS && i < t->block_bytes[k] / 4;
             i++)
            ((int32_t *)(void *)t->block[k])[i] = (int32_t)(k == 14 ? i % 2 : i * 3);
    }
}

/* How many tensors the pass knows. */
static int tensors_of(const trial *t)
{
    return t->desc.use & ATTN_USE_GRAD ? N : FORWARD;
}

static void spoil_tensor(bytes *in, trial *t, attn_tensor *x)
{
    const int field = take(in) % 14;
    const int64_t value = field == 1 ? take(in) % tensors_of(t) : number(in);

    switch (field) {
    case 0: x->type = (attn_type)(value & 7); break;
    case 1: x->data = t->block[value], x->data_bytes = t->block_bytes[value]; break;
    case 2: x->offset = value; break;
    case 11:
        if (value > 0 && (size_t)value < x->data_bytes)
            x->data_bytes = (size_t)value;
        break;
    case 12: x->data = NULL, x->data_bytes = 0; break;
    case 13:
        if (x->data && x->data_bytes > 3) {
            x->data = (char *)x->data + (value & 3);
            x->data_bytes -= (size_t)(value & 3);
        }
        break;
    default:
        if (field < 7)
            x->size[field - 3] = value;
        else
            x->stride[field - 7] = value;
    }
}

static void spoil_problem(bytes *in, trial *t)
{
    attn_softmax_desc *d = &t->desc;
    int64_t *const fields[] = { &d->batch,       &d->heads_q,      &d->heads_kv, &d->len_q,
                                &d->len_kv,      &d->dim_qk,       &d->dim_v,    &d->offset,
                                &d->window_left, &d->window_right, &d->page_size };
    const int field = take(in) % 16;
    const int64_t value = number(in);

    switch (field) {
    case 11: d->use ^= 1u << (value & 31); break;
    case 12: d->align = (attn_align)value; break;
    case 13: d->layout_o = (attn_layout)value; break;
    case 14: d->type_bias = (attn_type)value; break;
    case 15: d->size = value < 0 || (size_t)value > sizeof *d ? 0 : (size_t)value; break;
    default: *fields[field] = value;
    }
}

static void spoil(bytes *in, trial *t)
{
    static const int integers[] = { 5, 10, 11, 12, 13, 14 };
    const int n_tensors = tensors_of(t), which = take(in) % (n_tensors + 8);

    if (which < n_tensors) {
        spoil_tensor(in, t, t->tensor[which]);
    } else if (which < n_tensors + 6) {
        const int k = integers[which - n_tensors];
        const size_t at = (size_t)take(in), n = t->block_bytes[k] / 4;
        const int32_t value = (int32_t)number(in);

        if (n)
            ((int32_t *)(void *)t->block[k])[at % n] = value;
    } else if (which == n_tensors + 6) {
        spoil_problem(in, t);
    } else {
        take(in);
        t->options.splits = number(in);
    }
}

/* Sets a bit for every byte of the blocks that an element of the view covers. */
static void mark(const trial *t, const attn_tensor *x, uint8_t *marks[N], int bit)
{
    const size_t elem = attn_type_bytes(x->type);
    int64_t n = x->type == ATTN_TYPE_NONE ? 0 : 1;

    for (int i = 0; i < 4 && n; i++) {
        n = x->size[i] > MOST_MARKS ? MOST_MARKS + 1 : n * x->size[i];
        if (n > MOST_MARKS)
            return;
    }
    for (int64_t e = 0; e < n; e++) {
        int64_t rest = e, index = x->offset;

        for (int i = 3; i >= 0; i--) {
            index += rest % x->size[i] * x->stride[i];
            rest /= x->size[i];
        }
        const uintptr_t at = (uintptr_t)x->data + (uintptr_t)(index * (int64_t)elem);
        for (int k = 0; k < N; k++) {
            const uintptr_t first = (uintptr_t)t->block[k];
            if (t->block[k] && at >= first && at < first + t->block_bytes[k])
                for (size_t i = 0; i < elem; i++)
                    marks[k][at - first + i] |= (uint8_t)bit;
        }
    }
}

/* Bytes outside the outputs are as they were; with `written` those are apart from all
 * inputs, and from each other. */
static void check_memory(const trial *t, bool written)
{
    static const uint8_t forward[N] = { [O] = 1, [LSE] = 2, [STATUS] = 4 };
    static const uint8_t backward[N] = {
        [GRAD_Q] = 1, [GRAD_K] = 2,     [GRAD_V] = 16,
        [STATUS] = 4, [GRAD_BIAS] = 32, [GRAD_SINKS] = 64
    };
    const uint8_t *bit = t->desc.use & ATTN_USE_GRAD ? backward : forward;
    uint8_t *marks[N] = { 0 };

    for (int k = 0; k < N; k++)
        if (t->block[k])
            REQUIRE((marks[k] = calloc(t->block_bytes[k], 1)));
    for (int k = 0; k < N && written; k++)
        mark(t, t->tensor[k], marks, bit[k] ? bit[k] : 8);
    for (int k = 0; k < N; k++)
        for (size_t i = 0; t->block[k] && i < t->block_bytes[k]; i++) {
            const int m = marks[k][i] & ~8;
            REQUIRE(t->block[k][i] == t->before[k][i] || m);
            REQUIRE(!m || (marks[k][i] == m && !(m & (m - 1))));
        }
    for (int k = 0; k < N; k++)
        free(marks[k]);
}

static bool too_large(const attn_softmax_desc *d)
{
    const double dim = (double)(d->dim_qk > d->dim_v ? d->dim_qk : d->dim_v);
    const double rows = (double)d->batch * (double)d->heads_q;

    return d->batch > 64 || d->heads_q > 64 || dim > 4096 || (double)d->page_size > 1e9 ||
           rows * (double)d->len_q * ((double)d->len_kv + 1) * dim > MOST_WORK;
}

static attn_status run(attn_ctx *ctx, trial *t, bool planned)
{
    attn_plan *plan = NULL;
    attn_status st;

    if (!planned && t->desc.use & ATTN_USE_GRAD)
        return attn_softmax_backward_host_args(ctx, &t->desc, &t->options, &t->args);
    if (!planned)
        return attn_softmax_forward_host_args(ctx, &t->desc, &t->options, &t->args);
    st = attn_plan_softmax_with(ctx, &t->desc, &t->options, &plan);
    if (st == ATTN_OK && (t->args.workspace_bytes = attn_plan_workspace_bytes(plan)))
        st = attn_memory_alloc(ctx, t->args.workspace_bytes, &t->args.workspace);
    if (st == ATTN_OK)
        st = attn_execute(plan, &t->args, NULL);
    attn_memory_free(ctx, &t->args.workspace);
    attn_plan_destroy(&plan);
    return st;
}

static void choose_variant(attn_ctx *ctx, trial *t, int which)
{
    static attn_variant_info list[16];
    size_t n = 0;

    if (which && attn_softmax_variants(ctx, &t->desc, list, 16, &n) == ATTN_OK && n)
        t->options.variant = list[(size_t)which % n].name;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static attn_ctx *ctx;
    bytes in = { data, data + size };
    trial t = { .options = { .size = sizeof t.options },
                .args = { .size = sizeof t.args } };
    attn_args *a = &t.args;
    attn_tensor *const all[N] = { &a->q,      &a->k,         &a->v,           &a->o,
                                  &a->lse,    &a->lens_kv,   &a->bias,        &a->mask,
                                  &a->alibi,  &a->sinks,     &a->lens_q,      &a->offsets,
                                  &a->cu_q,   &a->cu_k,      &a->block_table, &a->status,
                                  &a->grad_o, &a->grad_lse,  &a->grad_q,      &a->grad_k,
                                  &a->grad_v, &a->grad_bias, &a->grad_sinks };

    if (!ctx) {
        REQUIRE(attn_ctx_create("host", &ctx) == ATTN_OK);
        REQUIRE(attn_ctx_set_threads(ctx, 1) == ATTN_OK);
    }
    memcpy(t.tensor, all, sizeof all);
    const int how = take(&in);
    describe(&in, &t.desc);
    place_all(&in, &t);
    fill(&t, take(&in));
    while (in.at < in.end)
        spoil(&in, &t);
    for (int k = 0; k < N; k++)
        if (t.block[k])
            memcpy(t.before[k], t.block[k], t.block_bytes[k]);

    const attn_status checked = attn_softmax_check(&t.desc);
    REQUIRE(checked == ATTN_OK || checked == ATTN_ERR_INVALID);
    if (checked != ATTN_OK || !too_large(&t.desc)) {
        choose_variant(ctx, &t, how >> 1);
        const attn_status st = run(ctx, &t, how & 1);
        REQUIRE(st == ATTN_OK || attn_last_error()[0]);
        REQUIRE(checked == ATTN_OK || st == ATTN_ERR_INVALID);
        check_memory(&t, st == ATTN_OK);
    }
    for (int k = 0; k < N; k++) {
        free(t.block[k]);
        free(t.before[k]);
    }
    return 0;
}
