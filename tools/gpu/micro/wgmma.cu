// SPDX-License-Identifier: MIT
// gpu/micro/wgmma.cu: FLOP a clock of a multiprocessor by wgmma m64nNk16, bf16 with f32 sums,
// whose peak is 4096: what softmax_fwd_wgmma and softmax_bwd_wgmma are made of.
//
//   A, B by rows      scores: both operands with rows along rows of the result
//   A in registers    O += P V, dV += P dO: B with rows along the depth (N 256: D 256, and the
//                     widest sums that a warpgroup holds)
//   A, B turned       dQ += dS K: both with rows along the depth
//
// Groups of four products (64 deep) go out one after another, with one on its way while the
// next is issued ("on"), or each waited for, as a softmax in between has it ("waited"). Each
// warpgroup has an A of its own, all of them the same B; operands are hashed, since zeros need
// less power. A few rounds are held against the formula.
#include <cstring>

#include "micro.cuh"

enum kind { BY_ROWS, REGISTERS, TURNED };
enum { DEPTH = 64, PEAK = 4096, BF16 = 2 };

// The bf16 word of an element: 0.5 to 2, either sign.
static __host__ __device__ uint16_t element(uint32_t of, int row, int column)
{
    uint32_t u = (of * 1024 + row) * 2654435761u + column * 2246822519u;

    u ^= u >> 15, u *= 3266489917u, u ^= u >> 13, u *= 668265263u, u ^= u >> 16;
    return (uint16_t)((u & 0x807f) | (126 + (u >> 7 & 1)) << 7);
}

// A(m, k), of each warpgroup; B(k, n).
static __host__ __device__ uint16_t of_a(int wg, int m, int k) { return element(1 + wg, m, k); }
static __host__ __device__ uint16_t of_b(int k, int n) { return element(9, k, n); }

__host__ __device__ constexpr int bytes_of_b(int kind, int n)
{
    return kind == BY_ROWS ? n * DEPTH * 2 : (n + 63) / 64 * 64 * DEPTH * 2;
}

// Warpgroups that have registers for it.
__host__ __device__ constexpr int most_wgs(int kind, int n)
{
    return kind == REGISTERS && n == 256 ? 2 : 3;
}

// Where an element of a tile of panels of `rows` rows and 64 columns lies.
static __device__ uint16_t *place_in(char *tile, int rows, int r, int c)
{
    return (uint16_t *)(tile + c / 64 * rows * 128 + r * 128 + ((c / 8 ^ r) & 7) * 16 +
                        c % 8 * 2);
}

template <int KIND, int N> static __device__ void fill(char *a, char *b, int wg)
{
    for (int i = threadIdx.x % 128; i < 64 * DEPTH; i += 128) {
        const int m = i / DEPTH, k = i % DEPTH;

        *(KIND == TURNED ? place_in(a, DEPTH, k, m) : place_in(a, 64, m, k)) = of_a(wg, m, k);
    }
    for (int i = threadIdx.x; i < N * DEPTH; i += blockDim.x) {
        const int n = i / DEPTH, k = i % DEPTH;

        *(KIND == BY_ROWS ? place_in(b, N, n, k) : place_in(b, DEPTH, k, n)) = of_b(k, n);
    }
}

// PENDING: groups that need not have ended when the next begins.
template <int KIND, int N, int PENDING>
static __global__ void __launch_bounds__(128 * most_wgs(KIND, N), 1)
    products(probe p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    SHARED_MEMORY(memory);
    const int wg = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    char *const b = (char *)memory, *const a = b + bytes_of_b(KIND, N) + wg * 64 * DEPTH * 2;
    uint32_t w[DEPTH / 16][4];
    float c[N / 8][4], sum = 0.0f;

    fill<KIND, N>(a, b, wg);
    device_copies_to_products();
    __syncthreads();
    #pragma unroll
    for (int x = 0; x < DEPTH / 16; x++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int m = warp * 16 + lane / 4 + i % 2 * 8, k = x * 16 + lane % 4 * 2 + i / 2 * 8;

            w[x][i] = of_a(wg, m, k) | (uint32_t)of_a(wg, m, k + 1) << 16;
        }
    #pragma unroll
    for (int i = 0; i < N / 8; i++)
        c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;

    const uint64_t at_a = device_tile(device_address(a), 8192);
    const uint64_t at_b = device_tile(device_address(b), KIND == BY_ROWS ? N * 128 : DEPTH * 128);
    const long long from = begin();

    device_products_hold(c);
    #pragma unroll 1
    for (int r = 0; r < p.rounds; r++) {
        device_products_begin();
        #pragma unroll
        for (int x = 0; x < DEPTH / 16; x++) {
            const int step = KIND == BY_ROWS ? 2 * x : 128 * x;    // of 16 bytes

            if constexpr (KIND == BY_ROWS)
                device_products_in<BF16>(c, at_a + step, at_b + step, 1);
            else if constexpr (KIND == REGISTERS)
                device_products_of<BF16>(c, w[x], at_b + step);
            else
                device_products_turned<BF16>(c, at_a + step, at_b + step, 1);
        }
        device_products_commit();
        device_products_wait<PENDING>();
    }
    device_products_wait<0>();
    device_products_hold(c);
    end(p, from);
    #pragma unroll
    for (int i = 0; i < N / 8; i++)
        sum += (c[i][0] + c[i][1]) + (c[i][2] + c[i][3]);
    put(p, sum);
#endif
}

