// SPDX-License-Identifier: MIT
// softmax/tile_fold.cuh: what fwd_tile.cu does with a tile that is in shared memory:
// scores, their fold into the rows, products with V, compensated sums.
#pragma once
#include "softmax/outer.cuh"
#include "softmax/sums.cuh"
#include "softmax/tile.cuh"

// o += part; LONG: compensated. Where the sum is no finite number there is no rest.
template <typename T, bool LONG>
DEVICE void add_tile(float (&o)[T::RM][T::RV], rests (&extra)[T::RM][T::RV / 2],
                     const float (&part)[T::RM][T::RV])
{
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        #pragma unroll
        for (int g = 0; g < T::RV; g += 2) {
            if (!LONG) {
                o[r][g] += part[r][g];
                o[r][g + 1] += part[r][g + 1];
                continue;
            }

            rests &rest = extra[r][g / 2];
            float x[2] = { first_rest(rest), second_rest(rest) };
            bool fine = true;

            add_rest(o[r][g], x[0], part[r][g], fine);
            add_rest(o[r][g + 1], x[1], part[r][g + 1], fine);
            rest = pack_rests(x[0], x[1]);
            if (!fine)
                rest = { 0 };
        }
    }
}

// A thread's own slots of the weights, four rows of a key at a time; of rows i and i ^ FLIP
// each lies in the other's place.
template <typename T, int FLIP>
DEVICE void put_fours(const place<T> &my, shared<T> &mem, const float (&s)[T::RM][T::RN])
{
    #pragma unroll
    for (int c = 0; c < T::RN; c++) {
        #pragma unroll
        for (int r = 0; r < T::RM; r += 4)
            *(float4 *)(mem.weight + (my.tx + c * T::TX) * T::WP + row_of(my, r)) =
                make_float4(s[r ^ FLIP][c], s[(r + 1) ^ FLIP][c], s[(r + 2) ^ FLIP][c],
                            s[(r + 3) ^ FLIP][c]);
    }
}

template <typename T, int FLIP>
DEVICE void get_fours(const place<T> &my, const shared<T> &mem, float (&s)[T::RM][T::RN])
{
    #pragma unroll
    for (int c = 0; c < T::RN; c++) {
        #pragma unroll
        for (int r = 0; r < T::RM; r += 4) {
            const float4 x =
                *(const float4 *)(mem.weight + (my.tx + c * T::TX) * T::WP + row_of(my, r));

            s[r ^ FLIP][c] = x.x;
            s[(r + 1) ^ FLIP][c] = x.y;
            s[(r + 2) ^ FLIP][c] = x.z;
            s[(r + 3) ^ FLIP][c] = x.w;
        }
    }
}

// Softcap, bias, ALiBi and masks: scores go through the thread's own slots of the weights,
// in a loop, so that the code stays small. Marks the keys that a query sees. Rows are
// exchanged, whatever the weights' are, since compilers keep scores where they are stored.
template <typename T, int CAN>
DEVICE void special_scores(const attn_kparams &p, const place<T> &my, shared<T> &mem,
                           float (&s)[T::RM][T::RN], int j0)
{
    const attn_score at = mem.score;

    __syncwarp();    // its lanes have read the weights before
    put_fours<T, 1>(my, mem, s);
    if (has<CAN>(p, FEAT_HIDES)) {
        for (int j = threadIdx.x; j < T::BN; j += T::THREADS)
            mem.seen[j] = 0;
        __syncthreads();
    }
    #pragma unroll 1
    for (int e = 0; e < T::RM * T::RN; e++) {
        const int r = e / T::RN, c = e % T::RN;
        const int i = row_of<T>(my, r), x = my.tx + c * T::TX;
        float *const own = mem.weight + x * T::WP + row_of<T>(my, r ^ 1);
        float score = score_value<CAN>(p, *own);

        if (has<CAN>(p, FEAT_TERMS))
            score = score_add(score, score_term<CAN>(p, at, i, j0 + x));
        score = score_masked(at, i, j0 + x, score);
        if (has<CAN>(p, FEAT_HIDES) && score != -INFINITE)
            mem.seen[x] = 1;
        *own = score;
    }
    get_fours<T, 1>(my, mem, s);
}

