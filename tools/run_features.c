/* SPDX-License-Identifier: MIT */
/* tools/run_features.c: the files of single features: bias, mask, lengths, pages ... */
#include <stdio.h>
#include <string.h>

#include "run.h"

#define AT(field) offsetof(attn_args, field)

const run_file run_files[RUN_FILES] = {
    [RUN_BIAS] = { "--bias", "bias", ATTN_USE_BIAS, AT(bias) },
    [RUN_MASK] = { "--mask", "mask", ATTN_USE_MASK, AT(mask) },
    [RUN_ALIBI] = { "--alibi", "alibi", ATTN_USE_ALIBI, AT(alibi) },
    [RUN_SINKS] = { "--sinks", "sinks", ATTN_USE_SINKS, AT(sinks) },
    [RUN_Q_LENS] = { "--q-lens", "q_lens", ATTN_USE_LENS_Q, AT(lens_q) },
    [RUN_KV_LENS] = { "--kv-lens", "kv_lens", ATTN_USE_LENS_KV, AT(lens_kv) },
    [RUN_OFFSETS] = { "--offset", "offset", ATTN_USE_OFFSETS, AT(offsets) },
    [RUN_CU_Q] = { "--cu-q", "cu_q", ATTN_USE_PACKED_Q, AT(cu_q) },
    [RUN_CU_K] = { "--cu-k", "cu_k", ATTN_USE_PACKED_K, AT(cu_k) },
    [RUN_BLOCK_TABLE] = { "--block-table", "block_table", ATTN_USE_PAGES, AT(block_table) },
};

int run_load_file(const char *file, npy_array *array)
{
    char err[512];

    cli_progress("reading %s", file);
    return npy_load(file, array, err, sizeof err) ? cli_fail(CLI_BAD, "%s", err) : CLI_GO;
}

static int no_memory(const char *file)
{
    return cli_fail(CLI_NOTHING, "%s: no memory", file);
}

/* A file's shape as Python writes it, but in brackets. */
static const char *shape_of(int rank, const int64_t *shape, char text[112])
{
    size_t used = 0;

    for (int i = 0; i < rank; i++)
        used += (size_t)snprintf(text + used, 110 - used, "%s%lld", i ? ", " : "[",
                                 (long long)shape[i]);
    snprintf(text + used, 112 - used, "%s", rank ? "]" : "[]");
    return text;
}

static bool is_float(npy_type type)
{
    return type == NPY_F4 || type == NPY_F2 || type == NPY_F8;
}

/* What the library does not take as it is stored becomes <f4. */
static int widen_floats(const char *file, bool keep_f2, npy_array *a)
{
    npy_array to;

    if (a->type == NPY_F4 || (a->type == NPY_F2 && keep_f2))
        return CLI_GO;
    if (npy_alloc(&to, NPY_F4, a->rank, a->shape))
        return no_memory(file);
    for (size_t i = 0; i < to.bytes / sizeof(float); i++)
        ((float *)to.data)[i] = a->type == NPY_F2
                                    ? npy_half_to_float(((const uint16_t *)a->data)[i])
                                    : (float)((const double *)a->data)[i];
    npy_free(a);
    *a = to;
    return CLI_GO;
}

/* To <i8 and back to <i4: between the two, numbers are checked. */
static int convert_integers(const char *file, npy_type type, npy_array *a)
{
    npy_array to;

    if (a->type == type)
        return CLI_GO;
    if (npy_alloc(&to, type, a->rank, a->shape))
        return no_memory(file);
    for (size_t i = 0; i < to.bytes / npy_type_bytes(type); i++)
        if (type == NPY_I8)
            ((int64_t *)to.data)[i] = ((const int32_t *)a->data)[i];
        else
            ((int32_t *)to.data)[i] = (int32_t)((const int64_t *)a->data)[i];
    npy_free(a);
    *a = to;
    return CLI_GO;
}

