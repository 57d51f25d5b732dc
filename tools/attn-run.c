/* SPDX-License-Identifier: MIT */
/* tools/attn-run.c: one operation on arrays from files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

enum {
    KEY_Q,
    KEY_K,
    KEY_V,
    KEY_OUT,
    KEY_LSE,
    KEY_CAUSAL,
    KEY_ALIGN,
    KEY_OFFSET,
    KEY_WINDOW,
    KEY_SCALE,
    KEY_SOFTCAP,
    KEY_DROPOUT,
    KEY_SEED,
    KEY_DROPOUT_OFFSET,
    KEY_PAGE_SIZE,
    KEY_SPLITS,
    KEY_TYPE,
    KEY_LAYOUT,
    KEY_VARIANT,
    KEY_REPEAT,
    KEY_ALLOW,
    KEY_EXPLAIN,
    KEY_FILES, /* and on: the files of features, in the order of run_files */
    KEY_GIVEN = KEY_FILES + RUN_FILES, /* and of gradients */
    KEY_GRADS = KEY_GIVEN + RUN_GIVEN
};

static const cli_option options[] = {
#define OPTION(name_, key_, value_, about_)                          \
    {                                                                \
        .name = name_, .key = key_, .value = value_, .about = about_ \
    }
    OPTION("q", KEY_Q, "Q.npy", "queries [B, Hq, Lq, D]; <f4, <f2 or <f8"),
    OPTION("k", KEY_K, "K.npy", "keys [B, Hkv, Lk, D]"),
    OPTION("v", KEY_V, "V.npy", "values [B, Hkv, Lk, Dv]"),
    OPTION("out", KEY_OUT, "O.npy", "write the result [B, Hq, Lq, Dv]"),
    OPTION("lse", KEY_LSE, "LSE.npy", "write the log of the sums of exp [B, Hq, Lq], <f4"),
    OPTION("causal", KEY_CAUSAL, "ALIGN", "hide later keys; top-left or bottom-right"),
    OPTION("align", KEY_ALIGN, "ALIGN", "the same alignment without causal, for windows"),
    OPTION("offset", KEY_OFFSET, "N|N.npy", "keys before the first query; a file: [B]"),
    OPTION("window", KEY_WINDOW, "LEFT,RIGHT", "keys seen beside one's own; -1: all"),
    OPTION("scale", KEY_SCALE, "X", "factor of the scores; default 1/sqrt(D)"),
    OPTION("softcap", KEY_SOFTCAP, "X", "cap of the scores; 0: none"),
    OPTION("bias", KEY_FILES + RUN_BIAS, "B.npy", "added to the scores; [B, Hq, Lq, Lk]"),
    OPTION("mask", KEY_FILES + RUN_MASK, "M.npy", "|b1, true: attend; [B, Hq, Lq, Lk]"),
    OPTION("alibi", KEY_FILES + RUN_ALIBI, "S.npy", "ALiBi slopes; [Hq] or [B, Hq]"),
    OPTION("sinks", KEY_FILES + RUN_SINKS, "S.npy", "a logit beside the keys; [Hq]"),
    OPTION("q-lens", KEY_FILES + RUN_Q_LENS, "N.npy", "queries of each batch [B]"),
    OPTION("kv-lens", KEY_FILES + RUN_KV_LENS, "N.npy", "keys of each batch [B]"),
    OPTION("cu-q", KEY_FILES + RUN_CU_Q, "CU.npy", "where packed queries begin [B + 1]"),
    OPTION("cu-k", KEY_FILES + RUN_CU_K, "CU.npy", "where packed keys begin [B + 1]"),
    OPTION("block-table", KEY_FILES + RUN_BLOCK_TABLE, "T.npy",
           "pages of each batch [B, N]"),
    OPTION("dropout", KEY_DROPOUT, "P", "of the weights that are dropped, 0 .. 1"),
    OPTION("seed", KEY_SEED, "S", "of dropout's random numbers; default 0"),
    OPTION("dropout-offset", KEY_DROPOUT_OFFSET, "N", "of their counter; default 0"),
    OPTION("grad-out", KEY_GIVEN + RUN_GRAD_OUT, "DO.npy",
           "the gradient of the result, of its shape"),
    OPTION("grad-lse", KEY_GIVEN + RUN_GRAD_LSE, "DLSE.npy", "that of the LSE"),
    OPTION("grad-q", KEY_GRADS + RUN_GRAD_Q, "DQ.npy", "write the gradient of Q"),
    OPTION("grad-k", KEY_GRADS + RUN_GRAD_K, "DK.npy", "... of K"),
    OPTION("grad-v", KEY_GRADS + RUN_GRAD_V, "DV.npy", "... of V"),
    OPTION("grad-bias", KEY_GRADS + RUN_GRAD_BIAS, "DB.npy", "... of the bias, <f4"),
    OPTION("grad-sinks", KEY_GRADS + RUN_GRAD_SINKS, "DS.npy", "... of the sinks, <f4"),
    OPTION("page-size", KEY_PAGE_SIZE, "N", "keys of a page; K, V are [pages, Hkv, N, D]"),
    OPTION("splits", KEY_SPLITS, "N", "pieces of the keys, in variants that split them"),
    OPTION("type", KEY_TYPE, "TYPE", "compute in f32, f16 or bf16; default: as Q.npy"),
    OPTION("layout", KEY_LAYOUT, "LAYOUT", "bhld, or blhd for [B, L, H, D] files"),
    OPTION("variant", KEY_VARIANT, "NAME", "use this variant, or fail"),
    OPTION("repeat", KEY_REPEAT, "N", "run N times, print the median, compare all bits"),
    OPTION("allow", KEY_ALLOW, "WHAT", "what the result may give up for speed: tf32"),
    OPTION("explain", KEY_EXPLAIN, NULL, "print the plan; run only with an output"),
#undef OPTION
    { .name = NULL },
};

