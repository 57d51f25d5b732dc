// SPDX-License-Identifier: MIT
// linear/wgmma_state.cuh: the state of fwd_wgmma.cu as it comes in, grows and goes out.
#pragma once
#include "linear/wgmma_relay.cuh"
#include "linear/wgmma_walk.cuh"

// Calls with pairs of numbers of the state, their row, and the first one's column in the tensor,
// where there is such a pair: 4 divides Dv.
template <class STATE, class CALL>
DEVICE void each_pair(const attn_linear_kparams &p, const chunk_work &w, STATE &my,
                      const CALL &call)
{
    const own_place at;

    #pragma unroll
    for (int i = 0; i < PANELS * NT * 2; i++) {
        const int panel = i / (NT * 2), n = i / 2 % NT, half = i % 2;
        const int row = panel * 64 + column_at(at.row + half * 8);
        const int column = w.column + at.column + n * 8;

        if (row < p.d && column < p.dv)
            call(my.s[panel][n][half * 2], my.s[panel][n][half * 2 + 1], row, column);
    }
}

DEVICE bool has_z(const attn_linear_kparams &p)
{
    return linear_has(p, LINEAR_NORMALIZE) && thread_of_group() < p.d;
}

// S += K^T V of chunk n, and z.
template <int STAGES, class MEM>
DEVICE void add_chunk(const attn_linear_kparams &p, int n, MEM &mem, group_state &my)
{
    const int stage = n % STAGES, t = thread_of_group();

    device_barrier_wait(&mem.full[stage], n / STAGES & 1);
    if (linear_has(p, LINEAR_NORMALIZE) && t < DIM)
        my.z += mem.sums[stage][0][t] + mem.sums[stage][1][t] +
                (mem.sums[stage][2][t] + mem.sums[stage][3][t]);
    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        float more[NT][4];

        begin_state(mem.k[stage], mem.v[stage], panel, more);
        device_products_wait<0>();
        device_products_hold(more);
        #pragma unroll
        for (int i = 0; i < NT * 4; i++)
            my.s[panel][i / 4][i % 4] += more[i / 4][i % 4];
    }
    device_barrier_arrive(&mem.empty[stage]);
}

// S and z as they come out.
DEVICE void put_state_out(const attn_linear_kparams &p, const chunk_work &w,
                          const group_state &my)
{
    if (!writes_state(p, w))
        return;
    if (p.want_state)
        each_pair(p, w, my, [&](float x, float y, int row, int column) {
            float *const to = p.state_out + LINEAR_AT(p, state_out, w.b, w.kvh, (int64_t)row,
                                                      (int64_t)column);

            to[0] = x;
            to[p.state_out_stride_d] = y;
        });
    if (writes_z<group_state>(p, w, 0) && has_z(p))
        p.z_out[LINEAR_AT(p, z_out, w.b, w.kvh, (int64_t)thread_of_group(), 0)] = my.z;
}

