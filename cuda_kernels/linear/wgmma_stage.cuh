// SPDX-License-Identifier: MIT
// linear/wgmma_stage.cuh: how chunks of K and V come to the tiles of fwd_wgmma.cu: copied to shared
// memory as they are, UNITS units of 64 columns at a time, and taken apart from there by the
// threads that have copied them, so that registers hold none that are on their way.
#pragma once
#include "linear/wgmma_bring.cuh"

constexpr int UNIT = CHUNK * 64 / EACH;    // 16 bytes each
constexpr int BRINGERS = 1, KEEPER = 2;    // barriers by number

// A thread's part of a unit of SPAN columns: 16 bytes of every STEP-th row.
template <int SPAN> struct part_of_unit {
    static constexpr int ACROSS = SPAN / EACH, STEP = BRINGING / ACROSS, COUNT = CHUNK / STEP;

    // HALVES: a warp has the same rows whatever the columns.
    static __device__ __forceinline__ int row()
    {
        const int thread = threadIdx.x;

        return HALVES && ACROSS == 8 ? thread / 32 * 2 + thread / 8 % 2 + thread / 16 % 2 * 16
                                     : thread / ACROSS;
    }
    static __device__ __forceinline__ int column() { return (int)threadIdx.x % ACROSS * EACH; }
};

// Where the unit's rows begin, bytes from row to row, whether the thread's columns are there.
struct unit_source {
    const char *from;
    int64_t bytes;
    bool inside;
};

// Asks for those below `rows`; the others become 0 and are not read.
template <int SPAN> DEVICE void ask_unit(const unit_source &x, int rows, float4 *unit)
{
    typedef part_of_unit<SPAN> part;
    const char *from = x.from;

    if (DIM == 64 && rows >= CHUNK && x.inside) {    // at D 128 it made nothing faster
        #pragma unroll
        for (int i = 0; i < part::COUNT; i++, from += part::STEP * x.bytes)
            device_copy<16>((float *)(unit + i * BRINGING + threadIdx.x), from, true);
        return;
    }
    #pragma unroll
    for (int i = 0; i < part::COUNT; i++) {
        const bool there = x.inside && part::row() + i * part::STEP < rows;

        device_copy<16>((float *)(unit + i * BRINGING + threadIdx.x), from, there);
        from += there ? part::STEP * x.bytes : 0;
    }
}

// phi of those rows, `step` apart, that are below `rows`.
template <int N>
DEVICE void take_phi(const attn_linear_kparams &p, int rows, int step, float4 (&x)[N])
{
    float y[N][EACH];

    #pragma unroll
    for (int i = 0; i < N; i++)
        unpack(x[i], y[i]);
    phi_of(p, y);
    #pragma unroll
    for (int i = 0; i < N; i++)
        if (i * step < rows)
            x[i] = pack_row(y[i]);
}

// The sums of a warp's rows, of the threads' own.
template <int SPAN> DEVICE void sum_warp(float (&all)[EACH], float *sums)
{
    typedef part_of_unit<SPAN> part;

    if constexpr (part::ACROSS < 32)    // a warp has some rows at a time
        #pragma unroll
        for (int apart = part::ACROSS; apart < 32; apart *= 2)
            #pragma unroll
            for (int n = 0; n < EACH; n++)
                all[n] += __shfl_xor_sync(0xffffffffu, all[n], apart);
    if (threadIdx.x % 32 < part::ACROSS)
        #pragma unroll
        for (int n = 0; n < EACH; n++)
            sums[part::column() + n] = all[n];
}

// A thread's numbers of row r to the tiles of each part.
template <int SPAN, bool KEYS>
DEVICE void put_apart(const float4 &x, int r, float4 *tiles, int panels)
{
    const int c = part_of_unit<SPAN>::column();
    uint32_t word[PARTS][EACH / 2];

    rows_of_chunk<TYPE, SPAN>::take_apart(x, word);
    #pragma unroll
    for (int n = 0; n < PARTS; n++) {
        char *const at = (char *)(tiles + n * panels * TILE) + r * 128;
        const uint32_t *const y = word[n];

        #pragma unroll
        for (int half = 0; half < (KEYS ? 2 : 1); half++) {
            const int chunk = KEYS ? c / 16 * 2 + half : c / 8;
            char *const to = at + (chunk ^ (r & 7)) * 16 + (KEYS ? c % 16 : c * 2 % 16);

            if (KEYS && EACH == 4)
                *(uint32_t *)to = y[half];
            else if (KEYS)
                *(uint2 *)to = make_uint2(y[half], y[(2 + half) % (EACH / 2)]);
            else if (EACH == 4)
                *(uint2 *)to = make_uint2(y[0], y[1]);
            else
                *(float4 *)to = four_words(y[0], y[1], y[2 % (EACH / 2)], y[3 % (EACH / 2)]);
        }
    }
}

DEVICE void multiply(float4 &x, float by) { x.x *= by, x.y *= by, x.z *= by, x.w *= by; }

