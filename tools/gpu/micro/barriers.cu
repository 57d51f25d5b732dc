// SPDX-License-Identifier: MIT
// gpu/micro/barriers.cu: clocks of what warps that have different work wait for each other by.
//
//   bar.sync     device_meet(): warpgroups' turns, and steps of kernels whose warps do the same
//   mbarrier     arrive by one warp, wait by another, and back: slots of rings, full and empty
//   setmaxnreg   registers handed from the loading warpgroup to the others, once a kernel
#include "micro.cuh"

template <int THREADS>
static __global__ void __launch_bounds__(THREADS, 1) meetings(probe p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const long long from = begin();

    #pragma unroll 4
    for (int r = 0; r < p.rounds; r++)
        device_meet<THREADS>(1);
    end(p, from);
#endif
}

// Warp 0 of warpgroup 0 and that of the next, each waits for the other; the second counts.
static __global__ void __launch_bounds__(256, 1) ping_pong(probe p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ device_barrier there, back;
    __shared__ volatile int count;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        device_barrier_init(&there, 1);
        device_barrier_init(&back, 1);
        count = 0;
    }
    device_barriers_ready();

    const long long from = begin();

    if (warp == 0) {
        #pragma unroll 1
        for (int r = 0; r < p.rounds; r++) {
            if (lane == 0)
                device_barrier_arrive(&there);
            wait_for(&back, r & 1);
            __syncwarp();    // lest lane 0 be two phases ahead of a lane
        }
    } else if (warp == 4) {
        int seen = 0;

        #pragma unroll 1
        for (int r = 0; r < p.rounds; r++) {
            wait_for(&there, r & 1);
            __syncwarp();
            if (lane == 0)
                device_barrier_arrive(&back);
            seen++;
        }
        if (lane == 0)
            count = seen;
    }
    end(p, from);
    put(p, (float)count);
#endif
}

// An arrival and a wait of one warp for itself: what they cost where nobody is late.
static __global__ void __launch_bounds__(32, 1) own_phase(probe p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ device_barrier there;

    if (threadIdx.x == 0)
        device_barrier_init(&there, 1);
    device_barriers_ready();

    const long long from = begin();

    #pragma unroll 1
    for (int r = 0; r < p.rounds; r++) {
        if (threadIdx.x == 0)
            device_barrier_arrive(&there);
        wait_for(&there, r & 1);
        __syncwarp();
    }
    end(p, from);
#endif
}

// HAND: a warpgroup leaves registers and takes them back, with a barrier after each, as the
// instruction wants; else the barriers alone. The kernel begins with 160 or 168 each.
template <bool HAND> static __global__ void __launch_bounds__(384, 1) registers(probe p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const long long from = begin();

    if (threadIdx.x < 128) {
        #pragma unroll 1
        for (int r = 0; r < p.rounds; r++) {
            if (HAND)
                device_leave_registers<40>();
            device_meet<128>(1);
            if (HAND)
                device_take_registers<160>();
            device_meet<128>(1);
        }
    }
    end(p, from);
#endif
}

static double clocks_of(void (*kernel)(probe), int threads)
{
    const int rounds = 4096;
    double least = 1e300;

    for (int run = 0; run < RUNS; run++) {
        launch(kernel, 1, threads, 0, rounds);
        least = std::min(least, (double)on_host(gpu.p.clocks, 1)[0]);
    }
    if (kernel == ping_pong)
        demand_near("mbarrier", results(1)[0], rounds, 0);
    return least / rounds;
}

static void row(const char *name, double clocks)
{
    printf("| %s | %.1f |\n", name, clocks);
}

int main()
{
    open_gpu();
    printf("### Barriers\n\nClocks on one multiprocessor.\n\n| what | clocks |\n| --- | ---: |\n");
    row("bar.sync of 128 threads", clocks_of(meetings<128>, 128));
    row("bar.sync of 256 threads", clocks_of(meetings<256>, 256));
    row("bar.sync of 384 threads", clocks_of(meetings<384>, 384));
    row("mbarrier, arrival and wait of one warp", clocks_of(own_phase, 32));
    row("mbarrier, to another warp and back", clocks_of(ping_pong, 256));

    // last, since a mistake here is one that does not end
    const double handed = clocks_of(registers<true>, 384);

    row("setmaxnreg, to 40 and back to 160", handed - clocks_of(registers<false>, 384));
    return close_gpu();
}
