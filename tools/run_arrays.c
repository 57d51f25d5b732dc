/* SPDX-License-Identifier: MIT */
/* tools/run_arrays.c: the files of attn-run: shapes that agree, types, rounding. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

static const char *const axis_names[4] = { "B", "H", "L", "D" };
static const char *const orders[2] = { "B, H, L, D", "B, L, H, D" }; /* by blhd */

enum { Q = RUN_Q, K = RUN_K, V = RUN_V };

/* The nearest float whose last bit is set if bits were lost ("round to odd"):
 * a second rounding, to a shorter type, is then as good as one alone. */
static float round_to_odd(double x)
{
    float near = (float)x;
    uint32_t bits;

    if (isnan(x) || (double)near == x)
        return near;
    memcpy(&bits, &near, sizeof bits);
    if (fabs((double)near) > fabs(x))
        bits--;
    bits |= 1;
    memcpy(&near, &bits, sizeof bits);
    return near;
}

static double element(const npy_array *a, size_t i)
{
    switch (a->type) {
    case NPY_F4: return (double)((const float *)a->data)[i];
    case NPY_F2: return (double)npy_half_to_float(((const uint16_t *)a->data)[i]);
    default: return ((const double *)a->data)[i];
    }
}

static bool is_stored_as(const npy_array *a, attn_type type)
{
    return (a->type == NPY_F4 && type == ATTN_F32) ||
           (a->type == NPY_F2 && type == ATTN_F16);
}

int run_round(run_input *in, attn_type type)
{
    npy_array *from = &in->array, to;
    const size_t n = from->bytes / npy_type_bytes(from->type);

    if (is_stored_as(from, type))
        return CLI_GO;
    if (npy_alloc(&to, type == ATTN_F32 ? NPY_F4 : NPY_F2, from->rank, from->shape))
        return cli_fail(CLI_NOTHING, "%s: no memory to round it to %s", in->file,
                        attn_type_name(type));
    for (size_t i = 0; i < n; i++) {
        const double x = element(from, i);
        if (type == ATTN_F32)
            ((float *)to.data)[i] = (float)x;
        else if (type == ATTN_F16)
            ((uint16_t *)to.data)[i] = npy_float_to_half(round_to_odd(x));
        else
            ((uint16_t *)to.data)[i] = npy_float_to_bf16(round_to_odd(x));
    }
    npy_free(from);
    *from = to;
    return CLI_GO;
}

/* The shape of a file, with the names of its dimensions. */
static const char *shape_text(const run_input *in, bool blhd, char text[160])
{
    const int64_t *s = in->size;

    snprintf(text, 160, "[%s] = [%lld, %lld, %lld, %lld]", orders[blhd], (long long)s[0],
             (long long)s[blhd ? 2 : 1], (long long)s[blhd ? 1 : 2], (long long)s[3]);
    return text;
}

int run_load_input(run_input *in, bool blhd)
{
    int64_t full[4] = { 1, 1, 1, 1 };
    const npy_array *a = &in->array;
    int status = run_load_file(in->file, &in->array);

    if (status != CLI_GO)
        return status;
    if (a->type != NPY_F4 && a->type != NPY_F2 && a->type != NPY_F8)
        return cli_fail(CLI_BAD, "%s: type %s, want <f4, <f2 or <f8", in->file,
                        npy_type_descr(a->type));
    if (a->rank < 2)
        return cli_fail(CLI_BAD, "%s: %d dimension%s, want 4, 3 or 2: [%s]", in->file,
                        a->rank, a->rank == 1 ? "" : "s", orders[blhd]);
    for (int i = 0; i < a->rank; i++)
        full[4 - a->rank + i] = a->shape[i];
    in->size[0] = full[0];
    in->size[1] = full[blhd ? 2 : 1];
    in->size[2] = full[blhd ? 1 : 2];
    in->size[3] = full[3];
    if (in->size[3] == 0)
        return cli_fail(CLI_BAD, "%s: its last dimension, D, is 0, want >= 1", in->file);
    return CLI_GO;
}

