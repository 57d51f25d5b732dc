/* SPDX-License-Identifier: MIT */
/* tests/args_gradients.c: the tensors of a backward call: what each must be, which may be
 * left out, what is written then; and the calls for arrays in host memory. */
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

enum { B = 2, HQ = 4, HKV = 2, LQ = 5, LK = 7, D = 8, DV = 4, BLOCKS = 14, SIZE = 1024 };

typedef struct fixture {
    attn_ctx *ctx;
    attn_plan *plan;
    attn_softmax_desc desc;
    attn_args args; /* right in everything */
    float *memory;  /* BLOCKS of SIZE      */
    void *workspace;
} fixture;

static void *block(fixture *f, int i)
{
    return f->memory + i * SIZE;
}

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
                                   .dim_v = DV,
                                   .type_bias = ATTN_F32,
                                   .use = ATTN_USE_BIAS | ATTN_USE_SINKS | ATTN_USE_GRAD,
                                   .grad = ATTN_GRAD_Q | ATTN_GRAD_K | ATTN_GRAD_V |
                                           ATTN_GRAD_BIAS | ATTN_GRAD_SINKS };
    check_ok(attn_ctx_create("host", &f->ctx));
    check_ok(attn_plan_softmax(f->ctx, &f->desc, &f->plan));
    check_ok(attn_memory_alloc(f->ctx, BLOCKS * SIZE * sizeof(float), (void **)&f->memory));
    for (int i = 0; i < BLOCKS * SIZE; i++)
        f->memory[i] = (float)(i % 5);
    f->args = (attn_args){
        .size = sizeof f->args,
        .q = attn_tensor_bhld(block(f, 0), ATTN_F32, B, HQ, LQ, D),
        .k = attn_tensor_bhld(block(f, 1), ATTN_F32, B, HKV, LK, D),
        .v = attn_tensor_bhld(block(f, 2), ATTN_F32, B, HKV, LK, DV),
        .o = attn_tensor_bhld(block(f, 3), ATTN_F32, B, HQ, LQ, DV),
        .lse = attn_tensor_bhld(block(f, 4), ATTN_F32, B, HQ, LQ, 1),
        .bias = attn_tensor_bhld(block(f, 5), ATTN_F32, 1, HQ, LQ, LK),
        .sinks = attn_tensor_bhld(block(f, 6), ATTN_F32, 1, HQ, 1, 1),
        .grad_o = attn_tensor_bhld(block(f, 7), ATTN_F32, B, HQ, LQ, DV),
        .grad_lse = attn_tensor_bhld(block(f, 8), ATTN_F32, B, HQ, LQ, 1),
        .grad_q = attn_tensor_bhld(block(f, 9), ATTN_F32, B, HQ, LQ, D),
        .grad_k = attn_tensor_bhld(block(f, 10), ATTN_F32, B, HKV, LK, D),
        .grad_v = attn_tensor_bhld(block(f, 11), ATTN_F32, B, HKV, LK, DV),
        .grad_bias = attn_tensor_bhld(block(f, 12), ATTN_F32, 1, HQ, LQ, LK),
        .grad_sinks = attn_tensor_bhld(block(f, 13), ATTN_F32, 1, HQ, 1, 1),
        .workspace_bytes = attn_plan_workspace_bytes(f->plan),
    };
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

