// SPDX-License-Identifier: MIT
// softmax/split_write.cuh: what fwd_split_mma.cu writes: the states of its pieces, or of the only
// one O and the LSE. TYPE and DIM are the image's.
//
// A shape T: as split_state.cuh has it.
#pragma once
#include "softmax/split.cuh"
#include "softmax/split_state.cuh"

// Row r of the group's in the workspace.
template <typename T>
DEVICE int64_t work_row(const attn_kparams &p, const split_work<T> &work, int r)
{
    return (int64_t)work.pair * p.round_queries * work.group + work.row + r;
}

// The states of one of the group's pieces, a warp its columns.
template <typename T>
DEVICE void write_states(const attn_kparams &p, const split_work<T> &work,
                         const rows_state<T> &my, int piece)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, at = work.first / p.piece + piece;
    const int columns = p.want_o ? work_pitch(p) : 0;

    #pragma unroll
    for (int half = 0; half < T::HALVES; half++)
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const int r = half * 8 + lane % 4 * 2 + i;
            const attn_row row = my.row[half][i];
            float *const sum = work_sum(p, work_row(p, work, r), at);

            if (r >= work.rows)
                continue;
            if (warp == 0 && lane < 4)
                *(float2 *)work_state(p, work_row(p, work, r), at) =
                    make_float2(row.m, unlifted<TYPE>(row.l));
            #pragma unroll
            for (int n = 0; n < T::PANELS; n++)
                #pragma unroll
                for (int e = i; e < 4; e += 2) {
                    const int d = (warp * T::PANELS + n) * 16 + e / 2 * 8 + lane / 4;

                    if (d < columns)
                        sum[d] = unlifted<TYPE>(my.o[half][n][e]);
                }
        }
}

// The states of the group's pieces that nobody sees, before the first and behind the last that
// was written: of those the merge reads no sums.
template <typename T>
DEVICE void write_nothing(const attn_kparams &p, const split_work<T> &work, int last)
{
    const int first = work.any.first < work.any.end ? (work.any.first - work.first) / p.piece : 0;
    const int at = work.first / p.piece, pieces = min(p.share / p.piece, p.pieces - at);

    if ((int)threadIdx.x >= work.rows)
        return;
    #pragma unroll 1
    for (int i = 0; i < pieces; i++)
        if (i < first || i > last)
            *(float2 *)work_state(p, work_row(p, work, threadIdx.x), at + i) =
                make_float2(-INFINITE, 0.0f);
}

// O and the LSE, as fwd_split_merge.cu makes them of one piece.
template <typename T, int CAN>
DEVICE void write_rows(const attn_kparams &p, const split_work<T> &work, const rows_state<T> &my)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    #pragma unroll
    for (int half = 0; half < T::HALVES; half++)
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const int r = half * 8 + lane % 4 * 2 + i;
            const int h = head_of(p, work, r), query = query_of(p, work, r);
            attn_row row = my.row[half][i];

            if (r >= work.rows)
                continue;
            row.l = unlifted<TYPE>(row.l);

            const float factor = state_finish_sink(&row, state_sink<CAN>(p, h));
            const attn_rows rows = ADDRESS_QUERIES(p, o, work.seq, work.b, h);
            const int64_t to = address_row<CAN & ~FEAT_PAGES>(p, rows, query);

            if (has<CAN>(p, FEAT_LSE) && p.want_lse && warp == 0 && lane < 4)
                p.lse[address_lse<CAN>(p, work.seq, work.b, h, query)] = state_lse(row);
            #pragma unroll
            for (int n = 0; n < T::PANELS; n++)
                #pragma unroll
                for (int e = i; e < 4; e += 2) {
                    const int d = (warp * T::PANELS + n) * 16 + e / 2 * 8 + lane / 4;

                    // no -0: whether one takes in an empty state is not to be seen
                    if (p.want_o && d < p.dv)
                        elem_store<TYPE>(p.o, to + d * rows.stride_d,
                                         (unlifted<TYPE>(my.o[half][n][e]) + 0.0f) * factor);
                }
        }
}
