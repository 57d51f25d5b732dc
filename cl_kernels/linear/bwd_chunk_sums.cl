/* SPDX-License-Identifier: MIT */
/* linear/bwd_chunk_sums.cl: linear_bwd_chunk, the first step of a scan: what the tokens of a
 * segment add to its state, and the state that the walk begins with.
 *
 * Computes  slots of the workspace, as chunk.clh and chunk_bwd.clh say
 * Method    chunks of Y^T and W in local memory, S += Y^T W by register tiles; of all query
 *           heads of the group where those are queries
 * Grid      1-D, ceil(WIDTH / COLUMNS) * segments * Hkv * B groups, columns fastest
 * Group     ITEMS work-items
 * Local     in f32, 4 * (ES * CP + (CHUNK + ES + 1) * COLUMNS + CHUNK), as chunk.clh names them
 * Barriers  two a chunk and head, where every item passes
 * Numerics  f32
 * Tunables  chunk.clh
 * Oracle    linear_bwd_reference
 */
#include "linear/chunk_bwd.clh"

/* Local arrays travel in a struct for PoCL (CONTRIBUTING.md). */
typedef struct chunk_local {
    __local float *y, *w, *s, *z, *c;
} chunk_local;

/* Slot 0, the group's columns. */
static inline void copy_first(const attn_kparams *p, const chunk_unit *u)
{
    __global float *const to = find_slot(p, u, 0);

    for (int x = get_local_id(0); x < (FEATURES + HAS_Z) * COLUMNS; x += ITEMS) {
        const int r = x / COLUMNS, c = u->column + x % COLUMNS;

        if (c < WIDTH)
            to[(long)r * WIDTH + c] = first_state(p, u, r, c);
    }
}

/* The slot behind the segment. */
static inline void store_sums(const attn_kparams *p, const chunk_unit *u,
                              const chunk_local *l)
{
    __global float *const to = find_slot(p, u, u->segment + 1);

    for (int x = get_local_id(0); x < (FEATURES + HAS_Z) * COLUMNS; x += ITEMS) {
        const int r = x / COLUMNS, c = x % COLUMNS;

        if (u->column + c < WIDTH)
            to[(long)r * WIDTH + u->column + c] = r < FEATURES ? l->s[x] : l->z[c];
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_bwd_chunk_sums(SIGNATURE(LINEAR_BWD_PARAMS))
{
    __local floatv y4[ES * CP / VW], w4[CHUNK * COLUMNS / VW], s4[ES * COLUMNS / VW];
    __local floatv z4[COLUMNS / VW];
    __local float cs[CHUNK];
    const attn_kparams p = KPARAMS(LINEAR_BWD_PARAMS);
    const chunk_local l = { (__local float *)y4, (__local float *)w4, (__local float *)s4,
                            (__local float *)z4, cs };
    chunk_unit u;
    int end, last, chunks, heads;

    find_chunks(&p, p.heads_kv, tokens_of_sums(&p), &u);
    find_walk(&p, &u, tokens_of_sums(&p));
    heads = SCAN == SCAN_Q ? 1 : u.share;
    /* it needs no slot, but goes on all the same: PoCL 3.1 wrote one, behind the workspace,
     * where the group left before the barriers */
    last = FEAT_CAUSAL && u.segment == u.pieces - 1;
    end = last ? u.first : SCAN == SCAN_Q ? min(u.end, u.keys) : u.end;
    /* at least one, of nothing: PoCL's loops with barriers must run */
    chunks = end > u.first ? CEIL_DIV(end - u.first, CHUNK) : 1;
    if (u.segment == (FEAT_CAUSAL ? u.pieces - 1 : 0))
        copy_first(&p, &u);
    for (int x = get_local_id(0); x < ES * COLUMNS; x += ITEMS)
        l.s[x] = 0.0f;
    for (int c = get_local_id(0); c < COLUMNS; c += ITEMS)
        l.z[c] = 0.0f;
    for (int x = get_local_id(0); x < (ES - EP) * CP; x += ITEMS)
        l.y[EP * CP + x] = 0.0f;
    for (int n = 0; n < chunks; n++) {
        const int j = u.first + n * CHUNK;

        for (int x = 0; x < heads; x++) {
            TOGETHER;    /* what is overwritten has been read */
            if (j < end) {
                stage_y(&p, &u, l.y, x, j, end);
                stage_w(&p, &u, l.w, x, j, end);
                if (SCAN == SCAN_K && HAS_Z)
                    stage_c(&p, &u, l.c, x, j, end);
            }
            TOGETHER;
            if (j < end)
                fold_chunk(l.s, l.z, l.y, l.w, l.c);
        }
    }
    TOGETHER;
    if (!last)
        store_sums(&p, &u, &l);
}
