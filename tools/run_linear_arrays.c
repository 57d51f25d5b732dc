/* SPDX-License-Identifier: MIT */
/* tools/run_linear_arrays.c: the files of attn-run linear: shapes that agree, types. */
#include <stdio.h>
#include <string.h>

#include "run_linear.h"

#define AT(field) offsetof(attn_args, field)

const run_linear_file run_linear_files[LINEAR_FILES] = {
    [LINEAR_STATE_IN] = { "--state-in", AT(state_in) },
    [LINEAR_Z_IN] = { "--z-in", AT(z_in) },
    [LINEAR_DECAY] = { "--decay", AT(decay) },
    [LINEAR_BETA] = { "--beta", AT(beta) },
    [LINEAR_KV_LENS] = { "--kv-lens", AT(lens_kv) },
    [LINEAR_GRAD_OUT] = { "--grad-out", AT(grad_o) },
    [LINEAR_GRAD_STATE_OUT] = { "--grad-state-out", AT(grad_state_out) },
    [LINEAR_GRAD_Z_OUT] = { "--grad-z-out", AT(grad_z_out) },
};

const run_linear_file run_linear_outputs[LINEAR_OUTPUTS] = {
    [LINEAR_O] = { "--out", AT(o) },
    [LINEAR_STATE_OUT] = { "--state-out", AT(state_out) },
    [LINEAR_Z_OUT] = { "--z-out", AT(z_out) },
    [LINEAR_DEN] = { "--den", AT(den) },
    [LINEAR_GRAD_Q] = { "--grad-q", AT(grad_q) },
    [LINEAR_GRAD_K] = { "--grad-k", AT(grad_k) },
    [LINEAR_GRAD_V] = { "--grad-v", AT(grad_v) },
    [LINEAR_GRAD_STATE_IN] = { "--grad-state-in", AT(grad_state_in) },
    [LINEAR_GRAD_Z_IN] = { "--grad-z-in", AT(grad_z_in) },
};

bool run_linear_backward(const linear_request *r)
{
    for (int i = LINEAR_GRAD_Q; i < LINEAR_OUTPUTS; i++)
        if (r->out[i])
            return true;
    return false;
}

static attn_tensor *tensor(attn_args *args, size_t at)
{
    return (attn_tensor *)(void *)((char *)args + at);
}

static const char *shape_text(int rank, const int64_t *shape, char text[112])
{
    size_t used = (size_t)snprintf(text, 112, "[");

    for (int i = 0; i < rank; i++)
        used += (size_t)snprintf(text + used, 110 - used, "%s%lld", i ? ", " : "",
                                 (long long)shape[i]);
    snprintf(text + used, 112 - used, "]");
    return text;
}

/* What a file must be: sizes in the order B, H, L, D, which broadcast or not. */
typedef struct wish {
    int64_t size[4];
    bool broadcast, rows; /* rows: L and H change places with --layout blhd */
    bool keeps_f2;        /* f16 stays f16                                  */
    bool typed;           /* it is rounded to the computing type            */
    int dims; /* trailing ones of `size` that a file leaves out: z has [B, H, D] */
} wish;

static wish wish_of(const linear_arrays *a, int which)
{
    const attn_linear_desc *d = &a->forward;
    const int64_t b = d->batch, hkv = d->heads_kv, e = d->dim_qk;
    const wish all[LINEAR_FILES] = {
        [LINEAR_STATE_IN] = { { b, hkv, e, d->dim_v }, false, false, false, false, 4 },
        [LINEAR_Z_IN] = { { b, hkv, e, 1 }, false, false, false, false, 3 },
        [LINEAR_DECAY] = { { b, hkv, d->len_kv, e }, true, true, true, false, 4 },
        [LINEAR_BETA] = { { b, hkv, d->len_kv, 1 }, true, true, true, false, 4 },
        [LINEAR_GRAD_OUT] = { { b, d->heads_q, d->len_q, d->dim_v },
                              false,
                              true,
                              false,
                              true,
                              4 },
        [LINEAR_GRAD_STATE_OUT] = { { b, hkv, e, d->dim_v },
                                    false,
                                    false,
                                    false,
                                    false,
                                    4 },
        [LINEAR_GRAD_Z_OUT] = { { b, hkv, e, 1 }, false, false, false, false, 3 },
    };

    return all[which];
}

