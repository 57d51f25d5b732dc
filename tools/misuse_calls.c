/* SPDX-License-Identifier: MIT */
/* tools/misuse_calls.c: mistakes in the tensors of a call; numbers in device memory that
 * must be clamped. */
#include <stdio.h>
#include <string.h>

#include "inputs.h"
#include "misuse.h"
#include "trial.h"

enum { WILD_LISTS = 12 };

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

/* Of the features. */

static void bias_missing(attn_args *a)
{
    a->bias = (attn_tensor){ 0 };
}
static void bias_size(attn_args *a)
{
    a->bias.size[3] = 8;
}
static void bias_heads(attn_args *a)
{
    a->bias.size[1] = 3;
}
static void bias_type(attn_args *a)
{
    a->bias.type = ATTN_F16;
}
static void bias_beyond(attn_args *a)
{
    a->bias.offset += (int64_t)(a->bias.data_bytes / sizeof(float));
}
static void mask_type(attn_args *a)
{
    a->mask.type = ATTN_F32;
}
static void mask_missing(attn_args *a)
{
    a->mask = (attn_tensor){ 0 };
}
static void slopes_heads(attn_args *a)
{
    a->alibi.size[1]--;
}
static void sinks_heads(attn_args *a)
{
    a->sinks.size[1]++;
}
static void lens_q_missing(attn_args *a)
{
    a->lens_q = (attn_tensor){ 0 };
}
static void lens_q_type(attn_args *a)
{
    a->lens_q.type = ATTN_F32;
}
static void offsets_size(attn_args *a)
{
    a->offsets.size[0]--;
}
static void bias_given(attn_args *a)
{
    a->bias = a->q;
}
static void table_given(attn_args *a)
{
    a->block_table = a->lens_kv;
}
static void cu_given(attn_args *a)
{
    a->cu_q = a->lens_kv;
}
static void sinks_given(attn_args *a)
{
    a->sinks = a->q;
}
static void status_type(attn_args *a)
{
    a->status = a->lens_kv;
    a->status.type = ATTN_F32;
}
static void status_in_lens(attn_args *a)
{
    a->status = a->lens_kv;
}
static void cu_q_size(attn_args *a)
{
    a->cu_q.size[0]--;
}
static void cu_k_missing(attn_args *a)
{
    a->cu_k = (attn_tensor){ 0 };
}
static void o_tokens(attn_args *a)
{
    a->o.size[2]--;
}
static void v_tokens(attn_args *a)
{
    a->v.size[2]--;
}
static void q_batches(attn_args *a)
{
    a->q.size[0] = 3;
}
static void table_missing(attn_args *a)
{
    a->block_table = (attn_tensor){ 0 };
}
static void table_batches(attn_args *a)
{
    a->block_table.size[0]--;
}
static void table_beyond(attn_args *a)
{
    a->block_table.size[1] += 1000;
}
static void v_pages(attn_args *a)
{
    a->v.size[0]--;
}
static void k_page_size(attn_args *a)
{
    a->k.size[2]--;
}

