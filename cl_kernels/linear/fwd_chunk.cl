/* SPDX-License-Identifier: MIT */
/* linear/fwd_chunk.cl: linear attention in chunks of tokens, as products of matrices: the
 * last step, which walks the sequence, or a segment of it.
 *
 * Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
 * Method    of each chunk P = tril(Q K^T), O = Q S + P V, S += K^T V and likewise z: by
 *           register tiles on Q, K^T, V, P and the state in local memory. The state before
 *           the segment is the sum of slots of the workspace (chunk.clh). The full form has
 *           O = Q S alone
 * Grid      1-D, ceil(DV / COLUMNS) * segments * Hq * B groups, columns fastest
 * Group     ITEMS work-items
 * Local     in f32, 4 * (CHUNK * QP + ES * COLUMNS, and if causal ES * CP + CHUNK * COLUMNS +
 *           CHUNK * CP, + EP + CHUNK * (2 + LANES_OF_ROW)), as chunk.clh names them
 * Barriers  five a chunk, and one with a normaliser, where every item passes
 * Numerics  f32, without rounding in between. Rows of q with huge numbers are divided by a
 *           power of 2 meanwhile. The bits of a head depend on the segments, which follow
 *           from B, the heads and the device, and on nothing else
 * Tunables  chunk.clh
 * Oracle    linear_fwd_reference
 */
#include "linear/chunk_fwd.clh"

PRODUCT(add_pairs, ROWS_P)
PRODUCT(add_rows, ROWS_O)

/* Local arrays travel in a struct for PoCL (CONTRIBUTING.md). */
typedef struct chunk_local {
    __local float *q, *k, *v, *p, *s, *z;
    __local float *up;    /* of each row: what it was divided by */
    __local float *den;   /* parts of it, without eps            */
    __local int *huge;    /* rows that are to be divided         */
} chunk_local;

/* The state before the segment. */
static inline void load_state(const attn_kparams *p, const chunk_unit *u,
                              const chunk_local *l)
{
    const int there = p->piece > 0 ? 1 : FEAT_CAUSAL ? FEAT_STATE : 1;
    const int last = there ? FEAT_CAUSAL ? u->segment : slots_of(p, u) - 1 : -1;
    const long stride = (long)D * (DV + 1);
    const __global float *const slot = find_slot(p, u, 0);

    for (int x = get_local_id(0); x < ES * COLUMNS; x += ITEMS) {
        const int e = x / COLUMNS, c = u->column + x % COLUMNS;
        float sum = 0.0f;

        for (int i = SCANNED ? last : 0; i <= last && e < D && c < DV; i++)
            sum += slot[i * stride + (long)e * DV + c];
        l->s[x] = sum;
    }
    for (int e = get_local_id(0); FEAT_NORMALIZE && e < EP; e += ITEMS) {
        float sum = 0.0f;

        for (int i = SCANNED ? last : 0; i <= last && e < D; i++)
            sum += slot[i * stride + (long)D * DV + e];
        l->z[e] = sum;
    }
}

static inline void store_state(const attn_kparams *p, const chunk_unit *u,
                               const chunk_local *l)
{
    for (int x = get_local_id(0); p->has & LHAS_STATE_OUT && x < D * COLUMNS; x += ITEMS) {
        const long e = x / COLUMNS, c = u->column + x % COLUMNS;

        if (u->column + x % COLUMNS < DV)
            p->state_out[LINEAR_AT(p, state_out, u->b, u->kvh, e, c)] = l->s[x];
    }
    for (int e = get_local_id(0); p->has & LHAS_Z_OUT && e < D && u->column == 0; e += ITEMS)
        p->z_out[LINEAR_AT(p, z_out, u->b, u->kvh, (long)e, 0L)] = l->z[e];
}

