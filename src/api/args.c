/* SPDX-License-Identifier: MIT */
/* api/args.c: the tensors of a call: their list, what each must be, their extent. */
#include <string.h>

#include "api/context.h"
#include "core/size.h"
#include "core/status.h"

#define AT(field) offsetof(attn_args, field)

enum {
    SOFTMAX = 1 << ATTN_OP_SOFTMAX,
    LINEAR = 1 << ATTN_OP_LINEAR,
    BOTH = SOFTMAX | LINEAR,
    Z_IN = ATTN_FEAT_STATE_IN | ATTN_FEAT_NORMALIZE,
    Z_OUT = ATTN_FEAT_STATE_OUT | ATTN_FEAT_NORMALIZE
};

const attn_arg attn_arg_list[ATTN_ARGS] = {
    /* name, place, operations, features, layout, optional, output, index, forward, grad */
    { "q", AT(q), BOTH, 0, ATTN_TENSOR_Q, false, false, false, false, 0 },
    { "k", AT(k), BOTH, 0, ATTN_TENSOR_K, false, false, false, false, 0 },
    { "v", AT(v), BOTH, 0, ATTN_TENSOR_V, false, false, false, false, 0 },
    { "o", AT(o), BOTH, 0, ATTN_TENSOR_O, true, true, false, false, 0 },
    { "lse", AT(lse), SOFTMAX, ATTN_FEAT_LSE, -1, true, true, false, false, 0 },
    { "bias", AT(bias), SOFTMAX, ATTN_FEAT_BIAS, -1, false, false, false, false, 0 },
    { "mask", AT(mask), SOFTMAX, ATTN_FEAT_MASK, -1, false, false, false, false, 0 },
    { "alibi", AT(alibi), SOFTMAX, ATTN_FEAT_ALIBI, -1, false, false, false, false, 0 },
    { "sinks", AT(sinks), SOFTMAX, ATTN_FEAT_SINKS, -1, false, false, false, false, 0 },
    { "lens_q", AT(lens_q), SOFTMAX, ATTN_FEAT_LENS_Q, -1, false, false, true, false, 0 },
    { "lens_kv", AT(lens_kv), BOTH, ATTN_FEAT_LENS_KV, -1, false, false, true, false, 0 },
    { "offsets", AT(offsets), SOFTMAX, ATTN_FEAT_OFFSETS, -1, false, false, true, false,
      0 },
    { "cu_q", AT(cu_q), SOFTMAX, ATTN_FEAT_PACKED_Q, -1, false, false, true, false, 0 },
    { "cu_k", AT(cu_k), SOFTMAX, ATTN_FEAT_PACKED_K, -1, false, false, true, false, 0 },
    { "block_table", AT(block_table), SOFTMAX, ATTN_FEAT_PAGES, -1, false, false, true,
      false, 0 },
    { "status", AT(status), BOTH, 0, -1, true, true, false, false, 0 },
    { "grad_o", AT(grad_o), BOTH, 0, ATTN_TENSOR_GRAD_O, true, false, false, false,
      ATTN_ARG_GIVEN },
    { "grad_lse", AT(grad_lse), SOFTMAX, 0, -1, true, false, false, false, ATTN_ARG_GIVEN },
    { "grad_q", AT(grad_q), BOTH, 0, ATTN_TENSOR_GRAD_Q, true, true, false, false,
      ATTN_GRAD_Q },
    { "grad_k", AT(grad_k), BOTH, 0, ATTN_TENSOR_GRAD_K, true, true, false, false,
      ATTN_GRAD_K },
    { "grad_v", AT(grad_v), BOTH, 0, ATTN_TENSOR_GRAD_V, true, true, false, false,
      ATTN_GRAD_V },
    { "grad_bias", AT(grad_bias), SOFTMAX, 0, -1, true, true, false, false,
      ATTN_GRAD_BIAS },
    { "grad_sinks", AT(grad_sinks), SOFTMAX, 0, -1, true, true, false, false,
      ATTN_GRAD_SINKS },
    { "state_in", AT(state_in), LINEAR, ATTN_FEAT_STATE_IN, -1, false, false, false, false,
      0 },
    { "z_in", AT(z_in), LINEAR, Z_IN, -1, false, false, false, false, 0 },
    { "state_out", AT(state_out), LINEAR, ATTN_FEAT_STATE_OUT, -1, true, true, false, true,
      0 },
    { "z_out", AT(z_out), LINEAR, Z_OUT, -1, true, true, false, true, 0 },
    { "den", AT(den), LINEAR, ATTN_FEAT_DEN, -1, true, true, false, false, 0 },
    { "decay", AT(decay), LINEAR, ATTN_FEAT_DECAY, -1, false, false, false, false, 0 },
    { "beta", AT(beta), LINEAR, ATTN_FEAT_BETA, -1, false, false, false, false, 0 },
    { "grad_state_out", AT(grad_state_out), LINEAR, ATTN_FEAT_STATE_OUT, -1, true, false,
      false, false, ATTN_ARG_GIVEN },
    { "grad_z_out", AT(grad_z_out), LINEAR, Z_OUT, -1, true, false, false, false,
      ATTN_ARG_GIVEN },
    { "grad_state_in", AT(grad_state_in), LINEAR, 0, -1, true, true, false, false,
      ATTN_GRAD_STATE },
    { "grad_z_in", AT(grad_z_in), LINEAR, ATTN_FEAT_NORMALIZE, -1, true, true, false, false,
      ATTN_GRAD_STATE },
};

