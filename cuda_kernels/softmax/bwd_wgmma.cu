// SPDX-License-Identifier: MIT
// softmax/bwd_wgmma.cu: gradients of softmax attention on Hopper's tensor cores.
//
// Computes  dK and dV, and sums of which dQ is a multiple, as in include/attn/softmax.h
// Method    bwd_mma.cu's, with warpgroups, after J. Shah et al., "FlashAttention-3" (2024). Two
//           have 64 keys each: S^T = K Q^T and dP^T = V dO^T from shared memory; P^T and dS^T
//           stay in the registers for dV += P^T dO and dK += dS^T Q; dS goes through shared
//           memory for dS K, of which each has half the columns. Over 128 columns both have
//           the same keys, and part the sums (bwd_wgmma_parts.cuh). Of the third three warps
//           load K and V, then Q and dO of one step after the other with LSE and delta; the
//           last lets the copy engine add dQ to the sums when it is the group's turn
// Grid      1-D, ceil(Lk / BM) * B * Hkv groups, in the order of tickets
// Block     128 * (1 + WGS) threads, 1-D: the loading warpgroup first
// Shared    dynamic: K, V; STAGES of Q and dO; dS; weights that go over; dQ on its way; LSE,
//           delta; barriers, work
// Barriers  full and empty ones in shared memory for K and V, each stage, weights, dS and dQ;
//           named ones for the loading warps and, once a step, the warpgroups with products
// Layout    Q, K, V, dO: rows of 16-byte chunks at multiples of 16 bytes; dK, dV any strides.
//           work: bwd_mma_work.cuh
// Numerics  as bwd_mma.cu
// Features  ranges, lengths, packed sequences, sinks through common/; no softcap, terms,
//           pages, dropout
// Requires  sm_90a; bwd_mma_begin.cu before, bwd_mma_finish.cu behind; D and Dv up to DIM,
//           columns past them are 0 and not read
// Tunables  STAGES; src/plan/cuda/softmax_bwd_wgmma.c has the same numbers
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for f16 and bf16 with DIM 64, 128 and 256: NAME is the image's. _keys has no sums of dQ,
// _queries no others.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F16
#endif
#ifndef DIM
#define DIM 64
#endif
#define DIMV DIM
#ifndef NAME
#define NAME attn_softmax_bwd_wgmma_f16_d64
#endif

#include "softmax/bwd_wgmma_load.cuh"
#if DIM <= 128
#include "softmax/bwd_wgmma_keys.cuh"
#else
#include "softmax/bwd_wgmma_parts.cuh"
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <typename T, int CAN>
DEVICE void bwd_wgmma(const attn_kparams &p, const attn_maps &maps)
{
    static_assert(sizeof(back_shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    back_shared<T> &mem = *(back_shared<T> *)memory;

    if (threadIdx.x == 0) {
        mem.from[0] = { p.q, p.d };
        mem.from[1] = { p.grad_o, p.has & HAS_GRAD_O ? p.dv : 0 };    // not given, it is 0
        find_group<T, CAN>(p, mem.group);
        find_step<T, CAN>(p, mem.group, NULL, mem.step[0]);
        // each thread arrives for itself: what racecheck can follow, and as fast as one for a warp
        constexpr int WIDE = T::PARTS ? 128 : MATH;    // threads that have keys

        device_barrier_init(&mem.full_own, 2 * 32);
        for (int i = 0; i < T::STAGES; i++) {
            device_barrier_init(&mem.full_q[i], 2 * 32);
            device_barrier_init(&mem.empty[i], MATH);
        }
        for (int i = 0; i < T::STAGES_O; i++)
            device_barrier_init(&mem.full_o[i], 32);
        device_barrier_init(&mem.empty_o, MATH);
        for (int i = 0; i < T::PAIRS; i++) {
            device_barrier_init(&mem.full_ds[i], WIDE);
            device_barrier_init(&mem.empty_ds[i], MATH);
        }
        for (int i = 0; i < 2; i++) {
            device_barrier_init(&mem.full_dq[i], WIDE);
            device_barrier_init(&mem.empty_dq[i], 1);
        }
        device_barrier_init(&mem.full_weights, WIDE);
        device_barrier_init(&mem.empty_weights, WIDE);
    }
    device_barriers_ready();
    if (mem.group.owned == 0)
        return;
    if (threadIdx.x < 128) {
        device_leave_registers<T::LOAD_REGISTERS>();
        if (threadIdx.x < LOADING)
            load<T, CAN>(p, maps, mem);
        else if (T::Q && threadIdx.x == LOADING)
            add_queries<T>(p, mem);
    } else {
        device_take_registers<T::MATH_REGISTERS>();
        compute<T, CAN>(p, mem);
    }
}

#define KERNEL_BODY(T) bwd_wgmma<T, CAN_RANGES>(p, maps)
#elif defined(__CUDA_ARCH__)
#error "sm_90a alone has these instructions"
#else    // the compiler's pass for the host
#define KERNEL_BODY(T)
#endif

#define JOIN(a, b) a##b
#define KERNEL(name, part, T) \
    extern "C" __global__ __launch_bounds__(T::THREADS, T::BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p, const __grid_constant__ attn_maps maps) \
    { \
        KERNEL_BODY(T); \
    }

// Two stages from 128 columns on, since the shared memory has no room for more.
constexpr int STAGES = DIM == 64 ? 4 : 2;
using with_all = back_wgmma<STAGES, true, true>;
using with_keys = back_wgmma<STAGES, false, true>;
using with_queries = back_wgmma<STAGES, true, false>;

KERNEL(NAME, _all, with_all)
KERNEL(NAME, _keys, with_keys)
KERNEL(NAME, _queries, with_queries)