/* The sizes of a file in the order B, H, L, D; leading ones may lack. */
static int fit(const linear_request *r, linear_arrays *a, int which, const wish *w)
{
    run_input *in = &a->file[which];
    const npy_array *x = &in->array;
    const bool blhd = r->blhd && w->rows;
    int64_t full[4] = { 1, 1, 1, 1 }, want[4];
    char have_text[112], want_text[112];
    bool fits = x->rank <= w->dims;

    for (int i = 0; i < x->rank && fits; i++)
        full[w->dims - x->rank + i] = x->shape[i];
    for (int i = 0; i < 4; i++) {
        const int from = blhd && (i == 1 || i == 2) ? 3 - i : i;

        in->size[i] = full[from];
        want[from] = w->size[i];
        fits = fits && (in->size[i] == w->size[i] || (w->broadcast && in->size[i] == 1));
    }
    if (fits)
        return CLI_GO;
    return cli_fail(CLI_BAD, "%s: shape %s, want %s%s", in->file,
                    shape_text(x->rank, x->shape, have_text),
                    shape_text(w->dims, want, want_text),
                    w->broadcast ? ", or 1 where it is the same for all" : "");
}

static int load_floats(const linear_request *r, linear_arrays *a, int which)
{
    const wish w = wish_of(a, which);
    run_input *in = &a->file[which];
    int status = run_load_file(in->file, &in->array);
    const npy_type type = in->array.type;

    if (status != CLI_GO)
        return status;
    if (type != NPY_F4 && type != NPY_F2 && type != NPY_F8)
        return cli_fail(CLI_BAD, "%s: type %s, want <f4, <f2 or <f8", in->file,
                        npy_type_descr(type));
    if ((status = fit(r, a, which, &w)) != CLI_GO)
        return status;
    if (w.keeps_f2 && type == NPY_F2)
        return CLI_GO;
    return run_round(in, w.typed ? a->forward.type : ATTN_F32);
}

/* Keys of each batch, as <i4. */
static int load_lens(linear_arrays *a)
{
    run_input *in = &a->file[LINEAR_KV_LENS];
    npy_array *x = &in->array, to;
    int status = run_load_file(in->file, x);

    if (status != CLI_GO)
        return status;
    if (x->type != NPY_I4 && x->type != NPY_I8)
        return cli_fail(CLI_BAD, "%s: type %s, want <i4 or <i8", in->file,
                        npy_type_descr(x->type));
    if (x->rank != 1 || x->shape[0] != a->forward.batch)
        return cli_fail(CLI_BAD,
                        "%s: want %lld numbers in one dimension, one for each batch",
                        in->file, (long long)a->forward.batch);
    if (npy_alloc(&to, NPY_I4, 1, x->shape))
        return cli_fail(CLI_NOTHING, "%s: no memory", in->file);
    for (int64_t b = 0; b < a->forward.batch && status == CLI_GO; b++) {
        const int64_t n = x->type == NPY_I8 ? ((const int64_t *)x->data)[b]
                                            : ((const int32_t *)x->data)[b];

        ((int32_t *)to.data)[b] = (int32_t)n;
        if (n < 0 || n > a->forward.len_kv)
            status = cli_fail(CLI_BAD,
                              "%s: number %lld is %lld, want 0 .. %lld, the keys "
                              "in %s",
                              in->file, (long long)b, (long long)n,
                              (long long)a->forward.len_kv, a->in[RUN_K].file);
    }
    npy_free(x);
    *x = to;
    return status;
}

/* The descriptor of the forward, without layouts. */
static void describe(const linear_request *r, linear_arrays *a, attn_type type)
{
    const run_input *q = &a->in[RUN_Q], *k = &a->in[RUN_K], *v = &a->in[RUN_V];
    attn_linear_desc *d = &a->forward;

    *d = r->desc;
    d->size = sizeof *d;
    d->type = type;
    d->batch = q->size[0];
    d->heads_q = q->size[1];
    d->heads_kv = k->size[1];
    d->len_q = q->size[2];
    d->len_kv = k->size[2];
    d->dim_qk = q->size[3];
    d->dim_v = v->size[3];
    if (r->file[LINEAR_STATE_IN])
        d->use |= ATTN_LINEAR_STATE_IN;
    if (r->file[LINEAR_KV_LENS])
        d->use |= ATTN_LINEAR_LENS_KV;
    if (r->out[LINEAR_STATE_OUT] || r->out[LINEAR_Z_OUT])
        d->use |= ATTN_LINEAR_STATE_OUT;
    if (r->out[LINEAR_DEN] || (run_linear_backward(r) && d->use & ATTN_LINEAR_NORMALIZE))
        d->use |= ATTN_LINEAR_DEN;
}

