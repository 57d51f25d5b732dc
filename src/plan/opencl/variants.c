/* SPDX-License-Identifier: MIT */
/* plan/opencl/variants.c: OpenCL's variants, best first: two families of kernels,
 * since one shape is many times too slow on the other kind of device. Both run
 * everywhere and can be asked for by name. */
#include "plan/opencl/variants.h"

#include <stddef.h>

#include <attn/device.h>

const attn_variant *const *attn_opencl_variants(const attn_caps *caps)
{
    static const attn_variant *const cpu[] = {
        &attn_opencl_softmax_fwd_split_variant,
        &attn_opencl_softmax_fwd_tile_cpu_variant,
        &attn_opencl_softmax_fwd_tile_gpu_variant,
        &attn_opencl_softmax_fwd_math_variant,
        &attn_opencl_softmax_fwd_math_clblast_variant,
        &attn_opencl_softmax_fwd_naive_variant,
        &attn_opencl_softmax_fwd_naive_copy_variant,
        &attn_opencl_softmax_bwd_tile_cpu_variant,
        &attn_opencl_softmax_bwd_tile_gpu_variant,
        &attn_opencl_softmax_bwd_math_variant,
        &attn_opencl_softmax_bwd_math_clblast_variant,
        &attn_opencl_linear_fwd_chunk_variant,
        &attn_opencl_linear_fwd_recurrent_variant,
        &attn_opencl_linear_bwd_chunk_variant,
        &attn_opencl_linear_bwd_recurrent_variant,
        &attn_opencl_linear_fwd_atomic_variant, /* where allow=nondet permits them */
        &attn_opencl_linear_bwd_atomic_variant,
        &attn_opencl_linear_fwd_lmha_variant, /* by name, as all that follow */
        &attn_opencl_linear_fwd_lmha_split_variant,
        &attn_opencl_linear_bwd_lmha_variant,
        &attn_opencl_linear_bwd_lmha_split_variant,
        NULL,
    };
    static const attn_variant *const gpu[] = {
        &attn_opencl_softmax_fwd_split_variant,
        &attn_opencl_softmax_fwd_tile_gpu_variant,
        &attn_opencl_softmax_fwd_tile_cpu_variant,
        &attn_opencl_softmax_fwd_math_variant,
        &attn_opencl_softmax_fwd_math_clblast_variant,
        &attn_opencl_softmax_fwd_naive_variant,
        &attn_opencl_softmax_fwd_naive_copy_variant,
        &attn_opencl_softmax_bwd_tile_gpu_variant,
        &attn_opencl_softmax_bwd_tile_cpu_variant,
        &attn_opencl_softmax_bwd_math_variant,
        &attn_opencl_softmax_bwd_math_clblast_variant,
        &attn_opencl_linear_fwd_chunk_variant,
        &attn_opencl_linear_fwd_recurrent_variant,
        &attn_opencl_linear_bwd_chunk_variant,
        &attn_opencl_linear_bwd_recurrent_variant,
        &attn_opencl_linear_fwd_atomic_variant, /* where allow=nondet permits them */
        &attn_opencl_linear_bwd_atomic_variant,
        &attn_opencl_linear_fwd_lmha_variant, /* by name, as all that follow */
        &attn_opencl_linear_fwd_lmha_split_variant,
        &attn_opencl_linear_bwd_lmha_variant,
        &attn_opencl_linear_bwd_lmha_split_variant,
        NULL,
    };

    return caps->kind == ATTN_DEVICE_CPU ? cpu : gpu;
}
