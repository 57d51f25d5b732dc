/* SPDX-License-Identifier: MIT */
/* backend/opencl/linear.c: the parameters of the kernels of linear attention. */
#include "backend/opencl/linear.h"

#include "common/params.h"

typedef cl_mem c_IN, c_OUT, c_U8, c_I32, c_F32, c_WORD, c_FLOATS;
typedef cl_long c_LONG;
typedef cl_int c_INT;
typedef cl_float c_FLOAT, c_LAST;

typedef struct arguments {
#define FIELD(KIND, name) c_##KIND name;
    LINEAR_FWD_PARAMS(FIELD)
#undef FIELD
} arguments;

_Static_assert(sizeof(arguments) <= sizeof(attn_cl_linear), "there is room for them");

#define ROW(KIND, name) { #name, offsetof(arguments, name), sizeof(c_##KIND) },
const attn_cl_param attn_cl_linear_params[] = { LINEAR_FWD_PARAMS(ROW) };
#undef ROW

const cl_uint attn_cl_n_linear_params =
    sizeof attn_cl_linear_params / sizeof attn_cl_linear_params[0];

static bool is_there(const attn_tensor *t)
{
    return t->type != ATTN_TYPE_NONE;
}

/* Any buffer of the call; not all are empty, for there is something to launch. */
static cl_mem find_spare(const attn_args *t)
{
    void *const all[] = { t->q.data,     t->o.data,   t->state_out.data,
                          t->z_out.data, t->den.data, t->workspace };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i])
            return all[i];
    return NULL;
}

#define VIEW(name)                                                           \
    do {                                                                     \
        a->name = is_there(&t->name) && t->name.data ? t->name.data : spare; \
        a->name##_offset = t->name.offset;                                   \
        a->name##_stride_b = t->name.stride[0];                              \
        a->name##_stride_h = t->name.stride[1];                              \
        a->name##_stride_l = t->name.stride[2];                              \
        a->name##_stride_d = t->name.stride[3];                              \
    } while (0)

void attn_cl_linear_fill(attn_cl_linear *to, const attn_call *call)
{
    const attn_args *t = call->args;
    const cl_mem spare = find_spare(t);
    arguments *a = (arguments *)(void *)to;

    VIEW(q);
    VIEW(k);
    VIEW(v);
    VIEW(o);
    VIEW(den);
    VIEW(state_in);
    VIEW(z_in);
    VIEW(state_out);
    VIEW(z_out);
    VIEW(decay);
    VIEW(beta);
    a->lens_kv = is_there(&t->lens_kv) && t->lens_kv.data ? t->lens_kv.data : spare;
    a->lens_kv_offset = t->lens_kv.offset;
    a->lens_kv_stride_b = t->lens_kv.stride[0];
    a->status = is_there(&t->status) ? t->status.data : spare;
    a->status_offset = t->status.offset;
    a->work = t->workspace ? t->workspace : spare;
    a->batch = (cl_int)call->batch;
    a->heads_q = (cl_int)call->heads_q;
    a->heads_kv = (cl_int)call->heads_kv;
    a->len_q = (cl_int)call->len_q;
    a->len_kv = (cl_int)call->len_kv;
    a->want_o = is_there(&t->o);
    a->want_den = is_there(&t->den);
    a->want_state = is_there(&t->state_out);
    a->want_z = is_there(&t->z_out);
    a->want_status = is_there(&t->status);
    a->eps = call->eps;
    a->scale = call->scale;
}
