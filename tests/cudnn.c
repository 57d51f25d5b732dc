/* SPDX-License-Identifier: MIT */
/* tests/cudnn.c: softmax_fwd_cudnn with a cuDNN that is absent, too old, that fails, and
 * that many threads call, against the libraries of tests/emulator. */
#include "tests/check.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

#include "core/float16.h"

enum { N = 2 * 4 * 40 * 64, THREADS = 4 };

static const char problem[] =
    "softmax_fwd:f16,b1,hq4,hkv2,lq20,lk40,d32,causal,align=br,lse";

static const attn_options by_name = { .size = sizeof by_name,
                                      .variant = "softmax_fwd_cudnn" };

static const char *folder;
static uint16_t q[N], k[N], v[N];

static attn_softmax_desc desc_of(const char *text)
{
    attn_softmax_desc desc;

    check_ok(attn_softmax_parse(text, &desc));
    return desc;
}

static int fill(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) {
        q[i] = attn_f16_from_f32(2 * sinf((float)i));
        k[i] = attn_f16_from_f32(2 * cosf((float)(3 * i)));
        v[i] = attn_f16_from_f32(sinf((float)(7 * i)));
    }
    return 0;
}

static attn_ctx *open_with(const char *library)
{
    attn_ctx *ctx = NULL;

    setenv("ATTN_CUDNN_LIB", library, 1);
    check_ok(attn_ctx_create("cuda:0", &ctx));
    return ctx;
}

/* The first elements of the inputs as the problem's tensors. */
static attn_args args_of(const attn_softmax_desc *d, uint16_t *o, float *lse)
{
    attn_args a = {
        .size = sizeof a,
        .q = attn_tensor_bhld(q, d->type, d->batch, d->heads_q, d->len_q, d->dim_qk),
        .k = attn_tensor_bhld(k, d->type, d->batch, d->heads_kv, d->len_kv, d->dim_qk),
        .v = attn_tensor_bhld(v, d->type, d->batch, d->heads_kv, d->len_kv, d->dim_v),
    };

    if (o)
        a.o = attn_tensor_bhld(o, d->type, d->batch, d->heads_q, d->len_q, d->dim_v);
    if (lse)
        a.lse = attn_tensor_bhld(lse, ATTN_F32, d->batch, d->heads_q, d->len_q, 1);
    return a;
}

/* What the emulated cuDNN computes is what the host does; false, and says so, if not. */
static bool answers(attn_ctx *ctx, attn_ctx *host, const char *text)
{
    static _Thread_local uint16_t have[N], want[N];
    static _Thread_local float lse[N], want_lse[N];
    const attn_softmax_desc d = desc_of(text);
    const int64_t rows = d.batch * d.heads_q * d.len_q;
    const bool with_lse = d.use & ATTN_USE_LSE;
    const attn_args ours = args_of(&d, have, with_lse ? lse : NULL);
    const attn_args theirs = args_of(&d, want, with_lse ? want_lse : NULL);

    memset(have, 0xff, sizeof have);
    if (attn_softmax_forward_host_args(ctx, &d, &by_name, &ours) != ATTN_OK ||
        attn_softmax_forward_host_args(host, &d, NULL, &theirs) != ATTN_OK) {
        fprintf(stderr, "%s: %s\n", text, attn_last_error());
        return false;
    }
    for (int64_t i = 0; i < rows * d.dim_v; i++) {
        const float a = attn_f32_from_f16(have[i]), b = attn_f32_from_f16(want[i]);
        if (!(fabsf(a - b) < 2e-3f)) {
            fprintf(stderr, "%s: o[%d] = %g, want %g\n", text, (int)i, (double)a,
                    (double)b);
            return false;
        }
    }
    for (int64_t i = 0; with_lse && i < rows; i++)
        if (!(fabsf(lse[i] - want_lse[i]) < 1e-3f)) {
            fprintf(stderr, "%s: lse[%d] = %g, want %g\n", text, (int)i, (double)lse[i],
                    (double)want_lse[i]);
            return false;
        }
    return true;
}

