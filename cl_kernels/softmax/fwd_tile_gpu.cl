/* SPDX-License-Identifier: MIT */
/* softmax/fwd_tile_gpu.cl: softmax attention forward for GPUs: one work-group
 * computes one tile of queries, on register tiles fed from local memory.
 *
 * Computes  O = softmax(score(Q K^T)) V and its LSE, as in include/attn/softmax.h
 * Method    online softmax (Milakov and Gimelshein 2018) over tiles of BN keys
 *           (FlashAttention, Dao et al. 2022). Item (tx, ty) holds RM x RN scores
 *           and RM x 4 RV sums of O in registers (RM = BM / TY, RN = BN / TX, RV =
 *           ceil(DV / 4 TX)); Q and K pass through local memory in chunks of
 *           depth, V in chunks of keys, the weights whole. Row maxima meet in
 *           local memory, row sums only once at the end
 * Grid      1-D, ceil(Lq / BM) * Hq * B groups, tile fastest; the last tile first
 *           if the right side is bounded, since it is the longest
 * Group     TX * TY work-items, 1-D
 * Local     in f32 and bytes, VP = RV * 4 * TX:
 *             4 * ( BM * (Q_WHOLE ? ceil(D / DC) * DC + 4 : DC + 4)     Q
 *                 + max(BN * (DC + 4), JC * VP, TY * VP)                K, V, O
 *                 + BM * (BN + 4) + BM * (TX + 4)                       P, row maxima
 *                 + (FEAT_HIDES ? BN : 1) )                             marks
 * Barriers  2 for each chunk of depth or of keys and 1 for the row maxima, so 5 a
 *           step at best, 1 more with dropout; 2 RM + 1 at the end; all where every item passes
 * Layout    any strides, in elements; CONTIG_ macros promise stride 1
 * Numerics  f32 throughout, m in natural units; a row without visible keys: O = 0,
 *           LSE = -inf. Steps lie on a grid: a row's bits do not depend on other rows,
 *           on B or H.
 *           TYPE_F32: registers sum a run of RUN keys; the runs are added up with
 *           compensation (Kahan 1965) in private memory: RM * (32 RV + 12) bytes
 * Features  all, through common/. Values of keys that a mask or a bias of -inf hides
 *           from all queries of the group are taken as 0: none of these marked the key
 * Requires  VEC > 1: D and DV multiples of it; base and strides of Q, K and V
 *           multiples of VEC elements, where CONTIG_ is 1
 * Tunables  BM BN TX TY DC JC Q_WHOLE VEC, below. Any group size works, down to 1
 * Oracle    src/host/softmax_fwd_reference.c
 */
#ifndef BM
#define BM 64      /* queries of a group: a multiple of TY */
#endif
#ifndef BN
#define BN 64      /* keys of a step: a multiple of TX */
#endif
#ifndef TX
#define TX 16      /* work-items along the keys and along a value row: a power of two */
#endif
#ifndef TY
#define TY 8       /* work-items along the queries */
#endif
#ifndef DC
#define DC 32      /* depth of a chunk of Q and K: a multiple of 4 */
#endif
#ifndef JC
#define JC 32      /* keys of a chunk of V: a multiple of 4 that divides BN */
#endif
#ifndef Q_WHOLE
#define Q_WHOLE 0  /* 1: the whole Q tile stays in local memory */
#endif
#ifndef VEC
#define VEC 1      /* elements of a load: 1; or 4, or 8 of 16 bits, see Requires */
#endif
#define VW 1
#define RUN 128    /* f32: keys of a run, the most that one accumulator sums */
#include "common/params.h"
#include "common/types.clh"
#include "common/range.clh"
#include "common/address.clh"
#include "common/score.clh"
#include "common/state.clh"

#define ITEMS (TX * TY)
#define RM (BM / TY)                     /* queries of an item */
#define RN (BN / TX)                     /* its keys in a step */
#define RV CEIL_DIV(DV, 4 * TX)          /* its float4s of a value row */
#define RUN_STEPS LARGER(RUN / BN, 1)

/* pitches of the tiles in local memory, in floats: 4 more than the row keeps
 * rows that are read together in different banks and aligned to a float4 */
#define QP ((Q_WHOLE ? CEIL_DIV(D, DC) * DC : DC) + 4)
#define KP (DC + 4)
#define VP (RV * 4 * TX)
#define PP (BN + 4)
#define TP (TX + 4)

#include "softmax/products.clh"
#include "softmax/stage.clh"

ADD_ROWS(add_values, RV, VP)

/* The sums over all runs so far: m, and o and l with what was added too much. */
typedef struct attn_runs {
    float4 o[RM * RV], o_extra[RM * RV];
    float m[RM], l[RM], l_extra[RM];
} attn_runs;

/* The compensated sum + x. Where that is no finite number there is no rest. */
static inline float4 add_rest(float4 sum, float4 x, float4 *extra)
{
    const float4 y = x - *extra, total = sum + y, rest = (total - sum) - y;

    *extra = select((float4)(0.0f), rest, isfinite(rest));
    return total;
}

