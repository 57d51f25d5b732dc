/* SPDX-License-Identifier: MIT */
/* tools/library.h: finds a vendor's library at run time. */
#ifndef ATTN_TOOLS_LIBRARY_H
#define ATTN_TOOLS_LIBRARY_H

#include <stddef.h>

/* Opens the first of its usual names that is there, or what a variable of the environment
 * holds: its full name, or the folder with one of them. NULL: `absent` says why not. */
void *library_open(const char *variable, const char *const usual[], char *absent,
                   size_t cap);

#endif
