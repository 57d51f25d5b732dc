/* SPDX-License-Identifier: MIT */
/* tools/input_lists.c: the integers of a problem: lengths, positions, boundaries of
 * packed sequences, block tables; some of them out of range. */
#include <stdlib.h>

#include "inputs.h"
#include "visible.h"

enum {
    STREAM_LEN = 10,
    STREAM_LEN_Q,
    STREAM_CU_Q,
    STREAM_CU_K,
    STREAM_OFFSET,
    STREAM_PAGE
};

static int32_t *vector(int64_t n)
{
    return calloc((size_t)n + 1, sizeof(int32_t));
}

/* Lengths of batch b out of 0 .. most: all of the ordinary ones, those at the ends, one
 * past a tile. */
static int64_t length_of(uint64_t seed, int stream, int64_t b, int64_t most)
{
    const int64_t first = (int64_t)(random_bits(seed, (uint64_t)stream, 0) % 6);
    const uint64_t bits = random_bits(seed, (uint64_t)stream, (uint64_t)b + 1);
    const int64_t tile = (int64_t)8 << (bits >> 32) % 4;
    const int64_t n[6] = {
        most,
        most / 2,
        0,
        (int64_t)(bits % (uint64_t)(most + 1)),
        tile + 1 < most ? tile + 1 : most,
        most ? 1 : 0,
    };
    return n[(first + b) % 6];
}

/* The same, and some that a kernel must clamp. */
static void fill_lens(int32_t *lens, int64_t batch, uint64_t seed, int stream, int64_t most,
                      const input_how *how)
{
    for (int64_t b = 0; b < batch; b++) {
        const uint64_t bits = random_bits(seed, (uint64_t)stream, ~(uint64_t)b);
        const int32_t wild[4] = { INT32_MAX, -5, INT32_MIN,
                                  (int32_t)(most < INT32_MAX - 3 ? most + 3 : INT32_MAX) };
        const bool odd = how->wild_lists && !how->full && bits % 4 == 3;

        lens[b] = odd ? wild[bits >> 2 & 3]
                      : (int32_t)(how->full ? most : length_of(seed, stream, b, most));
    }
}

static void fill_offsets(inputs *in, uint64_t seed)
{
    const int64_t lq = in->desc.len_q, lk = in->desc.len_kv;
    const bool slopes = in->desc.use & ATTN_USE_ALIBI; /* want distances of some size */
    const int64_t n[8] = { 0, lk - lq, -3,     lk / 2, slopes ? 7 : INT32_MAX,
                           5, lk + 9,  -lq / 2 };

    for (int64_t b = 0; b < in->desc.batch; b++) {
        const uint64_t bits = random_bits(seed, STREAM_OFFSET, (uint64_t)b);
        in->offsets[b] = (int32_t)n[bits % 8];
    }
}

/* Boundaries of sequences of 0 .. most tokens, with tokens that are nobody's before the
 * first and after the last. `wild`: one that must be clamped, at an end, where no two
 * sequences come to share a token. Returns the number of tokens. */
static int64_t fill_cu(int32_t *cu, int64_t batch, uint64_t seed, int stream, int64_t most,
                       const input_how *how)
{
    const uint64_t bits = random_bits(seed, (uint64_t)stream, ~(uint64_t)0);
    const int way = how->wild_lists && batch ? (int)((bits >> 8) % 6) : 0;
    int64_t at = how->full || way == 1 ? 0 : (int64_t)(bits % 4);
    int64_t behind = how->full ? 0 : (int64_t)(bits >> 16) % 6;

    cu[0] = (int32_t)at;
    for (int64_t b = 0; b < batch; b++) {
        at += how->full ? most : length_of(seed, stream, b, most);
        cu[b + 1] = (int32_t)at;
    }
    switch (way) {
    case 1: cu[0] = -4; break; /* before the first token */
    case 2:                    /* after the last one     */
        cu[batch] = bits & 1 << 5 ? INT32_MAX : (int32_t)at + 3;
        behind = 0;
        break;
    case 3: /* descending: the last sequence is empty */
        at = cu[batch - 1];
        cu[batch] = bits & 1 << 5 ? -1 : (int32_t)at - 1;
        break;
    case 4: /* longer than planned */
        at = cu[batch - 1] + most + 2;
        cu[batch] = (int32_t)at;
        break;
    default: break;
    }
    return at + behind;
}

