// SPDX-License-Identifier: MIT
// softmax/bwd_mma.cuh: the tile of bwd_mma.cu: its numbers, what lies in shared memory, and
// the products on it. TYPE and DIM are the image's; D and Dv are padded up to DIM.
//
// A warp owns 16 keys. In the registers of mma a lane has, of a product with them, keys
// lane / 4 and that + 8 ("half" 0 and 1), and of each eight columns 2 (lane % 4) and the
// next. S^T and dP^T have queries as columns, so that P^T and dS^T are the first operand of
// dV and dK where they are.
#pragma once
#include "softmax/mma_products16.cuh"
#include "softmax/bwd_mma_work.cuh"

// K, V: whether this instance has sums of dK (and dQ), of dV.
template <int WARPS_, int BN_, int BLOCKS_, bool K_, bool V_> struct back {
    static constexpr int WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int BLOCKS = BLOCKS_;             // groups on a multiprocessor
    static constexpr int BM = 16 * WARPS, BN = BN_;    // keys of a group, queries of a step
    static constexpr bool K = K_, V = V_;
    // gradients of scores are lifted to where f16 has most bits
    static constexpr bool LIFTS = K && TYPE == TYPE_F16;
    static constexpr bool STAYS = DIM == 64;           // the warp's K and V in registers
    static constexpr int NT = BN / 8, DT = DIM / 8, KT = DIM / 16;

    // dQ of a step: warps along the queries, 32 of them for each, columns of a warp, and
    // eights of them at a time
    static constexpr int QW = BN / 32, DQ = DIM / (WARPS / QW), QT = DQ < 32 ? DQ / 8 : 4;

    // as the planner counts them; 1024 for the group's work
    static constexpr int BYTES =
        2 * (2 * BM * DIM + 4 * BN * DIM + BM * BN) + 24 * BN + 1024;
};

// What a step visits: queries i0 + lo .. i0 + n - 1, the others of the tile count as 0. One
// thread writes it down, two steps ahead.
struct mma_step {
    int i0, lo, n, h;
    int first, end;         // query x of the tile sees keys j with first <= j - x < end
    int before;             // how many groups add to the sums of dQ before this one
    bool masked, there;     // not every pair is within its range; there is such a step
    int64_t row;            // of query i0 in the workspace
    int *flag;              // that counts those groups
};

// Rows of Q and dO of one head.
struct mma_head {
    attn_rows q_rows, o_rows;
};

template <typename T> struct back_shared {
    float4 k[T::BM * CHUNKS_K], v[T::BM * CHUNKS_K];
    float4 q[2][T::BN * CHUNKS_K], o[2][T::BN * CHUNKS_K];    // of two steps: Q and dO
    float4 ds[T::BM * T::BN / 8];                             // [key][query]
    float lse[2][T::BN], delta[2][T::BN], size[2][T::BN];

    // the group's work
    attn_sequence seq;
    attn_range range;       // queries that see one of its keys
    back_work work;
    float largest[T::WARPS];    // length of a row of V, of each warp's keys
    int64_t b;
    int64_t left, right;    // query i sees key j when i + left <= j < i + right
    int owner, tile, first, owned;
    mma_step step[4];       // in turn
    mma_head head[2];       // likewise
};

template <typename T> using back_pairs = float[T::NT][4];
template <typename T> using back_sums = float[T::DT][4];
template <typename T> using back_operand = uint32_t[T::NT / 2][4];

// Whether one of 16 keys sees one of the step's queries.
DEVICE bool sees(const mma_step &at, int key, int keys)
{
    return key < keys && key + 15 - at.lo >= at.first && key - at.n + 1 < at.end;
}

