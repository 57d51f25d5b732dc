// SPDX-License-Identifier: MIT
// softmax/mma_fold.cuh: what a warp of fwd_mma.cu does with a step's scores: masks, their
// fold into its rows.
//
// In the registers of mma a lane has, of each 16 rows, row lane / 4 and that + 8 ("half" 0
// and 1), and of each eight columns 2 (lane % 4) and the next.
#pragma once
#include "softmax/mma_pairs.cuh"

// The warp's rows: maxima m, in units of the scores as fold_scores() gets them; sums l of
// this lane's keys.
template <typename T> struct rows_state {
    float m[T::MT][2], l[T::MT][2];
    float o[T::MT][T::VT][4];
    float l_rest[T::LONG ? T::MT : 1][2];
    rests rest[T::LONG ? T::MT : 1][T::VT][2];    // of o, two columns each
};

// Of the keys of a step the one of score e of a lane's row, from its first one on.
template <typename T> DEVICE constexpr int key_of(int e)
{
    return e / 4 * 16 * T::COLS + e / 2 % 2 * 8 + e % 2;
}

// -inf where a key of the step is out of a row's range; j: the warp's first one.
template <typename T> DEVICE void mask_scores(const attn_score &at, int x, int j, scores<T> &s)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const int mt = i / 2, half = i % 2;
        const attn_range span = score_span(at, x + lane / 4 + mt * 16 + half * 8);
        const int first = span.first - j - lane % 4 * 2, end = span.end - j - lane % 4 * 2;

        #pragma unroll
        for (int e = 0; e < 2 * T::NT; e++) {
            const int c = key_of<T>(e);
            float &score = s[mt][e / 2][half * 2 + e % 2];

            score = c >= first && c < end ? score : -INFINITE;
        }
    }
}

// Where the product unit m is so far from 0 that what it is rounded by would be seen.
DEVICE bool is_far(float reference, float unit)
{
    return !(fabsf(reference * unit) < 1048576.0f);
}

// What rows were held against and are now, in units of the scores, and the factors between
// for what they have summed; `moves`: not all of the warp's factors are 1.
template <typename T> struct references {
    float now[T::MT][2], factor[T::MT][2];
    bool moves;
};

// Finds the new references, and moves the sums of weights to them. A row moves to a new
// maximum only where its weights could outgrow HEADROOM: m is then not the largest score, but
// what weights are held against, which is all that O and the LSE ask for. Where m is far, it
// is taken off the scores here.
template <typename T>
DEVICE references<T> find_references(rows_state<T> &my, float unit, scores<T> &s,
                                     const warp_pair<T> &pair = {})
{
    references<T> r;
    float old[T::MT][2], tops[T::MT][2];
    bool far = false, moves = false;

    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const int mt = i / 2, half = i % 2;
        float two[2] = { -INFINITE, -INFINITE };    // each waits for itself alone

        #pragma unroll
        for (int e = 0; e < 2 * T::NT; e++)
            two[e % 2] = state_max(s[mt][e / 2][half * 2 + e % 2], two[e % 2]);

        float top = state_max(two[0], two[1]);

        top = state_max(__shfl_xor_sync(0xffffffffu, top, 1), top);
        tops[mt][half] = state_max(__shfl_xor_sync(0xffffffffu, top, 2), top);
    }
    pair.largest(tops);
    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const int mt = i / 2, half = i % 2;
        const float top = tops[mt][half];

        old[mt][half] = my.m[mt][half];
        if ((top - my.m[mt][half]) * unit > HEADROOM<TYPE>) {
            my.m[mt][half] = top;
            moves = true;
        }
        r.now[mt][half] = state_reference(my.m[mt][half]);
        r.factor[mt][half] = 1.0f;
        far |= is_far(r.now[mt][half], unit);
    }
    if (__any_sync(0xffffffffu, far)) {
        #pragma unroll
        for (int i = 0; i < 2 * T::MT; i++) {
            const int mt = i / 2, half = i % 2;

            if (!is_far(r.now[mt][half], unit))
                continue;
            #pragma unroll
            for (int e = 0; e < 2 * T::NT; e++)
                s[mt][e / 2][half * 2 + e % 2] -= r.now[mt][half];
            old[mt][half] -= r.now[mt][half];
            r.now[mt][half] = 0.0f;
        }
    }
    r.moves = __any_sync(0xffffffffu, moves);
    if (r.moves) {
        #pragma unroll
        for (int i = 0; i < 2 * T::MT; i++) {
            const int mt = i / 2, half = i % 2;

            r.factor[mt][half] = state_exp2(device_product(old[mt][half], unit) -
                                            device_product(r.now[mt][half], unit));
            my.l[mt][half] *= r.factor[mt][half];
            if (T::LONG)
                my.l_rest[T::LONG ? mt : 0][half] *= r.factor[mt][half];
        }
    }
    return r;
}

