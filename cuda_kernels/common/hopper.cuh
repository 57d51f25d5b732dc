// SPDX-License-Identifier: MIT
// common/hopper.cuh: what compute capability 9.0 alone has: warpgroup products (wgmma),
// registers that move between warpgroups, barriers in shared memory that copies arrive at.
// PTX ISA 8.0, "Asynchronous Warpgroup Level Matrix Instructions".
#pragma once
#include "common/device.cuh"
#include "common/maps.h"

// A barrier in shared memory: its phase ends when `count` arrivals are there.
struct device_barrier {
    uint64_t state;
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)    // or the host's pass

DEVICE void device_barrier_init(device_barrier *b, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(device_address(b)), "r"(count)
                 : "memory");
}

// Makes barriers that have been set up known to all.
DEVICE void device_barriers_ready()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
}

DEVICE void device_barrier_arrive(device_barrier *b, int times = 1)
{
    asm volatile("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [%0], %1; }" ::"r"(
                     device_address(b)), "r"(times) : "memory");
}

// Arrives when all copies that this thread has begun (device_copy) are there.
DEVICE void device_barrier_arrive_copied(device_barrier *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(device_address(b))
                 : "memory");
}

// All whose arrivals make a phase of the barrier wait for each other. Unlike at a barrier by
// number (device_meet) each lane comes for itself, and warps need not be whole.
DEVICE void device_barrier_meet(device_barrier *b)
{
    asm volatile("{ .reg .pred there; .reg .b64 phase; "
                 "mbarrier.arrive.shared::cta.b64 phase, [%0]; "
                 "again: mbarrier.try_wait.shared::cta.b64 there, [%0], phase; "
                 "@there bra done; bra again; done: }" ::"r"(device_address(b)) : "memory");
}

// Waits for the end of the phase of that parity, 0 for the first.
DEVICE void device_barrier_wait(device_barrier *b, uint32_t parity)
{
    asm volatile("{ .reg .pred there; "
                 "again: mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1; "
                 "@there bra done; bra again; done: }" ::"r"(device_address(b)),
                 "r"(parity) : "memory");
}

#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Arrives, and lets the phase wait for so many bytes of device_copy_box().
DEVICE void device_barrier_expect(device_barrier *b, int bytes)
{
    asm volatile("{ .reg .b64 t; mbarrier.arrive.expect_tx.shared::cta.b64 t, [%0], %1; }" ::"r"(
                     device_address(b)), "r"(bytes) : "memory");
}

// Copies the box at (column, row, head, batch) of a map to shared memory, by one thread; its
// bytes arrive at the barrier. Elements outside of the tensor become 0.
DEVICE void device_copy_box(void *to, const attn_map *map, int column, int row, int head,
                            int batch, device_barrier *b)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::"
                 "bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(device_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch),
                 "r"(device_address(b)) : "memory");
}

// Adds numbers in shared memory to as many in global memory, in f32, by the copy engine: 16
// divides both addresses and the bytes. What ordinary stores wrote there is handed over first
// (device_copies_to_products). _store writes them instead.
DEVICE void device_bulk_add(float *to, const float *from, int bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::
                     "l"(to), "r"(device_address(from)), "r"(bytes) : "memory");
}

DEVICE void device_bulk_store(float *to, const float *from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(device_address(from)), "r"(bytes) : "memory");
}

DEVICE void device_bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until all but the last PENDING groups of this thread's are written.
template <int PENDING> DEVICE void device_bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Waits until shared memory may be written again.
DEVICE void device_bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// 1 / x to 1 in the last place, without the branches of a division.
DEVICE float device_one_over(float x)
{
    float y;

    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <int REGISTERS> DEVICE void device_take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> DEVICE void device_leave_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// What ordinary copies wrote to shared memory can be read by products after this.
DEVICE void device_copies_to_products()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Before products whose registers were written otherwise.
DEVICE void device_products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void device_products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> DEVICE void device_products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps uses of sums where they stand in the text, behind a wait or before a product.
template <int N> DEVICE void device_products_hold(float (&c)[N][4])
{
    #pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]) :: "memory");
}

// Four 8 x 8 matrices of 16-bit elements to shared memory, as device_matrices() reads them.
DEVICE void device_put_matrices(device_shared row, const uint32_t (&x)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// A tile in shared memory as products read it: rows of 64 elements of 16 bits, chunks of 16
// bytes exchanged by xor with the row's number modulo 8, eight rows in 1024 bytes; beside it
// the next 64 columns, `panel` bytes on. The tile begins at a multiple of 1024 bytes.
DEVICE uint64_t device_tile(device_shared at, int panel)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(panel >> 4) << 16 |
           (at & 0x3ffff) >> 4;
}

#define W_4 "%0, %1, %2, %3"
#define W_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define W_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define W_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define W_32_8 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define W_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define W_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define W_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define W_80_8 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define W_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
             "%109, %110, %111"
#define W_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
              "%124, %125, %126, %127"
#define F_4(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define F_16(i) F_4(i), F_4(i + 1), F_4(i + 2), F_4(i + 3)
#define F_32(i) F_16(i), F_16(i + 4)
#define F_64(i) F_32(i), F_32(i + 8)

// c (+)= a b: 64 rows, N columns, 16 deep, of f16 (TYPE 1) or bf16 (TYPE 2). _in: both from
// shared memory, each with its rows along rows or columns of the result; c is not added to
// unless `added`. _of: a in registers, as mma.m16n8k16 has it, 16 rows a warp; b from shared
// memory, its rows along the depth.
#define PRODUCTS_IN(N, TEXT, LIST, SUMS, A, B, C, TURNED) \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #C ", 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TEXT "." TEXT \
                 " {" LIST "}, %" #A ", %" #B ", p, 1, 1, " TURNED "; }" \
                 : ALL SUMS : "l"(a), "l"(b), "r"(added))