// s = <own rows, rows>, both of shared memory; `stays`: the own ones as they were loaded
// before, if T::STAYS.
template <typename T>
DEVICE void find_pairs(back_pairs<T> &s, const float4 *own,
                       const uint32_t (&stays)[T::STAYS ? T::KT : 1][4], const float4 *rows)
{
    const int lane = threadIdx.x % 32;
    const device_shared own_at = address_of_queries(own);
    const device_shared rows_at =
        address_of<CHUNKS_K>(rows, lane % 8 + lane / 16 * 8, lane / 8 % 2);

    #pragma unroll
    for (int i = 0; i < T::NT * 4; i++)
        s[i / 4][i % 4] = 0.0f;
    #pragma unroll
    for (int x = 0; x < T::KT; x++) {
        uint32_t a[4];

        if (!T::STAYS)
            load_queries(a, own_at, 0, x);
        #pragma unroll
        for (int i = 0; i < 4 && T::STAYS; i++)
            a[i] = stays[T::STAYS ? x : 0][i];
        #pragma unroll
        for (int t = 0; t < T::NT; t += 2) {
            uint32_t b[4];

            device_matrices(b, moved<CHUNKS_K>(rows_at, t * 8, 2 * x));
            device_multiply<TYPE>(s[t], a, b[0], b[1]);
            device_multiply<TYPE>(s[t + 1], a, b[2], b[3]);
        }
    }
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

// sums += pairs times the rows of a step.
template <typename T>
DEVICE void add_products(back_sums<T> &sums, const back_operand<T> &w, const float4 *rows)
{
    const int lane = threadIdx.x % 32;
    const device_shared rows_at = address_of<CHUNKS_K>(rows, lane % 16, lane / 16);

    #pragma unroll
    for (int t = 0; t < T::NT / 2; t++) {
        #pragma unroll
        for (int n = 0; n < T::DT; n += 2) {
            uint32_t b[4];

            device_matrices_turned(b, moved<CHUNKS_K>(rows_at, t * 16, n));
            device_multiply<TYPE>(sums[n], w[t], b[0], b[1]);
            device_multiply<TYPE>(sums[n + 1], w[t], b[2], b[3]);
        }
    }
}

// The length of the longest of the warp's rows of V, rounded up a little; for all lanes.
template <typename T> DEVICE float find_largest(const float4 *v)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 2;
    float sum = 0.0f;

    #pragma unroll 1
    for (int c = lane % 2; c < CHUNKS_K; c += 2) {
        const float4 eight = v[place_of<CHUNKS_K>(row, c)];
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
    for (int mask = 2; mask < 32; mask *= 2)
        sum = fmaxf(sum, __shfl_xor_sync(0xffffffffu, sum, mask));
    return sqrtf(sum) * 1.001f;
}

// The power of 2 that brings gradients of the scores of a step up to 2^15, for
// |dS_ij| <= |dO_i| |v_j| + |delta_i|; the same for all threads of the group.
template <typename T>
DEVICE float find_lift(const float *size, const float *delta, const float *largest)
{
    const int lane = threadIdx.x % 32;
    float v = largest[0], most = 0.0f;

    #pragma unroll
    for (int i = 1; i < T::WARPS; i++)
        v = fmaxf(v, largest[i]);
    for (int x = lane; x < T::BN; x += 32)
        most = fmaxf(most, size[x] * v + fabsf(delta[x]));
    for (int mask = 1; mask < 32; mask *= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));

    // most < 2^(exponent - 126)
    const int exponent = (int)(__float_as_uint(most) >> 23);

    return __uint_as_float((uint32_t)clamp(127 + 15 + 126 - exponent, 8, 127 + 60) << 23);
}

// dS^T of the warp's keys to shared memory.
template <typename T> DEVICE void put_gradients(const back_operand<T> &w, float4 *ds)
{
    const int lane = threadIdx.x % 32, key = threadIdx.x / 32 * 16 + lane / 4;

    #pragma unroll
    for (int i = 0; i < T::NT * 2; i++) {
        const int t = i / 4 * 2 + i / 2 % 2, half = i % 2;
        float4 *const at = ds + place_of<T::BN / 8>(key + half * 8, t);

        ((uint32_t *)at)[lane % 4] = w[i / 4][i % 4];
    }
}

// Adds this step's part of dQ to the sums of its queries, times a factor: 32 queries and
// T::DQ columns by each warp, 8 T::QT of them at a time. ds is there for all; `key` is its
// first, of `keys`.
template <typename T>
DEVICE void add_queries(const mma_step &at, const back_work &work, const float4 *ds,
                        const float4 *k, int key, int keys, float factor)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int x0 = warp % T::QW * 32;
    const device_shared ds_at =
        address_of<T::BN / 8>(ds, lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const device_shared k_at = address_of<CHUNKS_K>(k, lane % 16, lane / 16);

    #pragma unroll 1
    for (int pass = 0; pass < T::DQ; pass += 8 * T::QT) {
        const int c0 = warp / T::QW * T::DQ + pass;
        float sum[2][T::QT][4];

        const auto add = [&](int j) {
            uint32_t a[2][4];

            #pragma unroll
            for (int mt = 0; mt < 2; mt++)
                device_matrices_turned(a[mt], moved<T::BN / 8>(ds_at, j, x0 / 8 + 2 * mt));
            #pragma unroll
            for (int n = 0; n < T::QT; n += 2) {
                uint32_t b[4];

                device_matrices_turned(b, moved<CHUNKS_K>(k_at, j, c0 / 8 + n));
                #pragma unroll
                for (int mt = 0; mt < 2; mt++) {
                    device_multiply<TYPE>(sum[mt][n], a[mt], b[0], b[1]);
                    device_multiply<TYPE>(sum[mt][n + 1], a[mt], b[2], b[3]);
                }
            }
        };

        #pragma unroll
        for (int i = 0; i < 2 * T::QT * 4; i++)
            sum[i / 4 / T::QT][i / 4 % T::QT][i % 4] = 0.0f;
        if (at.masked) {
            #pragma unroll 1
            for (int j = 0; j < T::BM; j += 16)
                if (sees(at, key + j, keys))
                    add(j);
        } else {
            #pragma unroll
            for (int j = 0; j < T::BM; j += 16)
                add(j);
        }
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int mt = i / 2, half = i % 2, x = x0 + mt * 16 + half * 8 + lane / 4;
            float *const to = work.sums + (at.row + x) * work.pitch;

            #pragma unroll
            for (int n = 0; n < T::QT; n++) {
                const int c = c0 + n * 8 + lane % 4 * 2;

                if (x >= at.lo && x < at.n && c < work.pitch)
                    device_add_pair(to + c, sum[mt][n][half * 2] * factor,
                                    sum[mt][n][half * 2 + 1] * factor);
            }
        }
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

// dK or dV of the warp's keys, times a factor.
template <typename T, int CAN>
DEVICE void store_keys(const attn_kparams &p, const back_sums<T> &sums, void *out,
                       const attn_rows &rows, int first, int owned, int depth, float factor)
{
    const int lane = threadIdx.x % 32, x0 = threadIdx.x / 32 * 16 + lane / 4;

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
