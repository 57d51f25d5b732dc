// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_tile_bring.cuh: the warpgroup of bwd_wgmma_tiles.cu that brings tiles: copies
// them, tells those who read them.
#pragma once
#include "linear/bwd_wgmma_tiles.cuh"

// By the warpgroup that brings: a thread has 16 bytes of each row, of every STEP-th row. COUNT
// tiles, of which the third is of K (KEYS), else of V, and a fourth is the other. Of the chunks
// that are on their way the oldest but LAG is waited for.
template <bool BACK, bool KEYS, int COUNT, int STAGES, int LAG, class MEM> struct bringer {
    static constexpr int ACROSS = DIM / 8, STEP = 128 / ACROSS, ROWS = CHUNK / STEP;
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

    // What phi' of dQ or dK is taken of, into the second cache.
    __device__ __forceinline__ void fetch_slopes(int j) const
    {
        constexpr int LINES = DIM / 64;
        const tensor_rows all = BACK ? slopes_of<GRAD_K>(p, w) : slopes_of<GRAD_Q>(p, w);
        const int row = j + (int)threadIdx.x % 128 / LINES;
        const bool wanted = COUNT > 2 && (BACK ? p.has & LHAS_GRAD_K : p.grad_q != nullptr);

        if (wanted && linear_has(p, LINEAR_ELU1 | LINEAR_RELU) &&
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

        #pragma unroll 1
        for (int n = 0; n < chunks + LAG; n++) {
            if (n >= LAG) {
                device_copied<LAG - 1>();
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
