// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_halves.cuh: how linear_bwd_wgmma takes f32 as two of f16 (halves.cuh): scales of
// chunks, and how chunks come to the tiles.
//
// Rows of B and X of a chunk have one scale each, which follows from the chunk's largest number, in
// sums of all columns from that of the chunk before; rows of A, of pairs and the state have theirs.
// What a row loses is 2^-24 of its largest number, if that is not too far below the one that the
// scale is of. If it is, or a number is out of range or infinite, `odd` is set, and the group does
// all of its work again, after it has ended, with three parts of bf16, whose exponents are those of
// f32.
#pragma once
#include "linear/bwd_wgmma_walk.cuh"
#include "linear/bwd_halves.cuh"

// Exponents that chunks of B and X, the state, and rows of A may have.
constexpr int LEAST = -48, MOST = 60, LEAST_STATE = -96;

// How far below a chunk's largest number that of a row may be.
constexpr int SPREAD = HALF_TOP;

// Where a scale brings the largest number of the chunk before to, as HALF_TOP, and how far rows may
// be above and below.
constexpr int CHUNK_TOP = 7, ABOVE = HALF_TOP - CHUNK_TOP, BELOW = CHUNK_TOP + 2;
constexpr int NO_EXPONENT = -1000;    // before a number that is not 0

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Barriers of who brings, before others are ready, too; so many arrivals fill and leave a stage.
template <int STAGES>
DEVICE void begin_scales(shared_scales<STAGES> &mem, int fill, int leave, int threads)
{
    if (threadIdx.x == 0) {
        mem.odd = 0;
        device_barrier_init(&mem.done, threads);
        for (int i = 0; i < 2; i++) {
            device_barrier_init(&mem.tops[i].told, 128);
            device_barrier_init(&mem.tops[i].met, 128);
        }
        for (int i = 0; i < STAGES; i++) {
            device_barrier_init(&mem.full[i], fill);
            device_barrier_init(&mem.empty[i], leave);
        }
    }
}

// When the whole group is here: whether all is to be done again by parts of bf16.
template <class SCALES> DEVICE bool is_again(SCALES &mem)
{
    device_barrier_meet(&mem.done);
    return mem.odd;
}

// Of other types.
DEVICE void begin_scales(nothing &, int, int, int) {}
DEVICE bool is_again(nothing &) { return true; }

DEVICE float largest(float4 x)
{
    return fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
}

template <class ROWS> DEVICE float largest(const ROWS &rows)
{
    float top = largest(rows.x[0]);

    #pragma unroll
    for (int i = 1; i < ROWS::COUNT; i++)
        top = fmaxf(top, largest(rows.x[i]));
    return top;
}