static int take_operation(run_request *r, const char *word)
{
    if (r->operation)
        return cli_fail(CLI_BAD, "unexpected argument '%s'; see attn-run --help", word);
    if (!strcmp(word, "linear"))
        return cli_fail(CLI_BAD, "linear must stand first: attn-run linear --q ...");
    if (strcmp(word, "softmax"))
        return cli_fail(CLI_BAD, "operation '%s', want softmax or linear", word);
    r->operation = word;
    return CLI_GO;
}

static int take_align(const char *option, const char *value, int *align)
{
    static const char *const words[] = { "top-left", "bottom-right", NULL };
    static const attn_align aligns[] = { ATTN_ALIGN_TOP_LEFT, ATTN_ALIGN_BOTTOM_RIGHT };
    int i = 0, status = cli_word(option, value, words, &i);

    if (status == CLI_GO)
        *align = (int)aligns[i];
    return status;
}

static int take_type(const char *value, attn_type *type)
{
    static const char *const words[] = { "f32", "f16", "bf16", NULL };
    static const attn_type types[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
    int i = 0, status = cli_word("--type", value, words, &i);

    if (status == CLI_GO)
        *type = types[i];
    return status;
}

/* A file holds one number a batch. */
static int take_offset(const char *value, run_request *r)
{
    const size_t n = strlen(value);

    if (strchr(value, '/') || (n > 4 && !strcmp(value + n - 4, ".npy"))) {
        r->file[RUN_OFFSETS] = value;
        return CLI_GO;
    }
    r->desc.use |= ATTN_USE_OFFSET;
    return cli_integer("--offset", value, INT32_MIN, INT32_MAX, &r->desc.offset);
}

static int take_window(const char *value, attn_softmax_desc *d)
{
    const char *comma = strchr(value, ',');
    char left[32];
    int status;

    if (!comma || comma - value >= (ptrdiff_t)sizeof left)
        return cli_fail(CLI_BAD, "--window is '%s', want LEFT,RIGHT", value);
    snprintf(left, sizeof left, "%.*s", (int)(comma - value), value);
    d->use |= ATTN_USE_WINDOW;
    status = cli_integer("--window LEFT", left, -1, INT32_MAX, &d->window_left);
    if (status == CLI_GO)
        status = cli_integer("--window RIGHT", comma + 1, -1, INT32_MAX, &d->window_right);
    return status;
}

static int take_float(const char *option, const char *value, float *out)
{
    double x = 0;
    int status = cli_number(option, value, &x);

    if (status == CLI_GO && !isfinite((float)x))
        return cli_fail(CLI_BAD, "%s is %s, want a number that f32 holds", option, value);
    *out = (float)x;
    return status;
}

static int take(void *to, int key, const char *value)
{
    run_request *r = to;
    static const char *const layouts[] = { "bhld", "blhd", NULL };
    static const char *const allowed[] = { "tf32", NULL };
    int i = 0, status = CLI_GO;

    if (key >= KEY_FILES) {
        *(key >= KEY_GRADS   ? &r->grad[key - KEY_GRADS]
          : key >= KEY_GIVEN ? &r->given[key - KEY_GIVEN]
                             : &r->file[key - KEY_FILES]) = value;
        return CLI_GO;
    }
    switch (key) {
    case CLI_ARGUMENT: return take_operation(r, value);
    case KEY_Q: r->q = value; break;
    case KEY_K: r->k = value; break;
    case KEY_V: r->v = value; break;
    case KEY_OUT: r->out = value; break;
    case KEY_LSE: r->lse = value; break;
    case KEY_VARIANT: r->variant = value; break;
    case KEY_EXPLAIN: r->explain = true; break;
    case KEY_CAUSAL: return take_align("--causal", value, &r->causal);
    case KEY_ALIGN: return take_align("--align", value, &r->align);
    case KEY_OFFSET: return take_offset(value, r);
    case KEY_WINDOW: return take_window(value, &r->desc);
    case KEY_TYPE: return take_type(value, &r->type);
    case KEY_REPEAT: return cli_integer("--repeat", value, 1, 1000000, &r->repeat);
    case KEY_SPLITS: return cli_integer("--splits", value, 1, 4096, &r->splits);
    case KEY_PAGE_SIZE:
        return cli_integer("--page-size", value, 1, INT32_MAX, &r->desc.page_size);
    case KEY_SCALE:
        r->desc.use |= ATTN_USE_SCALE;
        return take_float("--scale", value, &r->desc.scale);
    case KEY_SOFTCAP:
        r->desc.use |= ATTN_USE_SOFTCAP;
        return take_float("--softcap", value, &r->desc.softcap);
    case KEY_DROPOUT:
        r->desc.use |= ATTN_USE_DROPOUT;
        return take_float("--dropout", value, &r->desc.dropout);
    case KEY_SEED: return cli_integer("--seed", value, 0, INT64_MAX, &r->seed);
    case KEY_DROPOUT_OFFSET:
        return cli_integer("--dropout-offset", value, 0, INT64_MAX, &r->dropout_offset);
    case KEY_ALLOW:
        r->desc.use |= ATTN_USE_ALLOW_TF32;
        return cli_word("--allow", value, allowed, &i);
    case KEY_LAYOUT:
        status = cli_word("--layout", value, layouts, &i);
        r->blhd = i == 1;
        break;
    }
    return status;
}

static const cli_tool tool = {
    .name = "attn-run",
    .usage = "softmax --q Q.npy --k K.npy --v V.npy --out O.npy [OPTION]...\n"
             "softmax --q Q.npy --k K.npy --v V.npy --grad-out DO.npy --grad-q DQ.npy ...\n"
             "softmax --q Q.npy --k K.npy --v V.npy --explain [OPTION]...\n"
             "linear --q Q.npy --k K.npy --v V.npy --out O.npy [OPTION]...",
    .about = "Computes attention on NumPy arrays: O = softmax(scale Q K^T) V, or linear\n"
             "attention, whose options attn-run linear --help lists. Arrays of\n"
             "three or two dimensions get leading ones. Other float types than the one to\n"
             "compute in are rounded to it; bf16 is written as <f4. With --grad-out (or\n"
             "--grad-lse) gradients too.",
    .options = options,
    .take = take,
};

static int check_pages(const run_request *r)
{
    if (r->file[RUN_BLOCK_TABLE] && !r->desc.page_size)
        return cli_fail(CLI_BAD, "--block-table wants --page-size beside it");
    if (r->desc.page_size && !r->file[RUN_BLOCK_TABLE])
        return cli_fail(CLI_BAD, "--page-size wants --block-table beside it");
    if (r->file[RUN_BLOCK_TABLE] && r->file[RUN_CU_K])
        return cli_fail(CLI_BAD, "--cu-k and --block-table: keys are packed or in pages, "
                                 "give one of them");
    return CLI_GO;
}

/* Whether there is anything to write. */
static bool wants_run(const run_request *r)
{
    return r->out || r->lse || run_backward(r);
}

/* What options ask of each other. */
static int check_request(const run_request *r)
{
    const struct {
        const char *option, *value;
    } needed[] = {
        { "--q", r->q },
        { "--k", r->k },
        { "--v", r->v },
    };
    const int bottom_right = ATTN_ALIGN_BOTTOM_RIGHT;
    int status;

    if (!r->operation)
        return cli_fail(CLI_BAD,
                        "no operation; want attn-run softmax ... or attn-run linear "
                        "...");
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (!needed[i].value)
            return cli_fail(CLI_BAD, "%s is missing; give it a .npy file",
                            needed[i].option);
    if (!wants_run(r) && !r->explain && !(r->given[RUN_GRAD_OUT] || r->given[RUN_GRAD_LSE]))
        return cli_fail(CLI_BAD,
                        "--out is missing; give --out, --lse, a gradient or --explain");
    if (!wants_run(r) && r->repeat)
        return cli_fail(CLI_BAD, "--repeat wants a run: give --out or --lse");
    if (r->causal >= 0 && r->align >= 0 && r->causal != r->align)
        return cli_fail(CLI_BAD, "--causal and --align differ; there is one alignment");
    if ((r->desc.use & ATTN_USE_OFFSET || r->file[RUN_OFFSETS]) &&
        (r->causal == bottom_right || r->align == bottom_right))
        return cli_fail(CLI_BAD, "--offset counts from top-left; give it without "
                                 "bottom-right");
    if ((r->seed >= 0 || r->dropout_offset >= 0) && !(r->desc.use & ATTN_USE_DROPOUT))
        return cli_fail(CLI_BAD, "%s wants --dropout beside it",
                        r->seed >= 0 ? "--seed" : "--dropout-offset");
    status = check_pages(r);
    return status == CLI_GO ? run_check_gradients(r) : status;
}

void run_print_times(const attn_device_info *device, const run_times *t)
{
    printf("device  %s: %s\nplan    %s\nmedian  %.6g ms of %lld run%s (%.6g .. %.6g ms)\n",
           device->selector, device->name, t->plan, (double)t->median_ns / 1e6,
           (long long)t->runs, t->runs == 1 ? "" : "s", (double)t->least_ns / 1e6,
           (double)t->most_ns / 1e6);
}

void run_times_json(cJSON *document, const run_times *t)
{
    cJSON *list;

    cli_json_text(document, "plan", t->plan);
    cJSON_AddNumberToObject(document, "runs", (double)t->runs);
    cJSON_AddNumberToObject(document, "median_ns", (double)t->median_ns);
    list = cJSON_AddArrayToObject(document, "times_ns");
    for (int64_t i = 0; i < t->runs; i++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)t->ns[i]));
    cJSON_AddBoolToObject(document, "same_bits", !t->differs[0]);
}

