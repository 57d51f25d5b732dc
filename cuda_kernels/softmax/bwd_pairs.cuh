// SPDX-License-Identifier: MIT
// softmax/bwd_pairs.cuh: the weights and their gradients for a tile of pairs (query, key) on
// plain CUDA cores, by all threads of a group. The group owns BM queries, or with KEYS as
// many keys, and visits BN of the other kind at a time. TYPE and DIM are the image's.
#pragma once
#include "common/score.cuh"
#include "softmax/bwd.cuh"
#include "softmax/products.cuh"
#include "softmax/stage.cuh"

template <int BM_, int BN_, int TX_, int TY_, int DC_, int JC_, int BLOCKS_> struct pairs {
    static constexpr int BM = BM_, BN = BN_;    // owned rows of a group, visited of a step
    static constexpr int TX = TX_, TY = TY_;    // threads along what is visited, owned
    static constexpr int DC = DC_, JC = JC_;    // columns, and rows, of a chunk
    static constexpr int BLOCKS = BLOCKS_;      // groups on a multiprocessor
    static constexpr int TOGETHER = 2;          // a thread has few registers to spare
    static constexpr int THREADS = TX * TY;
    static constexpr int RM = BM / TY, RN = BN / TX, RV = DIM / (4 * TX);
    static constexpr int QP = DC + 4, KP = DC + 4, VP = DIM, WP = BN + 8;
    static constexpr int SLOT = larger(BM * QP + BN * KP, JC * VP);

    // as the planner counts them; 768 for the group's work
    static constexpr int BYTES = 4 * (BM * WP + 2 * SLOT + 2 * larger(BM, BN) + BN) + 768;
};

// What a step visits. One thread writes it down, while the group is at the step before.
struct back_step {
    attn_score score;
    attn_rows q_rows, o_rows;    // of q and dO
    int first, lo, n;            // rows first + lo .. first + n - 1, the others count as 0
    int i0, j0;                  // the first query and key of the tile
    int queries, keys;           // and how many there are
    int masked;                  // not every pair is within its range
    int h, last;                 // last: of its head
};

template <typename T> struct shared {
    float slot[2][T::SLOT];
    float weight[T::BM * T::WP];                      // weights, or gradients of scores
    float lse[larger(T::BM, T::BN)];                  // of the queries of a tile
    float delta[larger(T::BM, T::BN)];
    int mark[T::BN];                                  // the last step that saw a visited row

    // the group's work
    attn_sequence seq;
    attn_range range;            // of what it visits
    attn_rows k_rows, v_rows;
    int64_t b;
    int owner, first, owned;     // its head, and the rows that it owns
    back_step step[2];           // in turn
};

// Rows of q or dO, and of k or v: what a group owns and visits for a product. `values`: of
// dO and V, else of Q and K.
template <typename T, int CAN, int HEIGHT>
DEVICE void stage_queries(const attn_kparams &p, const back_step &at, float *to, int lo, int d,
                          bool values)
{
    const bool wide = values ? has<CAN>(p, WIDE_GRADS) : has<CAN>(p, WIDE_Q);

    stage<HEIGHT, T::DC, T::QP, T::THREADS, CAN, T::TOGETHER>(
        p, to, values ? p.grad_o : p.q, values ? at.o_rows : at.q_rows, at.i0, lo, at.queries,
        d, values ? p.dv : p.d, wide, false);
}

template <typename T, int CAN, int HEIGHT>
DEVICE void stage_keys(const attn_kparams &p, const shared<T> &mem, const back_step &at,
                       float *to, int lo, int d, bool values)
{
    const bool wide = values ? has<CAN>(p, WIDE_V) : has<CAN>(p, WIDE_K);

    stage<HEIGHT, T::DC, T::QP, T::THREADS, CAN, T::TOGETHER>(
        p, to, values ? p.v : p.k, values ? mem.v_rows : mem.k_rows, at.j0, lo, at.keys, d,
        values ? p.dv : p.d, wide, false);
}

