/* SPDX-License-Identifier: MIT */
/* tests/faults_gradient_sizes.c: gradients of nothing at all and of many heads, and of
 * views that reach beyond 32 bits, over mappings that are mostly not there (C sizes, H). */
#define _GNU_SOURCE
#include "tests/fault_backward.h"

#include <sys/mman.h>

/* H1: no keys, no queries, no batch, no heads; what is there gets zeros. */
static void nothing_at_all(const subject *who)
{
    static const char *const fields[] = {
        "f32,b1,hq2,hkv2,lq4,lk0,d8,causal,align=br",
        "f32,b1,hq2,hkv2,lq4,lk0,d8,bias=f32,mask,sinks",
        "f32,b2,hq2,hkv2,lq0,lk4,d8,bias=f32,sinks",
        "f32,b0,hq2,hkv2,lq4,lk4,d8,sinks",
        "f32,b2,hq0,hkv0,lq4,lk4,d8",
        "f32,b2,hq2,hkv2,lq4,lk0,d8,packed",
        "f32,b2,hq2,hkv2,lq0,lk4,d8,packed=q",
    };

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        char problem[128];
        backward x;

        snprintf(problem, sizeof problem, "softmax_bwd:%s,grad=q+k+v", fields[i]);
        if (!takes(who, problem))
            continue;
        backward_make(&x, who, fields[i]);
        backward_run(&x);
        backward_is_finite(&x);
        for (int of = Q; of <= BIAS; of++)
            backward_is_zero(&x, of, 0, x.n[of]);
        if (x.n[SINKS] && x.t.nlse == 0)
            backward_is_zero(&x, SINKS, 0, x.n[SINKS]);
        backward_free(&x);
    }
}

/* More batches and heads than 16 bits count. */
static void many_heads(const subject *who)
{
    backward x;

    backward_make(&x, who, "f32,b3,hq22000,hkv11000,lq1,lk3,d4,sinks");
    backward_compare(&x);
    backward_free(&x);
}

/* C4: batches, heads, then rows that lie 2^31 + 64 elements apart, for each tensor in turn;
 * the answer is that of compact ones, bit for bit. */
static void strides_beyond_2_to_the_31(const subject *who)
{
    static const char *const fields[] = {
        "f32,b2,hq1,hkv1,lq16,lk16,d64,bias=f32,mask",
        "f32,b1,hq2,hkv2,lq16,lk16,d64,bias=f32,mask",
        "f32,b1,hq1,hkv1,lq2,lk2,d64,bias=f32,mask",
    };
    enum { INPUTS = 9, ALL = INPUTS + 4 };
    const size_t bytes = (size_t)(FAR + 16 * 64) * sizeof(float);

    if (who->device->kind != ATTN_DEVICE_HOST)
        return;
    for (int axis = 0; axis < 3; axis++)
        for (int which = 0; which < ALL; which++) {
            char *memory = sparse(bytes);
            backward plain, x;

            backward_make(&plain, who, fields[axis]);
            backward_make(&x, who, fields[axis]);
            for (int64_t e = 0; e < x.t.nbias; e++) {
                plain.t.bias[e] = x.t.bias[e] = cosf((float)e);
                plain.t.mask[e] = x.t.mask[e] = e % 5 != 0;
            }
            backward_forward(&plain);
            backward_forward(&x);
            backward_run(&plain);
            attn_args *a = &x.args;
            attn_tensor *const list[ALL] = { &a->q,        &a->k,      &a->v,
                                             &a->o,        &a->lse,    &a->bias,
                                             &a->mask,     &a->grad_o, &a->grad_lse,
                                             &a->grad_q,   &a->grad_k, &a->grad_v,
                                             &a->grad_bias };
            attn_tensor *t = list[which];
            const size_t elem = attn_type_bytes(t->type);
            const size_t half = (size_t)((axis < 2 ? t->size[2] : 1) * t->size[3]) * elem;
            char *near_half = t->data, *far_half = memory + (size_t)FAR * elem;

            memcpy(memory, near_half, half);
            memcpy(far_half, near_half + half, half);
            t->data = memory;
            t->stride[axis] = FAR;
            backward_run(&x);
            if (which >= INPUTS) {
                memcpy(near_half, memory, half);
                memcpy(near_half + half, far_half, half);
            }
            for (int of = Q; of <= BIAS; of++)
                assert_memory_equal(x.grad[of], plain.grad[of],
                                    (size_t)x.n[of] * sizeof(float));
            assert_int_equal(munmap(memory, bytes), 0);
            backward_free(&plain);
            backward_free(&x);
        }
}

/* C7: rows so far apart that the row times its stride passes 2^31 elements. */
static void row_strides_beyond_2_to_the_31(const subject *who)
{
    enum { LK = 24000, D = 8 };
    const int64_t step = 90000;
    const size_t bytes = (size_t)(LK * step) * sizeof(float);
    float *memory[3];
    backward plain, x;

    if (who->device->kind != ATTN_DEVICE_HOST)
        return;
    backward_make(&plain, who, "f32,b1,hq1,hkv1,lq3,lk24000,d8");
    backward_make(&x, who, "f32,b1,hq1,hkv1,lq3,lk24000,d8");
    attn_tensor *const far_away[3] = { &x.args.k, &x.args.grad_k, &x.args.grad_v };
    for (int i = 0; i < 3; i++) {
        memory[i] = sparse(bytes);
        far_away[i]->data = memory[i];
        far_away[i]->stride[2] = step;
        far_away[i]->stride[0] = far_away[i]->stride[1] = LK * step;
    }
    for (int64_t n = 0; n < x.t.nk; n++)
        memory[0][n / D * step + n % D] = x.t.k[n];
    backward_run(&plain);
    backward_run(&x);
    assert_memory_equal(x.grad[Q], plain.grad[Q], (size_t)x.n[Q] * sizeof(float));
    for (int64_t n = 0; n < x.t.nk; n++) {
        near(&x.t, "grad_k", n, memory[1][n / D * step + n % D], plain.grad[K][n], 0);
        near(&x.t, "grad_v", n, memory[2][n / D * step + n % D], plain.grad[V][n], 0);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(munmap(memory[i], bytes), 0);
    backward_free(&plain);
    backward_free(&x);
}

#define SMALL "f32,b1,hq1,hkv1,lq8,lk8,d8"

EACH_BACKWARD(nothing_at_all, SMALL)
EACH_BACKWARD(many_heads, SMALL)
EACH_BACKWARD(strides_beyond_2_to_the_31, SMALL)
EACH_BACKWARD(row_strides_beyond_2_to_the_31, SMALL)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_at_all),
        cmocka_unit_test(test_many_heads),
        cmocka_unit_test(test_strides_beyond_2_to_the_31),
        cmocka_unit_test(test_row_strides_beyond_2_to_the_31),
    };
    return FAULTS_RUN(tests);
}
