/* SPDX-License-Identifier: MIT */
/* softmax/bwd_tile_gpu.cl: gradients of softmax attention for GPUs: one work-group
 * computes the dQ of a tile of queries, or the dK and dV of a tile of keys.
 *
 * Computes  dQ; with KEYS dK and dV, those that are there; as in include/attn/softmax.h
 * Method    FlashAttention-2 (Dao 2023) in passes that share no output, so that nothing is
 *           added atomically: each computes the weights again from the LSE. Item (tx, ty)
 *           holds RM x RN pairs and RM x 4 RA (RM x 4 RB) sums of a gradient in registers
 *           (RM = BM / TY, RN = BN / TX, RA = ceil(D / 4 TX), RB = ceil(DV / 4 TX)). Rows
 *           pass through local memory, for scores in chunks of depth, for sums in chunks
 *           of rows. A group of keys visits the queries of all heads that read them, head
 *           by head
 * Grid      1-D, dQ: ceil(Lq / BM) * Hq * B groups, KEYS: ceil(Lk / BM) * Hkv * B, tiles
 *           fastest; first those that visit most under a causal rule
 * Group     TX * TY work-items, 1-D
 * Local     in bytes:
 *             4 * ( BM * (DC + 4) + max(BN * (DC + 4), JC * VP)     two tiles of rows
 *                 + BM * (BN + 4)                                   P, or dS
 *                 + 2 * (KEYS ? BN : BM) + (FEAT_HIDES ? BN : 1) )  LSE, delta; marks
 * Barriers  2 for each chunk, 1 or 2 more a step; all where every item passes
 * Layout    any strides, in elements; CONTIG_ macros promise stride 1
 * Numerics  f32. Steps lie on a grid: the bits of a row depend on what it visits, not on B
 *           or H, or on what else is asked for. TYPE_F32: registers sum a run of RUN rows
 *           and begin anew, lest errors grow with the length
 * Features  all but pages, through common/. Rows that a mask or a bias of -inf hides from
 *           all rows of the group are taken as 0: none of these marked them
 * Requires  delta in the workspace (bwd_delta.cl). VEC = 4: D and DV multiples of 4; base
 *           and strides of Q, K, V and dO multiples of 4 elements, where CONTIG_ is 1
 * Tunables  KEYS; BM BN TX TY DC JC VEC, in bwd_pairs.clh
 * Oracle    src/host/softmax_bwd_reference.c
 */
#ifndef KEYS
#define KEYS 0     /* 1: a group owns keys and visits queries */
#endif
#define CAPPED 1
#define MARKS FEAT_HIDES
#define RUN 128    /* f32: rows of a run, the most that one accumulator sums */
#include "softmax/bwd_pairs.clh"

#define RUN_STEPS LARGER(RUN / BN, 1)

ADD_ROWS(add_a, RA, AP)
ADD_ROWS(add_b, RB, BP)

/* Rows of a gradient, times a factor; the item has float4s tx + g * TX of its rows. One
 * loop through memory, for the sake of compilers: where 16 bits are not the hardware's, a
 * store is a page of instructions. */
#define STORE_ROWS(name, rv, depth) \
static inline void name(__global ELEM *to, const attn_rows *rows, float4 sum[RM][rv], \
                        float factor, int first, int n, int contig) \
{ \
    const int tx = get_local_id(0) % TX, ty = get_local_id(0) / TX; \
    float x[RM * (rv) * 4]; \
    UNROLLED for (int r = 0; r < RM; r++) { \
        UNROLLED for (int g = 0; g < (rv); g++) \
            vstore4(sum[r][g] * factor, r * (rv) + g, x); \
    } \
    _Pragma("unroll 1") for (int e = 0; e < RM * (rv) * 4; e++) { \
        const int i = ty + e / (4 * (rv)) * TY; \
        const int d = 4 * (tx + e / 4 % (rv) * TX) + e % 4; \
        if (i < n && d < (depth)) \
            elem_store(to, address_elem(rows, address_row(rows, first + i), d, contig), \
                       x[e]); \
    } \
}
STORE_ROWS(store_a, RA, D)
STORE_ROWS(store_b, RB, DV)

