/* SPDX-License-Identifier: MIT */
/* backend/opencl/linear.c: the parameters of the kernels of linear attention. */
#include "backend/opencl/linear.h"

#include <string.h>

#include "backend/rounds.h"
#include "common/params.h"

typedef cl_mem c_IN, c_OUT, c_U8, c_I32, c_F32, c_WORD, c_FLOATS;
typedef cl_long c_LONG;
typedef cl_int c_INT;
typedef cl_float c_FLOAT, c_LAST;

/* A field for each name in the two lists. */
typedef struct arguments {
#define FIELD(KIND, name) c_##KIND name;
    LINEAR_PARAMS(FIELD) LINEAR_FWD_OWN(FIELD) LINEAR_BWD_OWN(FIELD) c_LAST scale, sum_unit;
#undef FIELD
} arguments;

_Static_assert(sizeof(arguments) <= sizeof(attn_cl_linear), "there is room for them");

#define ROW(KIND, name) { #name, offsetof(arguments, name), sizeof(c_##KIND) },
static const attn_cl_param fwd_params[] = { LINEAR_FWD_PARAMS(ROW) };
static const attn_cl_param bwd_params[] = { LINEAR_BWD_PARAMS(ROW) };
#undef ROW

#define BYTES(KIND, name) +sizeof(c_##KIND)
_Static_assert(LINEAR_BWD_PARAMS(BYTES) <= 1024, "no device must take more");
#undef BYTES

bool attn_cl_is_linear(const char *kernel)
{
    return !strncmp(kernel, "linear_", 7);
}

const attn_cl_param *attn_cl_linear_params(const char *kernel, cl_uint *n)
{
    const bool backward = !strncmp(kernel, "linear_bwd_", 11);

    *n = backward ? sizeof bwd_params / sizeof bwd_params[0]
                  : sizeof fwd_params / sizeof fwd_params[0];
    return backward ? bwd_params : fwd_params;
}

/* Any buffer of the call; not all are empty, for there is something to launch. */
static cl_mem find_spare(const attn_args *t)
{
    void *const all[] = {
        t->q.data,      t->o.data,      t->state_out.data, t->z_out.data,
        t->den.data,    t->grad_q.data, t->grad_k.data,    t->grad_v.data,
        t->grad_o.data, t->workspace,   t->grad_z_in.data, t->grad_state_in.data,
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i])
            return all[i];
    return NULL;
}

static cl_int has_of(const attn_args *t)
{
    const struct {
        const attn_tensor *tensor;
        cl_int bit;
    } all[] = {
        { &t->status, LHAS_STATUS },
        { &t->o, LHAS_O },
        { &t->den, LHAS_DEN },
        { &t->state_out, LHAS_STATE_OUT },
        { &t->z_out, LHAS_Z_OUT },
        { &t->grad_o, LHAS_GRAD_O },
        { &t->grad_k, LHAS_GRAD_K },
        { &t->grad_v, LHAS_GRAD_V },
        { &t->grad_state_out, LHAS_GRAD_STATE_OUT },
        { &t->grad_z_out, LHAS_GRAD_Z_OUT },
        { &t->grad_state_in, LHAS_GRAD_STATE_IN },
        { &t->grad_z_in, LHAS_GRAD_Z_IN },
    };
    cl_int has = 0;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (attn_is_there(all[i].tensor))
            has |= all[i].bit;
    return has;
}

#define VIEW(name)                                                                \
    do {                                                                          \
        a->name = attn_is_there(&t->name) && t->name.data ? t->name.data : spare; \
        a->name##_offset = t->name.offset;                                        \
        a->name##_stride_b = t->name.stride[0];                                   \
        a->name##_stride_h = t->name.stride[1];                                   \
        a->name##_stride_l = t->name.stride[2];                                   \
        a->name##_stride_d = t->name.stride[3];                                   \
    } while (0)

void attn_cl_linear_fill(attn_cl_linear *to, const attn_step *step, const attn_call *call)
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
    VIEW(grad_o);
    VIEW(grad_state_out);
    VIEW(grad_z_out);
    VIEW(grad_q);
    VIEW(grad_k);
    VIEW(grad_v);
    VIEW(grad_state_in);
    VIEW(grad_z_in);
    a->lens_kv = attn_is_there(&t->lens_kv) && t->lens_kv.data ? t->lens_kv.data : spare;
    a->lens_kv_offset = t->lens_kv.offset;
    a->lens_kv_stride_b = t->lens_kv.stride[0];
    a->status = attn_is_there(&t->status) ? t->status.data : spare;
    a->status_offset = t->status.offset;
    a->work = t->workspace ? t->workspace : spare;
    a->batch = (cl_int)call->batch;
    a->heads_q = (cl_int)call->heads_q;
    a->heads_kv = (cl_int)call->heads_kv;
    a->len_q = (cl_int)call->len_q;
    a->len_kv = (cl_int)call->len_kv;
    a->piece = (cl_int)step->piece;
    a->merges = (cl_int)step->merges;
    a->has = has_of(t);
    a->scale = call->scale;
    a->sum_scale = call->sum_scale;
    a->sum_eps = call->sum_eps;
    a->sum_unit = call->sum_unit;
}
