/* SPDX-License-Identifier: MIT */
/* tests/fault.h: what the tests of faults share: every variant of every device, and a
 * problem with all of its tensors. A fault is a small input on which attention code goes
 * wrong in practice, with the right answer; faults_*.c hold them by family. */
#ifndef ATTN_TESTS_FAULT_H
#define ATTN_TESTS_FAULT_H

#include "tests/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

enum { MAX_DEVICES = 16, MAX_VARIANTS = 32, NAME_BYTES = 320 };

/* One variant of one device. */
typedef struct subject {
    attn_ctx *ctx;
    const attn_device_info *device;
    const char *variant;
    uint32_t traits;
} subject;

/* The devices found; the host is the last. */
extern attn_ctx *fault_ctx[MAX_DEVICES];
extern attn_device_info fault_device[MAX_DEVICES];
extern size_t fault_devices;

/* The oracle. */
extern subject fault_oracle;

/* A problem and its tensors: contiguous arrays in host memory, which a test fills, and
 * the views of them, which it may bend. Floats of a 16-bit problem are rounded when it
 * runs (that wants contiguous views). Arrays that the problem has not are NULL.
 *
 * At first: q, k and v hold waves, o and lse NaN; bias 0, mask true, slopes 1/2^h,
 * sinks 0; lengths full, offsets 0, sequences of Lq and Lk one behind the other, pages in
 * order. */
typedef struct trial {
    const subject *who;
    attn_softmax_desc desc;
    attn_options options;
    attn_args args;
    float *q, *k, *v, *o, *lse, *bias, *alibi, *sinks;
    unsigned char *mask;
    int32_t *lens_q, *lens_kv, *offsets, *cu_q, *cu_k, *table;
    int64_t nq, nk, nv, no, nlse, nbias; /* elements; nbias: of the mask too */
    int64_t blocks;                      /* pages of a batch                 */
    bool keep;                           /* runs do not fill o and lse with NaN */
    char name[NAME_BYTES];
} trial;

void trial_make(trial *t, const subject *who, const char *problem);
void trial_free(trial *t);

/* Runs it; what the variant said yes to must succeed. */
void trial_run(trial *t);

/* Runs it and the oracle on the same tensors, and holds O and LSE against it: rows that
 * see no key exactly, the others within the tolerance of the type and variant. */
void trial_compare(trial *t);

/* The same for values that are there already. */
void trial_compare_to(const trial *t, const float *want_o, const float *want_lse);

/* An element may be off by so much of the largest value of O. */
double trial_tolerance(const trial *t, double largest_score);

/* o[i] or another value, named, against what it must be; infinities exactly, NaN of any kind. */
void near(const trial *t, const char *what, int64_t i, double have, double want,
          double tolerance);

/* Row `row` of O is 0 and its LSE is `lse`, exactly; NaN is like NaN. */
void row_is_empty(const trial *t, int64_t row, float lse);

/* A copy of a contiguous tensor in the device's memory; attn_memory_free() its data. */
attn_tensor fault_upload(attn_ctx *ctx, const attn_tensor *host);

/* As the planner's answer to a problem text. */
bool takes(const subject *who, const char *problem);

/* What lies behind a mask in V: NaN, or 10000 if the variant wants finite numbers. */
float poison(const subject *who);

/* Scores that are rounded to 16 bits: no promise for large ones. */
bool rounds_scores(const trial *t);

typedef void fault_fn(const subject *who);

/* Runs `fn` with each variant of each device that takes the problem. */
void on_each(const char *problem, fault_fn *fn);

#define EACH(name, problem)               \
    static void test_##name(void **state) \
    {                                     \
        (void)state;                      \
        on_each(problem, name);           \
    }

void fill(float *x, int64_t n, float value);
float *floats(int64_t n); /* waves, to be freed */

/* Address space that costs memory only where it is touched, to be unmapped; the test is
 * skipped where there is not that much. And a stride that 32 bits do not hold. */
void *sparse(size_t bytes);
static const int64_t FAR = ((int64_t)1 << 31) + 64;

/* Opens all devices, runs the tests, closes the devices: what main() returns. */
#define FAULTS_RUN(tests) (fault_open() ? 1 : fault_close(cmocka_run_group_tests(tests, NULL, NULL)))

int fault_open(void);
int fault_close(int result); /* returns its argument */

#endif