/* Ends a run: its sums go to those before it. After the last one they come back. */
#define END_RUN(name, rv) \
static inline void name(float4 total[RM][rv], float4 sum[RM][rv], int last) \
{ \
    UNROLLED for (int r = 0; r < RM; r++) { \
        UNROLLED for (int g = 0; g < (rv); g++) { \
            total[r][g] += sum[r][g]; \
            sum[r][g] = last ? total[r][g] : (float4)(0.0f); \
        } \
    } \
}
END_RUN(end_run_a, RA)
END_RUN(end_run_b, RB)

__kernel __attribute__((reqd_work_group_size(TX * TY, 1, 1)))
void attn_softmax_bwd_tile_gpu(SIGNATURE(SOFTMAX_BWD_PARAMS))
{
    __local float4 own4[OWNED_FLOATS / 4], visited4[VISITED_FLOATS / 4], w4[BM * PP / 4];
    __local float lse_tile[TILE_QUERIES], delta_tile[TILE_QUERIES];
    __local int mark[MARKS ? BN : 1];
    const attn_local l = { (__local float *)own4, (__local float *)visited4,
                           (__local float *)w4, lse_tile, delta_tile, mark };
    const attn_kparams p = KPARAMS(SOFTMAX_BWD_PARAMS);
    const int tx = get_local_id(0) % TX, ty = get_local_id(0) / TX;
    const int tiles = CEIL_DIV(KEYS ? p.len_kv : p.len_q, BM);
    const int heads = KEYS ? p.heads_kv : p.heads_q;
    const int group = KEYS ? p.heads_q / p.heads_kv : 1;
    const long id = get_group_id(0);
    const int tile = (int)(id % tiles), owner = (int)(id / tiles % heads);
    const long b = id / tiles / heads;
    const int first = (!KEYS && FEAT_RANGE_RIGHT ? tiles - 1 - tile : tile) * BM;
    const attn_sequence seq = range_sequence(&p, b);
    const int owned = clamp((KEYS ? seq.keys : seq.queries) - first, 0, BM);
    const attn_range range = KEYS ? range_queries(&p, &seq, first, owned)
                                  : range_any(&p, &seq, first, owned);
    const int start = range.first - range.first % BN;
    const int steps = range.end > range.first ? CEIL_DIV(range.end - start, BN) : 0;
    const int head_kv = KEYS ? owner : address_head_kv(&p, owner);
    const int want_a = !KEYS || p.has & HAS_GRAD_K;
    const int want_b = KEYS && p.has & HAS_GRAD_V && p.has & HAS_GRAD_O;
    attn_some qs = { .x = p.q }, gs = { .x = p.grad_o };    /* rows of q, dO, k, v */
    attn_some ks = { .x = p.k }, vs = { .x = p.v };
    float4 a[RM][RA], a_total[RM][RA], c[RM][RB], c_total[RM][RB];

    ks.rows = ADDRESS_KEYS(&p, k, &seq, b, head_kv);
    vs.rows = ADDRESS_KEYS(&p, v, &seq, b, head_kv);
    #pragma unroll
    for (int r = 0; r < RM; r++) {
        #pragma unroll
        for (int g = 0; g < RA; g++)
            a[r][g] = a_total[r][g] = 0.0f;
        #pragma unroll
        for (int g = 0; g < RB; g++)
            c[r][g] = c_total[r][g] = 0.0f;
    }
    for (int e = get_local_id(0); MARKS && e < BN; e += ITEMS)
        l.mark[e] = 0;

    for (long step = 0; step < (long)steps * group; step++) {
        const int h = KEYS ? owner * group + (int)(step / steps) : owner;
        const int at = start + (int)(step % steps) * BN;
        const int lo = max(range.first - at, 0), n = min(BN, range.end - at);
        const int i0 = KEYS ? at : first, j0 = KEYS ? first : at;
        const int queries = KEYS ? n : owned, keys = KEYS ? owned : n;
        const attn_range all = range_all(&p, &seq, i0, queries);
        const int masked = owned < BM || n < BN || lo || j0 < all.first ||
                           j0 + keys > all.end;
        const attn_score score = score_run(&p, &seq, b, h, i0, queries);
        const int now = MARKS ? (int)(step + 1) : 0;
        const int last = step % steps == steps - 1;
        float s[RM][RN], ds[RM][RN];

        qs.rows = ADDRESS_QUERIES(&p, q, &seq, b, h);
        gs.rows = ADDRESS_QUERIES(&p, grad_o, &seq, b, h);
        qs.first = gs.first = i0;
        qs.lo = gs.lo = KEYS ? lo : 0;
        qs.n = gs.n = queries;
        ks.first = vs.first = j0;
        ks.lo = vs.lo = KEYS ? 0 : lo;
        ks.n = vs.n = keys;
        if (KEYS || step == 0)    /* those of the step before have been read */
            pairs_take(&l, &p, &seq, b, h, i0, qs.lo, queries);
        pairs_product(s, &l, KEYS ? &ks : &qs, KEYS ? CONTIG_K : CONTIG_Q,
                      KEYS ? &qs : &ks, KEYS ? CONTIG_Q : CONTIG_K, D, D);
        pairs_product(ds, &l, KEYS ? &vs : &gs, KEYS ? CONTIG_V : CONTIG_GRAD_O,
                      KEYS ? &gs : &vs, KEYS ? CONTIG_GRAD_O : CONTIG_V,
                      p.has & HAS_GRAD_O ? DV : 0, DV);
        pairs_weigh(s, ds, &l, &p, &score, j0, masked, now);

        if (want_b)
            pairs_put(&l, s);
        for (int x = 0; x < (want_b ? n : 0); x += JC) {
            barrier(CLK_LOCAL_MEM_FENCE);
            stage(l.visited, BP, JC, BP, p.grad_o, &gs.rows, at + x, lo - x, n - x, 0, DV,
                  CONTIG_GRAD_O, l.mark + (MARKS ? x : 0), now);
            barrier(CLK_LOCAL_MEM_FENCE);
            add_b(c, l.w + ty * PP + x, l.visited + tx * 4);
        }
        barrier(CLK_LOCAL_MEM_FENCE);        /* the weights have been read */
        pairs_put(&l, ds);
        for (int x = 0; x < (want_a ? n : 0); x += JC) {
            barrier(CLK_LOCAL_MEM_FENCE);
            stage(l.visited, AP, JC, AP, KEYS ? p.q : p.k, KEYS ? &qs.rows : &ks.rows,
                  at + x, lo - x, n - x, 0, D, KEYS ? CONTIG_Q : CONTIG_K,
                  l.mark + (MARKS ? x : 0), now);
            barrier(CLK_LOCAL_MEM_FENCE);
            add_a(a, l.w + ty * PP + x, l.visited + tx * 4);
        }
        if (TYPE == TYPE_F32 && ((at / BN + 1) % RUN_STEPS == 0 || last)) {
            end_run_a(a_total, a, step + 1 == (long)steps * group);
            if (KEYS)
                end_run_b(c_total, c, step + 1 == (long)steps * group);
        }
    }

    if (!KEYS) {
        const attn_rows rows = ADDRESS_QUERIES(&p, grad_q, &seq, b, owner);

        store_a(p.grad_q, &rows, a, p.scale, first, owned, CONTIG_GRAD_Q);
    }
    if (KEYS && p.has & HAS_GRAD_K) {
        const attn_rows rows = ADDRESS_KEYS(&p, grad_k, &seq, b, owner);

        store_a(p.grad_k, &rows, a, p.scale, first, owned, CONTIG_GRAD_K);
    }
    if (KEYS && p.has & HAS_GRAD_V) {
        const attn_rows rows = ADDRESS_KEYS(&p, grad_v, &seq, b, owner);

        store_b(p.grad_v, &rows, c, 1.0f, first, owned, CONTIG_GRAD_V);
    }
}
