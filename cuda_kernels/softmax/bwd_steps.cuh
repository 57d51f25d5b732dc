// SPDX-License-Identifier: MIT
// softmax/bwd_steps.cuh: how a group of the backward on tensor cores walks: over the tiles of
// queries that see its T::BM keys, T::BN queries each, head by head. And how groups take turns
// at the sums of dQ of a tile of queries, in the order of their keys, or against it.
//
// With a right bound (causal) groups begin with the first queries that see their keys, those
// with the last keys before those with the first: group t is at tile t + n of queries in step
// n, where group t + 1 was a step before, so that nobody waits. Without, all tiles of queries
// are everybody's; groups begin with the last, in the order of their keys.
#pragma once
#include "common/score.cuh"
#include "softmax/bwd_mma_work.cuh"

constexpr int64_t UNBOUNDED = (int64_t)1 << 40;    // beyond any distance of positions

// What a step visits: queries i0 + lo .. i0 + n - 1, the others of the tile count as 0. One
// thread writes it down, two steps ahead.
struct mma_step {
    int i0, lo, n, h;
    int first, end;         // query x of the tile sees keys j with first <= j - x < end
    int before;             // how many groups add to the sums of dQ before this one
    bool masked, there;     // not every pair is within its range; there is such a step
    int64_t row;            // of query i0 in the workspace
    int *flag;              // that counts those groups
};

// Rows of Q and dO of one head.
struct mma_head {
    attn_rows q_rows, o_rows;
};

// A group's work.
struct back_group {
    attn_sequence seq;
    attn_range range;       // queries that see one of its keys
    back_work work;
    int64_t b;
    int64_t left, right;    // query i sees key j when i + left <= j < i + right
    int owner, tile, first, owned;
    mma_head head[2];       // in turn
};

// The step after `before`, or the first one. By one thread, while the others wait for
// nothing: what changes from step to step alone is cheap.
template <typename T, int CAN>
DEVICE void find_step(const attn_kparams &p, back_group &mem, const mma_step *before,
                      mma_step &at)
{
    const attn_range range = mem.range;
    const bool up = has<CAN>(p, FEAT_RANGE_RIGHT);
    const bool goes_on = before && (up ? before->i0 + T::BN < range.end
                                       : before->i0 > range.first);

    at.there = (!before || before->there) && range.end > range.first;
    if (!at.there)
        return;
    if (goes_on) {
        at.h = before->h;
        at.i0 = before->i0 + (up ? T::BN : -T::BN);
        at.row = before->row + (up ? T::BN : -T::BN);
        at.flag = before->flag + (up ? T::BN / FLAG_ROWS : -(T::BN / FLAG_ROWS));
    } else {
        const int h = before ? before->h + 1 : mem.owner * p.group;

        at.h = h;
        at.i0 = (up ? range.first : range.end - 1) / T::BN * T::BN;
        at.there = h < (mem.owner + 1) * p.group;
        if (!at.there)
            return;
        at.row = back_delta_at(p, mem.b, h, at.i0);
        at.flag = mem.work.flags + (mem.b * p.heads_q + h) * mem.work.head_flags +
                  at.i0 / FLAG_ROWS;
        mem.head[h % 2].q_rows = ADDRESS_QUERIES(p, q, mem.seq, mem.b, h);
        mem.head[h % 2].o_rows = ADDRESS_QUERIES(p, grad_o, mem.seq, mem.b, h);
    }

    const int64_t keys = mem.seq.keys, left = at.i0 + mem.left, right = at.i0 + mem.right;

    at.lo = max(range.first - at.i0, 0);
    at.n = min(range.end - at.i0, T::BN);
    at.first = (int)clamp(left, -SCORE_FAR, keys);
    at.end = (int)clamp(right, -SCORE_FAR, keys);
    at.masked = mem.owned < T::BM || at.n < T::BN || at.lo > 0 ||
                mem.first < left + at.n - 1 || mem.first + mem.owned > right;
    if (up) {
        const int64_t last = min(at.i0 + T::BN, mem.seq.queries) - 1 + mem.right;

        at.before = ceil_div((int)clamp(last, (int64_t)0, keys), T::BM) - 1 - mem.tile;
    } else {
        at.before = mem.tile - (int)clamp(left, (int64_t)0, keys) / T::BM;
    }
}

// What this group is to do. By one thread. Groups go through the heads in sections whose Q, dO
// and sums of dQ fit the L2, in each tile by tile.
template <typename T, int CAN>
DEVICE void find_group(const attn_kparams &p, back_group &mem)
{
    const int heads = p.batch * p.heads_kv, tiles = ceil_div(p.len_kv, T::BM);

    mem.work = find_back_work(p);

    // without queries there was no step before that begins the count
    const int ticket = T::K && p.len_q ? atomicAdd(mem.work.ticket, 1) : (int)blockIdx.x;
    const int64_t bytes = (int64_t)p.group * p.len_q *
                          ((p.d + p.dv) * elem_bytes<TYPE>() + 4 * mem.work.pitch);
    const int section = (int)clamp(L2_BYTES / max(bytes, (int64_t)1), (int64_t)1,
                                   (int64_t)heads);
    const int begin = ticket / (section * tiles) * section;
    const int rest = ticket - begin * tiles, width = min(section, heads - begin);
    const int head = begin + rest % width;

    mem.tile = has<CAN>(p, FEAT_RANGE_RIGHT) ? tiles - 1 - rest / width : rest / width;
    mem.owner = head % p.heads_kv;
    mem.b = head / p.heads_kv;
    mem.first = mem.tile * T::BM;
    mem.seq = range_sequence<CAN>(p, mem.b);
    mem.owned = clamp(mem.seq.keys - mem.first, 0, T::BM);
    mem.range = range_queries<CAN>(p, mem.seq, mem.first, mem.owned);
    mem.left = has<CAN>(p, FEAT_RANGE_LEFT) ? mem.seq.position - p.left : -UNBOUNDED;
    mem.right = has<CAN>(p, FEAT_RANGE_RIGHT) ? mem.seq.position + p.right + 1 : UNBOUNDED;
}

// Lets those go on who wait for the sums of a step, all of which were written before a
// barrier. By one thread.
DEVICE void end_turn(const mma_step &at)
{
    device_fence();
    device_set_flag(at.flag, at.before + 1);
}

// Waits until it is this group's turn to add to the sums of a step, of whose flag `seen` was
// read a while ago. Ends its turn at the step before (NULL: there was none). By one thread; a
// barrier follows.
DEVICE void take_turn(const mma_step &at, int seen, const mma_step *before)
{
    if (before)
        end_turn(*before);
    else if (at.before)
        device_fence();
    if (seen >= at.before)
        return;
    while (device_flag(at.flag) < at.before)
        ;
    device_fence();
}