static void files_json(cJSON *document, const run_request *r, bool written)
{
    const struct {
        const char *name, *file;
    } all[] = {
        { "q", r->q },
        { "k", r->k },
        { "v", r->v },
        { "out", written ? r->out : NULL },
        { "lse", written ? r->lse : NULL },
    };
    cJSON *files = cJSON_AddObjectToObject(document, "files");

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].file)
            cli_json_text(files, all[i].name, all[i].file);
    for (int i = 0; i < RUN_FILES; i++)
        if (r->file[i])
            cli_json_text(files, run_files[i].name, r->file[i]);
    for (int i = 0; i < RUN_GIVEN; i++)
        if (r->given[i])
            cli_json_text(files, run_given[i].name, r->given[i]);
    for (int i = 0; i < RUN_GRADS; i++)
        if (r->grad[i] && written)
            cli_json_text(files, run_grads[i].name, r->grad[i]);
}

/* O and the LSE, which a backward problem begins with. */
static int run_forward(const run_request *r, attn_ctx *ctx, run_arrays *a)
{
    const attn_options opts = run_options(r, false);
    attn_status st;

    cli_progress("running");
    st = attn_softmax_forward_host_args(ctx, &a->desc, &opts, &a->args);
    return st == ATTN_OK ? CLI_GO : cli_fail_attn(st, NULL);
}

