/* SPDX-License-Identifier: MIT */
/* tools/gradients.h: the gradients of a backward problem: their shapes, the right answer,
 * and results held against it. */
#ifndef ATTN_TOOLS_GRADIENTS_H
#define ATTN_TOOLS_GRADIENTS_H

#include "compare.h"
#include "inputs.h"

/* In the order of the ATTN_GRAD_ bits. */
typedef enum gradient {
    GRADIENT_Q, GRADIENT_K, GRADIENT_V, GRADIENT_BIAS, GRADIENT_SINKS, GRADIENTS
} gradient;

/* "grad_q" */
const char *gradient_name(gradient g);

/* Whether a problem asks for it. */
bool gradient_wanted(const attn_softmax_desc *d, gradient g);

/* Its contiguous array: size[0] * size[1] groups of size[2] rows: by batch and head, but
 * dBias as the bias is, and dSinks [1, 1, 1, Hq]. */
void gradient_size(const inputs *in, gradient g, int64_t size[4]);
int64_t gradient_count(const inputs *in, gradient g);

/* Of a gradient that is not asked for both are NULL. */
typedef struct gradients {
    double *value[GRADIENTS];
    double *terms[GRADIENTS]; /* the root of the sum of the squares of what was summed  */
    double *score;            /* [B, Hq]: largest |s| of the visible pairs, as oracle.h */
} gradients;

/* Evaluates the formula of attn/softmax.h in double, from Q, K and V alone: O and LSE are
 * its own, not rounded to any type. false: memory is out, and `out` is empty. */
bool gradients_evaluate(const inputs *in, gradients *out);

/* Accepts an empty one. */
void gradients_free(gradients *g);

/* Holds results against it, NULL where one is not there. For every batch and head (of K
 * and V: key/value head; of dBias: as that has them)
 *
 *     ||G - ref|| <= (tolerance + n * 2^-24 * max|s|) * max(||ref||, ||terms|| / 2)
 *
 * with tolerance 1e-5 for f32, 3e-3 for f16, 2e-2 for bf16, and n = max(8, sqrt(D)); of Q
 * and K with a softcap c < 1 n / c, since the derivative of the cap depends on s / c. The
 * second size counts where a gradient cancels: over one key dQ is 0, but the terms of the
 * difference that is 0 are not. A single element may be off by 20 times its row's share.
 * What no pair adds to is exactly 0. */
void gradients_compare(const inputs *in, const gradients *ref, float *const have[GRADIENTS],
                       comparison *out);

#endif
