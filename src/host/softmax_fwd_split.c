/* SPDX-License-Identifier: MIT */
/* host/softmax_fwd_split.c: softmax attention forward for few queries and many keys,
 * split along the keys. Compiled once per instruction level.
 *
 * Computes  O and LSE as written in include/attn/softmax.h
 * Method    the keys are cut into pieces; the state (m, l, o) of every row over every
 *           piece goes to the workspace, a second pass merges the pieces in order and
 *           adds the sink. Rows are the queries of all heads that share a key/value head
 *           (row i * group + head of the group), tile_q of them a block: K and V are read
 *           once for a block. Within a piece tile_k keys at a time: all scores, their
 *           softmax along the keys, then their values
 *           (T. Dao et al., "Flash-Decoding for long-context inference", 2023)
 * Units     (piece, block of rows) in rounds of `blocks` blocks, handed out one by one to
 *           the threads
 * Key range exactly the keys that a query of the block sees: other rows of K and V are not
 *           read. A key that mask or bias hide from a row is not multiplied with its value
 * Layout    any types and strides; f32 rows whose size is a multiple of LANES are read in
 *           place, others are converted to the scratch, ROWS_KEYS at a time
 * Numerics  scores, m, l, o in f32, values summed apart for ROWS_KEYS keys; the merge adds
 *           in f64; empty row: O = 0, LSE = -Inf
 * Scratch   of one thread, in floats (D and Dv rounded up to 16): q [tile_q][D],
 *               scores [tile_q][tile_k + 16], keys or values [16][max(D, Dv)],
 *               if scores have terms [tile_k + 16] of them
 * Workspace after the threads' scratch, of a round: o [blocks][tile_q][pieces][Dv], then
 *               m and l, each [blocks][tile_q][pieces]
 * Bits      of a row depend on its query, the keys it sees, piece and tile_k: not on B, H,
 *           Lq, tile_q, strides or the number of threads
 * Oracle    host/softmax_fwd_reference.c
 */
#include "host/softmax.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include "host/address.h"
#include "host/level.h"
#include "host/row.h"
#include "host/rows.h"
#include "host/score.h"
#include "host/terms.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b)  JOIN2(a, b)
#define AHEAD_BYTES 16384 /* of rows fetched ahead of the one being taken */
#define COLUMNS     64    /* merged at once                               */

/* One execution. */
typedef struct split {
    const attn_host_softmax *s;
    int64_t group;  /* query heads of a key/value head                */
    int64_t blocks; /* of rows, of a (batch, key/value head)          */
    int64_t round;  /* blocks in the workspace                        */
    int64_t pieces;
    int64_t dim_qk, dim_v; /* rounded up to 16                               */
    float *o, *m, *l;
} split;

/* A block of rows, and its place in the workspace. */
typedef struct block {
    int64_t b, kvh, first; /* first row                                      */
    int rows;
    attn_sequence x;
    int64_t state; /* of its first row and piece 0                   */
} block;

/* One unit of work: keys of one piece for one block, and this thread's scratch. */
typedef struct unit {
    const split *w;
    const attn_host_softmax *s;
    block k;
    attn_range keys;
    float *q, *scores, *taken, *terms;
    int64_t score_step;
    float *o, *m, *l; /* states of the first row                        */
    int64_t o_step;   /* to those of the next row, m and l: pieces      */
} unit;

static split split_of(const attn_host_softmax *s)
{
    split w = {
        .s = s,
        .group = s->heads_q / s->heads_kv,
        .pieces = attn_ceil_div(s->len_kv, s->piece),
        .dim_qk = attn_round_up(s->dim_qk, 16),
        .dim_v = attn_round_up(s->dim_v, 16),
    };
    int64_t states;

    w.blocks = attn_ceil_div(s->len_q * w.group, s->tile_q);
    w.round = s->round;
    /* whole (batch, head) pairs if one fits: their blocks then share a piece's keys */
    if (w.blocks < w.round)
        w.round = attn_round_down(w.round, w.blocks);
    states = w.round * s->tile_q * w.pieces;
    w.o = (float *)((char *)s->workspace + (size_t)s->threads * s->scratch_bytes);
    w.m = w.o + states * w.dim_v;
    w.l = w.m + states;
    return w;
}

static float *scratch_of(const attn_host_softmax *s)
{
#ifdef _OPENMP
    return (float *)((char *)s->workspace +
                     (size_t)omp_get_thread_num() * s->scratch_bytes);
#else
    return s->workspace;
#endif
}

