// SPDX-License-Identifier: MIT
// softmax/bwd_terms.cuh: what the instances _all of bwd_mma.cu do with single scores: softcap,
// bias, mask, ALiBi; registers as bwd_scores.cuh has them. TYPE and DIM are the image's.
#pragma once
#include "softmax/bwd_mma.cuh"

// Derivatives of capped scores.
template <typename T, bool LOOKS> using back_slopes = float[LOOKS ? T::NT : 1][4];

// What the scores of step `slot` depend on beside products. By one thread.
template <typename T, int CAN>
DEVICE void find_score(const attn_kparams &p, back_shared<T> &mem, int slot)
{
    const mma_step &at = mem.step[slot];

    if (at.there)
        mem.score[slot] = score_run<CAN>(p, mem.group.seq, mem.group.b, at.h, at.i0, at.n);
}

// Notes whether something of a tile is not finite: its exponent is all ones.
template <int CHUNKS, int THREADS> DEVICE void note_odd(const float4 *tile, int &odd)
{
    constexpr uint32_t LOW = TYPE == TYPE_F16 ? 0x7c00 : 0x7f80, HIGH = LOW << 16;
    bool any = false;

    for (int e = threadIdx.x; e < CHUNKS; e += THREADS) {
        const float4 x = tile[e];
        const float word[4] = { x.x, x.y, x.z, x.w };

        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t two = __float_as_uint(word[i]);

            any |= (two & LOW) == LOW || (two & HIGH) == HIGH;
        }
    }
    if (any)
        atomicAdd(&odd, 1);
}

// Products become scores, -inf where a mask or a bias hides the key. `key`: the lane's first.
template <typename T, int CAN>
DEVICE void find_scores(const attn_kparams &p, const attn_score &score, int key,
                        back_pairs<T> &s, back_slopes<T, true> &slopes)
{
    const int c0 = threadIdx.x % 4 * 2;

    #pragma unroll
    for (int i = 0; i < T::NT * 4; i++) {
        const int t = i / 4, e = i % 4, query = t * 8 + c0 + e % 2, j = key + e / 2 * 8;
        float &x = s[t][e];

        if (has<CAN>(p, FEAT_SOFTCAP))
            slopes[t][e] = score_slope(p, x);
        x = score_value<CAN>(p, x);
        if (has<CAN>(p, FEAT_TERMS))
            x = score_add(x, score_term<CAN>(p, score, query, j));
    }
}

// Scores in natural units become weights, of an LSE likewise: terms may be so large that the
// difference has to come first.
template <typename T> DEVICE void find_natural_weights(back_pairs<T> &s, const float *lse)
{
    const int c0 = threadIdx.x % 4 * 2;

    #pragma unroll
    for (int i = 0; i < T::NT * 4; i++)
        s[i / 4][i % 4] = back_weight(s[i / 4][i % 4], lse[i / 4 * 8 + c0 + i % 2]);
}

// find_gradients() of capped scores.
template <typename T>
DEVICE void slope_gradients(const back_pairs<T> &w, back_pairs<T> &dp, const float *delta,
                            const back_slopes<T, true> &slopes)
{
    const int c0 = threadIdx.x % 4 * 2;

    #pragma unroll
    for (int i = 0; i < T::NT * 4; i++) {
        const int t = i / 4, e = i % 4;
        const float ds = w[t][e] * (dp[t][e] - delta[t * 8 + c0 + e % 2]) * slopes[t][e];

        dp[t][e] = w[t][e] == 0.0f ? 0.0f : ds;
    }
}

// Which queries have a weight for one of the warp's keys: two bits for each eight of them, those
// of the lane's columns. Which of the warp's keys, from warp_key on, have one, to shared memory.
template <typename T>
DEVICE uint32_t find_seen(const back_pairs<T> &w, int warp_key, uint8_t *seen)
{
    const int lane = threadIdx.x % 32;
    uint32_t queries = 0, keys = 0;

    #pragma unroll
    for (int i = 0; i < T::NT * 4; i++) {
        const bool any = w[i / 4][i % 4] != 0.0f;

        queries |= any ? 1u << (i / 4 * 2 + i % 2) : 0u;
        keys |= any ? 1u << (i % 4 / 2) : 0u;
    }
    #pragma unroll
    for (int mask = 4; mask < 32; mask *= 2)
        queries |= __shfl_xor_sync(0xffffffffu, queries, mask);
    keys |= __shfl_xor_sync(0xffffffffu, keys, 1);
    keys |= __shfl_xor_sync(0xffffffffu, keys, 2);
    if (lane % 4 < 2)
        seen[warp_key + lane % 4 * 8 + lane / 4] = keys >> lane % 4 & 1;
    return queries;
}