/* With packed sequences or pages B of k may differ from that of q: run_sizes() knows. */
int run_check_shapes(const run_input in[RUN_INPUTS], bool blhd, bool same_batch)
{
    static const struct {
        int which, axis, as;
    } equal[] = {
        { K, 3, Q },
        { V, 0, K },
        { V, 1, K },
        { V, 2, K },
    };
    const int64_t hq = in[Q].size[1], hkv = in[K].size[1];
    char one[160], two[160];

    for (size_t i = same_batch ? 0 : 1; i < sizeof equal / sizeof equal[0]; i++) {
        const run_input *a = &in[equal[i].which], *b = &in[equal[i].as];
        const int axis = equal[i].axis;
        if (a->size[axis] != b->size[axis])
            return cli_fail(
                CLI_BAD, "%s: %s is %lld, want %lld as in %s; they have %s and %s", a->file,
                axis_names[axis], (long long)a->size[axis], (long long)b->size[axis],
                b->file, shape_text(a, blhd, one), shape_text(b, blhd, two));
    }
    if ((hq == 0) != (hkv == 0) || (hkv && hq % hkv))
        return cli_fail(CLI_BAD,
                        "%s: %lld heads, want a multiple of the %lld of %s; "
                        "they have %s and %s",
                        in[Q].file, (long long)hq, (long long)hkv, in[K].file,
                        shape_text(&in[Q], blhd, one), shape_text(&in[K], blhd, two));
    return CLI_GO;
}

int run_choose_type(attn_type asked, const run_input *q, attn_type *type)
{
    const npy_type stored = q->array.type;

    *type = asked != ATTN_TYPE_NONE ? asked : stored == NPY_F4 ? ATTN_F32 : ATTN_F16;
    if (asked == ATTN_TYPE_NONE && stored == NPY_F8)
        return cli_fail(CLI_BAD,
                        "%s: type <f8 is no computing type; give --type f32, f16 "
                        "or bf16",
                        q->file);
    return CLI_GO;
}

/* The descriptor without layouts, and without what run_sizes() fills in. */
static void describe(const run_request *r, const run_arrays *a, attn_type type,
                     attn_softmax_desc *d)
{
    *d = r->desc;
    d->size = sizeof *d;
    d->type = type;
    d->heads_q = a->in[Q].size[1];
    d->heads_kv = a->in[K].size[1];
    d->dim_qk = a->in[Q].size[3];
    d->dim_v = a->in[V].size[3];
    if (r->causal >= 0)
        d->use |= ATTN_USE_CAUSAL;
    if (r->causal >= 0 || r->align >= 0)
        d->use |= ATTN_USE_ALIGN;
    d->align = (attn_align)(r->causal >= 0 ? r->causal : r->align >= 0 ? r->align : 0);
    for (int i = 0; i < RUN_FILES; i++)
        if (r->file[i])
            d->use |= run_files[i].use;
    if (r->file[RUN_BIAS])
        d->type_bias = a->extra[RUN_BIAS].type == NPY_F2 ? ATTN_F16 : ATTN_F32;
    if (r->lse || run_backward(r))
        d->use |= ATTN_USE_LSE;
}

attn_tensor run_view(const npy_array *a, attn_type type, const int64_t size[4], bool blhd)
{
    attn_tensor t =
        blhd ? attn_tensor_blhd(a->data, type, size[0], size[1], size[2], size[3])
             : attn_tensor_bhld(a->data, type, size[0], size[1], size[2], size[3]);
    t.data_bytes = a->bytes;
    return t;
}

/* With rows of another size. */
static attn_tensor view(const run_request *r, const npy_array *a, attn_type type,
                        const int64_t size[4], int64_t dim)
{
    return run_view(a, type, (int64_t[4]){ size[0], size[1], size[2], dim }, r->blhd);
}

/* What a whole array in 64-byte aligned memory promises: each stride of more
 * than one step is a multiple of a row. */
attn_layout run_layout_of(const attn_tensor *t)
{
    const int64_t row = t->size[3] * (int64_t)attn_type_bytes(t->type);
    const bool rows = t->size[0] > 1 || t->size[1] > 1 || t->size[2] > 1;
    const bool empty = !t->size[0] || !t->size[1] || !t->size[2];

    if (empty || !rows || row % 16 == 0)
        return ATTN_LAYOUT_16;
    return row % 8 == 0   ? ATTN_LAYOUT_8
           : row % 4 == 0 ? ATTN_LAYOUT_4
                          : ATTN_LAYOUT_ELEMENT;
}

/* O has the rank of q's file and LSE one less; they begin as zeros, which rows that
 * belong to no query keep. */