const char *attn_arg_reason(const attn_problem *p, int k)
{
    const attn_arg *arg = &attn_arg_list[k];
    const bool linear = p->op == ATTN_OP_LINEAR;
    const uint32_t lacks = arg->feature & ~p->features;

    if (!(arg->ops >> p->op & 1))
        return linear ? "softmax attention" : "linear attention";
    if (p->pass == ATTN_PASS_FWD && arg->grad)
        return linear ? "ATTN_LINEAR_GRAD" : "ATTN_USE_GRAD";
    if (p->pass == ATTN_PASS_BWD && (arg->at == AT(lse) || arg->at == AT(den)))
        return linear ? "ATTN_LINEAR_GRAD" : "ATTN_USE_GRAD";
    if (p->pass == ATTN_PASS_BWD && arg->forward)
        return "a forward pass";
    if (arg->grad && !(arg->grad & ATTN_ARG_GIVEN) && !(p->grad & arg->grad))
        return attn_grad_name(arg->grad);
    return attn_use_name(p->op, lacks ? lacks : arg->feature);
}

bool attn_args_ask(const attn_problem *p, const attn_args *args)
{
    for (int k = 0; k < ATTN_ARGS; k++) {
        if (attn_arg_is_output(p, k) && attn_arg_list[k].at != AT(status) &&
            attn_arg_given(args, k)->type != ATTN_TYPE_NONE)
            return true;
    }
    return false;
}

static void set(int64_t size[4], int64_t b, int64_t h, int64_t l, int64_t d)
{
    size[0] = b;
    size[1] = h;
    size[2] = l;
    size[3] = d;
}

