// SPDX-License-Identifier: MIT
// gpu/try_kernel.cu: times one plain kernel file alone, to try its shapes: compile it with
// a changed copy of the file, no library needed.
//
//   nvcc -O3 -std=c++17 -arch=sm_90a -I cuda_kernels -DTYPE=TYPE_BF16 -DDIM=128 \
//        -DNAME=attn_x -DKERNEL_FILE='"softmax/fwd_split.cu"' -DPART=_ranges -DUSED=few \
//        tools/gpu/try_kernel.cu -o try && ./try B HQ HKV LQ LK CAUSAL PIECE
//
// PIECE 0: a tile kernel; of softmax/fwd_mma.cu USED is large. SHARED_BYTES in place of the
// shape's own where the part has terms too. Prints ms, TFLOP/s and GB/s of K and V: single launches, 15 of
// them with idle gaps, median; K and V rotate through copies of 200 MB or more in all, so
// that they come from memory.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <vector>

#include KERNEL_FILE

#define CHECK(call)                                                                        \
    do {                                                                                   \
        const cudaError_t e = (call);                                                      \
        if (e != cudaSuccess) {                                                            \
            printf("%s: %s\n", #call, cudaGetErrorString(e));                              \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#define KERNEL_(a, b) JOIN(a, b)

#ifdef SHARED_BYTES
enum { BYTES = SHARED_BYTES };
#else
enum { BYTES = USED::BYTES };
#endif

__global__ void fill(void *x, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t u = (uint32_t)i * 2654435761u + seed;

        u ^= u >> 15, u *= 2246822519u, u ^= u >> 13, u *= 3266489917u, u ^= u >> 16;
        elem_store<TYPE>(x, (int64_t)i, (float)(int32_t)u * (1.0f / 1073741824.0f));
    }
}

// Keeps the GPU busy while the host queues what is timed.
__global__ void spin(long long clocks)
{
    for (const long long from = clock64(); clock64() - from < clocks;)
        ;
}

static void *made(size_t n, uint32_t seed)
{
    void *x;

    CHECK(cudaMalloc(&x, n * elem_bytes<TYPE>()));
    fill<<<1024, 256>>>(x, n, seed);
    return x;
}

template <typename T> static auto rows_of(int) -> decltype(T::BM) { return T::BM; }
template <typename T> static auto rows_of(long) -> decltype(T::ROWS) { return T::ROWS; }

int main(int argc, char **argv)
{
    if (argc < 8)
        return printf("usage: %s B HQ HKV LQ LK CAUSAL PIECE\n", argv[0]), 2;

    const int64_t b = atoi(argv[1]), hq = atoi(argv[2]), hkv = atoi(argv[3]);
    const int64_t lq = atoi(argv[4]), lk = atoi(argv[5]), causal = atoi(argv[6]);
    const int64_t piece = atoi(argv[7]), d = DIM;
    const size_t nk = b * hkv * lk * d, nq = b * hq * lq * d;
    const int copies = (int)std::max<size_t>(1, 200000000 / (2 * nk * elem_bytes<TYPE>()));
    std::vector<void *> k, v;
    attn_kparams p = {};

    for (int i = 0; i <= copies; i++) {
        k.push_back(made(nk, i * 2 + 1));
        v.push_back(made(nk, i * 2 + 2));
    }
    p.q = made(nq, 12345);
    p.o = made(nq, 0);
    p.batch = b, p.heads_q = hq, p.heads_kv = hkv, p.group = hq / hkv, p.len_q = lq, p.len_kv = lk;
    p.d = p.dv = DIM;
#define STRIDES(x, h, l) \
    p.x##_stride_b = h * l * d, p.x##_stride_h = l * d, p.x##_stride_l = d, p.x##_stride_d = 1
    STRIDES(q, hq, lq), STRIDES(o, hq, lq), STRIDES(k, hkv, lk), STRIDES(v, hkv, lk);
    p.features = CAN_LAYOUTS | (causal ? FEAT_RANGE_RIGHT | FEAT_ALIGN_BR : 0);
    p.left = (int64_t)1 << 40, p.right = causal ? 0 : p.left;
    p.scale = 1.0f / sqrtf(DIM), p.want_o = 1;
    p.piece = piece, p.pieces = piece ? (lk + piece - 1) / piece : 0;
    p.round_heads = b * hq, p.round_queries = lq;
    CHECK(cudaMalloc(&p.work, b * hq * lq * std::max(p.pieces, 1) * (d + 2) * 4 + 16));

    const int rows = rows_of<USED>(0);
    const int64_t groups = piece ? (lq * (hq / hkv) + rows - 1) / rows * p.pieces * b * hkv
                                 : (lq + rows - 1) / rows * b * hq;
    auto *kernel = KERNEL_(NAME, PART);
    std::vector<float> times;
    cudaEvent_t first, last;

    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    CHECK(cudaEventCreate(&first));
    CHECK(cudaEventCreate(&last));
    for (int i = 0; i < 18; i++) {
        float ms;

        p.k = k[i % k.size()], p.v = v[i % v.size()];
        CHECK(cudaDeviceSynchronize());
        usleep(3000);
        spin<<<1, 1>>>(40000);
        CHECK(cudaEventRecord(first));
        kernel<<<(unsigned)groups, USED::THREADS, BYTES>>>(p);
        CHECK(cudaEventRecord(last));
        CHECK(cudaEventSynchronize(last));
        CHECK(cudaEventElapsedTime(&ms, first, last));
        if (i >= 3)
            times.push_back(ms);
    }
    std::sort(times.begin(), times.end());

    const double ms = times[times.size() / 2];
    int blocks = 0;

    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, USED::THREADS, BYTES));
    printf("%8.4f ms  %7.2f TFLOP/s  %6.0f GB/s  %d groups a multiprocessor  %zu bytes\n", ms,
           4e-9 * b * hq * lq * lk * d / ms * (causal ? 0.5 : 1.0),
           2e-6 * nk * elem_bytes<TYPE>() / ms, blocks, (size_t)BYTES);
    return 0;
}
