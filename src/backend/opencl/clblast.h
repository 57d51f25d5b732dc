/* SPDX-License-Identifier: MIT */
/* backend/opencl/clblast.h: CLBlast, opened at run time, for the steps of
 * softmax_fwd_math_clblast and softmax_bwd_math_clblast that are products of matrices. */
#ifndef ATTN_OPENCL_CLBLAST_H
#define ATTN_OPENCL_CLBLAST_H

#include "backend/opencl/opencl.h"

/* What is called of its C interface; clblast_c.h declares the same. Enumerations and
 * status codes are ints. */
typedef struct attn_clblast {
    int (*sgemm)(int layout, int a_transpose, int b_transpose, size_t m, size_t n, size_t k,
                 float alpha, cl_mem a, size_t a_offset, size_t a_ld, size_t a_stride,
                 cl_mem b, size_t b_offset, size_t b_ld, size_t b_stride, float beta,
                 cl_mem c, size_t c_offset, size_t c_ld, size_t c_stride,
                 size_t batch_count, cl_command_queue *queue, cl_event *event);
    int (*clear_cache)(void);
} attn_clblast;

/* The library of that name, which may also be the folder that holds it; NULL: the usual
 * one. Opened once in a process and never closed. NULL if there is none. `shown` receives
 * what to call it, "" if there is none. Threads: safe. */
const attn_clblast *attn_clblast_load(const char *name, char *shown, size_t cap);

/* Whether a step is CLBlast's, and what computes it. */
attn_cl_library *attn_clblast_step(const char *kernel);

/* Lets go of the programs that CLBlast keeps: with them goes its hold on contexts. */
void attn_clblast_clear(const attn_clblast *blas);

#endif
