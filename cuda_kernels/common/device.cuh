// SPDX-License-Identifier: MIT
// common/device.cuh: instructions that C++ has no name for. The tests put a file of this
// name before it that computes the same on a processor (tests/emulator).
#pragma once
#include <stdint.h>

#define DEVICE static __device__ __forceinline__

// Dynamic shared memory, aligned to 16 bytes.
#define SHARED_MEMORY(name) extern __shared__ float4 name[]

// This thread's number, found anew: what follows from it would otherwise be kept in
// registers over a main loop that has none to spare.
DEVICE int device_thread()
{
    int x;

    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

DEVICE float device_f32_of_f16(uint16_t u)
{
    float f;

    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(u));
    return f;
}

// Round to nearest even; NaN stays NaN.
DEVICE uint16_t device_f16_of_f32(float f)
{
    uint16_t u;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(u) : "f"(f));
    return u;
}

// Within 2 units in the last place; 0 where the result would be subnormal.
DEVICE float device_exp2(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Copies BYTES (16 or 4) to shared memory, there after device_arrive(); zeros if not
// `inside`, then nothing is read. At once where the hardware has no such copies.
template <int BYTES> DEVICE void device_copy(float *to, const void *from, bool inside)
{
#if __CUDA_ARCH__ >= 800
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    const int bytes = inside ? BYTES : 0;

    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                     "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from),
                     "r"(bytes) : "memory");
#else
    if (BYTES == 16)
        *(float4 *)to =
            inside ? *(const float4 *)from : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    else
        *to = inside ? *(const float *)from : 0.0f;
#endif
}

// A barrier, behind which all copies of all threads are there.
DEVICE void device_arrive()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    __syncthreads();
}