/* Swaps pages so that a block that batch b needs lies on page `wanted`. */
static void move_block(const inputs *in, int32_t *page, int64_t b, uint64_t bits,
                       int64_t wanted)
{
    const visible_batch x = visible_batch_of(in, b);
    const int64_t needed = (x.keys + in->desc.page_size - 1) / in->desc.page_size;
    int64_t from = 0, to;

    if (!needed)
        return;
    to = b * in->blocks + (int64_t)(bits % (uint64_t)needed);
    while (page[from] != wanted)
        from++;
    page[from] = page[to];
    page[to] = (int32_t)wanted;
}

/* Pages in random order; `wild`: a block that is needed lies on the first, and one on the
 * last. */
static int32_t *shuffle_pages(const inputs *in, uint64_t seed, bool wild)
{
    const uint64_t bits = random_bits(seed, STREAM_PAGE, 0);
    const int64_t batch = in->desc.batch;
    int32_t *page = vector(in->pages);

    for (int64_t i = 0; page && i < in->pages; i++) {
        const uint64_t any = random_bits(seed, STREAM_PAGE, (uint64_t)i + 1);
        const int64_t at = (int64_t)(any % (uint64_t)(i + 1));

        page[i] = page[at];
        page[at] = (int32_t)i;
    }
    for (int64_t n = 0; page && wild && n < batch; n++) {
        const int64_t b = (n + (int64_t)(bits >> 40)) % batch;
        move_block(in, page, b, bits >> 8, n % 2 ? in->pages - 1 : 0);
    }
    return page;
}

/* Every block of every batch has a page of its own; two pages are nobody's. Entries past
 * those that a batch needs hold anything. `wild`: the blocks on the first and the last
 * page are named by numbers that clamp to these pages. */
static bool fill_table(inputs *in, uint64_t seed, const input_how *how)
{
    const int64_t n = in->desc.batch * in->blocks, size = in->desc.page_size;
    int32_t *page = shuffle_pages(in, seed, how->wild_lists);

    if (!page)
        return false;
    for (int64_t i = 0; i < n; i++) {
        const visible_batch x = visible_batch_of(in, i / in->blocks);
        const uint64_t bits = random_bits(seed, STREAM_PAGE, ~(uint64_t)i);
        const int32_t any[4] = { -1, INT32_MAX, INT32_MIN, (int32_t)in->pages };

        in->table[i] = page[i];
        if (i % in->blocks * size >= x.keys && !how->full)
            in->table[i] = any[bits % 4];
        else if (how->wild_lists && page[i] == 0)
            in->table[i] = bits & 1 ? -7 : INT32_MIN;
        else if (how->wild_lists && page[i] == in->pages - 1)
            in->table[i] = bits & 1 ? (int32_t)in->pages : INT32_MAX;
    }
    free(page);
    return true;
}

bool inputs_make_lists(inputs *in, const input_how *how, uint64_t seed)
{
    const attn_softmax_desc *d = &in->desc;
    const struct {
        uint32_t bit;
        int32_t **to;
        int64_t n;
    } want[] = {
        { ATTN_USE_LENS_KV, &in->lens, d->batch },
        { ATTN_USE_LENS_Q, &in->lens_q, d->batch },
        { ATTN_USE_OFFSETS, &in->offsets, d->batch },
        { ATTN_USE_PACKED_Q, &in->cu_q, d->batch + 1 },
        { ATTN_USE_PACKED_K, &in->cu_k, d->batch + 1 },
    };

    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        if (d->use & want[i].bit && !(*want[i].to = vector(want[i].n)))
            return false;
    if (in->lens)
        fill_lens(in->lens, d->batch, seed, STREAM_LEN, d->len_kv, how);
    if (in->lens_q)
        fill_lens(in->lens_q, d->batch, seed, STREAM_LEN_Q, d->len_q, how);
    if (in->offsets)
        fill_offsets(in, seed);
    if (in->cu_q)
        in->tokens_q = fill_cu(in->cu_q, d->batch, seed, STREAM_CU_Q, d->len_q, how);
    if (in->cu_k)
        in->tokens_k = fill_cu(in->cu_k, d->batch, seed, STREAM_CU_K, d->len_kv, how);
    if (!(d->use & ATTN_USE_PAGES))
        return true;
    in->blocks = (d->len_kv + d->page_size - 1) / d->page_size;
    in->pages = d->batch * in->blocks + (how->full ? 0 : 2);
    in->table = vector(d->batch * in->blocks);
    return in->table && fill_table(in, seed, how);
}
