// SPDX-License-Identifier: MIT
// gpu/try_kernel.cu: times one plain kernel file alone, to try its shapes: compile it with
// a changed copy of the file, no library needed.
//
//   nvcc -O3 -std=c++17 -arch=sm_90a -I cuda_kernels -DTYPE=TYPE_BF16 -DDIM=128 \
//        -DNAME=attn_x -DKERNEL_FILE='"softmax/fwd_split.cu"' -DPART=_ranges -DUSED=few \
//        tools/gpu/try_kernel.cu -o try && ./try B HQ HKV LQ LK CAUSAL PIECE
//
// PIECE 0: a tile kernel; SHARE=2048 in the environment: of few queries, keys of a group, of
// several pieces; of softmax/fwd_mma.cu USED is large. With MERGES the second step of
// few queries follows, which is linked too: fwd_split_merge.cu, NAME attn_try_merge. The time is
// of both, and the error is looked at; with ALONE=1 in the environment not so. SHARED_BYTES in
// place of the shape's own where the part has terms too; RESIDENT=132: so many groups at most;
// UNITS=132, of softmax/fwd_tile.cu: multiprocessors, for which its last tiles are cut unless
// causal, or WHOLE=1 in the environment.
// Of a part with terms the environment says which: BIAS=bf16, f16 or f32, MASK=1 (bytes, one of
// 4096 is 0; MASK=0: none is), ALIBI=1, and OVER, the dimensions that bias and mask have of
// "bhqk", all if not set. Prints ms, TFLOP/s, GB/s of K and V and those of what a group reads of
// bias and mask: single launches, 15 of them with idle gaps, median; K and V rotate through
// copies of 200 MB or more in all, so that they come from memory. And the largest error of some
// rows against double precision, of the largest element.
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
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

#ifdef SHARED_BYTES
enum { BYTES = SHARED_BYTES };
#else
enum { BYTES = USED::BYTES };
#endif

template <int TYPE = ::TYPE> __global__ void fill(void *x, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t u = (uint32_t)i * 2654435761u + seed;

        u ^= u >> 15, u *= 2246822519u, u ^= u >> 13, u *= 3266489917u, u ^= u >> 16;
        elem_store<TYPE>(x, (int64_t)i, (float)(int32_t)u * (1.0f / 1073741824.0f));
    }
}

template <int TYPE = ::TYPE> static void *made(size_t n, uint32_t seed)
{
    void *x;

    CHECK(cudaMalloc(&x, n * elem_bytes<TYPE>()));
    fill<TYPE><<<1024, 256>>>(x, n, seed);
    return x;
}

__global__ void fill_mask(unsigned char *x, size_t n, uint32_t some)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        x[i] = !(some && ((uint32_t)i * 2654435761u >> 20) == 0);
}

__global__ void widen(int type, const void *x, size_t n, float *out)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        out[i] = type_load(type, x, (int64_t)i);
}

