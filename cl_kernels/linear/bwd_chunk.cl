/* SPDX-License-Identifier: MIT */
/* linear/bwd_chunk.cl: gradients of linear attention in chunks of tokens, as products of
 * matrices: the last step of a scan, which walks the sequence, or a segment of it.
 *
 * Computes  dQ; dV; dK, dS_in and dz_in, as written in include/attn/linear.h, each by an
 *           instance of its own: the scans of chunk_bwd.clh
 * Method    of each chunk P = tril(X Y^T + c), out = X S + P W, S += Y^T W and likewise z, by
 *           register tiles on X, Y^T, W, P and the state in local memory; the last three for
 *           each query head of a group where Y and W are of queries. The full form has
 *           out = X S alone
 * Grid      1-D, ceil(WIDTH / COLUMNS) * segments * heads * B groups, columns fastest; heads
 *           Hq for dQ, Hkv for the others
 * Group     ITEMS work-items
 * Local     in f32, 4 * (CHUNK * QP + ES * COLUMNS, and if causal ES * CP + CHUNK * COLUMNS +
 *           CHUNK * CP, with one item CHUNK * COLUMNS, + COLUMNS + CHUNK), as chunk.clh names
 *           them
 * Barriers  four a chunk and head, where every item passes
 * Numerics  f32, without rounding in between. The bits of a head depend on the segments, which
 *           follow from B, the heads and the device, and on nothing else
 * Tunables  chunk.clh; of several items each has one tile of out at most
 * Oracle    linear_bwd_reference
 */
#include "linear/chunk_bwd.clh"

/* Where out is added up over query heads, an item keeps its only tile in registers; one that
 * has them all does in local memory. */
#define KEPT_OUT (REVERSED && ITEMS > 1)
#define LOCAL_OUT (REVERSED && ITEMS == 1)

PRODUCT(add_pairs, ROWS_P)
PRODUCT(add_rows, ROWS_O)

/* Local arrays travel in a struct for PoCL (CONTRIBUTING.md). */
typedef struct chunk_local {
    __local float *x, *y, *w, *p, *s, *z, *c, *out;
} chunk_local;

/* Rows of X as they lie. */
static inline void put_row(__local float *to, int r, int e, floatv x)
{
    lanes_put(to + r * QP + e, x);
}

STAGE(stage_x, load_x, ROW, put_row)

/* The state before the segment, in the order of the walk. */
static inline void load_state(const attn_kparams *p, const chunk_unit *u,
                              const chunk_local *l)
{
    const int there = p->piece > 0 ? 1 : !FEAT_CAUSAL;
    const int last = FEAT_CAUSAL ? u->segment : slots_of(p, u) - 1;
    const __global float *const slot = find_slot(p, u, 0);

    for (int x = get_local_id(0); x < (ES + 1) * COLUMNS; x += ITEMS) {
        const int row = x / COLUMNS, c = u->column + x % COLUMNS;
        const int r = row < ES ? row : FEATURES;
        const int exists = c < WIDTH && (row < FEATURES || (row == ES && HAS_Z));
        float sum = 0.0f;

        if (!there && exists)
            sum = first_state(p, u, r, c);
        for (int i = SCANNED ? last : 0; there && exists && i <= last; i++)
            sum += slot[i * SLOT_FLOATS + (long)r * WIDTH + c];
        if (row < ES)
            l->s[x] = sum;
        else
            l->z[x % COLUMNS] = sum;
    }
}

/* dS_in and dz_in: of SCAN_K, R and r after the last token. */
static inline void store_state(const attn_kparams *p, const chunk_unit *u,
                               const chunk_local *l)
{
    for (int x = get_local_id(0); x < (FEATURES + HAS_Z) * COLUMNS; x += ITEMS) {
        const long r = x / COLUMNS, c = u->column + x % COLUMNS;

        if (u->column + x % COLUMNS >= WIDTH)
            continue;
        if (x / COLUMNS < FEATURES) {
            if (p->has & LHAS_GRAD_STATE_IN)
                p->grad_state_in[LINEAR_AT(p, grad_state_in, u->b, u->kvh, c, r)] = l->s[x];
        } else if (p->has & LHAS_GRAD_Z_IN) {
            p->grad_z_in[LINEAR_AT(p, grad_z_in, u->b, u->kvh, c, 0L)] = l->z[x % COLUMNS];
        }
    }
}

