// SPDX-License-Identifier: MIT
// gpu/try_linear.cu: times linear/fwd_chunk_mma.cu, fwd_chunk_tf32.cu, fwd_wgmma.cu,
// fwd_wgmma_bf16.cu or a scan of bwd_wgmma.cu alone, causal, to try its shapes: compile it with a
// changed copy of the file, no library needed.
//
//   nvcc -O3 -std=c++17 -arch=sm_90a -I cuda_kernels -DTYPE=TYPE_BF16 -DDIM=64 -DNAME=attn_try \
//        -DKERNEL_FILE='"linear/fwd_chunk_mma.cu"' tools/gpu/try_linear.cu -o try
//   ./try B H L D DV SEGMENTS [GROUP [elu1] [normalize] [scanned]]
//
// Prints us of the sums, of the last step and of both, which then overlap, and GB/s of Q, K, V
// and O over both: single launches with idle gaps, 15 of them, median, tensors that rotate
// through copies of 200 MB or more in all, so that they come from memory. And the largest
// error of some rows against double precision, of the largest element, unless GROUP heads of
// queries share one of keys or there is a phi or, of outputs, a normaliser; gradients have made-up
// numbers of queries then (bwd_chunk_begin.cu, which is not timed). The states of segments are not
// brought together before, as the planner has it for few; `scanned` has them brought together,
// of fwd_wgmma.cu and fwd_wgmma_bf16.cu (-DRELAYS -DSCAN=_scan, else sums and the last step are
// one launch), or reads one as if they were.
//
// Of bwd_wgmma.cu -DGRADIENT=OF_Q (or _K, _V, _KV), -DPART=_q (or _k, _v, _kv) and -DSUMS=_q_sums
// (or _k_sums) say what: then Q, K, V and dO, and the gradients, are the tensors.
// -DGRADIENT=OF_ALL and -DSCAN=_scan: all scans in one launch, as of bwd_wgmma_tiles.cu; in the
// environment SEGMENTS_Q has the segments of dQ where there are several, ADDED how many states a
// walk adds up itself.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <vector>

#include KERNEL_FILE
#include "launch.cuh"

#define KERNEL_(a, b) JOIN(a, b)

#ifndef OUTPUT_THREADS
#define OUTPUT_THREADS THREADS    // of the last step
#endif
#ifndef SUM_THREADS
#define SUM_THREADS THREADS
#endif

// Results and what they are made of: Y_i = sum over j <= i, or j >= i, of (A_i . B_j) X_j.
#ifdef GRADIENT
enum { OF_Q, OF_K, OF_V, OF_KV, OF_ALL };
#define SUMS_OF_PART KERNEL_(NAME, SUMS)
#define LAST_OF_PART KERNEL_(NAME, PART)
constexpr int GIVEN = 4, MADE = GRADIENT == OF_ALL ? 3 : GRADIENT == OF_KV ? 2 : 1;
#else
#define SUMS_OF_PART KERNEL_(NAME, _sums)
#define LAST_OF_PART KERNEL_(NAME, _output)
#define LAST_BYTES sizeof(shared_output)
constexpr int GIVEN = 3, MADE = 1;
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
    std::vector<void *> x[GIVEN + MADE];
    int groups, sum_groups;
    size_t turn;
    std::vector<float> numbers;    // of queries, as bwd_chunk_begin.cu has them
};

// The next copy's.
static void turn(problem &x)
{
    attn_linear_kparams &p = x.p;
    const size_t i = x.turn++ % x.x[0].size();

    p.q = x.x[0][i], p.k = x.x[1][i], p.v = x.x[2][i];
#ifdef GRADIENT
    p.of_q = p.q, p.of_k = p.k;
    p.grad_o = x.x[3][i];
    (GRADIENT == OF_Q ? p.grad_q : GRADIENT == OF_V ? p.grad_v : p.grad_k) = x.x[4][i];
    if (GRADIENT >= OF_KV)
        p.grad_v = x.x[4 + (MADE > 1)][i];
    if (GRADIENT == OF_ALL)
        p.grad_q = x.x[GIVEN + MADE - 1][i];
#else
    p.o = x.x[3][i];
#endif
}

