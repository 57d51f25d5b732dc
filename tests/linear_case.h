/* SPDX-License-Identifier: MIT */
/* tests/linear_case.h: problems of linear attention with all of their tensors, for every
 * variant of every device, and the right answer. */
#ifndef ATTN_TESTS_LINEAR_CASE_H
#define ATTN_TESTS_LINEAR_CASE_H

#include "tests/check.h"

#include <attn/attn.h>

#include "linear_compare.h"
#include "linear_plain.h"

/* One variant of one device. */
typedef struct subject {
    attn_ctx *ctx;
    const char *device, *variant;
    uint32_t traits; /* ATTN_TRAIT_ bits */
} subject;

/* The inputs of a problem beside q, k and v. */
typedef enum input {
    IN_Q, IN_K, IN_V, IN_STATE, IN_Z, IN_DECAY, IN_BETA,
    IN_O, IN_DEN, IN_GRAD_O, IN_GRAD_STATE, IN_GRAD_Z, INPUTS
} input;

/* Contiguous arrays in host memory, which a test fills, and the views of them, which it may
 * bend. What the problem has not is NULL. At first: waves, of keys and queries positive
 * ones where a problem is normalised without phi, decays from -1 to 0, betas from 0 to 1,
 * outputs NaN, lengths full. A backward problem has all gradients that may be given; o and
 * den are what the forward gives. */
typedef struct linear_case {
    const subject *who;
    attn_linear_desc desc;
    attn_args args;        /* of f32 arrays, or of those of the type where they have it   */
    float *in[INPUTS];     /* rounded to the type by linear_case_run()                    */
    int64_t n_in[INPUTS];
    float *out[LINEAR_OUTPUTS];
    int32_t *lens;
    linear_plain want;     /* after linear_case_want()                                    */
    double *wide[INPUTS];
    char name[320];
} linear_case;

void linear_case_make(linear_case *c, const subject *who, const char *problem);
void linear_case_free(linear_case *c);

/* Runs it; what the variant said yes to must succeed. */
void linear_case_run(linear_case *c);

/* Computes the right answer from the inputs as they are, and of a backward problem sets o
 * and den; then runs, and holds every output against it. */
void linear_case_want(linear_case *c);
void linear_case_compare(linear_case *c);

/* Runs `fn` with each variant of each device that takes the problem. */
typedef void linear_fn(const subject *who);
void on_each(const char *problem, linear_fn *fn);

/* The same with each of several problems, the one in hand in linear_in_hand. */
extern const char *linear_in_hand;
void on_all(const char *const *problems, size_t n, linear_fn *fn);

#define EACH(name, problem)               \
    static void test_##name(void **state) \
    {                                     \
        (void)state;                      \
        on_each(problem, name);           \
    }

#define EACH_OF(name, problems)                                        \
    static void test_##name(void **state)                              \
    {                                                                  \
        (void)state;                                                   \
        on_all(problems, sizeof(problems) / sizeof *(problems), name); \
    }

/* What must be within a tolerance, or the test fails and names it. */
void linear_near(const linear_case *c, const char *what, int64_t i, double have, double want,
                 double tolerance);

void linear_fill(float *x, int64_t n, float value);

/* Opens all devices; closes them and returns its argument. */
int linear_open(void);
int linear_close(int result);

#define LINEAR_RUN(tests) \
    (linear_open() ? 1 : linear_close(cmocka_run_group_tests(tests, NULL, NULL)))

#endif
