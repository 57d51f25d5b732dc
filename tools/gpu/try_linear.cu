// SPDX-License-Identifier: MIT
// gpu/try_linear.cu: times linear/fwd_chunk_mma.cu, fwd_chunk_tf32.cu or fwd_wgmma.cu alone,
// causal, to try its shapes: compile it with a changed copy of the file, no library needed.
//
//   nvcc -O3 -std=c++17 -arch=sm_90a -I cuda_kernels -DTYPE=TYPE_BF16 -DDIM=64 -DNAME=attn_try \
//        -DKERNEL_FILE='"linear/fwd_chunk_mma.cu"' tools/gpu/try_linear.cu -o try
//   ./try B H L D DV SEGMENTS
//
// Prints us of the sums, of the last step and of both, which then overlap, and GB/s of Q, K, V
// and O over both: single launches with idle gaps, 15 of them, median, tensors that rotate
// through copies of 200 MB or more in all, so that they come from memory. And the largest
// error of some rows against double precision, of the largest element. The states of segments
// are not brought together before, as the planner has it up to eight.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <vector>

#include KERNEL_FILE
#include "launch.cuh"

#define KERNEL_(a, b) JOIN(a, b)

#ifndef OUTPUT_THREADS
#define OUTPUT_THREADS THREADS    // of the last step
#endif

__global__ void fill(void *x, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t u = (uint32_t)i * 2654435761u + seed;

        u ^= u >> 15, u *= 2246822519u, u ^= u >> 13, u *= 3266489917u, u ^= u >> 16;
        elem_store<TYPE>(x, (int64_t)i, (float)(int32_t)u * (1.0f / 2147483648.0f));
    }
}

__global__ void widen(const void *x, int64_t from, int64_t n, float *out)
{
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        out[i] = elem_load<TYPE>(x, from + i);
}

static void *made(size_t n, uint32_t seed)
{
    void *x;

    CHECK(cudaMalloc(&x, n * elem_bytes<TYPE>()));
    fill<<<1024, 256>>>(x, n, seed);
    return x;
}

static std::vector<float> on_host(const void *x, int64_t from, int64_t n)
{
    std::vector<float> out(n);
    float *wide;

    CHECK(cudaMalloc(&wide, n * 4));
    widen<<<1, 1024>>>(x, from, n, wide);
    CHECK(cudaMemcpy(out.data(), wide, n * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(wide));
    return out;
}

typedef void kernel(const attn_linear_kparams);

static void launch(kernel *which, int groups, int threads, size_t bytes, bool overlaps,
                   const attn_linear_kparams &p)
{
    cudaLaunchAttribute overlap = {};
    cudaLaunchConfig_t config = {};

    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(groups);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.attrs = &overlap;
    config.numAttrs = overlaps;
    CHECK(cudaLaunchKernelEx(&config, which, p));
}

// Copies of the tensors, and what a launch reads.
struct problem {
    attn_linear_kparams p;
    std::vector<void *> q, k, v, o;
    int groups;
    size_t turn;
};

// Steps 1: the sums, 2: the last, 3: both.
static void run(problem &x, int steps)
{
    attn_linear_kparams &p = x.p;
    const size_t i = x.turn++ % x.q.size();

    p.q = x.q[i], p.k = x.k[i], p.v = x.v[i], p.o = x.o[i];
    if (steps & 1 && p.pieces > 1)
        launch(KERNEL_(NAME, _sums), x.groups, THREADS, sizeof(shared_sums), false, p);
    if (steps & 2)
        launch(KERNEL_(NAME, _output), x.groups, OUTPUT_THREADS, sizeof(shared_output),
               p.pieces > 1, p);
}

static double microseconds(problem &x, int steps)
{
    std::vector<float> ms;
    cudaEvent_t from, to;

    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    for (int n = -3; n < 15; n++) {
        float t;

        usleep(2000);
        CHECK(cudaEventRecord(from));
        run(x, steps);
        CHECK(cudaEventRecord(to));
        CHECK(cudaEventSynchronize(to));
        CHECK(cudaEventElapsedTime(&t, from, to));
        if (n >= 0)
            ms.push_back(t);
    }
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2] * 1e3;
}