// Steps 1: the sums, 2: the last, 3: both.
static void run(problem &x, int steps)
{
    const attn_linear_kparams &p = x.p;

    turn(x);
#ifdef RELAYS    // but for many segments one launch, never without what lays slots down
    if (p.pieces > 1 && !(p.features & LINEAR_SCANNED))
        launch(KERNEL_(NAME, _begin), x.sum_groups, BEGINNING, 0, false, p);
    else
#endif
    if (steps & 1 && p.pieces > 1)
        launch(SUMS_OF_PART, x.sum_groups, SUM_THREADS, sizeof(shared_sums), false, p);
#ifdef SCAN
    if (steps & 1 && p.features & LINEAR_SCANNED)
        launch(KERNEL_(NAME, SCAN), x.sum_groups, SCANNING, 0, true, p);
#endif
    if (steps & 2)
        launch(LAST_OF_PART, x.groups, OUTPUT_THREADS, LAST_BYTES, p.pieces > 1, p);
}

static void hold(void *) { usleep(300); }

static double microseconds(problem &x, int steps)
{
    std::vector<float> ms;
    cudaEvent_t from, to;

    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
    for (int n = -3; n < 15; n++) {
        float t;

        usleep(2000);
        CHECK(cudaLaunchHostFunc(0, hold, nullptr));    // launches are there when the time begins
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

// Normalised gradients: which query's number is added to a pair, if one's is.
enum adding { ALONE, OF_ROW, OF_COLUMN };

// Of the last head: some rows.
static double error_of(const problem &x, const void *as, const void *bs, const void *xs,
                       const void *ys, int inner, int width, bool back, adding adds = ALONE)
{
    const int len = x.p.len_q;
    const bool divides = x.p.features & LINEAR_NORMALIZE;
    const int64_t heads = (int64_t)x.p.batch * x.p.heads_q - 1;
    const auto a = on_host(as, heads * len * inner, (int64_t)len * inner);
    const auto b = on_host(bs, heads * len * inner, (int64_t)len * inner);
    const auto v = on_host(xs, heads * len * width, (int64_t)len * width);
    const auto y = on_host(ys, heads * len * width, (int64_t)len * width);
    double error = 0, top = 0;

    for (int l = 0; l < len; l += std::max(1, len / 37)) {
        std::vector<double> row(width);

        for (int j = back ? l : 0; j <= (back ? len - 1 : l); j++) {
            double weight = 0;

            for (int e = 0; e < inner; e++)
                weight += (double)a[(int64_t)l * inner + e] * b[(int64_t)j * inner + e];
            if (divides) {
                const float *const factor = x.numbers.data() + heads * len;
                const float *const c = factor + (heads + 1) * len;

                weight += adds == ALONE ? 0.0 : c[adds == OF_ROW ? l : j];
                weight *= factor[adds == OF_ROW ? l : j];
            }
            for (int c = 0; c < width; c++)
                row[c] += weight * v[(int64_t)j * width + c];
        }
        for (int c = 0; c < width; c++) {
            top = std::max(top, fabs(row[c]));
            error = std::max(error, fabs(row[c] - y[(int64_t)l * width + c]));
        }
    }
    return error / top;
}

static double largest_error(const problem &x)
{
    const attn_linear_kparams &p = x.p;

#ifdef GRADIENT
    double error = 0;

    if (GRADIENT == OF_Q || GRADIENT == OF_ALL)
        error = error_of(x, p.grad_o, p.v, p.k, p.grad_q, p.dv, p.d, false, OF_ROW);
    if (GRADIENT == OF_K || GRADIENT >= OF_KV)
        error = std::max(error, error_of(x, p.v, p.grad_o, p.q, p.grad_k, p.dv, p.d, true,
                                         OF_COLUMN));
    if (GRADIENT == OF_V || GRADIENT >= OF_KV)
        error = std::max(error, error_of(x, p.k, p.q, p.grad_o, p.grad_v, p.d, p.dv, true));
    return error;
#else
    return error_of(x, p.q, p.k, p.v, p.o, p.d, p.dv, false);
#endif
}

#define STRIDES(name, width)                                  \
    p.name##_stride_d = 1, p.name##_stride_l = width,         \
    p.name##_stride_h = (int64_t)len * width,                 \
    p.name##_stride_b = (int64_t)h * len * width

int main(int argc, char **argv)
{
    if (argc < 7)
        return printf("usage: %s B H L D DV SEGMENTS\n", argv[0]), 2;

    const int b = atoi(argv[1]), h = atoi(argv[2]), len = atoi(argv[3]), d = atoi(argv[4]);
    const int dv = atoi(argv[5]), wanted = std::max(atoi(argv[6]), 1);
    const int group = argc > 7 ? std::max(atoi(argv[7]), 1) : 1;
    const int chunks = (len + CHUNK - 1) / CHUNK;
    const size_t heads = (size_t)b * h, tokens = heads * len;
    const double bytes = (double)(GIVEN + MADE) / 2 * tokens * (d + dv) * elem_bytes<TYPE>();
    const int copies = (int)(2e8 / bytes) + 2, slices = (dv + COLUMNS - 1) / COLUMNS;
    problem x = {};
    attn_linear_kparams &p = x.p;

    for (int i = 0; i < copies; i++)
        for (int n = 0; n < GIVEN + MADE; n++)
            x.x[n].push_back(made(tokens * std::max(d, dv), (GIVEN + MADE) * i + n));
    STRIDES(q, d);
    STRIDES(k, d);
    STRIDES(of_q, d);
    STRIDES(of_k, d);
    STRIDES(v, dv);
    STRIDES(o, dv);
    STRIDES(grad_o, dv);
    STRIDES(grad_q, d);
    STRIDES(grad_k, d);
    STRIDES(grad_v, dv);
    p.features = LINEAR_CAUSAL;
    for (int i = 8; i < argc; i++)
        p.features |= !strcmp(argv[i], "elu1")        ? LINEAR_ELU1
                      : !strcmp(argv[i], "normalize") ? LINEAR_NORMALIZE
                      : !strcmp(argv[i], "scanned")   ? LINEAR_SCANNED
                                                      : 0;
    p.d = d, p.dv = dv, p.batch = b, p.heads_q = h, p.heads_kv = h / group, p.group = group;
    p.len_q = p.len_kv = len, p.want_o = 1, p.scale = 1.0f;
    p.has = LHAS_GRAD_O | LHAS_GRAD_K | LHAS_GRAD_V;
    p.piece = wanted > 1 ? (chunks + wanted - 1) / wanted * CHUNK : 0;
    p.pieces = p.slots = p.piece ? (len + p.piece - 1) / p.piece : 1;
    if (p.piece)
        p.features |= LINEAR_SLOTS;
    x.groups = x.sum_groups = (int)heads * slices * p.pieces;
#ifdef GRADIENT
    if (GRADIENT == OF_Q || GRADIENT == OF_K)
        x.groups = (int)heads * ((d + COLUMNS - 1) / COLUMNS) * p.pieces;
    if (GRADIENT == OF_Q)
        x.sum_groups = x.groups;
    if (GRADIENT != OF_Q)
        x.groups /= group;
    x.sum_groups /= group;
#ifdef SCAN
    const char *const cut = getenv("SEGMENTS_Q"), *const added = getenv("ADDED");
    const int wanted_q = cut && wanted > 1 ? std::max(atoi(cut), 1) : wanted;

    p.piece_q = (chunks + wanted_q - 1) / wanted_q * CHUNK;
    p.pieces_q = (len + p.piece_q - 1) / p.piece_q;
    if (!p.piece)
        p.piece = len;
    x.groups = x.sum_groups = (int)heads * (p.pieces + p.pieces_q);
    if (std::max(p.pieces, p.pieces_q) > (added ? atoi(added) : 8))
        p.features |= LINEAR_SCANNED;
    p.features |= LINEAR_BESIDE;
#endif
#endif
    if (GIVEN == 4 && p.features & LINEAR_NORMALIZE)
        p.slots_at = 4 * tokens;
    CHECK(cudaMalloc(&p.work, heads * (p.slots + std::max(p.slots, p.pieces_q)) * (d + 64) *
                                      (dv + 64) * 4 + p.slots_at * 4));
#ifdef GRADIENT
    for (size_t i = 0; i < (p.slots_at ? 2 * tokens : 0); i++)
        x.numbers.push_back((float)(i * 2654435761u >> 16 & 1023) / 1024.0f + 0.5f);
    CHECK(cudaMemcpy(p.work, x.numbers.data(), x.numbers.size() * 4, cudaMemcpyHostToDevice));
#endif
    CHECK(cudaFuncSetAttribute(SUMS_OF_PART, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)sizeof(shared_sums)));
    CHECK(cudaFuncSetAttribute(LAST_OF_PART, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)LAST_BYTES));
    run(x, 3);
    CHECK(cudaDeviceSynchronize());

    const bool known = MADE != 1 || GIVEN == 4 || !(p.features & LINEAR_NORMALIZE);
    const double error = group > 1 || p.features & LINEAR_ELU1 || !known ? 0.0 : largest_error(x);
    const double sums = p.pieces > 1 ? microseconds(x, 1) : 0.0, last = microseconds(x, 2);
    const double both = microseconds(x, 3);

    printf("%d segments, %d groups: sums %.1f us, last %.1f, both %.1f, %.0f GB/s, error %.1e\n",
           p.pieces, x.groups, sums, last, both, bytes / both / 1e3, error);
    return 0;
}
