/* SPDX-License-Identifier: MIT */
/* tools/misuse.c: mistakes in planning: a table of them, and what must come of each. */
#include "misuse.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

attn_softmax_desc misuse_problem(misuse_base base)
{
    static const uint32_t use[MISUSE_BASES] = {
        [MISUSE_PLAIN] = ATTN_USE_LENS_KV,
        [MISUSE_TERMS] = ATTN_USE_BIAS | ATTN_USE_MASK | ATTN_USE_ALIBI | ATTN_USE_SINKS |
                         ATTN_USE_LENS_Q | ATTN_USE_OFFSETS | ATTN_USE_CAUSAL,
        [MISUSE_PACKED] = ATTN_USE_PACKED_Q | ATTN_USE_PACKED_K,
        [MISUSE_PAGES] = ATTN_USE_PAGES | ATTN_USE_LENS_KV,
    };

    return (attn_softmax_desc){
        .size = sizeof(attn_softmax_desc),
        .use = use[base] | ATTN_USE_LSE,
        .type = ATTN_F32,
        .type_bias = ATTN_F32,
        .batch = base == MISUSE_PLAIN ? 1 : 3,
        .heads_q = 2,
        .heads_kv = 2,
        .len_q = 5,
        .len_kv = 7,
        .dim_qk = 16,
        .page_size = 3,
    };
}

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

static void dropout_beyond(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_DROPOUT;
    d->dropout = 1.5f;
}

static void window_below(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_WINDOW;
    d->window_left = -2;
    d->window_right = 0;
}

static void window_below_right(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_WINDOW;
    d->window_right = -2;
}

static void offset_and_align(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_OFFSET | ATTN_USE_ALIGN;
    d->align = ATTN_ALIGN_BOTTOM_RIGHT;
    d->offset = 1;
}

static void offsets_and_align(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_OFFSETS | ATTN_USE_ALIGN;
    d->align = ATTN_ALIGN_BOTTOM_RIGHT;
}

static void offsets_and_offset(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_OFFSETS | ATTN_USE_OFFSET;
    d->offset = 1;
}

static void pages_and_packed(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_PAGES | ATTN_USE_PACKED_K;
}

static void pages_of_nothing(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_PAGES;
    d->page_size = 0;
}

static void bias_of_integers(attn_softmax_desc *d)
{
    d->use |= ATTN_USE_BIAS;
    d->type_bias = ATTN_I32;
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
    { "plan: dropout 1.5", dropout_beyond, NULL, ATTN_ERR_INVALID, "dropout" },
    { "plan: offset beside align=br", offset_and_align, NULL, ATTN_ERR_INVALID, "offset" },
    { "plan: a window of -2 keys to the left", window_below, NULL, ATTN_ERR_INVALID,
      "window_left" },
    { "plan: a window of -2 keys to the right", window_below_right, NULL, ATTN_ERR_INVALID,
      "window_right" },
    { "plan: offsets beside align=br", offsets_and_align, NULL, ATTN_ERR_INVALID,
      "offsets" },
    { "plan: offsets beside an offset", offsets_and_offset, NULL, ATTN_ERR_INVALID,
      "offsets" },
    { "plan: pages beside packed keys", pages_and_packed, NULL, ATTN_ERR_INVALID,
      "page_size" },
    { "plan: pages of 0 keys", pages_of_nothing, NULL, ATTN_ERR_INVALID, "page_size" },
    { "plan: a bias of integers", bias_of_integers, NULL, ATTN_ERR_INVALID, "type_bias" },
    { "plan: a variant that does not exist", NULL, "softmax_fwd_none", ATTN_ERR_INVALID,
      "variant" },
};

const char *misuse_judge(attn_status have, attn_status want, const char *word)
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
        attn_softmax_desc d = misuse_problem(MISUSE_PLAIN);
        attn_plan *plan = NULL;
        const char *wrong;

        if (plans[i].make)
            plans[i].make(&d);
        wrong = misuse_judge(attn_plan_softmax_with(ctx, &d, &options, &plan),
                             plans[i].want, plans[i].word);
        report(to, plans[i].name, plan ? "a plan came out of a call that failed" : wrong);
        attn_plan_destroy(&plan);
    }
}

void misuse_run(attn_ctx *ctx, attn_ctx *host, uint64_t seed, misuse_report *report,
                void *to)
{
    run_plans(ctx, report, to);
    misuse_calls(ctx, seed, report, to);
    misuse_host(ctx, host, seed, report, to);
}
