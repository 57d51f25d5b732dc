/* SPDX-License-Identifier: MIT */
/* common/cut.h: tiles of the same length on so many `slots`, groups that run at a time. A last
 * round of them would leave slots empty; so its tiles are cut along their steps of keys, into
 * a head and a tail, or with a middle between. Who has a part goes on with the sums that the part
 * before left, so where a tile is cut changes no bit. src/backend/cuda finds the numbers for
 * each call; C and C++.
 *
 * Jobs are taken in this order, so that no part waits for the one before: heads, a round of whole
 * tiles, middles, the other whole tiles, tails. Where there are middles, heads are of all lengths,
 * shortest first, a middle is as long as a slot has time left, and a tail is the rest: slots
 * come to tails in the order of their heads, and tails are longest first if those of tiles
 * without a middle, which are the last, precede. A slot's head and tail are a middle, then. */
#ifndef ATTN_COMMON_CUT_H
#define ATTN_COMMON_CUT_H

#include <stdint.h>

typedef struct attn_cut {
    int32_t rest; /* tiles that are cut, behind the whole ones; 0: none */
    int32_t whole, slots;
    int32_t steps;   /* of a tile                                       */
    int32_t most;    /* steps of parts that a slot computes             */
    int32_t middles; /* so many of the first cut tiles have one         */
} attn_cut;

/* Steps of a cut tile's head, and where its tail begins. */
#define CUT_HEAD(c, tile) \
    ((c).middles ? (int32_t)((int64_t)(tile) * ((c).most + 1) / (c).rest) : (c).most)
#define CUT_TAIL(c, tile) (CUT_HEAD(c, tile) + ((tile) < (c).middles ? (c).most : 0))

/* 32-bit words of the workspace before the sums: how many jobs were taken, and how many steps
 * of each cut tile are done. All are 0 at first. */
#define CUT_COUNTERS(slots) (((slots) + 4) / 4 * 4)

/* Steps that a cut must gain; a slot's parts cost about one more. */
enum { CUT_GAIN = 2 };

static inline attn_cut attn_find_cut(int64_t tiles, int64_t steps, int64_t slots)
{
    const int64_t whole = tiles / slots * slots, rest = tiles - whole;
    const int64_t share = (rest * steps + slots - 1) / slots, half = (steps + 1) / 2;
    const int64_t most = share > half ? share : half, gain = steps - most;
    const int64_t middles = 2 * rest > slots ? (rest * (gain + 1) + most) / (most + 1)
                                             : 0; /* CUT_HEAD <= gain */
    attn_cut c = { 0, 0, 0, 0, 0, 0 };

    if (!whole || !rest || gain < CUT_GAIN || (middles && whole == slots) ||
        whole + 3 * rest > INT32_MAX)
        return c;
    c.rest = (int32_t)rest;
    c.whole = (int32_t)whole;
    c.slots = (int32_t)slots;
    c.steps = (int32_t)steps;
    c.most = (int32_t)most;
    c.middles = (int32_t)middles;
    return c;
}

/* Parts and whole tiles. */
static inline int64_t attn_cut_jobs(const attn_cut *c)
{
    return (int64_t)c->whole + 2 * (int64_t)c->rest + c->middles;
}

#endif
