// SPDX-License-Identifier: MIT
// softmax/gather.cuh: rows of any layout, element by element, as they would come 16 bytes at
// a time. TYPE is the image's.
#pragma once
#include "common/types.cuh"

// Elements c and c + 1 of a row of a 16-bit type; past its depth they are 0.
DEVICE uint32_t gather_pair(const void *x, int64_t row, int64_t stride, int c, int depth)
{
    const uint16_t *const u = (const uint16_t *)x + row;
    const int last = max(depth, 1) - 1;
    const uint32_t low = u[min(c, last) * stride], high = u[min(c + 1, last) * stride];

    return (c < depth ? low : 0) | (c + 1 < depth ? high << 16 : 0);
}

// 16 bytes of a row, element by element; what is past its depth is 0 and not read. Every
// load is made, of another element if need be, so that none waits for the one before.
DEVICE float4 gather(const void *x, int64_t row, int64_t stride, int c, int depth)
{
    float word[4];

    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (TYPE == TYPE_F32) {
            const int at = c + i;
            const float f = ((const float *)x)[row + min(at, max(depth, 1) - 1) * stride];

            word[i] = at < depth ? f : 0.0f;
        } else {
            word[i] = __uint_as_float(gather_pair(x, row, stride, c + 2 * i, depth));
        }
    }
    return make_float4(word[0], word[1], word[2], word[3]);
}