static int load_extra(int which, const char *file, npy_array *a)
{
    const bool floats = which == RUN_BIAS || which == RUN_ALIBI || which == RUN_SINKS;
    const char *want = floats              ? "<f4, <f2 or <f8"
                       : which == RUN_MASK ? "|b1"
                                           : "<i4 or <i8";
    int status = run_load_file(file, a);

    if (status != CLI_GO)
        return status;
    if (floats              ? !is_float(a->type)
        : which == RUN_MASK ? a->type != NPY_B1
                            : a->type != NPY_I4 && a->type != NPY_I8)
        return cli_fail(CLI_BAD, "%s: type %s, want %s", file, npy_type_descr(a->type),
                        want);
    if (floats)
        return widen_floats(file, which == RUN_BIAS, a);
    return which == RUN_MASK ? CLI_GO : convert_integers(file, NPY_I8, a);
}

int run_load_extras(const run_request *r, run_arrays *a)
{
    int status = CLI_GO;

    for (int i = 0; i < RUN_FILES && status == CLI_GO; i++)
        if (r->file[i])
            status = load_extra(i, r->file[i], &a->extra[i]);
    return status;
}

/* Sequences packed one behind the other: how many, and the longest. */
static int read_boundaries(const char *file, const npy_array *cu, const run_input *of,
                           int64_t tokens, int64_t *batch, int64_t *longest)
{
    const int64_t *at = cu->data;
    char shape[112];

    if (cu->rank != 1 || cu->shape[0] < 1)
        return cli_fail(CLI_BAD,
                        "%s: shape %s, want one dimension: the first token of each "
                        "sequence and the end of the last",
                        file, shape_of(cu->rank, cu->shape, shape));
    *batch = cu->shape[0] - 1;
    *longest = 0;
    for (int64_t b = 0; b <= *batch; b++) {
        const int64_t before = b ? at[b - 1] : 0;
        if (at[b] < before)
            return cli_fail(CLI_BAD,
                            "%s: number %lld is %lld, want at least %lld: boundaries "
                            "ascend from 0",
                            file, (long long)b, (long long)at[b], (long long)before);
        if (at[b] > tokens)
            return cli_fail(
                CLI_BAD, "%s: number %lld is %lld, want at most the %lld tokens in %s",
                file, (long long)b, (long long)at[b], (long long)tokens, of->file);
        if (b && at[b] - before > *longest)
            *longest = at[b] - before;
    }
    return CLI_GO;
}

static int one_batch(const run_input *in, const char *option)
{
    return in->size[0] == 1
               ? CLI_GO
               : cli_fail(CLI_BAD,
                          "%s: B is %lld, want 1: sequences packed by %s lie in one",
                          in->file, (long long)in->size[0], option);
}

/* B of q and of k, where k has one, must be the same. */
static int same_batch(const run_request *r, const run_input *k, int64_t batch,
                      int64_t keys_batch)
{
    if (batch == keys_batch)
        return CLI_GO;
    return cli_fail(CLI_BAD, "%s: %s is %lld, want %lld as in %s",
                    r->file[RUN_CU_K] ? r->file[RUN_CU_K] : k->file,
                    r->file[RUN_CU_K] ? "number of sequences" : "B", (long long)keys_batch,
                    (long long)batch, r->file[RUN_CU_Q] ? r->file[RUN_CU_Q] : r->q);
}

/* K and V are pages: Lk is what a row of the table holds. */
static int read_pages(const run_request *r, run_arrays *a)
{
    const npy_array *table = &a->extra[RUN_BLOCK_TABLE];
    const run_input *k = &a->in[RUN_K];
    attn_softmax_desc *d = &a->desc;
    char shape[112];

    if (table->rank != 2 || table->shape[0] != d->batch)
        return cli_fail(
            CLI_BAD, "%s: shape %s, want [B, pages of a batch] with B = %lld as in %s",
            r->file[RUN_BLOCK_TABLE], shape_of(table->rank, table->shape, shape),
            (long long)d->batch, r->file[RUN_CU_Q] ? r->file[RUN_CU_Q] : r->q);
    if (k->size[2] != d->page_size)
        return cli_fail(CLI_BAD, "%s: L is %lld, want --page-size, %lld", k->file,
                        (long long)k->size[2], (long long)d->page_size);
    if (table->shape[1] > INT32_MAX / d->page_size)
        return cli_fail(CLI_BAD, "%s: %lld pages of %lld keys, want at most 2^31 - 1 keys",
                        r->file[RUN_BLOCK_TABLE], (long long)table->shape[1],
                        (long long)d->page_size);
    d->len_kv = table->shape[1] * d->page_size;
    return CLI_GO;
}

