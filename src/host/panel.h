/* SPDX-License-Identifier: MIT */
/* host/panel.h: a panel of queries and the keys to fold into it.
 *
 * A panel is up to NV vectors of queries, one query to a lane: every array below
 * has the queries as its fast dimension, so that all of the softmax is vertical and
 * a row of K or V only ever enters as a broadcast number. */
#ifndef ATTN_HOST_PANEL_H
#define ATTN_HOST_PANEL_H

#include <stdbool.h>
#include <stdint.h>

#include "host/vector.h"

/* Values come in blocks of VB columns: [Dv / VB][keys][VB]. */
#define VB 4

typedef struct panel {
    vf *q;           /* [D][vectors]  queries, transposed                  */
    vf *o;           /* [Dv][vectors] sums of weighted values, of one span */
    vf *m, *l;       /* [vectors]     running maximum, sum of weights      */
    vf *total_o;     /* [Dv][vectors] o, m and l of the spans before       */
    vf *total_m, *total_l;
    int64_t first;   /* the query of lane 0                                */
    int queries;     /* so many lanes are real, the others hold zeros      */
    int vectors;     /* no more than these queries need: one query, one    */
} panel;

typedef struct panel_run {
    int first, end;
} panel_run;

typedef struct panel_keys {
    const float *k;  /* [n][D]                                             */
    const float *v;  /* first block of VB values; NULL: only m and l       */
    int64_t block;   /* elements from there to the next block              */
    int64_t first;   /* number of the first key                            */
    int n;
    float scale;
    float softcap;   /* 0: off                                             */
    bool edge;       /* true: lane x sees key j where low <= j - x <= high */
    int low, high;
    const struct attn_dropout *drop; /* of the weights; NULL: none         */
    const struct attn_terms *terms; /* what is added; NULL: nothing        */
    float *taken;    /* scratch for them, [lanes][taken_step]              */
    int64_t taken_step;
    panel_run *live; /* scratch, n / 2 + 1 of them                         */
} panel_keys;

/* Folds keys into a panel of so many vectors (host/panel_fold.h); s is scratch. */
typedef void panel_fold_fn(const panel *p, const panel_keys *t, vf *s, int64_t dim_qk,
                           int64_t dim_v);

#endif
