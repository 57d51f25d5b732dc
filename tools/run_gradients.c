/* SPDX-License-Identifier: MIT */
/* tools/run_gradients.c: the files of gradients: those that are given, those to write, and
 * the backward problem that lies between. */
#include <stdio.h>
#include <string.h>

#include "run.h"

#define AT(field) offsetof(attn_args, field)

const run_grad run_given[RUN_GIVEN] = {
    [RUN_GRAD_OUT] = { "--grad-out", "grad_out", AT(grad_o), 0 },
    [RUN_GRAD_LSE] = { "--grad-lse", "grad_lse", AT(grad_lse), 0 },
};

const run_grad run_grads[RUN_GRADS] = {
    [RUN_GRAD_Q] = { "--grad-q", "grad_q", AT(grad_q), ATTN_GRAD_Q },
    [RUN_GRAD_K] = { "--grad-k", "grad_k", AT(grad_k), ATTN_GRAD_K },
    [RUN_GRAD_V] = { "--grad-v", "grad_v", AT(grad_v), ATTN_GRAD_V },
    [RUN_GRAD_BIAS] = { "--grad-bias", "grad_bias", AT(grad_bias), ATTN_GRAD_BIAS },
    [RUN_GRAD_SINKS] = { "--grad-sinks", "grad_sinks", AT(grad_sinks), ATTN_GRAD_SINKS },
};

bool run_backward(const run_request *r)
{
    for (int i = 0; i < RUN_GRADS; i++)
        if (r->grad[i])
            return true;
    return false;
}

int run_check_gradients(const run_request *r)
{
    const bool given = r->given[RUN_GRAD_OUT] || r->given[RUN_GRAD_LSE];

    if (given && !run_backward(r))
        return cli_fail(
            CLI_BAD,
            "%s wants a gradient to write: give --grad-q, --grad-k, "
            "--grad-v, --grad-bias or --grad-sinks",
            run_given[r->given[RUN_GRAD_OUT] ? RUN_GRAD_OUT : RUN_GRAD_LSE].option);
    if (!run_backward(r))
        return CLI_GO;
    if (!given)
        return cli_fail(CLI_BAD, "--grad-out is missing; gradients want it or --grad-lse");
    if (r->grad[RUN_GRAD_BIAS] && !r->file[RUN_BIAS])
        return cli_fail(CLI_BAD, "--grad-bias wants --bias beside it");
    if (r->grad[RUN_GRAD_SINKS] && !r->file[RUN_SINKS])
        return cli_fail(CLI_BAD, "--grad-sinks wants --sinks beside it");
    if (r->file[RUN_BLOCK_TABLE])
        return cli_fail(CLI_NOTHING, "gradients of keys in pages (--block-table): not in "
                                     "this version");
    return CLI_GO;
}

/* A file's shape as Python writes it, but in brackets. */
static const char *shape_text(const npy_array *a, char text[112])
{
    size_t used = (size_t)snprintf(text, 112, "[");

    for (int i = 0; i < a->rank; i++)
        used += (size_t)snprintf(text + used, 110 - used, "%s%lld", i ? ", " : "",
                                 (long long)a->shape[i]);
    snprintf(text + used, 112 - used, "]");
    return text;
}

/* Reads a given gradient, which has the shape of what it belongs to, and rounds it. */
static int load_given(run_input *in, const npy_array *of, const char *name, attn_type type)
{
    npy_array *a = &in->array;
    char have[112], want[112];
    int status = run_load_file(in->file, a);

    if (status != CLI_GO)
        return status;
    if (a->type != NPY_F4 && a->type != NPY_F2 && a->type != NPY_F8)
        return cli_fail(CLI_BAD, "%s: type %s, want <f4, <f2 or <f8", in->file,
                        npy_type_descr(a->type));
    if (a->rank != of->rank ||
        memcmp(a->shape, of->shape, (size_t)a->rank * sizeof a->shape[0]))
        return cli_fail(CLI_BAD, "%s: shape %s, want that of %s, %s", in->file,
                        shape_text(a, have), name, shape_text(of, want));
    return run_round(in, type);
}

/* What a gradient is like. */
static const npy_array *like(const run_arrays *a, int which)
{
    switch (which) {
    case RUN_GRAD_BIAS: return &a->extra[RUN_BIAS];
    case RUN_GRAD_SINKS: return &a->extra[RUN_SINKS];
    default: return &a->in[RUN_Q + which].array;
    }
}

/* They begin as zeros, which rows that belong to no query or key keep. */
static int make_outputs(const run_request *r, run_arrays *a)
{
    for (int i = 0; i < RUN_GRADS; i++) {
        const npy_array *of = like(a, i);
        const bool wide = i > RUN_GRAD_V || a->desc.type == ATTN_F32;

        if (r->grad[i] &&
            npy_alloc(&a->grad[i], wide ? NPY_F4 : NPY_F2, of->rank, of->shape))
            return cli_fail(CLI_NOTHING, "%s: no memory for it", run_grads[i].option);
    }
    return CLI_GO;
}