static std::vector<float> on_host(const void *x, size_t n, int type = TYPE)
{
    std::vector<float> out(n);
    float *wide;

    CHECK(cudaMalloc(&wide, n * 4));
    widen<<<1024, 256>>>(type, x, n, wide);
    CHECK(cudaMemcpy(out.data(), wide, n * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(wide));
    return out;
}

// Elements of a tensor with those of B H Lq Lk that OVER names, and its strides.
static int64_t strides_of(int64_t b, int64_t h, int64_t lq, int64_t lk, int64_t (&stride)[4])
{
    const char *const over = getenv("OVER") ? getenv("OVER") : "bhqk";
    const int64_t size[4] = { b, h, lq, lk };
    int64_t n = 1;

    for (int i = 3; i >= 0; i--) {
        const bool there = strchr(over, "bhqk"[i]);

        stride[i] = there ? n : 0;
        n *= there ? size[i] : 1;
    }
    return n;
}

// Makes what the environment asks for; gives the bytes that all groups read of it, causal or
// not.
static double make_terms(attn_kparams &p)
{
    const char *const bias = getenv("BIAS"), *const mask = getenv("MASK");
    int64_t s[4];
    const int64_t n = strides_of(p.batch, p.heads_q, p.len_q, p.len_kv, s);
    const double pairs = (double)p.batch * p.heads_q * p.len_q * p.len_kv;
    double bytes = 0;

    if (bias) {
        p.bias_type = !strcmp(bias, "f32") ? TYPE_F32 : !strcmp(bias, "f16") ? TYPE_F16 : TYPE_BF16;
        p.bias = p.bias_type == TYPE_F32   ? made<TYPE_F32>(n, 777)
                 : p.bias_type == TYPE_F16 ? made<TYPE_F16>(n, 777)
                                           : made<TYPE_BF16>(n, 777);
        p.bias_stride_b = s[0], p.bias_stride_h = s[1], p.bias_stride_l = s[2];
        p.bias_stride_d = s[3];
        p.features |= FEAT_BIAS;
        bytes += pairs * (p.bias_type == TYPE_F32 ? 4 : 2);
    }
    if (mask) {
        unsigned char *x;

        CHECK(cudaMalloc(&x, n));
        fill_mask<<<1024, 256>>>(x, n, atoi(mask));
        p.mask = x;
        p.mask_stride_b = s[0], p.mask_stride_h = s[1], p.mask_stride_l = s[2];
        p.mask_stride_d = s[3];
        p.features |= FEAT_MASK;
        bytes += pairs;
    }
    if (getenv("ALIBI")) {
        p.alibi = (const float *)made<TYPE_F32>(p.heads_q, 778);
        p.alibi_stride_h = 1;
        p.features |= FEAT_ALIBI;
    }
    return bytes;
}

// The terms of query i of a head.
static std::vector<double> terms_of(const attn_kparams &p, int64_t head, int64_t i)
{
    const int64_t b = head / p.heads_q, h = head % p.heads_q, lk = p.len_kv;
    std::vector<double> term(lk);

    if (p.features & FEAT_BIAS) {
        const int64_t at = b * p.bias_stride_b + h * p.bias_stride_h + i * p.bias_stride_l;
        const auto row = on_host((const char *)p.bias + at * (p.bias_type == TYPE_F32 ? 4 : 2),
                                 p.bias_stride_d ? lk : 1, p.bias_type);

        for (int64_t j = 0; j < lk; j++)
            term[j] = row[j * p.bias_stride_d];
    }
    if (p.features & FEAT_ALIBI) {
        const double slope = on_host(p.alibi + h, 1, TYPE_F32)[0];

        for (int64_t j = 0; j < lk; j++)
            term[j] -= slope * llabs(i + lk - p.len_q - j);
    }
    if (p.features & FEAT_MASK) {
        const int64_t at = b * p.mask_stride_b + h * p.mask_stride_h + i * p.mask_stride_l;
        std::vector<unsigned char> row(lk);

        CHECK(cudaMemcpy(row.data(), p.mask + at, p.mask_stride_d ? lk : 1,
                         cudaMemcpyDeviceToHost));
        for (int64_t j = 0; j < lk; j++)
            if (!row[j * p.mask_stride_d])
                term[j] = -INFINITY;
    }
    return term;
}

// The largest error of some rows of the first and the last head, of the largest element.
static double error_of(const attn_kparams &p, bool causal)
{
    const int64_t d = p.d, lq = p.len_q, lk = p.len_kv;
    double worst = 0, largest = 0;

    for (int64_t head : { (int64_t)0, (int64_t)p.batch * p.heads_q - 1 }) {
        const int64_t kv = head / p.heads_q * p.heads_kv + head % p.heads_q / p.group;
        const char *const q = (const char *)p.q, *const k = (const char *)p.k;
        const char *const v = (const char *)p.v, *const o = (const char *)p.o;
        const auto qs = on_host(q + head * lq * d * elem_bytes<TYPE>(), lq * d);
        const auto ks = on_host(k + kv * lk * d * elem_bytes<TYPE>(), lk * d);
        const auto vs = on_host(v + kv * lk * d * elem_bytes<TYPE>(), lk * d);
        const auto os = on_host(o + head * lq * d * elem_bytes<TYPE>(), lq * d);

        for (int64_t at : { (int64_t)0, (int64_t)1, lq / 3, lq / 2 + 9, lq - 66, lq - 1 }) {
            const int64_t i = std::min(std::max(at, (int64_t)0), lq - 1);
            const int64_t keys = causal ? i + 1 + lk - lq : lk;
            std::vector<double> s(keys), sums(d);
            const auto terms = terms_of(p, head, i);
            double top = -1e300, sum = 0;

            for (int64_t j = 0; j < keys; j++) {
                for (int64_t c = 0; c < d; c++)
                    s[j] += (double)qs[i * d + c] * ks[j * d + c];
                s[j] = s[j] * p.scale + terms[j];
                top = std::max(top, s[j]);
            }
            for (int64_t j = 0; j < keys; j++) {
                const double w = exp(s[j] - top);

                sum += w;
                for (int64_t c = 0; c < d; c++)
                    sums[c] += w * vs[j * d + c];
            }
            for (int64_t c = 0; c < d; c++) {
                const double error = fabs(sums[c] / sum - os[i * d + c]);

                worst = error == error ? std::max(worst, error) : 1e9;
                largest = std::max(largest, fabs(sums[c] / sum));
            }
        }
    }
    return worst / largest;
}

#ifdef RESIDENT    // a kernel with tensor maps
static attn_map map_for(const void *x, int64_t d, int64_t rows, int64_t heads, int64_t batch,
                        int box)
{
    return map_of(TYPE == TYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                  x, d, rows, heads, batch, box);
}
#endif

#ifdef MERGES    // attn_try_merge: of another file
extern "C" __global__ void attn_try_merge_narrow(attn_kparams p);
extern "C" __global__ void attn_try_merge_wide(attn_kparams p);

// As lower_merge() of src/plan/cuda/softmax_fwd_split.c, of 132 multiprocessors: the planner's
// files know nothing of kernels', nor these of theirs.
static void launch_merge(const attn_kparams &p)
{
    const bool wide = p.pieces <= (p.round_heads * p.round_queries >= 4 * 132 ? 32 : 8);
    cudaLaunchAttribute overlaps = {};
    cudaLaunchConfig_t config = {};

    overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlaps.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = p.round_heads * p.round_queries * ceil_div(p.dv, wide ? 128 : 32);
    config.blockDim = wide ? 32 : 128;
    config.attrs = &overlaps;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, wide ? attn_try_merge_wide : attn_try_merge_narrow, p));
}
#endif

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
    p.features = CAN_LAYOUTS | FEAT_ALIGN_BR | (causal ? FEAT_RANGE_RIGHT : 0);
    p.left = (int64_t)1 << 40, p.right = causal ? 0 : p.left;
    p.scale = 1.0f / sqrtf(DIM), p.want_o = 1;
    p.piece = piece, p.pieces = piece ? (lk + piece - 1) / piece : 0;
    p.round_heads = b * hq, p.round_queries = lq;

    const double terms = make_terms(p) * (causal ? 0.5 : 1.0);

    CHECK(cudaMalloc(&p.work, b * hq * lq * std::max(p.pieces, 1) * (d + 2) * 4 + 16));

