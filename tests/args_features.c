/* SPDX-License-Identifier: MIT */
/* tests/args_features.c: the tensors of the features: what each must be, what the host
 * sees of integers in its own memory, and what is clamped in the device's. */
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

enum { B = 2, HQ = 4, HKV = 2, LQ = 3, LK = 6, D = 4, PAGE = 2, PAGES = 7, TOKENS = 9 };

/* One call on "host"; every array is large enough for each of its shapes. */
typedef struct fixture {
    attn_ctx *ctx;
    attn_softmax_desc desc;
    attn_args args;
    _Alignas(16) float q[B * HQ * TOKENS * D], k[PAGES * HKV * TOKENS * D],
        v[PAGES * HKV * TOKENS * D];
    _Alignas(16) float o[B * HQ * TOKENS * D], bias[B * HQ * LQ * LK], alibi[B * HQ],
        sinks[HQ];
    unsigned char mask[B * HQ * LQ * LK];
    int32_t lens_q[B], lens_kv[B], offsets[B], cu_q[B + 1], cu_k[B + 1];
    int32_t table[B * LK / PAGE], status;
} fixture;

static int start(void **state)
{
    fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    *state = f;
    f->desc = (attn_softmax_desc){ .size = sizeof f->desc,
                                   .type = ATTN_F32,
                                   .batch = B,
                                   .heads_q = HQ,
                                   .heads_kv = HKV,
                                   .len_q = LQ,
                                   .len_kv = LK,
                                   .dim_qk = D,
                                   .type_bias = ATTN_F32,
                                   .page_size = PAGE };
    f->args = (attn_args){ .size = sizeof f->args,
                           .q = attn_tensor_bhld(f->q, ATTN_F32, B, HQ, LQ, D),
                           .k = attn_tensor_bhld(f->k, ATTN_F32, B, HKV, LK, D),
                           .v = attn_tensor_bhld(f->v, ATTN_F32, B, HKV, LK, D),
                           .o = attn_tensor_bhld(f->o, ATTN_F32, B, HQ, LQ, D) };
    for (size_t i = 0; i < sizeof f->v / sizeof f->v[0]; i++)
        f->v[i] = (float)(i % 7);
    for (size_t i = 0; i < sizeof f->o / sizeof f->o[0]; i++)
        f->o[i] = -7;
    memset(f->mask, 1, sizeof f->mask);
    check_ok(attn_ctx_create("host", &f->ctx));
    return 0;
}

static int stop(void **state)
{
    fixture *f = *state;

    attn_ctx_destroy(&f->ctx);
    free(f);
    return 0;
}

static attn_status run(fixture *f, uint32_t use, const attn_args *a)
{
    attn_softmax_desc d = f->desc;

    d.use = use;
    return attn_softmax_forward_host_args(f->ctx, &d, NULL, a);
}

/* Such a call fails, says so, and writes nothing. */
#define BREAK(bits, says, ...)                                    \
    do {                                                          \
        attn_args a = f->args;                                    \
        __VA_ARGS__;                                              \
        check_error(run(f, bits, &a), ATTN_ERR_INVALID, says);    \
        for (size_t i = 0; i < sizeof f->o / sizeof f->o[0]; i++) \
            assert_true(f->o[i] == -7);                           \
    } while (0)

#define KEEP(bits, ...)             \
    do {                            \
        attn_args a = f->args;      \
        __VA_ARGS__;                \
        check_ok(run(f, bits, &a)); \
    } while (0)

#define BIAS(b, h, q, k) a.bias = attn_tensor_bhld(f->bias, ATTN_F32, b, h, q, k)
#define MASK(b, h, q, k) a.mask = attn_tensor_bhld(f->mask, ATTN_BOOL, b, h, q, k)

