// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_bring.cuh: how chunks of B and X come to the tiles of linear_bwd_wgmma: through
// registers, where they are taken apart.
#pragma once
#include "linear/bwd_wgmma_numbers.cuh"

// Bytes from a head's rows of B and X to the next head's.
DEVICE int64_t next_b(const attn_linear_kparams &p, scan which)
{
    return (which == GRAD_K ? p.grad_o_stride_h : p.q_stride_h) * (16 / EACH);
}

DEVICE int64_t next_x(const attn_linear_kparams &p, scan which)
{
    return (which == GRAD_K ? p.q_stride_h : p.grad_o_stride_h) * (16 / EACH);
}

// By a warpgroup that brings every EVERY-th step, of a chunk and a head each, from `first` on: B
// and X of the next DEPTH of them are on their way while those of one are taken apart.
template <scan WHICH, bool GROUPED, bool BACK, int STAGES, int DEPTH, int EVERY, class MEM>
DEVICE void bring_scan(const attn_linear_kparams &p, const chunk_work &w, MEM &mem, int first)
{
    constexpr int ON = BACK ? -CHUNK : CHUNK;
    const int heads = heads_of<GROUPED>(p), steps = chunks_of(w) * heads;
    const bool maps = MAPS && linear_has(p, LINEAR_ELU1 | LINEAR_RELU);
    rows_of_chunk<TYPE, DIM> b[DEPTH];
    rows_of_chunk<TYPE, COLUMNS> x[DEPTH];
    const bool in_b = b->column() < inner_of(p, WHICH);
    const bool in_x = w.column + x->column() < width_of(p, WHICH);
    int j = chunk_at<BACK>(w, first / heads), g = first % heads;    // of the step
    int coming = j, head = g;               // of the next that is asked for
    typedef rows_of_chunk<TYPE, WHICH == GRAD_V ? DIM : COLUMNS> scaled;    // of queries, or keys
    own_numbers<scaled> numbers[DEPTH];
    const char *from_b = b_of<WHICH>(p, w, g).from + b->column() * (16 / EACH) +
                         ((int64_t)j + b->row()) * b_of<WHICH>(p, w, 0).bytes;
    const char *from_x = x_of<WHICH>(p, w, g).from + (w.column + x->column()) * (16 / EACH) +
                         ((int64_t)j + x->row()) * x_of<WHICH>(p, w, 0).bytes;

    const auto move_on = [&](int &j, int &g) {
        #pragma unroll
        for (int i = 0; i < EVERY; i++) {
            g = g + 1 < heads ? g + 1 : 0;
            j += g ? 0 : ON;
        }
    };
    const auto bytes_on = [&](int64_t row, int64_t next) {    // to the next that is asked for
        int j = coming, g = head;

        move_on(j, g);
        return (j - coming) * row + (g - head) * next;
    };
    const auto fetch_b = [&](int i) {
        const tensor_rows all = b_of<WHICH>(p, w, 0);

        b[i].fetch(from_b, all.bytes, coming < w.first ? 0 : all.rows - coming, in_b);
        from_b += bytes_on(all.bytes, next_b(p, WHICH));
    };
    const auto fetch_x = [&](int i) {
        const tensor_rows all = x_of<WHICH>(p, w, 0);

        x[i].fetch(from_x, all.bytes, coming < w.first ? 0 : all.rows - coming, in_x);
        if (NORMALIZES)
            numbers[i].fetch(p, w, w.h + head, coming);
        from_x += bytes_on(all.bytes, next_x(p, WHICH));
        move_on(coming, head);
    };

    if (NORMALIZES)
        device_wait_before();    // for numbers
    #pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        fetch_b(i);
        fetch_x(i);
    }
    #pragma unroll 1
    for (int from = first; from < steps; from += DEPTH * EVERY)
        #pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            const int n = from + i * EVERY, stage = n % STAGES;

            if (i && n >= steps)
                break;
            if (WHICH == GRAD_V && maps)
                #pragma unroll
                for (int r = 0; r < b->COUNT; r++)
                    if (in_b && b->row() + r * b->STEP < w.end - j)
                        phi_of(p, b[i].x[r]);
            if constexpr (NORMALIZES && WHICH == GRAD_V)
                numbers[i].divide(b[i]);
            device_barrier_wait(&mem.empty[stage], (n / STAGES & 1) ^ 1);
            if constexpr (NORMALIZES) {
                numbers[i].share(mem.of, stage);
                if constexpr (WHICH == GRAD_V)
                    numbers[i].template sum<true>(b[i],
                                                  mem.of.sums[stage][threadIdx.x % 128 / 32]);
            }
            b[i].template put<true, true>(mem.b[stage][0][0], PANELS);
            device_forget();
            fetch_b(i);
            device_forget();
            if (WHICH != GRAD_V && maps)
                #pragma unroll
                for (int r = 0; r < x->COUNT; r++)
                    if (in_x && x->row() + r * x->STEP <
                                    (WHICH == GRAD_Q ? keys_of(w) : w.end) - j)
                        phi_of(p, x[i].x[r]);
            if constexpr (NORMALIZES && WHICH != GRAD_V) {
                if (WHICH == GRAD_K)
                    numbers[i].divide(x[i]);
                numbers[i].template sum<WHICH == GRAD_K>(
                    x[i], mem.of.sums[stage][threadIdx.x % 128 / 32]);
            }
            x[i].template put<true, true>(mem.x[stage][0], 1);
            arrive_written(&mem.full[stage]);
            fetch_x(i);
            move_on(j, g);
        }
}
