// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_tile_bring.cuh: the warpgroup of bwd_wgmma_tiles.cu that brings tiles: copies
// them, takes phi of them, tells those who read them.
#pragma once
#include "linear/bwd_wgmma_tiles.cuh"
#include "linear/phi16.cuh"

enum phi_kind { PHI_NONE, PHI_RELU, PHI_ELU1 };

// phi of eight numbers, times a factor, rounded once.
template <phi_kind PHI> DEVICE void map_piece(float4 &x, float factor)
{
    float *const word = &x.x;

    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t u = __float_as_uint(word[i]);
        const float low = number_of(u, 0), high = number_of(u, 1);

        word[i] = __uint_as_float(
            PHI == PHI_NONE
                ? device_pair<TYPE_BF16>(low * factor, high * factor)
                : device_pair<TYPE_BF16>(phi_rounded<PHI == PHI_ELU1>(low) * factor,
                                         phi_rounded<PHI == PHI_ELU1>(high) * factor));
    }
}

// By the warpgroup that brings: a thread has 16 bytes of each row, of every STEP-th row. COUNT
// tiles, of which the third is of K (KEYS), else of V, and a fourth is the other. Of the chunks
// that are on their way the oldest but LAG is waited for.
template <bool BACK, bool KEYS, int COUNT, int STAGES, int LAG, class MEM> struct bringer {
    static constexpr int ACROSS = DIM / 8, STEP = 128 / ACROSS, ROWS = CHUNK / STEP;
    static constexpr int AT_ONCE = 32 / ACROSS;    // rows of a warp
    const attn_linear_kparams &p;
    const chunk_work &w;
    MEM &mem;

    static __device__ __forceinline__ int row() { return (int)threadIdx.x % 128 / ACROSS; }
    static __device__ __forceinline__ int column() { return (int)threadIdx.x % ACROSS * 8; }

    // This thread's place in a tile; rows STEP on are STEP * 8 pieces on.
    __device__ __forceinline__ float4 *place(int stage, int n) const
    {
        return mem.at[stage][n][column() / 64] + row() * 8 + (column() / 8 % 8 ^ (row() & 7));
    }

    template <int N> __device__ __forceinline__ int width() const
    {
        return is_mapped<BACK, KEYS, N>() ? p.d : p.dv;
    }

    template <int N> __device__ __forceinline__ void copy(int stage, int j) const
    {
        if constexpr (N < COUNT) {
            const tensor_rows all = tile_rows<BACK, KEYS, N>(p, w);
            const int rows = column() < width<N>() ? all.rows - j - row() : 0;
            const char *from = all.from + (int64_t)(j + row()) * all.bytes + column() * 2;
            float4 *const to = place(stage, N);

            #pragma unroll
            for (int i = 0; i < ROWS; i++, from += STEP * all.bytes)
                device_copy_part(to + i * STEP * 8, from, i * STEP < rows ? 16 : 0);
        }
    }

    template <int N>
    __device__ __forceinline__ void map(int stage, int j, float factor = 1.0f) const
    {
        if constexpr (N < COUNT && is_mapped<BACK, KEYS, N>()) {
            constexpr bool DIVIDES = BACK && N == 0;
            const int rows = column() < p.d ? tile_rows<BACK, KEYS, N>(p, w).rows - j - row() : 0;
            float4 *const to = place(stage, N);

            if (DIVIDES && linear_has(p, LINEAR_NORMALIZE)) {
                if (linear_has(p, LINEAR_ELU1))
                    map_rows<PHI_ELU1, DIVIDES>(rows, to, factor);
                else if (linear_has(p, LINEAR_RELU))
                    map_rows<PHI_RELU, DIVIDES>(rows, to, factor);
                else
                    map_rows<PHI_NONE, DIVIDES>(rows, to, factor);
            } else if (linear_has(p, LINEAR_ELU1)) {
                map_rows<PHI_ELU1, false>(rows, to, factor);
            } else if (linear_has(p, LINEAR_RELU)) {
                map_rows<PHI_RELU, false>(rows, to, factor);
            }
        }
    }

    // phi of rows, some at a time without branches between; those of queries over what the
    // normaliser is, rounded once. `own`: of 16 rows of the warp's, a lane each.
    template <phi_kind PHI, bool DIVIDES>
    __device__ __forceinline__ void map_rows(int rows, float4 *to, float own) const
    {
        constexpr int TOGETHER = 4;
        const int lane = threadIdx.x % 32;

        #pragma unroll 1
        for (int from = 0; from < ROWS; from += TOGETHER) {
            float4 x[TOGETHER];

            #pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                x[i] = to[(from + i) * STEP * 8];
            #pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                map_piece<PHI>(x[i], DIVIDES ? __shfl_sync(0xffffffffu, own,
                                                           (from + i) * AT_ONCE + lane / ACROSS)
                                             : 1.0f);
            #pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                if ((from + i) * STEP < rows)
                    to[(from + i) * STEP * 8] = x[i];
        }
    }

    // What divides the queries of the chunk from token j on: of 16 rows of the warp's, a lane each.
    __device__ __forceinline__ float find_factor(int j) const
    {
        const int lane = threadIdx.x % 32, l = j + row() - lane / ACROSS + lane % AT_ONCE +
                                               lane % 16 / AT_ONCE * STEP;

        return BACK && linear_has(p, LINEAR_NORMALIZE) && l >= w.first && l < w.end
                   ? numbers_of<false>(p, w)[l]
                   : 0.0f;
    }

    // The queries that phi' of dQ is taken of, into the second cache.
    __device__ __forceinline__ void fetch_slopes(int j) const
    {
        constexpr int LINES = DIM / 64;
        const tensor_rows all = queries_at(p, w, 0);
        const int row = j + (int)threadIdx.x % 128 / LINES;

        if (!BACK && COUNT > 2 && p.grad_q && linear_has(p, LINEAR_ELU1 | LINEAR_RELU) &&
            row < min(all.rows, j + CHUNK) && (int)threadIdx.x % LINES * 64 < p.d)
            device_fetch(all.from + row * all.bytes + (int)threadIdx.x % LINES * 128);
    }

    // Numbers of the chunk's queries.
    __device__ __forceinline__ void copy_numbers(int stage, int j) const
    {
        const int i = threadIdx.x % CHUNK;
        const bool there = j + i < p.len_q;

        if (!linear_has(p, LINEAR_NORMALIZE))
            return;
        if (threadIdx.x < CHUNK)
            device_copy<4>(mem.c[stage] + i, numbers_of<true>(p, w) + (there ? j + i : 0), there);
        else if constexpr (!BACK && COUNT > 2)
            device_copy<4>(mem.factors[stage] + i, numbers_of<false>(p, w) + (there ? j + i : 0),
                           there);
    }

    __device__ __forceinline__ void run(bool turned) const
    {
        const int chunks = chunks_of(w);
        const auto first_of = [&](int n) {
            return w.first + (turned ? chunks - 1 - n : n) * CHUNK;
        };
        ring<STAGES> to, ready;
        float factor = find_factor(first_of(0));

        #pragma unroll 1
        for (int n = 0; n < chunks + LAG; n++) {
            if (n >= LAG) {
                device_copied<LAG - 1>();
                if (linear_has(p, LINEAR_ELU1 | LINEAR_RELU | LINEAR_NORMALIZE)) {
                    const int j = first_of(n - LAG);
                    const float now = factor;

                    factor = find_factor(first_of(n - LAG + 1));    // a chunk ahead
                    map<0>(ready.stage, j, now);
                    map<1>(ready.stage, j);
                    map<2>(ready.stage, j);
                    map<3>(ready.stage, j);
                }
                arrive_written(&mem.full[ready.stage]);
                ready.move_on();
            }
            if (n < chunks) {
                const int j = first_of(n);

                device_barrier_wait(&mem.empty[to.stage], to.parity ^ 1);
                copy<0>(to.stage, j);
                copy<1>(to.stage, j);
                copy<2>(to.stage, j);
                copy<3>(to.stage, j);
                copy_numbers(to.stage, j);
                fetch_slopes(j);
                to.move_on();
            }
            device_commit();
        }
    }
};