int run_sizes(const run_request *r, run_arrays *a)
{
    const run_input *q = &a->in[RUN_Q], *k = &a->in[RUN_K];
    attn_softmax_desc *d = &a->desc;
    int64_t keys_batch = k->size[0];
    int status = CLI_GO;

    d->batch = q->size[0];
    d->len_q = q->size[2];
    d->len_kv = k->size[2];
    if (r->file[RUN_CU_Q] &&
        ((status = one_batch(q, "--cu-q")) != CLI_GO ||
         (status = read_boundaries(r->file[RUN_CU_Q], &a->extra[RUN_CU_Q], q, q->size[2],
                                   &d->batch, &d->len_q)) != CLI_GO))
        return status;
    if (r->file[RUN_BLOCK_TABLE])
        return read_pages(r, a);
    if (r->file[RUN_CU_K] &&
        ((status = one_batch(k, "--cu-k")) != CLI_GO ||
         (status = read_boundaries(r->file[RUN_CU_K], &a->extra[RUN_CU_K], k, k->size[2],
                                   &keys_batch, &d->len_kv)) != CLI_GO))
        return status;
    return same_batch(r, k, d->batch, keys_batch);
}

/* Trailing dimensions must fit, each as it is or as 1. */
static int check_broadcast(const char *file, const attn_softmax_desc *d, const npy_array *x)
{
    const int64_t full[4] = { d->batch, d->heads_q, d->len_q, d->len_kv };
    char have[112], want[112];

    for (int i = 0; i < x->rank; i++) {
        const int64_t size = x->shape[x->rank - 1 - i];
        if (size != 1 && size != full[3 - i])
            return cli_fail(CLI_BAD, "%s: %s does not broadcast to [B, Hq, Lq, Lk] = %s",
                            file, shape_of(x->rank, x->shape, have),
                            shape_of(4, full, want));
    }
    return CLI_GO;
}

/* One number a head, or with `batches` a row of them a batch. */
static int check_heads(const char *file, const attn_softmax_desc *d, const npy_array *x,
                       bool batches)
{
    const bool table = batches && x->rank == 2;
    char have[112];

    if ((x->rank == 1 || table) && x->shape[x->rank - 1] == d->heads_q &&
        (!table || x->shape[0] == 1 || x->shape[0] == d->batch))
        return CLI_GO;
    return cli_fail(CLI_BAD, "%s: shape %s, want [Hq] = [%lld]%s", file,
                    shape_of(x->rank, x->shape, have), (long long)d->heads_q,
                    batches ? " or [B, Hq]" : "");
}

/* One number a batch, each of `least` .. `most`. */
static int check_numbers(const run_request *r, int which, const run_arrays *a,
                         int64_t least, int64_t most, const char *why)
{
    const npy_array *x = &a->extra[which];
    const int64_t batch = a->desc.batch, *at = x->data;
    const char *file = r->file[which];

    if (x->rank != 1 || x->shape[0] != batch)
        return cli_fail(CLI_BAD,
                        "%s: want %lld number%s in one dimension, one for each "
                        "batch of %s",
                        file, (long long)batch, batch == 1 ? "" : "s",
                        r->file[RUN_CU_Q] ? r->file[RUN_CU_Q] : r->q);
    for (int64_t b = 0; b < batch; b++)
        if (at[b] < least || at[b] > most)
            return cli_fail(CLI_BAD, "%s: number %lld is %lld, want %lld .. %lld%s", file,
                            (long long)b, (long long)at[b], (long long)least,
                            (long long)most, why);
    return CLI_GO;
}

static int check_lens(const run_request *r, int which, int cu, const run_arrays *a,
                      int64_t most, const char *what, const char *of)
{
    const int64_t *at = a->extra[which].data, *first = a->extra[cu].data;
    char why[300];
    int status;

    snprintf(why, sizeof why, ", the %s in %.200s", what, of);
    status = check_numbers(r, which, a, 0, most, why);
    for (int64_t b = 0; status == CLI_GO && r->file[cu] && b < a->desc.batch; b++)
        if (at[b] > first[b + 1] - first[b])
            status = cli_fail(CLI_BAD, "%s: number %lld is %lld, want 0 .. %lld as by %s",
                              r->file[which], (long long)b, (long long)at[b],
                              (long long)(first[b + 1] - first[b]), r->file[cu]);
    return status;
}