// A chunk of depth of both, the owned rows first.
template <typename T, int CAN, bool KEYS>
DEVICE void stage_depth(const attn_kparams &p, const shared<T> &mem, const back_step &at,
                        float *slot, int d, bool values)
{
    static_assert(T::QP == T::KP, "one pitch");
    float *const visited = slot + T::BM * T::QP;

    if (KEYS) {
        stage_keys<T, CAN, T::BM>(p, mem, at, slot, 0, d, values);
        stage_queries<T, CAN, T::BN>(p, at, visited, at.lo, d, values);
    } else {
        stage_queries<T, CAN, T::BM>(p, at, slot, 0, d, values);
        stage_keys<T, CAN, T::BN>(p, mem, at, visited, at.lo, d, values);
    }
}

// A chunk of whole rows that are visited, from row x of the step on: of dO, or of Q or K.
template <typename T, int CAN, bool KEYS>
DEVICE void stage_rows(const attn_kparams &p, const shared<T> &mem, const back_step &at,
                       float *slot, int x, bool values)
{
    const bool wide = values ? has<CAN>(p, WIDE_GRADS)
                             : KEYS ? has<CAN>(p, WIDE_Q) : has<CAN>(p, WIDE_K);

    stage<T::JC, DIM, T::VP, T::THREADS, CAN, T::TOGETHER>(
        p, slot, values ? p.grad_o : KEYS ? p.q : p.k,
        values ? at.o_rows : KEYS ? at.q_rows : mem.k_rows, at.first + x, at.lo - x, at.n - x,
        0, values ? p.dv : p.d, wide, false);
}

// s += <owned row, visited row>, of a chunk of depth that has arrived.
template <typename T>
DEVICE void add_depth(float (&s)[T::RM][T::RN], const place<T> &my, const float *slot, int d,
                      int depth)
{
    add_scores<T>(s, slot + my.ty * T::QP, slot + T::BM * T::QP + my.tx * T::KP,
                  min(T::DC, (depth - d + 7) / 8 * 8));
}

// What the queries of a tile bring along: their LSE and delta, by all threads. Behind the
// last one there is no weight.
template <typename T, int CAN, bool KEYS>
DEVICE void take_queries(const attn_kparams &p, shared<T> &mem, const back_step &at)
{
    constexpr int N = KEYS ? T::BN : T::BM;
    const int lo = KEYS ? at.lo : 0;

    for (int x = threadIdx.x; x < N; x += T::THREADS) {
        const bool there = x >= lo && x < at.queries;
        const int i = at.i0 + x;

        mem.lse[x] = there ? back_lse<CAN>(p, mem.seq, mem.b, at.h, i) : INFINITE;
        mem.delta[x] = there && (!KEYS || p.has & HAS_GRAD_K)    // else there may be none
                           ? p.work[back_delta_at(p, mem.b, at.h, i)] : 0.0f;
    }
}

// Scores become weights, in the thread's own slots of mem.weight. `s` stays as it is: the
// softcap's slope wants it.
template <typename T, int CAN, bool KEYS>
DEVICE void find_weights(const attn_kparams &p, const place<T> &my, shared<T> &mem,
                         const back_step &at, float (&s)[T::RM][T::RN])
{
    float *const w = mem.weight + my.ty * T::WP + my.tx;

    if (has<CAN>(p, FEAT_SOFTCAP | FEAT_TERMS)) {
        const attn_score score = at.score;

        #pragma unroll
        for (int r = 0; r < T::RM; r++) {
            #pragma unroll
            for (int c = 0; c < T::RN; c++)
                w[r * T::TY * T::WP + c * T::TX] = s[r][c];
        }
        #pragma unroll 1
        for (int e = 0; e < T::RM * T::RN; e++) {
            const int own = my.ty + e / T::RN * T::TY, visited = my.tx + e % T::RN * T::TX;
            const int i = KEYS ? visited : own, j = at.j0 + (KEYS ? own : visited);
            float &x = mem.weight[own * T::WP + visited];
            float value = score_value<CAN>(p, x);

            if (has<CAN>(p, FEAT_TERMS))
                value = score_add(value, score_term<CAN>(p, score, i, j));
            x = back_weight(score_masked(score, i, j, value), mem.lse[i]);
        }
        return;
    }
    #pragma unroll
    for (int c = 0; c < T::RN; c++) {
        #pragma unroll
        for (int r = 0; r < T::RM; r++) {
            const int own = my.ty + r * T::TY, visited = my.tx + c * T::TX;
            const int i = KEYS ? visited : own, j = at.j0 + (KEYS ? own : visited);
            float value = s[r][c] * p.scale;

            if (at.masked)
                value = score_masked(at.score, i, j, value);
            w[r * T::TY * T::WP + c * T::TX] = back_weight(value, mem.lse[i]);
        }
    }
}

