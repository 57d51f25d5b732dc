/* SPDX-License-Identifier: MIT */
/* backend/cuda/linear.c: the parameters of the kernels of linear attention. */
#include "backend/cuda/linear.h"

#include "backend/rounds.h"

/* A tensor that was left out is all zero. */
#define VIEW(name)                              \
    do {                                        \
        a->name = t->name.data;                 \
        a->name##_offset = t->name.offset;      \
        a->name##_stride_b = t->name.stride[0]; \
        a->name##_stride_h = t->name.stride[1]; \
        a->name##_stride_l = t->name.stride[2]; \
        a->name##_stride_d = t->name.stride[3]; \
    } while (0)

static void fill_tensors(attn_linear_kparams *a, const attn_args *t)
{
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
    VIEW(grad_q);
    VIEW(grad_k);
    VIEW(grad_v);
    VIEW(grad_state_out);
    VIEW(grad_z_out);
    VIEW(grad_state_in);
    VIEW(grad_z_in);
    a->has = (attn_is_there(&t->grad_o) ? LHAS_GRAD_O : 0) |
             (attn_is_there(&t->grad_k) ? LHAS_GRAD_K : 0) |
             (attn_is_there(&t->grad_v) ? LHAS_GRAD_V : 0) |
             (attn_is_there(&t->grad_state_out) ? LHAS_GRAD_STATE_OUT : 0) |
             (attn_is_there(&t->grad_z_out) ? LHAS_GRAD_Z_OUT : 0) |
             (attn_is_there(&t->grad_state_in) ? LHAS_GRAD_STATE_IN : 0) |
             (attn_is_there(&t->grad_z_in) ? LHAS_GRAD_Z_IN : 0);
    a->lens_kv = t->lens_kv.data;
    a->lens_kv_offset = t->lens_kv.offset;
    a->lens_kv_stride_b = t->lens_kv.stride[0];
    a->status = t->status.data;
    a->status_offset = t->status.offset;
    a->work = t->workspace;
}

/* TYPE_ of params.h. */
static int32_t type_of(const attn_tensor *t)
{
    return attn_is_there(t) ? (int32_t)(t->type - ATTN_F32) : TYPE_F32;
}

void attn_cu_linear_fill(attn_linear_kparams *a, const attn_kernel *k,
                         const attn_step *step, const attn_call *call)
{
    const attn_args *t = call->args;

    *a = (attn_linear_kparams){
        .features = k->features,
        .decay_type = type_of(&t->decay),
        .beta_type = type_of(&t->beta),
        .d = k->d,
        .dv = k->dv,
        .batch = (int32_t)call->batch,
        .heads_q = (int32_t)call->heads_q,
        .heads_kv = (int32_t)call->heads_kv,
        .group = (int32_t)(call->heads_kv ? call->heads_q / call->heads_kv : 1),
        .len_q = (int32_t)call->len_q,
        .len_kv = (int32_t)call->len_kv,
        .piece = (int32_t)step->piece,
        .pieces = (int32_t)attn_segments_of(step, call),
        .piece_q = (int32_t)step->piece_q,
        .pieces_q = (int32_t)attn_segments_q_of(step, call),
        .slots = (int32_t)attn_slots_of(step, call),
        .slots_at = step->row_floats * call->batch * call->heads_q * call->len_q,
        .want_o = attn_is_there(&t->o),
        .want_den = attn_is_there(&t->den),
        .want_state = attn_is_there(&t->state_out),
        .want_z = attn_is_there(&t->z_out),
        .want_status = attn_is_there(&t->status),
        .sum_scale = call->sum_scale,
        .sum_eps = call->sum_eps,
        .sum_unit = call->sum_unit,
        .scale = call->scale,
    };
    fill_tensors(a, t);
}