/* Only pages that a batch's keys lie in are looked up, so only they are checked. */
static int check_table(const run_request *r, const run_arrays *a)
{
    const npy_array *table = &a->extra[RUN_BLOCK_TABLE];
    const int64_t *lens = a->extra[RUN_KV_LENS].data, *at = table->data;
    const int64_t blocks = table->shape[1], size = a->desc.page_size;
    const int64_t pages = a->in[RUN_K].size[0];

    for (int64_t b = 0; b < table->shape[0]; b++) {
        const int64_t keys = lens ? lens[b] : a->desc.len_kv;
        for (int64_t i = 0; i < (keys + size - 1) / size; i++)
            if (at[b * blocks + i] < 0 || at[b * blocks + i] >= pages)
                return cli_fail(CLI_BAD,
                                "%s: entry [%lld, %lld] is %lld, want a page of %s, "
                                "0 .. %lld",
                                r->file[RUN_BLOCK_TABLE], (long long)b, (long long)i,
                                (long long)at[b * blocks + i], r->k, (long long)pages - 1);
    }
    return CLI_GO;
}

static int check_extra(const run_request *r, int which, run_arrays *a)
{
    const attn_softmax_desc *d = &a->desc;
    const char *file = r->file[which];

    switch (which) {
    case RUN_BIAS:
    case RUN_MASK: return check_broadcast(file, d, &a->extra[which]);
    case RUN_ALIBI:
    case RUN_SINKS: return check_heads(file, d, &a->extra[which], which == RUN_ALIBI);
    case RUN_Q_LENS: return check_lens(r, which, RUN_CU_Q, a, d->len_q, "queries", r->q);
    case RUN_KV_LENS:
        return check_lens(r, which, RUN_CU_K, a, d->len_kv, "keys",
                          r->file[RUN_BLOCK_TABLE] ? r->file[RUN_BLOCK_TABLE] : r->k);
    case RUN_OFFSETS: return check_numbers(r, which, a, INT32_MIN, INT32_MAX, "");
    case RUN_BLOCK_TABLE: return check_table(r, a);
    default: return CLI_GO; /* boundaries: run_sizes() has read them */
    }
}

int run_check_extras(const run_request *r, run_arrays *a)
{
    int status = CLI_GO;

    for (int i = 0; i < RUN_FILES && status == CLI_GO; i++)
        if (r->file[i])
            status = check_extra(r, i, a);
    for (int i = 0; i < RUN_FILES && status == CLI_GO; i++)
        if (r->file[i] && a->extra[i].type == NPY_I8)
            status = convert_integers(r->file[i], NPY_I4, &a->extra[i]);
    return status;
}

/* Bias and mask get leading ones, the others stand as the library wants them. */
static attn_tensor view(int which, const npy_array *x)
{
    static const attn_type types[] = { [NPY_F4] = ATTN_F32,
                                       [NPY_F2] = ATTN_F16,
                                       [NPY_B1] = ATTN_BOOL,
                                       [NPY_I4] = ATTN_I32,
                                       [NPY_I8] = ATTN_TYPE_NONE };
    int64_t size[4] = { 1, 1, 1, 1 };
    int first = 0;

    if (which == RUN_BIAS || which == RUN_MASK)
        first = 4 - x->rank;
    else if (which == RUN_SINKS || (which == RUN_ALIBI && x->rank == 1))
        first = 1;
    for (int i = 0; i < x->rank; i++)
        size[first + i] = x->shape[i];
    attn_tensor t =
        attn_tensor_bhld(x->data, types[x->type], size[0], size[1], size[2], size[3]);
    t.data_bytes = x->bytes;
    return t;
}

void run_view_extras(const run_request *r, run_arrays *a)
{
    for (int i = 0; i < RUN_FILES; i++)
        if (r->file[i])
            *(attn_tensor *)(void *)((char *)&a->args + run_files[i].tensor) =
                view(i, &a->extra[i]);
}
