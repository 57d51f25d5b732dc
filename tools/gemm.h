/* SPDX-License-Identifier: MIT */
/* tools/gemm.h: the matrix product of OpenBLAS, as a yardstick for processors. */
#ifndef ATTN_TOOLS_GEMM_H
#define ATTN_TOOLS_GEMM_H

#include <stdbool.h>

enum { GEMM_SIZE = 1024 };   /* sgemm of three square matrices */

typedef struct gemm {
    void *library;
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c,
                  int ldc);
    float *matrices;         /* A, B and C, one after the other                  */
    char name[128];          /* "OpenBLAS Haswell, 2 threads"                    */
    char absent[256];        /* why there is none; "": there is                  */
} gemm;

/* Opens libopenblas.so.0 and fills the matrices with random numbers. false: `absent`
 * says why not. */
bool gemm_open(gemm *g);

/* Runs one product and returns its rate in GFLOP/s. */
double gemm_rate(const gemm *g);

/* Accepts one that did not open. */
void gemm_close(gemm *g);

#endif
