/* SPDX-License-Identifier: MIT */
/* host/panel_score.h: the score seam of a panel: what becomes of scale * K Q before the
 * softmax, for any number of vectors; and which keys weigh nothing. */
#ifndef ATTN_HOST_PANEL_SCORE_H
#define ATTN_HOST_PANEL_SCORE_H

#include "host/drop.h"
#include "host/panel.h"
#include "host/terms.h"

/* So many queries ahead terms are asked for. Rows of a bias lie far apart, often by a
 * power of two: the caches have only few places for them. */
#define PANEL_AHEAD 4

/* Takes the share of the terms that is due with keys j .. end - 1: some queries, all keys.
 * Called between the dot products, which hide that the memory is slow. Lanes without a
 * query take the last one's. */
static __attribute__((noinline)) void panel_score_take(const panel_keys *t, const panel *p,
                                                       int j, int end)
{
    const int lanes = p->vectors * LANES;
    const int last = end < t->n ? lanes * end / t->n : lanes;

    for (int x = lanes * j / t->n; x < last; x++) {
        const int64_t query = p->first + (x < p->queries ? x : p->queries - 1);

        attn_terms_fetch(t->terms, query + PANEL_AHEAD, t->first, t->n);
        attn_terms_row(t->taken + x * t->taken_step, t->terms, query, t->first, t->n);
    }
}

/* Adds what was taken: along the keys, so it is turned, LANES by LANES. Returns whether a
 * term hides a key. */
static bool panel_score_terms(vf *s, const panel_keys *t, const panel *p)
{
    vi hidden = { 0 };

    for (int v = 0; v < p->vectors; v++)
        for (int j = 0; j < t->n; j += LANES) {
            vf term[LANES];

            for (int i = 0; i < LANES; i++)
                term[i] = vf_load(t->taken + (v * LANES + i) * t->taken_step + j);
            vf_transpose(term);
            for (int i = 0; i < LANES && j + i < t->n; i++) {
                vf *to = &s[(j + i) * p->vectors + v];
                *to = attn_terms_add(*to, term[i]);
                hidden |= term[i] == -INFINITY;
            }
        }
    return vi_any(hidden);
}

/* Hides what is out of range, see panel_keys. */
static void panel_score_hide(vf *s, const panel_keys *t, const panel *p)
{
    for (int v = 0; v < p->vectors; v++) {
        const vi lane = vi_lanes() + v * LANES;

        for (int j = 0; j < t->n; j++) {
            vi seen = (lane <= j - t->low) & (lane >= j - t->high);
            vf *to = &s[j * p->vectors + v];
            *to = vf_select(seen, *to, vf_set(-INFINITY));
        }
    }
}

/* Returns whether a key may weigh nothing for every query, though one of them has it in
 * range. */
static inline bool panel_score(vf *s, const panel_keys *t, const panel *p)
{
    bool hidden = false;

    for (int x = 0; t->softcap > 0 && x < t->n * p->vectors; x++)
        s[x] = attn_score_cap(s[x], t->softcap);
    if (t->terms)
        hidden = panel_score_terms(s, t, p);
    if (t->edge)
        panel_score_hide(s, t, p);
    return hidden;
}

/* Drops weights w[n][vectors] of a panel of queries. */
static inline void panel_drop(vf *w, const panel_keys *t, const panel *p)
{
    enum { SHARE = 32 }; /* keys at once, a multiple of 4 */
    vf factor[SHARE * NV];

    for (int64_t j = t->first, next; j < t->first + t->n; j = next) {
        vf *const at = w + (j - t->first) * p->vectors;
        int n;

        next = attn_min(attn_round_down(j, SHARE) + SHARE, t->first + t->n);
        n = (int)(next - j);
        drop_queries(factor, t->drop, p->first, j, n, p->vectors);
        for (int x = 0; x < n * p->vectors; x++)
            at[x] = vf_keep(factor[x] != 0.0f, at[x] * factor[x]);
    }
}

/* The runs of keys that weigh something for a query of the panel; returns how many. */
static inline int panel_live(panel_run *run, const vf *w, const panel_keys *t, int vectors)
{
    int runs = 0;
    bool before = false;

    for (int j = 0; j < t->n; j++) {
        vi some = { 0 };
        bool live;

        for (int v = 0; v < vectors; v++)
            some |= w[j * vectors + v] != 0.0f;
        live = vi_any(some);
        if (live && !before)
            run[runs++].first = j;
        if (live)
            run[runs - 1].end = j + 1;
        before = live;
    }
    return runs;
}

#endif
