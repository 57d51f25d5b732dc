/* SPDX-License-Identifier: MIT */
/* tests/fault_backward.h: a backward problem with all of its tensors, for faults of
 * gradients. */
#ifndef ATTN_TESTS_FAULT_BACKWARD_H
#define ATTN_TESTS_FAULT_BACKWARD_H

#include "tests/fault.h"

enum { Q, K, V, BIAS, SINKS, GRADS };

/* The forward problem, whose O and LSE the oracle has filled in, and what the backward has
 * beside it: contiguous arrays that a test fills, and views that it may bend. Floats of a
 * 16-bit problem are rounded when it runs (that wants contiguous views).
 *
 * At first grad_o and grad_lse hold waves, the gradients NaN, of every kind that the
 * problem has. */
typedef struct backward {
    trial t;
    const subject *who;
    attn_softmax_desc desc;
    attn_args args;
    float *grad_o, *grad_lse, *grad[GRADS];
    int64_t n[GRADS];
    bool keep; /* runs do not fill the gradients with NaN */
} backward;

/* `fields`: "f32,b1,hq1,hkv1,lq4,lk4,d8,causal". */
void backward_make(backward *x, const subject *who, const char *fields);
void backward_free(backward *x);

/* Makes O and LSE anew, after a test has changed the forward's inputs. */
void backward_forward(backward *x);

/* Runs it; it must succeed. */
void backward_run(backward *x);

/* Runs it, and holds every gradient against softmax_bwd_reference on the same tensors. */
void backward_compare(backward *x);

/* n elements of a gradient from `first` on are exactly 0; none of a gradient is NaN or
 * infinite. */
void backward_is_zero(const backward *x, int of, int64_t first, int64_t n);
void backward_is_finite(const backward *x);

/* Runs `fn` with each variant of each device that takes softmax_bwd:`fields`,grad=q+k+v. */
void on_each_backward(const char *fields, fault_fn *fn);

#define EACH_BACKWARD(name, fields)       \
    static void test_##name(void **state) \
    {                                     \
        (void)state;                      \
        on_each_backward(fields, name);   \
    }

#endif