// What scores are multiplied by before they are masked, and what with the difference from
// their maximum.
struct scaling {
    float first, then;
};

// The second is the scale, or 1 for scales that turn the order of scores, or make them
// infinite.
DEVICE scaling find_scaling(const attn_kparams &p)
{
    const bool late = p.scale > 0.0f && p.scale <= 1.0f;

    return { late ? 1.0f : p.scale, late ? p.scale : 1.0f };
}

// state_weight() of score * scale, which is rounded once.
DEVICE float scaled_weight(float score, float scale, float reference)
{
    return state_exp2(fmaf(score, scale, -reference) * 1.44269504088896340736f);
}

// From scores to weights; rows move to their new maximum, and O with them. Only with MASKED
// can the first scaling be another than 1.
template <typename T, bool LONG, bool MASKED>
DEVICE void fold_scores(const place<T> &my, shared<T> &mem, float (&s)[T::RM][T::RN],
                        scaling scale, int j0, float (&o)[T::RM][T::RV],
                        rests (&extra)[T::RM][T::RV / 2])
{
    const int mine = row_to_share(my);
    attn_row row = { mem.m[mine], 0.0f };
    float top[T::RM], m[T::RM], factor[T::RM], sum[T::RM];

    // a loop over the rows for each step, so that their shuffles overlap
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        const attn_range seen = MASKED ? score_span(mem.score, row_of(my, r)) : attn_range{};

        top[r] = -INFINITE;
        #pragma unroll
        for (int c = 0; c < T::RN; c++) {
            const int j = j0 + my.tx + c * T::TX;

            if (MASKED)
                s[r][c] = j >= seen.first && j < seen.end ? s[r][c] * scale.first : -INFINITE;
            top[r] = state_max(s[r][c], top[r]);
        }
    }

    const float my_factor = state_fold(&row, row_shared<T, true>(my, top) * scale.then);

    __syncwarp();    // others of its lanes have the same row, and have read it
    mem.m[mine] = row.m;
    mem.factor[mine] = my_factor;
    __syncwarp();
    load_fours<T::APART>(m, mem.m + row_of(my, 0));
    load_fours<T::APART>(factor, mem.factor + row_of(my, 0));
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        const float reference = state_reference(m[r]);

        sum[r] = 0.0f;
        #pragma unroll
        for (int c = 0; c < T::RN; c++) {
            s[r][c] = scaled_weight(s[r][c], scale.then, reference);
            sum[r] += s[r][c];
        }
    }
    put_fours<T, SWAP>(my, mem, s);

    const float my_sum = row_shared<T, false>(my, sum);

    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        if (!__any_sync(0xffffffffu, factor[r] != 1.0f))
            continue;
        #pragma unroll
        for (int g = 0; g < T::RV; g++) {
            o[r][g] = rescaled(o[r][g], factor[r]);
            if (LONG && g % 2 == 0)
                extra[r][g / 2] = rescaled_rests(extra[r][g / 2], factor[r]);
        }
    }
    if (my.tx < T::RM) {    // others share the same rows
        float l = mem.l[mine] * my_factor, rest = mem.l_extra[mine] * my_factor;
        bool fine = true;

        add_rest(l, rest, my_sum, fine);
        mem.l[mine] = l;
        mem.l_extra[mine] = fine ? rest : 0.0f;
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
        const int i = row_of<T>(my, e / (T::BN / 4)), x = e % (T::BN / 4);
        float *const w = mem.weight + 4 * x * T::WP + (i ^ SWAP);
        uint32_t word[4];

        dropout_words(p, head, mem.i0 + i, j0 / 4 + x, word);
        #pragma unroll
        for (int k = 0; k < 4; k++)
            w[k * T::WP] *= dropout_factor(p, word[k]);
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