void attn_arg_want(const attn_problem *p, const attn_args *args, const attn_extent *e,
                   int k, attn_type *type, int64_t size[4], uint32_t *broadcast)
{
    const bool packed_q = (p->features & ATTN_FEAT_PACKED_Q) != 0;
    const bool packed_k = (p->features & ATTN_FEAT_PACKED_K) != 0;
    const int64_t b_q = packed_q ? 1 : p->b, l_q = packed_q ? e->tokens_q : e->len_q;
    const int64_t b_k = packed_k ? 1 : p->b, l_k = packed_k ? e->tokens_k : e->len_kv;
    const size_t at = attn_arg_list[k].at;
    const int64_t dim_kv = at == AT(k) || at == AT(grad_k) ? p->d : p->dv;
    const int64_t dim_q = at == AT(q) || at == AT(grad_q) ? p->d : p->dv;

    *broadcast = 0;
    switch (at) {
    case AT(q):
    case AT(grad_q):
    case AT(grad_o):
    case AT(o): *type = p->type, set(size, b_q, p->hq, l_q, dim_q); return;
    case AT(grad_lse):
    case AT(lse): *type = ATTN_F32, set(size, b_q, p->hq, l_q, 1); return;
    case AT(k):
    case AT(grad_k):
    case AT(grad_v):
    case AT(v):
        *type = p->type;
        if (p->features & ATTN_FEAT_PAGES)
            set(size, e->pages, p->hkv, p->page_size, dim_kv);
        else
            set(size, b_k, p->hkv, l_k, dim_kv);
        return;
    case AT(bias):
    case AT(mask):
        *type = at == AT(mask) ? ATTN_BOOL : p->type_bias;
        *broadcast = 0xf;
        set(size, p->b, p->hq, e->len_q, e->len_kv);
        return;
    case AT(alibi): *type = ATTN_F32, *broadcast = 1, set(size, p->b, p->hq, 1, 1); return;
    case AT(grad_bias): /* as the bias was given */
        *type = ATTN_F32;
        set(size, args->bias.size[0], args->bias.size[1], args->bias.size[2],
            args->bias.size[3]);
        return;
    case AT(grad_sinks):
    case AT(sinks): *type = ATTN_F32, set(size, 1, p->hq, 1, 1); return;
    case AT(state_in):
    case AT(state_out):
    case AT(grad_state_in):
    case AT(grad_state_out): *type = ATTN_F32, set(size, p->b, p->hkv, p->d, p->dv); return;
    case AT(z_in):
    case AT(z_out):
    case AT(grad_z_in):
    case AT(grad_z_out): *type = ATTN_F32, set(size, p->b, p->hkv, p->d, 1); return;
    case AT(den): *type = ATTN_F32, set(size, p->b, p->hq, e->len_q, 1); return;
    case AT(decay):
        *type = p->type_decay, *broadcast = 0xf;
        set(size, p->b, p->hkv, e->len_kv, p->d);
        return;
    case AT(beta):
        *type = p->type_beta, *broadcast = 7;
        set(size, p->b, p->hkv, e->len_kv, 1);
        return;
    case AT(cu_q):
    case AT(cu_k): *type = ATTN_I32, set(size, p->b + 1, 1, 1, 1); return;
    case AT(block_table):
        *type = ATTN_I32, set(size, p->b, args->block_table.size[1], 1, 1);
        return;
    case AT(status): *type = ATTN_I32, set(size, 1, 1, 1, 1); return;
    default: *type = ATTN_I32, set(size, p->b, 1, 1, 1); return;
    }
}

#define RULE(cond, ...)                                      \
    do {                                                     \
        if (!(cond))                                         \
            return attn_fail(ATTN_ERR_INVALID, __VA_ARGS__); \
    } while (0)

attn_status attn_args_read(attn_args *args, const attn_args *from)
{
    RULE(from, "args is NULL");
    RULE(attn_struct_copy(args, sizeof *args, from, from->size, offsetof(attn_args, bias)),
         "args.size = %zu, want sizeof(attn_args) = %zu", from->size, sizeof *args);
    return ATTN_OK;
}

/* Keys that the pages of one batch hold. */
static attn_status pages_extent(const attn_problem *p, const attn_args *a, attn_extent *e)
{
    const int64_t blocks = a->block_table.size[1];
    int64_t keys;

    e->pages = a->k.size[0];
    RULE(e->pages >= 0 && e->pages <= INT32_MAX,
         "k.size[0] (pages) = %lld, want 0 .. 2^31 - 1", (long long)e->pages);
    RULE(blocks >= 0 && attn_mul(blocks, p->page_size, &keys),
         "block_table.size[1] = %lld, want 0 .. 2^31 - 1", (long long)blocks);
    e->len_kv = attn_min(p->lk, keys);
    return ATTN_OK;
}