/* P, of pairs of tokens where one sees the other. */
static inline void find_pairs(const chunk_local *l)
{
    for (int t = get_local_id(0); t < CHUNK / ROWS_P * (CHUNK / NW); t += ITEMS) {
        const int i = t / (CHUNK / NW) * ROWS_P, j = t % (CHUNK / NW) * NW;
        floatv o[ROWS_P][RN];

        UNROLLED for (int r = 0; r < ROWS_P; r++) {
            UNROLLED for (int g = 0; g < RN; g++)
                o[r][g] = !HAS_Z           ? (floatv)(0.0f)
                          : SCAN == SCAN_Q ? (floatv)(l->c[i + r])
                                           : lanes_get(l->c + j + g * VW);
        }
        if (REVERSED ? j + NW > i : j < i + ROWS_P)
            add_pairs(o, l->x + i * QP, QP, l->y + j, CP, KD);
        UNROLLED for (int r = 0; r < ROWS_P; r++) {
            UNROLLED for (int g = 0; g < RN; g++) {
                const intv at = LANES + (j + g * VW);

                lanes_put(l->p + (i + r) * CP + j + g * VW,
                          select((floatv)(0.0f), o[r][g],
                                 REVERSED ? at >= i + r : at <= i + r));
            }
        }
    }
}

/* phi'. */
static inline floatv lanes_slope(floatv x)
{
    const floatv none = (floatv)(0.0f), one = (floatv)(1.0f);

    if (PHI == PHI_ELU1)
        return select(exp(fmin(x, none)), one, x > none);
    return PHI == PHI_RELU ? select(none, one, x > none) : one;
}

/* VW elements of a row of the gradient, from element c on. */
static inline void write_lanes(const attn_kparams *p, const chunk_unit *u, long i, int c,
                               floatv x)
{
    if (SCAN == SCAN_Q) {
        const long from = LINEAR_AT(p, q, u->b, u->h, i, 0L);

        if (PHI != PHI_IDENTITY)
            x *= lanes_slope(lanes_load(p->q, from, p->q_stride_d, c, D));
        lanes_store(p->grad_q, LINEAR_AT(p, grad_q, u->b, u->h, i, 0L), p->grad_q_stride_d, c,
                    D, p->scale * x);
    } else if (SCAN == SCAN_V) {
        lanes_store(p->grad_v, LINEAR_AT(p, grad_v, u->b, u->kvh, i, 0L), p->grad_v_stride_d,
                    c, DV, x);
    } else if (p->has & LHAS_GRAD_K) {
        const long from = LINEAR_AT(p, k, u->b, u->kvh, i, 0L);

        if (PHI != PHI_IDENTITY)
            x *= lanes_slope(lanes_load(p->k, from, p->k_stride_d, c, D));
        lanes_store(p->grad_k, LINEAR_AT(p, grad_k, u->b, u->kvh, i, 0L), p->grad_k_stride_d,
                    c, D, x);
    }
}

/* Rows of out of tokens i .. end - 1 of the chunk: X S with the first head, P W with each;
 * they are written with the last. */
static inline void write_rows(const attn_kparams *p, const chunk_unit *u,
                              const chunk_local *l, floatv kept[ROWS_O][RN], int i, int end,
                              int adds, int first, int last)
{
    for (int t = get_local_id(0); t < CHUNK / ROWS_O * (COLUMNS / NW); t += ITEMS) {
        const int x = t / (COLUMNS / NW) * ROWS_O, c = t % (COLUMNS / NW) * NW;
        const int from = REVERSED ? x / 4 * 4 : 0;
        const int to = REVERSED ? CHUNK : VW == 4 ? CEIL_DIV(x + ROWS_O, 4) * 4 : x + ROWS_O;
        floatv o[ROWS_O][RN];

        UNROLLED for (int r = 0; r < ROWS_O; r++) {
            UNROLLED for (int g = 0; g < RN; g++) {
                o[r][g] = (floatv)(0.0f);
                if (HAS_Z && first)
                    o[r][g] = lanes_get(l->z + c + g * VW) *
                              (SCAN == SCAN_Q ? l->c[x + r] : 1.0f);
                if (KEPT_OUT && !first)
                    o[r][g] = kept[r][g];
                if (LOCAL_OUT && !first)
                    o[r][g] = lanes_get(l->out + (x + r) * COLUMNS + c + g * VW);
            }
        }
        if (first)
            add_rows(o, l->x + x * QP, QP, l->s + c, COLUMNS, KD);
        if (adds)
            add_rows(o, l->p + x * CP + from, CP, l->w + from * COLUMNS + c, COLUMNS,
                     to - from);
        UNROLLED for (int r = 0; r < ROWS_O; r++) {
            UNROLLED for (int g = 0; g < RN; g++) {
                if (KEPT_OUT)
                    kept[r][g] = o[r][g];
                if (LOCAL_OUT && !last)
                    lanes_put(l->out + (x + r) * COLUMNS + c + g * VW, o[r][g]);
                if (last && i + x + r < end)
                    write_lanes(p, u, (long)(i + x + r), u->column + c + g * VW, o[r][g]);
            }
        }
    }
}

