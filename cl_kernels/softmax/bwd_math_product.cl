/* SPDX-License-Identifier: MIT */
/* softmax/bwd_math_product.cl: the products of softmax_bwd_math, for each pair of the round.
 *
 * Computes  with OF 0 the scores w = K Q^T, summed over D, and s = V dO^T over DV, all
 *           transposed; 1: dQ = K^T s, summed over the keys; 2: dK = s Q and dV = w dO,
 *           summed over the columns of the round, and added to those of the rounds before
 *           it that had other queries. Matrices as common/work.h and bwd_math.clh say
 * Method    register tiles of MR rows x NV vectors, as fwd_math_product.cl
 * Grid      1-D, any number of groups; best a work-item for every SLICE rows and NV * VW
 *           columns
 * Group     BLOCK work-items
 * Local     none
 * Numerics  f32; sums in spans of DEPTH, or of NR columns where those lie in panels. No sum
 *           depends on another column
 * Requires  nothing; no barrier, no subgroup
 * Tunables  VW NV MR DEPTH SLICE BLOCK PANELS, as there; with OF 2 NV * VW is NB, else NR
 * Oracle    src/host/softmax_bwd_reference.c
 */
#ifndef VW
#define VW 4    /* f32 lanes of a vector: 4, 8 or 16 */
#endif
#ifndef NV
#define NV 1    /* vectors of a register tile: 1, 2 or 3 */
#endif
#ifndef OF
#define OF 0
#endif
#ifndef DEPTH
#define DEPTH 128
#endif
#ifndef SLICE
#define SLICE 64
#endif
#include "softmax/bwd_math.clh"
#include "softmax/math_tile.clh"

/* A product for each pair: C, m x n, = the sum over k of A and B, k x n, where A is k x m,
 * or, with OF 2, m x k. */
typedef struct attn_product {
    long a, b, c;
    int m, k, n, wanted;
} attn_product;

/* SLICE rows from r0 on of the columns from n0 on. */
static inline void slice(const attn_kparams *p, const attn_product *x, long pair, int r0,
                         int n0)
{
    const int width = NV * VW, step = work_step(x->n, width);
    const int depth = OF == 2 && PANELS ? NR : DEPTH, r1 = min(r0 + SLICE, x->m);

    for (int i = 0; i < x->k; i += depth)
        for (int r = r0; r < r1; r += MR) {
            const int n = min(depth, x->k - i);
            const int more = i > 0 || (OF == 2 && p->round_query > 0);
            const long c = matrix_at(x->c, pair, x->m, x->n, width, r, n0);
            const long b = matrix_at(x->b, pair, x->k, x->n, width, i, n0);

            if (OF == 2)
                tile(p->work + c, step,
                     p->work + matrix_at(x->a, pair, x->m, x->k, NR, r, i),
                     work_step(x->k, NR), 1, p->work + b, step, n, more);
            else
                tile(p->work + c, step,
                     p->work + matrix_at(x->a, pair, x->k, x->m, MR, i, r), 1,
                     work_step(x->m, MR), p->work + b, step, n, more);
        }
}

static inline void multiply(const attn_kparams *p, const attn_product *x, int pairs)
{
    const int tiles = x->n / (NV * VW), slices = CEIL_DIV(x->m, SLICE);

    /* on processors a panel of B stays in the cache, on GPUs neighbours read side by side */
    for (long id = get_global_id(0); id < (long)pairs * tiles * slices && x->wanted;
         id += get_global_size(0)) {
        const int at = (int)(id % (tiles * slices));
        const int tile_n = PANELS ? at / slices : at % tiles;
        const int slice_m = PANELS ? at % slices : at / tiles;

        slice(p, x, id / (tiles * slices), slice_m * SLICE, tile_n * NV * VW);
    }
}

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_bwd_math_product(SIGNATURE(SOFTMAX_BWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_BWD_PARAMS);
    const attn_matrices m = matrices_of(&p);
    const int with_o = (p.has & HAS_GRAD_O) != 0;
    const int with_s = with_o && p.has & HAS_OF_SCORES;
    attn_product x = { m.k_t, m.q_t, m.w, m.keys, D, m.cols, 1 };
    attn_product y = { m.v_t, m.g_t, m.s, m.keys, DV, m.cols, with_s };

    if (OF == 1)
        x = (attn_product){ m.k_r, m.s, m.dq, m.dm, m.keys, m.cols, 1 };
    if (OF == 2) {
        x = (attn_product){ m.s, m.q_r, m.dk, m.keys, m.cols, m.dn,
                            (p.has & HAS_GRAD_K) != 0 };
        y = (attn_product){ m.w, m.g_r, m.dvs, m.keys, m.cols, m.dvn,
                            (p.has & HAS_GRAD_V) != 0 && with_o };
    }
    multiply(&p, &x, m.pairs);
    if (OF != 1)
        multiply(&p, &y, m.pairs);
}
