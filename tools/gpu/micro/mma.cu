// SPDX-License-Identifier: MIT
// gpu/micro/mma.cu: FLOP a clock of a multiprocessor by what runs without wgmma, by warps.
//
//   mma.sync bf16, tf32   softmax_fwd_mma, softmax_bwd_mma, linear attention's chunks: a warp's
//                         tile of 32 x 64, two fragments of A by eight of B (2048 FLOP a clock
//                         by wgmma are the cores' peak in tf32, 4096 in bf16)
//   FFMA in chains        the peak of plain cores, 256: 16 sums, one pair of factors
//   FFMA, 8 x 8 tile      softmax_fwd_tile's: 64 sums, 16 factors from registers, where banks
//                         and the operand cache count
//
// Operands are constants for which the sums are known.
#include "micro.cuh"

// A word of an operand, n of 24: found in memory, so that it has a register of its own whatever
// others hold.
template <bool TF32> static __device__ uint32_t word(const probe &p, int n, float x)
{
    x *= p.in[threadIdx.x + n];
    return TF32 ? __float_as_uint(x) : device_pair<2>(x, x);
}

// Fragment i of A is 1 + i everywhere, fragment j of B (1 + j) / 8.
template <bool TF32> static __global__ void __launch_bounds__(512, 1) cores(probe p)
{
    float c[2][8][4] = {}, sum = 0.0f;
    uint32_t a[2][4], b[8][2];

    #pragma unroll
    for (int i = 0; i < 2; i++)
        #pragma unroll
        for (int x = 0; x < 4; x++)
            a[i][x] = word<TF32>(p, i * 4 + x, 1.0f + i);
    #pragma unroll
    for (int j = 0; j < 8; j++)
        #pragma unroll
        for (int x = 0; x < 2; x++)
            b[j][x] = word<TF32>(p, 8 + j * 2 + x, (1.0f + j) * 0.125f);

    const long long from = begin();

    #pragma unroll 1
    for (int r = 0; r < p.rounds; r++)
        #pragma unroll
        for (int j = 0; j < 8; j++)
            #pragma unroll
            for (int i = 0; i < 2; i++)
                if (TF32)
                    device_multiply_tf32(c[i][j], a[i], b[j][0], b[j][1]);
                else
                    device_multiply<2>(c[i][j], a[i], b[j][0], b[j][1]);
    #pragma unroll
    for (int j = 0; j < 8; j++)
        sum += (c[0][j][0] + c[0][j][1] + c[0][j][2] + c[0][j][3]) +
               (c[1][j][0] + c[1][j][1] + c[1][j][2] + c[1][j][3]);
    end(p, from);
    put(p, sum);
}

enum { CHAINS = 16, FOUR = 4 };

static __global__ void __launch_bounds__(512, 1) chains(probe p)
{
    const float a = p.in[threadIdx.x], b = p.in[threadIdx.x + 512];
    float c[CHAINS] = {}, sum = 0.0f;
    const long long from = begin();

    #pragma unroll 1
    for (int r = 0; r < p.rounds; r++)
        #pragma unroll
        for (int i = 0; i < CHAINS * FOUR; i++)
            c[i % CHAINS] = fmaf(c[i % CHAINS], a, b);
    for (int i = 0; i < CHAINS; i++)
        sum += c[i];
    end(p, from);
    put(p, sum);
}

static __global__ void __launch_bounds__(512, 1) tile(probe p)
{
    float a[8], b[8], c[8][8] = {}, sum = 0.0f;

    for (int i = 0; i < 8; i++) {
        a[i] = p.in[threadIdx.x] + i;
        b[i] = p.in[threadIdx.x + 512] + i;
    }

    const long long from = begin();

    #pragma unroll 1
    for (int r = 0; r < p.rounds; r++)
        #pragma unroll
        for (int four = 0; four < FOUR; four++)
            #pragma unroll
            for (int i = 0; i < 8; i++)
                #pragma unroll
                for (int j = 0; j < 8; j++)
                    c[i][j] = fmaf(a[i], b[j], c[i][j]);
    #pragma unroll
    for (int i = 0; i < 8; i++)
        #pragma unroll
        for (int j = 0; j < 8; j++)
            sum += c[i][j];
    end(p, from);
    put(p, sum);
}

// flop: of a warp in a round; sum: what a thread has after a round, of all its sums.
static void row(const char *name, void (*kernel)(probe), int rounds, double flop, double sum,
                double peak)
{
    rate r = {};

    printf("| %s |", name);
    for (int warps = 4; warps <= 16; warps *= 2) {
        r = measure(kernel, warps * 32, 0, rounds);
        for (float x : results(warps * 32))
            if (!gpu.wrong)
                demand_near(name, x, sum * rounds, sum * rounds * 1e-6);
        printf(" %.0f (%.0f %%) |", flop * warps * rounds / r.alone,
               100 * flop * warps * rounds / r.alone / peak);
    }
    printf(" %.1f | %.2f |\n", flop * 16 * rounds * gpu.sms / r.seconds * 1e-12, r.ghz());
}

int main()
{
    const double fragments = 4 * 3 * 36 / 8.0;    // sums of those of A, B; 4 in a thread

    open_gpu();
    printf("### mma.sync and FFMA\n\nFLOP a clock of a multiprocessor alone, by warps; the last "
           "two of the whole device, 16 warps.\n\n"
           "| what (peak) | 4 | 8 | 16 | TFLOP/s | GHz |\n"
           "| --- | ---: | ---: | ---: | ---: | ---: |\n");
    row("mma m16n8k16 bf16 (4096)", cores<false>, 4096, 16 * 4096.0, 16 * fragments, 4096);
    row("mma m16n8k8 tf32 (2048)", cores<true>, 4096, 16 * 2048.0, 8 * fragments, 2048);
    row("FFMA in chains (256)", chains, 8192, 64.0 * FOUR * CHAINS, FOUR * CHAINS, 256);
    row("FFMA, 8 x 8 tile (256)", tile, 2048, 64.0 * FOUR * 64, FOUR * 36.0 * 36, 256);
    return close_gpu();
}