/* Rows of Q from query i on, phi taken, and which of them are huge. */
static inline void stage_queries(const attn_kparams *p, const chunk_unit *u,
                                 const chunk_local *l, int i)
{
    for (int x0 = get_local_id(0); x0 < CHUNK * ROW; x0 += BATCH * ITEMS) {
        floatv all[BATCH];

        UNROLLED for (int n = 0; n < BATCH; n++) {
            const int x = min(x0 + n * ITEMS, CHUNK * ROW - 1), r = x / ROW;
            const long row = min(i + r, u->end - 1);

            all[n] = lanes_load(p->q, LINEAR_AT(p, q, u->b, u->h, row, 0L), p->q_stride_d,
                                x % ROW * VW, D);
        }
        UNROLLED for (int n = 0; n < BATCH; n++) {
            const int x = x0 + n * ITEMS, r = x / ROW, e = x % ROW * VW;
            const floatv q = i + r < u->end ? lanes_phi(all[n], e, D) : (floatv)(0.0f);

            if (x < CHUNK * ROW)
                lanes_put(l->q + r * QP + e, q);
            if (x < CHUNK * ROW && any(fabs(q) > (floatv)(0x1p32f)))
                l->huge[r] = 1;
        }
    }
}

/* Divides huge rows, so that no sum overflows. */
static inline void tame_queries(const chunk_local *l)
{
    for (int r = get_local_id(0); r < CHUNK; r += ITEMS) {
        float largest = 0.0f, up = 1.0f;

        for (int e = 0; e < D && l->huge[r]; e++)
            largest = fmax(largest, fabs(l->q[r * QP + e]));
        if (largest > 0x1p32f && largest < INFINITY)
            up = ldexp(1.0f, min(ilogb(largest), 126));
        for (int e = 0; e < D && up != 1.0f; e++)
            l->q[r * QP + e] *= 1.0f / up;
        l->up[r] = up;
        l->huge[r] = 0;
    }
}

/* P = tril(Q K^T). */
static inline void find_pairs(const chunk_local *l)
{
    for (int t = get_local_id(0); t < CHUNK / ROWS_P * (CHUNK / NW); t += ITEMS) {
        const int i = t / (CHUNK / NW) * ROWS_P, j = t % (CHUNK / NW) * NW;
        floatv o[ROWS_P][RN];

        UNROLLED for (int r = 0; r < ROWS_P; r++) {
            UNROLLED for (int g = 0; g < RN; g++)
                o[r][g] = (floatv)(0.0f);
        }
        if (j < i + ROWS_P)
            add_pairs(o, l->q + i * QP, QP, l->k + j, CP, KD);
        UNROLLED for (int r = 0; r < ROWS_P; r++) {
            UNROLLED for (int g = 0; g < RN; g++)
                lanes_put(l->p + (i + r) * CP + j + g * VW,
                          select((floatv)(0.0f), o[r][g], LANES + (j + g * VW) <= i + r));
        }
    }
}

/* den of each row, without eps, in parts. */
static inline void find_den(const chunk_local *l, int adds)
{
    for (int x = get_local_id(0); x < CHUNK * LANES_OF_ROW; x += ITEMS) {
        const int r = x / LANES_OF_ROW, from = x % LANES_OF_ROW * VW;
        floatv sum = (floatv)(0.0f);

        for (int e = from; e < EP; e += LANES_OF_ROW * VW)
            sum += lanes_get(l->q + r * QP + e) * lanes_get(l->z + e);
        for (int j = from; adds && j < CHUNK; j += LANES_OF_ROW * VW)
            sum += lanes_get(l->p + r * CP + j);
        l->den[x] = lanes_sum(sum);
    }
}

/* What a row of O is multiplied by at last, before a large unit; of its first tile also den. */
static inline float row_factor(const attn_kparams *p, const chunk_unit *u,
                               const chunk_local *l, int i, int r, int first)
{
    const float up = l->up[r];
    float den = 0.0f;

    if (!FEAT_NORMALIZE)
        return fabs(p->sum_unit) <= 1.0f ? p->sum_unit * up : up;
    UNROLLED for (int x = 0; x < LANES_OF_ROW; x++)
        den += l->den[r * LANES_OF_ROW + x];
    den = p->sum_scale * den + p->sum_eps / up;
    if (first && u->column == 0 && p->has & LHAS_DEN && i + r < u->end)
        p->den[LINEAR_AT(p, den, u->b, u->h, (long)(i + r), 0L)] =
            in_units(p->sum_unit, den, up);
    return den == 0.0f ? 0.0f : p->sum_scale / den;
}

