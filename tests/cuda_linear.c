/* SPDX-License-Identifier: MIT */
/* tests/cuda_linear.c: linear attention in an application of its own: on its stream and in a
 * captured graph, and on the second of two devices. What other libraries launch on the
 * default stream, or on the device that happens to be current. */
#include "tests/cuda_app.h"

#include <attn/linear.h>

enum { B = 1, H = 2, L = 800, D = 32, N = B * H * L * D, INPUTS = 3 };

static const char *const problems[] = {
    "linear_fwd:f32,b1,hq2,hkv2,lq800,lk800,d32,causal,phi=elu1,normalize",
    "linear_fwd:f32,b1,hq2,hkv2,lq800,lk800,d32,phi=relu,normalize",
};

/* A plan, and Q, K, V and O in the memory of its device. */
typedef struct run {
    attn_ctx *ctx;
    attn_plan *plan;
    attn_args args;
    float in[INPUTS][N], out[N];
} run;

static attn_tensor *tensor_of(run *r, int i)
{
    attn_tensor *const all[] = { &r->args.q, &r->args.k, &r->args.v, &r->args.o };

    return all[i];
}

/* Inputs that differ from round to round. */
static void fill_inputs(run *r, int round)
{
    for (int i = 0; i < INPUTS; i++)
        for (int e = 0; e < N; e++)
            r->in[i][e] = sinf((float)(e % 1009 + 31 * i + 7 * round));
}

static void upload(run *r)
{
    for (int i = 0; i < INPUTS; i++)
        check_ok(attn_memory_upload(r->ctx, tensor_of(r, i)->data, 0, r->in[i],
                                    sizeof r->in[i]));
}

static void run_open(run *r, attn_ctx *ctx, const char *problem, const char *variant)
{
    const attn_options options = { .size = sizeof options, .variant = variant };
    attn_linear_desc desc;

    memset(r, 0, sizeof *r);
    r->ctx = ctx;
    r->args.size = sizeof r->args;
    check_ok(attn_linear_parse(problem, &desc));
    check_ok(attn_plan_linear_with(ctx, &desc, &options, &r->plan));
    for (int i = 0; i <= INPUTS; i++) {
        *tensor_of(r, i) = attn_tensor_bhld(NULL, ATTN_F32, B, H, L, D);
        check_ok(attn_memory_alloc(ctx, sizeof r->out, &tensor_of(r, i)->data));
    }
    r->args.workspace_bytes = attn_plan_workspace_bytes(r->plan);
    if (r->args.workspace_bytes)
        check_ok(attn_memory_alloc(ctx, r->args.workspace_bytes, &r->args.workspace));
}

static void run_close(run *r)
{
    for (int i = 0; i <= INPUTS; i++)
        attn_memory_free(r->ctx, &tensor_of(r, i)->data);
    attn_memory_free(r->ctx, &r->args.workspace);
    attn_plan_destroy(&r->plan);
}

/* O, against the oracle on the same inputs. */
static void run_check(run *r, const char *problem)
{
    static run want;
    double norm = 0;

    check_ok(attn_memory_download(r->ctx, r->out, r->args.o.data, 0, sizeof r->out));
    run_open(&want, fault_oracle.ctx, problem, "linear_fwd_reference");
    memcpy(want.in, r->in, sizeof want.in);
    upload(&want);
    check_ok(attn_execute(want.plan, &want.args, NULL));
    check_ok(
        attn_memory_download(want.ctx, want.out, want.args.o.data, 0, sizeof want.out));
    for (int e = 0; e < N; e++)
        norm = fmax(norm, fabs((double)want.out[e]));
    assert_true(norm > 0);
    for (int e = 0; e < N; e++)
        if (!(fabs((double)r->out[e] - (double)want.out[e]) <= 1e-5 * norm))
            fail_msg("%s: o[%d] = %g, want %g", problem, e, (double)r->out[e],
                     (double)want.out[e]);
    run_close(&want);
}

/* A variant on a stream that does not wait for the default one, then replayed with other
 * inputs. */
static void on_a_stream(attn_ctx *ctx, CUcontext context, CUstream stream,
                        const char *problem, const char *variant)
{
    static run r;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;

    run_open(&r, ctx, problem, variant);
    fill_inputs(&r, 0);
    upload(&r);
    check_ok(attn_execute(r.plan, &r.args, stream));
    app_enter(context);
    cu_ok(cuStreamSynchronize(stream));
    app_leave();
    run_check(&r, problem);

    app_enter(context);
    cu_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    app_leave();
    check_ok(attn_execute(r.plan, &r.args, stream));
    app_enter(context);
    cu_ok(cuStreamEndCapture(stream, &graph));
    cu_ok(cuGraphInstantiate(&exec, graph, 0));
    app_leave();
    for (int round = 1; round < 3; round++) {
        fill_inputs(&r, round);
        upload(&r);
        app_enter(context);
        cu_ok(cuGraphLaunch(exec, stream));
        cu_ok(cuStreamSynchronize(stream));
        app_leave();
        run_check(&r, problem);
    }
    app_enter(context);
    cu_ok(cuGraphExecDestroy(exec));
    cu_ok(cuGraphDestroy(graph));
    app_leave();
    run_close(&r);
}

/* S4: every variant, few heads and so in segments where it has those. */
static void streams_and_graphs(void **state)
{
    const CUcontext context = app_context(0);
    const CUstream stream = app_stream(context, CU_STREAM_NON_BLOCKING);
    attn_ctx *ctx = NULL;

    (void)state;
    check_ok(attn_ctx_create_cuda(context, &ctx));
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        attn_variant_info list[MAX_VARIANTS];
        attn_linear_desc desc;
        size_t n = 0;

        check_ok(attn_linear_parse(problems[i], &desc));
        check_ok(attn_linear_variants(ctx, &desc, list, MAX_VARIANTS, &n));
        for (size_t v = 0; v < n; v++)
            if (list[v].applicable)
                on_a_stream(ctx, context, stream, problems[i], list[v].name);
    }
    attn_ctx_destroy(&ctx);
    app_enter(context);
    cu_ok(cuStreamDestroy(stream));
    app_leave();
}

/* S8: the tensors' own device, not the first one. */
static void the_second_device(void **state)
{
    static run r;
    attn_ctx *ctx = NULL;
    int n = 0;

    (void)state;
    cu_ok(cuDeviceGetCount(&n));
    if (n < 2)
        skip();
    check_ok(attn_ctx_create("cuda:1", &ctx));
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        run_open(&r, ctx, problems[i], NULL);
        fill_inputs(&r, 0);
        upload(&r);
        check_ok(attn_execute(r.plan, &r.args, NULL));
        run_check(&r, problems[i]);
        run_close(&r);
    }
    attn_ctx_destroy(&ctx);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_and_graphs),
        cmocka_unit_test(the_second_device),
    };
    int absent;

    setenv("EMULATED_DEVICES", "2", 1);
    if ((absent = app_open(argc, argv)))
        return absent;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