attn_status attn_args_extent(const attn_problem *p, const attn_args *a, attn_extent *e)
{
    *e = (attn_extent){ .len_q = p->lq, .len_kv = p->lk };
    if (p->features & ATTN_FEAT_PACKED_Q) {
        e->tokens_q = a->q.size[2];
        RULE(e->tokens_q >= 0 && e->tokens_q <= INT32_MAX,
             "q.size[2] (tokens) = %lld, want 0 .. 2^31 - 1", (long long)e->tokens_q);
    } else {
        e->len_q = a->q.size[2];
        RULE(e->len_q >= 0 && e->len_q <= p->lq,
             "q.size[2] (L) = %lld, want 0 .. %lld as planned", (long long)e->len_q,
             (long long)p->lq);
    }
    if (p->features & ATTN_FEAT_PAGES)
        return pages_extent(p, a, e);
    if (p->features & ATTN_FEAT_PACKED_K) {
        e->tokens_k = a->k.size[2];
        RULE(e->tokens_k >= 0 && e->tokens_k <= INT32_MAX,
             "k.size[2] (tokens) = %lld, want 0 .. 2^31 - 1", (long long)e->tokens_k);
    } else {
        e->len_kv = a->k.size[2];
        RULE(e->len_kv >= 0 && e->len_kv <= p->lk,
             "k.size[2] (L) = %lld, want 0 .. %lld as planned", (long long)e->len_kv,
             (long long)p->lk);
    }
    return ATTN_OK;
}

/* Field by field: of a whole struct of this size gcc makes a `rep stos`, and thirty of those are
 * a third of what a launch takes besides the driver. */
static void clear(attn_tensor *t)
{
    t->data = NULL;
    t->offset = 0;
    t->data_bytes = 0;
    for (int i = 0; i < 4; i++)
        t->size[i] = t->stride[i] = 0;
}

/* A size of 1 that stands for more becomes that many, all at one place. The stride of
 * a single step, which may be any number, becomes 0. */
static void broadcast(const attn_problem *p, attn_args *args, const attn_extent *e)
{
    for (int k = 0; k < ATTN_ARGS; k++) {
        attn_tensor *t = attn_arg_tensor(args, k);
        uint32_t may;
        int64_t want[4];
        attn_type type;

        if (t->type == ATTN_TYPE_NONE) {
            clear(t);
            continue;
        }
        attn_arg_want(p, args, e, k, &type, want, &may);
        for (int i = 0; i < (attn_arg_list[k].at == AT(grad_bias) ? 4 : 3); i++)
            t->stride[i] = t->size[i] == 1 ? 0 : t->stride[i];
        for (int i = 0; i < 4; i++)
            if (may & 1u << i && t->size[i] == 1 && want[i] != 1) {
                t->size[i] = want[i];
                t->stride[i] = 0;
            }
    }
}

attn_call attn_call_of(const attn_problem *p, attn_args *args, const attn_extent *e)
{
    const bool window = (p->features & ATTN_FEAT_WINDOW) != 0;
    const attn_sums sums =
        p->op == ATTN_OP_LINEAR ? attn_problem_sums(p) : (attn_sums){ 0, 0, 0 };
    attn_call call = {
        .args = args,
        .batch = p->b,
        .heads_q = p->hq,
        .heads_kv = p->hkv,
        .len_q = e->len_q,
        .len_kv = e->len_kv,
        .tokens_q = e->tokens_q,
        .tokens_k = e->tokens_k,
        .pages = e->pages,
        .page_size = p->page_size,
        .offset = p->offset,
        .scale = p->scale,
        .softcap = p->softcap,
        .dropout = p->dropout,
        .left = ATTN_STEP_UNBOUNDED,
        .right = ATTN_STEP_UNBOUNDED,
    };

    call.phi = p->phi;
    call.rule = p->rule;
    call.causal = (p->features & ATTN_FEAT_CAUSAL) != 0;
    call.normalize = (p->features & ATTN_FEAT_NORMALIZE) != 0;
    call.eps = p->eps;
    call.sum_scale = sums.scale;
    call.sum_eps = sums.eps;
    call.sum_unit = sums.unit;
    broadcast(p, args, e);
    if (window && p->window_left >= 0)
        call.left = p->window_left;
    if (window && p->window_right >= 0)
        call.right = p->window_right;
    if (p->features & ATTN_FEAT_CAUSAL)
        call.right = attn_min(call.right, 0);
    return call;
}
