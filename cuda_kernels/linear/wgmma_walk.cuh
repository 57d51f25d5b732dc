// SPDX-License-Identifier: MIT
// linear/wgmma_walk.cuh: what the warpgroups of fwd_wgmma.cu do with a chunk.
//
// Results, and Q in registers, lie as wgmma has them: of its 16 rows a lane has rows lane / 4
// (elements 0 and 1) and that + 8 (2 and 3), columns 8 n + 2 (lane % 4) and the next in tile n.
#pragma once
#include "linear/wgmma.cuh"

// A thread's part of a chunk's rows of SPAN elements: four of each row, of every STEP-th row.
template <int SPAN> struct rows_of_chunk {
    static constexpr int EACH = SPAN / 4, STEP = 128 / EACH, COUNT = CHUNK / STEP;
    float4 x[COUNT];

    static __device__ __forceinline__ int row() { return (int)threadIdx.x % 128 / EACH; }
    static __device__ __forceinline__ int column() { return (int)threadIdx.x % EACH * 4; }

    // From the thread's place in the chunk; zeros past `rows`, or unless its column is `inside`.
    __device__ __forceinline__ void fetch(const float *from, int64_t stride, int rows, bool inside)
    {
        if (rows >= CHUNK && inside) {
            #pragma unroll
            for (int i = 0; i < COUNT; i++, from += STEP * stride)
                x[i] = *(const float4 *)from;
            return;
        }
        #pragma unroll
        for (int i = 0; i < COUNT; i++, from += STEP * stride) {
            x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (row() + i * STEP < rows && inside)
                x[i] = *(const float4 *)from;
        }
    }

    // To the tiles, `panels` of each part.
    __device__ __forceinline__ void put(float4 *tiles, int panels) const
    {
        const int c = column() / 4;
        char *const to = (char *)(tiles + c / 16 * TILE);

        #pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int r = row() + i * STEP;
            char *const at = to + r * 128 + ((c / 2 & 7) ^ (r & 7)) * 16 + c % 2 * 8;
            uint2 part[PARTS];

            split(x[i].x, x[i].y, part[0].x, part[1].x, part[2].x);
            split(x[i].z, x[i].w, part[0].y, part[1].y, part[2].y);
            #pragma unroll
            for (int n = 0; n < PARTS; n++)
                *(uint2 *)(at + n * panels * TILE * 16) = part[n];
        }
    }
};

DEVICE float4 phi_of_four(const attn_linear_kparams &p, float4 x)
{
    return make_float4(linear_phi(p, x.x), linear_phi(p, x.y), linear_phi(p, x.z),
                       linear_phi(p, x.w));
}

// The sums of a warp's rows of K.
DEVICE void sum_rows(const rows_of_chunk<DIM> &k, float *sums)
{
    float4 all = k.x[0];

    #pragma unroll
    for (int i = 1; i < k.COUNT; i++) {
        all.x += k.x[i].x, all.y += k.x[i].y;
        all.z += k.x[i].z, all.w += k.x[i].w;
    }
    if (DIM == 64) {    // a warp has two rows at a time
        all.x += __shfl_xor_sync(0xffffffffu, all.x, 16);
        all.y += __shfl_xor_sync(0xffffffffu, all.y, 16);
        all.z += __shfl_xor_sync(0xffffffffu, all.z, 16);
        all.w += __shfl_xor_sync(0xffffffffu, all.w, 16);
    }
    if (threadIdx.x % 32 < DIM / 4)
        *(float4 *)(sums + k.column()) = all;
}

DEVICE int chunks_of(const chunk_work &w) { return ceil_div(w.end - w.first, CHUNK); }

