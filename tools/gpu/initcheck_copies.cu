// SPDX-License-Identifier: MIT
// gpu/initcheck_copies.cu: what compute-sanitizer's initcheck makes of what the copy engine writes:
// a kernel copies 1 KB from shared memory to fresh global memory, another adds it up.
//
//   nvcc -arch=sm_90a -std=c++17 -I cuda_kernels tools/gpu/initcheck_copies.cu -o try
//   compute-sanitizer --tool initcheck ./try threads
//   compute-sanitizer --tool initcheck ./try copies
//
// Both print 256. Where initcheck is silent about the first and reports the second, its reports of
// memory that only device_bulk_store() and _add() write (the sums of softmax_bwd_wgmma, read by
// bwd_mma_finish.cu) say nothing.
#include <cstdio>
#include <cstring>

#include "common/device.cuh"
#include "common/hopper.cuh"

enum { COUNT = 256 };

static __global__ void write_ones(float *to, bool by_copy)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ alignas(128) float ones[COUNT];

    ones[threadIdx.x] = 1.0f;
    device_copies_to_products();
    __syncthreads();
    if (!by_copy) {
        to[threadIdx.x] = ones[threadIdx.x];
    } else if (threadIdx.x == 0) {
        device_bulk_store(to, ones, sizeof(ones));
        device_bulk_commit();
        device_bulk_wait<0>();
    }
#endif
}

static __global__ void add_up(const float *x, float *sum)
{
    float all = 0.0f;

    for (int i = 0; i < COUNT; i++)
        all += x[i];
    *sum = all;
}

int main(int argc, char **argv)
{
    float *x, *sum, result = 0.0f;

    if (argc != 2)
        return 2;
    cudaMalloc(&x, COUNT * sizeof(*x));
    cudaMalloc(&sum, sizeof(*sum));
    write_ones<<<1, COUNT>>>(x, strcmp(argv[1], "copies") == 0);
    add_up<<<1, 1>>>(x, sum);
    if (cudaMemcpy(&result, sum, sizeof(result), cudaMemcpyDeviceToHost) != cudaSuccess)
        return 1;
    printf("%s: %g\n", argv[1], result);
    return 0;
}
