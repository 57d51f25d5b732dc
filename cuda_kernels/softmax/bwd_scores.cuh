// SPDX-License-Identifier: MIT
// softmax/bwd_scores.cuh: what the backward on tensor cores does with products that are in
// registers. TYPE is the image's.
//
// A warp owns 16 keys. In the registers of mma a lane has, of a product with them, keys
// lane / 4 and that + 8 ("half" 0 and 1), and of each eight columns 2 (lane % 4) and the
// next. S^T and dP^T have queries as columns, so that P^T and dS^T are the first operand of
// dV and dK where they are.
#pragma once
#include "common/score.cuh"
#include "softmax/bwd_steps.cuh"

template <typename T> using back_pairs = float[T::NT][4];
template <typename T> using back_sums = float[T::DT][4];
template <typename T> using back_operand = uint32_t[T::NT / 2][4];

// What weights, none of them over 1, are multiplied by where they are operands: f16 has nothing
// below 2^-24.
constexpr float WEIGHT_LIFT = TYPE == TYPE_F16 ? 0x1p14f : 1.0f;

// Scores become weights, of an LSE in units of log2.
template <typename T>
DEVICE void find_weights(back_pairs<T> &s, float unit, const float *lse)
{
    const int c0 = threadIdx.x % 4 * 2;

    #pragma unroll
    for (int t = 0; t < T::NT; t++) {
        const float own[2] = { lse[t * 8 + c0], lse[t * 8 + c0 + 1] };

        #pragma unroll
        for (int e = 0; e < 4; e++)
            s[t][e] = state_exp2(device_min(fmaf(s[t][e], unit, -own[e % 2]), 0.0f));
    }
}

// Weights out of range are 0. `key`: the lane's first, of `keys`.
template <typename T>
DEVICE void mask_weights(back_pairs<T> &s, const mma_step &at, int key, int keys)
{
    const int c0 = threadIdx.x % 4 * 2;

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t j = key + half * 8;
        const int first = (int)max(j - at.end + 1, (int64_t)at.lo) - c0;
        const int end = j < keys ? (int)min(j - at.first + 1, (int64_t)at.n) - c0 : 0;

        #pragma unroll
        for (int e = 0; e < 2 * T::NT; e++) {
            const int c = e / 2 * 8 + e % 2;
            float &w = s[e / 2][half * 2 + e % 2];

            w = c >= first && c < end ? w : 0.0f;
        }
    }
}

// dP becomes the gradients of the scores. Out of range they are 0, whatever dP holds.
template <typename T>
DEVICE void find_gradients(const back_pairs<T> &w, back_pairs<T> &dp, const float *delta,
                           bool masked)
{
    const int c0 = threadIdx.x % 4 * 2;

    #pragma unroll
    for (int t = 0; t < T::NT; t++) {
        const float own[2] = { delta[t * 8 + c0], delta[t * 8 + c0 + 1] };

        #pragma unroll
        for (int e = 0; e < 4; e++)
            dp[t][e] = w[t][e] * (dp[t][e] - own[e % 2]);
    }
    #pragma unroll
    for (int e = 0; e < T::NT * 4 && masked; e++)
        dp[e / 4][e % 4] = w[e / 4][e % 4] == 0.0f ? 0.0f : dp[e / 4][e % 4];
}

// Which pairs dropout keeps: of element e of eight columns t bit 4 t of word e / 2 + e % 2 * 2.
using back_kept = uint32_t[4];