/* The device path: planned once, timed, compared. */
static int run_timed(const run_request *r, attn_ctx *ctx, const attn_device_info *device,
                     run_arrays *a, cJSON *document)
{
    run_times times = { .plan = NULL };
    int status = run_backward(r) ? run_forward(r, ctx, a) : CLI_GO;
    run_job job;

    run_make_job(r, a, &job);
    if (status == CLI_GO)
        status = run_repeat(ctx, &job, r->repeat ? r->repeat : 1, &times);
    if (status == CLI_GO && !times.differs[0])
        status = run_save(r, a);
    cli_progress_end();
    if (status == CLI_GO && document) {
        run_times_json(document, &times);
        files_json(document, r, !times.differs[0]);
    } else if (status == CLI_GO) {
        run_print_times(device, &times);
    }
    if (status == CLI_GO && times.differs[0])
        status = cli_fail(CLI_FAILED, "%s; nothing was written", times.differs);
    run_times_free(&times);
    return status;
}

static int run_plain(const run_request *r, attn_ctx *ctx, run_arrays *a)
{
    const attn_options opts = run_options(r, true);
    attn_status st = ATTN_OK;
    const int status = run_forward(r, ctx, a);

    if (status != CLI_GO)
        return status;
    if (run_backward(r))
        st = attn_softmax_backward_host_args(ctx, &a->back, &opts, &a->back_args);
    return st == ATTN_OK ? run_save(r, a) : cli_fail_attn(st, NULL);
}

