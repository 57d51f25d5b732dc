// SPDX-License-Identifier: MIT
// gpu/micro/adds.cu: how fast sums of dQ come together in global memory, in f32.
//
//   copy engine   device_bulk_add() of pieces from shared memory, the next when the last one has
//                 been read (softmax_bwd_wgmma), or four on their way
//   registers     device_add_pair(), red.global.add.v2.f32, by 256 threads: a warp's 256 bytes in
//                 a row, or as sums of products lie, 8 rows of 32 bytes (softmax_bwd_mma)
//
// Each multiprocessor adds to 128 KB of its own, or all to the same 2 MB, a head's dQ: in turn,
// each at another place of it at a time, or all at the same place at once.
#include "micro.cuh"

enum way { OWN, IN_TURN, AT_ONCE, WAYS };
enum { OWN_BYTES = 128 << 10, SAME_BYTES = 2 << 20, ROUND_BYTES = 64 << 10, COLUMNS = 128 };

// Where this block adds: pieces of `bytes`, one after another and then again.
struct pieces {
    char *base;
    int at, count;

    __device__ pieces(float *to, int way, int bytes)
        : base((char *)to + (way == OWN ? (size_t)blockIdx.x * OWN_BYTES : 0)), at(0),
          count((way == OWN ? OWN_BYTES : SAME_BYTES) / bytes)
    {
        if (way == IN_TURN)
            at = (int)(blockIdx.x * count / gridDim.x);
    }
    __device__ void next() { at = at + 1 == count ? 0 : at + 1; }
};

template <int BYTES, bool FOUR>
static __global__ void __launch_bounds__(128, 1) bulk(probe p, float *to, int way)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_MEMORY(memory);
    pieces where(to, way, BYTES);

    for (int i = threadIdx.x; i < BYTES / 4; i += blockDim.x)
        ((float *)memory)[i] = 1.0f;
    device_copies_to_products();

    const long long from = begin();

    if (threadIdx.x == 0) {
        #pragma unroll 1
        for (int r = 0; r < p.rounds; r++, where.next()) {
            device_bulk_add((float *)(where.base + (size_t)where.at * BYTES),
                            (const float *)memory, BYTES);
            device_bulk_commit();
            if (FOUR)
                device_bulk_wait<3>();
            else
                device_bulk_wait_read();
        }
        device_bulk_wait<0>();
    }
    end(p, from);
#endif
}

template <bool ROWS>
static __global__ void __launch_bounds__(256, 1) pairs(probe p, float *to, int way)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float one = p.in[threadIdx.x];
    pieces where(to, way, ROUND_BYTES);
    const long long from = begin();

    #pragma unroll 1
    for (int r = 0; r < p.rounds; r++, where.next()) {
        float *const tile = (float *)(where.base + (size_t)where.at * ROUND_BYTES) +
                            warp * 16 * COLUMNS;    // 16 rows of COLUMNS

        #pragma unroll
        for (int half = 0; half < 2; half++)
            #pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++) {
                const int at = ROWS ? (half * 8 + lane / 4) * COLUMNS + n * 8 + lane % 4 * 2
                                    : (half * 16 + n) * 64 + lane * 2;

                device_add_pair(tile + at, one, one);
            }
    }
    __threadfence();    // they have been taken
    end(p, from);
}

static float *sums;

// bytes: of a piece, the kernel's.
static void row(const char *name, void (*kernel)(probe, float *, int), int threads, int shared,
                int bytes)
{
    const int rounds = (4 << 20) / bytes;
    double alone = 0, giga[WAYS];

    for (int way = 0; way < WAYS; way++) {
        const size_t n = (way == OWN ? gpu.sms * (size_t)OWN_BYTES : (size_t)SAME_BYTES) / 4;

        // each piece once by every block that adds to it
        CHECK(cudaMemset(sums, 0, n * 4));
        launch(kernel, gpu.sms, threads, shared, (way == OWN ? OWN_BYTES : SAME_BYTES) / bytes,
               sums, way);
        for (float x : on_host(sums, n))
            if (!gpu.wrong)
                demand_near(name, x, way == OWN ? 1 : gpu.sms, 0);

        const rate r = measure(kernel, threads, shared, rounds, sums, way);

        giga[way] = (double)rounds * bytes * gpu.sms / r.seconds * 1e-9;
        if (way == OWN)
            alone = (double)rounds * bytes / r.alone;
    }
    printf("| %s | %.1f | %.0f | %.0f | %.0f |\n", name, alone, giga[OWN], giga[IN_TURN],
           giga[AT_ONCE]);
}

template <int KB> static void rows_of_bulk()
{
    char name[64];

    for (int four = 0; four < 2; four++) {
        snprintf(name, sizeof name, "copy engine, %d KB, %s", KB, four ? "four" : "one read");
        row(name, four ? bulk<KB * 1024, true> : bulk<KB * 1024, false>, 128, KB * 1024, KB * 1024);
    }
}

int main()
{
    open_gpu();
    CHECK(cudaMalloc(&sums, std::max((size_t)gpu.sms * OWN_BYTES, (size_t)SAME_BYTES)));
    printf("### Adding in global memory, f32\n\nBytes of sums: a clock by one multiprocessor "
           "alone, to its own; GB/s of all.\n\n"
           "| by | alone | to their own | the same, in turn | the same at once |\n"
           "| --- | ---: | ---: | ---: | ---: |\n");
    rows_of_bulk<8>(), rows_of_bulk<16>(), rows_of_bulk<32>();
    row("registers, 256 bytes a warp", pairs<false>, 256, 0, ROUND_BYTES);
    row("registers, 8 rows of 32 bytes", pairs<true>, 256, 0, ROUND_BYTES);
    return close_gpu();
}