// A chunk that has come as units, the panels of K from `slot` on and V, to tiles of sums of two
// of f16: rows of K brought to those, rows of V to that of the chunk (chunk_scales). Of K phi,
// columns and sums as take_unit() has them. A warp has the same rows of both.
template <int UNITS>
DEVICE void take_chunk(const attn_linear_kparams &p, const float4 (*units)[UNIT], int slot,
                       int rows, keys &k, values &v, float (*sums)[DIM], chunk_scales &of)
{
    typedef part_of_unit<64> part;
    typedef part_of_unit<COLUMNS> part_v;
    constexpr int BIAS = 1 << 10;
    const int c = part::column(), lane = threadIdx.x % 32;
    const auto unit_of = [&](int u) {
        return units[slot + u < UNITS ? slot + u : slot + u - UNITS] + threadIdx.x;
    };
    const float4 *const from_v = unit_of(PANELS);
    float4 x[PANELS][part::COUNT], y[part_v::COUNT];
    int exponent[part::COUNT], of_v[part_v::COUNT];    // of scales of rows of K; none: NO_ROW
    int top = -BIAS, first = 0, least;    // of the first row that counts, after its number

    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        #pragma unroll
        for (int i = 0; i < part::COUNT; i++)
            x[panel][i] = unit_of(panel)[i * BRINGING];
        if (linear_has(p, LINEAR_ELU1 | LINEAR_RELU))
            take_phi(p, panel * 64 + c < p.d ? rows - part::row() : 0, part::STEP, x[panel]);
        if (linear_has(p, LINEAR_NORMALIZE)) {
            float all[EACH] = {};

            #pragma unroll
            for (int i = 0; i < part::COUNT; i++)
                all[0] += x[panel][i].x, all[1] += x[panel][i].y, all[2] += x[panel][i].z,
                    all[3] += x[panel][i].w;
            sum_warp<64>(all, sums[threadIdx.x / 32] + panel * 64);
        }
    }
    #pragma unroll
    for (int i = 0; i < part::COUNT; i++) {
        uint32_t size = size_of(x[0][i]);

        #pragma unroll
        for (int panel = 1; panel < PANELS; panel++)
            size = max(size, size_of(x[panel][i]));
        #pragma unroll
        for (int apart = 1; apart < part::ACROSS; apart *= 2)
            size = max(size, __shfl_xor_sync(0xffffffffu, size, apart));
        exponent[i] = size ? exponent_of<-112>(size) - HALF_TOP : NO_ROW;
        if (c == 0)
            of.keys[part::row() + i * part::STEP] = power_of_2(exponent[i]);
    }
    #pragma unroll
    for (int i = 0; i < part_v::COUNT; i++) {
        const uint32_t size = size_of(from_v[i * BRINGING]);
        int here;

        if (COLUMNS == 64) {
            of_v[i] = exponent[i];
        } else {
            const int even = __shfl_sync(0xffffffffu, exponent[i * 2], lane / 8 % 2 * 16);
            const int odd = __shfl_sync(0xffffffffu, exponent[i * 2 + 1], lane / 8 % 2 * 16);

            of_v[i] = lane < 16 ? even : odd;
        }
        here = exponent_of<-113>(size) + of_v[i];
        top = max(top, here);
        if (size && of_v[i] != NO_ROW)
            first = max(first,
                        (CHUNK - part_v::row() - i * part_v::STEP) * 2 * BIAS + here + BIAS);
    }
    top = __reduce_max_sync(0xffffffffu, top);
    first = __reduce_max_sync(0xffffffffu, first);
    if (lane == 0)
        of.top[threadIdx.x / 32][0] = top, of.top[threadIdx.x / 32][1] = first;
    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        #pragma unroll
        for (int i = 0; i < part::COUNT; i++) {
            multiply(x[panel][i], power_of_2(-max(exponent[i], -126)));
            put_apart<64, true>(x[panel][i], part::row() + i * part::STEP, k[0][panel], PANELS);
        }
    device_meet<BRINGING>(BRINGERS);
    #pragma unroll
    for (int i = 0; i < BRINGING / 32; i++)
        top = max(top, of.top[i][0]), first = max(first, of.top[i][1]);
    least = first % (2 * BIAS) - BIAS;
    if (threadIdx.x == 0)
        of.wide = first && top - least > WIDE;
    top = min(max(top - HALF_TOP, -149), 127);
    if (threadIdx.x == 0)
        of.unit = any_power_of_2(top);
    #pragma unroll
    for (int i = 0; i < part_v::COUNT; i++)
        y[i] = from_v[i * BRINGING];
    #pragma unroll
    for (int i = 0; i < part_v::COUNT; i++)
        multiply(y[i], any_power_of_2(max(of_v[i] - top, -149)));
    #pragma unroll
    for (int i = 0; i < part_v::COUNT; i++)
        put_apart<COLUMNS, false>(y[i], part_v::row() + i * part_v::STEP, v[0], 1);
}

