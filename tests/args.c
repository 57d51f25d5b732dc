/* SPDX-License-Identifier: MIT */
/* tests/args.c: every rule of a call's tensors: its code, its sentence, and
 * nothing written. On the host, where all of them can be seen. */
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

enum { B = 2, HQ = 4, HKV = 2, LQ = 5, LK = 7, D = 8, DV = 4 };

typedef struct fixture {
    attn_ctx *ctx;
    attn_plan *plan;
    attn_args args; /* right in everything */
    float *memory;
    void *workspace;
} fixture;

/* Elements that no test reaches, before, between and behind the tensors. */
enum { GAP = 64, BLOCK = B * HQ * LK * D + GAP };

static float *block(fixture *f, int i)
{
    return f->memory + i * BLOCK + GAP;
}

static int start(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    attn_softmax_desc desc = { .size = sizeof desc,
                               .type = ATTN_F32,
                               .batch = B,
                               .heads_q = HQ,
                               .heads_kv = HKV,
                               .len_q = LQ,
                               .len_kv = LK,
                               .dim_qk = D,
                               .dim_v = DV,
                               .use = ATTN_USE_LSE | ATTN_USE_LENS_KV };

    *state = f;
    check_ok(attn_ctx_create("host", &f->ctx));
    check_ok(attn_plan_softmax(f->ctx, &desc, &f->plan));
    check_ok(attn_memory_alloc(f->ctx, 6 * BLOCK * sizeof(float), (void **)&f->memory));
    for (int i = 0; i < 6 * BLOCK; i++)
        f->memory[i] = (float)(i % 5);
    f->args = (attn_args){
        .size = sizeof f->args,
        .q = attn_tensor_bhld(block(f, 0), ATTN_F32, B, HQ, LQ, D),
        .k = attn_tensor_bhld(block(f, 1), ATTN_F32, B, HKV, LK, D),
        .v = attn_tensor_bhld(block(f, 2), ATTN_F32, B, HKV, LK, DV),
        .o = attn_tensor_bhld(block(f, 3), ATTN_F32, B, HQ, LQ, DV),
        .lse = attn_tensor_bhld(block(f, 4), ATTN_F32, B, HQ, LQ, 1),
        .lens_kv = attn_tensor_vector(block(f, 5), ATTN_I32, B),
        .workspace_bytes = attn_plan_workspace_bytes(f->plan),
    };
    ((int32_t *)f->args.lens_kv.data)[0] = 3;
    ((int32_t *)f->args.lens_kv.data)[1] = LK;
    check_ok(attn_memory_alloc(f->ctx, f->args.workspace_bytes, &f->workspace));
    f->args.workspace = f->workspace;
    return 0;
}

static int stop(void **state)
{
    fixture *f = *state;

    attn_memory_free(f->ctx, &f->workspace);
    attn_memory_free(f->ctx, (void **)&f->memory);
    attn_plan_destroy(&f->plan);
    attn_ctx_destroy(&f->ctx);
    free(f);
    return 0;
}

/* The call fails so, and leaves every byte of O and LSE as it was. */
static void expect(fixture *f, const attn_args *a, attn_status want, const char *says)
{
    float *before = malloc(6 * BLOCK * sizeof(float));

    memcpy(before, f->memory, 6 * BLOCK * sizeof(float));
    check_error(attn_execute(f->plan, a, NULL), want, says);
    assert_memory_equal(before, f->memory, 6 * BLOCK * sizeof(float));
    free(before);
}

#define BREAK(says, ...)                       \
    do {                                       \
        attn_args a = f->args;                 \
        __VA_ARGS__;                           \
        expect(f, &a, ATTN_ERR_INVALID, says); \
    } while (0)

#define KEEP(...)                                  \
    do {                                           \
        attn_args a = f->args;                     \
        __VA_ARGS__;                               \
        check_ok(attn_execute(f->plan, &a, NULL)); \
    } while (0)

static void the_right_call_works(void **state)
{
    fixture *f = *state;

    KEEP((void)a);
    KEEP(a.o = (attn_tensor){ 0 });
    KEEP(a.lse = (attn_tensor){ 0 });
    KEEP(a.o = a.lse = (attn_tensor){ 0 });
    KEEP(a.q.size[2] = a.o.size[2] = a.lse.size[2] = 0);
    KEEP(a.k.size[2] = a.v.size[2] = 2);
    KEEP(a.k.size[2] = a.v.size[2] = 0; a.k.data = a.v.data = NULL);
}

