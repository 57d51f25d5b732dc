// SPDX-License-Identifier: MIT
// softmax/bwd_wgmma.cuh: the tile of bwd_wgmma.cu: its numbers, what lies in shared memory,
// and the products on it. TYPE and DIM are the image's; D and Dv are padded up to DIM.
#pragma once
#define SUMS_BY_COPY
#include "softmax/bring.cuh"
#include "softmax/bwd_scores.cuh"

// Q, OWN: whether this instance has sums of dQ, of dK and dV.
template <int STAGES_, bool Q_, bool OWN_> struct back_wgmma {
    // dK and dV of 64 keys of more columns are more than a warpgroup's registers: there the two
    // have the same keys, one the sums of dV, the other those of dK
    static constexpr bool PARTS = DIM > 128;
    static constexpr int STAGES = STAGES_;                 // steps of Q on their way or in use
    static constexpr int STAGES_O = PARTS ? 1 : STAGES;    // of dO
    static constexpr bool Q = Q_, K = Q_, OWN = OWN_;
    static constexpr int THREADS = 384, BLOCKS = 1;
    static constexpr int BM = PARTS ? 64 : 128, BN = 64;    // keys of a group, queries of a step
    static constexpr bool LIFTS = TYPE == TYPE_F16;         // as bwd_mma.cuh
    static constexpr int WARPS = BM / 16;                   // with keys of their own
    static constexpr int NT = BN / 8, DT = DIM / 8, PANELS = DIM / 64;

    // slots of dS of a step, and of dQ on its way, each with so many columns of the tile
    static constexpr int PAIRS = PARTS ? 1 : 2;
    static constexpr int SUMS = Q_ ? (DIM == 64 ? 2 : 1) : 0, WIDTH = PARTS ? SUMS_BLOCK : DIM;
    static constexpr int PIECES = PARTS ? 2 : 1;    // of dQ of a step, one after the other
    // warpgroups may be up to a step apart, so that one's products run beside the other's
    // softmax: the scores of the next step, and dQ of the one before, have registers of their own
    static constexpr bool APART = DIM == 64;
    static constexpr int MATH_REGISTERS = 240, LOAD_REGISTERS = 24;

    // as the planner counts them; 4096 for barriers and the group's work
    static constexpr int BYTES =
        2 * (2 * BM * DIM + (STAGES + STAGES_O) * BN * DIM + PAIRS * BM * BN) +
        (PARTS ? 4 * BM * BN : 0) + SUMS * 4 * BN * WIDTH + STAGES * 3 * 4 * BN + 4096;
};

// Slots of steps; threads of the loading warpgroup that load, and of the others.
enum { STEPS = 16, LOADING = 96, MATH = 256 };

// Numbers of barriers: of the loading warps; of all others.
enum { LOADERS = 1, ALL_MATH };

// A tensor, and its columns that are there.
struct view {
    const void *x;
    int depth;
};

// Tiles as products read them: panels of 64 columns.
template <typename T> struct back_shared {
    float4 k[T::BM * 8 * T::PANELS], v[T::BM * 8 * T::PANELS];
    float4 q[T::STAGES][T::BN * 8 * T::PANELS], o[T::STAGES_O][T::BN * 8 * T::PANELS];
    float4 ds[T::PAIRS][T::BM * T::BN / 8];    // of a step: [key][query]
    // the copy engine adds it: whole lines of 128 bytes, where nothing lies in between
    float dq[T::SUMS ? T::SUMS : 1][T::SUMS ? T::BN * T::WIDTH : 4];
    float4 weights[T::PARTS ? T::NT : 1][T::PARTS ? 128 : 1];  // of the same thread's pairs
    float lse[T::STAGES][T::BN], delta[T::STAGES][T::BN], size[T::STAGES][T::BN];
    // empty: Q with LSE and delta, and dO where it has as many stages
    device_barrier full_own, full_q[T::STAGES], full_o[T::STAGES_O];
    device_barrier empty[T::STAGES], empty_o;
    device_barrier full_ds[T::PAIRS], empty_ds[T::PAIRS], full_dq[2], empty_dq[2];
    device_barrier full_weights, empty_weights;
    float largest[T::WARPS];            // length of a row of V, of each warp's keys
    mma_step step[STEPS];               // in turn
    view from[2];                       // Q, dO: here, since the loading warps lack registers
    back_group group;
};

