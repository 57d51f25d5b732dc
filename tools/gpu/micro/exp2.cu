// SPDX-License-Identifier: MIT
// gpu/micro/exp2.cu: ex2.approx.ftz.f32 (16 a clock of a multiprocessor are expected), which the
// softmax of every score needs one of: alone; among FFMA of the same warp, as scores are scaled
// and summed up; and in a warpgroup beside another one's wgmma, on which the turns of
// softmax_fwd_wgmma rest.
#include "micro.cuh"

enum { CHAINS = 8, BF16 = 2, N = 128, WORDS = 4, GROUPS = 16 };

// x -> 2^-x comes to 0.641186, FFMA chains 1, 2, 3 ...: results show that all were done.
static const double FIXED = 0.6411857445;

template <int FMAS> DEVICE void step(float (&x)[CHAINS], float (&c)[CHAINS], float a, float b)
{
    #pragma unroll
    for (int i = 0; i < CHAINS; i++) {
        x[i] = device_exp2(-x[i]);
        #pragma unroll
        for (int j = 0; j < FMAS; j++)
            c[(i + j) % CHAINS] = fmaf(c[(i + j) % CHAINS], a, b);
    }
}

DEVICE float sum_of(const float (&x)[CHAINS])
{
    float sum = 0.0f;

    for (int i = 0; i < CHAINS; i++)
        sum += x[i];
    return sum;
}

// EXPS: whether there are exponentials at all. out: the sum of both.
template <bool EXPS, int FMAS> static __global__ void __launch_bounds__(512, 1) mixed(probe p)
{
    const float a = p.in[threadIdx.x], b = p.in[threadIdx.x + 512];
    float x[CHAINS], c[CHAINS] = {};

    for (int i = 0; i < CHAINS; i++)
        x[i] = a * 0.125f * (i + 1);

    const long long from = begin();

    #pragma unroll 1
    for (int r = 0; r < p.rounds; r++)
        #pragma unroll
        for (int twice = 0; twice < 2; twice++)
            if constexpr (EXPS)
                step<FMAS>(x, c, a, b);
            else
                #pragma unroll
                for (int i = 0; i < CHAINS * FMAS; i++)
                    c[i % CHAINS] = fmaf(c[i % CHAINS], a, b);

    const float sums = sum_of(c), all = EXPS ? sums + sum_of(x) : sums;

    end(p, from);
    put(p, all);
}

template <bool EXPS, int FMAS> static double clocks_of(int warps, int rounds)
{
    const rate r = measure(mixed<EXPS, FMAS>, warps * 32, 0, rounds);
    const double fmas = 2.0 * CHAINS * FMAS * rounds, wanted = fmas + (EXPS ? CHAINS * FIXED : 0);

    for (float x : results(warps * 32))
        if (!gpu.wrong)
            demand_near("exp2 and FFMA", x, wanted, 1e-5 * (wanted + 1));
    return r.alone;
}

template <int FMAS> static void ratio()
{
    const int rounds = 4096;

    printf("| 1 : %d |", FMAS);
    for (int warps = 4; warps <= 16; warps *= 2) {
        const double all = 32.0 * warps * 2 * CHAINS * rounds;
        const double clocks = clocks_of<true, FMAS>(warps, rounds);

        printf(" %.1f | %.1f |", all / clocks, FMAS * all / clocks);
        if constexpr (FMAS > 0)
            printf(" %.1f |", FMAS * all / clocks_of<false, FMAS>(warps, rounds));
        else
            printf(" |");
    }
    printf("\n");
}