/* Block n of all; `place` is its number within the round. No rows: it is not there. */
static block block_at(const split *w, int64_t n, int64_t place)
{
    const attn_host_softmax *s = w->s;
    int64_t pair = n / w->blocks;
    block k = { .b = pair / s->heads_kv,
                .kvh = pair % s->heads_kv,
                .first = n % w->blocks * s->tile_q,
                .state = place * s->tile_q * w->pieces };

    if (k.b >= s->batch)
        return k;
    k.x = attn_host_sequence(s, k.b);
    k.rows = (int)attn_max(0, attn_min(s->tile_q, k.x.queries * w->group - k.first));
    return k;
}

/* Query and head of row r. */
static int64_t query_of(const split *w, const block *k, int r)
{
    return (k->first + r) / w->group;
}

static int64_t head_of(const split *w, const block *k, int r)
{
    return k->kvh * w->group + (k->first + r) % w->group;
}

static int64_t query_at(const split *w, const block *k, const attn_tensor *t, int r)
{
    return attn_host_query_at(w->s, t, &k->x, k->b, head_of(w, k, r), query_of(w, k, r));
}

/* Rows j .. j + n - 1 of k or v as f32 rows, with zeros up to a multiple of LANES; past
 * the last one it is given again. Returns the elements from a row to the one to be
 * fetched, 0 where that has been done. */
static int64_t take(const unit *u, const attn_tensor *t, int64_t j, int n, int64_t dim,
                    const float *row[ROWS_KEYS])
{
    const bool in_place = t->type == ATTN_F32 && t->stride[3] == 1 && dim % LANES == 0;
    const int64_t padded = attn_round_up(dim, LANES);
    const int64_t ahead = attn_ceil_div(AHEAD_BYTES, padded * 4) * t->stride[2];
    int64_t at = attn_host_key_at(u->s, t, &u->k.x, u->k.b, u->k.kvh, j);

    for (int x = 0; x < ROWS_KEYS; x++) {
        float *to = u->taken + x * padded;

        if (x >= n) {
            row[x] = row[n - 1];
            continue;
        }
        if (x)
            at = attn_host_key_next(u->s, t, &u->k.x, u->k.b, u->k.kvh, j + x, at);
        row[x] = in_place ? (const float *)t->data + at : to;
        if (in_place)
            continue;
        attn_row_fetch(t, at + ahead, dim);
        attn_row_load(to, t, at, dim);
        for (int64_t d = dim; d < padded; d++)
            to[d] = 0;
    }
    return in_place ? ahead : 0;
}

/* Scores of keys first .. end - 1, at most tile_k; a row's first is that of key j0. */
static void score(const unit *u, int64_t j0, int64_t first, int64_t end)
{
    const float *key[ROWS_KEYS];
    int64_t ahead;

    for (int64_t j = first; j < end; j += ROWS_KEYS) {
        ahead =
            take(u, &u->s->t.k, j, (int)attn_min(ROWS_KEYS, end - j), u->s->dim_qk, key);
        rows_scores(u->scores + (j - j0), u->score_step, u->q, u->w->dim_qk, key, ahead,
                    attn_round_up(u->s->dim_qk, LANES), u->k.rows);
    }
}

/* What becomes of the scores of row r before the softmax, keys j .. j + n - 1. */
static void score_rules(const unit *u, int r, int64_t j, int n, float *s)
{
    const int64_t query = query_of(u->w, &u->k, r);

    for (int x = 0; x < n; x += LANES)
        vf_store(s + x, attn_score_cap(vf_load(s + x) * u->s->scale, u->s->softcap));
    if (attn_host_terms(u->s)) {
        const attn_terms terms =
            attn_terms_of(u->s, &u->k.x, u->k.b, head_of(u->w, &u->k, r));

        attn_terms_row(u->terms, &terms, query, j, n);
        for (int x = 0; x < n; x += LANES)
            vf_store(s + x, attn_terms_add(vf_load(s + x), vf_load(u->terms + x)));
    }
}

/* -Inf where keys first .. end - 1 are out of row r's range, and up to whole vectors around
 * them; returns the largest score or *m. s is that of the first vector, of key j. */
static float hide(const unit *u, int r, int64_t first, int64_t end, int64_t j, float *s)
{
    const attn_range own = attn_host_range(u->s, &u->k.x, query_of(u->w, &u->k, r), 1);
    const int low = (int)(attn_max(own.first, first) - j);
    const int high = (int)(attn_min(own.end, end) - j);
    vf top = vf_set(-INFINITY);
    float most = u->m[r * u->w->pieces];

    for (int x = 0; x < end - j; x += LANES) {
        const vi key = vi_lanes() + x, seen = (key >= low) & (key < high);
        const vf score = vf_select(seen, vf_load(s + x), vf_set(-INFINITY));

        vf_store(s + x, score);
        top = vf_max(top, score);
    }
    for (int i = 0; i < LANES; i++)
        most = most > top[i] ? most : top[i];
    return most;
}

