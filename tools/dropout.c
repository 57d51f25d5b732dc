/* SPDX-License-Identifier: MIT */
/* tools/dropout.c: Philox4x32-10 after the paper's figure, and the pairs that it keeps. */
#include "dropout.h"

#include <math.h>

#include "visible.h"

void dropout_philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (uint32_t round = 0; round < 10; round++) {
        const uint64_t left = UINT64_C(0xd2511f53) * c[0];
        const uint64_t right = UINT64_C(0xcd9e8d57) * c[2];
        const uint32_t next[4] = {
            (uint32_t)(right >> 32) ^ c[1] ^ (k0 + round * 0x9e3779b9u),
            (uint32_t)right,
            (uint32_t)(left >> 32) ^ c[3] ^ (k1 + round * 0xbb67ae85u),
            (uint32_t)left,
        };

        for (int i = 0; i < 4; i++)
            c[i] = next[i];
    }
}

double dropout_factor(const inputs *in, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const double p = (double)visible_dropout(&in->desc);
    const uint64_t seed = in->dropout_seed, offset = in->dropout_offset;
    uint32_t c[4] = { (uint32_t)(j >> 2), (uint32_t)i, (uint32_t)(b * in->desc.heads_q + h),
                      (uint32_t)offset };

    if (p <= 0)
        return 1;
    dropout_philox(c, (uint32_t)seed, (uint32_t)((seed ^ offset) >> 32));
    return (double)c[j & 3] >= floor(p * 4294967296.0) ? 1 / (1 - p) : 0;
}
