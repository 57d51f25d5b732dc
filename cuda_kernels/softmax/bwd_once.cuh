// SPDX-License-Identifier: MIT
// softmax/bwd_once.cuh: the tile of bwd_tile_once.cu: its numbers, what lies in shared memory,
// and the products on it. DIM is the image's.
//
// Rows lie in chunks of four numbers, exchanged by xor with the row's number modulo 8, so that
// neither a row nor a column of chunks is in few banks. Threads stand as stage.cuh says: thread
// (tx, ty) has owned rows (keys) ty + r * TY, visited ones (queries) tx + c * TX, and of sums
// chunks tx + g * TX of its keys' rows; of dQ of a step chunks tx + g * TX of the rows of
// queries 4 (ty + i * TY) .. + 3.
#pragma once
#include "softmax/bwd_steps.cuh"
#include "softmax/bwd_store.cuh"

template <int BM_, int BN_> struct once {
    static constexpr int BM = BM_, BN = BN_;    // keys of a group, queries of a step
    static constexpr int TX = 16, TY = 16, THREADS = TX * TY;
    static constexpr int RM = BM / TY, RN = BN / TX, RV = DIM / (4 * TX), RQ = BN / (4 * TY);
    static constexpr bool K = true;             // takes tickets (bwd_steps.cuh)
    static constexpr int CHUNKS = DIM / 4, PAIRS = BN / 4;    // of a row, of a row of pairs

    // as the planner counts them; 1024 for the group's work
    static constexpr int BYTES = 4 * (2 * BM * DIM + 2 * BN * DIM + BM * BN + 2 * BN) + 1024;
};

template <typename T> struct shared {
    float4 k[T::BM * T::CHUNKS], v[T::BM * T::CHUNKS];
    float4 q[T::BN * T::CHUNKS], o[T::BN * T::CHUNKS];
    float4 pairs[T::BM * T::PAIRS];           // weights, then gradients of scores: [key][query]
    float lse[T::BN], delta[T::BN];
    mma_step step[4];                         // in turn
    back_group group;
};

// Where chunk c of row r lies, of so many.
template <int CHUNKS> DEVICE int place_of(int r, int c)
{
    return r * CHUNKS + (c ^ (r & 7));
}

// Brings rows j .. j + HEIGHT - 1 of a view; those outside of the range become 0 and are not
// read, nor columns from `depth` on.
template <typename T, int HEIGHT, int CAN>
DEVICE void fetch_rows(const attn_kparams &p, float4 *to, const void *x, const attn_rows &rows,
                       int j, const attn_range &range, int depth, bool wide)
{
    const float *const from = (const float *)x;

    #pragma unroll 2
    for (int e = device_thread(); e < HEIGHT * T::CHUNKS; e += T::THREADS) {
        const int r = e / T::CHUNKS, c = e % T::CHUNKS, row = j + r;
        const bool inside = row >= range.first && row < range.end;
        const int64_t at = address_row<CAN>(p, rows, inside ? row : max(range.first, 0));
        float *const chunk = (float *)(to + place_of<T::CHUNKS>(r, c));

        if (wide) {
            device_copy<16>(chunk, from + at + 4 * c, inside && 4 * c < depth);
            continue;
        }
        #pragma unroll 1
        for (int k = 0; k < 4; k++)
            device_copy<4>(chunk + k, from + at + (4 * c + k) * rows.stride_d,
                           inside && 4 * c + k < depth);
    }
}

// s[key][query] += own rows times visited rows, `chunks` of them.
template <typename T>
DEVICE void add_pairs(float (&s)[T::RM][T::RN], const float4 *own, const float4 *visited,
                      int chunks)
{
    const place<T> my = find_place_anew<T>();
    const float4 *const a_at = own + my.ty * T::CHUNKS, *const b_at = visited + my.tx * T::CHUNKS;
    const int a_x = my.ty & 7, b_x = my.tx & 7;

    #pragma unroll 2
    for (int x = 0; x < chunks; x++) {
        float4 a[T::RM];

        #pragma unroll
        for (int r = 0; r < T::RM; r++)
            a[r] = a_at[r * T::TY * T::CHUNKS + (x ^ a_x)];
        #pragma unroll
        for (int c = 0; c < T::RN; c++) {
            const float4 b = b_at[c * T::TX * T::CHUNKS + (x ^ b_x)];

            #pragma unroll
            for (int r = 0; r < T::RM; r++) {
                s[r][c] += a[r].x * b.x;
                s[r][c] += a[r].y * b.y;
                s[r][c] += a[r].z * b.z;
                s[r][c] += a[r].w * b.w;
            }
        }
    }
}