// Of each row the least bits that a score, 0 or more, moves it with, with some room for
// rounding: in that order floats are as integers are, and negative ones are below. NO_LIMIT,
// which no score is below, -0 neither, where there is none: nothing to hold against yet, far or
// negative ones.
template <typename T> struct score_limits {
    int32_t of[T::MT][2];
};

constexpr int32_t NO_LIMIT = INT32_MIN;

template <typename T> DEVICE void no_limits(score_limits<T> &limits)
{
    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++)
        limits.of[i / 2][i % 2] = NO_LIMIT;
}

template <typename T>
DEVICE void find_limits(const rows_state<T> &my, float unit, score_limits<T> &limits)
{
    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const float m = my.m[i / 2][i % 2], top = m + HEADROOM<TYPE> * 0.95f / unit;

        limits.of[i / 2][i % 2] =
            top >= 0.0f && !is_far(m, unit) ? (int32_t)__float_as_uint(top) + 1 : NO_LIMIT;
    }
}

// find_references(), but where no score of the warp is at its row's limit, a third of the
// instructions and no exchange among lanes.
template <typename T>
DEVICE references<T> find_references(rows_state<T> &my, float unit, scores<T> &s,
                                     score_limits<T> &limits, const warp_pair<T> &pair = {})
{
    references<T> r;
    bool above = false;

    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const int mt = i / 2, half = i % 2;
        int32_t top[2] = { NO_LIMIT, NO_LIMIT };

        #pragma unroll
        for (int n = 0; n < T::NT; n++)
            top[n % 2] = max(top[n % 2], max((int32_t)__float_as_uint(s[mt][n][half * 2]),
                                             (int32_t)__float_as_uint(s[mt][n][half * 2 + 1])));
        above |= max(top[0], top[1]) >= limits.of[mt][half];
        r.now[mt][half] = my.m[mt][half];
        r.factor[mt][half] = 1.0f;
    }
    r.moves = false;
    if (pair.any(above)) {
        r = find_references(my, unit, s, pair);
        find_limits(my, unit, limits);
    }
    return r;
}

// From scores to weights, in place. A weight is 2^(unit s - unit m), the difference by one
// fused multiply-add: it is as exact as the score itself, and what unit m is rounded by, all
// weights have in common, so that it leaves with their sum.
template <typename T>
DEVICE void weigh(rows_state<T> &my, const references<T> &r, float unit, scores<T> &s)
{
    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const int mt = i / 2, half = i % 2;
        const float top = device_product(r.now[mt][half], unit) - LIFT<TYPE>;
        float sum = 0.0f;

        #pragma unroll
        for (int e = 0; e < 2 * T::NT; e++) {
            float &w = s[mt][e / 2][half * 2 + e % 2];

            w = state_exp2(fmaf(w, unit, -top));
            sum += w;
        }
        if (T::LONG)
            add_compensated<TYPE_F32>(my.l[mt][half], my.l_rest[T::LONG ? mt : 0][half], sum);
        else
            my.l[mt][half] += sum;
    }
}

// O follows its references.
template <typename T> DEVICE void move_rows(rows_state<T> &my, const references<T> &r)
{
    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const int mt = i / 2, half = i % 2;

        #pragma unroll
        for (int e = 0; e < 2 * T::VT; e++) {
            float &o = my.o[mt][e / 2][half * 2 + e % 2];

            o = rescaled(o, r.factor[mt][half]);
        }
        #pragma unroll
        for (int n = 0; n < T::VT && T::LONG; n++)
            my.rest[T::LONG ? mt : 0][n][half] =
                rescaled_rests(my.rest[T::LONG ? mt : 0][n][half], r.factor[mt][half]);
    }
}

// A step's scores become weights. QUICK: where limits say so, without a look at the maxima;
// begun: O is not 0.
template <typename T, bool QUICK>
DEVICE void fold_scores(rows_state<T> &my, float unit, bool begun, scores<T> &s,
                        score_limits<T> &limits, const warp_pair<T> &pair)
{
    const references<T> r = QUICK ? find_references(my, unit, s, limits, pair)
                                  : find_references(my, unit, s, pair);

    if (r.moves && begun)
        move_rows(my, r);
    weigh(my, r, unit, s);
}
