/* SPDX-License-Identifier: MIT */
/* plan/opencl/math.h: what the unfused variants share, forward and backward: the register
 * tiles of their products, and how much they compute at once. */
#ifndef ATTN_PLAN_OPENCL_MATH_H
#define ATTN_PLAN_OPENCL_MATH_H

#include "plan/math_round.h"

/* The numbers of one instance, as math.clh names them; nr = nv * vw. Backward nb = nvb * vwb
 * is for products whose columns are elements of a row. */
typedef struct attn_math_shape {
    int64_t vw, nv, nr, mr, pitch, block;
    int64_t vwb, nvb, nb;
    bool panels, library;
} attn_math_shape;

/* For products of our own, or with `library` CLBlast's. */
attn_math_shape attn_math_shape_of(const attn_problem *p, const attn_caps *c, bool library);

/* Floats of the workspace that lie before the matrices: delta. */
int64_t attn_math_before(const attn_problem *p);

/* false: not even one unit of queries fits the device, or CLBlast's indices. */
bool attn_math_cl_round(const attn_problem *p, const attn_caps *c, const attn_math_shape *s,
                        attn_math_round *out);

/* Names the instance and says why it has these numbers. */
void attn_math_describe(const attn_problem *p, const attn_math_shape *s, attn_choice *out);

/* Why there is no CLBlast. */
extern const char attn_no_clblast[];

#endif
