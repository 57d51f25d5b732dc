// SPDX-License-Identifier: MIT
// softmax/bwd_mma_work.cuh: what bwd_mma_begin.cu, bwd_mma.cu and bwd_mma_finish.cu leave
// each other in the workspace. With a row for each query of each head and batch, [B, Hq, Lq]:
//
//   delta [rows]  lse [rows]    as bwd.cuh; in units of log2, natural where single scores
//                               are looked at (softcap, terms)
//   size [rows]                 the length of a row of dO as a vector; of f16
//   sums [rows][pitch]          dQ, but for the scale; pitch: D rounded up to 8, or of
//                               SUMS_BY_COPY the larger of D and Dv to the kernel's DIM,
//                               there in blocks, below
//   flags [B Hq][ceil(Lq / 32)] how many groups have added to the sums of a tile of queries
//   ticket                      how many groups have begun
//
// in f32 and int, sums from the next multiple of 16 bytes on. src/plan/cuda/backward_cores.c
// counts the same bytes.
#pragma once
#include "softmax/bwd.cuh"

// SUMS_BY_COPY: the copy engine adds tiles of SUMS_ROWS queries, the last of a sequence may have
// fewer, in blocks of SUMS_BLOCK columns, the last likewise: the rows of a block lie one behind
// the other, the blocks of a tile too. Chunks of eight columns are exchanged by xor with the
// query's number modulo 8. The first to come writes them; a tile whose flag is still 0 has none.
#ifdef SUMS_BY_COPY
constexpr bool BY_COPY = true;
#else
constexpr bool BY_COPY = false;
#endif
constexpr int FLAG_ROWS = 32;    // of a flag; tiles are a multiple of it
constexpr int SUMS_ROWS = 64, SUMS_BLOCK = 128;

// Where column d of a block of the copy engine's lies in its row of query i.
DEVICE int back_sum_place(int i, int d)
{
    return (d & ~63) | ((d ^ i << 3) & 56) | (d & 7);
}

struct back_work {
    float *lse, *size, *sums;
    int *flags, *ticket;
    int pitch, head_flags;    // floats of a row of sums; flags of a head
};

DEVICE back_work find_back_work(const attn_kparams &p)
{
    const int64_t heads = (int64_t)p.batch * p.heads_q, rows = heads * p.len_q;
    back_work w;

    const int columns = BY_COPY ? max(p.d, p.dv) : p.d;
    const int unit = !BY_COPY ? 8 : columns <= SUMS_BLOCK ? 64 : 256;

    w.pitch = ceil_div(columns, unit) * unit;
    w.head_flags = ceil_div(p.len_q, FLAG_ROWS);
    w.lse = p.work + rows;
    w.size = w.lse + rows;
    w.sums = p.work + (3 * rows + 3) / 4 * 4;
    w.flags = (int *)(w.sums + rows * w.pitch);
    w.ticket = w.flags + heads * w.head_flags;
    return w;
}

// Where column d of the sums of query i, of so many, lies from the first query's on.
DEVICE int64_t back_sum_at(const back_work &work, int queries, int i, int d)
{
    if (!BY_COPY)
        return (int64_t)i * work.pitch + d;

    const int tile = i / SUMS_ROWS * SUMS_ROWS, block = d / SUMS_BLOCK * SUMS_BLOCK;
    const int rows = min(queries - tile, SUMS_ROWS), width = min(work.pitch - block, SUMS_BLOCK);

    return (int64_t)tile * work.pitch + block * rows + (i - tile) * width +
           back_sum_place(i, d - block);
}
