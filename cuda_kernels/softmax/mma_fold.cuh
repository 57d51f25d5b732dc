// SPDX-License-Identifier: MIT
// softmax/mma_fold.cuh: what a warp of fwd_mma.cu does with a step's keys once they are in
// shared memory: scores, their fold into its rows, products with V.
//
// In the registers of mma.m16n8k16 a lane has, of each 16 rows, row lane / 4 and that + 8
// ("half" 0 and 1), and of each eight columns 2 (lane % 4) and the next.
#pragma once
#include "softmax/mma.cuh"

// The warp's rows: maxima m, in units of the scores as fold_scores() gets them; sums l of
// this lane's keys.
template <typename T> struct rows_state {
    float m[T::MT][2], l[T::MT][2];
    float o[T::MT][T::VT][4];
};

template <typename T> using scores = float[T::MT][T::NT][4];

// S = Q K^T. `stays`: Q as it was loaded before, if T::Q_STAYS.
template <typename T>
DEVICE void find_scores(const float4 *q, const uint32_t (&stays)[T::MT][T::KT][4],
                        const float4 *k, scores<T> &s)
{
    const int lane = threadIdx.x % 32, r = lane % 8 + lane / 16 * 8, odd = lane / 8 % 2;

    #pragma unroll
    for (int i = 0; i < T::MT * T::NT * 4; i++)
        s[i / 4 / T::NT][i / 4 % T::NT][i % 4] = 0.0f;
    #pragma unroll
    for (int x = 0; x < T::KT; x++) {
        uint32_t a[T::MT][4];

        #pragma unroll
        for (int mt = 0; mt < T::MT; mt++) {
            if (!T::Q_STAYS)
                load_queries(a[mt], q + mt * 16 * CHUNKS_K, x);
            #pragma unroll
            for (int i = 0; i < 4 && T::Q_STAYS; i++)
                a[mt][i] = stays[mt][x][i];
        }
        #pragma unroll
        for (int t = 0; t < T::NT; t += 2) {
            uint32_t b[4];

            device_matrices(b, k + t * 8 * CHUNKS_K + place_of<CHUNKS_K>(r, 2 * x + odd));
            #pragma unroll
            for (int mt = 0; mt < T::MT; mt++) {
                device_multiply<TYPE>(s[mt][t], a[mt], b[0], b[1]);
                device_multiply<TYPE>(s[mt][t + 1], a[mt], b[2], b[3]);
            }
        }
    }
}

// Softcap, and terms from shared memory; scores are in natural units then. x: the warp's
// first row in the group.
template <typename T, int CAN>
DEVICE void special_scores(const attn_kparams &p, const float *term, int x, scores<T> &s)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int i = 0; i < T::MT * T::NT * 4; i++) {
        float &score = s[i / 4 / T::NT][i / 4 % T::NT][i % 4];

        score = score_value<CAN>(p, score);
    }
    if (!has<CAN>(p, FEAT_TERMS))
        return;
    #pragma unroll
    for (int i = 0; i < T::MT * T::NT * 2; i++) {
        const int mt = i / 2 / T::NT, t = i / 2 % T::NT, half = i % 2;
        const int row = x + lane / 4 + mt * 16 + half * 8;
        const float *const at = term + place_of_term<T>(row, t * 8 + lane % 4 * 2);

        s[mt][t][half * 2] = score_add(s[mt][t][half * 2], at[0]);
        s[mt][t][half * 2 + 1] = score_add(s[mt][t][half * 2 + 1], at[1]);
    }
}

// -inf where a key of the step, which begins with key j, is out of a row's range.
template <typename T> DEVICE void mask_scores(attn_score at, int x, int j, scores<T> &s)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int i = 0; i < T::MT * T::NT * 4; i++) {
        const int mt = i / 4 / T::NT, t = i / 4 % T::NT;
        float &score = s[mt][t][i % 4];

        score = score_masked(at, x + lane / 4 + mt * 16 + i / 2 % 2 * 8,
                             j + t * 8 + lane % 4 * 2 + i % 2, score);
    }
}

// Marks the keys of the step that a row sees.
template <typename T> DEVICE void mark_seen(const scores<T> &s, int *seen)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int i = 0; i < T::NT * 2; i++) {
        bool any = false;

        #pragma unroll
        for (int row = 0; row < 2 * T::MT; row++)
            any |= s[row / 2][i / 2][row % 2 * 2 + i % 2] != -INFINITE;
        if (any)
            seen[i / 2 * 8 + lane % 4 * 2 + i % 2] = 1;
    }
}