static void right_answers(void **state)
{
    static const char *const problems[] = {
        "softmax_fwd:f16,b2,hq4,hkv4,lq40,lk40,d64",
        "softmax_fwd:f16,b2,hq4,hkv1,lq9,lk33,d64,dv32,lse",
        "softmax_fwd:f16,b1,hq4,hkv2,lq20,lk40,d32,causal,lse", /* 20 keys are unseen */
        "softmax_fwd:f16,b1,hq4,hkv2,lq40,lk20,d32,causal,lse", /* and here none */
        "softmax_fwd:f16,b1,hq4,hkv2,lq20,lk40,d32,causal,align=br",
        "softmax_fwd:f16,b1,hq2,hkv1,lq1,lk40,d8,causal,align=br,lse",
        "softmax_fwd:f16,b1,hq2,hkv1,lq5,lk7,d8,scale=0.5,lse",
    };
    attn_ctx *ctx = open_with(folder), *host = NULL;

    (void)state;
    check_ok(attn_ctx_create("host", &host));
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
        assert_true(answers(ctx, host, problems[i]));
    attn_ctx_destroy(&host);
    attn_ctx_destroy(&ctx);
}

static void absent_or_too_old(void **state)
{
    const char *const names[] = { "/nowhere/libcudnn.so", "/", "/dev/null" };
    const attn_softmax_desc desc = desc_of(problem);
    attn_device_info info;
    attn_plan *plan = NULL;
    attn_ctx *ctx;

    (void)state;
    for (int i = 0; i < 3; i++) {
        ctx = open_with(names[i]);
        check_ok(attn_ctx_info(ctx, &info));
        assert_int_equal(info.cudnn_version, 0);
        check_error(attn_plan_softmax_with(ctx, &desc, &by_name, &plan),
                    ATTN_ERR_UNSUPPORTED, "cuDNN 9 was not found (ATTN_CUDNN_LIB");
        attn_ctx_destroy(&ctx);
    }
    setenv("EMULATED_CUDNN_VERSION", "91002", 1);
    ctx = open_with(folder);
    check_ok(attn_ctx_info(ctx, &info));
    assert_int_equal(info.cudnn_version, 91002);
    check_error(attn_plan_softmax_with(ctx, &desc, &by_name, &plan), ATTN_ERR_UNSUPPORTED,
                "cuDNN is older than 9.11");
    attn_ctx_destroy(&ctx);
    unsetenv("EMULATED_CUDNN_VERSION");
}

/* Nobody who does not name it gets it. */
static void only_by_name(void **state)
{
    const attn_softmax_desc desc = desc_of(problem);
    attn_ctx *ctx = open_with(folder);
    attn_variant_info list[16];
    attn_plan *plan = NULL;
    char text[256];
    size_t n = 0, i = 0;

    (void)state;
    check_ok(attn_softmax_variants(ctx, &desc, list, 16, &n));
    while (i < n && strcmp(list[i].name, by_name.variant))
        i++;
    assert_true(i < n && list[i].applicable);
    assert_string_equal(list[i].reason, "takes it, but only by name");
    assert_int_equal(list[i].traits, ATTN_TRAIT_BY_NAME | ATTN_TRAIT_VENDOR |
                                         ATTN_TRAIT_BY_SIZE | ATTN_TRAIT_FORWARD |
                                         ATTN_TRAIT_NONDET);
    check_ok(attn_plan_softmax(ctx, &desc, &plan));
    check_ok(attn_plan_text(plan, text, sizeof text, NULL));
    assert_null(strstr(text, "cudnn"));
    attn_plan_destroy(&plan);
    attn_ctx_destroy(&ctx);
}

/* While the plan is made: what cuDNN says is what the caller hears, and the next one, with
 * another answer of cuDNN's, is not harmed. */
