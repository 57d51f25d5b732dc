/* SPDX-License-Identifier: MIT */
/* backend/cuda/linear.c: the parameters of the kernels of linear attention. */
#include "backend/cuda/linear.h"

#include "backend/rounds.h"

/* A tensor that was left out is all zero. */
#define VIEW_AS(name, of)                     \
    do {                                      \
        a->name = t->of.data;                 \
        a->name##_offset = t->of.offset;      \
        a->name##_stride_b = t->of.stride[0]; \
        a->name##_stride_h = t->of.stride[1]; \
        a->name##_stride_l = t->of.stride[2]; \
        a->name##_stride_d = t->of.stride[3]; \
    } while (0)
#define VIEW(name) VIEW_AS(name, name)

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
    VIEW_AS(of_q, q);
    VIEW_AS(of_k, k);
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

/* Rows of d elements one after another, in the workspace from float `at` on. */
#define COPY(name, heads, at)                            \
    do {                                                 \
        a->name = a->work + (at);                        \
        a->name##_offset = 0;                            \
        a->name##_stride_h = (int64_t)a->len_q * a->d;   \
        a->name##_stride_b = (heads)*a->name##_stride_h; \
        a->name##_stride_l = a->d;                       \
        a->name##_stride_d = 1;                          \
    } while (0)

/* q and k are where cuda_kernels/linear/bwd_phi.cu puts them, and states behind them. */
static void use_copies(attn_linear_kparams *a, attn_type type)
{
    const int64_t row = a->d * (int64_t)attn_type_bytes(type) / (int64_t)sizeof(float);
    const int64_t rows = (int64_t)a->batch * a->len_q;

    COPY(q, a->heads_q, a->slots_at);
    a->slots_at += rows * a->heads_q * row;
    if (a->features & (LINEAR_ELU1 | LINEAR_RELU)) {
        COPY(k, a->heads_kv, a->slots_at);
        a->slots_at += rows * a->heads_kv * row;
    }
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
        .lead = (int32_t)(step->lead ? step->lead : step->piece),
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
    if (step->copied)
        use_copies(a, step->type);
}