// Where the product unit m is so far from 0 that what it is rounded by would be seen.
DEVICE bool is_far(float reference, float unit)
{
    return !(fabsf(reference * unit) < 1048576.0f);
}

// From scores to weights, in place; rows move to their new maximum, and O with them. A
// weight is 2^(unit s - unit m), the difference by one fused multiply-add: it is as exact
// as the score itself, and what unit m is rounded by, all weights have in common, so that it
// leaves with their sum. Where it is far, m is taken off first.
template <typename T>
DEVICE void fold_scores(rows_state<T> &my, float unit, scores<T> &s)
{
    float old[T::MT][2], reference[T::MT][2];
    bool far = false;

    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const int mt = i / 2, half = i % 2;
        float top = -INFINITE;

        #pragma unroll
        for (int e = 0; e < 2 * T::NT; e++)
            top = state_max(s[mt][e / 2][half * 2 + e % 2], top);
        top = state_max(__shfl_xor_sync(0xffffffffu, top, 1), top);
        top = state_max(__shfl_xor_sync(0xffffffffu, top, 2), top);
        old[mt][half] = my.m[mt][half];
        my.m[mt][half] = state_max(my.m[mt][half], top);
        reference[mt][half] = state_reference(my.m[mt][half]);
        far |= is_far(reference[mt][half], unit);
    }
    if (__any_sync(0xffffffffu, far)) {
        #pragma unroll
        for (int i = 0; i < 2 * T::MT; i++) {
            const int mt = i / 2, half = i % 2;

            if (!is_far(reference[mt][half], unit))
                continue;
            #pragma unroll
            for (int e = 0; e < 2 * T::NT; e++)
                s[mt][e / 2][half * 2 + e % 2] -= reference[mt][half];
            old[mt][half] -= reference[mt][half];
            reference[mt][half] = 0.0f;
        }
    }
    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const int mt = i / 2, half = i % 2;
        const float top = device_product(reference[mt][half], unit);
        const float factor = state_exp2(device_product(old[mt][half], unit) - top);
        float sum = 0.0f;

        #pragma unroll
        for (int e = 0; e < 2 * T::NT; e++) {
            float &w = s[mt][e / 2][half * 2 + e % 2];

            w = state_exp2(fmaf(w, unit, -top));
            sum += w;
        }
        my.l[mt][half] = my.l[mt][half] * factor + sum;
        if (!__any_sync(0xffffffffu, factor != 1.0f))
            continue;
        #pragma unroll
        for (int e = 0; e < 2 * T::VT; e++) {
            float &o = my.o[mt][e / 2][half * 2 + e % 2];

            o = rescaled(o, factor);
        }
    }
}

// Weights as the first operand of the product with V: the registers are where they are.
template <typename T> using weights = uint32_t[T::NT / 2][T::MT][4];

template <typename T> DEVICE void pack_weights(const scores<T> &s, weights<T> &w)
{
    #pragma unroll
    for (int i = 0; i < T::NT * T::MT * 2; i++) {
        const int t = i / 4 / T::MT, mt = i / 4 % T::MT, column = i / 2 % 2, half = i % 2;

        w[t][mt][i % 4] = device_pair<TYPE>(s[mt][2 * t + column][half * 2],
                                            s[mt][2 * t + column][half * 2 + 1]);
    }
}

// O += P V.
template <typename T>
DEVICE void add_values(const float4 *v, const weights<T> &w, rows_state<T> &my)
{
    const int lane = threadIdx.x % 32, r = lane % 16, odd = lane / 16;

    #pragma unroll
    for (int t = 0; t < T::NT / 2; t++) {
        #pragma unroll
        for (int n = 0; n < T::VT; n += 2) {
            uint32_t b[4];

            device_matrices_turned(b, v + t * 16 * CHUNKS_V + place_of<CHUNKS_V>(r, n + odd));
            #pragma unroll
            for (int mt = 0; mt < T::MT; mt++) {
                device_multiply<TYPE>(my.o[mt][n], w[t][mt], b[0], b[1]);
                device_multiply<TYPE>(my.o[mt][n + 1], w[t][mt], b[2], b[3]);
            }
        }
    }
}