#define PRODUCTS_OF(N, TEXT, LIST, SUMS, A, B, C, D, E) \
    asm volatile("{ .reg .pred p; setp.eq.b32 p, 0, 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TEXT "." TEXT \
                 " {" LIST "}, {%" #A ", %" #B ", %" #C ", %" #D "}, %" #E ", p, 1, 1, 1; }" \
                 : ALL SUMS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define PRODUCTS_BY(N, TEXT, LIST, SUMS, A, B, C, D, E, F, TURNED) \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #F ", 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TEXT "." TEXT \
                 " {" LIST "}, {%" #A ", %" #B ", %" #C ", %" #D "}, %" #E ", p, 1, 1, " \
                 #TURNED "; }" \
                 : ALL SUMS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(added))
#define ALL(...) __VA_ARGS__
#define PRODUCTS(N, LIST, SUMS, A, B, C, D, E) \
    template <int TYPE> \
    DEVICE void device_products_in(float (&c)[N / 8][4], uint64_t a, uint64_t b, int added) \
    { \
        if constexpr (TYPE == 1) \
            PRODUCTS_IN(N, "f16", LIST, SUMS, A, B, C, "0, 0"); \
        else \
            PRODUCTS_IN(N, "bf16", LIST, SUMS, A, B, C, "0, 0"); \
    } \
    template <int TYPE> \
    DEVICE void device_products_of(float (&c)[N / 8][4], const uint32_t (&a)[4], uint64_t b) \
    { \
        if constexpr (TYPE == 1) \
            PRODUCTS_OF(N, "f16", LIST, SUMS, A, B, C, D, E); \
        else \
            PRODUCTS_OF(N, "bf16", LIST, SUMS, A, B, C, D, E); \
    }

// c (+)= a b, 64 rows, N columns, 16 deep, of f16 or bf16; both from shared memory, each with
// its rows along the depth. _down: of bf16, a has its rows along rows of the result.
#define PRODUCTS_TURNED(N, LIST, SUMS, A, B, C) \
    template <int TYPE> \
    DEVICE void device_products_turned(float (&c)[N / 8][4], uint64_t a, uint64_t b, int added) \
    { \
        if constexpr (TYPE == 1) \
            PRODUCTS_IN(N, "f16", LIST, SUMS, A, B, C, "1, 1"); \
        else \
            PRODUCTS_IN(N, "bf16", LIST, SUMS, A, B, C, "1, 1"); \
    } \
    DEVICE void device_products_down(float (&c)[N / 8][4], uint64_t a, uint64_t b, int added) \
    { \
        PRODUCTS_IN(N, "bf16", LIST, SUMS, A, B, C, "0, 1"); \
    }

// c (+)= a b of bf16, a in registers; b from shared memory, its rows along columns of the result,
// or (_along) along the depth.
#define PRODUCTS_ADDED(N, LIST, SUMS, A, B, C, D, E, F) \
    DEVICE void device_products_by(float (&c)[N / 8][4], const uint32_t (&a)[4], uint64_t b, \
                                   int added) \
    { \
        PRODUCTS_BY(N, "bf16", LIST, SUMS, A, B, C, D, E, F, 0); \
    } \
    DEVICE void device_products_along(float (&c)[N / 8][4], const uint32_t (&a)[4], uint64_t b, \
                                      int added) \
    { \
        PRODUCTS_BY(N, "bf16", LIST, SUMS, A, B, C, D, E, F, 1); \
    }

PRODUCTS_ADDED(32, W_0, (F_16(0)), 16, 17, 18, 19, 20, 21)
PRODUCTS_ADDED(64, W_0 W_16, (F_32(0)), 32, 33, 34, 35, 36, 37)
PRODUCTS_ADDED(128, W_0 W_16 W_32 W_48, (F_64(0)), 64, 65, 66, 67, 68, 69)
PRODUCTS_TURNED(8, W_4, (F_4(0)), 4, 5, 6)
PRODUCTS_TURNED(32, W_0, (F_16(0)), 16, 17, 18)
PRODUCTS_TURNED(64, W_0 W_16, (F_32(0)), 32, 33, 34)
PRODUCTS_TURNED(128, W_0 W_16 W_32 W_48, (F_64(0)), 64, 65, 66)
PRODUCTS(64, W_0 W_16, (F_32(0)), 32, 33, 34, 35, 36)
PRODUCTS(80, W_0 W_16 W_32_8, (F_32(0), F_4(8), F_4(9)), 40, 41, 42, 43, 44)
PRODUCTS(96, W_0 W_16 W_32, (F_32(0), F_16(8)), 48, 49, 50, 51, 52)
PRODUCTS(128, W_0 W_16 W_32 W_48, (F_64(0)), 64, 65, 66, 67, 68)
PRODUCTS(160, W_0 W_16 W_32 W_48 W_64, (F_64(0), F_16(16)), 80, 81, 82, 83, 84)
PRODUCTS(176, W_0 W_16 W_32 W_48 W_64 W_80_8, (F_64(0), F_16(16), F_4(20), F_4(21)), 88,
         89, 90, 91, 92)
PRODUCTS(192, W_0 W_16 W_32 W_48 W_64 W_80, (F_64(0), F_32(16)), 96, 97, 98, 99, 100)
PRODUCTS(256, W_0 W_16 W_32 W_48 W_64 W_80 W_96 W_112, (F_64(0), F_64(16)), 128, 129, 130,
         131, 132)

#endif
