/* SPDX-License-Identifier: MIT */
/* backend/list.h: the back ends of this build, in the order that they are
 * listed. One row a back end; one that was not built has its absent.c. */
#ifndef ATTN_BACKEND_LIST_H
#define ATTN_BACKEND_LIST_H

#include "backend/backend.h"

#define ATTN_BACKEND_LIST(X) \
    X(cuda)                  \
    X(opencl)                \
    X(host)

#define X(name) extern const attn_backend attn_backend_##name;
ATTN_BACKEND_LIST(X)
#undef X

#endif
