// SPDX-License-Identifier: MIT
// gpu/launch.cuh: what the programs share that run kernels without the library: calls that must
// succeed, a kernel that keeps the GPU busy, and tensor maps.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <cudaTypedefs.h>

#include "common/maps.h"

#define CHECK(call)                                                                        \
    do {                                                                                   \
        const cudaError_t e = (call);                                                      \
        if (e != cudaSuccess) {                                                            \
            printf("%s:%d: %s: %s, %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(e),  \
                   cudaGetErrorString(e));                                                 \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

// Keeps the GPU busy while the host queues what is timed.
static __global__ void spin(long long clocks)
{
    for (const long long from = clock64(); clock64() - from < clocks;)
        ;
}

// Of a contiguous tensor of 16-bit elements, in boxes of 64 columns and `box` rows.
static inline attn_map map_of(CUtensorMapDataType type, const void *x, int64_t d, int64_t rows,
                              int64_t heads, int64_t batch, int box)
{
    static PFN_cuTensorMapEncodeTiled_v12000 encode;
    const cuuint64_t size[4] = { (cuuint64_t)d, (cuuint64_t)rows, (cuuint64_t)heads,
                                 (cuuint64_t)batch };
    const cuuint64_t stride[3] = { size[0] * 2, size[0] * size[1] * 2,
                                   size[0] * size[1] * size[2] * 2 };
    const cuuint32_t boxes[4] = { 64, (cuuint32_t)box, 1, 1 }, ones[4] = { 1, 1, 1, 1 };
    cudaDriverEntryPointQueryResult found;
    attn_map map;
    CUresult e;

    if (!encode)
        CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode,
                                               12000, cudaEnableDefault, &found));
    if (!encode)
        printf("the driver has no cuTensorMapEncodeTiled: %d\n", (int)found), exit(1);
    e = encode((CUtensorMap *)&map, type, 4, (void *)x, size, stride, boxes, ones,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (e != CUDA_SUCCESS)
        printf("no map: error %d of the driver\n", (int)e), exit(1);
    return map;
}