static const struct {
    const char *name;
    void (*make)(attn_args *args);
    attn_status want;
    const char *word;
    bool of_workspace; /* there only if the plan needs one */
    misuse_base base;
} calls[] = {
    { "call: Q without memory", q_null, ATTN_ERR_INVALID, "q.data", false, MISUSE_PLAIN },
    { "call: Q of another type", q_type, ATTN_ERR_INVALID, "q.type", false, MISUSE_PLAIN },
    { "call: more queries than planned", q_longer, ATTN_ERR_INVALID, "q.size[2]", false,
      MISUSE_PLAIN },
    { "call: K of another size D", k_dim, ATTN_ERR_INVALID, "k.size[3]", false,
      MISUSE_PLAIN },
    { "call: V of fewer heads", v_heads, ATTN_ERR_INVALID, "v.size[1]", false,
      MISUSE_PLAIN },
    { "call: V shorter than K", v_length, ATTN_ERR_INVALID, "v.size[2]", false,
      MISUSE_PLAIN },
    { "call: V beyond the end of its buffer", v_beyond, ATTN_ERR_INVALID, "v ", false,
      MISUSE_PLAIN },
    { "call: Q before the start of its buffer", q_backwards, ATTN_ERR_INVALID, "q ", false,
      MISUSE_PLAIN },
    { "call: Q not contiguous in D", q_spread, ATTN_ERR_INVALID, "q.stride[3]", false,
      MISUSE_PLAIN },
    { "call: K rows not aligned as planned", k_stride, ATTN_ERR_INVALID, "k.stride[2]",
      false, MISUSE_PLAIN },
    { "call: O not aligned as planned", o_offset, ATTN_ERR_INVALID, "o ", false,
      MISUSE_PLAIN },
    { "call: O in the memory of Q", o_in_q, ATTN_ERR_INVALID, "o overlaps q", false,
      MISUSE_PLAIN },
    { "call: O's heads in one place", o_one_head, ATTN_ERR_INVALID, "o has strides", false,
      MISUSE_PLAIN },
    { "call: lengths left out", no_lens, ATTN_ERR_INVALID, "lens_kv", false, MISUSE_PLAIN },
    { "call: lengths of another type", lens_type, ATTN_ERR_INVALID, "lens_kv.type", false,
      MISUSE_PLAIN },
    { "call: no workspace", no_workspace, ATTN_ERR_WORKSPACE, "workspace", true,
      MISUSE_PLAIN },
    { "call: a workspace one byte short", small_workspace, ATTN_ERR_WORKSPACE, "workspace",
      true, MISUSE_PLAIN },
    { "call: bias left out", bias_missing, ATTN_ERR_INVALID, "bias is missing", false,
      MISUSE_TERMS },
    { "call: a bias that does not broadcast", bias_size, ATTN_ERR_INVALID, "bias.size[3]",
      false, MISUSE_TERMS },
    { "call: a bias of more heads", bias_heads, ATTN_ERR_INVALID, "bias.size[1]", false,
      MISUSE_TERMS },
    { "call: a bias of another type", bias_type, ATTN_ERR_INVALID, "bias.type", false,
      MISUSE_TERMS },
    { "call: a bias beyond the end of its buffer", bias_beyond, ATTN_ERR_INVALID, "bias ",
      false, MISUSE_TERMS },
    { "call: mask left out", mask_missing, ATTN_ERR_INVALID, "mask is missing", false,
      MISUSE_TERMS },
    { "call: a mask that is not bool", mask_type, ATTN_ERR_INVALID, "mask.type", false,
      MISUSE_TERMS },
    { "call: too few slopes", slopes_heads, ATTN_ERR_INVALID, "alibi.size[1]", false,
      MISUSE_TERMS },
    { "call: too many sinks", sinks_heads, ATTN_ERR_INVALID, "sinks.size[1]", false,
      MISUSE_TERMS },
    { "call: query lengths left out", lens_q_missing, ATTN_ERR_INVALID, "lens_q is missing",
      false, MISUSE_TERMS },
    { "call: query lengths of another type", lens_q_type, ATTN_ERR_INVALID, "lens_q.type",
      false, MISUSE_TERMS },
    { "call: too few offsets", offsets_size, ATTN_ERR_INVALID, "offsets.size[0]", false,
      MISUSE_TERMS },
    { "call: a bias that was not planned", bias_given, ATTN_ERR_INVALID, "bias is given",
      false, MISUSE_PLAIN },
    { "call: sinks that were not planned", sinks_given, ATTN_ERR_INVALID, "sinks is given",
      false, MISUSE_PLAIN },
    { "call: boundaries that were not planned", cu_given, ATTN_ERR_INVALID, "cu_q is given",
      false, MISUSE_PLAIN },
    { "call: a block table that was not planned", table_given, ATTN_ERR_INVALID,
      "block_table is given", false, MISUSE_PLAIN },
    { "call: a status word of another type", status_type, ATTN_ERR_INVALID, "status.type",
      false, MISUSE_PLAIN },
    { "call: a status word in the memory of an input", status_in_lens, ATTN_ERR_INVALID,
      "status overlaps", false, MISUSE_PLAIN },
    { "call: too few boundaries", cu_q_size, ATTN_ERR_INVALID, "cu_q.size[0]", false,
      MISUSE_PACKED },
    { "call: boundaries left out", cu_k_missing, ATTN_ERR_INVALID, "cu_k is missing", false,
      MISUSE_PACKED },
    { "call: O of fewer tokens than Q", o_tokens, ATTN_ERR_INVALID, "o.size[2]", false,
      MISUSE_PACKED },
    { "call: V of fewer tokens than K", v_tokens, ATTN_ERR_INVALID, "v.size[2]", false,
      MISUSE_PACKED },
    { "call: packed Q of several batches", q_batches, ATTN_ERR_INVALID, "q.size[0]", false,
      MISUSE_PACKED },
    { "call: block table left out", table_missing, ATTN_ERR_INVALID,
      "block_table is missing", false, MISUSE_PAGES },
    { "call: a block table of fewer batches", table_batches, ATTN_ERR_INVALID,
      "block_table.size[0]", false, MISUSE_PAGES },
    { "call: a block table beyond the end of its buffer", table_beyond, ATTN_ERR_INVALID,
      "block_table", false, MISUSE_PAGES },
    { "call: V of fewer pages than K", v_pages, ATTN_ERR_INVALID, "v.size[0]", false,
      MISUSE_PAGES },
    { "call: pages of another size", k_page_size, ATTN_ERR_INVALID, "k.size[2]", false,
      MISUSE_PAGES },
};