#ifdef RESIDENT    // without a counter tiles may come in parts of 64 queries
    const bool counted = strcmp(TEXT(PART), "_plain") && strcmp(TEXT(PART), "_tall");
    const int rows = counted ? rows_of<USED>(0) : 64;
#else
    const int rows = rows_of<USED>(0);
#endif
#ifdef MERGES
    p.share = getenv("SHARE") ? atoi(getenv("SHARE")) : piece;
    p.shares = ceil_div(lk, p.share);
    p.ends = p.pieces == 1;
#endif
    int64_t groups = piece ? (lq * (hq / hkv) + rows - 1) / rows * p.shares * b * hkv
                           : (lq + rows - 1) / rows * b * hq;
#ifdef UNITS
    if (!causal && !getenv("WHOLE"))
        p.cut = attn_find_cut(groups, ceil_div(lk, USED::BN), UNITS * USED::BLOCKS);
    if (p.cut.rest) {
        constexpr bool LONG = sizeof TEXT(PART) == sizeof "_long";
        const int64_t floats = CUT_COUNTERS(p.cut.slots) + p.cut.rest * STATE<USED, LONG>;

        groups = attn_cut_jobs(&p.cut);
        CHECK(cudaMalloc(&p.work, floats * 4));
    }
#endif
    const int64_t resident =
#ifdef RESIDENT    // groups, each of which takes tile after tile
        RESIDENT;
#else
        groups;
#endif
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
#ifdef RESIDENT
        attn_maps maps = { map_for(p.q, d, lq, hq, b, 64), map_for(p.k, d, lk, hkv, b, USED::BN),
                           map_for(p.v, d, lk, hkv, b, USED::BN), {}, !getenv("NO_MAPS") };
#define ARGUMENTS p, maps
#else
#define ARGUMENTS p
#endif
        CHECK(cudaDeviceSynchronize());
        usleep(3000);
        spin<<<1, 1>>>(40000);
        CHECK(cudaEventRecord(first));
        if (p.cut.rest)
            CHECK(cudaMemsetAsync(p.work, 0, 4 * CUT_COUNTERS(p.cut.slots)));
#ifdef RESIDENT
        if (counted)    // the next tile's number
            CHECK(cudaMemsetAsync(p.work, 0, 4));
#endif
        kernel<<<(unsigned)std::min(groups, resident), USED::THREADS, BYTES>>>(ARGUMENTS);
#ifdef MERGES
        if (!getenv("ALONE") && !p.ends)
            launch_merge(p);
#endif
        CHECK(cudaEventRecord(last));
        CHECK(cudaEventSynchronize(last));
        CHECK(cudaEventElapsedTime(&ms, first, last));
        if (i >= 3)
            times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
#ifdef MERGES
    const double error = getenv("ALONE") ? NAN : error_of(p, causal);
#else
    const double error = piece ? NAN : error_of(p, causal);    // partial sums are no results
#endif

    const double ms = times[times.size() / 2];
    int blocks = 0;

    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, USED::THREADS, BYTES));
    printf("%8.4f ms  %7.2f TFLOP/s  %6.0f GB/s  terms %6.0f GB/s  %d groups a multiprocessor  "
           "%zu bytes  error %.1e\n",
           ms,
           4e-9 * b * hq * lq * lk * d / ms * (causal ? 0.5 : 1.0),
           2e-6 * nk * elem_bytes<TYPE>() / ms, terms * 1e-6 / ms, blocks, (size_t)BYTES,
           error);
    return 0;
}
