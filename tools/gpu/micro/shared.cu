// SPDX-License-Identifier: MIT
// gpu/micro/shared.cu: bytes a clock of a multiprocessor between shared memory and registers
// (128 are its banks'), on which register tiles and the exchange of sums rest.
//
//   LDS.128     by how many different 16 bytes a warp asks for, in the order of lanes of
//               softmax/stage.cuh (lanes i and i ^ 2 or i ^ 1 share) and in the plain one
//   STS         of 8 and of 16 bytes, next to each other
//   the tile    12 LDS.128 to 128 FFMA (4 x 8 results a thread) and 16 to 256 (8 x 8), as the
//               products of softmax_fwd_tile are: both, and each alone, which says what binds
#include "micro.cuh"

#define TYPE TYPE_F32    // for stage.cuh
#include "softmax/stage.cuh"

template <int TX_> struct lanes {
    static constexpr int TX = TX_;
};

enum { EACH = 16, STORES = 4, FAR = 16384, CHUNKS = 16, PITCH = 4 * CHUNKS + 4 };
enum order { PLAIN, AS_STAGED };
enum mode { BOTH, LOADS, PRODUCTS };

DEVICE uint4 load(device_shared at)
{
    uint4 x;

    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    return x;
}

// Which of `different` 16 bytes a lane asks for.
static __device__ int chunk_of(int order, int different, int lane)
{
    const auto wide = place_of_thread<lanes<16>>(lane);
    const auto narrow = place_of_thread<lanes<8>>(lane);

    switch (different) {
    case 32: return lane;
    case 16: return order == PLAIN ? lane % 16 : wide.tx;
    case 8: return order == PLAIN ? lane % 8 : narrow.tx;
    case 4: return order == PLAIN ? lane / 8 : narrow.ty;
    default: return order == PLAIN ? lane / 16 : wide.ty;
    }
}

// Words hold their own number; every other round reads FAR bytes further.
static __global__ void __launch_bounds__(512, 1) loads(probe p, int order, int different)
{
    SHARED_MEMORY(memory);
    uint32_t *const words = (uint32_t *)memory;
    uint32_t sum[4] = {};    // so that none waits for the one before

    for (int i = threadIdx.x; i < 2 * FAR / 4; i += blockDim.x)
        words[i] = i;

    device_shared at = device_address(memory) + 16 * chunk_of(order, different, threadIdx.x % 32);
    const long long from = begin();

    #pragma unroll 1
    for (int r = 0; r < p.rounds; r++) {
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint4 x = load(at + i * 512);

            sum[i % 2 * 2] += x.x + x.y;
            sum[i % 2 * 2 + 1] += x.z + x.w;
        }
        at ^= FAR;
    }
    end(p, from);
    put(p, (float)((sum[0] + sum[1] + sum[2] + sum[3]) & 0xffffff));
}

// Each thread writes its own bytes, WIDE of them; then what stands there is read.
template <int WIDE> static __global__ void __launch_bounds__(512, 1) stores(probe p)
{
    SHARED_MEMORY(memory);
    const device_shared base = device_address(memory) + threadIdx.x * WIDE;
    device_shared at = base;
    const long long from = begin();

    #pragma unroll 1
    for (int r = 0; r < p.rounds; r++) {
        #pragma unroll
        for (int i = 0; i < STORES; i++)    // 512 threads: 32 KB
            if (WIDE == 16)
                asm volatile("st.shared.v4.u32 [%0], {%1, %2, %2, %2};" ::"r"(at + i * 512 * 16),
                             "r"(r), "r"(i) : "memory");
            else
                asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at + i * 512 * 16), "r"(r),
                             "r"(i) : "memory");
        at ^= 2 * FAR;
    }
    end(p, from);
    // of the last round but one
    put(p, (float)*(const uint32_t *)((const char *)memory + (base - device_address(memory))));
}