// A call of the generator tells of four keys, which are four lanes': each makes a fourth of the
// calls. key: the lane's first; query: the step's first. head: of all batches.
template <typename T>
DEVICE void find_kept(const attn_kparams &p, uint32_t head, int query, int key, back_kept &kept)
{
    const int lane = threadIdx.x % 32, own = lane / 4 % 4;
    uint32_t bits = 0;

    static_assert(T::NT <= 8, "four bits for each of eight columns");
    #pragma unroll 1
    for (int t = 0; t < T::NT; t++) {
        uint32_t word[4];

        dropout_words(p, head, query + t * 8 + lane % 4 * 2 + own / 2, key / 4 + own % 2 * 2,
                      word);
        #pragma unroll
        for (int k = 0; k < 4; k++)
            bits |= (word[k] >= p.drop_below ? 1u : 0u) << (4 * t + k);
    }
    #pragma unroll
    for (int i = 0; i < 4; i++)
        kept[i] = __shfl_sync(0xffffffffu, bits, (lane & ~12) | i << 2) >> own;
}

DEVICE bool keeps(const back_kept &kept, int t, int e)
{
    return kept[e / 2 + e % 2 * 2] >> (4 * t) & 1;
}

// Weights that were packed, without their factor, which the sums get.
template <typename T> DEVICE void drop_packed(const back_kept &kept, back_operand<T> &w)
{
    #pragma unroll
    for (int i = 0; i < T::NT * 2; i++) {
        const int t = i / 4 * 2 + i / 2 % 2, half = i % 2;

        w[i / 4][i % 4] &= (keeps(kept, t, half * 2) ? 0x0000ffffu : 0u) |
                           (keeps(kept, t, half * 2 + 1) ? 0xffff0000u : 0u);
    }
}

// dP of weights that were dropped is 0, of others times the factor.
template <typename T>
DEVICE void drop_pairs(const attn_kparams &p, const back_kept &kept, back_pairs<T> &dp)
{
    #pragma unroll
    for (int i = 0; i < T::NT * 4; i++)
        dp[i / 4][i % 4] = keeps(kept, i / 4, i % 4) ? dp[i / 4][i % 4] * p.drop_factor : 0.0f;
}

// Pairs as the first operand of a product with rows of the visited kind, times a factor.
template <typename T>
DEVICE void pack_pairs(const back_pairs<T> &s, float factor, back_operand<T> &w)
{
    #pragma unroll
    for (int i = 0; i < T::NT * 2; i++) {
        const int t = i / 4, column = i / 2 % 2, half = i % 2;

        w[t][i % 4] = device_pair<TYPE>(s[2 * t + column][half * 2] * factor,
                                        s[2 * t + column][half * 2 + 1] * factor);
    }
}

// The length of the longest of 16 rows of V, `first` the first, rounded up a little; for all
// lanes. place: where chunk c of row r lies.
template <typename PLACE> DEVICE float find_largest(const float4 *v, int first, PLACE place)
{
    const int lane = threadIdx.x % 32, row = first + lane / 2;
    float sum = 0.0f;

    #pragma unroll 1
    for (int c = lane % 2; c < CHUNKS_K; c += 2) {
        const float4 eight = v[place(row, c)];
        const float word[4] = { eight.x, eight.y, eight.z, eight.w };

        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t u = __float_as_uint(word[i]);
            const float low = device_f32_of_f16((uint16_t)u);
            const float high = device_f32_of_f16((uint16_t)(u >> 16));

            sum += low * low + high * high;
        }
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum = sum < INFINITE ? sum : 0.0f;    // what is seen of such a row is not finite anyway
    for (int mask = 2; mask < 32; mask *= 2)
        sum = fmaxf(sum, __shfl_xor_sync(0xffffffffu, sum, mask));
    return sqrtf(sum) * 1.001f;
}

