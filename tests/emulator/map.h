// SPDX-License-Identifier: MIT
// emulator/map.h: what the emulated driver writes into a tensor map, and copies read.
#pragma once
#include <stdint.h>

struct emulated_map {
    const char *x;
    int64_t size[4], stride[3]; // elements, of 2 bytes; bytes
    int32_t box[2];
};