static void fails_to_plan(void **state)
{
    static const struct {
        const char *told, *says;
        attn_status status;
    } cases[] = {
        { "cudnnCreate=1001", "cudnnCreate (handle) = 1001", ATTN_ERR_DEVICE },
        { "cudnnBackendCreateDescriptor=4003", "cudnnBackendCreateDescriptor (q) = 4003",
          ATTN_ERR_NO_MEMORY },
        { "cudnnBackendSetAttribute=2000", "cudnnBackendSetAttribute (q) = 2000",
          ATTN_ERR_UNSUPPORTED },
        { "cudnnBackendFinalize=3000",
          "cudnnBackendFinalize (q) = 3000 (CUDNN_STATUS_NOT_SUPPORTED: as it was told in "
          "the emulator)",
          ATTN_ERR_UNSUPPORTED },
        { "cudnnBackendGetAttribute=4000", "cudnnBackendGetAttribute (heuristics) = 4000",
          ATTN_ERR_DEVICE },
    };
    const attn_softmax_desc desc = desc_of(problem);
    attn_ctx *ctx = open_with(folder);
    attn_plan *plan = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("EMULATED_CUDNN", cases[i].told, 1);
        check_error(attn_plan_softmax_with(ctx, &desc, &by_name, &plan), cases[i].status,
                    cases[i].says);
        assert_null(plan);
    }
    unsetenv("EMULATED_CUDNN");
    setenv("EMULATED_CUDNN_WORKSPACE", "33554433", 1);
    check_error(attn_plan_softmax_with(ctx, &desc, &by_name, &plan), ATTN_ERR_UNSUPPORTED,
                "wants 33554433 bytes of workspace, 33554432 were planned");
    setenv("EMULATED_CUDNN_WORKSPACE", "33554432", 1);
    check_ok(attn_plan_softmax_with(ctx, &desc, &by_name, &plan));
    unsetenv("EMULATED_CUDNN_WORKSPACE");
    attn_plan_destroy(&plan);
    attn_ctx_destroy(&ctx);
}

static void fails_to_run(void **state)
{
    static const char says[] =
        "cudnnBackendExecute (launch) = 5000 (CUDNN_STATUS_EXECUTION_"
        "FAILED: as it was told in the emulator)";
    static uint16_t o[N];
    static float lse[N];
    const attn_softmax_desc desc = desc_of(problem);
    const attn_args args = args_of(&desc, o, lse);
    attn_ctx *ctx = open_with(folder);
    attn_plan *plan = NULL;

    (void)state;
    setenv("EMULATED_CUDNN", "cudnnBackendExecute=5000", 1); /* in the self-test */
    check_error(attn_plan_softmax_with(ctx, &desc, &by_name, &plan), ATTN_ERR_UNSUPPORTED,
                says);
    attn_ctx_destroy(&ctx);
    unsetenv("EMULATED_CUDNN");
    ctx = open_with(folder);
    check_ok(attn_softmax_forward_host_args(ctx, &desc, &by_name, &args)); /* proven */
    setenv("EMULATED_CUDNN", "cudnnBackendExecute=5000", 1);
    check_error(attn_softmax_forward_host_args(ctx, &desc, &by_name, &args),
                ATTN_ERR_DEVICE, says);
    setenv("EMULATED_CUDNN", "cudnnSetStream=2000", 1);
    check_error(attn_softmax_forward_host_args(ctx, &desc, &by_name, &args),
                ATTN_ERR_UNSUPPORTED, "cudnnSetStream (launch) = 2000");
    unsetenv("EMULATED_CUDNN");
    check_ok(attn_softmax_forward_host_args(ctx, &desc, &by_name, &args));
    attn_ctx_destroy(&ctx);
}

/* A plan of ours takes shorter tensors, for which cuDNN plans anew; not such as leave rows
 * without a key. */
static void other_lengths(void **state)
{
    const attn_softmax_desc planned = desc_of(problem);
    attn_ctx *ctx = open_with(folder);
    attn_plan *plan = NULL;
    void *memory = NULL, *workspace = NULL;
    size_t bytes;

    (void)state;
    check_ok(attn_plan_softmax_with(ctx, &planned, &by_name, &plan));
    bytes = attn_plan_workspace_bytes(plan);
    assert_int_equal(bytes, (32 << 20) + 256 + 4 * 20 * 32 * 2);
    check_ok(attn_memory_alloc(ctx, bytes, &workspace));
    check_ok(attn_memory_alloc(ctx, sizeof q, &memory));
    for (int lk = 40; lk >= 0; lk -= lk > 20 ? 10 : 1) {
        attn_softmax_desc d = planned;
        attn_args args;

        d.len_kv = lk;
        args = args_of(&d, NULL, NULL);
        args.q.data = args.k.data = args.v.data = memory;
        args.lse = attn_tensor_bhld(NULL, ATTN_F32, 1, 4, 20, 1); /* and no O */
        check_ok(attn_memory_alloc(ctx, 4 * 20 * sizeof(float), &args.lse.data));
        args.workspace = workspace;
        args.workspace_bytes = bytes;
        if (lk >= 20)
            check_ok(attn_execute(plan, &args, NULL));
        else
            check_error(attn_execute(plan, &args, NULL), ATTN_ERR_UNSUPPORTED,
                        "leave queries without a key");
        check_ok(attn_ctx_wait(ctx));
        attn_memory_free(ctx, &args.lse.data);
    }
    attn_memory_free(ctx, &memory);
    attn_memory_free(ctx, &workspace);
    attn_plan_destroy(&plan);
    attn_ctx_destroy(&ctx);
}

