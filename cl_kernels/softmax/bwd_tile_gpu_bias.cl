/* SPDX-License-Identifier: MIT */
/* softmax/bwd_tile_gpu_bias.cl: the gradient of the bias for GPUs.
 *
 * Computes  dBias = dS before the softcap, summed over the dimensions in which the bias was
 *           broadcast
 * Method    a group has a tile of BM x BN elements of dBias to itself and visits every pair
 *           that they were added to: in a dimension that dBias has, its tile of it; in
 *           one that was broadcast, all of it, in order. Item (tx, ty) holds RM x RN sums;
 *           where queries or keys were broadcast, those meet in local memory at the end
 * Grid      1-D, ceil(keys of dBias / BN) * ceil(its queries / BM) * its heads * its
 *           batches groups, keys fastest
 * Group     TX * TY work-items, 1-D
 * Local     as bwd_tile_gpu.cl, without marks
 * Barriers  2 for each chunk, 1 more a step; all where every item passes
 * Numerics  f32, sums compensated (Kahan 1965), in an order of their own. What no pair adds
 *           to is exactly 0
 * Features  Requires, Tunables: as bwd_tile_gpu.cl
 * Oracle    src/host/softmax_bwd_reference.c
 */
#define KEYS 0
#define CAPPED 0
#define MARKS 0
#include "softmax/bwd_pairs.clh"

__kernel __attribute__((reqd_work_group_size(TX * TY, 1, 1)))
void attn_softmax_bwd_tile_gpu_bias(SIGNATURE(SOFTMAX_BWD_PARAMS))
{
    __local float4 own4[OWNED_FLOATS / 4], visited4[VISITED_FLOATS / 4], w4[BM * PP / 4];
    __local float lse_tile[TILE_QUERIES], delta_tile[TILE_QUERIES];
    __local int mark[1];
    const attn_local l = { (__local float *)own4, (__local float *)visited4,
                           (__local float *)w4, lse_tile, delta_tile, mark };
    const attn_kparams p = KPARAMS(SOFTMAX_BWD_PARAMS);
    /* which dimensions dBias has */
    const int has_b = p.grad_bias_size_b == p.batch;
    const int has_h = p.grad_bias_size_h == p.heads_q;
    const int has_i = p.grad_bias_size_l == p.len_q;
    const int has_j = p.grad_bias_size_d == p.len_kv;
    const int tiles_j = CEIL_DIV(p.grad_bias_size_d, BN);
    const int tiles_i = CEIL_DIV(p.grad_bias_size_l, BM);
    const long id = get_group_id(0);
    const int j_out = (int)(id % tiles_j) * BN, i_out = (int)(id / tiles_j % tiles_i) * BM;
    const long h_out = id / tiles_j / tiles_i % p.grad_bias_size_h;
    const long b_out = id / tiles_j / tiles_i / p.grad_bias_size_h;
    /* how many tiles of pairs, heads and batches it visits */
    const int n_j = has_j ? 1 : CEIL_DIV(p.len_kv, BN);
    const int n_i = has_i ? 1 : CEIL_DIV(p.len_q, BM);
    const int n_h = has_h ? 1 : p.heads_q, n_b = has_b ? 1 : p.batch;
    const long steps = (long)n_b * n_h * n_i * n_j;
    float sum[RM][RN], extra[RM][RN];

    #pragma unroll
    for (int r = 0; r < RM; r++) {
        #pragma unroll
        for (int c = 0; c < RN; c++)
            sum[r][c] = extra[r][c] = 0.0f;
    }
    for (long step = 0;; step++) {
        attn_sequence seq;
        long h, b;
        int i0, j0, queries, lo, n;
        attn_range any;

        /* The next tile that has a pair in sight: no barrier is jumped over, which not
         * every compiler for processors gets right. */
        for (; step < steps; step++) {
            j0 = has_j ? j_out : (int)(step % n_j) * BN;
            i0 = has_i ? i_out : (int)(step / n_j % n_i) * BM;
            h = has_h ? h_out : step / n_j / n_i % n_h;
            b = has_b ? b_out : step / n_j / n_i / n_h;
            seq = range_sequence(&p, b);
            queries = clamp(seq.queries - i0, 0, BM);
            any = range_any(&p, &seq, i0, queries);
            lo = max(any.first - j0, 0);
            n = min(any.end - j0, BN);
            if (n > lo)
                break;
        }
        if (step >= steps)
            break;

        const attn_range all = range_all(&p, &seq, i0, queries);
        const int masked = queries < BM || n < BN || lo || j0 < all.first ||
                           j0 + n > all.end;
        const attn_score score = score_run(&p, &seq, b, h, i0, queries);
        const long head_kv = address_head_kv(&p, (int)h);
        const attn_some qs = { p.q, ADDRESS_QUERIES(&p, q, &seq, b, h), i0, 0, queries };
        const attn_some gs = { p.grad_o, ADDRESS_QUERIES(&p, grad_o, &seq, b, h), i0, 0,
                                 queries };
        const attn_some ks = { p.k, ADDRESS_KEYS(&p, k, &seq, b, head_kv), j0, lo, n };
        const attn_some vs = { p.v, ADDRESS_KEYS(&p, v, &seq, b, head_kv), j0, lo, n };
        float s[RM][RN], ds[RM][RN];

        barrier(CLK_LOCAL_MEM_FENCE);    /* LSE and delta before have been read */
        pairs_take(&l, &p, &seq, b, h, i0, 0, queries);
        pairs_product(s, &l, &qs, CONTIG_Q, &ks, CONTIG_K, D, D);
        pairs_product(ds, &l, &gs, CONTIG_GRAD_O, &vs, CONTIG_V,
                      p.has & HAS_GRAD_O ? DV : 0, DV);
        pairs_weigh(s, ds, &l, &p, &score, j0, masked, 0);
        #pragma unroll
        for (int r = 0; r < RM; r++) {
            #pragma unroll
            for (int c = 0; c < RN; c++)
                sum[r][c] = back_add(sum[r][c], ds[r][c], &extra[r][c]);
        }
    }

    #pragma unroll
    for (int r = 0; r < RM; r++) {
        #pragma unroll
        for (int c = 0; c < RN; c++)
            sum[r][c] -= extra[r][c];
    }
    pairs_put(&l, sum);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = get_local_id(0); e < (has_i ? BM : 1) * (has_j ? BN : 1); e += ITEMS) {
        const int i = has_j ? e / BN : e, j = has_j ? e % BN : 0;
        float total = 0.0f, rest = 0.0f;

        for (int x = has_i ? i : 0; x < (has_i ? i + 1 : BM); x++)
            for (int y = has_j ? j : 0; y < (has_j ? j + 1 : BN); y++)
                total = back_add(total, l.w[x * PP + y], &rest);
        if (i_out + i < p.grad_bias_size_l && j_out + j < p.grad_bias_size_d)
            p.grad_bias[p.grad_bias_offset + b_out * p.grad_bias_stride_b +
                        h_out * p.grad_bias_stride_h + (i_out + i) * p.grad_bias_stride_l +
                        (j_out + j) * p.grad_bias_stride_d] = total - rest;
    }
}