/* The call fails so, and writes nothing. */
static void expect(fixture *f, const attn_args *a, attn_status want, const char *says)
{
    float *before = malloc(BLOCKS * SIZE * sizeof(float));

    assert_non_null(before);
    memcpy(before, f->memory, BLOCKS * SIZE * sizeof(float));
    check_error(attn_execute(f->plan, a, NULL), want, says);
    assert_memory_equal(before, f->memory, BLOCKS * SIZE * sizeof(float));
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

static const attn_tensor none = { .type = ATTN_TYPE_NONE };

static void what_may_be_left_out(void **state)
{
    fixture *f = *state;

    KEEP((void)a);
    KEEP(a.grad_q = none);
    KEEP(a.grad_q = a.grad_k = a.grad_v = none);
    KEEP(a.grad_q = a.grad_k = a.grad_v = a.grad_bias = a.grad_sinks = none);
    KEEP(a.grad_lse = none);
    KEEP(a.grad_o = none);
    KEEP(a.grad_o = a.o = none);
    BREAK("lse is missing, but the plan was made with ATTN_USE_GRAD", a.lse = none);
    BREAK("o is missing, but grad_o is given", a.o = none);
    BREAK("grad_o and grad_lse are missing", a.grad_o = a.grad_lse = none);
    BREAK("bias is missing, but the plan was made with ATTN_USE_BIAS", a.bias = none);
    BREAK("q is missing", a.q = none);
}

static void what_each_must_be(void **state)
{
    fixture *f = *state;

    BREAK("grad_o.type = f16, want f32", a.grad_o.type = ATTN_F16);
    BREAK("grad_o.size[2] (L) = 4, want 5", a.grad_o.size[2] = 4);
    BREAK("grad_o.size[3] (D) = 8, want 4", a.grad_o.size[3] = 8);
    BREAK("grad_lse.size[3] (D) = 4, want 1", a.grad_lse.size[3] = 4);
    BREAK("grad_lse.type = bf16, want f32", a.grad_lse.type = ATTN_BF16);
    BREAK("o.size[3] (D) = 8, want 4", a.o.size[3] = D);
    BREAK("lse.size[1] (H) = 2, want 4", a.lse.size[1] = 2);
    BREAK("grad_q.size[3] (D) = 4, want 8", a.grad_q.size[3] = 4);
    BREAK("grad_k.size[1] (H) = 4, want 2", a.grad_k.size[1] = 4);
    BREAK("grad_k.size[2] (L) = 6, want 7", a.grad_k.size[2] = 6);
    BREAK("grad_v.size[3] (D) = 8, want 4", a.grad_v.size[3] = 8);
    BREAK("grad_bias.size[0] (B) = 2, want 1", a.grad_bias.size[0] = 2);
    BREAK("grad_bias.size[1] (H) = 1, want 4", a.grad_bias.size[1] = 1);
    BREAK("grad_bias.type = f16, want f32", a.grad_bias.type = ATTN_F16);
    BREAK("grad_sinks.size[1] (H) = 1, want 4", a.grad_sinks.size[1] = 1);
    BREAK("grad_q.data is NULL", a.grad_q.data = NULL);
    BREAK("grad_o.stride[3] = 2, want 1", a.grad_o.stride[3] = 2);
    BREAK("grad_k.stride[0] = 113", a.grad_k.stride[0] = 113);
    BREAK("elements of an output coincide", a.grad_q.stride[1] = 0);
    BREAK("elements of an output coincide", a.grad_v.stride[2] = 0);
    KEEP(a.grad_o.stride[0] = a.grad_o.stride[1] = a.grad_o.stride[2] = 0);
    KEEP(a.q.size[2] = a.o.size[2] = a.lse.size[2] = a.grad_o.size[2] = a.grad_lse.size[2] =
             a.grad_q.size[2] = a.bias.size[2] = a.grad_bias.size[2] = 3);
}

static void outputs_have_memory_of_their_own(void **state)
{
    fixture *f = *state;

    BREAK("grad_q overlaps q", a.grad_q.data = a.q.data);
    BREAK("grad_q overlaps grad_o", a.grad_o.data = a.grad_q.data);
    BREAK("grad_k overlaps grad_v", a.grad_v.data = a.grad_k.data);
    BREAK("grad_v overlaps o", a.grad_v.data = a.o.data);
    BREAK("grad_bias overlaps bias", a.grad_bias.data = a.bias.data);
    BREAK("grad_sinks overlaps lse", a.grad_sinks.data = a.lse.data);
    BREAK("workspace overlaps grad_q", a.workspace = a.grad_q.data);
    KEEP(a.grad_o.data = a.o.data); /* inputs may */
}

static void the_workspace_is_asked_for(void **state)
{
    fixture *f = *state;
    attn_args a = f->args;
    char says[64];

    snprintf(says, sizeof says, "want %zu bytes", f->args.workspace_bytes);
    a.workspace_bytes--;
    expect(f, &a, ATTN_ERR_WORKSPACE, says);
    a.workspace = NULL;
    expect(f, &a, ATTN_ERR_WORKSPACE, says);
}

/* Gradients in a forward call, and such that the plan was not made for. */
static void gradients_belong_to_their_plan(void **state)
{
    fixture *f = *state;
    attn_softmax_desc d = f->desc;
    attn_plan *forward = NULL, *some = NULL;
    attn_args a = f->args;

    d.use &= ~ATTN_USE_GRAD;
    check_ok(attn_plan_softmax(f->ctx, &d, &forward));
    a.lse = none;
    check_error(attn_execute(forward, &a, NULL), ATTN_ERR_INVALID,
                "grad_o is given, but the plan was made without ATTN_USE_GRAD");
    attn_plan_destroy(&forward);

    d.use |= ATTN_USE_GRAD;
    d.grad = ATTN_GRAD_K | ATTN_GRAD_V;
    check_ok(attn_plan_softmax(f->ctx, &d, &some));
    check_error(attn_execute(some, &f->args, NULL), ATTN_ERR_INVALID,
                "grad_q is given, but the plan was made without ATTN_GRAD_Q");
    a = f->args;
    a.grad_q = a.grad_bias = a.grad_sinks = none;
    check_ok(attn_execute(some, &a, NULL));
    attn_plan_destroy(&some);

    d.use |= ATTN_USE_PAGES;
    d.page_size = 4;
    check_error(attn_plan_softmax(f->ctx, &d, &some), ATTN_ERR_UNSUPPORTED,
                "does not take \"pages\"");
}

/* A size of 0 has gradients too: of what is there, they are 0. */
static void zero_sizes(void **state)
{
    fixture *f = *state;

    KEEP(a.q.size[2] = a.o.size[2] = a.lse.size[2] = a.grad_o.size[2] = a.grad_lse.size[2] =
             a.grad_q.size[2] = a.bias.size[2] = a.grad_bias.size[2] = 0;
         a.q.data = a.o.data = a.lse.data = NULL);
    for (int i = 0; i < B * HKV * LK * D; i++)
        assert_true(((float *)f->args.grad_k.data)[i] == 0);
    for (int i = 0; i < HQ; i++)
        assert_true(((float *)f->args.grad_sinks.data)[i] == 0);

    KEEP(a.k.size[2] = a.v.size[2] = a.grad_k.size[2] = a.grad_v.size[2] = a.bias.size[3] =
             a.grad_bias.size[3] = 0;
         a.k.data = a.v.data = NULL);
    for (int i = 0; i < B * HQ * LQ * D; i++)
        assert_true(((float *)f->args.grad_q.data)[i] == 0);
}

static void host_arrays(void **state)
{
    fixture *f = *state;
    attn_softmax_desc d = f->desc;
    float dq[B * HQ * LQ * D], dk[B * HKV * LK * D], dv[B * HKV * LK * DV];
    const attn_args *x = &f->args;
    attn_args a = f->args;

    /* without what needs tensors of its own */
    check_error(attn_softmax_backward_host(f->ctx, &d, x->q.data, x->k.data, x->v.data,
                                           x->o.data, x->lse.data, x->grad_o.data, NULL, dq,
                                           dk, dv),
                ATTN_ERR_INVALID, "attn_softmax_backward_host_args()");
    d.use = 0;
    check_error(attn_softmax_backward_host(f->ctx, &d, x->q.data, x->k.data, x->v.data,
                                           x->o.data, x->lse.data, x->grad_o.data, NULL,
                                           NULL, NULL, NULL),
                ATTN_ERR_INVALID, "all missing, want at least one gradient");
    check_error(attn_softmax_backward_host(f->ctx, &d, x->q.data, x->k.data, x->v.data,
                                           NULL, x->lse.data, x->grad_o.data, NULL, dq,
                                           NULL, NULL),
                ATTN_ERR_INVALID, "o.data is NULL");
    check_error(attn_softmax_backward_host(f->ctx, &d, x->q.data, x->k.data, x->v.data,
                                           x->o.data, NULL, x->grad_o.data, NULL, dq, NULL,
                                           NULL),
                ATTN_ERR_INVALID, "lse.data is NULL");
    check_error(attn_softmax_backward_host(f->ctx, &d, x->q.data, x->k.data, x->v.data,
                                           x->o.data, x->lse.data, NULL, NULL, dq, NULL,
                                           NULL),
                ATTN_ERR_INVALID, "grad_o and grad_lse are missing");
    check_ok(attn_softmax_backward_host(f->ctx, &d, x->q.data, x->k.data, x->v.data,
                                        x->o.data, x->lse.data, x->grad_o.data,
                                        x->grad_lse.data, dq, dk, dv));
    check_ok(attn_softmax_backward_host(f->ctx, &d, x->q.data, x->k.data, x->v.data, NULL,
                                        x->lse.data, NULL, x->grad_lse.data, NULL, dk,
                                        NULL));

    /* the outputs decide; the descriptor's own bits do not count */
    d = f->desc;
    d.grad = ATTN_GRAD_SINKS;
    check_ok(attn_softmax_backward_host_args(f->ctx, &d, NULL, &a));
    check_error(attn_softmax_forward_host_args(f->ctx, &d, NULL, &a), ATTN_ERR_INVALID,
                "use has ATTN_USE_GRAD");
    d.use &= ~(ATTN_USE_BIAS | ATTN_USE_GRAD);
    check_error(attn_softmax_backward_host_args(f->ctx, &d, NULL, &a), ATTN_ERR_INVALID,
                "grad has ATTN_GRAD_BIAS");
}

/* Of the other operation: the tensor is named, not a bit that the call has set itself. */
static void gradients_of_the_other_operation(void **state)
{
    fixture *f = *state;
    const attn_softmax_desc *d = &f->desc;
    const attn_linear_desc linear = { .size = sizeof linear,
                                      .type = d->type,
                                      .batch = d->batch,
                                      .heads_q = d->heads_q,
                                      .heads_kv = d->heads_kv,
                                      .len_q = d->len_q,
                                      .len_kv = d->len_kv,
                                      .dim_qk = d->dim_qk,
                                      .dim_v = d->dim_v };
    attn_args a = f->args;

    a.grad_state_in = a.grad_q;
    check_error(attn_softmax_backward_host_args(f->ctx, d, NULL, &a), ATTN_ERR_INVALID,
                "grad_state_in is given");
    a = (attn_args){ .size = sizeof a,
                     .q = a.q,
                     .k = a.k,
                     .v = a.v,
                     .grad_o = a.grad_o,
                     .grad_q = a.grad_q,
                     .grad_bias = a.grad_bias };
    check_error(attn_linear_backward_host_args(f->ctx, &linear, NULL, &a), ATTN_ERR_INVALID,
                "grad_bias is given");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_may_be_left_out),
        TEST(what_each_must_be),
        TEST(outputs_have_memory_of_their_own),
        TEST(the_workspace_is_asked_for),
        TEST(gradients_belong_to_their_plan),
        TEST(zero_sizes),
        TEST(host_arrays),
        TEST(gradients_of_the_other_operation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