/* A view that goes backwards is one of the planned class, but none for cuDNN. */
static void no_negative_strides(void **state)
{
    const attn_softmax_desc d = desc_of(problem);
    attn_ctx *ctx = open_with(folder);
    attn_plan *plan = NULL;
    void *memory = NULL, *out = NULL, *workspace = NULL;
    attn_args args = args_of(&d, q, NULL);

    (void)state;
    check_ok(attn_plan_softmax_with(ctx, &d, &by_name, &plan));
    args.workspace_bytes = attn_plan_workspace_bytes(plan);
    check_ok(attn_memory_alloc(ctx, args.workspace_bytes, &workspace));
    check_ok(attn_memory_alloc(ctx, sizeof q, &memory));
    check_ok(attn_memory_alloc(ctx, sizeof q, &out));
    args.q.data = args.k.data = args.v.data = memory;
    args.o.data = out;
    args.workspace = workspace;
    args.k.offset = (args.k.size[2] - 1) * args.k.stride[2];
    args.k.stride[2] = -args.k.stride[2];
    check_error(attn_execute(plan, &args, NULL), ATTN_ERR_UNSUPPORTED, "k: stride[2] = -");
    attn_memory_free(ctx, &memory);
    attn_memory_free(ctx, &out);
    attn_memory_free(ctx, &workspace);
    attn_plan_destroy(&plan);
    attn_ctx_destroy(&ctx);
}

typedef struct pair {
    attn_ctx *ctx, *host;
} pair;

static void *run_often(void *with)
{
    const pair *p = with;
    char text[128];

    for (int run = 0; run < 6; run++) {
        snprintf(text, sizeof text, "softmax_fwd:f16,b1,hq2,hkv1,lq%d,lk20,d16,causal,lse",
                 1 + run % 3);
        if (!answers(p->ctx, p->host, text))
            return NULL;
    }
    return with;
}

/* One handle, and plans that any of them may make. */
static void any_thread(void **state)
{
    pair p = { .ctx = open_with(folder) };
    pthread_t thread[THREADS];
    void *good;

    (void)state;
    check_ok(attn_ctx_create("host", &p.host));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run_often, &p), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], &good), 0);
        assert_ptr_equal(good, &p);
    }
    attn_ctx_destroy(&p.host);
    attn_ctx_destroy(&p.ctx);
}

/* Runs last: all contexts are closed. */
static void nothing_is_left(void **state)
{
    char path[4096];
    void *library, *symbol;
    int (*live)(void);

    (void)state;
    snprintf(path, sizeof path, "%s/libcudnn.so.9", folder);
    library = dlopen(path, RTLD_NOW);
    assert_non_null(library);
    symbol = dlsym(library, "emulated_cudnn_live");
    assert_non_null(symbol);
    memcpy(&live, &symbol, sizeof live);
    assert_int_equal(live(), 0);
    dlclose(library);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_answers),       cmocka_unit_test(absent_or_too_old),
        cmocka_unit_test(only_by_name),        cmocka_unit_test(fails_to_plan),
        cmocka_unit_test(fails_to_run),        cmocka_unit_test(other_lengths),
        cmocka_unit_test(any_thread),          cmocka_unit_test(nothing_is_left),
        cmocka_unit_test(no_negative_strides),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER_OF_THE_EMULATOR\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, fill, NULL);
}