/* Keys that no query sees. */
static inline void write_zeros(const attn_kparams *p, const chunk_unit *u, int length)
{
    for (int x = get_local_id(0); x < COLUMNS / VW; x += ITEMS)
        for (int j = u->keys; j < length && u->column + x * VW < WIDTH; j++)
            write_lanes(p, u, j, u->column + x * VW, (floatv)(0.0f));
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_bwd_chunk(SIGNATURE(LINEAR_BWD_PARAMS))
{
    __local floatv x4[CHUNK * QP / VW], s4[ES * COLUMNS / VW];
    __local floatv y4[FEAT_CAUSAL ? ES * CP / VW : 1];
    __local floatv w4[FEAT_CAUSAL ? CHUNK * COLUMNS / VW : 1];
    __local floatv p4[FEAT_CAUSAL ? CHUNK * CP / VW : 1];
    __local floatv out4[LOCAL_OUT ? CHUNK * COLUMNS / VW : 1];
    __local floatv z4[COLUMNS / VW], c4[CHUNK / VW];
    const attn_kparams p = KPARAMS(LINEAR_BWD_PARAMS);
    const chunk_local l = { (__local float *)x4, (__local float *)y4,  (__local float *)w4,
                            (__local float *)p4, (__local float *)s4,  (__local float *)z4,
                            (__local float *)c4, (__local float *)out4 };
    const int tokens = SCAN == SCAN_Q || FEAT_CAUSAL ? p.len_q : p.len_kv;
    chunk_unit u;
    int chunks, heads, x_end, y_end;
    floatv kept[ROWS_O][RN];

    find_chunks(&p, SCAN == SCAN_Q ? p.heads_q : p.heads_kv, tokens, &u);
    find_walk(&p, &u, tokens);
    heads = REVERSED ? u.share : 1;
    x_end = SCAN == SCAN_Q ? u.end : min(u.end, u.keys);
    y_end = SCAN == SCAN_Q ? min(u.end, u.keys) : u.end;
    /* at least one, of nothing: PoCL's loops with barriers must run */
    chunks = max(CEIL_DIV(u.end - u.first, CHUNK), 1);
    load_state(&p, &u, &l);
    for (int x = get_local_id(0); FEAT_CAUSAL && x < (ES - EP) * CP; x += ITEMS)
        l.y[EP * CP + x] = 0.0f;
    for (int n = 0; n < chunks; n++) {
        const int i = u.first + (REVERSED ? chunks - 1 - n : n) * CHUNK;
        const int outs = i < x_end, adds = FEAT_CAUSAL && i < y_end;

        for (int x = 0; x < heads; x++) {
            TOGETHER;    /* what is overwritten has been read */
            if (outs && x == 0)
                stage_x(&p, &u, l.x, 0, i, x_end);
            if (adds) {
                stage_y(&p, &u, l.y, x, i, y_end);
                stage_w(&p, &u, l.w, x, i, y_end);
            }
            if (HAS_Z && (SCAN == SCAN_Q ? outs : adds))
                stage_c(&p, &u, l.c, x, i, SCAN == SCAN_Q ? x_end : y_end);
            TOGETHER;
            if (outs && adds)
                find_pairs(&l);
            TOGETHER;
            if (outs)
                write_rows(&p, &u, &l, kept, i, x_end, adds, x == 0, x == heads - 1);
            TOGETHER;    /* S has been read */
            if (adds)
                fold_chunk(l.s, l.z, l.y, l.w, l.c);
        }
    }
    TOGETHER;
    if (SCAN == SCAN_K && u.segment == u.pieces - 1)
        store_state(&p, &u, &l);
    if (REVERSED && u.segment == 0)
        write_zeros(&p, &u, linear_length(&p, u.b));
}