// By the warpgroup that brings: K and V of the next DEPTH chunks are on their way while those of
// a chunk are taken apart.
template <int STAGES, int DEPTH, class MEM>
DEVICE void bring_chunks(const attn_linear_kparams &p, const chunk_work &w, MEM &mem)
{
    const int chunks = chunks_of(w);
    rows_of_chunk<DIM> k[DEPTH];
    rows_of_chunk<COLUMNS> v[DEPTH];
    const bool in_k = k->column() < p.d, in_v = w.column + v->column() < p.dv;
    const float *from_k = (const float *)p.k + LINEAR_AT(p, k, w.b, w.kvh, (int64_t)w.first +
                          k->row(), 0) + k->column();
    const float *from_v = (const float *)p.v + LINEAR_AT(p, v, w.b, w.kvh, (int64_t)w.first +
                          v->row(), 0) + w.column + v->column();
    int rows = min(w.keys, w.end) - w.first, coming = rows;    // from the chunk on; from the next

    const auto fetch_k = [&](int i) {
        k[i].fetch(from_k, p.k_stride_l, coming, in_k);
        from_k += CHUNK * p.k_stride_l;
    };
    const auto fetch_v = [&](int i) {
        v[i].fetch(from_v, p.v_stride_l, coming, in_v);
        from_v += CHUNK * p.v_stride_l;
        coming -= CHUNK;
    };

    #pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        fetch_k(i);
        fetch_v(i);
    }
    #pragma unroll 1
    for (int from = 0; from < chunks; from += DEPTH)
        #pragma unroll
        for (int i = 0; i < DEPTH; i++, rows -= CHUNK) {
            const int n = from + i, stage = n % STAGES;

            if (i && n >= chunks)
                break;
            if (linear_has(p, LINEAR_ELU1 | LINEAR_RELU))
                #pragma unroll
                for (int r = 0; r < k->COUNT; r++)
                    if (in_k && k->row() + r * k->STEP < rows)
                        k[i].x[r] = phi_of_four(p, k[i].x[r]);
            device_barrier_wait(&mem.empty[stage], (n / STAGES & 1) ^ 1);
            if (linear_has(p, LINEAR_NORMALIZE))
                sum_rows(k[i], mem.sums[stage][threadIdx.x / 32]);
            k[i].put(mem.k[stage][0][0], PANELS);
            fetch_k(i);
            device_forget();
            v[i].put(mem.v[stage][0], 1);
            arrive_written(&mem.full[stage]);
            fetch_v(i);
        }
}

// Of a warpgroup; z by its first DIM threads.
struct group_state {
    float s[PANELS][NT][4], z;
};

DEVICE int thread_of_group() { return (int)threadIdx.x % 128; }

// The first row and column that a thread has in a tile of 64 rows, found anew.
struct own_place {
    int row, column;

    __device__ __forceinline__ own_place()
    {
        const int thread = device_thread();

        row = thread % 128 / 32 * 16 + thread % 32 / 4;
        column = thread % 4 * 2;
    }
};

// Calls with each number of the state, its row, and its column in the tensor, where there is
// such a one.
template <class STATE, class CALL>
DEVICE void each_of_state(const attn_linear_kparams &p, const chunk_work &w, STATE &my,
                          const CALL &call)
{
    const own_place at;

    #pragma unroll
    for (int i = 0; i < PANELS * NT * 4; i++) {
        const int panel = i / (NT * 4), n = i / 4 % NT, e = i % 4;
        const int row = panel * 64 + at.row + e / 2 * 8;
        const int column = w.column + at.column + n * 8 + e % 2;

        if (row < p.d && column < p.dv)
            call(my.s[panel][n][e], row, column);
    }
}

DEVICE bool has_z(const attn_linear_kparams &p)
{
    return linear_has(p, LINEAR_NORMALIZE) && thread_of_group() < p.d;
}

DEVICE void add_slot(const attn_linear_kparams &p, const chunk_work &w, const float *slot,
                     group_state &my)
{
    each_of_state(p, w, my, [&](float &x, int row, int column) {
        x += slot[(int64_t)row * p.dv + column];
    });
    if (has_z(p))
        my.z += slot[(int64_t)p.d * p.dv + thread_of_group()];
}