static void null_and_missing(void **state)
{
    fixture *f = *state;
    uint64_t ns;

    check_error(attn_execute(NULL, &f->args, NULL), ATTN_ERR_INVALID, "plan is NULL");
    check_error(attn_execute(f->plan, NULL, NULL), ATTN_ERR_INVALID, "args is NULL");
    check_error(attn_execute_timed(f->plan, &f->args, NULL, NULL), ATTN_ERR_INVALID, "ns");
    check_ok(attn_execute_timed(f->plan, &f->args, NULL, &ns));
    check_error(attn_execute(f->plan, &f->args, &ns), ATTN_ERR_INVALID, "no queues");
    BREAK("args.size = 1", a.size = 1);
    BREAK("q is missing", a.q = (attn_tensor){ .size = { B, HQ, LQ, D } });
    BREAK("q.data is NULL", a.q.data = NULL);
    BREAK("k.data is NULL", a.k.data = NULL);
    BREAK("v.data is NULL", a.v.data = NULL);
    BREAK("o.data is NULL", a.o.data = NULL);
    BREAK("lse.data is NULL", a.lse.data = NULL);
    BREAK("lens_kv is missing", a.lens_kv = (attn_tensor){ 0 });
}

static void types_and_sizes(void **state)
{
    fixture *f = *state;

    BREAK("q.type = f16, want f32", a.q.type = ATTN_F16);
    BREAK("o.type = bf16, want f32", a.o.type = ATTN_BF16);
    BREAK("k.type = 77, want f32", a.k.type = (attn_type)77);
    BREAK("lse.type = f16, want f32", a.lse.type = ATTN_F16);
    BREAK("lens_kv.type = f32, want i32", a.lens_kv.type = ATTN_F32);
    BREAK("q.size[0] (B) = 3, want 2", a.q.size[0] = 3);
    BREAK("k.size[1] (H) = 4, want 2", a.k.size[1] = HQ);
    BREAK("q.size[2] (L) = 6, want 0 .. 5", a.q.size[2] = 6);
    BREAK("q.size[2] (L) = -1", a.q.size[2] = -1);
    BREAK("k.size[2] (L) = 8, want 0 .. 7", a.k.size[2] = 8);
    BREAK("v.size[2] (L) = 6, want 7", a.v.size[2] = 6);
    BREAK("q.size[3] (D) = 9, want 8", a.q.size[3] = 9);
    BREAK("v.size[3] (D) = 8, want 4", a.v.size[3] = 8);
    BREAK("o.size[2] (L) = 4, want 5", a.o.size[2] = 4);
    BREAK("lse.size[3] (D) = 2, want 1", a.lse.size[3] = 2);
    BREAK("lens_kv.size[0] (B) = 1, want 2", a.lens_kv.size[0] = 1);
}

static void memory(void **state)
{
    fixture *f = *state;

    BREAK("q.offset = -1", a.q.offset = -1);
    BREAK("q.data = ", a.q.data = (char *)a.q.data + 1);
    BREAK("before the start", a.k.stride[2] = -D);
    BREAK("before the start", a.k.stride[0] = INT64_MIN);
    BREAK("do not fit 64 bits", a.k.stride[2] = INT64_MAX);
    BREAK("too far for an address", a.k.stride[0] = INT64_MAX / 2);
    BREAK("do not fit 64 bits", a.q.offset = INT64_MAX);
    BREAK("reaches byte 896, but its buffer has 895", a.k.data_bytes = 895);
    BREAK("its buffer has 899", a.k.offset = 4; a.k.data_bytes = 899);
    BREAK("plan's layout, 16 bytes", a.q.offset = 1);
    BREAK("q.stride[1] = 41", a.q.stride[1] = LQ * D + 1);
    BREAK("v.stride[3] = 2, want 1", a.v.stride[3] = 2);
    KEEP(a.k.data_bytes = 896);
    KEEP(a.k.offset = 4; a.k.data_bytes = 912);
    KEEP(a.k.stride[0] = a.k.stride[1] = 0);
    KEEP(a.v.stride[2] = 0);
    KEEP(a.k.offset = (LK - 1) * D; a.k.stride[2] = -D); /* keys backwards */
}

