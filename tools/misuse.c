/* SPDX-License-Identifier: MIT */
/* tools/misuse.c: the table of mistakes, and what must come of them. */
#include "misuse.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "inputs.h"
#include "trial.h"

/* What every mistake starts from: a call that is right. */
static attn_softmax_desc right(void)
{
    return (attn_softmax_desc){
        .size = sizeof(attn_softmax_desc),
        .use = ATTN_USE_LENS_KV | ATTN_USE_LSE,
        .type = ATTN_F32,
        .batch = 1,
        .heads_q = 2,
        .heads_kv = 2,
        .len_q = 5,
        .len_kv = 7,
        .dim_qk = 16,
    };
}

/* Mistakes in planning. */

static void three_two(attn_softmax_desc *d)
{
    d->heads_q = 3;
}
static void odd_group(attn_softmax_desc *d)
{
    d->heads_q = 33;
}
static void no_kv_heads(attn_softmax_desc *d)
{
    d->heads_kv = 0;
}
static void no_dim(attn_softmax_desc *d)
{
    d->dim_qk = 0;
}
static void negative_length(attn_softmax_desc *d)
{
    d->len_kv = -1;
}
static void integer_type(attn_softmax_desc *d)
{
    d->type = ATTN_I32;
}
static void unknown_use(attn_softmax_desc *d)
{
    d->use |= 1u << 31;
}

static void scale_nan(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_SCALE;
    d->scale = NAN;
}

static void softcap_negative(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_SOFTCAP;
    d->softcap = -1;
}

static void softcap_two(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_SOFTCAP;
    d->softcap = 2;
}

static void offset_and_align(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_OFFSET | ATTN_USE_ALIGN;
    d->align = ATTN_ALIGN_BOTTOM_RIGHT;
    d->offset = 1;
}

static const struct {
    const char *name;
    void (*make)(attn_softmax_desc *d);
    const char *variant; /* asked for by name; NULL: none               */
    attn_status want;
    const char *word; /* stands in attn_last_error()                 */
} plans[] = {
    { "plan: 3 query heads for 2 key heads", three_two, NULL, ATTN_ERR_INVALID, "heads_q" },
    { "plan: 33 query heads for 2 key heads", odd_group, NULL, ATTN_ERR_INVALID,
      "heads_q" },
    { "plan: query heads without key heads", no_kv_heads, NULL, ATTN_ERR_INVALID,
      "heads_kv" },
    { "plan: D = 0", no_dim, NULL, ATTN_ERR_INVALID, "dim_qk" },
    { "plan: a negative length", negative_length, NULL, ATTN_ERR_INVALID, "len_kv" },
    { "plan: a type that is no float", integer_type, NULL, ATTN_ERR_INVALID, "type" },
    { "plan: an unknown use bit", unknown_use, NULL, ATTN_ERR_INVALID, "use" },
    { "plan: scale NaN", scale_nan, NULL, ATTN_ERR_INVALID, "scale" },
    { "plan: softcap -1", softcap_negative, NULL, ATTN_ERR_INVALID, "softcap" },
    { "plan: offset beside align=br", offset_and_align, NULL, ATTN_ERR_INVALID, "offset" },
    { "plan: softcap 2, which no variant takes", softcap_two, NULL, ATTN_ERR_UNSUPPORTED,
      "softcap" },
    { "plan: a variant that does not exist", NULL, "softmax_fwd_none", ATTN_ERR_INVALID,
      "variant" },
};

/* Mistakes in a call. */

static void q_null(attn_args *a)
{
    a->q.data = NULL;
}
static void q_type(attn_args *a)
{
    a->q.type = ATTN_F16;
}
static void k_dim(attn_args *a)
{
    a->k.size[3]++;
}
static void v_heads(attn_args *a)
{
    a->v.size[1]--;
}
static void v_length(attn_args *a)
{
    a->v.size[2]--;
}
static void q_spread(attn_args *a)
{
    a->q.stride[3] = 2;
}
static void k_stride(attn_args *a)
{
    a->k.stride[2]++;
}
static void o_offset(attn_args *a)
{
    a->o.offset++;
}
static void o_in_q(attn_args *a)
{
    a->o = a->q;
}
static void o_one_head(attn_args *a)
{
    a->o.stride[1] = 0;
}
static void q_backwards(attn_args *a)
{
    a->q.stride[2] = -a->q.stride[2];
}
static void no_lens(attn_args *a)
{
    a->lens_kv = (attn_tensor){ 0 };
}
static void lens_type(attn_args *a)
{
    a->lens_kv.type = ATTN_F32;
}
static void no_workspace(attn_args *a)
{
    a->workspace = NULL;
}
static void small_workspace(attn_args *a)
{
    a->workspace_bytes--;
}

static void q_longer(attn_args *a)
{
    a->q.size[2]++;
    a->o.size[2]++;
    a->lse.size[2]++;
}