/* Scores of row r become weights; returns what its sums before are to be scaled with. */
static float weigh(const unit *u, int r, int64_t j0, int64_t first, int64_t end)
{
    const float log2e = 0x1.715476p0f;
    const int64_t from = attn_round_down(first - j0, LANES), j = j0 + from;
    float *s = u->scores + r * u->score_step + from, *m = u->m + r * u->w->pieces;
    float *l = u->l + r * u->w->pieces, base, alpha, all = 0;
    vf sum = vf_set(0);

    score_rules(u, r, j, (int)(end - j), s);
    base = hide(u, r, first, end, j, s);
    alpha = *m;
    *m = base;
    base = base == -INFINITY ? 0 : base;
    alpha = vf_exp2(vf_set((alpha - base) * log2e))[0];
    for (int x = 0; x < end - j; x += LANES) {
        const vf w = vf_exp2((vf_load(s + x) - base) * log2e);

        vf_store(s + x, w);
        sum += w;
    }
    for (int i = 0; i < LANES; i++)
        all += sum[i];
    *l = *l * alpha + all;
    return alpha;
}

/* Adds the values of n keys that weigh something to row r: others are not multiplied. */
static void value_some(const unit *u, int r, const float *w, const float *const v[],
                       int64_t ahead, int n)
{
    const float *some[ROWS_KEYS];
    float weight[ROWS_KEYS];
    int live = 0;

    for (int x = 0; x < n; x++) {
        some[live] = v[x];
        weight[live] = w[x];
        live += w[x] != 0;
    }
    rows_values(u->o + r * u->o_step, u->o_step, weight, 0, some, ahead,
                attn_round_up(u->s->dim_v, LANES), live, 1);
}

/* The sums over ROWS_KEYS keys begin at multiples of it from j0 on, whatever the range of
 * the block, so that a row's bits do not depend on the other rows. */
static void value(const unit *u, int64_t j0, int64_t first, int64_t end)
{
    const bool hides = attn_host_hides(u->s);
    const float *v[ROWS_KEYS];

    for (int64_t j = first, next; j < end; j = next) {
        const float *w = u->scores + (j - j0);
        int64_t ahead;
        int n;

        next = attn_min(j0 + attn_round_down(j - j0, ROWS_KEYS) + ROWS_KEYS, end);
        n = (int)(next - j);
        ahead = take(u, &u->s->t.v, j, n, u->s->dim_v, v);
        for (int r = 0; hides && r < u->k.rows; r++)
            value_some(u, r, w + r * u->score_step, v, r ? 0 : ahead, n);
        if (!hides)
            rows_values(u->o, u->o_step, w, u->score_step, v, ahead,
                        attn_round_up(u->s->dim_v, LANES), n, u->k.rows);
    }
}

/* Where alpha is 0 the old sums are dropped, even infinite ones. */
static void rescale(const unit *u, int r, float alpha)
{
    float *o = u->o + r * u->o_step;

    for (int64_t e = 0; alpha != 1 && e < u->w->dim_v; e++)
        o[e] = alpha != 0 ? o[e] * alpha : 0;
}

static void unit_start(const unit *u)
{
    for (int r = 0; r < u->k.rows; r++) {
        float *q = u->q + r * u->w->dim_qk;

        attn_row_load(q, &u->s->t.q, query_at(u->w, &u->k, &u->s->t.q, r), u->s->dim_qk);
        for (int64_t d = u->s->dim_qk; d < u->w->dim_qk; d++)
            q[d] = 0;
        for (int64_t e = 0; e < u->w->dim_v; e++)
            u->o[r * u->o_step + e] = 0;
        u->m[r * u->w->pieces] = -INFINITY;
        u->l[r * u->w->pieces] = 0;
    }
}