static void outputs_have_memory_of_their_own(void **state)
{
    fixture *f = *state;

    BREAK("o overlaps q", a.o.data = a.q.data);
    BREAK("o overlaps q", a.o.data = (float *)a.q.data + 4);
    BREAK("o overlaps v", a.o.data = a.v.data);
    BREAK("o overlaps lse", a.lse.data = a.o.data);
    BREAK("lse overlaps lens_kv", a.lens_kv.data = a.lse.data);
    BREAK("lse overlaps k", a.lse.data = a.k.data);
    BREAK("elements of an output coincide", a.o.stride[1] = 0);
    BREAK("elements of an output coincide", a.o.stride[2] = 0);
    BREAK("elements of an output coincide", a.lse.stride[2] = 0);
    BREAK("elements of an output coincide", a.o.stride[1] = DV);
    BREAK("workspace overlaps", a.workspace = (void *)((uintptr_t)a.q.data / 64 * 64));
}

/* Q and O side by side in the rows of one array: no element is shared. */
static void packed_rows_are_no_overlap(void **state)
{
    fixture *f = *state;
    float *rows = calloc(B * LQ, HQ * (D + DV) * sizeof(float));
    const int64_t row = HQ * (D + DV);

    assert_non_null(rows);
    KEEP(a.q.data = rows; a.o.data = rows + HQ * D;
         a.q.stride[0] = a.o.stride[0] = LQ * row; a.q.stride[2] = a.o.stride[2] = row;
         a.q.stride[1] = D; a.o.stride[1] = DV);
    {
        attn_args a = f->args;
        a.q.data = rows;
        a.o.data = rows + HQ * D - 4; /* one vector too early */
        a.q.stride[0] = a.o.stride[0] = LQ * row;
        a.q.stride[2] = a.o.stride[2] = row;
        a.q.stride[1] = D;
        a.o.stride[1] = DV;
        check_error(attn_execute(f->plan, &a, NULL), ATTN_ERR_INVALID, "o overlaps q");
    }
    free(rows);
}

/* The same with K and V in those rows, and one query, which has no row behind it to tell by. */
static void one_packed_query_is_no_overlap(void **state)
{
    fixture *f = *state;
    const int64_t row = HQ * (D + DV) + HKV * (D + DV);
    float *rows = calloc((size_t)(B * LK * row), sizeof(float));
    attn_args a = f->args;
    attn_tensor *const t[] = { &a.q, &a.k, &a.v, &a.o };

    assert_non_null(rows);
    a.q.data = rows;
    a.k.data = rows + HQ * D;
    a.v.data = rows + (HQ + HKV) * D;
    a.o.data = rows + (HQ + HKV) * D + HKV * DV;
    a.q.size[2] = a.o.size[2] = a.lse.size[2] = 1;
    for (int i = 0; i < 4; i++) {
        t[i]->stride[0] = LK * row;
        t[i]->stride[1] = t[i]->size[3];
        t[i]->stride[2] = row;
    }
    check_ok(attn_execute(f->plan, &a, NULL));
    a.o.data = rows + (HQ + HKV) * D + HKV * DV - 4;
    check_error(attn_execute(f->plan, &a, NULL), ATTN_ERR_INVALID, "o overlaps v");
    free(rows);
}

/* O in f32 with the LSE behind each of its rows is the same thing. */
static void an_output_between_the_rows_of_another(void **state)
{
    fixture *f = *state;
    float *rows = calloc(B * HQ * LQ, (DV + 4) * sizeof(float));
    const int64_t row = DV + 4;

    assert_non_null(rows);
    KEEP(a.o.data = rows; a.lse.data = rows + DV;
         a.o.stride[0] = a.lse.stride[0] = HQ * LQ * row;
         a.o.stride[1] = a.lse.stride[1] = LQ * row; a.o.stride[2] = a.lse.stride[2] = row);
    free(rows);
}

/* A call that succeeds leaves the last error alone. */
static void success_leaves_the_error_alone(void **state)
{
    fixture *f = *state;
    attn_softmax_desc desc;
    char text[2048];

    check_error(attn_softmax_parse("nonsense", &desc), ATTN_ERR_INVALID, "nonsense");
    check_ok(attn_softmax_parse("softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,softcap=3", &desc));
    check_ok(attn_softmax_explain(f->ctx, &desc, NULL, text, sizeof text, NULL));
    assert_non_null(strstr(text, "plan "));
    assert_non_null(strstr(attn_last_error(), "nonsense"));
}