static int make_outputs(const run_request *r, run_arrays *a)
{
    const attn_softmax_desc *d = &a->desc;
    const int64_t *q = a->in[Q].size;
    const int rank = a->in[Q].array.rank;
    const int64_t out[4] = { q[0], q[r->blhd ? 2 : 1], q[r->blhd ? 1 : 2], d->dim_v };
    /* of a [H, D] file, where L is 1, the one dimension left is H */
    const int64_t *lse_shape = rank == 2 && r->blhd ? q + 1 : q + 4 - rank;

    if ((r->out || run_backward(r)) &&
        npy_alloc(&a->out, d->type == ATTN_F32 ? NPY_F4 : NPY_F2, rank, out + 4 - rank))
        return cli_fail(CLI_NOTHING, "--out: no memory for it");
    if ((r->lse || run_backward(r)) && npy_alloc(&a->lse, NPY_F4, rank - 1, lse_shape))
        return cli_fail(CLI_NOTHING, "--lse: no memory for it");
    return CLI_GO;
}

static void make_views(const run_request *r, run_arrays *a)
{
    attn_softmax_desc *d = &a->desc;
    attn_args *args = &a->args;
    const int64_t *q = a->in[Q].size;
    const attn_tensor o = view(r, &a->out, d->type, q, d->dim_v);

    *args = (attn_args){ .size = sizeof *args,
                         .dropout_seed = (uint64_t)(r->seed < 0 ? 0 : r->seed),
                         .dropout_offset =
                             (uint64_t)(r->dropout_offset < 0 ? 0 : r->dropout_offset) };
    args->q = view(r, &a->in[Q].array, d->type, q, d->dim_qk);
    args->k = view(r, &a->in[K].array, d->type, a->in[K].size, d->dim_qk);
    args->v = view(r, &a->in[V].array, d->type, a->in[V].size, d->dim_v);
    if (r->out || run_backward(r))
        args->o = o;
    if (r->lse || run_backward(r)) {
        args->lse = attn_tensor_bhld(a->lse.data, ATTN_F32, q[0], q[1], q[2], 1);
        args->lse.data_bytes = a->lse.bytes;
    }
    run_view_extras(r, a);
    d->use |= ATTN_USE_LAYOUT;
    d->layout_q = run_layout_of(&args->q);
    d->layout_k = run_layout_of(&args->k);
    d->layout_v = run_layout_of(&args->v);
    d->layout_o = r->out || !r->lse || run_backward(r) ? run_layout_of(&o) : ATTN_LAYOUT_16;
}

int run_load(const run_request *r, run_arrays *a)
{
    const bool same_batch =
        !r->file[RUN_CU_Q] && !r->file[RUN_CU_K] && !r->file[RUN_BLOCK_TABLE];
    attn_type type = ATTN_TYPE_NONE;
    attn_status st;
    int status = CLI_GO;

    *a = (run_arrays){ .in = { { .file = r->q }, { .file = r->k }, { .file = r->v } } };
    for (int i = 0; i < RUN_INPUTS && status == CLI_GO; i++)
        status = run_load_input(&a->in[i], r->blhd);
    if (status != CLI_GO ||
        (status = run_check_shapes(a->in, r->blhd, same_batch)) != CLI_GO ||
        (status = run_choose_type(r->type, &a->in[Q], &type)) != CLI_GO ||
        (status = run_load_extras(r, a)) != CLI_GO)
        return status;
    describe(r, a, type, &a->desc);
    if ((status = run_sizes(r, a)) != CLI_GO)
        return status;
    if ((st = attn_softmax_check(&a->desc)) != ATTN_OK)
        return cli_fail_attn(st, NULL);
    if ((status = run_check_extras(r, a)) != CLI_GO)
        return status;
    for (int i = 0; i < RUN_INPUTS; i++)
        if ((status = run_round(&a->in[i], type)) != CLI_GO)
            return status;
    if ((status = make_outputs(r, a)) != CLI_GO)
        return status;
    make_views(r, a);
    return run_load_gradients(r, a);
}

/* A file that is there must be writable, else the folder it will lie in. */
static int check_output(const char *option, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder;
    struct stat st;
    int why = 0;

    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return cli_fail(CLI_BAD, "%s: %s is a folder, want a file", option, path);
        return access(path, W_OK) == 0 ? CLI_GO
                                       : cli_fail(CLI_BAD, "%s: cannot write '%s': %s",
                                                  option, path, strerror(errno));
    }
    folder = strdup(slash ? path : ".");
    if (!folder)
        return cli_fail(CLI_NOTHING, "no memory");
    if (slash)
        folder[slash - path + 1] = '\0';
    if (!*path)
        why = ENOENT;
    else if (access(folder, W_OK) != 0)
        why = errno;
    free(folder);
    return why ? cli_fail(CLI_BAD, "%s: cannot write '%s': %s", option, path, strerror(why))
               : CLI_GO;
}

