/* SPDX-License-Identifier: MIT */
/* core/size.h: arithmetic on sizes that cannot overflow unseen. */
#ifndef ATTN_CORE_SIZE_H
#define ATTN_CORE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* true if the result fits; *out is written only then. */
static inline bool attn_add(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    return !__builtin_add_overflow(a, b, &r) && (*out = r, true);
}

static inline bool attn_mul(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    return !__builtin_mul_overflow(a, b, &r) && (*out = r, true);
}

static inline int64_t attn_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t attn_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* n >= 0, unit >= 1. */
static inline int64_t attn_ceil_div(int64_t n, int64_t unit) { return n / unit + (n % unit != 0); }
static inline int64_t attn_round_up(int64_t n, int64_t unit) { return attn_ceil_div(n, unit) * unit; }
static inline int64_t attn_round_down(int64_t n, int64_t unit) { return n / unit * unit; }

/* Copies a caller's struct of `from_size` bytes into ours of `to_size`. A
 * shorter one, at least `least` bytes, is filled up with zeros; a longer one is
 * taken only if all that we do not know of is zero. */
bool attn_struct_copy(void *to, size_t to_size, const void *from, size_t from_size,
                      size_t least);

#endif