static void workspaces(void **state)
{
    fixture *f = *state;
    attn_args a = f->args;
    char want[64];

    if (!f->args.workspace_bytes)
        return;
    snprintf(want, sizeof want, "want %zu bytes", f->args.workspace_bytes);
    a.workspace = NULL;
    expect(f, &a, ATTN_ERR_WORKSPACE, want);
    a = f->args;
    a.workspace_bytes--;
    expect(f, &a, ATTN_ERR_WORKSPACE, want);
    a = f->args;
    a.workspace = (char *)a.workspace + 4;
    expect(f, &a, ATTN_ERR_WORKSPACE, "multiple of 64");
}

static void what_the_plan_was_not_made_for(void **state)
{
    fixture *f = *state;
    attn_softmax_desc desc = { .size = sizeof desc,
                               .type = ATTN_F32,
                               .batch = B,
                               .heads_q = HQ,
                               .heads_kv = HKV,
                               .len_q = LQ,
                               .len_kv = LK,
                               .dim_qk = D,
                               .dim_v = DV };
    attn_plan *plain = NULL;
    attn_args a = f->args;

    check_ok(attn_plan_softmax(f->ctx, &desc, &plain));
    check_error(attn_execute(plain, &a, NULL), ATTN_ERR_INVALID, "without ATTN_USE_LSE");
    a.lse = (attn_tensor){ 0 };
    check_error(attn_execute(plain, &a, NULL), ATTN_ERR_INVALID,
                "without ATTN_USE_LENS_KV");
    a.lens_kv = (attn_tensor){ 0 };
    check_ok(attn_execute(plain, &a, NULL));
    attn_plan_destroy(&plain);
}

static void host_lengths_are_checked_in_the_one_call_form(void **state)
{
    fixture *f = *state;
    attn_softmax_desc desc = { .size = sizeof desc,
                               .type = ATTN_F32,
                               .batch = B,
                               .heads_q = HQ,
                               .heads_kv = HKV,
                               .len_q = LQ,
                               .len_kv = LK,
                               .dim_qk = D,
                               .dim_v = DV,
                               .use = ATTN_USE_LENS_KV };
    int32_t *lens = f->args.lens_kv.data;

    check_ok(attn_softmax_forward_host_args(f->ctx, &desc, NULL, &f->args));
    lens[1] = LK + 1;
    check_error(attn_softmax_forward_host_args(f->ctx, &desc, NULL, &f->args),
                ATTN_ERR_INVALID, "lens_kv[1] = 8, want 0 .. 7");
    check_ok(attn_execute(f->plan, &f->args, NULL)); /* clamped */
    lens[1] = -1;
    check_error(attn_softmax_forward_host_args(f->ctx, &desc, NULL, &f->args),
                ATTN_ERR_INVALID, "lens_kv[1] = -1");
    check_error(attn_softmax_forward_host(f->ctx, &desc, f->args.q.data, f->args.k.data,
                                          f->args.v.data, f->args.o.data, NULL),
                ATTN_ERR_INVALID, "ATTN_USE_LENS_KV");
    lens[1] = LK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_right_call_works, start, stop),
        cmocka_unit_test_setup_teardown(null_and_missing, start, stop),
        cmocka_unit_test_setup_teardown(types_and_sizes, start, stop),
        cmocka_unit_test_setup_teardown(memory, start, stop),
        cmocka_unit_test_setup_teardown(outputs_have_memory_of_their_own, start, stop),
        cmocka_unit_test_setup_teardown(packed_rows_are_no_overlap, start, stop),
        cmocka_unit_test_setup_teardown(one_packed_query_is_no_overlap, start, stop),
        cmocka_unit_test_setup_teardown(an_output_between_the_rows_of_another, start, stop),
        cmocka_unit_test_setup_teardown(success_leaves_the_error_alone, start, stop),
        cmocka_unit_test_setup_teardown(workspaces, start, stop),
        cmocka_unit_test_setup_teardown(what_the_plan_was_not_made_for, start, stop),
        cmocka_unit_test_setup_teardown(host_lengths_are_checked_in_the_one_call_form,
                                        start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