static void given_or_not(void **state)
{
    fixture *f = *state;

    BREAK(ATTN_USE_BIAS, "bias is missing, but the plan was made with ATTN_USE_BIAS",
          (void)a);
    BREAK(0, "bias is given, but the plan was made without ATTN_USE_BIAS",
          BIAS(1, 1, 1, 1));
    BREAK(ATTN_USE_MASK, "mask is missing", (void)a);
    BREAK(ATTN_USE_ALIBI, "alibi is missing", (void)a);
    BREAK(ATTN_USE_SINKS, "sinks is missing", (void)a);
    BREAK(ATTN_USE_LENS_Q, "lens_q is missing", (void)a);
    BREAK(ATTN_USE_OFFSETS, "offsets is missing", (void)a);
    BREAK(ATTN_USE_PACKED_Q, "q.size[0] (B) = 2, want 1",
          a.cu_q = attn_tensor_vector(f->cu_q, ATTN_I32, B + 1));
    BREAK(ATTN_USE_PAGES, "block_table is missing", (void)a);
    BREAK(0, "cu_k is given", a.cu_k = attn_tensor_vector(f->cu_k, ATTN_I32, B + 1));
}

static void biases_and_masks_broadcast(void **state)
{
    fixture *f = *state;

    BREAK(ATTN_USE_BIAS, "bias.size[3] (K) = 5, want 6, or 1 to broadcast",
          BIAS(1, 1, LQ, LK - 1));
    BREAK(ATTN_USE_BIAS, "bias.size[2] (Q) = 2, want 3", BIAS(B, HQ, LQ - 1, LK));
    BREAK(ATTN_USE_BIAS, "bias.size[1] (H) = 2, want 4", BIAS(1, HKV, LQ, LK));
    BREAK(ATTN_USE_BIAS, "bias.size[0] (B) = 0, want 2", BIAS(0, 1, LQ, LK));
    BREAK(ATTN_USE_BIAS, "bias.type = f16, want f32",
          a.bias = attn_tensor_bhld(f->bias, ATTN_F16, 1, 1, LQ, LK));
    BREAK(ATTN_USE_MASK, "mask.type = f32, want bool",
          a.mask = attn_tensor_bhld(f->bias, ATTN_F32, 1, 1, LQ, LK));
    BREAK(ATTN_USE_MASK, "mask.size[3] (K) = 7", MASK(1, 1, 1, LK + 1));
    BREAK(ATTN_USE_MASK, "o overlaps mask", a.o.data = f->mask; a.o.type = ATTN_F32;
          MASK(1, 1, 1, LK));
    for (int shape = 0; shape < 16; shape++)
        KEEP(ATTN_USE_BIAS | ATTN_USE_MASK, BIAS(shape & 1 ? B : 1, shape & 2 ? HQ : 1,
                                                 shape & 4 ? LQ : 1, shape & 8 ? LK : 1);
             MASK(shape & 8 ? B : 1, shape & 4 ? HQ : 1, shape & 2 ? LQ : 1,
                  shape & 1 ? LK : 1));
}

static void slopes_and_sinks(void **state)
{
    fixture *f = *state;

    BREAK(ATTN_USE_ALIBI, "alibi.size[1] (H) = 2, want 4",
          a.alibi = attn_tensor_bhld(f->alibi, ATTN_F32, 1, HKV, 1, 1));
    BREAK(ATTN_USE_SINKS, "sinks.size[0] (B) = 2, want 1",
          a.sinks = attn_tensor_bhld(f->alibi, ATTN_F32, B, HQ, 1, 1));
    KEEP(ATTN_USE_ALIBI, a.alibi = attn_tensor_bhld(f->alibi, ATTN_F32, B, HQ, 1, 1));
    KEEP(ATTN_USE_ALIBI, a.alibi = attn_tensor_bhld(f->alibi, ATTN_F32, 1, HQ, 1, 1));
    KEEP(ATTN_USE_SINKS, a.sinks = attn_tensor_bhld(f->sinks, ATTN_F32, 1, HQ, 1, 1));
}

#define LENS_Q  a.lens_q = attn_tensor_vector(f->lens_q, ATTN_I32, B)
#define LENS_KV a.lens_kv = attn_tensor_vector(f->lens_kv, ATTN_I32, B)

