/* SPDX-License-Identifier: MIT */
/* core/size.c: descriptors of other versions of the library. */
#include "core/size.h"

#include <string.h>

bool attn_struct_copy(void *to, size_t to_size, const void *from, size_t from_size,
                      size_t least)
{
    const unsigned char *bytes = from;

    if (from_size < least)
        return false;
    for (size_t i = to_size; i < from_size; i++)
        if (bytes[i])
            return false;
    if (from_size > to_size)
        from_size = to_size;
    memcpy(to, from, from_size);
    memset((unsigned char *)to + from_size, 0, to_size - from_size);
    return true;
}