static attn_type stored(const npy_array *x)
{
    return x->type == NPY_F2 ? ATTN_F16 : ATTN_F32;
}

static int load_files(const linear_request *r, linear_arrays *a)
{
    int status = CLI_GO;

    for (int i = 0; i < LINEAR_FILES && status == CLI_GO; i++) {
        a->file[i].file = r->file[i];
        if (r->file[i])
            status = i == LINEAR_KV_LENS ? load_lens(a) : load_floats(r, a, i);
    }
    a->forward.type_decay = stored(&a->file[LINEAR_DECAY].array);
    a->forward.type_beta = stored(&a->file[LINEAR_BETA].array);
    return status;
}

/* Gradients that are given and wanted; the forward runs without. */
static void describe_backward(const linear_request *r, linear_arrays *a)
{
    static const uint32_t bits[LINEAR_OUTPUTS] = {
        [LINEAR_GRAD_Q] = ATTN_GRAD_Q,        [LINEAR_GRAD_K] = ATTN_GRAD_K,
        [LINEAR_GRAD_V] = ATTN_GRAD_V,        [LINEAR_GRAD_STATE_IN] = ATTN_GRAD_STATE,
        [LINEAR_GRAD_Z_IN] = ATTN_GRAD_STATE,
    };
    attn_linear_desc *d = &a->back;

    *d = a->forward;
    d->use &= ~(uint32_t)(ATTN_LINEAR_DEN | ATTN_LINEAR_STATE_OUT);
    d->use |= ATTN_LINEAR_GRAD;
    if (r->file[LINEAR_GRAD_STATE_OUT] || r->file[LINEAR_GRAD_Z_OUT])
        d->use |= ATTN_LINEAR_STATE_OUT;
    for (int i = 0; i < LINEAR_OUTPUTS; i++)
        if (r->out[i])
            d->grad |= bits[i];
}

/* Whether an output has an array: what is asked for, and what the backward begins with. */
static bool is_made(const linear_request *r, const linear_arrays *a, int which)
{
    if (run_linear_backward(r) && (which == LINEAR_O || which == LINEAR_DEN))
        return which == LINEAR_O || a->forward.use & ATTN_LINEAR_NORMALIZE;
    return r->out[which];
}

static bool in_type(int which)
{
    return which == LINEAR_O || which == LINEAR_GRAD_Q || which == LINEAR_GRAD_K ||
           which == LINEAR_GRAD_V;
}

/* Rows have the rank and the order of the files of q, k and v; states are [B, H, D, Dv], z
 * and den one dimension less. */
static int make_output(const linear_request *r, linear_arrays *a, int which)
{
    const attn_linear_desc *d = &a->forward;
    const int like[LINEAR_OUTPUTS] = { [LINEAR_O] = RUN_Q,
                                       [LINEAR_GRAD_Q] = RUN_Q,
                                       [LINEAR_GRAD_K] = RUN_K,
                                       [LINEAR_GRAD_V] = RUN_V };
    const bool rows = in_type(which), backward = which >= LINEAR_GRAD_Q;
    const bool short_ =
        which == LINEAR_Z_OUT || which == LINEAR_DEN || which == LINEAR_GRAD_Z_IN;
    const npy_type type = rows && d->type != ATTN_F32 ? NPY_F2 : NPY_F4;
    int64_t size[4], shape[4];
    int rank = rows ? a->in[like[which]].array.rank : short_ ? 3 : 4;
    const int64_t *from = shape + (rows ? 4 - rank : 0);
    attn_tensor *forward, *back;

    linear_output_size(d, (linear_output)which, size);
    for (int i = 0; i < 4; i++)
        shape[i] = size[rows && r->blhd && (i == 1 || i == 2) ? 3 - i : i];
    if (npy_alloc(&a->out[which], type, rank, from))
        return cli_fail(CLI_NOTHING, "%s: no memory for it",
                        run_linear_outputs[which].option);
    forward = tensor(&a->forward_args, run_linear_outputs[which].tensor);
    back = tensor(&a->back_args, run_linear_outputs[which].tensor);
    *(backward ? back : forward) =
        run_view(&a->out[which], rows ? d->type : ATTN_F32, size, rows && r->blhd);
    if (which == LINEAR_O || which == LINEAR_DEN)
        *back = *forward;
    return CLI_GO;
}

