// SPDX-License-Identifier: MIT
// softmax/tile_fold.cuh: what fwd_tile.cu does with a tile that is in shared memory:
// scores, their fold into the rows, products with V, compensated sums.
#pragma once
#include "softmax/products.cuh"
#include "softmax/sums.cuh"
#include "softmax/tile.cuh"

// o += part; LONG: compensated. Where the sum is no finite number there is no rest.
template <typename T, bool LONG>
DEVICE void add_tile(float4 (&o)[T::RM][T::RV], rests (&extra)[T::RM][2 * T::RV],
                     const float4 (&part)[T::RM][T::RV])
{
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        #pragma unroll
        for (int g = 0; g < T::RV; g++) {
            if (!LONG) {
                add_scaled(o[r][g], 1.0f, part[r][g]);
                continue;
            }

            rests &low = extra[r][2 * g], &high = extra[r][2 * g + 1];
            float x[4] = { first_rest(low), second_rest(low), first_rest(high),
                           second_rest(high) };
            bool fine = true;

            add_rest(o[r][g].x, x[0], part[r][g].x, fine);
            add_rest(o[r][g].y, x[1], part[r][g].y, fine);
            add_rest(o[r][g].z, x[2], part[r][g].z, fine);
            add_rest(o[r][g].w, x[3], part[r][g].w, fine);
            low = pack_rests(x[0], x[1]);
            high = pack_rests(x[2], x[3]);
            if (!fine)
                low = high = { 0 };
        }
    }
}

DEVICE float4 rescaled4(float4 sum, float factor)
{
    return make_float4(rescaled(sum.x, factor), rescaled(sum.y, factor),
                       rescaled(sum.z, factor), rescaled(sum.w, factor));
}

// What fold_scores() still has to do: scale; that and mask; nothing.
enum { RAW, RAW_AT_EDGE, DONE };

// Softcap, bias, ALiBi and masks: scores go through the thread's own slots of the weights,
// in a loop, so that the code stays small. Marks the keys that a query sees.
template <typename T, int CAN>
DEVICE void special_scores(const attn_kparams &p, const place<T> &my, shared<T> &mem,
                           float (&s)[T::RM][T::RN], int j0)
{
    const attn_score at = mem.score;
    float *const w = mem.weight + my.ty * T::WP + my.tx;

    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        #pragma unroll
        for (int c = 0; c < T::RN; c++)
            w[r * T::TY * T::WP + c * T::TX] = s[r][c];
    }
    if (has<CAN>(p, FEAT_HIDES)) {
        for (int j = threadIdx.x; j < T::BN; j += T::THREADS)
            mem.seen[j] = 0;
        __syncthreads();
    }
    #pragma unroll 1
    for (int e = 0; e < T::RM * T::RN; e++) {
        const int r = e / T::RN, c = e % T::RN;
        const int i = my.ty + r * T::TY, x = my.tx + c * T::TX;
        float score = score_value<CAN>(p, w[r * T::TY * T::WP + c * T::TX]);

        if (has<CAN>(p, FEAT_TERMS))
            score = score_add(score, score_term<CAN>(p, at, i, j0 + x));
        score = score_masked(at, i, j0 + x, score);
        if (has<CAN>(p, FEAT_HIDES) && score != -INFINITE)
            mem.seen[x] = 1;
        w[r * T::TY * T::WP + c * T::TX] = score;
    }
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        #pragma unroll
        for (int c = 0; c < T::RN; c++)
            s[r][c] = w[r * T::TY * T::WP + c * T::TX];
    }
}

// From scores to weights; rows move to their new maximum, and O with them.
template <typename T, bool LONG, int STATE>
DEVICE void fold_scores(const attn_kparams &p, const place<T> &my, shared<T> &mem,
                        float (&s)[T::RM][T::RN], int j0, float4 (&o)[T::RM][T::RV],
                        rests (&extra)[T::RM][2 * T::RV])
{
    float my_m = 0.0f, my_factor = 0.0f, my_sum = 0.0f;    // of row ty + tx * TY
    float top[T::RM], factor[T::RM], sum[T::RM];

    // a loop over the rows for each step, so that their shuffles overlap
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        top[r] = -INFINITE;
        #pragma unroll
        for (int c = 0; c < T::RN; c++) {
            if (STATE != DONE)
                s[r][c] *= p.scale;
            if (STATE == RAW_AT_EDGE)
                s[r][c] = score_masked(mem.score, my.ty + r * T::TY, j0 + my.tx + c * T::TX,
                                       s[r][c]);
            top[r] = state_max(s[r][c], top[r]);
        }
    }
    #pragma unroll
    for (int r = 0; r < T::RM; r++)
        top[r] = row_max<T>(top[r]);
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        const int i = my.ty + r * T::TY;
        attn_row row = { mem.m[i], 0.0f };

        factor[r] = state_fold(&row, top[r]);

        const float reference = state_reference(row.m);

        sum[r] = 0.0f;
        #pragma unroll
        for (int c = 0; c < T::RN; c++) {
            const float w = state_weight(s[r][c], reference);

            sum[r] += w;
            mem.weight[i * T::WP + my.tx + c * T::TX] = w;
        }
        if (r == my.tx) {
            my_m = row.m;
            my_factor = factor[r];
        }
    }
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        sum[r] = row_sum<T>(sum[r]);
        if (r == my.tx)
            my_sum = sum[r];
    }
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        if (!__any_sync(0xffffffffu, factor[r] != 1.0f))
            continue;
        #pragma unroll
        for (int g = 0; g < T::RV; g++) {
            o[r][g] = rescaled4(o[r][g], factor[r]);
            if (LONG) {
                extra[r][2 * g] = rescaled_rests(extra[r][2 * g], factor[r]);
                extra[r][2 * g + 1] = rescaled_rests(extra[r][2 * g + 1], factor[r]);
            }
        }
    }
    __syncwarp();
    if (my.tx < T::RM) {
        const int i = my.ty + my.tx * T::TY;
        float l = mem.l[i] * my_factor, rest = mem.l_extra[i] * my_factor;
        bool fine = true;

        add_rest(l, rest, my_sum, fine);
        mem.m[i] = my_m;
        mem.l[i] = l;
        mem.l_extra[i] = fine ? rest : 0.0f;
    }
    __syncwarp();
}

// Drops weights: of each of its rows, four keys at a time. A row is its warp's own.
template <typename T>
DEVICE void drop_weights(const attn_kparams &p, const place<T> &my, shared<T> &mem, int j0)
{
    const uint32_t head = (uint32_t)(mem.b * p.heads_q + mem.h);

    #pragma unroll 1
    for (int e = my.tx; e < T::RM * T::BN / 4; e += T::TX) {
        const int i = my.ty + e / (T::BN / 4) * T::TY, x = e % (T::BN / 4);
        float *const w = mem.weight + i * T::WP + 4 * x;
        uint32_t word[4];

        dropout_words(p, head, mem.i0 + i, j0 / 4 + x, word);
        #pragma unroll
        for (int k = 0; k < 4; k++)
            w[k] *= dropout_factor(p, word[k]);
    }
    __syncwarp();
}

// Zeros the values of a chunk whose keys no query of the tile sees.
template <typename T> DEVICE void hide_values(shared<T> &mem, float *v, int j)
{
    for (int e = threadIdx.x; e < T::JC * T::VP; e += T::THREADS)
        if (!mem.seen[j + e / T::VP])
            v[e] = 0.0f;
    __syncthreads();
}
