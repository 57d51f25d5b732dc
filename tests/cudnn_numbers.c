/* SPDX-License-Identifier: MIT */
/* tests/cudnn_numbers.c: our numbers of cuDNN's API are those of its own header, if this
 * machine has that. Compiled is passed. */
#include "backend/cuda/cudnn_numbers.h"

#include <stdio.h>

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>

#define X(name, value) _Static_assert((int)name == (value), #name);
ATTN_CUDNN_NUMBERS(X)
#undef X

int main(void)
{
    printf("as in the header of cuDNN %d.%d\n", CUDNN_MAJOR, CUDNN_MINOR);
    return 0;
}
#else
int main(void)
{
    printf("cudnn_graph.h is not here\n");
    return 77;
}
#endif
