// SPDX-License-Identifier: MIT
// gpu/micro/copies.cu: how long rows take from memory to shared memory, and how much comes with
// how many copies on their way: what the rings of stages of K and V rest on.
//
//   box        device_copy_box(): 64 rows of 64 columns of 16 bits, 8 KB, and 256 rows, 32 KB,
//              from issue to arrival at the barrier: softmax_fwd_wgmma, softmax_bwd_wgmma
//   cp.async   16 bytes by one thread, and 8 KB by 128 threads, four each, up to the barrier of
//              those: softmax_fwd_mma, and rows that no map can bring
//
// "second cache": what the same block read just before; "memory": never read since the cache was
// filled with other things. Word i of the tensor is i, and of what came last a row is summed up.
#include "micro.cuh"

enum { BUFFER = 1 << 30, FLUSH = 256 << 20, ROW = 128, LATENCIES = 64, BY_THREADS = 128 };
enum { BOX_8 = 64 * ROW, BOX_32 = 256 * ROW };    // bytes of a box

static __global__ void number(uint32_t *x, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        x[i] = (uint32_t)i;
}

// Whether a row came, in whatever order its words lie.
static __device__ bool right(const void *at, int row)
{
    const uint32_t *const words = (const uint32_t *)at;
    uint32_t sum = 0;

    for (int i = 0; i < ROW / 4; i++)
        sum += words[i];
    return sum == (uint32_t)row * 32 * 32 + 31 * 16;
}

// Four copies of each of BY_THREADS threads.
DEVICE void copy_8(char *to, const char *from)
{
    #pragma unroll
    for (int i = 0; i < BOX_8 / 16 / BY_THREADS; i++) {
        const int at = (threadIdx.x + i * BY_THREADS) * 16;

        device_copy<16>((float *)(to + at), from + at, true);
    }
}

// Each block's `span` pieces of BYTES, one after another, again and again, IN_FLIGHT of them on
// their way, p.rounds in all: boxes by one thread here, cp.async by 128 threads below.
template <int BYTES, int IN_FLIGHT>
static __global__ void __launch_bounds__(BY_THREADS, 1)
    boxes(probe p, const __grid_constant__ attn_map map, int span)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_MEMORY(memory);
    __shared__ device_barrier full[IN_FLIGHT];
    const int first = blockIdx.x * span;
    char *const to = (char *)memory;
    int piece = first, last = 0, slot = 0;
    uint32_t parity = 1;    // of the slots' phases before

    if (threadIdx.x == 0)
        for (int i = 0; i < IN_FLIGHT; i++)
            device_barrier_init(&full[i], 1);
    device_barriers_ready();

    const long long from = begin();

    if (threadIdx.x == 0) {
        #pragma unroll 1
        for (int i = 0; i < p.rounds; i++) {
            if (i >= IN_FLIGHT)
                wait_for(&full[slot], parity);
            device_barrier_expect(&full[slot], BYTES);
            device_copy_box(to + slot * BYTES, &map, 0, piece * (BYTES / ROW), 0, 0, &full[slot]);
            last = piece;
            piece = piece + 1 == first + span ? first : piece + 1;
            if (++slot == IN_FLIGHT)
                slot = 0, parity ^= 1;
        }
        #pragma unroll 1
        for (int i = 0; i < IN_FLIGHT; i++) {    // p.rounds is no less
            wait_for(&full[slot], parity);
            if (++slot == IN_FLIGHT)
                slot = 0, parity ^= 1;
        }
    }
    end(p, from);
    slot = (p.rounds - 1) % IN_FLIGHT;
    put(p, threadIdx.x != 0 || right(to + slot * BYTES + BYTES - ROW,
                                     (last + 1) * (BYTES / ROW) - 1));
#endif
}

template <int IN_FLIGHT>
static __global__ void __launch_bounds__(BY_THREADS, 1)
    threads(probe p, const char *x, int span)
{
    SHARED_MEMORY(memory);
    const int first = blockIdx.x * span;
    char *const to = (char *)memory;
    int piece = first, slot = 0;
    const long long from = begin();

    #pragma unroll 1
    for (int i = 0; i < p.rounds; i++) {
        if (i >= IN_FLIGHT)
            device_copied<IN_FLIGHT - 1>();
        copy_8(to + slot * BOX_8, x + (size_t)piece * BOX_8);
        device_commit();
        piece = piece + 1 == first + span ? first : piece + 1;
        slot = slot + 1 == IN_FLIGHT ? 0 : slot + 1;
    }
    device_arrive();
    end(p, from);
    slot = (p.rounds - 1) % IN_FLIGHT, piece = first + (p.rounds - 1) % span;
    put(p, right(to + slot * BOX_8 + BOX_8 - ROW, (piece + 1) * 64 - 1));
}