/* Whether two paths name one regular file, spelled as they may be, there or not. A
 * device such as /dev/null may well take both. */
static bool same_file(const char *a, const char *b)
{
    const char *const path[2] = { a, b };
    const char *name[2];
    struct stat at[2], in[2];

    if (stat(a, &at[0]) == 0 && stat(b, &at[1]) == 0)
        return S_ISREG(at[0].st_mode) && at[0].st_dev == at[1].st_dev &&
               at[0].st_ino == at[1].st_ino;
    for (int i = 0; i < 2; i++) { /* not there yet: the same name in the same folder */
        const char *slash = strrchr(path[i], '/');
        char folder[4096];

        name[i] = slash ? slash + 1 : path[i];
        snprintf(folder, sizeof folder, "%.*s/", slash ? (int)(slash - path[i]) : 1,
                 slash ? path[i] : ".");
        if (stat(folder, &in[i]) != 0)
            return false;
    }
    return !strcmp(name[0], name[1]) && in[0].st_dev == in[1].st_dev &&
           in[0].st_ino == in[1].st_ino;
}

int run_check_files(const char *const option[], const char *const path[], int n)
{
    int status = CLI_GO;

    for (int i = 0; i < n && status == CLI_GO; i++)
        if (path[i])
            status = check_output(option[i], path[i]);
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n && status == CLI_GO; k++)
            if (path[i] && path[k] && same_file(path[i], path[k]))
                status = cli_fail(CLI_BAD, "%s %s and %s %s are one file; want two",
                                  option[i], path[i], option[k], path[k]);
    return status;
}

/* NumPy has no bf16. */
static int widen_bf16(const char *option, npy_array *a)
{
    npy_array wide;

    if (npy_alloc(&wide, NPY_F4, a->rank, a->shape))
        return cli_fail(CLI_NOTHING, "%s: no memory to write it as <f4", option);
    for (size_t i = 0; i < a->bytes / sizeof(uint16_t); i++)
        ((float *)wide.data)[i] = npy_bf16_to_float(((const uint16_t *)a->data)[i]);
    npy_free(a);
    *a = wide;
    return CLI_GO;
}

int run_save_files(const char *const option[], const char *const path[],
                   npy_array *const array[], int n, attn_type type)
{
    npy_output all[NPY_MOST_OUTPUTS];
    char err[512];
    int status = CLI_GO, wanted = 0;

    for (int i = 0; i < n; i++) {
        if (!path[i])
            continue;
        if (type == ATTN_BF16 && array[i]->type == NPY_F2 &&
            (status = widen_bf16(option[i], array[i])) != CLI_GO)
            return status;
        all[wanted++] = (npy_output){ path[i], array[i] };
    }
    if (wanted)
        cli_progress("writing %s", all[0].path);
    if (wanted && npy_save_all(all, wanted, err, sizeof err))
        status = cli_fail(CLI_BAD, "%s", err);
    return status;
}

enum { OUTPUTS = 2 + RUN_GRADS };

/* Every output with its option; files that are not asked for are NULL. */
static void list_outputs(const run_request *r, const char *option[OUTPUTS],
                         const char *path[OUTPUTS])
{
    option[0] = "--out";
    option[1] = "--lse";
    path[0] = r->out;
    path[1] = r->lse;
    for (int i = 0; i < RUN_GRADS; i++) {
        option[2 + i] = run_grads[i].option;
        path[2 + i] = r->grad[i];
    }
}

int run_check_outputs(const run_request *r)
{
    const char *option[OUTPUTS], *path[OUTPUTS];

    list_outputs(r, option, path);
    return run_check_files(option, path, OUTPUTS);
}

int run_save(const run_request *r, run_arrays *a)
{
    const char *option[OUTPUTS], *path[OUTPUTS];
    npy_array *array[OUTPUTS] = { &a->out, &a->lse };

    list_outputs(r, option, path);
    for (int i = 0; i < RUN_GRADS; i++)
        array[2 + i] = &a->grad[i];
    return run_save_files(option, path, array, OUTPUTS, a->desc.type);
}

void run_free(run_arrays *a)
{
    for (int i = 0; i < RUN_INPUTS; i++)
        npy_free(&a->in[i].array);
    for (int i = 0; i < RUN_FILES; i++)
        npy_free(&a->extra[i]);
    npy_free(&a->out);
    npy_free(&a->lse);
    for (int i = 0; i < RUN_GIVEN; i++)
        npy_free(&a->given[i].array);
    for (int i = 0; i < RUN_GRADS; i++)
        npy_free(&a->grad[i]);
}