/* Sums held against an older maximum; 0 where none of it is left, even of Inf. */
static inline float4 rescaled(float4 sum, float factor)
{
    return factor > 0.0f || factor != factor ? sum * factor : (float4)(0.0f);
}

static inline void init_runs(attn_runs *all, int at)
{
    #pragma unroll
    for (int r = 0; r < RM; r++) {
        all->m[at + r] = -INFINITY;
        all->l[at + r] = all->l_extra[at + r] = 0.0f;
        #pragma unroll
        for (int g = 0; g < RV; g++)
            all->o[at + r * RV + g] = all->o_extra[at + r * RV + g] = (float4)(0.0f);
    }
}

/* Adds a run to those before and begins the next; after the last one the sums
 * over all are left in sum and row, with what was added too much taken off: then a run
 * of nothing behind the last one changes no bit. `at` is 0, which compilers cannot know:
 * so the arrays stay in memory and take no registers from the main loop. */
static inline void end_run(attn_runs *all, int at, float4 sum[RM][RV], attn_row row[RM],
                           int last)
{
    #pragma unroll
    for (int r = 0; r < RM; r++) {
        const int i = at + r;
        attn_row before = { all->m[i], 0.0f };
        const float factor = state_fold(&before, row[r].m);
        float4 extra = (float4)(all->l_extra[i] * factor);
        const float4 l = add_rest((float4)(all->l[i] * factor), (float4)(row[r].l), &extra);

        all->m[i] = before.m;
        all->l[i] = l.x;
        all->l_extra[i] = extra.x;
        row[r].l = last ? l.x - extra.x : 0.0f;
        #pragma unroll
        for (int g = 0; g < RV; g++) {
            const int e = at + r * RV + g;
            float4 total;

            extra = rescaled(all->o_extra[e], factor);
            total = add_rest(rescaled(all->o[e], factor), sum[r][g], &extra);
            all->o[e] = total;
            all->o_extra[e] = extra;
            sum[r][g] = last ? total - extra : (float4)(0.0f);
        }
    }
}

/* The largest, or the sum, of the TX partial results of a row. */
static inline float row_max(const __local float *t)
{
    float m = t[0];

    #pragma unroll
    for (int x = 1; x < TX; x++)
        m = state_max(t[x], m);
    return m;
}

static inline float row_sum(const __local float *t)
{
    float sum = t[0];

    #pragma unroll
    for (int x = 1; x < TX; x++)
        sum += t[x];
    return sum;
}