static void v_beyond(attn_args *a)
{
    a->v.offset += (int64_t)(a->v.data_bytes / sizeof(float));
}

static const struct {
    const char *name;
    void (*make)(attn_args *args);
    attn_status want;
    const char *word;
    bool of_workspace; /* there only if the plan needs one */
} calls[] = {
    { "call: Q without memory", q_null, ATTN_ERR_INVALID, "q.data", false },
    { "call: Q of another type", q_type, ATTN_ERR_INVALID, "q.type", false },
    { "call: more queries than planned", q_longer, ATTN_ERR_INVALID, "q.size[2]", false },
    { "call: K of another size D", k_dim, ATTN_ERR_INVALID, "k.size[3]", false },
    { "call: V of fewer heads", v_heads, ATTN_ERR_INVALID, "v.size[1]", false },
    { "call: V shorter than K", v_length, ATTN_ERR_INVALID, "v.size[2]", false },
    { "call: V beyond the end of its buffer", v_beyond, ATTN_ERR_INVALID, "v ", false },
    { "call: Q before the start of its buffer", q_backwards, ATTN_ERR_INVALID, "q ",
      false },
    { "call: Q not contiguous in D", q_spread, ATTN_ERR_INVALID, "q.stride[3]", false },
    { "call: K rows not aligned as planned", k_stride, ATTN_ERR_INVALID, "k.stride[2]",
      false },
    { "call: O not aligned as planned", o_offset, ATTN_ERR_INVALID, "o ", false },
    { "call: O in the memory of Q", o_in_q, ATTN_ERR_INVALID, "o overlaps q", false },
    { "call: O's heads in one place", o_one_head, ATTN_ERR_INVALID, "o has strides",
      false },
    { "call: lengths left out", no_lens, ATTN_ERR_INVALID, "lens_kv", false },
    { "call: lengths of another type", lens_type, ATTN_ERR_INVALID, "lens_kv.type", false },
    { "call: no workspace", no_workspace, ATTN_ERR_WORKSPACE, "workspace", true },
    { "call: a workspace one byte short", small_workspace, ATTN_ERR_WORKSPACE, "workspace",
      true },
};

/* NULL if status and text are as they must be; otherwise what is wrong. */
static const char *judge(attn_status have, attn_status want, const char *word)
{
    static char text[512];

    if (have != want)
        snprintf(text, sizeof text, "status %s, want %s%s%.300s", attn_status_name(have),
                 attn_status_name(want), have == ATTN_OK ? "" : ": ",
                 have == ATTN_OK ? "" : attn_last_error());
    else if (!strstr(attn_last_error(), word))
        snprintf(text, sizeof text, "the error does not name \"%s\": %.300s", word,
                 attn_last_error());
    else
        return NULL;
    return text;
}

static void run_plans(attn_ctx *ctx, misuse_report *report, void *to)
{
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        const attn_options options = { .size = sizeof options,
                                       .variant = plans[i].variant };
        attn_softmax_desc d = right();
        attn_plan *plan = NULL;
        const char *wrong;

        if (plans[i].make)
            plans[i].make(&d);
        wrong = judge(attn_plan_softmax_with(ctx, &d, &options, &plan), plans[i].want,
                      plans[i].word);
        report(to, plans[i].name, plan ? "a plan came out of a call that failed" : wrong);
        attn_plan_destroy(&plan);
    }
}

static void run_calls(trial *t, misuse_report *report, void *to)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        attn_args args = t->args;
        attn_status st;
        const char *wrong;

        if (calls[i].of_workspace && !args.workspace_bytes)
            continue;
        calls[i].make(&args);
        st = attn_execute(t->plan, &args, NULL);
        wrong = judge(st, calls[i].want, calls[i].word);
        attn_ctx_wait(t->ctx);
        if (!wrong && !trial_untouched(t))
            wrong = t->what;
        report(to, calls[i].name, wrong);
    }
}

void misuse_run(attn_ctx *ctx, uint64_t seed, misuse_report *report, void *to)
{
    const attn_softmax_desc d = right();
    inputs in;
    attn_plan *plan = NULL;
    trial t = { .ctx = ctx, .in = &in, .repeat = 1 };

    run_plans(ctx, report, to);
    if (!inputs_make(&in, &d, INPUT_NORMAL, false, seed)) {
        report(to, "call: mistakes", "no memory for the inputs");
        return;
    }
    if (attn_plan_softmax(ctx, &d, &plan) != ATTN_OK) {
        report(to, "call: mistakes", attn_last_error());
        goto done;
    }
    t.plan = plan;
    if (trial_open(&t)) {
        run_calls(&t, report, to);
        report(to, "call: a right one after all mistakes", trial_run(&t) ? NULL : t.what);
    } else {
        report(to, "call: mistakes", t.what);
    }

done:
    trial_free(&t);
    attn_plan_destroy(&plan);
    inputs_free(&in);
}
