// SPDX-License-Identifier: MIT
// linear/wgmma_bring.cuh: how chunks of K and V come to the tiles of fwd_wgmma.cu: through
// registers, where they are taken apart; where there is room, as wgmma_stage.cuh has it.
#pragma once
#include "linear/wgmma.cuh"

constexpr int EACH = TYPE == TYPE_F32 ? 4 : 8;    // elements of 16 bytes

DEVICE const char *at_element(const void *x, int64_t i)
{
    return (const char *)x + i * (16 / EACH);
}

// One of two numbers of 16 bits.
DEVICE float number_of(uint32_t word, int odd)
{
    return TYPE == TYPE_F16 ? device_f32_of_f16((uint16_t)(word >> odd * 16))
                            : __uint_as_float(odd ? word & 0xffff0000u : word << 16);
}

// 16 bytes as numbers, and, rounded to the type, back.
DEVICE void unpack(const float4 &x, float (&y)[EACH])
{
    const uint32_t word[4] = { __float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z),
                               __float_as_uint(x.w) };

    #pragma unroll
    for (int i = 0; i < EACH; i++)
        y[i] = TYPE == TYPE_F32 ? __uint_as_float(word[i % 4]) : number_of(word[i / 2], i % 2);
}

DEVICE float4 four_words(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return make_float4(__uint_as_float(a), __uint_as_float(b), __uint_as_float(c),
                       __uint_as_float(d));
}

// phi of all of them, without branches between.
template <int M, int N> DEVICE void phi_of(const attn_linear_kparams &p, float (&x)[M][N])
{
    if (linear_has(p, LINEAR_ELU1))
        #pragma unroll
        for (int i = 0; i < M * N; i++) {
            const float below = expf(x[i / N][i % N]), y = x[i / N][i % N];

            x[i / N][i % N] = y > 0.0f ? y + 1.0f : below;
        }
    else if (linear_has(p, LINEAR_RELU))
        #pragma unroll
        for (int i = 0; i < M * N; i++)
            x[i / N][i % N] = x[i / N][i % N] <= 0.0f ? 0.0f : x[i / N][i % N];
}

DEVICE float4 pack_row(const float (&y)[EACH])
{
    if (TYPE == TYPE_F32)
        return make_float4(y[0], y[1], y[2], y[3]);
    return four_words(elem_pair<TYPE>(y[0], y[1]), elem_pair<TYPE>(y[2], y[3]),
                      elem_pair<TYPE>(y[4 % EACH], y[5 % EACH]),
                      elem_pair<TYPE>(y[6 % EACH], y[7 % EACH]));
}

DEVICE void phi_of(const attn_linear_kparams &p, float4 &x)
{
    float all[1][EACH];

    unpack(x, all[0]);
    phi_of(p, all);
    x = pack_row(all[0]);
}

// A thread's part of a chunk's rows of SPAN elements: 16 bytes of each row, of every STEP-th row.
// OF is the type, since the members of other types are others. Or of ROWS rows of the chunk.
template <int OF, int SPAN, int ROWS = CHUNK> struct rows_of_chunk {
    static constexpr int ACROSS = SPAN / EACH, STEP = 128 / ACROSS, COUNT = ROWS / STEP;
    float4 x[COUNT];

    static __device__ __forceinline__ int row() { return (int)threadIdx.x % 128 / ACROSS; }
    static __device__ __forceinline__ int column() { return (int)threadIdx.x % ACROSS * EACH; }

    // From the thread's place in the chunk; zeros past `rows`, or unless its column is `inside`.
    __device__ __forceinline__ void fetch(const char *from, int64_t bytes, int rows, bool inside)
    {
        if (rows >= ROWS && inside) {
            #pragma unroll
            for (int i = 0; i < COUNT; i++, from += STEP * bytes)
                x[i] = *(const float4 *)from;
            return;
        }
        #pragma unroll
        for (int i = 0; i < COUNT; i++, from += STEP * bytes) {
            x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (row() + i * STEP < rows && inside)
                x[i] = *(const float4 *)from;
        }
    }

    // To the tiles, `panels` of each part; MOVED: columns as column_at() has them. HELD: the
    // thread's number is: found anew it takes fewer registers, but spills in gradients of D 128.
    template <bool MOVED, bool HELD>
    __device__ __forceinline__ void put(float4 *tiles, int panels) const
    {
        const int thread = HELD ? (int)(threadIdx.x % 128) : device_thread() % 128;
        const int c = thread % ACROSS * EACH, within = MOVED ? c % 16 : c * 2 % 16;
        const int turned = MOVED && SPAN > 64 ? c / 64 : 0;    // panels lie in the same banks
        char *const to = (char *)(tiles + c / 64 * TILE) + within;

        #pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int r = thread / ACROSS + i * STEP;
            uint32_t word[PARTS][EACH / 2];

            take_apart(x[i], word);
            #pragma unroll
            for (int n = 0; n < PARTS; n++)
                #pragma unroll
                for (int half = 0; half < (MOVED ? 2 : 1); half++) {
                    const int to_half = half ^ turned;
                    const int chunk = MOVED ? c % 64 / 16 * 2 + to_half : c * 2 / 16 % 8;
                    char *const at = to + n * panels * TILE * 16 + r * 128 +
                                     (chunk ^ (r & 7)) * 16;
                    const uint32_t *const y = word[n];

                    if (MOVED && EACH == 4)
                        *(uint32_t *)at = to_half ? y[1] : y[0];
                    else if (MOVED)
                        *(uint2 *)at = to_half ? make_uint2(y[1], y[3 % (EACH / 2)])
                                               : make_uint2(y[0], y[2 % (EACH / 2)]);
                    else if (EACH == 4)
                        *(uint2 *)at = make_uint2(y[0], y[1]);
                    else
                        *(float4 *)at = four_words(y[0], y[1], y[2 % (EACH / 2)],
                                                   y[3 % (EACH / 2)]);
                }
        }
    }

    static __device__ __forceinline__ void take_apart(const float4 &from,
                                                      uint32_t (&word)[PARTS][EACH / 2])
    {
        float y[EACH];

        if (TYPE == TYPE_BF16) {
            word[0][0] = __float_as_uint(from.x), word[0][1] = __float_as_uint(from.y);
            word[0][2 % (EACH / 2)] = __float_as_uint(from.z);
            word[0][3 % (EACH / 2)] = __float_as_uint(from.w);
            return;
        }
        unpack(from, y);
        #pragma unroll
        for (int i = 0; i < EACH; i += 2) {
            uint32_t part[PARTS];

            split(y[i], y[i + 1], part);
            #pragma unroll
            for (int n = 0; n < PARTS; n++)
                word[n][i / 2] = part[n];
        }
    }
};