/* O of queries i .. i + CHUNK - 1. */
static inline void write_rows(const attn_kparams *p, const chunk_unit *u,
                              const chunk_local *l, int i, int adds)
{
    const float unit = !FEAT_NORMALIZE && fabs(p->sum_unit) > 1.0f ? p->sum_unit : 1.0f;

    for (int t = get_local_id(0); t < CHUNK / ROWS_O * (COLUMNS / NW); t += ITEMS) {
        const int x = t / (COLUMNS / NW) * ROWS_O, c = t % (COLUMNS / NW) * NW;
        floatv o[ROWS_O][RN];

        UNROLLED for (int r = 0; r < ROWS_O; r++) {
            UNROLLED for (int g = 0; g < RN; g++)
                o[r][g] = (floatv)(0.0f);
        }
        add_rows(o, l->q + x * QP, QP, l->s + c, COLUMNS, KD);
        if (adds)
            add_rows(o, l->p + x * CP, CP, l->v + c, COLUMNS,
                     VW == 4 ? CEIL_DIV(x + ROWS_O, 4) * 4 : x + ROWS_O);
        UNROLLED for (int r = 0; r < ROWS_O; r++) {
            const float factor = row_factor(p, u, l, i, x + r, c == 0);
            const long row = LINEAR_AT(p, o, u->b, u->h, (long)(i + x + r), 0L);

            UNROLLED for (int g = 0; g < RN; g++)
                if (i + x + r < u->end && p->has & LHAS_O)
                    lanes_store(p->o, row, p->o_stride_d, u->column + c + g * VW, DV,
                                o[r][g] * factor * unit);
        }
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_fwd_chunk(SIGNATURE(LINEAR_FWD_PARAMS))
{
    __local floatv q4[CHUNK * QP / VW], s4[ES * COLUMNS / VW];
    __local floatv k4[FEAT_CAUSAL ? ES * CP / VW : 1];
    __local floatv v4[FEAT_CAUSAL ? CHUNK * COLUMNS / VW : 1];
    __local floatv p4[FEAT_CAUSAL ? CHUNK * CP / VW : 1], z4[EP / VW];
    __local float ups[CHUNK], dens[CHUNK * LANES_OF_ROW];
    __local int huge[CHUNK];
    const attn_kparams p = KPARAMS(LINEAR_FWD_PARAMS);
    const chunk_local l = { (__local float *)q4, (__local float *)k4, (__local float *)v4,
                            (__local float *)p4, (__local float *)s4, (__local float *)z4,
                            ups, dens, huge };
    chunk_unit u;
    int chunks;

    find_chunks(&p, p.heads_q, p.len_q, &u);
    /* at least one, of nothing: PoCL's loops with barriers must run */
    chunks = max(CEIL_DIV(u.end - u.first, CHUNK), 1);
    load_state(&p, &u, &l);
    for (int r = get_local_id(0); r < CHUNK; r += ITEMS)
        l.huge[r] = 0;
    for (int x = get_local_id(0); FEAT_CAUSAL && x < (ES - EP) * CP; x += ITEMS)
        l.k[EP * CP + x] = 0.0f;
    for (int n = 0; n < chunks; n++) {
        const int i = u.first + n * CHUNK, adds = FEAT_CAUSAL && i < u.keys;

        TOGETHER;    /* what is overwritten has been read */
        if (i < u.end)
            stage_queries(&p, &u, &l, i);
        if (adds) {
            stage_keys(&p, &u, l.k, 0, i, min(u.keys, u.end));
            stage_values(&p, &u, l.v, 0, i, min(u.keys, u.end));
        }
        TOGETHER;
        tame_queries(&l);
        TOGETHER;
        if (adds)
            find_pairs(&l);
        TOGETHER;
        if (FEAT_NORMALIZE) {
            find_den(&l, adds);
            TOGETHER;
        }
        write_rows(&p, &u, &l, i, adds);
        TOGETHER;    /* S has been read */
        if (adds)
            fold_chunk(l.s, l.z, l.k, l.v);
    }
    TOGETHER;
    if (u.segment == u.pieces - 1 && u.h % u.share == 0)
        store_state(&p, &u, &l);
}
