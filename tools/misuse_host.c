/* SPDX-License-Identifier: MIT */
/* tools/misuse_host.c: wrong numbers in host memory, which the library sees before it
 * launches anything. */
#include <stdio.h>
#include <string.h>

#include "compare.h"
#include "inputs.h"
#include "misuse.h"
#include "oracle.h"
#include "trial.h"
#include "visible.h"

/* Element n of a list of a trial in host memory. */
static int32_t *entry(trial *t, trial_block list, int64_t n)
{
    const attn_tensor *v = &t->view[list].tensor;
    return (int32_t *)t->memory[list] + v->offset + n * v->stride[0];
}

/* Each changes one number, and gives it back. */
typedef struct mistake {
    const char *name;
    misuse_base base;
    trial_block list;
    int64_t at;
    int32_t value;
    const char *word;
} mistake;

static const mistake mistakes[] = {
    { "host memory: a key length of -1", MISUSE_PLAIN, TRIAL_LENS, 0, -1, "lens_kv[0]" },
    { "host memory: more keys than K has", MISUSE_PLAIN, TRIAL_LENS, 0, 8, "lens_kv[0]" },
    { "host memory: a query length of -1", MISUSE_TERMS, TRIAL_LENS_Q, 1, -1, "lens_q[1]" },
    { "host memory: more queries than Q has", MISUSE_TERMS, TRIAL_LENS_Q, 2, 6,
      "lens_q[2]" },
    { "host memory: boundaries of queries that begin at -1", MISUSE_PACKED, TRIAL_CU_Q, 0,
      -1, "cu_q[0]" },
    { "host memory: descending boundaries of queries", MISUSE_PACKED, TRIAL_CU_Q, 1, -2,
      "cu_q[1]" },
    { "host memory: boundaries of queries past the tokens", MISUSE_PACKED, TRIAL_CU_Q, 3,
      INT32_MAX, "cu_q[3]" },
    { "host memory: descending boundaries of keys", MISUSE_PACKED, TRIAL_CU_K, 3, -2,
      "cu_k[3]" },
    { "host memory: boundaries of keys past the tokens", MISUSE_PACKED, TRIAL_CU_K, 3,
      INT32_MAX, "cu_k[3]" },
    { "host memory: a page of -1 that is needed", MISUSE_PAGES, TRIAL_TABLE, 0, -1,
      "block_table[0, 0]" },
    { "host memory: a page past the last that is needed", MISUSE_PAGES, TRIAL_TABLE, 0,
      INT32_MAX, "block_table[0, 0]" },
    { "host memory: more keys than the pages hold", MISUSE_PAGES, TRIAL_LENS, 1, 8,
      "lens_kv[1]" },
};

static void make(attn_ctx *ctx, trial *t, const mistake *m, misuse_report *report, void *to)
{
    int32_t *number = entry(t, m->list, m->at);
    const int32_t right = *number;
    const char *wrong;

    *number = m->value;
    wrong = misuse_judge(attn_softmax_forward_host_args(ctx, &t->in->desc, NULL, &t->args),
                         ATTN_ERR_INVALID, m->word);
    *number = right;
    if (!wrong && !trial_untouched(t))
        wrong = t->what;
    report(to, m->name, wrong);
}

/* The right call: every feature through attn_softmax_forward_host_args(). */
static const char *run_right(attn_ctx *ctx, attn_ctx *host, trial *t)
{
    static char text[300];
    comparison c;
    oracle ref;

    if (attn_softmax_forward_host_args(ctx, &t->in->desc, NULL, &t->args) != ATTN_OK)
        return attn_last_error();
    if (!trial_collect(t))
        return t->what;
    if (oracle_run(host, t->in, &ref) != ATTN_OK) {
        snprintf(text, sizeof text, "%s", ref.what);
        return text;
    }
    compare(t->in, &ref, t->o, t->lse, false, &c);
    oracle_free(&ref);
    snprintf(text, sizeof text, "%s", c.what);
    return c.share > 1 ? text : NULL;
}

/* Inputs whose first batch has keys, so that its first page is needed. */
static bool make_inputs(inputs *in, const attn_softmax_desc *d, uint64_t seed)
{
    for (int i = 0; i < 64; i++) {
        inputs_free(in);
        if (!inputs_make(in, d, (input_how){ .kind = INPUT_NORMAL }, seed + (uint64_t)i))
            return false;
        if (visible_batch_of(in, 0).keys > 0)
            return true;
    }
    return true;
}

static void run_base(attn_ctx *ctx, attn_ctx *host, misuse_base base, uint64_t seed,
                     const char *name, misuse_report *report, void *to)
{
    const attn_softmax_desc d = misuse_problem(base);
    inputs in = { .desc = d };
    attn_plan *plan = NULL;
    trial t = { .ctx = host, .in = &in, .repeat = 1 };
    const char *wrong = NULL;

    if (!make_inputs(&in, &d, seed)) {
        wrong = "no memory for the inputs";
    } else if (attn_plan_softmax(host, &d, &plan) != ATTN_OK) {
        wrong = attn_last_error();
    } else {
        t.plan = plan;
        if (!trial_open(&t))
            wrong = t.what;
    }
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0] && !wrong; i++)
        if (mistakes[i].base == base)
            make(ctx, &t, &mistakes[i], report, to);
    if (!wrong)
        wrong = run_right(ctx, host, &t);
    report(to, name, wrong);
    trial_free(&t);
    attn_plan_destroy(&plan);
    inputs_free(&in);
}

void misuse_host(attn_ctx *ctx, attn_ctx *host, uint64_t seed, misuse_report *report,
                 void *to)
{
    static const char *const names[MISUSE_BASES] = {
        "host memory: key lengths",
        "host memory: bias, mask, slopes, sinks, query lengths, offsets",
        "host memory: packed sequences",
        "host memory: pages",
    };

    for (int base = 0; base < MISUSE_BASES; base++)
        run_base(ctx, host, (misuse_base)base, seed, names[base], report, to);
}
