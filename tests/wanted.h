/* SPDX-License-Identifier: MIT */
/* tests/wanted.h: the devices and variants that a run of the faults is for. */
#ifndef ATTN_TESTS_WANTED_H
#define ATTN_TESTS_WANTED_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <attn/device.h>

/* One of the names with commas between; of none, all. */
static inline bool among(const char *names, const char *name)
{
    const size_t n = strlen(name);

    for (const char *at = names; at && (at = strstr(at, name)); at++)
        if ((at == names || at[-1] == ',') && (at[n] == ',' || !at[n]))
            return true;
    return !names;
}

/* FAULT_DEVICES: the only ones; FAULT_VARIANTS: the only ones on devices with a compiler. */
static inline bool wanted(const attn_device_info *device, const char *variant)
{
    return among(getenv("FAULT_DEVICES"), device->selector) &&
           (device->kind == ATTN_DEVICE_HOST || among(getenv("FAULT_VARIANTS"), variant));
}

#endif
