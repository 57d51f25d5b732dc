/* SPDX-License-Identifier: MIT */
/* host/level.c: which of the compiled instruction levels this processor runs. */
#include "host/softmax.h"

#include <stdbool.h>
#include <string.h>

#if defined __x86_64__ || defined __i386__
#include <cpuid.h>
#endif

#include "host/level.h"
#include "host/linear_level.h"

static bool always(void)
{
    return true;
}

#if defined ATTN_HAVE_AVX2 || defined ATTN_HAVE_AVX512
/* __builtin_cpu_supports() asks for the operating system's part, too; not every
 * compiler knows its word for F16C (leaf 1). */
static bool runs_avx2(void)
{
    unsigned a, b, c, d;

    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

#ifdef ATTN_HAVE_AVX512
static bool runs_avx512(void)
{
    return runs_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
#endif

#define LEVEL(name, lanes, nv)                                                        \
    {                                                                                 \
#name, lanes, (nv) * (lanes), attn_host_softmax_fwd_tile_##name,              \
            attn_host_softmax_fwd_split_##name, attn_host_softmax_bwd_tile_##name,    \
            attn_host_linear_fwd_chunk_##name, attn_host_linear_fwd_recurrent_##name, \
            attn_host_linear_bwd_chunk_##name                                         \
    }

/* Worst first, as the header says; lanes and vectors as in meson.build. */
static const struct {
    bool (*runs)(void);
    attn_host_level level;
} levels[] = {
#ifdef ATTN_HAVE_GENERIC
    { always, LEVEL(generic, 4, 2) },
#endif
#ifdef ATTN_HAVE_SSE2
    { always, LEVEL(sse2, 4, 2) },
#endif
#ifdef ATTN_HAVE_NEON
    { always, LEVEL(neon, 4, 3) },
#endif
#ifdef ATTN_HAVE_AVX2
    { runs_avx2, LEVEL(avx2, 8, 3) },
#endif
#ifdef ATTN_HAVE_AVX512
    { runs_avx512, LEVEL(avx512, 16, 3) },
#endif
};

const attn_host_level *attn_host_level_find(const char *limit)
{
    for (size_t n = sizeof levels / sizeof levels[0]; n-- > 0;)
        if ((!limit || strcmp(levels[n].level.name, limit) == 0) && levels[n].runs())
            return &levels[n].level;
    return NULL;
}