static void lengths(void **state)
{
    fixture *f = *state;

    f->lens_q[1] = LQ + 1;
    BREAK(ATTN_USE_LENS_Q, "lens_q[1] = 4, want 0 .. 3", LENS_Q);
    f->lens_q[1] = -1;
    BREAK(ATTN_USE_LENS_Q, "lens_q[1] = -1", LENS_Q);
    f->lens_kv[0] = LK + 1;
    BREAK(ATTN_USE_LENS_KV, "lens_kv[0] = 7, want 0 .. 6", LENS_KV);
    f->lens_q[0] = 2, f->lens_q[1] = 0;
    KEEP(ATTN_USE_LENS_Q, LENS_Q);
    for (int i = 0; i < B * HQ * LQ; i++) /* rows past a length keep what they held */
        assert_true((f->o[i * D] == -7) == (i >= HQ * LQ || i % LQ == 2));
}

#define CU_Q                                                  \
    a.q = attn_tensor_bhld(f->q, ATTN_F32, 1, HQ, TOKENS, D); \
    a.o = attn_tensor_bhld(f->o, ATTN_F32, 1, HQ, TOKENS, D); \
    a.cu_q = attn_tensor_vector(f->cu_q, ATTN_I32, B + 1)
#define CU_K                                                   \
    a.k = attn_tensor_bhld(f->k, ATTN_F32, 1, HKV, TOKENS, D); \
    a.v = attn_tensor_bhld(f->v, ATTN_F32, 1, HKV, TOKENS, D); \
    a.cu_k = attn_tensor_vector(f->cu_k, ATTN_I32, B + 1)

static void set(int32_t cu[B + 1], int32_t a, int32_t b, int32_t c)
{
    cu[0] = a;
    cu[1] = b;
    cu[2] = c;
}

static void packed_sequences(void **state)
{
    fixture *f = *state;

    set(f->cu_q, 2, 1, 4);
    BREAK(ATTN_USE_PACKED_Q, "cu_q[1] = 1 after 2, want ascending", CU_Q);
    set(f->cu_q, -1, 1, 4);
    BREAK(ATTN_USE_PACKED_Q, "cu_q[0] = -1, want 0 .. 9 tokens", CU_Q);
    set(f->cu_q, 7, 9, 10);
    BREAK(ATTN_USE_PACKED_Q, "cu_q[2] = 10, want at most the 9 tokens", CU_Q);
    set(f->cu_q, 0, 4, 4);
    BREAK(ATTN_USE_PACKED_Q, "cu_q: sequence 0 has 4 tokens, planned are 3", CU_Q);
    set(f->cu_k, 0, 7, 7);
    BREAK(ATTN_USE_PACKED_K, "cu_k: sequence 0 has 7 tokens, planned are 6", CU_K);
    BREAK(ATTN_USE_PACKED_K, "cu_k.size[0] (B) = 2, want 3", CU_K; a.cu_k.size[0] = B);
    set(f->cu_q, 1, 1, 4);
    set(f->cu_k, 0, 5, 9);
    f->lens_kv[0] = 6;
    BREAK(ATTN_USE_PACKED_K | ATTN_USE_LENS_KV, "lens_kv[0] = 6, want 0 .. 5", CU_K;
          LENS_KV);
    KEEP(ATTN_USE_PACKED_Q | ATTN_USE_PACKED_K, CU_Q; CU_K);
    for (int h = 0; h < HQ; h++) /* tokens outside the sequences are not touched */
        for (int i = 0; i < TOKENS; i++)
            assert_true((f->o[(h * TOKENS + i) * D] == -7) == (i < 1 || i >= 4));
}

#define TABLE(blocks)                                            \
    a.k = attn_tensor_bhld(f->k, ATTN_F32, PAGES, HKV, PAGE, D); \
    a.v = attn_tensor_bhld(f->v, ATTN_F32, PAGES, HKV, PAGE, D); \
    a.block_table = attn_tensor_bhld(f->table, ATTN_I32, B, blocks, 1, 1)

