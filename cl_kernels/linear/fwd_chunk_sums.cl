/* SPDX-License-Identifier: MIT */
/* linear/fwd_chunk_sums.cl: linear_fwd_chunk, the first step: what the keys of a segment add
 * to the state, and the state as it came in.
 *
 * Computes  slots of the workspace, as chunk.clh says
 * Method    chunks of K^T and V in local memory, S += K^T V by register tiles
 * Grid      1-D, ceil(DV / COLUMNS) * segments * Hkv * B groups, columns fastest
 * Group     ITEMS work-items
 * Local     in f32, 4 * (ES * CP + (CHUNK + ES) * COLUMNS + EP), as chunk.clh names them
 * Barriers  two a chunk, where every item passes
 * Numerics  f32
 * Tunables  chunk.clh
 * Oracle    linear_fwd_reference
 */
#include "linear/chunk_fwd.clh"

/* Local arrays travel in a struct for PoCL (CONTRIBUTING.md). */
typedef struct chunk_local {
    __local float *k, *v, *s, *z;
} chunk_local;

/* Slot 0, the group's columns: the state as it came in, or zeros. */
static inline void copy_state_in(const attn_kparams *p, const chunk_unit *u)
{
    __global float *const to = find_slot(p, u, 0);

    for (int x = get_local_id(0); x < D * COLUMNS; x += ITEMS) {
        const long e = x / COLUMNS, c = u->column + x % COLUMNS;

        if (u->column + x % COLUMNS < DV)
            to[e * DV + c] =
                FEAT_STATE ? p->state_in[LINEAR_AT(p, state_in, u->b, u->kvh, e, c)] : 0.0f;
    }
    for (int e = get_local_id(0); FEAT_NORMALIZE && e < D && u->column == 0; e += ITEMS)
        to[(long)D * DV + e] =
            FEAT_STATE ? p->z_in[LINEAR_AT(p, z_in, u->b, u->kvh, (long)e, 0L)] : 0.0f;
}

/* The slot behind the segment. */
static inline void store_sums(const attn_kparams *p, const chunk_unit *u,
                              const chunk_local *l)
{
    __global float *const to = find_slot(p, u, u->segment + 1);

    for (int x = get_local_id(0); x < D * COLUMNS; x += ITEMS)
        if (u->column + x % COLUMNS < DV)
            to[(long)(x / COLUMNS) * DV + u->column + x % COLUMNS] = l->s[x];
    for (int e = get_local_id(0); FEAT_NORMALIZE && e < D && u->column == 0; e += ITEMS)
        to[(long)D * DV + e] = l->z[e];
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_fwd_chunk_sums(SIGNATURE(LINEAR_FWD_PARAMS))
{
    __local floatv k4[ES * CP / VW], v4[CHUNK * COLUMNS / VW], s4[ES * COLUMNS / VW];
    __local float sums[EP];
    const attn_kparams p = KPARAMS(LINEAR_FWD_PARAMS);
    const chunk_local l = { (__local float *)k4, (__local float *)v4, (__local float *)s4,
                            sums };
    chunk_unit u;
    int end, last, chunks;

    find_chunks(&p, p.heads_kv, tokens_of_sums(&p), &u);
    /* it needs no slot, but goes on all the same: PoCL 3.1 wrote one, behind the workspace,
     * where the group left before the barriers */
    last = FEAT_CAUSAL && u.segment == u.pieces - 1;
    end = last ? u.first : min(u.end, u.keys);
    /* at least one, of nothing: PoCL's loops with barriers must run */
    chunks = end > u.first ? CEIL_DIV(end - u.first, CHUNK) : 1;
    if (u.segment == (FEAT_CAUSAL ? u.pieces - 1 : 0))
        copy_state_in(&p, &u);
    for (int x = get_local_id(0); x < ES * COLUMNS; x += ITEMS)
        l.s[x] = 0.0f;
    for (int e = get_local_id(0); e < EP; e += ITEMS)
        l.z[e] = 0.0f;
    for (int x = get_local_id(0); x < (ES - EP) * CP; x += ITEMS)
        l.k[EP * CP + x] = 0.0f;
    for (int n = 0; n < chunks; n++) {
        const int j = u.first + n * CHUNK;

        TOGETHER;    /* what is overwritten has been read */
        if (j < end) {
            stage_keys(&p, &u, l.k, 0, j, end);
            stage_values(&p, &u, l.v, 0, j, end);
        }
        TOGETHER;
        if (j < end)
            fold_chunk(l.s, l.z, l.k, l.v);
    }
    TOGETHER;
    if (!last)
        store_sums(&p, &u, &l);
}