// The sums of a warp's rows of K.
DEVICE void sum_rows(const rows_of_chunk<TYPE, DIM> &k, float *sums)
{
    float all[EACH] = {};

    #pragma unroll
    for (int i = 0; i < k.COUNT; i++) {
        float y[EACH];

        unpack(k.x[i], y);
        #pragma unroll
        for (int n = 0; n < EACH; n++)
            all[n] += y[n];
    }
    #pragma unroll
    for (int apart = k.ACROSS; apart < 32; apart *= 2)    // a warp has some rows at a time
        #pragma unroll
        for (int n = 0; n < EACH; n++)
            all[n] += __shfl_xor_sync(0xffffffffu, all[n], apart);
    if (threadIdx.x % 32 < k.ACROSS)
        #pragma unroll
        for (int n = 0; n < EACH; n++)
            sums[k.column() + n] = all[n];
}

DEVICE int chunks_of(const chunk_work &w) { return ceil_div(w.end - w.first, CHUNK); }

// By the warpgroup that brings: K and V of the next DEPTH chunks are on their way while those of
// a chunk are taken apart; first the chunks of keys that are summed up, then the group's own,
// `chunks` in all.
template <int STAGES, int DEPTH, class MEM>
DEVICE void bring_registers(const attn_linear_kparams &p, const chunk_work &w,
                            const chunk_sum &sum, int chunks, MEM &mem)
{
    rows_of_chunk<TYPE, DIM> k[DEPTH];
    rows_of_chunk<TYPE, COLUMNS> v[DEPTH];
    const bool in_k = k->column() < p.d, in_v = w.column + v->column() < p.dv;
    const int64_t row_k = p.k_stride_l * (16 / EACH), row_v = p.v_stride_l * (16 / EACH);
    const char *from_k = at_element(p.k, LINEAR_AT(p, k, w.b, w.kvh, (int64_t)w.first + k->row(),
                                                   0) + k->column());
    const char *from_v = at_element(p.v, LINEAR_AT(p, v, w.b, w.kvh, (int64_t)w.first + v->row(),
                                                   0) + w.column + v->column());
    const int end = min(w.keys, w.end);

    // Rows from chunk n on.
    const auto rows_of = [&](int n) {
        return end - n * CHUNK - (n < sum.count ? sum.first : w.first - sum.count * CHUNK);
    };
    const auto fetch_k = [&](int n, int i) {
        if (n == sum.count) {
            from_k += (w.first - sum.first - n * CHUNK) * row_k;
            from_v += (w.first - sum.first - n * CHUNK) * row_v;
        }
        k[i].fetch(from_k, row_k, rows_of(n), in_k);
        from_k += CHUNK * row_k;
    };
    const auto fetch_v = [&](int n, int i) {
        v[i].fetch(from_v, row_v, rows_of(n), in_v);
        from_v += CHUNK * row_v;
    };

    from_k += (sum.first - w.first) * row_k;
    from_v += (sum.first - w.first) * row_v;
    #pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        fetch_k(i, i);
        fetch_v(i, i);
    }
    #pragma unroll 1
    for (int from = 0; from < chunks; from += DEPTH)
        #pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            const int n = from + i, stage = n % STAGES;

            if (i && n >= chunks)
                break;
            if (linear_has(p, LINEAR_ELU1 | LINEAR_RELU))
                #pragma unroll
                for (int r = 0; r < k->COUNT; r++)
                    if (in_k && k->row() + r * k->STEP < rows_of(n))
                        phi_of(p, k[i].x[r]);
            device_barrier_wait(&mem.empty[stage], (n / STAGES & 1) ^ 1);
            if (linear_has(p, LINEAR_NORMALIZE))
                sum_rows(k[i], mem.sums[stage][threadIdx.x / 32]);
            k[i].template put<true, false>(mem.k[stage][0][0], PANELS);
            fetch_k(n + DEPTH, i);
            device_forget();
            v[i].template put<false, false>(mem.v[stage][0], 1);
            arrive_written(&mem.full[stage]);
            fetch_v(n + DEPTH, i);
        }
}