__kernel __attribute__((reqd_work_group_size(TX * TY, 1, 1)))
void attn_softmax_fwd_tile_gpu(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    __local float4 q4[BM * QP / 4], kv4[LARGER(BN * KP, LARGER(JC, TY) * VP) / 4];
    __local float4 w4[BM * PP / 4];
    __local float row_tile[BM * TP];
    __local int mark[FEAT_HIDES ? BN : 1];   /* the last step in which a key was seen */
    __local float *q_tile = (__local float *)q4, *kv_tile = (__local float *)kv4;
    __local float *w_tile = (__local float *)w4;
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const int tx = get_local_id(0) % TX, ty = get_local_id(0) / TX;
    const int tiles = CEIL_DIV(p.len_q, BM);
    const long id = get_group_id(0);
    const int tile = (int)(id % tiles);
    const int h = (int)(id / tiles % p.heads_q);
    const long b = id / tiles / p.heads_q;
    const int i0 = (FEAT_RANGE_RIGHT ? tiles - 1 - tile : tile) * BM;
    const attn_sequence seq = range_sequence(&p, b);
    const int queries = clamp(seq.queries - i0, 0, BM);
    const attn_range any = range_any(&p, &seq, i0, queries);
    const attn_range all = range_all(&p, &seq, i0, queries);
    const attn_rows q_rows = ADDRESS_QUERIES(&p, q, &seq, b, h);
    const attn_rows k_rows = ADDRESS_KEYS(&p, k, &seq, b, address_head_kv(&p, h));
    const attn_rows v_rows = ADDRESS_KEYS(&p, v, &seq, b, address_head_kv(&p, h));
    const attn_rows o_rows = ADDRESS_QUERIES(&p, o, &seq, b, h);
    const attn_score at = score_run(&p, &seq, b, h, i0, queries);
    const float sink = state_sink(&p, h);
    const int at_runs = p.len_q >> 31;       /* 0, see end_run() */
    float4 sum[RM][RV];
    attn_row row[RM];
    attn_runs runs;

    /* item (tx, ty) owns queries i0 + ty + r * TY, keys j0 + tx + c * TX, and
     * elements 4 * (tx + g * TX) .. + 3 of the value rows */
    #pragma unroll
    for (int r = 0; r < RM; r++) {
        row[r] = state_init();
        #pragma unroll
        for (int g = 0; g < RV; g++)
            sum[r][g] = 0.0f;
    }
    if (TYPE == TYPE_F32)
        init_runs(&runs, at_runs);
    for (int e = get_local_id(0); FEAT_HIDES && e < BN; e += ITEMS)
        mark[e] = 0;
    if (Q_WHOLE)
        stage(q_tile, QP, BM, QP - 4, p.q, &q_rows, i0, 0, queries, 0, D, CONTIG_Q, mark,
              0);

    /* steps lie on a grid, so that a row's bits do not depend on what others see */
    for (int j0 = any.first - any.first % BN, n; j0 < any.end; j0 += n) {
        const int lo = max(any.first - j0, 0);
        int masked = j0 < all.first || all.end - j0 < BN;
        const int now = FEAT_HIDES ? j0 + 1 : 0;
        float s[RM][RN];

        n = min(BN, any.end - j0);
        if (FEAT_HIDES)
            masked |= queries < BM;
        #pragma unroll
        for (int r = 0; r < RM; r++) {
            #pragma unroll
            for (int c = 0; c < RN; c++)
                s[r][c] = 0.0f;
        }
        for (int d = 0; d < D; d += DC) {
            barrier(CLK_LOCAL_MEM_FENCE);    /* what is overwritten has been read */
            if (!Q_WHOLE)
                stage(q_tile, QP, BM, DC, p.q, &q_rows, i0, 0, queries, d, D, CONTIG_Q,
                      mark, 0);
            stage(kv_tile, KP, BN, DC, p.k, &k_rows, j0, lo, n, d, D, CONTIG_K, mark, 0);
            barrier(CLK_LOCAL_MEM_FENCE);
            add_scores(s, q_tile + ty * QP + (Q_WHOLE ? d : 0), kv_tile + tx * KP);
        }

        #pragma unroll
        for (int r = 0; r < RM; r++) {
            const int i = ty + r * TY;
            float top = -INFINITY;

            #pragma unroll
            for (int c = 0; c < RN; c++) {
                s[r][c] = score_value(&at, s[r][c]);
                if (FEAT_TERMS)
                    s[r][c] = score_add(s[r][c],
                                        score_term(&p, &at, i, j0 + tx + c * TX));
                if (masked)
                    s[r][c] = score_masked(&at, i, j0 + tx + c * TX, s[r][c]);
                top = state_max(s[r][c], top);
            }
            row_tile[i * TP + tx] = top;
        }
        barrier(CLK_LOCAL_MEM_FENCE);        /* and the K tile has been read */

        #pragma unroll
        for (int r = 0; r < RM; r++) {
            const int i = ty + r * TY;
            const float factor = state_fold(&row[r], row_max(row_tile + i * TP));
            const float reference = state_reference(&row[r]);

            #pragma unroll
            for (int c = 0; c < RN; c++) {
                const float w = state_weight(s[r][c], reference);

                if (FEAT_HIDES && w != 0.0f)
                    atomic_xchg(&mark[tx + c * TX], now);
                row[r].l += w;               /* of the item's own keys only */
                w_tile[i * PP + tx + c * TX] = w;
            }
            #pragma unroll
            for (int g = 0; g < RV; g++)
                sum[r][g] *= factor;
        }
        if (FEAT_DROPOUT)
            barrier(CLK_LOCAL_MEM_FENCE);
        for (int e = get_local_id(0); FEAT_DROPOUT && e < BM * BN / 4; e += ITEMS) {
            const int i = e / (BN / 4), x = e % (BN / 4);
            float kept[4];

            dropout_kept(&p, &at, i, j0 / 4 + x, kept);
            w4[i * (PP / 4) + x] *= (float4)(kept[0], kept[1], kept[2], kept[3]);
        }
        for (int j = 0; j < n; j += JC) {
            barrier(CLK_LOCAL_MEM_FENCE);
            stage(kv_tile, VP, JC, VP, p.v, &v_rows, j0 + j, lo - j, n - j, 0, DV,
                  CONTIG_V, mark + j, now);
            barrier(CLK_LOCAL_MEM_FENCE);
            add_values(sum, w_tile + ty * PP + j, kv_tile + tx * 4);
        }
        if (TYPE == TYPE_F32 && ((j0 / BN + 1) % RUN_STEPS == 0 || j0 + n >= any.end))
            end_run(&runs, at_runs, sum, row, j0 + n >= any.end);
    }

    #pragma unroll
    for (int r = 0; r < RM; r++)
        row_tile[(ty + r * TY) * TP + tx] = row[r].l;
    barrier(CLK_LOCAL_MEM_FENCE);
    #pragma unroll
    for (int r = 0; r < RM; r++) {
        const int i = ty + r * TY;
        float factor;

        row[r].l = row_sum(row_tile + i * TP);
        factor = state_finish_sink(&row[r], sink);
        if (FEAT_LSE && p.want_lse && i < queries && tx == 0)
            p.lse[address_lse(&p, &seq, b, h, i0 + i)] = state_lse(&row[r]);

        /* TY rows at a time, so that neighbours write neighbours */
        barrier(CLK_LOCAL_MEM_FENCE);
        #pragma unroll
        for (int g = 0; g < RV; g++)
            *(__local float4 *)(kv_tile + ty * VP + 4 * (tx + g * TX)) = sum[r][g] * factor;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (p.want_o)
            unstage(&p, &o_rows, kv_tile, i0 + r * TY, queries - r * TY);
    }
}
