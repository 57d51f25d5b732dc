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

    t->no_memory = st == ATTN_ERR_NO_MEMORY;
    return wrong(t, "%s: %s: %s", call, attn_status_name(st),
                 *text ? text : attn_status_text(st));
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
    t->args = (attn_args){ .size = sizeof t->args,
                           .dropout_seed = t->in->dropout_seed,
                           .dropout_offset = t->in->dropout_offset };
    for (int i = 0; i < TRIAL_TENSORS; i++) {
        attn_tensor *to = trial_arg(&t->args, (trial_block)i);

        if (!t->bytes[i])
            continue;
        *to = t->view[i].tensor;
        to->data = t->memory[i];
    }
    t->args.workspace = t->memory[TRIAL_WORKSPACE];
    t->args.workspace_bytes = attn_plan_workspace_bytes(t->plan);
}

static bool allocate(trial *t)
{
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
    return true;
}

bool trial_is_output(const trial *t, int block)
{
    const bool backward = t->in->desc.use & ATTN_USE_GRAD;

    if (!t->bytes[block])
        return false;
    if (backward)
        return (block >= TRIAL_GRAD_Q && block <= TRIAL_GRAD_SINKS) ||
               block >= TRIAL_GRAD_STATE_IN;
    return block == TRIAL_O || block == TRIAL_LSE ||
           (block >= TRIAL_DEN && block <= TRIAL_Z_OUT);
}

/* The next output after a block; TRIAL_TENSORS: there is none. */
static int next_output(const trial *t, int block)
{
    for (block++; block < TRIAL_TENSORS; block++)
        if (trial_is_output(t, block))
            return block;
    return TRIAL_TENSORS;
}

#define EACH_OUTPUT(t, i) \
    for (int i = next_output(t, -1); i < TRIAL_TENSORS; i = next_output(t, i))

/* The result of linear attention that a block holds. */
static linear_output output_of(int block)
{
    switch (block) {
    case TRIAL_GRAD_Q: return LINEAR_GRAD_Q;
    case TRIAL_GRAD_K: return LINEAR_GRAD_K;
    case TRIAL_GRAD_V: return LINEAR_GRAD_V;
    case TRIAL_DEN: return LINEAR_DEN;
    case TRIAL_STATE_OUT: return LINEAR_STATE_OUT;
    case TRIAL_Z_OUT: return LINEAR_Z_OUT;
    case TRIAL_GRAD_STATE_IN: return LINEAR_GRAD_STATE_IN;
    case TRIAL_GRAD_Z_IN: return LINEAR_GRAD_Z_IN;
    default: return LINEAR_O;
    }
}

static float *result_of(const trial *t, int block)
{
    if (t->in->is_linear)
        return t->linear[output_of(block)];
    return block == TRIAL_O     ? t->o
           : block == TRIAL_LSE ? t->lse
                                : t->grad[block - TRIAL_GRAD_Q];
}

/* Room for the results; false: memory is out. */
static bool make_results(trial *t)
{
    const attn_softmax_desc *d = &t->in->desc;
    const size_t rows = (size_t)(d->batch * d->heads_q * d->len_q);
    bool there = true;

    if (t->in->is_linear) {
        for (int i = 0; i < LINEAR_OUTPUTS && there; i++)
            if (linear_output_wanted(&t->in->linear, (linear_output)i)) {
                const int64_t n = linear_output_count(&t->in->linear, (linear_output)i);

                t->linear[i] = calloc((size_t)n + 1, sizeof *t->linear[i]);
                there = t->linear[i];
            }
        return there;
    }
    if (!(d->use & ATTN_USE_GRAD)) {
        t->o = calloc(rows * (size_t)visible_dim_v(d) + 1, sizeof *t->o);
        t->lse = d->use & ATTN_USE_LSE ? calloc(rows + 1, sizeof *t->lse) : NULL;
        return t->o && (t->lse || !(d->use & ATTN_USE_LSE));
    }
    for (gradient g = GRADIENT_Q; g < GRADIENTS; g++)
        if (gradient_wanted(d, g)) {
            t->grad[g] = calloc((size_t)gradient_count(t->in, g) + 1, sizeof *t->grad[g]);
            there = there && t->grad[g];
        }
    return there;
}

bool trial_open(trial *t)
{
    trial_make_views(t);
    t->bytes[TRIAL_WORKSPACE] = attn_plan_workspace_bytes(t->plan);
    if (t->bytes[TRIAL_WORKSPACE])
        t->bytes[TRIAL_WORKSPACE] += WORKSPACE_GUARD;
    if (!allocate(t))
        return false;
    if (!make_results(t))
        return wrong(t, "no memory for the results");
    trial_put_inputs(t);
    for (int i = 0; i < TRIAL_BLOCKS; i++)
        if (t->bytes[i] && !upload(t, i, t->image[i]))
            return false;
    set_args(t);
    return true;
}

static bool execute(trial *t)
{
    attn_status st =
        t->execute ? t->execute(t, t->with) : attn_execute(t->plan, &t->args, NULL);

    if (st != ATTN_OK)
        return t->what[0] ? false : failed(t, st, "attn_execute");
    if (t->execute)
        return true;
    st = attn_ctx_wait(t->ctx);
    return st == ATTN_OK || failed(t, st, "attn_ctx_wait");
}