// Where chunk c of row r of a tile of keys lies.
template <typename T> DEVICE int place_of_own(int r, int c)
{
    return c / 8 * T::BM * 8 + r * 8 + ((c ^ r) & 7);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// s = <own rows, rows> begins; own: the warpgroup's tile.
template <typename T>
DEVICE void begin_pairs(back_pairs<T> &s, uint64_t own, const float4 *rows)
{
    const uint64_t b = device_tile(device_address(rows), T::BN * 128);

    device_products_hold(s);
    device_products_begin();
    #pragma unroll
    for (int x = 0; x < DIM / 16; x++)
        device_products_in<TYPE>(s, own + (x / 4 * T::BM * 128 + x % 4 * 32) / 16,
                                 b + (x / 4 * T::BN * 128 + x % 4 * 32) / 16, x > 0);
    device_products_commit();
}

// sums += pairs times the rows of a step begins.
template <typename T>
DEVICE void begin_sums(back_sums<T> &sums, const back_operand<T> &w, const float4 *rows)
{
    const uint64_t b = device_tile(device_address(rows), T::BN * 128);

    device_products_hold(sums);
    device_products_begin();
    #pragma unroll
    for (int t = 0; t < T::NT / 2; t++)
        device_products_of<TYPE>(sums, w[t], b + t * 16 * 128 / 16);
    device_products_commit();
}

// COLUMNS of this step's part of dQ begin, from `column` on: from all keys of the group.
template <typename T, int COLUMNS>
DEVICE void begin_queries(float (&dq)[COLUMNS / 8][4], const float4 *ds, const float4 *k,
                          int column)
{
    const uint64_t a = device_tile(device_address(ds), T::BM * 128);
    const uint64_t b = device_tile(device_address(k), T::BM * 128) +
                       (column / 64 * T::BM * 128 + column % 64 * 2) / 16;

    device_products_hold(dq);
    device_products_begin();
    #pragma unroll
    for (int j = 0; j < T::BM; j += 16)
        device_products_turned<TYPE>(dq, a + j * 128 / 16, b + j * 128 / 16, j > 0);
    device_products_commit();
}

// They go to shared memory, times a factor: as columns from `column` on of rows of WIDTH. warp:
// in the warpgroup.
template <int WIDTH, int COLUMNS8>
DEVICE void put_queries(const float (&dq)[COLUMNS8][4], int column, int warp, float factor,
                        float *to)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int x = warp * 16 + half * 8 + lane / 4;

        #pragma unroll
        for (int n = 0; n < COLUMNS8; n++) {
            const int c = column + n * 8 + lane % 4 * 2;

            *(float2 *)(to + x * WIDTH + back_sum_place(x, c)) =
                make_float2(dq[n][half * 2] * factor, dq[n][half * 2 + 1] * factor);
        }
    }
}

// The lift of a step whose Q has arrived; `before`: that of the step before.
template <typename T>
DEVICE float next_lift(const back_shared<T> &mem, int i, float before)
{
    const int slot = i % T::STAGES;
    const mma_step &at = mem.step[i % STEPS];
    const float now = find_lift<T>(at, mem.size[slot], mem.delta[slot], mem.lse[slot],
                                   mem.largest);

    // each head begins with its own: its bits are not another head's affair
    return now < before || i == 0 || at.h != mem.step[(i + STEPS - 1) % STEPS].h ? now : before;
}

#endif
