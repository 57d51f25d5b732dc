/* SPDX-License-Identifier: MIT */
/* tools/trial.c: device memory around one execution. */
#include "trial.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "visible.h"

/* Behind the workspace, to see a step that writes too far. */
enum { WORKSPACE_GUARD = 256 };

static const char *const names[TRIAL_BLOCKS] = { "q", "k",   "v",        "lens_kv",
                                                 "o", "lse", "workspace" };

__attribute__((format(printf, 2, 3))) static bool wrong(trial *t, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(t->what, sizeof t->what, format, args);
    va_end(args);
    return false;
}

static bool failed(trial *t, attn_status st, const char *call)
{
    const char *text = attn_last_error();
    return wrong(t, "%s: %s: %s", call, attn_status_name(st),
                 *text ? text : attn_status_text(st));
}

int64_t trial_class_bytes(const attn_softmax_desc *d, trial_block tensor)
{
    const attn_layout layout[TRIAL_TENSORS] = {
        [TRIAL_Q] = d->layout_q,        [TRIAL_K] = d->layout_k,
        [TRIAL_V] = d->layout_v,        [TRIAL_O] = d->layout_o,
        [TRIAL_LENS] = ATTN_LAYOUT_ANY, [TRIAL_LSE] = ATTN_LAYOUT_ANY,
    };
    const bool fixed = tensor == TRIAL_LENS || tensor == TRIAL_LSE;

    switch (fixed || d->use & ATTN_USE_LAYOUT ? layout[tensor] : ATTN_LAYOUT_16) {
    case ATTN_LAYOUT_16: return 16;
    case ATTN_LAYOUT_8: return 8;
    case ATTN_LAYOUT_4: return 4;
    case ATTN_LAYOUT_ELEMENT: return (int64_t)attn_type_bytes(d->type);
    default: return 0;
    }
}

static void make_views(trial *t)
{
    const attn_softmax_desc *d = &t->in->desc;
    const int64_t b = d->batch, hq = d->heads_q, hkv = d->heads_kv, lq = d->len_q;
    const struct {
        attn_type type;
        int64_t size[4];
    } shape[TRIAL_TENSORS] = {
        [TRIAL_Q] = { d->type, { b, hq, lq, d->dim_qk } },
        [TRIAL_K] = { d->type, { b, hkv, d->len_kv, d->dim_qk } },
        [TRIAL_V] = { d->type, { b, hkv, d->len_kv, visible_dim_v(d) } },
        [TRIAL_LENS] = { ATTN_I32, { b, 1, 1, 1 } },
        [TRIAL_O] = { d->type, { b, hq, lq, visible_dim_v(d) } },
        [TRIAL_LSE] = { ATTN_F32, { b, hq, lq, 1 } },
    };

    for (int i = 0; i < TRIAL_TENSORS; i++) {
        if ((i == TRIAL_LENS && !t->in->lens) ||
            (i == TRIAL_LSE && !(d->use & ATTN_USE_LSE)))
            continue;
        t->view[i] = view_make(shape[i].type, shape[i].size,
                               trial_class_bytes(d, (trial_block)i), t->kind[i]);
        t->bytes[i] = t->view[i].tensor.data_bytes;
    }
    t->bytes[TRIAL_WORKSPACE] = attn_plan_workspace_bytes(t->plan);
    if (t->bytes[TRIAL_WORKSPACE])
        t->bytes[TRIAL_WORKSPACE] += WORKSPACE_GUARD;
}

static void put_inputs(trial *t)
{
    const inputs *in = t->in;

    view_put(&t->view[TRIAL_Q], t->image[TRIAL_Q], in->q, NULL);
    view_put(&t->view[TRIAL_K], t->image[TRIAL_K], in->k, in->seen);
    view_put(&t->view[TRIAL_V], t->image[TRIAL_V], in->v, in->seen);
    if (in->lens)
        view_put_lens(&t->view[TRIAL_LENS], t->image[TRIAL_LENS], in->lens);
}