static void pages(void **state)
{
    fixture *f = *state;

    f->table[4] = PAGES;
    BREAK(ATTN_USE_PAGES, "block_table[1, 1] = 7, want a page 0 .. 6", TABLE(3));
    f->table[4] = -1;
    BREAK(ATTN_USE_PAGES, "block_table[1, 1] = -1", TABLE(3));
    BREAK(ATTN_USE_PAGES, "k.size[2] (L) = 6, want 2", TABLE(3); a.k = f->args.k;
          a.k.size[0] = PAGES);
    BREAK(ATTN_USE_PAGES, "block_table.type = f32", TABLE(3);
          a.block_table.type = ATTN_F32);
    BREAK(ATTN_USE_PAGES | ATTN_USE_LENS_KV, "lens_kv[0] = 5, want 0 .. 4", TABLE(2);
          LENS_KV; f->lens_kv[0] = 5; f->table[4] = 0);
    /* entries past those that a length needs may hold anything */
    f->lens_kv[0] = 6, f->lens_kv[1] = 2, f->table[4] = f->table[5] = -1;
    KEEP(ATTN_USE_PAGES | ATTN_USE_LENS_KV, TABLE(3); LENS_KV);
}

/* The same in the device's memory: no look ahead, the kernel clamps and tells. */
static void clamped_on_the_device(void **state)
{
    fixture *f = *state;
    attn_variant_info list[16];
    size_t n = 0;

    f->desc.use = ATTN_USE_LENS_Q | ATTN_USE_LENS_KV | ATTN_USE_PAGES | ATTN_USE_PACKED_Q;
    check_ok(attn_softmax_variants(f->ctx, &f->desc, list, 16, &n));
    for (size_t i = 0; i < n; i++) {
        const attn_options named = { .size = sizeof named, .variant = list[i].name };
        attn_args a = f->args;
        attn_plan *plan = NULL;

        if (!list[i].applicable)
            continue;
        check_ok(attn_plan_softmax_with(f->ctx, &f->desc, &named, &plan));
        CU_Q;
        TABLE(3);
        LENS_Q;
        LENS_KV;
        a.status = attn_tensor_vector(&f->status, ATTN_I32, 1);
        a.workspace_bytes = attn_plan_workspace_bytes(plan);
        check_ok(attn_memory_alloc(f->ctx, a.workspace_bytes, &a.workspace));
        f->status = 0;
        set(f->cu_q, 0, 3, 5);
        f->lens_q[0] = 3, f->lens_q[1] = 2;
        f->lens_kv[0] = f->lens_kv[1] = LK;
        memset(f->table, 0, sizeof f->table);
        check_ok(attn_execute(plan, &a, NULL));
        assert_int_equal(f->status, 0);

        set(f->cu_q, -5, 3, 1 << 30); /* one starts too early, one is too long */
        f->lens_q[0] = 99;
        f->lens_kv[1] = -3;
        f->table[1] = 1 << 30;
        check_ok(attn_execute(plan, &a, NULL));
        assert_int_equal(f->status, ATTN_CLAMPED_CU_Q | ATTN_CLAMPED_LENS_Q |
                                        ATTN_CLAMPED_LENS_KV | ATTN_CLAMPED_BLOCK_TABLE);
        attn_memory_free(f->ctx, &a.workspace);
        attn_plan_destroy(&plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(given_or_not, start, stop),
        cmocka_unit_test_setup_teardown(biases_and_masks_broadcast, start, stop),
        cmocka_unit_test_setup_teardown(slopes_and_sinks, start, stop),
        cmocka_unit_test_setup_teardown(lengths, start, stop),
        cmocka_unit_test_setup_teardown(packed_sequences, start, stop),
        cmocka_unit_test_setup_teardown(pages, start, stop),
        cmocka_unit_test_setup_teardown(clamped_on_the_device, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