static void make_views(const linear_request *r, linear_arrays *a)
{
    attn_linear_desc *d = &a->forward;
    attn_args *args = &a->forward_args;

    args->q = run_view(&a->in[RUN_Q].array, d->type, a->in[RUN_Q].size, r->blhd);
    args->k = run_view(&a->in[RUN_K].array, d->type, a->in[RUN_K].size, r->blhd);
    args->v = run_view(&a->in[RUN_V].array, d->type, a->in[RUN_V].size, r->blhd);
    for (int i = 0; i < LINEAR_FILES; i++) {
        const npy_array *x = &a->file[i].array;
        const bool rows = i == LINEAR_GRAD_OUT || i == LINEAR_DECAY || i == LINEAR_BETA;
        attn_tensor *t =
            tensor(i >= LINEAR_GRAD_OUT ? &a->back_args : args, run_linear_files[i].tensor);

        if (!r->file[i])
            continue;
        if (i == LINEAR_KV_LENS)
            *t = attn_tensor_vector(x->data, ATTN_I32, d->batch);
        else
            *t = run_view(x, i == LINEAR_GRAD_OUT ? d->type : stored(x), a->file[i].size,
                          rows && r->blhd);
        t->data_bytes = x->bytes;
    }
}

/* Of what the backward has beside its gradients, the forward's views. */
static void share_views(linear_arrays *a)
{
    attn_args *b = &a->back_args;
    const attn_args *f = &a->forward_args;

    b->q = f->q;
    b->k = f->k;
    b->v = f->v;
    b->lens_kv = f->lens_kv;
    b->state_in = f->state_in;
    b->z_in = f->z_in;
    b->decay = f->decay;
    b->beta = f->beta;
    if (b->grad_o.type == ATTN_TYPE_NONE)
        b->o = (attn_tensor){ .type = ATTN_TYPE_NONE };
}

static void set_layouts(linear_arrays *a)
{
    attn_linear_desc *d = &a->forward;

    d->use |= ATTN_LINEAR_LAYOUT;
    d->layout_q = run_layout_of(&a->forward_args.q);
    d->layout_k = run_layout_of(&a->forward_args.k);
    d->layout_v = run_layout_of(&a->forward_args.v);
    d->layout_o = a->forward_args.o.type != ATTN_TYPE_NONE
                      ? run_layout_of(&a->forward_args.o)
                      : ATTN_LAYOUT_16;
    d->layout_grad_o = d->layout_o;
    d->layout_grad_q = d->layout_q;
    d->layout_grad_k = d->layout_k;
    d->layout_grad_v = d->layout_v;
}

int run_linear_load(const linear_request *r, linear_arrays *a)
{
    attn_type type = ATTN_TYPE_NONE;
    attn_status st;
    int status = CLI_GO;

    *a = (linear_arrays){ .forward_args = { .size = sizeof(attn_args) },
                          .back_args = { .size = sizeof(attn_args) } };
    for (int i = 0; i < RUN_INPUTS && status == CLI_GO; i++) {
        a->in[i].file = r->in[i];
        status = run_load_input(&a->in[i], r->blhd);
    }
    if (status != CLI_GO || (status = run_check_shapes(a->in, r->blhd, true)) != CLI_GO ||
        (status = run_choose_type(r->type, &a->in[RUN_Q], &type)) != CLI_GO)
        return status;
    describe(r, a, type);
    if ((status = load_files(r, a)) != CLI_GO)
        return status;
    if ((st = attn_linear_check(&a->forward)) != ATTN_OK)
        return cli_fail_attn(st, NULL);
    for (int i = 0; i < RUN_INPUTS; i++)
        if ((status = run_round(&a->in[i], type)) != CLI_GO)
            return status;
    make_views(r, a);
    for (int i = 0; i < LINEAR_OUTPUTS && status == CLI_GO; i++)
        if (is_made(r, a, i))
            status = make_output(r, a, i);
    share_views(a);
    set_layouts(a);
    describe_backward(r, a);
    return status;
}

void run_linear_free(linear_arrays *a)
{
    for (int i = 0; i < RUN_INPUTS; i++)
        npy_free(&a->in[i].array);
    for (int i = 0; i < LINEAR_FILES; i++)
        npy_free(&a->file[i].array);
    for (int i = 0; i < LINEAR_OUTPUTS; i++)
        npy_free(&a->out[i]);
}