static double value_of(uint16_t u)
{
    const uint32_t bits = (uint32_t)u << 16;
    float f;

    memcpy(&f, &bits, 4);
    return f;
}

// The sums of each thread of the block's last warpgroup, held against the formula.
template <int KIND, int N> static void verify(int wgs)
{
    const int rounds = 3;
    const auto got = (launch(products<KIND, N, 0>, 1, wgs * 128, bytes_of_b(KIND, N) + wgs * 8192,
                             rounds), results(wgs * 128));

    for (int thread = 0; thread < 128; thread++) {
        double sum = 0, size = 0;

        for (int half = 0; half < 2; half++)
            for (int j = 0; j < N / 4; j++) {
                const int m = thread / 32 * 16 + thread % 32 / 4 + half * 8;
                const int n = j / 2 * 8 + thread % 4 * 2 + j % 2;

                for (int k = 0; k < DEPTH; k++) {
                    const double ab = value_of(of_a(wgs - 1, m, k)) * value_of(of_b(k, n));

                    sum += ab, size += fabs(ab);
                }
            }
        demand_near("wgmma", got[(wgs - 1) * 128 + thread], sum * rounds, size * rounds * 1e-5);
        if (gpu.wrong)
            return;
    }
}

template <int KIND, int N> static void row()
{
    static const char *const name[] = { "A, B by rows", "A in registers", "A, B turned" };
    double tera = 0, ghz = 0;

    verify<KIND, N>(1);
    verify<KIND, N>(most_wgs(KIND, N));
    printf("| %s | %d |", name[KIND], N);
    for (int waited = 0; waited < 2; waited++)
        for (int wgs = 1; wgs <= 3; wgs++) {
            if (wgs > most_wgs(KIND, N)) {
                printf(" |");
                continue;
            }

            const int rounds = 524288 / N, bytes = bytes_of_b(KIND, N) + wgs * 8192;
            const auto kernel = waited ? products<KIND, N, 0> : products<KIND, N, 1>;
            const double flop = 2.0 * 64 * N * DEPTH * rounds * wgs;
            const rate r = measure(kernel, wgs * 128, bytes, rounds);

            printf(" %.0f (%.0f %%) |", flop / r.alone, 100 * flop / r.alone / PEAK);
            if (wgs == 2 && !waited)
                tera = flop * gpu.sms / r.seconds * 1e-12, ghz = r.ghz();
        }
    printf(" %.0f | %.2f |\n", tera, ghz);
}

template <int KIND> static void rows()
{
    row<KIND, 64>(), row<KIND, 96>(), row<KIND, 128>(), row<KIND, 192>(), row<KIND, 256>();
}

int main()
{
    open_gpu();
    printf("### wgmma, bf16\n\nFLOP a clock of a multiprocessor alone (of %d), by warpgroups; "
           "the last two of the whole device, two warpgroups, on.\n\n"
           "| operands | N | 1, on | 2, on | 3, on | 1, waited | 2, waited | 3, waited "
           "| TFLOP/s | GHz |\n| --- |%s\n", PEAK, " ---: | ---: | ---: | ---: | ---: | ---: "
           "| ---: | ---: | ---: |");
    rows<BY_ROWS>();
    rows<REGISTERS>();
    row<TURNED, 64>();
    row<TURNED, 128>();
    return close_gpu();
}
