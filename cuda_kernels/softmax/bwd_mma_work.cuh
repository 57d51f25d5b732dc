// SPDX-License-Identifier: MIT
// softmax/bwd_mma_work.cuh: what bwd_mma_begin.cu, bwd_mma.cu and bwd_mma_finish.cu leave
// each other in the workspace. With a row for each query of each head and batch, [B, Hq, Lq]:
//
//   delta [rows]  lse [rows]    as bwd.cuh; in units of log2
//   size [rows]                 the length of a row of dO as a vector; of f16
//   sums [rows][pitch]          dQ, but for the scale; pitch: D, or of SUMS_BY_COPY
//                               the larger of D and Dv, rounded up to SUMS_COLUMNS
//   flags [B Hq][ceil(Lq / 32)] how many groups have added to the sums of a tile of queries
//   ticket                      how many groups have begun
//
// in f32 and int, sums from the next multiple of 16 bytes on. src/plan/cuda/backward_cores.c
// counts the same bytes.
#pragma once
#include "softmax/bwd.cuh"

// SUMS_BY_COPY: the copy engine adds whole tiles of SUMS_ROWS queries, whose chunks of eight
// columns are exchanged by xor with the query's number modulo 8. The first to come writes them;
// a tile whose flag is still 0 has no sums.
#ifdef SUMS_BY_COPY
constexpr bool BY_COPY = true;
#else
constexpr bool BY_COPY = false;
#endif
constexpr int FLAG_ROWS = 32;    // of a flag; tiles are a multiple of it
constexpr int SUMS_ROWS = 64, SUMS_COLUMNS = BY_COPY ? 64 : 8;

// Where column d of the sums of query i lies in its row.
DEVICE int back_sum_at(int i, int d)
{
    return BY_COPY ? (d & ~63) | (d ^ i << 3) & 56 | d & 7 : d;
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

    w.pitch = ceil_div(BY_COPY ? max(p.d, p.dv) : p.d, SUMS_COLUMNS) * SUMS_COLUMNS;
    w.head_flags = ceil_div(p.len_q, FLAG_ROWS);
    w.lse = p.work + rows;
    w.size = w.lse + rows;
    w.sums = p.work + (3 * rows + 3) / 4 * 4;
    w.flags = (int *)(w.sums + rows * w.pitch);
    w.ticket = w.flags + heads * w.head_flags;
    return w;
}