static bool upload(trial *t, int block, const void *from)
{
    attn_status st = attn_memory_upload(t->ctx, t->memory[block], 0, from, t->bytes[block]);
    return st == ATTN_OK || failed(t, st, "attn_memory_upload");
}

static bool download(trial *t, int block, void *to)
{
    attn_status st = attn_memory_download(t->ctx, to, t->memory[block], 0, t->bytes[block]);
    return st == ATTN_OK || failed(t, st, "attn_memory_download");
}

static void set_args(trial *t)
{
    attn_tensor *to[TRIAL_TENSORS] = {
        [TRIAL_Q] = &t->args.q,          [TRIAL_K] = &t->args.k, [TRIAL_V] = &t->args.v,
        [TRIAL_LENS] = &t->args.lens_kv, [TRIAL_O] = &t->args.o, [TRIAL_LSE] = &t->args.lse,
    };

    t->args = (attn_args){ .size = sizeof t->args };
    for (int i = 0; i < TRIAL_TENSORS; i++) {
        if (!t->bytes[i])
            continue;
        *to[i] = t->view[i].tensor;
        to[i]->data = t->memory[i];
    }
    t->args.workspace = t->memory[TRIAL_WORKSPACE];
    t->args.workspace_bytes = attn_plan_workspace_bytes(t->plan);
}

bool trial_open(trial *t)
{
    const attn_softmax_desc *d = &t->in->desc;
    const size_t rows = (size_t)(d->batch * d->heads_q * d->len_q);

    make_views(t);
    for (int i = 0; i < TRIAL_BLOCKS; i++) {
        attn_status st;

        if (!t->bytes[i])
            continue;
        if ((st = attn_memory_alloc(t->ctx, t->bytes[i], &t->memory[i])) != ATTN_OK)
            return failed(t, st, "attn_memory_alloc");
        if (!(t->image[i] = malloc(t->bytes[i])))
            return wrong(t, "no memory for %zu bytes", t->bytes[i]);
        view_poison(t->image[i], t->bytes[i]);
    }
    t->o = calloc(rows * (size_t)visible_dim_v(d) + 1, sizeof *t->o);
    t->lse = d->use & ATTN_USE_LSE ? calloc(rows + 1, sizeof *t->lse) : NULL;
    if (!t->o || (!t->lse && d->use & ATTN_USE_LSE))
        return wrong(t, "no memory for the results");
    put_inputs(t);
    for (int i = 0; i < TRIAL_BLOCKS; i++)
        if (t->bytes[i] && !upload(t, i, t->image[i]))
            return false;
    set_args(t);
    return true;
}

static bool execute(trial *t)
{
    attn_status st = attn_execute(t->plan, &t->args, NULL);

    if (st != ATTN_OK)
        return failed(t, st, "attn_execute");
    st = attn_ctx_wait(t->ctx);
    return st == ATTN_OK || failed(t, st, "attn_ctx_wait");
}

bool trial_poison(trial *t)
{
    bool ok = true;

    for (int i = TRIAL_O; i <= TRIAL_LSE && ok; i++) {
        void *poison = t->bytes[i] ? malloc(t->bytes[i]) : NULL;

        if (!t->bytes[i])
            continue;
        if (!poison)
            return wrong(t, "no memory for %zu bytes", t->bytes[i]);
        view_poison(poison, t->bytes[i]);
        ok = upload(t, i, poison);
        free(poison);
    }
    return ok;
}

/* Reads an output anew and compares it with the image of the run before. */
static bool same_bits(trial *t, int block, const char *when)
{
    void *now = malloc(t->bytes[block]);
    size_t i = 0;
    bool same = false;

    if (!now) {
        wrong(t, "no memory for %zu bytes", t->bytes[block]);
    } else if (download(t, block, now)) {
        while (i < t->bytes[block] && ((char *)now)[i] == ((char *)t->image[block])[i])
            i++;
        same = i == t->bytes[block];
        if (!same)
            wrong(t, "%s differs %s, first at byte %zu of its buffer", names[block], when,
                  i);
    }
    free(now);
    return same;
}

