/* SPDX-License-Identifier: MIT */
/* core/philox.h: Philox4x32-10, a counter-based generator: 128 bits of a counter and 64 of a
 * key give four random words, without a state; and what dropout makes of a caller's numbers.
 *
 * J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3"
 * (2011). */
#ifndef ATTN_CORE_PHILOX_H
#define ATTN_CORE_PHILOX_H

#include <stdint.h>

/* The multipliers of words 0 and 2, and what is added to the key after each round. */
#define ATTN_PHILOX_M0 0xd2511f53u
#define ATTN_PHILOX_M1 0xcd9e8d57u
#define ATTN_PHILOX_W0 0x9e3779b9u
#define ATTN_PHILOX_W1 0xbb67ae85u

enum { ATTN_PHILOX_ROUNDS = 10 };

static inline void attn_philox(uint32_t out[4], const uint32_t counter[4],
                               const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int i = 0; i < ATTN_PHILOX_ROUNDS; i++) {
        const uint64_t a = (uint64_t)ATTN_PHILOX_M0 * c0;
        const uint64_t b = (uint64_t)ATTN_PHILOX_M1 * c2;

        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += ATTN_PHILOX_W0;
        k1 += ATTN_PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The key, and the last word of the counter. */
static inline void attn_dropout_counter(uint64_t seed, uint64_t offset, uint32_t key[2],
                                        uint32_t *last)
{
    key[0] = (uint32_t)seed;
    key[1] = (uint32_t)(seed >> 32) ^ (uint32_t)(offset >> 32);
    *last = (uint32_t)offset;
}

/* Words less than this, a part p of all, are dropped; what is kept gets the factor. With
 * p = 1 that is 0, for one word in 2^32 is not less. */
static inline uint32_t attn_dropout_below(double p)
{
    return p < 1 ? (uint32_t)(p * 4294967296.0) : UINT32_MAX;
}

static inline double attn_dropout_factor(double p)
{
    return p < 1 ? 1 / (1 - p) : 0;
}

#endif
