// SPDX-License-Identifier: MIT
// gpu/micro/micro.cuh: how the programs of this folder measure. A kernel does `rounds` rounds
// of something between begin() and end(), by whose clocks the rate of a multiprocessor is told:
// of one alone, and of the slowest of all at once, whose time events tell too. Each is the
// least of RUNS. What a kernel computes goes to memory and is looked at where it is known.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "../launch.cuh"
#include "common/hopper.cuh"

enum { RUNS = 4, MOST_THREADS = 1024, SLOTS = 1024, TRIES = 1 << 22 };

// What every kernel gets. clocks: SLOTS to write to, one a block; out: one a thread, MOST_THREADS
// a block. in: ones, so that the compiler does not know what is multiplied.
struct probe {
    int rounds;
    long long *clocks;
    float *out;
    const float *in;
};

DEVICE long long begin()
{
    __syncthreads();
    return clock64();
}

DEVICE void end(const probe &p, long long from)
{
    __syncthreads();
    if (threadIdx.x == 0)
        p.clocks[blockIdx.x] = clock64() - from;
}

DEVICE void put(const probe &p, float x)
{
    p.out[blockIdx.x * MOST_THREADS + threadIdx.x] = x;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// device_barrier_wait() that gives up: a mistake ends as an error, not as a hang.
DEVICE void wait_for(device_barrier *b, uint32_t parity)
{
    #pragma unroll 1
    for (int i = 0; i < TRIES; i++) {
        int there;

        asm volatile("{ .reg .pred there; "
                     "mbarrier.try_wait.parity.shared::cta.b64 there, [%1], %2; "
                     "selp.s32 %0, 1, 0, there; }" : "=r"(there) : "r"(device_address(b)),
                     "r"(parity) : "memory");
        if (there)
            return;
    }
    __trap();
}
#endif

static __global__ void fill_ones(float *x, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        x[i] = 1.0f;
}

// Clocks of one block alone, of the slowest of all at once, and seconds of those by events.
struct rate {
    double alone, each, seconds;
    double ghz() const { return each / seconds * 1e-9; }
};

static struct {
    int sms;
    probe p;
    cudaEvent_t first, last;
    std::function<void()> before;    // each run, not timed
    int wrong;
} gpu;

static inline void open_gpu()
{
    float *ones;
    int major;

    setvbuf(stdout, nullptr, _IOLBF, 0);
    CHECK(cudaSetDevice(0));
    CHECK(cudaDeviceGetAttribute(&gpu.sms, cudaDevAttrMultiProcessorCount, 0));
    CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9 || gpu.sms > SLOTS)
        printf("measured on compute capability 9 alone, this is %d\n", major), exit(2);
    CHECK(cudaMalloc(&gpu.p.clocks, SLOTS * sizeof(long long)));
    CHECK(cudaMalloc(&gpu.p.out, (size_t)gpu.sms * MOST_THREADS * 4));
    CHECK(cudaMalloc(&ones, MOST_THREADS * 4));
    fill_ones<<<1, MOST_THREADS>>>(ones, MOST_THREADS);
    gpu.p.in = ones;
    CHECK(cudaEventCreate(&gpu.first));
    CHECK(cudaEventCreate(&gpu.last));
    spin<<<gpu.sms, 128>>>(100000000);    // until its clock has risen
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
}

// Says what came out wrong; the program then ends with 1.
static inline void demand(bool right, const char *what, double got, double wanted)
{
    if (right)
        return;
    gpu.wrong++;
    printf("\nWRONG: %s: %.9g, not %.9g\n\n", what, got, wanted);
}

static inline void demand_near(const char *what, double got, double wanted, double tolerance)
{
    demand(fabs(got - wanted) <= tolerance, what, got, wanted);
}

static inline int close_gpu()
{
    CHECK(cudaDeviceSynchronize());
    return gpu.wrong != 0;
}

template <typename T> static std::vector<T> on_host(const T *x, size_t n)
{
    std::vector<T> out(n);

    CHECK(cudaMemcpy(out.data(), x, n * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
}

template <typename T> struct as_is {
    typedef T type;
};

// One launch; its seconds.
template <typename... A>
static double launch(void (*kernel)(probe, A...), int blocks, int threads, int bytes,
                     int rounds, typename as_is<A>::type... more)
{
    float ms;
    probe p = gpu.p;

    p.rounds = rounds;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    if (gpu.before)
        gpu.before();
    spin<<<1, 1>>>(40000);
    CHECK(cudaEventRecord(gpu.first));
    kernel<<<blocks, threads, bytes>>>(p, more...);
    CHECK(cudaGetLastError());
    CHECK(cudaEventRecord(gpu.last));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaEventElapsedTime(&ms, gpu.first, gpu.last));
    return ms * 1e-3;
}

// What a thread of block 0 put there in the last launch.
static inline std::vector<float> results(int threads)
{
    return on_host(gpu.p.out, threads);
}

template <typename... A>
static rate measure(void (*kernel)(probe, A...), int threads, int bytes, int rounds,
                    typename as_is<A>::type... more)
{
    rate r = { 1e300, 1e300, 1e300 };

    for (int run = 0; run < RUNS; run++) {
        launch<A...>(kernel, 1, threads, bytes, rounds, more...);
        r.alone = std::min(r.alone, (double)on_host(gpu.p.clocks, 1)[0]);
    }
    for (int run = 0; run < RUNS; run++) {
        const double s = launch<A...>(kernel, gpu.sms, threads, bytes, rounds, more...);
        const auto clocks = on_host(gpu.p.clocks, gpu.sms);

        r.each = std::min(r.each, (double)*std::max_element(clocks.begin(), clocks.end()));
        r.seconds = std::min(r.seconds, s);
    }
    return r;
}
