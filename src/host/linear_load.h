/* SPDX-License-Identifier: MIT */
/* host/linear_load.h: rows of linear attention as f32: phi, its slope, and what the
 * backward begins with. */
#ifndef ATTN_HOST_LINEAR_LOAD_H
#define ATTN_HOST_LINEAR_LOAD_H

#include "host/linear_row.h"
#include "host/row.h"
#include "host/vector.h"

/* Numbers of a row that are larger are scaled: their products might overflow. */
static const float LINEAR_HUGE = 0x1p32f;

/* phi of n numbers in place, times factor; n is rounded up to LANES. */
static inline void linear_phi(attn_phi phi, float factor, float *x, int64_t n)
{
    for (int64_t d = 0; d < n; d += LANES) {
        vf y = vf_load(x + d);

        if (phi == ATTN_PHI_ELU1)
            y = vf_select(y > 0.0f, y + 1.0f, vf_exp(vf_keep(~(y > 0.0f), y)));
        else if (phi == ATTN_PHI_RELU)
            y = vf_keep(~(y <= 0.0f), y);
        vf_store(x + d, y * factor);
    }
}

/* x becomes x times factor times phi' of what lies in the row that begins at `at`. */
static inline void linear_slope(const attn_host_linear *s, float factor, float *x,
                                float *room, const attn_tensor *t, int64_t at, int64_t n)
{
    if (s->phi != ATTN_PHI_IDENTITY)
        attn_row_load(room, t, at, n);
    for (int64_t d = 0; d < n; d += LANES) {
        vf slope = vf_set(1);

        if (s->phi == ATTN_PHI_ELU1) { /* min(phi, 1) */
            const vf y = vf_load(room + d);
            slope = vf_select(y > 0.0f, slope, vf_exp(vf_keep(~(y > 0.0f), y)));
        } else if (s->phi == ATTN_PHI_RELU) {
            slope = vf_keep(vf_load(room + d) > 0.0f, slope);
        }
        vf_store(x + d, vf_load(x + d) * slope * factor);
    }
}

/* <x, y> of n numbers; n is rounded up to LANES, with zeros there. */
static inline float linear_dot(const float *x, const float *y, int64_t n)
{
    vf sum = vf_set(0);
    float all = 0;

    for (int64_t d = 0; d < n; d += LANES)
        sum += vf_load(x + d) * vf_load(y + d);
    for (int i = 0; i < LANES; i++)
        all += sum[i];
    return all;
}

/* x / den, or 0 where den is 0. */
static inline vf linear_quotient(vf x, float den)
{
    if (den == 0)
        return vf_set(0);
    return x / den;
}

static inline void linear_zero(float *x, int64_t from, int64_t to)
{
    for (; from < to; from++)
        x[from] = 0;
}

/* Elements first .. first + n - 1 of a row, zeros up to a multiple of LANES. */
static inline void linear_row(float *to, const attn_tensor *t, int64_t at, int64_t first,
                              int64_t n)
{
    attn_row_load(to, t, at + first * t->stride[3], n);
    linear_zero(to, n, attn_round_up(n, LANES));
}

/* phi of a row of Q or K, times factor. */
static inline void linear_feature(const attn_host_linear *s, float *to,
                                  const attn_tensor *t, int64_t at, int64_t first,
                                  int64_t n, float factor)
{
    linear_row(to, t, at, first, n);
    linear_phi(s->phi, factor, to, n);
    linear_zero(to, n, attn_round_up(n, LANES)); /* phi(0) may be 1 */
}

/* A whole row of phi(Q); returns the power of 2 that it was divided by, mostly 1. */
static inline float linear_query(const attn_host_linear *s, float *to, int64_t at)
{
    vi huge = vi_set(0);
    float largest = 0, up;
    int exponent;

    linear_feature(s, to, &s->t.q, at, 0, s->dim_qk, 1);
    for (int64_t d = 0; d < s->dim_qk; d += LANES)
        huge |= vf_abs(vf_load(to + d)) > LINEAR_HUGE;
    if (!vi_any(huge))
        return 1;
    for (int64_t d = 0; d < s->dim_qk; d++)
        largest = fmaxf(largest, fabsf(to[d]));
    if (!isfinite(largest))
        return 1;
    frexpf(largest, &exponent);
    up = ldexpf(1, exponent - 1);
    for (int64_t d = 0; d < s->dim_qk; d++)
        to[d] = ldexpf(to[d], 1 - exponent);
    return up;
}

/* A sum of a row that was divided by up, in the caller's units. Nothing leaves f32 on the
 * way unless the result does. */
static inline float linear_in_units(const attn_host_linear *s, float sum, float up)
{
    return fabsf(s->sum_unit) <= 1 ? sum * (s->sum_unit * up) : sum * up * s->sum_unit;
}

/* n sums of a row become O: over den, or in the caller's units. */
static inline void linear_divide(const attn_host_linear *s, float *o, int64_t n, float den)
{
    for (int64_t d = 0; d < n; d += LANES)
        vf_store(o + d, linear_quotient(vf_load(o + d) * s->sum_scale, den));
}

static inline void linear_lift(const attn_host_linear *s, float *o, int64_t n, float up)
{
    const bool small = fabsf(s->sum_unit) <= 1;
    const float first = small ? s->sum_unit * up : up, then = small ? 1 : s->sum_unit;

    for (int64_t d = 0; d < n && (up != 1 || s->sum_unit != 1); d += LANES)
        vf_store(o + d, vf_load(o + d) * first * then);
}

/* Elements first .. first + n - 1 of G of a query. */
static inline void linear_grad(const attn_host_linear *s, float *to, int64_t b, int64_t h,
                               int64_t i, int64_t first, int64_t n)
{
    const attn_tensor *t = &s->t.grad_o;
    float den = 1;

    if (!attn_linear_has(t)) {
        linear_zero(to, 0, attn_round_up(n, LANES));
        return;
    }
    linear_row(to, t, attn_linear_at(t, b, h, i), first, n);
    if (s->normalize)
        den = ((const float *)s->t.den.data)[attn_linear_at(&s->t.den, b, h, i)];
    for (int64_t d = 0; d < n && s->normalize; d += LANES)
        vf_store(to + d, linear_quotient(vf_load(to + d), den));
}

/* A whole row of G; returns c. */
static inline float linear_grad_all(const attn_host_linear *s, float *to, float *room,
                                    int64_t b, int64_t h, int64_t i)
{
    linear_grad(s, to, b, h, i, 0, s->dim_v);
    if (!s->normalize || !attn_linear_has(&s->t.grad_o))
        return 0;
    linear_row(room, &s->t.o, attn_linear_at(&s->t.o, b, h, i), 0, s->dim_v);
    return -linear_dot(to, room, s->dim_v);
}

#endif