DEVICE void store_slot(const attn_linear_kparams &p, const chunk_work &w, float *slot,
                       const group_state &my)
{
    each_of_state(p, w, my, [&](float x, int row, int column) {
        slot[(int64_t)row * p.dv + column] = x;
    });
    if (has_z(p) && w.column == 0)
        slot[(int64_t)p.d * p.dv + thread_of_group()] = my.z;
}

// S and z as they come out.
DEVICE void put_state_out(const attn_linear_kparams &p, const chunk_work &w,
                          const group_state &my)
{
    if (!writes_state(p, w))
        return;
    if (p.want_state)
        each_of_state(p, w, my, [&](float x, int row, int column) {
            p.state_out[LINEAR_AT(p, state_out, w.b, w.kvh, (int64_t)row, (int64_t)column)] = x;
        });
    if (p.want_z && has_z(p) && w.column == 0)
        p.z_out[LINEAR_AT(p, z_out, w.b, w.kvh, (int64_t)thread_of_group(), 0)] = my.z;
}

// The state, for the warpgroups with queries: rows along the depth.
DEVICE void share_state(const group_state &my, panels &s, float *z)
{
    const own_place mine;
    char *const first = (char *)s[0][0] + mine.row * 128 + mine.column * 2;

    #pragma unroll
    for (int i = 0; i < PANELS * NT * 2; i++) {
        const int panel = i / (NT * 2), n = i / 2 % NT, half = i % 2;
        char *const at = first + (panel * 64 + half * 8) * 128 + (n ^ (mine.row & 7)) * 16;
        uint32_t part[PARTS];

        split(my.s[panel][n][half * 2], my.s[panel][n][half * 2 + 1], part[0], part[1], part[2]);
        #pragma unroll
        for (int x = 0; x < PARTS; x++)
            *(uint32_t *)(at + x * PANELS * TILE * 16) = part[x];
    }
    if (thread_of_group() < DIM)
        z[thread_of_group()] = my.z;
}

// S += K^T V of chunk n, and z.
template <int STAGES, class MEM>
DEVICE void add_chunk(const attn_linear_kparams &p, int n, MEM &mem, group_state &my)
{
    const int stage = n % STAGES, t = thread_of_group();
    float more[PANELS][NT][4];

    device_barrier_wait(&mem.full[stage], n / STAGES & 1);
    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        begin_state(mem.k[stage], mem.v[stage], panel, more[panel]);
    if (linear_has(p, LINEAR_NORMALIZE) && t < DIM)
        my.z += mem.sums[stage][0][t] + mem.sums[stage][1][t] +
                (mem.sums[stage][2][t] + mem.sums[stage][3][t]);
    device_products_wait<0>();
    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        device_products_hold(more[panel]);
        #pragma unroll
        for (int i = 0; i < NT * 4; i++)
            my.s[panel][i / 4][i % 4] += more[panel][i / 4][i % 4];
    }
    arrive(&mem.empty[stage]);
}

DEVICE void load_two(const float *from, float *x)
{
    const float2 y = *(const float2 *)from;

    x[0] = y.x;
    x[1] = y.y;
}

// The warpgroup's queries of the chunk that begins with token j; zeros past the tensor.
DEVICE void fetch_queries(const attn_linear_kparams &p, const chunk_work &w, int j,
                          float (&x)[DIM / 8][4])
{
    const own_place at;
    const float *const from = (const float *)p.q +
                              LINEAR_AT(p, q, w.b, w.h, (int64_t)j + at.row, 0) + at.column;
    const bool whole = j + CHUNK <= w.end && p.d == DIM;

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const float *const row = from + half * 8 * p.q_stride_l;

        if (whole)
            #pragma unroll
            for (int n = 0; n < DIM / 8; n++)
                load_two(row + n * 8, &x[n][half * 2]);
        else
            #pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                x[n][half * 2] = x[n][half * 2 + 1] = 0.0f;
                if (j + at.row + half * 8 < w.end && at.column + n * 8 < p.d)
                    load_two(row + n * 8, &x[n][half * 2]);
            }
    }
}

