// SPDX-License-Identifier: MIT
// common/device.cuh: instructions that C++ has no name for. The tests put a file of this
// name before it that computes the same on a processor (tests/emulator).
#pragma once
#include <stdint.h>

#define DEVICE static __device__ __forceinline__

// Dynamic shared memory, aligned to 1024 bytes.
#define SHARED_MEMORY(name) extern __shared__ __align__(1024) float4 name[]

// This thread's number, found anew: what follows from it would otherwise be kept in
// registers over a main loop that has none to spare.
DEVICE int device_thread()
{
    int x;

    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

// The group's, found anew.
DEVICE int device_group()
{
    int x;

    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
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

// The smaller one; NaN if there is one.
DEVICE float device_min(float a, float b)
{
#if __CUDA_ARCH__ >= 800
    float x;

    asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
#else
    return a > b ? b : a;
#endif
}

// a b, rounded: never made one with an addition.
DEVICE float device_product(float a, float b)
{
    return __fmul_rn(a, b);
}

// What memory holds is read anew behind this, rather than kept in registers.
DEVICE void device_forget()
{
    asm volatile("" ::: "memory");
}

// An address in shared memory as a number: one that is a multiple of a power of two can be
// moved within it by xor.
typedef uint32_t device_shared;

DEVICE device_shared device_address(const void *x)
{
    return (device_shared)__cvta_generic_to_shared(x);
}

// The same pointer to shared memory, held in a register: else compilers for clusters find
// it anew, from the group's place in its cluster, wherever it is used. By whole warps.
DEVICE void *device_hold(const void *x)
{
    return __cvta_shared_to_generic(__shfl_sync(0xffffffffu, device_address(x), 0));
}

// Copies BYTES (16 or 4) to shared memory, there after device_arrive(); zeros if not
// `inside`, then nothing is read. At once where the hardware has no such copies.
template <int BYTES> DEVICE void device_copy(float *to, const void *from, bool inside)
{
#if __CUDA_ARCH__ >= 800
    const device_shared at = device_address(to);
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

// Copies the first `bytes` of 16 to shared memory, and zeros behind them; of none nothing is
// read. Only where the hardware has such copies.
DEVICE void device_copy_part(void *to, const void *from, int bytes)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(device_address(to)),
                 "l"(from), "r"(bytes) : "memory");
#endif
}

// Has 128 bytes fetched into the second cache.
DEVICE void device_fetch(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Lets the next kernel of the stream begin, if it was launched to overlap with this one;
// what that reads of this one's results stands behind device_wait_before().
DEVICE void device_let_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits for the kernel before, and all its stores. At once if that has ended.
DEVICE void device_wait_before()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Words by which groups of a grid wait for each other, and a fence that orders what this
// thread, and those it has met at a barrier, did before and after.
DEVICE int device_flag(const int *at)
{
    int x;

    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}

DEVICE void device_set_flag(int *at, int x)
{
    asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

// The same, in order with what comes behind, and behind all that came before.
DEVICE int device_flag_acquire(const int *at)
{
    int x;

    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}

DEVICE void device_set_flag_release(int *at, int x)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

// Four words, each of which is read or written for itself, by who waits for them as for flags.
DEVICE float4 device_words(const float4 *at)
{
    float4 x;

    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(at) : "memory");
    return x;
}

DEVICE void device_set_words(float4 *at, const float4 &x)
{
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(x.x),
                 "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

DEVICE void device_fence()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

// Adds two numbers to two that lie side by side in memory, 8 bytes divide the address. Not
// waited for.
DEVICE void device_add_pair(float *to, float a, float b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b)
                 : "memory");
#else
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(a) : "memory");
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + 1), "f"(b) : "memory");
#endif
}

// Ends a group of this thread's copies, which may be empty.
DEVICE void device_commit()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all but the last PENDING groups of this thread's copies, for this thread.
template <int PENDING> DEVICE void device_copied()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
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

// A barrier of THREADS threads by number, 1 to 15; 0 is __syncthreads()'s. The second arrives
// at it and does not wait; behind the third all know whether one of them has it.
template <int THREADS> DEVICE void device_meet(int number)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

template <int THREADS> DEVICE void device_pass(int number)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

template <int THREADS> DEVICE bool device_meet_any(int number, bool has)
{
    uint32_t any;

    asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; bar.red.or.pred p, %1, %2, p; "
                 "selp.u32 %0, 1, 0, p; }"
                 : "=r"(any) : "r"(number), "n"(THREADS), "r"((uint32_t)has) : "memory");
    return any != 0;
}

// Writes a word of shared memory.
DEVICE void device_put(device_shared at, uint32_t x)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800    // or the host's pass
// Four 8 x 8 matrices of 16-bit elements from shared memory: lane i names row i % 8 of
// matrix i / 8, 16 bytes. Lane i gets of each matrix row i / 4, elements 2 (i % 4) + 0, 1.
DEVICE void device_matrices(uint32_t (&x)[4], device_shared row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row) : "memory");
}

DEVICE void device_matrices(uint32_t (&x)[4], const void *row)
{
    device_matrices(x, device_address(row));
}

// The same of their transposes: column i / 4, elements 2 (i % 4) + 0, 1 of it.
DEVICE void device_matrices_turned(uint32_t (&x)[4], device_shared row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row) : "memory");
}

DEVICE void device_matrices_turned(uint32_t (&x)[4], const void *row)
{
    device_matrices_turned(x, device_address(row));
}

// Two elements of 16 bits, f16 (TYPE 1) or bf16 (TYPE 2); each rounded to nearest even.
template <int TYPE> DEVICE uint32_t device_pair(float low, float high)
{
    uint32_t u;

    if (TYPE == 1)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low));
    return u;
}

// The smaller ones of two pairs of such elements; of a NaN and a number the number.
template <int TYPE> DEVICE uint32_t device_min_pair(uint32_t a, uint32_t b)
{
    uint32_t u;

    if (TYPE == 1)
        asm("min.f16x2 %0, %1, %2;" : "=r"(u) : "r"(a), "r"(b));
    else
        asm("min.bf16x2 %0, %1, %2;" : "=r"(u) : "r"(a), "r"(b));
    return u;
}

// c += a b, mma.m16n8k16 of f16 (TYPE 1) or bf16 (TYPE 2), sums f32. With r = lane / 4 and
// q = 2 (lane % 4): a has (row r; r + 8; r; r + 8, columns q, q + 1; the same; q + 8, q + 9;
// the same), b rows q, q + 1; q + 8, q + 9 of column r, c (r, q), (r, q + 1) and row r + 8.
template <int TYPE>
DEVICE void device_multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (TYPE == 1)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c = a b likewise.
template <int TYPE>
DEVICE void device_product_of(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (TYPE == 1)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
            : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
            : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// A number rounded to TF32, as a word of an operand.
DEVICE uint32_t device_tf32(uint32_t x)
{
    uint32_t u;

    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(__uint_as_float(x)));
    return u;
}

// c += a b, mma.m16n8k8 of TF32: the lower 13 bits of a word are not read. With r = lane / 4
// and q = lane % 4: a has row r; r + 8, column q, and the same of column q + 4, b rows q and
// q + 4 of column r, c as above.
DEVICE void device_multiply_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                 uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c = a b likewise.
DEVICE void device_product_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
#endif
