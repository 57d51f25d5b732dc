/* SPDX-License-Identifier: MIT */
/* backend/cuda/maps.c: tensor maps, for kernels that have them copied by the
 * copy engine of compute capability 9.0. Made on the host, without the device. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/maps.h"
#include "backend/rounds.h"
#include "core/size.h"

_Static_assert(sizeof(attn_map) == sizeof(CUtensorMap), "a map is the driver's");

enum { COLUMNS = 64 }; /* of a box: the 128 bytes within which chunks are exchanged */

/* The rows of a tensor that are there: of the call's longest batch, or of all. */
static bool encode(const attn_device *dev, const attn_tensor *t, int64_t columns,
                   int64_t rows, int64_t heads, int64_t batch, int64_t box_rows,
                   attn_map *out)
{
    const int64_t bytes = (int64_t)attn_type_bytes(t->type);
    const cuuint64_t sizes[4] = { (cuuint64_t)columns, (cuuint64_t)rows, (cuuint64_t)heads,
                                  (cuuint64_t)batch };
    const int64_t stride[3] = { t->stride[2], t->stride[1], t->stride[0] };
    const cuuint32_t box[4] = { COLUMNS, (cuuint32_t)box_rows, 1, 1 };
    const cuuint32_t ones[4] = { 1, 1, 1, 1 };
    cuuint64_t strides[3];

    if (!t->data)
        return false;
    for (int i = 0; i < 3; i++) {
        const int64_t one = sizes[i + 1] > 1 ? stride[i] : attn_ceil_div(columns, 8) * 8;

        if (!sizes[i + 1] || one <= 0 || one >= (INT64_C(1) << 40) / bytes)
            return false;
        strides[i] = (cuuint64_t)(one * bytes);
    }
    return dev->cu->cuTensorMapEncodeTiled(
               (CUtensorMap *)out->word,
               t->type == ATTN_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
               4, (char *)t->data + t->offset * bytes, sizes, strides, box, ones,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

void attn_cu_make_maps(const attn_device *dev, const attn_step *step, const attn_call *call,
                       attn_maps *out)
{
    const attn_args *a = call->args;
    const bool packed_q = a->cu_q.type != ATTN_TYPE_NONE;
    const bool packed_k = a->cu_k.type != ATTN_TYPE_NONE;
    const int64_t keys = packed_k ? call->tokens_k : call->len_kv;
    const int64_t queries = packed_q ? call->tokens_q : call->len_q;
    const int64_t batch_k = packed_k ? 1 : call->batch;
    const int64_t batch_q = packed_q ? 1 : call->batch;

    memset(out, 0, sizeof *out);
    out->there =
        a->block_table.type == ATTN_TYPE_NONE &&
        encode(dev, &a->q, step->d, queries, call->heads_q, batch_q, step->box_q,
               &out->q) &&
        (!attn_is_there(&a->grad_o) ||
         encode(dev, &a->grad_o, step->dv, queries, call->heads_q, batch_q, step->box_q,
                &out->o)) &&
        encode(dev, &a->k, step->d, keys, call->heads_kv, batch_k, step->tile_k, &out->k) &&
        encode(dev, &a->v, step->dv, keys, call->heads_kv, batch_k, step->tile_k, &out->v);
}