// Which of the thread's pairs dropout keeps: bit r * RN + c. Without dropout, all.
template <typename T, int CAN, bool KEYS>
DEVICE uint32_t find_kept(const attn_kparams &p, const place<T> &my, const shared<T> &mem,
                          const back_step &at)
{
    const uint32_t head = (uint32_t)(mem.b * p.heads_q + at.h);
    uint32_t kept = 0;

    if (!has<CAN>(p, FEAT_DROPOUT))
        return ~0u;
    static_assert(!(CAN & FEAT_DROPOUT) || T::RM * T::RN <= 32, "a bit for each pair");
    #pragma unroll 1
    for (int e = 0; e < T::RM * T::RN; e++) {
        const int own = my.ty + e / T::RN * T::TY, visited = my.tx + e % T::RN * T::TX;
        const int i = KEYS ? visited : own, j = at.j0 + (KEYS ? own : visited);

        kept |= (uint32_t)dropout_keeps(p, head, at.i0 + i, j) << e;
    }
    return kept;
}

// Drops the thread's own weights.
template <typename T>
DEVICE void drop_weights(const attn_kparams &p, const place<T> &my, shared<T> &mem,
                         uint32_t kept)
{
    #pragma unroll
    for (int e = 0; e < T::RM * T::RN; e++)
        mem.weight[(my.ty + e / T::RN * T::TY) * T::WP + my.tx + e % T::RN * T::TX] *=
            kept >> (e & 31) & 1 ? p.drop_factor : 0.0f;
}

// dp = <dO, v> becomes the gradient of the score, with CAPPED of the score before the cap.
// Where a weight is 0, the gradient is, whatever dp holds. Rows that have a weight get the
// mark `now`.
template <typename T, int CAN, bool KEYS, bool CAPPED>
DEVICE void find_gradients(const attn_kparams &p, const place<T> &my, shared<T> &mem,
                           const float (&s)[T::RM][T::RN], float (&dp)[T::RM][T::RN],
                           uint32_t kept)
{
    #pragma unroll
    for (int c = 0; c < T::RN; c++) {
        #pragma unroll
        for (int r = 0; r < T::RM; r++) {
            const int own = my.ty + r * T::TY, visited = my.tx + c * T::TX;
            const float w = mem.weight[own * T::WP + visited];
            const bool keeps = kept >> ((r * T::RN + c) & 31) & 1;

            if (has<CAN>(p, FEAT_DROPOUT))
                dp[r][c] = keeps ? dp[r][c] * p.drop_factor : 0.0f;

            float ds = w * (dp[r][c] - mem.delta[KEYS ? visited : own]);

            if (CAPPED && has<CAN>(p, FEAT_SOFTCAP))
                ds *= score_slope(p, s[r][c]);
            dp[r][c] = w != 0.0f ? ds : 0.0f;
        }
    }
}

// Marks the visited rows of which a weight of this thread is not 0.
template <typename T>
DEVICE void mark_rows(const place<T> &my, shared<T> &mem, int now)
{
    #pragma unroll
    for (int c = 0; c < T::RN; c++) {
        bool any = false;

        #pragma unroll
        for (int r = 0; r < T::RM; r++)
            any |= mem.weight[(my.ty + r * T::TY) * T::WP + my.tx + c * T::TX] != 0.0f;
        if (any)
            mem.mark[my.tx + c * T::TX] = now;
    }
}

// The thread's numbers to the tile of pairs in shared memory.
template <typename T>
DEVICE void put_pairs(const place<T> &my, shared<T> &mem, const float (&x)[T::RM][T::RN])
{
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        #pragma unroll
        for (int c = 0; c < T::RN; c++)
            mem.weight[(my.ty + r * T::TY) * T::WP + my.tx + c * T::TX] = x[r][c];
    }
}