// Two warpgroups side by side for p.rounds clocks: one multiplies if `products`, one takes
// exponentials, FMAS FFMA to each, if `exps`. clocks: WORDS a block, clocks and rounds of each.
template <int FMAS>
static __global__ void __launch_bounds__(256, 1) beside(probe p, int products, int exps)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_MEMORY(memory);
    __shared__ volatile int go[2];
    const int wg = threadIdx.x / 128;
    const float a = p.in[threadIdx.x], b = p.in[threadIdx.x + 512];
    uint32_t *const words = (uint32_t *)memory;    // of bf16 ones, whatever the layout

    for (int i = threadIdx.x; i < (64 + N) * 32; i += 256)
        words[i] = 0x3f803f80u;
    device_copies_to_products();

    long long rounds = 0, now;
    const long long from = begin();

    if (wg == 0 && products) {
        float c[N / 8][4] = {};
        const uint64_t own = device_tile(device_address(memory), 8192);
        const uint64_t rows = device_tile(device_address(words + 64 * 32), N * 128);
        float sum = 0.0f;

        device_products_hold(c);
        do {
            #pragma unroll 1
            for (int r = 0; r < GROUPS; r++) {
                device_products_begin();
                #pragma unroll
                for (int x = 0; x < 4; x++)
                    device_products_in<BF16>(c, own + 2 * x, rows + 2 * x, 1);
                device_products_commit();
                device_products_wait<1>();
            }
            rounds += GROUPS;
            now = clock64() - from;
            if (threadIdx.x == 0)    // its four warps must agree
                go[rounds / GROUPS % 2] = now < p.rounds;
            device_meet<128>(1);
        } while (go[rounds / GROUPS % 2]);
        device_products_wait<0>();
        device_products_hold(c);
        now = clock64() - from;
        #pragma unroll
        for (int i = 0; i < N / 8; i++)
            sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
        put(p, sum / rounds);
    } else if (wg == 1 && exps) {
        float x[CHAINS], c[CHAINS] = {};

        for (int i = 0; i < CHAINS; i++)
            x[i] = a * 0.125f * (i + 1);
        do {
            #pragma unroll
            for (int again = 0; again < 4; again++)
                step<FMAS>(x, c, a, b);
            rounds++;
            now = clock64() - from;
        } while (now < p.rounds);
        put(p, sum_of(x) + sum_of(c) / rounds);
    } else
        return;
    if (threadIdx.x % 128 == 0) {
        p.clocks[WORDS * blockIdx.x + wg * 2] = now;
        p.clocks[WORDS * blockIdx.x + wg * 2 + 1] = rounds;
    }
#endif
}

// Of a multiprocessor alone: FLOP a clock, exponentials a clock; -1: has none.
template <int FMAS> static void rates(int products, int exps, double (&got)[2])
{
    const int clocks = 400000;
    const double each[2] = { 4 * 2.0 * 64 * N * 16, 4.0 * CHAINS * 128 };
    const double wanted[2] = { 4.0 * (N / 2) * 16, CHAINS * FIXED + FMAS * 4.0 * CHAINS };

    got[0] = got[1] = -1;
    for (int run = 0; run < RUNS; run++) {
        launch(beside<FMAS>, 1, 256, (64 + N) * 128, clocks, products, exps);

        const auto words = on_host(gpu.p.clocks, WORDS);
        const auto out = results(256);

        for (int wg = 0; wg < 2; wg++)
            if (wg ? exps : products) {
                got[wg] = std::max(got[wg], each[wg] * words[wg * 2 + 1] / words[wg * 2]);
                demand_near("exp2 beside wgmma", out[wg * 128 + 5], wanted[wg], wanted[wg] * 1e-4);
            }
    }
}

template <int FMAS> static void together()
{
    double alone[2], other[2], both[2];

    rates<FMAS>(1, 0, alone);
    rates<FMAS>(0, 1, other);
    rates<FMAS>(1, 1, both);
    printf("| 1 : %d | %.0f | %.0f | %.1f | %.1f |\n", FMAS, alone[0], both[0], other[1], both[1]);
}

int main()
{
    open_gpu();
    printf("### exp2\n\nA clock of a multiprocessor alone, by warps: exponentials, FFMA beside "
           "them, and those FFMA without exponentials.\n\n"
           "| exp2 : FFMA | 4: exp2 | FFMA | FFMA alone | 8: exp2 | FFMA | FFMA alone "
           "| 16: exp2 | FFMA | FFMA alone |\n| --- |%s\n",
           " ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    ratio<0>(), ratio<1>(), ratio<2>(), ratio<4>(), ratio<8>();
    printf("\nOne warpgroup beside another's wgmma (m64n%dk16, operands in shared memory):\n\n"
           "| exp2 : FFMA | FLOP a clock alone | beside | exp2 a clock alone | beside |\n"
           "| --- | ---: | ---: | ---: | ---: |\n", N);
    together<0>(), together<1>(), together<4>();
    return close_gpu();
}