static void run_calls(trial *t, misuse_base base, misuse_report *report, void *to)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        attn_args args = t->args;
        attn_status st;
        const char *wrong;

        if (calls[i].base != base || (calls[i].of_workspace && !args.workspace_bytes))
            continue;
        calls[i].make(&args);
        st = attn_execute(t->plan, &args, NULL);
        wrong = misuse_judge(st, calls[i].want, calls[i].word);
        attn_ctx_wait(t->ctx);
        if (!wrong && !trial_untouched(t))
            wrong = t->what;
        report(to, calls[i].name, wrong);
    }
}

/* A right call of a base, with mistakes before it or with lists that must be clamped.
 * NULL or what was wrong, until the next call. */
static const char *run_once(attn_ctx *ctx, misuse_base base, bool wild, uint64_t seed,
                            misuse_report *report, void *to)
{
    static char what[700];
    const attn_softmax_desc d = misuse_problem(base);
    const input_how how = { .kind = INPUT_NORMAL, .wild_lists = wild };
    inputs in = { .desc = d };
    attn_plan *plan = NULL;
    trial t = { .ctx = ctx, .in = &in, .repeat = 1, .status = true };
    const char *wrong = NULL;

    if (!inputs_make(&in, &d, how, seed))
        return "no memory for the inputs";
    if (attn_plan_softmax(ctx, &d, &plan) != ATTN_OK)
        wrong = attn_last_error();
    t.plan = plan;
    if (!wrong && !trial_open(&t))
        wrong = t.what;
    if (!wrong && !wild)
        run_calls(&t, base, report, to);
    if (!wrong && !trial_run(&t))
        wrong = t.what;
    snprintf(what, sizeof what, "%s", wrong ? wrong : "");
    trial_free(&t);
    attn_plan_destroy(&plan);
    inputs_free(&in);
    return wrong ? what : NULL;
}

/* Several lists, for each way in which one can be wrong. */
static void run_base(attn_ctx *ctx, misuse_base base, bool wild, uint64_t seed,
                     const char *name, misuse_report *report, void *to)
{
    const char *wrong = NULL;

    for (int i = 0; i < (wild ? WILD_LISTS : 1) && !wrong; i++)
        wrong = run_once(ctx, base, wild, seed + (uint64_t)i, report, to);
    report(to, name, wrong);
}

void misuse_calls(attn_ctx *ctx, uint64_t seed, misuse_report *report, void *to)
{
    static const char *const names[MISUSE_BASES][2] = {
        { "call: a right one after all mistakes",
          "device memory: key lengths are clamped" },
        { "call: a right one with bias, mask, slopes, sinks after all mistakes",
          "device memory: query lengths are clamped" },
        { "call: a right one of packed sequences after all mistakes",
          "device memory: boundaries are clamped" },
        { "call: a right one of pages after all mistakes",
          "device memory: pages and key lengths are clamped" },
    };

    for (int base = 0; base < MISUSE_BASES; base++)
        for (int wild = 0; wild < 2; wild++)
            run_base(ctx, (misuse_base)base, wild, seed, names[base][wild], report, to);
}
