/* SPDX-License-Identifier: MIT */
/* common/maps.h: tensor maps, which tell the copy engine of compute capability 9.0 how tensors
 * lie in memory. src/backend/cuda makes them anew for each launch (CUDA driver API,
 * "Tensor Map Object Management"). */
#ifndef ATTN_COMMON_MAPS_H
#define ATTN_COMMON_MAPS_H

#include <stdint.h>

#ifdef __cplusplus
#define MAPS_ALIGNED alignas(64)
#else
#define MAPS_ALIGNED _Alignas(64)
#endif

/* A CUtensorMap. */
typedef struct attn_map {
    MAPS_ALIGNED uint64_t word[16];
} attn_map;

/* Four dimensions: columns, rows, heads, batch; boxes of 64 columns and of the rows of a
 * tile. o: the gradient of O, with Q's boxes, where there is one. */
typedef struct attn_maps {
    attn_map q, k, v, o;
    int32_t there; /* 0: the strides are none that a map can have                   */
} attn_maps;

#endif