// phi of them; and of a row with huge numbers what it is to be multiplied by, so that no sum
// overflows, which is done here; else 1.
DEVICE void take_queries(const attn_linear_kparams &p, int j, float (&x)[DIM / 8][4],
                         float (&down)[2])
{
    const own_place at;
    uint32_t top[2] = { 0, 0 };

    if (linear_has(p, LINEAR_ELU1 | LINEAR_RELU))
        #pragma unroll
        for (int i = 0; i < DIM / 8 * 4; i++)
            x[i / 4][i % 4] = at.column + i / 4 * 8 < p.d ? linear_phi(p, x[i / 4][i % 4]) : 0.0f;
    #pragma unroll
    for (int i = 0; i < DIM / 8 * 4; i++)
        top[i % 4 / 2] = max(top[i % 4 / 2], __float_as_uint(x[i / 4][i % 4]) & 0x7fffffffu);
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = max(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
        top[half] = max(top[half], __shfl_xor_sync(0xffffffffu, top[half], 2));
        down[half] = top[half] >= 0x50000000u ? power_of_2(-HUGE_ROW) : 1.0f;    // 2^33
    }
    #pragma unroll
    for (int i = 0; i < DIM / 8 * 4; i++)
        x[i / 4][i % 4] *= down[i % 4 / 2];
}

// den += q z, of a lane's columns.
DEVICE void add_products(const float (&q)[DIM / 8][4], const float *z, float (&den)[2])
{
    z += own_place().column;
    #pragma unroll
    for (int i = 0; i < DIM / 8 * 4; i++)
        den[i % 4 / 2] += q[i / 4][i % 4] * z[i / 4 * 8 + i % 2];
}

// P = tril(Q K^T); den += its rows, of a lane's columns.
DEVICE void mask_pairs(float (&pairs)[CHUNK / 8][4], float (&den)[2])
{
    const own_place at;
    const int before = at.row - at.column;

    #pragma unroll
    for (int i = 0; i < CHUNK / 8 * 4; i++) {
        float &x = pairs[i / 4][i % 4];

        x = i / 4 * 8 + i % 2 - i % 4 / 2 * 8 <= before ? x : 0.0f;
        den[i % 4 / 2] += x;
    }
}

// The warpgroup's rows of O, the sum of both, and den, of the chunk that begins with token j.
DEVICE void write_rows(const attn_linear_kparams &p, const chunk_work &w, int j,
                       const float (&down)[2], const float (&dens)[2], const float (&read)[NT][4],
                       const float (&seen)[NT][4])
{
    const own_place at;
    float *const to = (float *)p.o + LINEAR_AT(p, o, w.b, w.h, (int64_t)j + at.row, 0) +
                      w.column + at.column;
    const bool whole = j + CHUNK <= w.end && w.column + COLUMNS <= p.dv;

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = j + at.row + half * 8;
        float factor = p.scale;

        if (linear_has(p, LINEAR_NORMALIZE)) {
            float den = dens[half];

            den += __shfl_xor_sync(0xffffffffu, den, 1);
            den += __shfl_xor_sync(0xffffffffu, den, 2);
            den = p.scale * den + p.eps * down[half];
            if (p.want_den && w.column + at.column == 0 && row < p.len_q)
                p.den[LINEAR_AT(p, den, w.b, w.h, (int64_t)row, 0)] = den / down[half];
            factor = den == 0.0f ? 0.0f : factor / den;
        } else {
            factor *= down[half] == 1.0f ? 1.0f : power_of_2(HUGE_ROW);
        }
        if (!p.want_o || row >= w.end)
            continue;
        #pragma unroll
        for (int n = 0; n < NT; n++)
            if (whole || w.column + at.column + n * 8 < p.dv)
                *(float2 *)(to + half * 8 * p.o_stride_l + n * 8) =
                    make_float2((read[n][half * 2] + seen[n][half * 2]) * factor,
                                (read[n][half * 2 + 1] + seen[n][half * 2 + 1]) * factor);
    }
}
