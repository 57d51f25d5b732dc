/* SPDX-License-Identifier: MIT */
/* tools/run_linear.c: attn-run linear: its options, and what is run. */
#include "run_linear.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    KEY_Q,
    KEY_K,
    KEY_V, /* in the order of RUN_Q .. */
    KEY_CAUSAL,
    KEY_MAP,
    KEY_NORMALIZE,
    KEY_EPS,
    KEY_SCALE,
    KEY_RULE,
    KEY_TYPE,
    KEY_LAYOUT,
    KEY_VARIANT,
    KEY_REPEAT,
    KEY_ALLOW,
    KEY_EXPLAIN,
    KEY_FILES,
    KEY_OUTPUTS = KEY_FILES + LINEAR_FILES
};

static const cli_option options[] = {
#define OPTION(name_, key_, value_, about_)                          \
    {                                                                \
        .name = name_, .key = key_, .value = value_, .about = about_ \
    }
#define INPUT(which, name, value, about) \
    OPTION(name, KEY_FILES + LINEAR_##which, value, about)
#define OUTPUT(which, name, value, about) \
    OPTION(name, KEY_OUTPUTS + LINEAR_##which, value, about)
    OPTION("q", KEY_Q, "Q.npy", "queries [B, Hq, Lq, D]; <f4, <f2 or <f8"),
    OPTION("k", KEY_K, "K.npy", "keys [B, Hkv, Lk, D]"),
    OPTION("v", KEY_V, "V.npy", "values [B, Hkv, Lk, Dv]"),
    OUTPUT(O, "out", "O.npy", "write the result [B, Hq, Lq, Dv]"),
    OPTION("causal", KEY_CAUSAL, NULL, "query l sees keys 0 .. l; without: all"),
    OPTION("feature-map", KEY_MAP, "MAP", "of queries and keys: identity, elu1 or relu"),
    OPTION("normalize", KEY_NORMALIZE, NULL, "divide by the sum of the weights, plus eps"),
    OPTION("eps", KEY_EPS, "X", "added to the denominator; default 1e-6"),
    OPTION("scale", KEY_SCALE, "X", "factor of the mapped queries; default 1"),
    OPTION("rule", KEY_RULE, "RULE",
           "linear, gated, delta or gated-delta; all but linear "
           "want --causal"),
    INPUT(DECAY, "decay", "G.npy", "logarithms of the decay [B, Hkv, Lk, D or 1]"),
    INPUT(BETA, "beta", "B.npy", "strengths of the delta rule [B, Hkv, Lk, 1]"),
    INPUT(KV_LENS, "kv-lens", "N.npy", "keys of each batch [B]"),
    INPUT(STATE_IN, "state-in", "S.npy", "the state to begin with [B, Hkv, D, Dv]"),
    INPUT(Z_IN, "z-in", "Z.npy", "its sum of keys [B, Hkv, D], with --normalize"),
    OUTPUT(STATE_OUT, "state-out", "S.npy", "write the state after the last key, <f4"),
    OUTPUT(Z_OUT, "z-out", "Z.npy", "write its sum of keys, <f4"),
    OUTPUT(DEN, "den", "DEN.npy", "write the denominators [B, Hq, Lq], <f4"),
    INPUT(GRAD_OUT, "grad-out", "DO.npy", "the gradient of the result, of its shape"),
    INPUT(GRAD_STATE_OUT, "grad-state-out", "DS.npy",
          "that of the state after the last key"),
    INPUT(GRAD_Z_OUT, "grad-z-out", "DZ.npy", "that of its sum of keys"),
    OUTPUT(GRAD_Q, "grad-q", "DQ.npy", "write the gradient of Q"),
    OUTPUT(GRAD_K, "grad-k", "DK.npy", "... of K"),
    OUTPUT(GRAD_V, "grad-v", "DV.npy", "... of V"),
    OUTPUT(GRAD_STATE_IN, "grad-state-in", "DS.npy", "... of the state to begin with, <f4"),
    OUTPUT(GRAD_Z_IN, "grad-z-in", "DZ.npy", "... of its sum of keys, <f4"),
    OPTION("type", KEY_TYPE, "TYPE", "compute in f32, f16 or bf16; default: as Q.npy"),
    OPTION("layout", KEY_LAYOUT, "LAYOUT", "bhld, or blhd for [B, L, H, D] files"),
    OPTION("variant", KEY_VARIANT, "NAME", "use this variant, or fail"),
    OPTION("repeat", KEY_REPEAT, "N", "run N times, print the median, compare all bits"),
    OPTION("allow", KEY_ALLOW, "WHAT", "what it may give up: tf32, nondet, tf32+nondet"),
    OPTION("explain", KEY_EXPLAIN, NULL, "print the plan; run only with an output"),
#undef OUTPUT
#undef INPUT
#undef OPTION
    { .name = "grad-decay", .value = "DG.npy", .absent = "gradients of decay and beta" },
    { .name = "grad-beta", .value = "DB.npy", .absent = "gradients of decay and beta" },
    { .name = NULL },
};

static int take_number(const char *option, const char *value, float *out)
{
    double x = 0;
    int status = cli_number(option, value, &x);

    if (status == CLI_GO && !isfinite((float)x))
        return cli_fail(CLI_BAD, "%s is %s, want a number that f32 holds", option, value);
    *out = (float)x;
    return status;
}

static int take_word(linear_request *r, int key, const char *value)
{
    static const char *const maps[] = { "identity", "elu1", "relu", NULL };
    static const char *const rules[] = { "linear", "gated", "delta", "gated-delta", NULL };
    static const char *const types[] = { "f32", "f16", "bf16", NULL };
    static const char *const layouts[] = { "bhld", "blhd", NULL };
    static const char *const allowed[] = { "tf32", "nondet", "tf32+nondet", NULL };
    static const uint32_t use_of[] = { ATTN_LINEAR_ALLOW_TF32, ATTN_LINEAR_ALLOW_NONDET,
                                       ATTN_LINEAR_ALLOW_TF32 | ATTN_LINEAR_ALLOW_NONDET };
    static const attn_type type_of[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
    int i = 0, status = CLI_GO;

    switch (key) {
    case KEY_MAP:
        status = cli_word("--feature-map", value, maps, &i);
        r->desc.use |= ATTN_LINEAR_PHI;
        r->desc.phi = (attn_phi)i;
        break;
    case KEY_RULE:
        status = cli_word("--rule", value, rules, &i);
        r->desc.use |= ATTN_LINEAR_RULE;
        r->desc.rule = (attn_rule)i;
        break;
    case KEY_TYPE:
        status = cli_word("--type", value, types, &i);
        r->type = type_of[i];
        break;
    case KEY_LAYOUT:
        status = cli_word("--layout", value, layouts, &i);
        r->blhd = i == 1;
        break;
    case KEY_ALLOW:
        status = cli_word("--allow", value, allowed, &i);
        r->desc.use |= use_of[i];
        break;
    }
    return status;
}

static int take(void *to, int key, const char *value)
{
    linear_request *r = to;

    if (key >= KEY_FILES) {
        *(key >= KEY_OUTPUTS ? &r->out[key - KEY_OUTPUTS] : &r->file[key - KEY_FILES]) =
            value;
        return CLI_GO;
    }
    switch (key) {
    case CLI_ARGUMENT:
        return cli_fail(CLI_BAD, "unexpected argument '%s'; see attn-run linear --help",
                        value);
    case KEY_Q:
    case KEY_K:
    case KEY_V: r->in[key - KEY_Q] = value; return CLI_GO;
    case KEY_CAUSAL: r->desc.use |= ATTN_LINEAR_CAUSAL; return CLI_GO;
    case KEY_NORMALIZE: r->desc.use |= ATTN_LINEAR_NORMALIZE; return CLI_GO;
    case KEY_EXPLAIN: r->explain = true; return CLI_GO;
    case KEY_VARIANT: r->variant = value; return CLI_GO;
    case KEY_REPEAT: return cli_integer("--repeat", value, 1, 1000000, &r->repeat);
    case KEY_EPS:
        r->desc.use |= ATTN_LINEAR_EPS;
        return take_number("--eps", value, &r->desc.eps);
    case KEY_SCALE:
        r->desc.use |= ATTN_LINEAR_SCALE;
        return take_number("--scale", value, &r->desc.scale);
    default: return take_word(r, key, value);
    }
}

static const cli_tool tool = {
    .name = "attn-run",
    .command = "attn-run linear",
    .usage = "linear --q Q.npy --k K.npy --v V.npy --out O.npy [OPTION]...\n"
             "linear --q Q.npy --k K.npy --v V.npy --grad-out DO.npy --grad-q DQ.npy ...\n"
             "linear --q Q.npy --k K.npy --v V.npy --explain [OPTION]...",
    .about =
        "Computes linear attention on NumPy arrays: O = phi(Q) S, S = sum of phi(K)^T V.\n"
        "Arrays of three or two dimensions get leading ones. Other float types than the\n"
        "one to compute in are rounded to it; bf16 is written as <f4. With --grad-out,\n"
        "--grad-state-out or --grad-z-out gradients too.",
    .options = options,
    .take = take,
};

static bool wants_run(const linear_request *r)
{
    for (int i = 0; i < LINEAR_OUTPUTS; i++)
        if (r->out[i])
            return true;
    return false;
}

static bool is_given(const linear_request *r)
{
    return r->file[LINEAR_GRAD_OUT] || r->file[LINEAR_GRAD_STATE_OUT] ||
           r->file[LINEAR_GRAD_Z_OUT];
}

/* An option that wants another beside it, or must not have it. */
static int check_pairs(const linear_request *r)
{
    const attn_rule rule = r->desc.rule;
    const bool z = r->desc.use & ATTN_LINEAR_NORMALIZE;
    const bool decay = rule == ATTN_RULE_GATED || rule == ATTN_RULE_GATED_DELTA;
    const bool beta = rule == ATTN_RULE_DELTA || rule == ATTN_RULE_GATED_DELTA;
    const struct {
        const char *option;
        bool given, good;
        const char *want;
    } all[] = {
        { "--decay", r->file[LINEAR_DECAY], decay, "--rule gated or gated-delta" },
        { "--rule", decay, r->file[LINEAR_DECAY], "--decay" },
        { "--beta", r->file[LINEAR_BETA], beta, "--rule delta or gated-delta" },
        { "--rule", beta, r->file[LINEAR_BETA], "--beta" },
        { "--z-in", r->file[LINEAR_Z_IN], z && r->file[LINEAR_STATE_IN],
          "--normalize and --state-in" },
        { "--state-in", r->file[LINEAR_STATE_IN], !z || r->file[LINEAR_Z_IN],
          "--z-in, with --normalize," },
        { "--z-out", r->out[LINEAR_Z_OUT], z, "--normalize" },
        { "--den", r->out[LINEAR_DEN], z, "--normalize" },
        { "--eps", r->desc.use & ATTN_LINEAR_EPS, z, "--normalize" },
        { "--grad-z-out", r->file[LINEAR_GRAD_Z_OUT], z, "--normalize" },
        { "--grad-state-in", r->out[LINEAR_GRAD_STATE_IN], r->file[LINEAR_STATE_IN],
          "--state-in" },
        { "--grad-z-in", r->out[LINEAR_GRAD_Z_IN], r->file[LINEAR_Z_IN], "--z-in" },
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].given && !all[i].good)
            return cli_fail(CLI_BAD, "%s wants %s beside it", all[i].option, all[i].want);
    return CLI_GO;
}

static int check_request(const linear_request *r)
{
    static const char *const needed[] = { "--q", "--k", "--v" };
    const char *option[LINEAR_OUTPUTS];

    for (int i = 0; i < RUN_INPUTS; i++)
        if (!r->in[i])
            return cli_fail(CLI_BAD, "%s is missing; give it a .npy file", needed[i]);
    if (is_given(r) && !run_linear_backward(r))
        return cli_fail(CLI_BAD,
                        "%s wants a gradient to write: give --grad-q, --grad-k, "
                        "--grad-v, --grad-state-in or --grad-z-in",
                        r->file[LINEAR_GRAD_OUT]         ? "--grad-out"
                        : r->file[LINEAR_GRAD_STATE_OUT] ? "--grad-state-out"
                                                         : "--grad-z-out");
    if (run_linear_backward(r) && !is_given(r))
        return cli_fail(CLI_BAD, "--grad-out is missing; gradients want it, "
                                 "--grad-state-out or --grad-z-out");
    if (!wants_run(r) && !r->explain)
        return cli_fail(CLI_BAD,
                        "--out is missing; give --out, another output or --explain");
    if (!wants_run(r) && r->repeat)
        return cli_fail(CLI_BAD, "--repeat wants a run: give --out or another output");
    for (int i = 0; i < LINEAR_OUTPUTS; i++)
        option[i] = run_linear_outputs[i].option;
    if (check_pairs(r) != CLI_GO)
        return CLI_BAD;
    return run_check_files(option, r->out, LINEAR_OUTPUTS);
}

static attn_options options_of(const linear_request *r, bool backward)
{
    const bool of_backward = r->variant && strstr(r->variant, "_bwd_");

    return (attn_options){ .size = sizeof(attn_options),
                           .variant = !run_linear_backward(r) || of_backward == backward
                                          ? r->variant
                                          : NULL };
}

static const attn_tensor *at(const attn_args *args, size_t place)
{
    return (const attn_tensor *)(const void *)((const char *)args + place);
}

/* Backward, O and den are inputs. */
static void make_job(const linear_request *r, linear_arrays *a, run_job *job)
{
    const bool backward = run_linear_backward(r);
    const attn_args *args = backward ? &a->back_args : &a->forward_args;
    const run_tensor fixed[] = {
        { &args->q, offsetof(attn_args, q), NULL, "--q" },
        { &args->k, offsetof(attn_args, k), NULL, "--k" },
        { &args->v, offsetof(attn_args, v), NULL, "--v" },
    };
    int n = RUN_INPUTS;

    *job = (run_job){ .problem = problem_of_linear(backward ? &a->back : &a->forward),
                      .options = options_of(r, backward),
                      .partial = backward && r->file[LINEAR_KV_LENS] };
    memcpy(job->tensor, fixed, sizeof fixed);
    for (int i = 0; i < LINEAR_FILES; i++)
        job->tensor[n++] =
            (run_tensor){ at(args, run_linear_files[i].tensor), run_linear_files[i].tensor,
                          NULL, run_linear_files[i].option };
    for (int i = 0; i < LINEAR_OUTPUTS; i++)
        job->tensor[n++] = (run_tensor){ at(args, run_linear_outputs[i].tensor),
                                         run_linear_outputs[i].tensor,
                                         backward && i < LINEAR_GRAD_Q ? NULL : &a->out[i],
                                         run_linear_outputs[i].option };
    job->n = n;
}

static int save(const linear_request *r, linear_arrays *a)
{
    const char *option[LINEAR_OUTPUTS];
    npy_array *array[LINEAR_OUTPUTS];

    for (int i = 0; i < LINEAR_OUTPUTS; i++) {
        option[i] = run_linear_outputs[i].option;
        array[i] = &a->out[i];
    }
    return run_save_files(option, r->out, array, LINEAR_OUTPUTS, a->forward.type);
}

static int run_forward(const linear_request *r, attn_ctx *ctx, linear_arrays *a)
{
    const attn_options o = options_of(r, false);
    attn_status st;

    cli_progress("running");
    st = attn_linear_forward_host_args(ctx, &a->forward, &o, &a->forward_args);
    return st == ATTN_OK ? CLI_GO : cli_fail_attn(st, NULL);
}

static void files_json(cJSON *document, const linear_request *r, bool written)
{
    static const char *const names[] = { "q", "k", "v" };
    cJSON *files = cJSON_AddObjectToObject(document, "files");

    for (int i = 0; i < RUN_INPUTS; i++)
        cli_json_text(files, names[i], r->in[i]);
    for (int i = 0; i < LINEAR_FILES; i++)
        if (r->file[i])
            cli_json_text(files, run_linear_files[i].option + 2, r->file[i]);
    for (int i = 0; i < LINEAR_OUTPUTS; i++)
        if (r->out[i] && written)
            cli_json_text(files, run_linear_outputs[i].option + 2, r->out[i]);
}

/* The device path: planned once, timed, compared. */
static int run_timed(const linear_request *r, attn_ctx *ctx, const attn_device_info *device,
                     linear_arrays *a, cJSON *document)
{
    run_times times = { .plan = NULL };
    int status = run_linear_backward(r) ? run_forward(r, ctx, a) : CLI_GO;
    run_job job;

    make_job(r, a, &job);
    if (status == CLI_GO)
        status = run_repeat(ctx, &job, r->repeat ? r->repeat : 1, &times);
    if (status == CLI_GO && !times.differs[0])
        status = save(r, a);
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

static int run_plain(const linear_request *r, attn_ctx *ctx, linear_arrays *a)
{
    const attn_options o = options_of(r, true);
    attn_status st = ATTN_OK;
    const int status = run_forward(r, ctx, a);

    if (status != CLI_GO)
        return status;
    if (run_linear_backward(r))
        st = attn_linear_backward_host_args(ctx, &a->back, &o, &a->back_args);
    return st == ATTN_OK ? save(r, a) : cli_fail_attn(st, NULL);
}

static int run_on(const linear_request *r, attn_ctx *ctx, linear_arrays *a, cJSON *document)
{
    attn_device_info device;
    attn_status st;
    run_job job;
    int status;

    if ((st = attn_ctx_info(ctx, &device)) != ATTN_OK)
        return cli_fail_attn(st, NULL);
    if (document) {
        cli_json_text(document, "version", attn_version());
        cli_json_text(document, "device", device.selector);
        cli_json_text(document, "device_name", device.name);
    }
    make_job(r, a, &job);
    if (r->explain &&
        (status = cli_explain(ctx, &job.problem, &job.options, document)) != CLI_GO)
        return status;
    if (!wants_run(r))
        return CLI_GO;
    return r->repeat || document ? run_timed(r, ctx, &device, a, document)
                                 : run_plain(r, ctx, a);
}

_Static_assert((int)RUN_INPUTS + (int)LINEAR_FILES + (int)LINEAR_OUTPUTS <=
                   (int)RUN_TENSORS,
               "run_job has room for all");

int run_linear(int argc, char **argv)
{
    linear_request r = { .type = ATTN_TYPE_NONE };
    linear_arrays arrays = { .forward = { 0 } };
    cJSON *document = NULL;
    attn_ctx *ctx = NULL;
    /* the word itself is no argument */
    int status = cli_parse(&tool, argc - 1, argv + 1, &r.common, &r);

    if (status == CLI_GO && (status = check_request(&r)) == CLI_GO &&
        (status = run_linear_load(&r, &arrays)) == CLI_GO &&
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
    run_linear_free(&arrays);
    return cli_end(status == CLI_GO ? CLI_OK : status);
}