// The power of 2 that brings gradients of the scores of a step up to 2^15, for
// |dS_ij| <= |dO_i| |v_j| factor + |delta_i|; the same for all threads of the group. Queries that
// see none of the keys, or have no weight for any, have no such gradients.
template <typename T>
DEVICE float find_lift(const mma_step &at, const float *size, const float *delta,
                       const float *lse, const float *largest, float factor = 1.0f)
{
    const int lane = threadIdx.x % 32;
    float v = largest[0], most = 0.0f;

    #pragma unroll
    for (int i = 1; i < T::WARPS; i++)
        v = fmaxf(v, largest[i]);
    v *= factor;
    for (int x = lane; x < T::BN; x += 32)
        if (x >= at.lo && x < at.n && fabsf(lse[x]) < INFINITE)
            most = fmaxf(most, size[x] * v + fabsf(delta[x]));
    for (int mask = 1; mask < 32; mask *= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));

    // most < 2^(exponent - 126)
    const int exponent = (int)(__float_as_uint(most) >> 23);

    return __uint_as_float((uint32_t)clamp(127 + 15 + 126 - exponent, 8, 127 + 60) << 23);
}

// Moves sums from one power of 2 to another; two factors, since one may be too large for f32.
template <typename T> DEVICE void move_sums(back_sums<T> &sums, float from, float to)
{
    const int up = (int)(__float_as_uint(to) >> 23) - (int)(__float_as_uint(from) >> 23);
    const float half = __uint_as_float((uint32_t)(127 + up / 2) << 23);
    const float rest = __uint_as_float((uint32_t)(127 + up - up / 2) << 23);

    #pragma unroll
    for (int i = 0; i < T::DT * 4; i++)
        sums[i / 4][i % 4] = sums[i / 4][i % 4] * half * rest;
}

// dS^T of the warp's keys, warp_key the first, to shared memory.
template <typename T>
DEVICE void put_gradients(const back_operand<T> &w, int warp_key, float4 *ds)
{
    const int lane = threadIdx.x % 32, key = warp_key + lane / 4;

    #pragma unroll
    for (int i = 0; i < T::NT * 2; i++) {
        const int t = i / 4 * 2 + i / 2 % 2, half = i % 2;
        float4 *const at = ds + place_of<T::BN / 8>(key + half * 8, t);

        ((uint32_t *)at)[lane % 4] = w[i / 4][i % 4];
    }
}

// Exchanges w[n] of lane % 4 = k with w[k] of lane % 4 = n.
DEVICE void turn_quad(uint32_t (&w)[4])
{
    const int lane = threadIdx.x % 4;

    #pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool odd = lane & bit;

        #pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n & bit)
                continue;

            const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[n] : w[n | bit], bit);

            w[n] = odd ? got : w[n];
            w[n | bit] = odd ? w[n | bit] : got;
        }
    }
}

// dK or dV of the warp's keys, warp_key the first in the group, times a factor.
template <typename T, int CAN>
DEVICE void store_keys(const attn_kparams &p, const back_sums<T> &sums, int warp_key,
                       void *out, const attn_rows &rows, int first, int owned, int depth,
                       float factor)
{
    const int lane = threadIdx.x % 32, x0 = warp_key + lane / 4;

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int x = x0 + half * 8;
        const int64_t to = address_row<CAN>(p, rows, first + x);

        #pragma unroll
        for (int n = 0; n < T::DT; n += 4) {
            const int c = (n + lane % 4) * 8;
            uint32_t w[4];

            #pragma unroll
            for (int k = 0; k < 4; k++)
                w[k] = device_pair<TYPE>(sums[n + k][half * 2] * factor,
                                         sums[n + k][half * 2 + 1] * factor);
            turn_quad(w);
            if (x >= owned)
                continue;
            if (has<CAN>(p, WHOLE_GRADS)) {
                if (c < depth)
                    *(float4 *)((uint16_t *)out + to + c) =
                        make_float4(__uint_as_float(w[0]), __uint_as_float(w[1]),
                                    __uint_as_float(w[2]), __uint_as_float(w[3]));
                continue;
            }
            #pragma unroll
            for (int e = 0; e < 8; e++)
                if (c + e < depth)
                    ((uint16_t *)out)[to + (c + e) * rows.stride_d] =
                        (uint16_t)(w[e / 2] >> (e % 2 * 16));
        }
    }
}