DEVICE float largest_of_warp(float x)
{
    #pragma unroll
    for (int apart = 16; apart; apart /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
}

DEVICE float largest_of(const float (&tops)[4])
{
    const float4 all = *(const float4 *)tops;

    return fmaxf(fmaxf(all.x, all.y), fmaxf(all.z, all.w));
}

// The largest number of a warpgroup that is not negative.
DEVICE float largest_of_group(float x, float (&tops)[4], device_barrier *told)
{
    x = largest_of_warp(x);
    if (threadIdx.x % 32 == 0)
        tops[threadIdx.x % 128 / 32] = x;
    device_barrier_meet(told);
    return largest_of(tops);
}

// Of a chunk's largest number. Zeros are not odd.
DEVICE bool is_odd(float top, int exponent, int least)
{
    return top > 0.0f && (exponent < least || exponent > MOST);
}

DEVICE int inside(int exponent) { return min(max(exponent, LEAST_STATE), MOST); }

// Largest numbers of a thread's parts of rows: the largest and the least of them.
struct part_sizes {
    float top, low;
};

template <class ROWS, int N> DEVICE part_sizes sizes_of(const ROWS (&rows)[N])
{
    part_sizes s = { largest(rows[0].x[0]), largest(rows[0].x[0]) };

    #pragma unroll
    for (int i = 1; i < N * ROWS::COUNT; i++) {
        const float part = largest(rows[i / ROWS::COUNT].x[i % ROWS::COUNT]);

        s.top = fmaxf(s.top, part);
        s.low = fminf(s.low, part);
    }
    return s;
}

// Whether a row of these is less than that, yet not zero: to be asked where a part of one is less.
template <class ROWS, int N> DEVICE bool has_less(const ROWS (&rows)[N], float least)
{
    uint32_t bits = 0;

    #pragma unroll
    for (int i = 0; i < N * ROWS::COUNT; i++) {    // not zero, and large enough
        const float part = largest(rows[i / ROWS::COUNT].x[i % ROWS::COUNT]);

        bits |= (part > 0.0f ? 1u << i : 0u) | (part >= least ? 0x10000u << i : 0u);
    }
    #pragma unroll
    for (int apart = 1; apart < ROWS::ACROSS; apart *= 2)
        bits |= __shfl_xor_sync(0xffffffffu, bits, apart);
    return bits & 0xffffu & ~(bits >> 16);
}

// What a thread of a warpgroup that brings rows of a tensor knows of their scale.
struct own_scale {
    int exponent = NO_EXPONENT;    // of the chunk before

    // Before the n-th chunk that this warpgroup has, whose rows are here or on their way.
    template <class ROWS, int N>
    __device__ __forceinline__ void begin(const ROWS (&rows)[N], int n, shared_tops &mem)
    {
        if (n > 0) {
            device_barrier_wait(&mem.told, (n - 1) & 1);
            take(largest_of(mem.tops[(n - 1) & 1]));
        }
        if (exponent == NO_EXPONENT) {
            float x = largest(rows[0]);

            #pragma unroll
            for (int i = 1; i < N; i++)
                x = fmaxf(x, largest(rows[i]));
            take(largest_of_group(x, mem.first[n & 1], &mem.met));
        }
    }

    // What rows are multiplied by; as an exponent what undoes it.
    __device__ __forceinline__ float by() const { return power_of_2(CHUNK_TOP - here()); }
    __device__ __forceinline__ int unit() const { return here() - CHUNK_TOP; }

    __device__ __forceinline__ void take(float x)
    {
        exponent = x == 0.0f ? exponent : exponent_of_top(x);
    }

    __device__ __forceinline__ int here() const
    {
        return exponent == NO_EXPONENT ? 0 : inside(exponent);
    }

    // What the chunk's rows are; tells the next chunk. Whether there is anything odd.
    template <class ROWS, int N>
    __device__ __forceinline__ bool tell(const ROWS (&rows)[N], int n, shared_tops &mem) const
    {
        const float least = power_of_2(here() - BELOW);
        const part_sizes sizes = sizes_of(rows);
        const float top = sizes.top;
        bool odd = top >= power_of_2(here() + ABOVE + 1) ||
                         (exponent != NO_EXPONENT && exponent != inside(exponent)) ||
                         (top > 0.0f && here() < LEAST);
        const float all = largest_of_warp(top);

        if (__any_sync(0xffffffffu, sizes.low < least))
            odd = has_less(rows, least) || odd;

        if (threadIdx.x % 32 == 0)
            mem.tops[n & 1][threadIdx.x % 128 / 32] = all;
        device_barrier_arrive(&mem.told);
        return odd;
    }
};

// As rows_of_chunk::put(), columns as column_at() has them.
template <class ROWS>
DEVICE void put_halves(const ROWS &rows, float by, float4 *tiles, int panels)
{
    const int thread = thread_of_group(), c = thread % ROWS::ACROSS * 4;    // found anew
    const int turned = ROWS::ACROSS > 16 ? c / 64 : 0;    // panels lie in the same banks
    char *const to = (char *)(tiles + c / 64 * TILE) + c % 16;

    #pragma unroll
    for (int i = 0; i < ROWS::COUNT; i++) {
        const int r = thread / ROWS::ACROSS + i * ROWS::STEP;
        const float4 &x = rows.x[i];
        uint32_t low[2], high[2];

        split_halves(x.x * by, x.y * by, low);
        split_halves(x.z * by, x.w * by, high);
        #pragma unroll
        for (int n = 0; n < 2; n++)
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const int chunk = c % 64 / 16 * 2 + (half ^ turned);

                *(uint32_t *)(to + n * panels * TILE * 16 + r * 128 + (chunk ^ (r & 7)) * 16) =
                    half ^ turned ? high[n] : low[n];
            }
    }
}