// sums += pairs times visited rows.
template <typename T>
DEVICE void add_sums(float4 (&sum)[T::RM][T::RV], const float4 *pairs, const float4 *visited)
{
    const place<T> my = find_place_anew<T>();
    const float4 *const a_at = pairs + my.ty * T::PAIRS;
    const int a_x = my.ty & 7;

    const auto add_four = [&](int x, int half) {    // visited rows 4 x .. + 3
        float4 a[T::RM];

        #pragma unroll
        for (int r = 0; r < T::RM; r++)
            a[r] = a_at[r * T::TY * T::PAIRS + (x ^ a_x)];
        #pragma unroll
        for (int g = 0; g < T::RV; g++) {
            float4 b[4];

            #pragma unroll
            for (int y = 0; y < 4; y++)
                b[y] = visited[place_of<T::CHUNKS>(4 * half + y, my.tx) + g * T::TX];
            #pragma unroll
            for (int r = 0; r < T::RM; r++) {
                add_scaled(sum[r][g], a[r].x, b[0]);
                add_scaled(sum[r][g], a[r].y, b[1]);
                add_scaled(sum[r][g], a[r].z, b[2]);
                add_scaled(sum[r][g], a[r].w, b[3]);
            }
        }
    };

    #pragma unroll 1
    for (int x = 0; x < T::PAIRS; x += 2, visited += 8 * T::CHUNKS) {
        add_four(x, 0);
        add_four(x + 1, 1);
    }
}

// dQ of a step, from all keys of the group, to the sums.
template <typename T> DEVICE void add_queries(const shared<T> &mem, const mma_step &at)
{
    const place<T> my = find_place_anew<T>();
    float4 dq[T::RQ][4][T::RV] = {};

    #pragma unroll 1
    for (int j = 0; j < T::BM; j += 8) {
        const float4 *const k = mem.k + j * T::CHUNKS, *const pairs = mem.pairs + j * T::PAIRS;

        #pragma unroll
        for (int y = 0; y < 8; y++) {
            float4 b[T::RV];

            #pragma unroll
            for (int g = 0; g < T::RV; g++)
                b[g] = k[place_of<T::CHUNKS>(y, my.tx) + g * T::TX];
            #pragma unroll
            for (int i = 0; i < T::RQ; i++) {
                const float4 a = pairs[place_of<T::PAIRS>(y, my.ty) + i * T::TY];

                #pragma unroll
                for (int g = 0; g < T::RV; g++) {
                    add_scaled(dq[i][0][g], a.x, b[g]);
                    add_scaled(dq[i][1][g], a.y, b[g]);
                    add_scaled(dq[i][2][g], a.z, b[g]);
                    add_scaled(dq[i][3][g], a.w, b[g]);
                }
            }
        }
    }

    const int pitch = mem.group.work.pitch;

    #pragma unroll
    for (int i = 0; i < T::RQ * 4; i++) {
        const int query = 4 * (my.ty + i / 4 * T::TY) + i % 4;
        float *const to = mem.group.work.sums + (at.row + query) * pitch;

        #pragma unroll
        for (int g = 0; g < T::RV; g++) {
            const int c = 4 * (my.tx + g * T::TX);
            const float4 x = dq[i / 4][i % 4][g];

            if (query >= at.lo && query < at.n && c < pitch) {
                device_add_pair(to + c, x.x, x.y);
                device_add_pair(to + c + 2, x.z, x.w);
            }
        }
    }
}

// Scores become weights; out of range they are 0.
template <typename T>
DEVICE void find_weights(const attn_kparams &p, const shared<T> &mem, const mma_step &at,
                         float (&s)[T::RM][T::RN])
{
    const place<T> my = find_place_anew<T>();

    #pragma unroll
    for (int c = 0; c < T::RN; c++) {
        const float lse = mem.lse[my.tx + c * T::TX];

        #pragma unroll
        for (int r = 0; r < T::RM; r++)
            s[r][c] = back_weight(s[r][c] * p.scale, lse);
    }
    if (!at.masked)
        return;
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        const int64_t j = mem.group.first + my.ty + r * T::TY;
        const int first = (int)max(j - at.end + 1, (int64_t)at.lo);
        const int end = j < mem.group.seq.keys ? (int)min(j - at.first + 1, (int64_t)at.n) : 0;

        #pragma unroll
        for (int c = 0; c < T::RN; c++) {
            const int query = my.tx + c * T::TX;

            s[r][c] = query >= first && query < end ? s[r][c] : 0.0f;
        }
    }
}

// dP becomes the gradients of the scores. Where a weight is 0 they are, whatever dP holds.
template <typename T> DEVICE void find_gradients(const shared<T> &mem, float (&dp)[T::RM][T::RN])
{
    const place<T> my = find_place_anew<T>();

    #pragma unroll
    for (int c = 0; c < T::RN; c++) {
        const int query = my.tx + c * T::TX;
        const float delta = mem.delta[query];

        #pragma unroll
        for (int r = 0; r < T::RM; r++) {
            const int key = my.ty + r * T::TY;
            const float w = ((const float *)(mem.pairs + place_of<T::PAIRS>(key, query / 4)))
                [query % 4];

            dp[r][c] = w == 0.0f ? 0.0f : w * (dp[r][c] - delta);
        }
    }
}

// The thread's numbers to the tile of pairs.
template <typename T> DEVICE void put_pairs(shared<T> &mem, const float (&x)[T::RM][T::RN])
{
    const place<T> my = find_place_anew<T>();

    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        #pragma unroll
        for (int c = 0; c < T::RN; c++) {
            const int query = my.tx + c * T::TX;
            float4 *const at =
                mem.pairs + place_of<T::PAIRS>(my.ty + r * T::TY, query / 4);

            ((float *)at)[query % 4] = x[r][c];
        }
    }
}
