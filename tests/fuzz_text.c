/* SPDX-License-Identifier: MIT */
/* tests/fuzz_text.c: libFuzzer target; any bytes are a problem or plan that prints and
 * parses back to itself, or one line of error. Build and run: tests/fuzz.sh */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attn/attn.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)                                                      \
    do {                                                                   \
        if (!(cond)) {                                                     \
            fprintf(stderr, "not so: %s\n%s\n", #cond, attn_last_error()); \
            abort();                                                       \
        }                                                                  \
    } while (0)

static void refused(attn_status st)
{
    REQUIRE(st == ATTN_ERR_INVALID || st == ATTN_ERR_UNSUPPORTED);
    REQUIRE(attn_last_error()[0] != '\0');
}

/* What was parsed is a valid problem, and its text means the same problem. */
static void problem(const char *text)
{
    char one[512], two[512], cut[16];
    attn_softmax_desc desc, again;
    size_t n = 0, m = 0;
    const attn_status st = attn_softmax_parse(text, &desc);

    if (st != ATTN_OK) {
        REQUIRE(st == ATTN_ERR_INVALID);
        refused(st);
        return;
    }
    REQUIRE(attn_softmax_check(&desc) == ATTN_OK);
    REQUIRE(attn_softmax_text(&desc, one, sizeof one, &n) == ATTN_OK);
    REQUIRE(n == strlen(one) && n < sizeof one);
    REQUIRE(attn_softmax_parse(one, &again) == ATTN_OK);
    REQUIRE(attn_softmax_text(&again, two, sizeof two, NULL) == ATTN_OK);
    REQUIRE(!strcmp(one, two));
    REQUIRE(attn_softmax_text(&desc, cut, sizeof cut, &m) == ATTN_OK && m == n);
    REQUIRE(strlen(cut) == sizeof cut - 1 && !memcmp(one, cut, sizeof cut - 1));
}

static void linear_problem(const char *text)
{
    char one[512], two[512];
    attn_linear_desc desc, again;
    const attn_status st = attn_linear_parse(text, &desc);

    if (st != ATTN_OK) {
        REQUIRE(st == ATTN_ERR_INVALID);
        refused(st);
        return;
    }
    REQUIRE(attn_linear_check(&desc) == ATTN_OK);
    REQUIRE(attn_linear_text(&desc, one, sizeof one, NULL) == ATTN_OK);
    REQUIRE(attn_linear_parse(one, &again) == ATTN_OK);
    REQUIRE(attn_linear_text(&again, two, sizeof two, NULL) == ATTN_OK);
    REQUIRE(!strcmp(one, two));
}

/* The same for a plan's text: a plan prints what was read, but for its fields' order. */
static void plan(attn_ctx *ctx, const char *text)
{
    char one[1024], two[1024];
    attn_plan *p = NULL, *again = NULL;
    const attn_status st = attn_plan_parse(ctx, text, &p);

    if (st != ATTN_OK) {
        REQUIRE(!p);
        refused(st);
        return;
    }
    REQUIRE(attn_plan_text(p, one, sizeof one, NULL) == ATTN_OK);
    REQUIRE(attn_plan_parse(ctx, one, &again) == ATTN_OK);
    REQUIRE(attn_plan_text(again, two, sizeof two, NULL) == ATTN_OK);
    REQUIRE(!strcmp(one, two));
    attn_plan_destroy(&again);
    attn_plan_destroy(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static attn_ctx *ctx;
    char *text = malloc(size + 1);

    if (!text)
        return 0;
    if (!ctx)
        REQUIRE(attn_ctx_create("host", &ctx) == ATTN_OK);
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    problem(text);
    linear_problem(text);
    plan(ctx, text);
    free(text);
    return 0;
}