// Of the last head: some rows.
static double error_of(const problem &x, int len, int d, int dv)
{
    const int64_t heads = (int64_t)x.p.batch * x.p.heads_q - 1;
    const auto q = on_host(x.p.q, heads * len * d, (int64_t)len * d);
    const auto k = on_host(x.p.k, heads * len * d, (int64_t)len * d);
    const auto v = on_host(x.p.v, heads * len * dv, (int64_t)len * dv);
    const auto o = on_host(x.p.o, heads * len * dv, (int64_t)len * dv);
    double error = 0, top = 0;

    for (int l = 0; l < len; l += std::max(1, len / 37)) {
        std::vector<double> row(dv);

        for (int j = 0; j <= l; j++) {
            double weight = 0;

            for (int e = 0; e < d; e++)
                weight += (double)q[(int64_t)l * d + e] * k[(int64_t)j * d + e];
            for (int c = 0; c < dv; c++)
                row[c] += weight * v[(int64_t)j * dv + c];
        }
        for (int c = 0; c < dv; c++) {
            top = std::max(top, fabs(row[c]));
            error = std::max(error, fabs(row[c] - o[(int64_t)l * dv + c]));
        }
    }
    return error / top;
}

int main(int argc, char **argv)
{
    if (argc < 7)
        return printf("usage: %s B H L D DV SEGMENTS\n", argv[0]), 2;

    const int b = atoi(argv[1]), h = atoi(argv[2]), len = atoi(argv[3]), d = atoi(argv[4]);
    const int dv = atoi(argv[5]), wanted = std::max(atoi(argv[6]), 1);
    const int chunks = (len + CHUNK - 1) / CHUNK;
    const size_t heads = (size_t)b * h, tokens = heads * len;
    const double bytes = 2.0 * tokens * (d + dv) * elem_bytes<TYPE>();
    const int copies = (int)(2e8 / bytes) + 2;
    problem x = {};
    attn_linear_kparams &p = x.p;

    for (int i = 0; i < copies; i++) {
        x.q.push_back(made(tokens * d, 4 * i));
        x.k.push_back(made(tokens * d, 4 * i + 1));
        x.v.push_back(made(tokens * dv, 4 * i + 2));
        x.o.push_back(made(tokens * dv, 4 * i + 3));
    }
    p.q_stride_d = p.k_stride_d = p.v_stride_d = p.o_stride_d = 1;
    p.q_stride_l = p.k_stride_l = d, p.v_stride_l = p.o_stride_l = dv;
    p.q_stride_h = p.k_stride_h = (int64_t)len * d, p.v_stride_h = p.o_stride_h = (int64_t)len * dv;
    p.q_stride_b = p.k_stride_b = (int64_t)h * len * d;
    p.v_stride_b = p.o_stride_b = (int64_t)h * len * dv;
    p.features = LINEAR_CAUSAL;
    p.d = d, p.dv = dv, p.batch = b, p.heads_q = p.heads_kv = h, p.group = 1;
    p.len_q = p.len_kv = len, p.want_o = 1, p.scale = 1.0f;
    p.piece = wanted > 1 ? (chunks + wanted - 1) / wanted * CHUNK : 0;
    p.pieces = p.slots = p.piece ? (len + p.piece - 1) / p.piece : 1;
    x.groups = (int)heads * ((dv + COLUMNS - 1) / COLUMNS) * p.pieces;
    CHECK(cudaMalloc(&p.work, heads * p.slots * d * (dv + 1) * 4));
    CHECK(cudaFuncSetAttribute(KERNEL_(NAME, _sums),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)sizeof(shared_sums)));
    CHECK(cudaFuncSetAttribute(KERNEL_(NAME, _output),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)sizeof(shared_output)));
    run(x, 3);
    CHECK(cudaDeviceSynchronize());

    const double error = error_of(x, len, d, dv);
    const double sums = p.pieces > 1 ? microseconds(x, 1) : 0.0, last = microseconds(x, 2);
    const double both = microseconds(x, 3);

    printf("%d segments, %d groups: sums %.1f us, last %.1f, both %.1f, %.0f GB/s, error %.1e\n",
           p.pieces, x.groups, sums, last, both, bytes / both / 1e3, error);
    return 0;
}
