/* SPDX-License-Identifier: MIT */
/* tools/measure.h: how long one variant takes for one problem. */
#ifndef ATTN_TOOLS_MEASURE_H
#define ATTN_TOOLS_MEASURE_H

#include <stddef.h>

#include <attn/attn.h>

#include "gemm.h"
#include "sweep.h"

/* Times in the units of their names; what was not measured is NAN. */
typedef struct measurement {
    char problem[256];
    char variant[64];
    char plan[512];             /* variant and instance, as attn_plan_text() writes it    */
    attn_status status;         /* not ATTN_OK: `why` tells, and nothing was measured     */
    char why[512];

    double ms, ms_least, ms_most;   /* by the device's clock: median of `runs`            */
    size_t runs;
    double gflop_s;             /* 2 * visible pairs * (D + Dv) a head, over the median   */
    double gb_s;                /* every tensor once, over the median                     */
    double first_plan_ms;       /* with the compiler, unless a cache had the kernels      */
    double plan_ms;             /* the same plan again                                    */
    double enqueue_us;          /* host time of attn_execute(); NAN on "host", which is
                                 * synchronous                                            */
    double gemm_gflop_s;        /* best rate of the yardstick around this measurement     */
    double gemm_ratio;          /* gflop_s / gemm_gflop_s                                 */
    double read_gb_s;           /* best rate of a plain read by the same threads          */
    double read_ratio;          /* gb_s / read_gb_s                                       */
} measurement;

/* What a measurement is held against; NULL: not. */
typedef struct yardsticks {
    const gemm *gemm;
    const sweep *sweep;
} yardsticks;

/* Measures for about `min_time` seconds; the yardsticks are timed in turn with it, in the
 * order A B B A. */
void measure(attn_ctx *ctx, const attn_softmax_desc *desc, const char *variant,
             double min_time, const yardsticks *against, measurement *out);

#endif
