// SPDX-License-Identifier: MIT
// common/state.cuh: the online softmax of a row. Key tiles are folded in one after
// another; what was summed before is rescaled to the new maximum. A row without a visible
// key keeps m = -inf, and -inf - -inf is never formed.
#pragma once
#include "common/types.cuh"

struct attn_row {
    float m;    // largest score so far
    float l;    // sum of exp(score - m)
};

DEVICE attn_row state_init()
{
    return { -INFINITE, 0.0f };
}

// The sink of head h, a logit without a key; -inf without one.
template <int CAN>
DEVICE float state_sink(const attn_kparams &p, int64_t h)
{
    return has<CAN>(p, FEAT_SINKS) ? p.sinks[p.sinks_offset + h * p.sinks_stride_h]
                                   : -INFINITE;
}

// As a > b ? a : b with b no NaN: a NaN in `a` is passed over here, and reaches the result
// through its weight.
DEVICE float state_max(float a, float b)
{
    return fmaxf(a, b);
}

// What scores are held against: m, or 0 as long as there is none.
DEVICE float state_reference(float m)
{
    return m == -INFINITE ? 0.0f : m;
}

// exp2 of x <= 0 within 2 units in the last place, exactly 1 at 0; 0 where the result
// would be subnormal, for which exp2f() spends four instructions; NaN for NaN.
DEVICE float state_exp2(float x)
{
    return device_exp2(x);
}

// The difference is taken before it goes to log2 units: large scores lose nothing, and
// none overflows.
DEVICE float state_weight(float score, float reference)
{
    return state_exp2((score - reference) * 1.44269504088896340736f);
}

// Takes in the largest score of a key tile; the result is the factor for O.
DEVICE float state_fold(attn_row *r, float top)
{
    const float before = r->m;

    r->m = state_max(top, before);

    const float factor = state_weight(before, state_reference(r->m));

    r->l *= factor;
    return factor;
}

// O is multiplied by this at the end; 0 for a row without a visible key.
DEVICE float state_finish(const attn_row &r)
{
    return r.l == 0.0f ? 0.0f : 1.0f / r.l;
}

// The same, and takes in the sink. It comes after all keys: held against one of +inf,
// hidden keys would not weigh 0. Its own weight is 1 where it is the largest, also then.
DEVICE float state_finish_sink(attn_row *r, float sink)
{
    const bool none = r->l == 0.0f;
    const float factor = state_fold(r, sink), reference = state_reference(r->m);

    r->l += sink == reference ? 1.0f : state_weight(sink, reference);
    return none ? 0.0f : factor / r->l;
}

// Natural log; -inf for a row without a visible key.
DEVICE float state_lse(const attn_row &r)
{
    return r.l == 0.0f ? -INFINITE : r.m + logf(r.l);
}
