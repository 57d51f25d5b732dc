/* SPDX-License-Identifier: MIT */
/* softmax/fwd_math_product.cl: steps 4 and 6 of softmax_fwd_math: a product of matrices for
 * each pair of the round.
 *
 * Computes  C = A^T B: with OUTPUT 0 the scores S = K^T Q, summed over D; with OUTPUT 1
 *           O = V^T S, summed over the keys. Matrices as common/work.h and math.clh say
 * Method    register tiles of MR rows x NV vectors of columns: vectors of B, single
 *           elements of A broadcast; DEPTH rows of a panel of B stay in the first cache
 *           while all rows of a slice of C pass by (as in the packed products of
 *           K. Goto and R. van de Geijn, "Anatomy of high-performance matrix
 *           multiplication", 2008)
 * Grid      1-D, any number of groups; best one for every SLICE rows of C and BLOCK tiles
 *           side by side
 * Group     BLOCK work-items, a tile of columns each
 * Local     none
 * Numerics  f32; sums in spans of DEPTH. No sum depends on another column
 * Requires  nothing; no barrier, no subgroup
 * Tunables  VW NV MR, as fwd_tile_cpu.cl; DEPTH; SLICE, a multiple of MR; BLOCK. On GPUs
 *           PANELS 0 and NV 1: neighbouring work-items read neighbouring vectors
 * Oracle    src/host/softmax_fwd_reference.c
 */
#ifndef VW
#define VW 4    /* f32 lanes of a vector: 4, 8 or 16 */
#endif
#ifndef NV
#define NV 1    /* vectors of a register tile: 1, 2 or 3 */
#endif
#define NR (NV * VW)
#ifndef OUTPUT
#define OUTPUT 0
#endif
#ifndef DEPTH
#define DEPTH 128
#endif
#ifndef SLICE
#define SLICE 64
#endif
#include "common/params.h"
#include "common/work.h"
#include "common/types.clh"
#include "common/range.clh"
#include "common/address.clh"
#include "common/score.clh"
#include "common/state.clh"
#include "softmax/math.clh"

#include "softmax/math_tile.clh"

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_fwd_math_product(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const attn_work w = work_of(&p);
    const int depth = OUTPUT ? w.keys : D, rows = OUTPUT ? DVP : w.keys;
    const int tiles = w.cols / NR, slices = CEIL_DIV(rows, SLICE);
    const int sides = CEIL_DIV(tiles, BLOCK);
    const int a_step = work_step(rows, MR), bc_step = work_step(w.cols, NR);
    const int wanted = OUTPUT ? p.want_o : 1;

    for (long id = get_group_id(0); id < (long)w.pairs * sides * slices;
         id += get_num_groups(0)) {
        const int r0 = (int)(id % slices) * SLICE, r1 = min(r0 + SLICE, rows);
        const int x = (int)(id / slices % sides) * BLOCK + (int)get_local_id(0);
        const long pair = id / slices / sides;
        const __global float *a = p.work + (OUTPUT ? w.v : w.k) + pair * depth * rows;
        const __global float *b = p.work + (OUTPUT ? w.s : 0) + pair * depth * w.cols +
                                  work_column(depth, NR, x * NR);
        __global float *c = p.work + (OUTPUT ? w.o : w.s) + pair * rows * w.cols +
                            work_column(rows, NR, x * NR);

        if (x >= tiles)
            continue;
        if (!wanted)
            continue;
        for (int i = 0; i < depth; i += DEPTH)
            for (int r = r0; r < r1; r += MR)
                tile(c + (long)r * bc_step, bc_step,
                     a + work_column(depth, MR, r) + (long)i * a_step, 1, a_step,
                     b + (long)i * bc_step, bc_step, min(DEPTH, depth - i), i > 0);
    }
}