/* A piece out of the block's range leaves no state: merge() does not ask for it. */
static void unit_run(const split *w, int64_t piece, block k)
{
    const attn_host_softmax *s = w->s;
    const int64_t last = k.rows ? query_of(w, &k, k.rows - 1) : 0,
                  query = query_of(w, &k, 0);
    attn_range keys = attn_host_range(s, &k.x, query, k.rows ? last - query + 1 : 0);
    unit u = { .w = w,
               .s = s,
               .k = k,
               .keys = { attn_max(keys.first, piece * s->piece),
                         attn_min(keys.end, (piece + 1) * s->piece) },
               .q = scratch_of(s),
               .score_step = s->tile_k + ROWS_KEYS,
               .o = w->o + (k.state + piece) * w->dim_v,
               .m = w->m + k.state + piece,
               .l = w->l + k.state + piece,
               .o_step = w->pieces * w->dim_v };

    if (u.keys.first >= u.keys.end)
        return;
    u.scores = u.q + s->tile_q * w->dim_qk;
    u.taken = u.scores + s->tile_q * u.score_step;
    u.terms = u.taken + ROWS_KEYS * attn_max(w->dim_qk, w->dim_v);
    unit_start(&u);
    for (int64_t j = u.keys.first, next; j < u.keys.end; j = next) {
        const int64_t begin = piece * s->piece;
        const int64_t j0 = begin + attn_round_down(j - begin, s->tile_k);

        next = attn_min(j0 + s->tile_k, u.keys.end);
        score(&u, j0, j, next);
        for (int r = 0; r < k.rows; r++)
            rescale(&u, r, weigh(&u, r, j0, j, next));
        if (s->t.o.type != ATTN_TYPE_NONE)
            value(&u, j0, j, next);
    }
}

/* O of row r from the sums of pieces p .. end - 1, each times its factor. */
static void merge_values(const split *w, const block *k, int r, int64_t p, int64_t end,
                         const float *factor, double l)
{
    const attn_tensor *o = &w->s->t.o;
    const float *part = w->o + (k->state + r * w->pieces) * w->dim_v;
    const int64_t to = query_at(w, k, o, r);

    for (int64_t e = 0, n; e < w->s->dim_v; e += n) {
        double sum[COLUMNS] = { 0 };
        float out[COLUMNS];

        n = attn_min(COLUMNS, w->s->dim_v - e);
        for (int64_t x = p; x < end; x++)
            for (int64_t c = 0; factor[x] != 0 && c < n; c++)
                sum[c] += (double)factor[x] * (double)part[x * w->dim_v + e + c];
        for (int64_t c = 0; c < n; c++)
            out[c] = l != 0 ? (float)(sum[c] / l) : 0;
        attn_row_store(o, to + e * o->stride[3], out, 1, n);
    }
}

/* Row r of a block: the pieces that it sees, in order, and then the sink. */
static void merge(const split *w, const block *k, int r)
{
    const attn_host_softmax *s = w->s;
    const attn_range keys = attn_host_range(s, &k->x, query_of(w, k, r), 1);
    const int64_t first = keys.first / s->piece;
    const int64_t end = keys.first < keys.end ? attn_ceil_div(keys.end, s->piece) : first;
    const float sink = attn_host_sink(s, head_of(w, k, r)),
                *l = w->l + k->state + r * w->pieces;
    float *m = w->m + k->state + r * w->pieces, top = sink;
    double base, sum = 0;
    bool some;

    for (int64_t x = first; x < end; x++)
        top = top > m[x] ? top : m[x];
    base = top == -INFINITY ? 0 : top;
    for (int64_t x = first; x < end; x++) {
        /* not a number: neither is the result */
        m[x] = l[x] == l[x] ? (float)exp(m[x] - base) : l[x];
        sum += (double)m[x] * (double)l[x];
    }
    some = sum != 0;
    sum += (double)sink == base ? 1 : exp(sink - base); /* 1 for +inf too */
    if (s->t.lse.type != ATTN_TYPE_NONE)
        ((float *)s->t.lse.data)[query_at(w, k, &s->t.lse, r)] =
            sum == 0 ? -INFINITY : (float)(base + log(sum));
    if (s->t.o.type != ATTN_TYPE_NONE)
        merge_values(w, k, r, first, end, m, some ? sum : 0);
}

/* Blocks of the same (batch, head) and piece follow each other. */
static void split_unit(const split *w, int64_t first, int64_t n)
{
    const int64_t near = attn_min(w->blocks, w->round),
                  place = n / (near * w->pieces) * near + n % near;

    unit_run(w, n / near % w->pieces, block_at(w, first + place, place));
}

static void split_merge(const split *w, int64_t first, int64_t place)
{
    const block k = block_at(w, first + place, place);

    for (int r = 0; r < k.rows; r++)
        merge(w, &k, r);
}

void JOIN(attn_host_softmax_fwd_split_, ATTN_LEVEL)(const attn_host_softmax *s)
{
    const split w = split_of(s);
    const int64_t blocks = s->batch * s->heads_kv * w.blocks;

    for (int64_t first = 0; first < blocks; first += w.round) {
#ifdef _OPENMP
#pragma omp parallel num_threads(s->threads)
#endif
        {
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
            for (int64_t n = 0; n < w.round * w.pieces; n++)
                split_unit(&w, first, n);
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
            for (int64_t n = 0; n < w.round; n++)
                split_merge(&w, first, n);
        }
    }
}