static int run_on(const run_request *r, attn_ctx *ctx, run_arrays *a, cJSON *document)
{
    const bool backward = run_backward(r);
    const attn_options opts = run_options(r, backward);
    attn_device_info device;
    attn_status st;
    problem p;
    int status;

    if ((st = attn_ctx_info(ctx, &device)) != ATTN_OK)
        return cli_fail_attn(st, NULL);
    if (document) {
        cli_json_text(document, "version", attn_version());
        cli_json_text(document, "device", device.selector);
        cli_json_text(document, "device_name", device.name);
    }
    p = problem_of_softmax(backward ? &a->back : &a->desc);
    if (r->explain && (status = cli_explain(ctx, &p, &opts, document)) != CLI_GO)
        return status;
    if (!wants_run(r))
        return CLI_GO;
    return r->repeat || document ? run_timed(r, ctx, &device, a, document)
                                 : run_plain(r, ctx, a);
}

int main(int argc, char **argv)
{
    run_request r = { .causal = -1, .align = -1, .seed = -1, .dropout_offset = -1 };
    run_arrays arrays = { .desc = { 0 } };
    cJSON *document = NULL;
    attn_ctx *ctx = NULL;
    int status;

    if (argc > 1 && !strcmp(argv[1], "linear"))
        return run_linear(argc, argv);
    status = cli_parse(&tool, argc, argv, &r.common, &r);

    if (status == CLI_GO && (status = check_request(&r)) == CLI_GO &&
        (status = run_check_outputs(&r)) == CLI_GO &&
        (status = run_load(&r, &arrays)) == CLI_GO &&
        (status = cli_open(&r.common, &ctx)) == CLI_GO) {
        document = r.common.json ? cJSON_CreateObject() : NULL;
        status = run_on(&r, ctx, &arrays, document);
    }
    if (document && (status == CLI_GO || status == CLI_FAILED ||
                     cJSON_HasObjectItem(document, "explanation"))) {
        const int printed = cli_json_print(document);
        status = printed == CLI_GO ? status : printed;
    } else {
        cJSON_Delete(document);
    }
    attn_ctx_destroy(&ctx);
    run_free(&arrays);
    return cli_end(status == CLI_GO ? CLI_OK : status);
}