// As bring_scan(), of heads that share none, a chunk ahead.
template <scan WHICH, bool BACK, int STAGES, class MEM, class TILES>
DEVICE void bring_halves(const attn_linear_kparams &p, const chunk_work &w, MEM &mem, TILES &tiles)
{
    constexpr int ON = BACK ? -CHUNK : CHUNK;
    const int chunks = chunks_of(w);
    const bool maps = linear_has(p, LINEAR_ELU1 | LINEAR_RELU);
    rows_of_chunk<TYPE, DIM> b[1];
    rows_of_chunk<TYPE, COLUMNS> x[1];
    const bool in_b = b->column() < inner_of(p, WHICH);
    const bool in_x = w.column + x->column() < width_of(p, WHICH);
    const int begin = chunk_at<BACK>(w, 0);
    const char *from_b = b_of<WHICH>(p, w, 0).from + b->column() * (16 / EACH) +
                         ((int64_t)begin + b->row()) * b_of<WHICH>(p, w, 0).bytes;
    const char *from_x = x_of<WHICH>(p, w, 0).from + (w.column + x->column()) * (16 / EACH) +
                         ((int64_t)begin + x->row()) * x_of<WHICH>(p, w, 0).bytes;

    const auto there = [&](const tensor_rows &all, int j) {
        return j < w.first ? 0 : all.rows - j;
    };
    // Found anew where it is wanted: there are few registers.
    const auto exponent_here = [&](int which, int turn) {
        return inside(exponent_of_top(largest_of(mem.tops[which].tops[turn])));
    };

    b->fetch(from_b, b_of<WHICH>(p, w, 0).bytes, there(b_of<WHICH>(p, w, 0), begin), in_b);
    x->fetch(from_x, x_of<WHICH>(p, w, 0).bytes, there(x_of<WHICH>(p, w, 0), begin), in_x);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int stage = n % STAGES, turn = n % 2, j = chunk_at<BACK>(w, n);

        if (maps && WHICH == GRAD_V)
            #pragma unroll
            for (int r = 0; r < b->COUNT; r++)
                if (in_b && b->row() + r * b->STEP < w.end - j)
                    phi_of(p, b->x[r]);
        if (maps && WHICH != GRAD_V)
            #pragma unroll
            for (int r = 0; r < x->COUNT; r++)
                if (in_x && x->row() + r * x->STEP < (WHICH == GRAD_Q ? keys_of(w) : w.end) - j)
                    phi_of(p, x->x[r]);

        const part_sizes sizes_b = sizes_of(b), sizes_x = sizes_of(x);
        const float warp_b = largest_of_warp(sizes_b.top), warp_x = largest_of_warp(sizes_x.top);
        shared_tops (&tops)[2] = mem.tops;

        if (threadIdx.x % 32 == 0) {
            tops[0].tops[turn][threadIdx.x % 128 / 32] = warp_b;
            tops[1].tops[turn][threadIdx.x % 128 / 32] = warp_x;
        }
        device_barrier_meet(&tops[0].met);

        const float top_b = largest_of(tops[0].tops[turn]), top_x = largest_of(tops[1].tops[turn]);
        const int e_b = exponent_of_top(top_b), e_x = exponent_of_top(top_x);
        const float least_b = power_of_2(inside(e_b) - SPREAD);
        const float least_x = power_of_2(inside(e_x) - SPREAD);
        bool odd = is_odd(top_b, e_b, LEAST) || is_odd(top_x, e_x, LEAST);

        if (__any_sync(0xffffffffu, sizes_b.low < least_b || sizes_x.low < least_x)) {
            odd = has_less(b, least_b) || odd;
            odd = has_less(x, least_x) || odd;
        }
        if (odd)
            atomicOr(&mem.odd, 1);
        device_barrier_wait(&mem.empty[stage], (n / STAGES & 1) ^ 1);
        if (threadIdx.x % 128 == 0)
            for (int i = 0; i < 2; i++)
                (i ? mem.x : mem.b)[stage] = exponent_here(i, turn) - HALF_TOP;

        const tensor_rows all_b = b_of<WHICH>(p, w, 0), all_x = x_of<WHICH>(p, w, 0);

        from_b += ON * all_b.bytes;
        put_halves(*b, scale_to_top(exponent_here(0, turn)), tiles.b[stage][0][0], PANELS);
        device_forget();
        b->fetch(from_b, all_b.bytes, there(all_b, j + ON), in_b);
        device_forget();
        from_x += ON * all_x.bytes;
        put_halves(*x, scale_to_top(exponent_here(1, turn)), tiles.x[stage][0], 1);
        arrive_written(&mem.full[stage]);
        x->fetch(from_x, all_x.bytes, there(all_x, j + ON), in_x);
    }
}