bool trial_poison(trial *t)
{
    bool ok = true;

    EACH_OUTPUT(t, i)
    {
        void *poison = ok ? malloc(t->bytes[i]) : NULL;

        if (!ok)
            break;
        if (!poison)
            return wrong(t, "no memory for %zu bytes", t->bytes[i]);
        view_poison(poison, t->bytes[i]);
        ok = upload(t, i, poison);
        free(poison);
    }
    if (ok && t->bytes[TRIAL_STATUS])
        ok = upload(t, TRIAL_STATUS, t->image[TRIAL_STATUS]);
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
            wrong(t, "%s differs %s, first at byte %zu of its buffer",
                  trial_name((trial_block)block), when, i);
    }
    free(now);
    return same;
}

bool trial_same(trial *t, trial_block output, const char *when)
{
    return !t->bytes[output] || same_bits(t, output, when);
}

static bool all_same(trial *t, int run)
{
    char when[48];

    snprintf(when, sizeof when, "between run 1 and run %d", run + 1);
    EACH_OUTPUT(t, i)
    if (!t->any_bits && !same_bits(t, i, when))
        return false;
    return true;
}

static bool check_inputs(trial *t)
{
    for (int i = 0; i < TRIAL_TENSORS; i++)
        if (t->bytes[i] && i != TRIAL_STATUS && !trial_is_output(t, i) &&
            !same_bits(t, i, "from what was uploaded: an input was written"))
            return false;
    return true;
}

/* The word holds what it began with and the bits of what was clamped, and nothing
 * around it was written. */
static bool check_status(trial *t)
{
    const attn_tensor *word = &t->view[TRIAL_STATUS].tensor;
    const int32_t preset = trial_preset_status();
    int32_t must, may, have, back;
    int32_t *now;
    bool ok;

    if (!t->bytes[TRIAL_STATUS])
        return true;
    if (!(now = malloc(t->bytes[TRIAL_STATUS])))
        return wrong(t, "no memory for %zu bytes", t->bytes[TRIAL_STATUS]);
    ok = download(t, TRIAL_STATUS, now);
    have = ok ? now[word->offset] : 0;
    visible_clamped(t->in, &must, &may);
    back = ((int32_t *)t->image[TRIAL_STATUS])[word->offset];
    now[word->offset] = back;
    if (ok &&
        ((have & (must | preset)) != (must | preset) || have & ~(must | may | preset)))
        ok = wrong(t, "status is 0x%x, want 0x%x%s", (unsigned)have,
                   (unsigned)(must | preset),
                   may & ~must ? " or a bit for a page more" : "");
    else if (ok && memcmp(now, t->image[TRIAL_STATUS], t->bytes[TRIAL_STATUS]) != 0)
        ok = wrong(t, "memory around the status word was written");
    free(now);
    return ok;
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

/* Takes the results of query i, or with -1 of all queries, out of the images; what is
 * left must be the poison. */
static bool take_outputs(trial *t, int64_t row)
{
    EACH_OUTPUT(t, i)
    {
        void *copy;
        size_t where = 0;
        bool clean;

        if (!(copy = malloc(t->bytes[i])))
            return wrong(t, "no memory for %zu bytes", t->bytes[i]);
        memcpy(copy, t->image[i], t->bytes[i]);
        trial_take(t, (trial_block)i, copy, row, result_of(t, i));
        clean = view_clean(copy, t->bytes[i], &where);
        free(copy);
        if (!clean)
            return wrong(t,
                         "byte %zu of %s's buffer was written: it belongs to no element "
                         "of a query or key",
                         where, trial_name((trial_block)i));
    }
    return true;
}

static bool download_outputs(trial *t)
{
    EACH_OUTPUT(t, i)
    if (!download(t, i, t->image[i]))
        return false;
    return true;
}

static bool check(trial *t)
{
    return check_inputs(t) && check_status(t) && check_workspace(t) && take_outputs(t, -1);
}

bool trial_collect(trial *t)
{
    return download_outputs(t) && check(t);
}

bool trial_run(trial *t)
{
    for (int run = 0; run < t->repeat; run++) {
        if (run > 0 && !trial_poison(t))
            return false;
        if (!execute(t))
            return false;
        if (run == 0 ? !download_outputs(t) : !all_same(t, run))
            return false;
    }
    return check(t);
}

bool trial_run_row(trial *t, int64_t i)
{
    return execute(t) && download_outputs(t) && take_outputs(t, i);
}

bool trial_run_without(trial *t, trial_block output)
{
    attn_tensor *left_out = trial_arg(&t->args, output);
    const attn_tensor kept = *left_out;
    char when[48];
    bool ok;

    snprintf(when, sizeof when, "when %s is left out", trial_name(output));
    *left_out = (attn_tensor){ .type = ATTN_TYPE_NONE };
    ok = trial_poison(t) && execute(t);
    EACH_OUTPUT(t, i)
    ok = ok && (i == (int)output || t->any_bits || same_bits(t, i, when));
    *left_out = kept;
    return ok;
}

bool trial_untouched(trial *t)
{
    EACH_OUTPUT(t, i)
    {
        size_t where = 0;

        if (!download(t, i, t->image[i]))
            return false;
        if (!view_clean(t->image[i], t->bytes[i], &where))
            return wrong(t, "byte %zu of %s's buffer was written by a call that failed",
                         where, trial_name((trial_block)i));
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
    for (gradient g = GRADIENT_Q; g < GRADIENTS; g++) {
        free(t->grad[g]);
        t->grad[g] = NULL;
    }
    for (int i = 0; i < LINEAR_OUTPUTS; i++) {
        free(t->linear[i]);
        t->linear[i] = NULL;
    }
}