// A unit that has come, to the tiles of one of `panels`. KEYS: columns as column_at() has them, phi
// of rows below `rows` (zeros past them stay), and the sums of the warp's if they are wanted.
template <int SPAN, bool KEYS>
DEVICE void take_unit(const attn_linear_kparams &p, const float4 *unit, int rows, float4 *tiles,
                      int panels, float *sums)
{
    typedef part_of_unit<SPAN> part;
    constexpr int AT_ONCE = TYPE == TYPE_F32 ? 4 : DIM > 64 ? 1 : 2;    // without branches between
    float all[EACH] = {};

    #pragma unroll 1
    for (int from = 0; from < part::COUNT; from += AT_ONCE) {
        const int first = part::row() + from * part::STEP;
        float4 x[AT_ONCE];

        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            x[i] = unit[(from + i) * BRINGING + threadIdx.x];
        if (KEYS && linear_has(p, LINEAR_ELU1 | LINEAR_RELU))
            take_phi(p, rows - first, part::STEP, x);
        if (KEYS && linear_has(p, LINEAR_NORMALIZE))
            #pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                float y[EACH];

                unpack(x[i], y);
                #pragma unroll
                for (int n = 0; n < EACH; n++)
                    all[n] += y[n];
            }
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            put_apart<SPAN, KEYS>(x[i], first + i * part::STEP, tiles, panels);
    }
    if (KEYS && linear_has(p, LINEAR_NORMALIZE))
        sum_warp<SPAN>(all, sums);
}

// By the warpgroup that brings: of each chunk the panels of K, then V; first the chunks of keys
// that are summed up, then the group's own, `chunks` in all.
template <int STAGES, int UNITS, class MEM>
DEVICE void bring_chunks(const attn_linear_kparams &p, const chunk_work &w, const chunk_sum &sum,
                         int chunks, MEM &mem)
{
    typedef part_of_unit<64> part;
    typedef part_of_unit<COLUMNS> part_v;
    constexpr int EVERY = PANELS + 1;    // units of a chunk
    const int end = min(w.keys, w.end);
    const int64_t row_k = p.k_stride_l * (16 / EACH), row_v = p.v_stride_l * (16 / EACH);
    const char *from_k = at_element(p.k, LINEAR_AT(p, k, w.b, w.kvh,
                                                   (int64_t)w.first + part::row(), 0) +
                                             part::column());
    const char *from_v = at_element(p.v, LINEAR_AT(p, v, w.b, w.kvh,
                                                   (int64_t)w.first + part_v::row(), 0) +
                                             w.column + part_v::column());
    int slot = 0;    // of the unit that is taken next, and of the one that is asked for then

    const auto token_of = [&](int n) {
        return n < sum.count ? sum.first + n * CHUNK : w.first + (n - sum.count) * CHUNK;
    };

    // Unit u of chunk n.
    const auto ask = [&](int u, int n, int slot) {
        const int j = token_of(n), column = u * 64 + part::column();
        const int64_t on = (int64_t)(j - w.first);

        if (n >= chunks) {
            device_commit();
            return;
        }
        if (u < PANELS)
            ask_unit<64>({ from_k + on * row_k + u * 64 * (16 / EACH), row_k, column < p.d },
                         end - j, mem.unit[slot]);
        else
            ask_unit<COLUMNS>({ from_v + on * row_v, row_v, w.column + part_v::column() < p.dv },
                              end - j, mem.unit[slot]);
        device_commit();
    };

    // What comes UNITS units behind unit u of chunk n, to the slot of that.
    const auto ask_next = [&](int u, int n) {
        ask((u + UNITS) % EVERY, n + (u + UNITS) / EVERY, slot);
        slot = slot + 1 < UNITS ? slot + 1 : 0;
    };

    #pragma unroll
    for (int i = 0; i < UNITS; i++)
        ask(i % EVERY, i / EVERY, i);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int stage = n % STAGES, j = token_of(n);

        device_barrier_wait(&mem.empty[stage], (n / STAGES & 1) ^ 1);
        if constexpr (HALVES) {
            device_copied<UNITS - EVERY>();
            take_chunk<UNITS>(p, mem.unit, slot, end - j, mem.k[stage], mem.v[stage],
                              mem.sums[stage], mem.of[stage]);
            arrive_written(&mem.full[stage]);
            #pragma unroll
            for (int u = 0; u < EVERY; u++)
                ask_next(u, n);
        } else {
            #pragma unroll
            for (int u = 0; u < EVERY; u++) {
                device_copied<UNITS - 1>();
                if (u < PANELS)
                    take_unit<64, true>(p, mem.unit[slot],
                                        u * 64 + part::column() < p.d ? end - j : 0,
                                        mem.k[stage][0][u % PANELS], PANELS,
                                        mem.sums[stage][threadIdx.x / 32] + u * 64);
                else
                    take_unit<COLUMNS, false>(p, mem.unit[slot], 0, mem.v[stage][0], 1, nullptr);
                if (u == PANELS)
                    arrive_written(&mem.full[stage]);
                ask_next(u, n);
            }
        }
    }
}
