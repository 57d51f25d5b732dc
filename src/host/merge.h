/* SPDX-License-Identifier: MIT */
/* host/merge.h: merging of partial results on the processor. */
#ifndef ATTN_HOST_MERGE_H
#define ATTN_HOST_MERGE_H

#include <attn/merge.h>

/* All checked. 0 threads: what OpenMP says. */
void attn_host_merge(const attn_merge_args *args, int threads);

#endif