// A chunk of a tensor's rows from column `column` on to tiles of parts of bf16, a few rows at a
// time: what is done again may take its time, and has few registers.
typedef rows_of_chunk<TYPE, 64, 32> piece;

template <int PANELS_OF>
DEVICE void put_parts(const attn_linear_kparams &p, const tensor_rows &all, int j, int column,
                      int width, bool maps, float4 *tiles)
{
    #pragma unroll 1
    for (int i = 0; i < PANELS_OF * 2; i++) {
        const int first = j + i % 2 * 32, c = column + i / 2 * 64 + piece::column();
        piece x;

        x.fetch(all.from + (int64_t)(first + piece::row()) * all.bytes + c * (16 / EACH),
                all.bytes, all.rows - first, c < width);
        if (maps)
            #pragma unroll
            for (int r = 0; r < piece::COUNT; r++)
                if (c < width && piece::row() + r * piece::STEP < all.rows - first)
                    phi_of(p, x.x[r]);
        x.template put<true, true>(tiles + i / 2 * TILE + i % 2 * 32 * 8, PANELS_OF);
    }
}

// As bring_scan(), of heads that share none.
template <scan WHICH, bool BACK, int STAGES, class MEM>
DEVICE void bring_again(const attn_linear_kparams &p, const chunk_work &w, MEM &mem)
{
    #pragma unroll 1
    for (int n = 0; n < chunks_of(w); n++) {
        const int stage = n % STAGES, j = chunk_at<BACK>(w, n);

        device_barrier_wait(&mem.empty[stage], (n / STAGES & 1) ^ 1);
        put_parts<PANELS>(p, b_of<WHICH>(p, w, 0), j, 0, inner_of(p, WHICH), WHICH == GRAD_V,
                          mem.b[stage][0][0]);
        put_parts<1>(p, x_of<WHICH>(p, w, 0), j, w.column, width_of(p, WHICH), WHICH != GRAD_V,
                     mem.x[stage][0]);
        arrive_written(&mem.full[stage]);
    }
}

// What products of chunks in both scales are multiplied by to be as those of f32.
template <class MEM> DEVICE float unit_of(const MEM &mem, int stage)
{
    return power_of_2(mem.b[stage] + mem.x[stage]);
}

// As add_rows().
template <int STAGES, class MEM, class TILES>
DEVICE void add_halves(int n, MEM &mem, TILES &tiles, group_state &my, int columns = 0)
{
    const int stage = n % STAGES;

    device_barrier_wait(&mem.full[stage], n / STAGES & 1);

    const float unit = unit_of(mem, stage);

    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        float more[NT][4];

        begin_state_halves(tiles.b[stage], tiles.x[stage], panel, more, columns);
        device_products_wait<0>();
        device_products_hold(more);
        #pragma unroll
        for (int i = 0; i < NT * 4; i++)
            my.s[panel][i / 4][i % 4] += more[i / 4][i % 4] * unit;
    }
    device_barrier_arrive(&mem.empty[stage]);
}

#endif