// Results (ty + i 16, tx + j 16), of COLUMNS a row, sums over 4 CHUNKS columns of both.
template <int ROWS, int COLUMNS, int MODE>
static __global__ void __launch_bounds__(256, 1) tile(probe p)
{
    SHARED_MEMORY(memory);
    float *const rows = (float *)memory, *const others = rows + ROWS * 16 * PITCH;
    const auto place = place_of_thread<lanes<16>>(threadIdx.x);
    const device_shared a = device_address(rows + place.ty * PITCH);
    const device_shared b = device_address(others + place.tx * PITCH);
    float c[ROWS][COLUMNS] = {}, sum = 0.0f;
    float4 u[ROWS], v[COLUMNS];
    uint32_t seen[2] = {};

    for (int i = threadIdx.x; i < (ROWS + COLUMNS) * 16 * PITCH; i += 256)
        rows[i] = 1.0f + i / PITCH % 4;
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < ROWS; i++)
        u[i] = *(const float4 *)(rows + (place.ty + i * 16) * PITCH);
    #pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        v[j] = *(const float4 *)(others + (place.tx + j * 16) * PITCH);

    const long long from = begin();

    #pragma unroll 1
    for (int r = 0; r < p.rounds; r++)
        #pragma unroll 2
        for (int x = 0; x < CHUNKS; x++) {
            #pragma unroll
            for (int i = 0; i < ROWS && MODE != PRODUCTS; i++) {
                const uint4 w = load(a + (i * 16 * PITCH + x * 4) * 4);

                u[i] = make_float4(__uint_as_float(w.x), __uint_as_float(w.y),
                                   __uint_as_float(w.z), __uint_as_float(w.w));
                seen[0] += w.x + w.y;
                seen[1] += w.z + w.w;
            }
            #pragma unroll
            for (int j = 0; j < COLUMNS && MODE != PRODUCTS; j++) {
                const uint4 w = load(b + (j * 16 * PITCH + x * 4) * 4);

                v[j] = make_float4(__uint_as_float(w.x), __uint_as_float(w.y),
                                   __uint_as_float(w.z), __uint_as_float(w.w));
                seen[0] += w.x + w.y;
                seen[1] += w.z + w.w;
            }
            #pragma unroll
            for (int i = 0; i < ROWS && MODE != LOADS; i++)
                #pragma unroll
                for (int j = 0; j < COLUMNS; j++) {
                    c[i][j] = fmaf(u[i].x, v[j].x, c[i][j]);
                    c[i][j] = fmaf(u[i].y, v[j].y, c[i][j]);
                    c[i][j] = fmaf(u[i].z, v[j].z, c[i][j]);
                    c[i][j] = fmaf(u[i].w, v[j].w, c[i][j]);
                }
        }
    #pragma unroll
    for (int i = 0; i < ROWS; i++)
        #pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            sum += c[i][j];
    end(p, from);
    put(p, MODE == LOADS ? (float)(seen[0] + seen[1]) : sum);
}

// Of `pieces` instructions of a warp, `bytes` each: clocks for one, bytes a clock.
static void print_rate(double clocks, double pieces, double bytes)
{
    printf(" %.2f | %.0f |", clocks / pieces, pieces * bytes / clocks);
}

static void row_of_loads(int order, int different)
{
    const int rounds = 4096;

    printf("| LDS.128, %d different, %s |", different,
           different == 32 ? "all" : order == PLAIN ? "plain" : "as staged");
    for (int warps = 4; warps <= 16; warps *= 2) {
        const rate r = measure(loads, warps * 32, 2 * FAR, rounds, order, different);
        const float got = results(32)[0];    // of the first 16 bytes, as all orders have it
        uint32_t sum = 0;

        for (int i = 0; i < EACH; i++)
            for (int word = 0; word < 4; word++)
                sum += (i * 128 + word) * rounds + FAR / 4 * (rounds / 2);
        demand_near("LDS.128", got, sum & 0xffffff, 0);
        print_rate(r.alone, (double)EACH * rounds * warps, 512);
    }
    printf("\n");
}

template <int WIDE> static void row_of_stores()
{
    const int rounds = 4096;

    printf("| STS.%d |", WIDE * 8);
    for (int warps = 4; warps <= 16; warps *= 2) {
        const rate r = measure(stores<WIDE>, warps * 32, 4 * FAR, rounds);

        demand_near("STS", results(32)[31], rounds - 2, 0);
        print_rate(r.alone, (double)STORES * rounds * warps, 32 * WIDE);
    }
    printf("\n");
}

template <int ROWS, int COLUMNS, int MODE> static double clocks_of_tile()
{
    const int rounds = 256;
    const rate r = measure(tile<ROWS, COLUMNS, MODE>, 256, (ROWS + COLUMNS) * 16 * PITCH * 4,
                           rounds);
    const double sum = (double)ROWS * COLUMNS * 4 * CHUNKS * rounds;    // of thread 0, ones

    if (MODE != LOADS)
        demand_near("tile", results(1)[0], sum, sum * 1e-6);
    return r.alone / (rounds * CHUNKS);
}

// A step is one of CHUNKS, of eight warps.
template <int ROWS, int COLUMNS> static void row_of_tile()
{
    const int lds = 8 * (ROWS + COLUMNS), ffma = 8 * ROWS * COLUMNS * 4;
    const double both = clocks_of_tile<ROWS, COLUMNS, BOTH>();
    const double alone = clocks_of_tile<ROWS, COLUMNS, LOADS>();
    const double products = clocks_of_tile<ROWS, COLUMNS, PRODUCTS>();

    printf("| %d : %d | %.0f | %.0f | %.0f | %.0f %% | %.2f |\n", ROWS + COLUMNS,
           ROWS * COLUMNS * 4, both, alone, products, 100 * ffma / 4 / both, alone / lds);
}

int main()
{
    open_gpu();
    printf("### Shared memory\n\nClocks of a multiprocessor for one instruction of a warp, and "
           "bytes to registers a clock, by warps.\n\n"
           "| what | 4 | bytes | 8 | bytes | 16 | bytes |\n"
           "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    row_of_loads(PLAIN, 32);
    for (int different = 16; different >= 2; different /= 2)
        row_of_loads(AS_STAGED, different), row_of_loads(PLAIN, different);
    row_of_stores<8>();
    row_of_stores<16>();
    printf("\nRegister tiles of eight warps, clocks for four columns of both operands:\n\n"
           "| LDS.128 : FFMA | both | loads alone | products alone | of FFMA's peak "
           "| clocks a load |\n| --- | ---: | ---: | ---: | ---: | ---: |\n");
    row_of_tile<4, 8>();
    row_of_tile<8, 8>();
    return close_gpu();
}
