// SPDX-License-Identifier: MIT
// softmax/bwd_sinks.cu: the gradient of the sinks, from the LSE and delta alone.
//
// Computes  dSink_h = - sum over batches and i of exp(sink_h - LSE_i) delta_i
// Grid      1-D, Hq groups
// Block     THREADS threads, 1-D; each sums every THREADS-th query of a batch, and the first
//           one adds up in their order
// Shared    dynamic: 4 * THREADS bytes
// Barriers  one
// Numerics  f32, sums compensated; a weight is at most 1
// Oracle    src/host/softmax_bwd_reference.c
#include "common/params.h"

#ifndef NAME
#define NAME attn_softmax_bwd_sinks
#endif

#include "softmax/bwd.cuh"

constexpr int THREADS = 256;    // src/plan/cuda/backward.c
constexpr int CAN = CAN_ALL & ~FEAT_PAGES;

extern "C" __global__ __launch_bounds__(THREADS) void NAME(
    const __grid_constant__ attn_kparams p)
{
    SHARED_MEMORY(memory);
    float *const part = (float *)memory;
    const int lane = threadIdx.x, h = blockIdx.x;
    const float sink = state_sink<CAN>(p, h);
    float sum = 0.0f, extra = 0.0f;

    for (int64_t b = 0; b < p.batch; b++) {
        const attn_sequence seq = range_sequence<CAN>(p, b);

        for (int i = lane; sink != -INFINITE && i < seq.queries; i += THREADS) {
            const float over = sink - back_lse<CAN>(p, seq, b, h, i);
            const float weight = over <= 0.0f ? expf(over) : 1.0f;    // of +inf: 1

            if (weight != 0.0f)
                sum = back_add(sum, -weight * p.work[back_delta_at(p, b, h, i)], &extra);
        }
    }
    part[lane] = sum - extra;
    __syncthreads();
    if (lane == 0) {
        sum = extra = 0.0f;
        for (int x = 0; x < THREADS; x++)
            sum = back_add(sum, part[x], &extra);
        p.grad_sinks[p.grad_sinks_offset + h * p.grad_sinks_stride_h] = sum - extra;
    }
}