static bool all_same(trial *t, int run)
{
    char when[48];

    snprintf(when, sizeof when, "between run 1 and run %d", run + 1);
    for (int i = TRIAL_O; i <= TRIAL_LSE; i++)
        if (t->bytes[i] && !same_bits(t, i, when))
            return false;
    return true;
}

static bool check_inputs(trial *t)
{
    for (int i = TRIAL_Q; i <= TRIAL_LENS; i++)
        if (t->bytes[i] && !same_bits(t, i, "from what was uploaded: an input was written"))
            return false;
    return true;
}

static bool check_workspace(trial *t)
{
    const size_t used = attn_plan_workspace_bytes(t->plan);
    size_t where = 0;

    if (!used)
        return true;
    if (!download(t, TRIAL_WORKSPACE, t->image[TRIAL_WORKSPACE]))
        return false;
    if (view_clean((char *)t->image[TRIAL_WORKSPACE] + used, WORKSPACE_GUARD, &where))
        return true;
    return wrong(t, "byte %zu behind a workspace of %zu was written", where, used);
}

/* Takes the results out of the images; what is left must be the poison. */
static bool take_outputs(trial *t)
{
    float *to[TRIAL_TENSORS] = { [TRIAL_O] = t->o, [TRIAL_LSE] = t->lse };

    for (int i = TRIAL_O; i <= TRIAL_LSE; i++) {
        void *copy;
        size_t where = 0;
        bool clean;

        if (!t->bytes[i])
            continue;
        if (!(copy = malloc(t->bytes[i])))
            return wrong(t, "no memory for %zu bytes", t->bytes[i]);
        memcpy(copy, t->image[i], t->bytes[i]);
        view_take(&t->view[i], copy, to[i]);
        clean = view_clean(copy, t->bytes[i], &where);
        free(copy);
        if (!clean)
            return wrong(t, "byte %zu of %s's buffer was written: it belongs to no element",
                         where, names[i]);
    }
    return true;
}

bool trial_run(trial *t)
{
    for (int run = 0; run < t->repeat; run++) {
        if (run > 0 && !trial_poison(t))
            return false;
        if (!execute(t))
            return false;
        for (int i = TRIAL_O; i <= TRIAL_LSE && run == 0; i++)
            if (t->bytes[i] && !download(t, i, t->image[i]))
                return false;
        if (run > 0 && !all_same(t, run))
            return false;
    }
    return check_inputs(t) && check_workspace(t) && take_outputs(t);
}

bool trial_run_without(trial *t, trial_block output)
{
    const int other = output == TRIAL_O ? TRIAL_LSE : TRIAL_O;
    attn_tensor *left_out = output == TRIAL_O ? &t->args.o : &t->args.lse;
    const attn_tensor kept = *left_out;
    char when[48];
    bool ok;

    snprintf(when, sizeof when, "when %s is left out", names[output]);
    *left_out = (attn_tensor){ 0 };
    ok = trial_poison(t) && execute(t) && same_bits(t, other, when);
    *left_out = kept;
    return ok;
}

bool trial_untouched(trial *t)
{
    for (int i = TRIAL_O; i <= TRIAL_LSE; i++) {
        size_t where = 0;

        if (!t->bytes[i])
            continue;
        if (!download(t, i, t->image[i]))
            return false;
        if (!view_clean(t->image[i], t->bytes[i], &where))
            return wrong(t, "byte %zu of %s's buffer was written by a call that failed",
                         where, names[i]);
    }
    return true;
}

void trial_free(trial *t)
{
    for (int i = 0; i < TRIAL_BLOCKS; i++) {
        attn_memory_free(t->ctx, &t->memory[i]);
        free(t->image[i]);
        t->image[i] = NULL;
        t->bytes[i] = 0;
    }
    free(t->o);
    free(t->lse);
    t->o = t->lse = NULL;
}