// Clocks of one copy after another, LATENCIES of pieces that nobody had, and the same once more.
// BY_MAP: a box of BYTES; else cp.async, 16 bytes by one thread or BOX_8 by all.
template <int BYTES, bool BY_MAP>
static __global__ void __launch_bounds__(BY_THREADS, 1)
    latency(probe p, const __grid_constant__ attn_map map, const char *x)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_MEMORY(memory);
    __shared__ device_barrier full;
    char *const to = (char *)memory;
    bool good = true;

    if (threadIdx.x == 0)
        device_barrier_init(&full, 1);
    device_barriers_ready();
    #pragma unroll 1
    for (int i = 0; i < 2 * LATENCIES; i++) {
        const int piece = i % LATENCIES;
        const char *const source = x + (size_t)piece * BOX_8;
        const long long from = begin();

        if (BY_MAP) {
            if (threadIdx.x == 0) {
                device_barrier_expect(&full, BYTES);
                device_copy_box(to, &map, 0, piece * (BYTES / ROW), 0, 0, &full);
                wait_for(&full, i & 1);
            }
        } else if (BYTES == 16) {
            if (threadIdx.x == 0) {
                device_copy<16>((float *)to, source, true);
                device_commit();
                device_copied<0>();
            }
        } else {
            copy_8(to, source);
            device_arrive();
        }
        if (threadIdx.x == 0) {
            p.clocks[i] = clock64() - from;
            good = good && (BYTES == 16 ? *(uint32_t *)to == (uint32_t)piece * (BOX_8 / 4)
                                        : right(to, piece * (BYTES / ROW)));
        }
    }
    put(p, good);
#endif
}

static char *buffer, *other;

static void flush() { CHECK(cudaMemset(other, 0, FLUSH)); }

static void check_ones(const char *what, int blocks)
{
    const auto out = on_host(gpu.p.out, (size_t)blocks * MOST_THREADS);

    for (int block = 0; block < blocks && !gpu.wrong; block++)
        demand_near(what, out[(size_t)block * MOST_THREADS], 1, 0);
}

static attn_map map_for(int bytes)
{
    return map_of(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, buffer, 64, BUFFER / ROW, 1, 1, bytes / ROW);
}

template <int BYTES, bool BY_MAP> static void row_of_latency(const char *name)
{
    const attn_map map = map_for(BY_MAP ? BYTES : BOX_8);

    gpu.before = flush;
    launch(latency<BYTES, BY_MAP>, 1, BY_THREADS, BY_MAP ? BYTES : BOX_8, 0, map, buffer);
    check_ones(name, 1);

    auto clocks = on_host(gpu.p.clocks, 2 * LATENCIES);
    const auto middle = clocks.begin() + LATENCIES;

    std::sort(clocks.begin(), middle), std::sort(middle, clocks.end());
    printf("| %s |", name);
    for (const auto at : { middle, clocks.begin() })
        printf(" %lld | %lld | %lld |", at[0], at[LATENCIES / 2], at[LATENCIES - 1]);
    printf("\n");
}

// Bytes a clock of one alone, and of all; of the latter GB/s.
static void print_rate(rate r, double bytes)
{
    printf(" %.1f | %.1f | %.0f |", bytes / r.alone, bytes / r.each,
           bytes * gpu.sms / r.seconds * 1e-9);
}

// From the cache: each block's 128 KB again and again, once before; from memory: its part of the
// buffer.
template <typename Measure> static void print_both(int bytes, Measure measure)
{
    const int warm = (128 << 10) / bytes, rounds = 16 * warm, all = BUFFER / bytes / gpu.sms;

    gpu.before = nullptr;
    print_rate(measure(rounds, warm), (double)rounds * bytes);
    gpu.before = flush;
    print_rate(measure(all / 2, all), (double)(all / 2) * bytes);
    printf("\n");
}

template <int BYTES, int IN_FLIGHT> static void row_of_boxes()
{
    const attn_map map = map_for(BYTES);

    printf("| boxes of %d KB | %d |", BYTES >> 10, IN_FLIGHT);
    print_both(BYTES, [&](int rounds, int span) {
        const rate r = measure(boxes<BYTES, IN_FLIGHT>, BY_THREADS, IN_FLIGHT * BYTES, rounds, map,
                               span);

        check_ones("boxes", gpu.sms);
        return r;
    });
}

template <int IN_FLIGHT> static void row_of_threads()
{
    printf("| cp.async, 8 KB | %d |", IN_FLIGHT);
    print_both(BOX_8, [](int rounds, int span) {
        const rate r = measure(threads<IN_FLIGHT>, BY_THREADS, IN_FLIGHT * BOX_8, rounds, buffer,
                               span);

        check_ones("cp.async", gpu.sms);
        return r;
    });
}

int main()
{
    open_gpu();
    CHECK(cudaMalloc(&buffer, BUFFER));
    CHECK(cudaMalloc(&other, FLUSH));
    number<<<1024, 256>>>((uint32_t *)buffer, BUFFER / 4);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    printf("### Copies to shared memory\n\nClocks from issue to arrival, one at a time on one "
           "multiprocessor: least, median, most of %d.\n\n"
           "| what | second cache: least | median | most | memory: least | median | most |\n"
           "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n", LATENCIES);
    row_of_latency<BOX_8, true>("box of 8 KB");
    row_of_latency<BOX_32, true>("box of 32 KB");
    row_of_latency<16, false>("cp.async, 16 bytes");
    row_of_latency<BOX_8, false>("cp.async, 8 KB by 128 threads");
    printf("\nBytes a clock of a multiprocessor, one alone and all at once, and GB/s of all:\n\n"
           "| what | on their way | second cache: one | all | GB/s | memory: one | all | GB/s |\n"
           "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    row_of_boxes<BOX_8, 1>(), row_of_boxes<BOX_8, 2>(), row_of_boxes<BOX_8, 4>();
    row_of_boxes<BOX_8, 8>();
    row_of_boxes<BOX_32, 1>(), row_of_boxes<BOX_32, 2>(), row_of_boxes<BOX_32, 4>();
    row_of_boxes<BOX_32, 6>();
    row_of_threads<1>(), row_of_threads<2>(), row_of_threads<4>(), row_of_threads<8>();
    return close_gpu();
}