/* A view of the same strides as another's. */
static attn_tensor view_as(const attn_tensor *of, const npy_array *a, attn_type type)
{
    attn_tensor t = *of;

    t.data = a->data;
    t.data_bytes = a->bytes;
    t.type = type;
    return t;
}

static void make_views(const run_request *r, run_arrays *a)
{
    attn_softmax_desc *d = &a->back;
    attn_args *args = &a->back_args;

    *d = a->desc;
    *args = a->args;
    d->use |= ATTN_USE_GRAD;
    for (int i = 0; i < RUN_GRADS; i++) {
        attn_tensor *const of[RUN_GRADS] = { &args->q, &args->k, &args->v, &args->bias,
                                             &args->sinks };
        if (!r->grad[i])
            continue;
        d->grad |= run_grads[i].bit;
        *(attn_tensor *)(void *)((char *)args + run_grads[i].tensor) =
            view_as(of[i], &a->grad[i], i > RUN_GRAD_V ? ATTN_F32 : d->type);
    }
    if (r->given[RUN_GRAD_OUT])
        args->grad_o = view_as(&args->o, &a->given[RUN_GRAD_OUT].array, d->type);
    else
        args->o = (attn_tensor){ .type = ATTN_TYPE_NONE };
    if (r->given[RUN_GRAD_LSE])
        args->grad_lse = view_as(&args->lse, &a->given[RUN_GRAD_LSE].array, ATTN_F32);
    d->layout_grad_o = d->layout_o;
    d->layout_grad_q = d->layout_q;
    d->layout_grad_k = d->layout_k;
    d->layout_grad_v = d->layout_v;
}

int run_load_gradients(const run_request *r, run_arrays *a)
{
    const npy_array *of[RUN_GIVEN] = { &a->out, &a->lse };
    const char *const names[RUN_GIVEN] = { "the result", "the LSE" };
    const attn_type types[RUN_GIVEN] = { a->desc.type, ATTN_F32 };
    int status = CLI_GO;

    if (!run_backward(r))
        return CLI_GO;
    for (int i = 0; i < RUN_GIVEN && status == CLI_GO; i++) {
        a->given[i].file = r->given[i];
        if (r->given[i])
            status = load_given(&a->given[i], of[i], names[i], types[i]);
    }
    if (status == CLI_GO && (status = make_outputs(r, a)) == CLI_GO)
        make_views(r, a);
    return status;
}

attn_options run_options(const run_request *r, bool backward)
{
    const bool of_backward = r->variant && strstr(r->variant, "_bwd_");

    return (attn_options){ .size = sizeof(attn_options),
                           .variant = !run_backward(r) || of_backward == backward
                                          ? r->variant
                                          : NULL,
                           .splits = backward ? 0 : r->splits };
}

static const attn_tensor *at(const attn_args *args, size_t place)
{
    return (const attn_tensor *)(const void *)((const char *)args + place);
}

/* Backward, O and LSE are inputs. */
void run_make_job(const run_request *r, run_arrays *a, run_job *job)
{
    const bool backward = run_backward(r);
    const attn_args *args = backward ? &a->back_args : &a->args;
    const run_tensor fixed[] = {
        { &args->q, AT(q), NULL, "--q" },
        { &args->k, AT(k), NULL, "--k" },
        { &args->v, AT(v), NULL, "--v" },
        { &args->o, AT(o), backward ? NULL : &a->out, "--out" },
        { &args->lse, AT(lse), backward ? NULL : &a->lse, "--lse" },
    };
    int n = sizeof fixed / sizeof fixed[0];

    *job =
        (run_job){ .problem = problem_of_softmax(backward ? &a->back : &a->desc),
                   .options = run_options(r, backward),
                   .dropout_seed = args->dropout_seed,
                   .dropout_offset = args->dropout_offset,
                   .partial = r->file[RUN_Q_LENS] || r->file[RUN_CU_Q] ||
                              (backward && (r->file[RUN_KV_LENS] || r->file[RUN_CU_K])) };
    memcpy(job->tensor, fixed, sizeof fixed);
    for (int i = 0; i < RUN_GIVEN; i++)
        job->tensor[n++] = (run_tensor){ at(args, run_given[i].tensor), run_given[i].tensor,
                                         NULL, run_given[i].option };
    for (int i = 0; i < RUN_GRADS; i++)
        job->tensor[n++] = (run_tensor){ at(args, run_grads[i].tensor), run_grads[i].tensor,
                                         &a->grad[i], run_grads[i].option };
    for (int i = 0; i < RUN_FILES; i++)
        job->tensor[n++] = (run_tensor){ at(args, run_files[i].tensor), run_files[i].tensor,
                                         NULL, run_files[i].option };
    job->n = n;
}
