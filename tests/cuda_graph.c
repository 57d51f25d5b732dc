/* SPDX-License-Identifier: MIT */
/* tests/cuda_graph.c: executions that are captured into a CUDA graph, and replayed with
 * other lengths, boundaries, offsets and pages each time; and what a capture forbids. */
#include "tests/cuda_app.h"

#include <attn/merge.h>

enum { REPLAYS = 4, MOST_NODES = 64 };

/* In the mode that forbids most: to allocate, to wait, to load. */
static void begin(void)
{
    app_enter(app.context);
    cu_ok(cuStreamBeginCapture(app.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    app_leave();
}

/* A graph allocates by nodes of its own; there must be none, nor a call to the host. */
static void check_nodes(CUgraph graph)
{
    CUgraphNode nodes[MOST_NODES];
    CUgraphNodeType type;
    size_t n = MOST_NODES;

    cu_ok(cuGraphGetNodes(graph, NULL, &n));
    assert_in_range(n, 1, MOST_NODES);
    cu_ok(cuGraphGetNodes(graph, nodes, &n));
    for (size_t i = 0; i < n; i++) {
        cu_ok(cuGraphNodeGetType(nodes[i], &type));
        assert_true(type == CU_GRAPH_NODE_TYPE_KERNEL ||
                    type == CU_GRAPH_NODE_TYPE_MEMSET || type == CU_GRAPH_NODE_TYPE_MEMCPY);
    }
}

static CUgraphExec end(void)
{
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;

    app_enter(app.context);
    cu_ok(cuStreamEndCapture(app.stream, &graph));
    check_nodes(graph);
    cu_ok(cuGraphInstantiate(&exec, graph, 0));
    cu_ok(cuGraphDestroy(graph));
    app_leave();
    return exec;
}

/* Gives the graph back after the last. */
static void replay(CUgraphExec exec, bool last)
{
    app_enter(app.context);
    cu_ok(cuGraphLaunch(exec, app.stream));
    cu_ok(cuStreamSynchronize(app.stream));
    if (last)
        cu_ok(cuGraphExecDestroy(exec));
    app_leave();
}

/* Other integers in every round, from none to all. */
static void change(trial *t, int round)
{
    const int64_t b = t->desc.batch, lq = t->desc.len_q, lk = t->desc.len_kv;

    for (int64_t i = 0; i < b; i++) {
        const int64_t part = (round + i) % REPLAYS;

        if (t->lens_kv)
            t->lens_kv[i] = (int32_t)(lk * part / (REPLAYS - 1));
        if (t->lens_q)
            t->lens_q[i] = (int32_t)(lq - lq * part / REPLAYS);
        if (t->offsets)
            t->offsets[i] = (int32_t)(lk * part / REPLAYS);
        if (t->cu_q)
            t->cu_q[i + 1] = t->cu_q[i] + (int32_t)(lq - part);
        if (t->cu_k)
            t->cu_k[i + 1] = t->cu_k[i] + (int32_t)(lk * part / (REPLAYS - 1));
        for (int64_t k = 0; t->table && k < t->blocks; k++)
            t->table[i * t->blocks + k] =
                (int32_t)((i * t->blocks + k + round) % (b * t->blocks));
    }
}

static void lengths_change_between_replays(void **state)
{
    static const struct {
        const char *variant, *problem;
    } rows[] = {
#define LENS   "softmax_fwd:f32,b2,hq4,hkv2,lq20,lk150,d40,causal,align=br,qlens,lens,lse"
#define PAGES  "softmax_fwd:f32,b2,hq4,hkv2,lq3,lk150,d40,causal,offsets,lens,pages=16,lse"
#define PACKED "softmax_fwd:f32,b2,hq4,hkv2,lq20,lk90,d40,causal,align=br,packed,lse"
        { "softmax_fwd_tile", LENS },
        { "softmax_fwd_tile", PAGES },
        { "softmax_fwd_tile", PACKED },
        { "softmax_fwd_split", LENS },
        { "softmax_fwd_split", PAGES },
        { "softmax_fwd_split", PACKED },
        { "softmax_fwd_math", LENS },
        { "softmax_fwd_math", PAGES },
        { "softmax_fwd_naive", LENS },
        { "softmax_fwd_naive", PAGES },
        { "softmax_fwd_split_mma",
          "softmax_fwd:bf16,b2,hq8,hkv2,lq1,lk700,d64,causal,align=br,lens,lse" },
        { "softmax_fwd_split_mma",
          "softmax_fwd:bf16,b2,hq8,hkv2,lq4,lk700,d64,causal,offsets,lens,pages=16,lse" },
        { "softmax_fwd_mma",
          "softmax_fwd:bf16,b2,hq4,hkv2,lq150,lk150,d64,causal,align=br,qlens,lens,lse" },
        { "softmax_fwd_mma",
          "softmax_fwd:bf16,b2,hq4,hkv2,lq3,lk150,d64,causal,offsets,lens,pages=16,lse" },
        { "softmax_fwd_mma",
          "softmax_fwd:bf16,b2,hq4,hkv2,lq150,lk90,d64,causal,align=br,packed,lse" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        CUgraphExec exec;
        job j;

        job_open(&j, app.ctx, app.context, app.stream, rows[i].variant, rows[i].problem);
        begin(); /* the plan's first execution: planning has made all ready */
        check_ok(attn_execute(j.plan, &j.args, app.stream));
        exec = end();
        for (int r = 0; r < REPLAYS; r++) {
            change(&j.t, r);
            job_send(&j);
            replay(exec, r + 1 == REPLAYS);
            job_check(&j);
        }
        job_close(&j);
    }
}

/* Two results and their merge are one graph. */
static void a_merge_is_captured_too(void **state)
{
    static const char problem[] = "softmax_fwd:f32,b2,hq2,hkv2,lq9,lk40,d24,lens,lse";
    attn_tensor part_o[2], part_lse[2];
    attn_merge_args merge = {
        .size = sizeof merge, .n_parts = 2, .part_o = part_o, .part_lse = part_lse
    };
    attn_merge_args want = merge;
    CUgraphExec exec;
    job part[2], whole;

    (void)state;
    for (int p = 0; p < 2; p++) {
        job_open(&part[p], app.ctx, app.context, app.stream, NULL, problem);
        part_o[p] = part[p].args.o;
        part_lse[p] = part[p].args.lse;
    }
    job_open(&whole, app.ctx, app.context, app.stream, NULL,
             problem); /* its outputs, and their check */
    merge.o = whole.args.o;
    merge.lse = whole.args.lse;
    merge.workspace_bytes = attn_merge_workspace_bytes(app.ctx, &merge);
    merge.workspace = (void *)(uintptr_t)app_alloc(app.context, merge.workspace_bytes);
    check_ok(attn_merge(app.ctx, &merge, app.stream)); /* the first one loads the kernel */
    begin();
    for (int p = 0; p < 2; p++)
        check_ok(attn_execute(part[p].plan, &part[p].args, app.stream));
    check_ok(attn_merge(app.ctx, &merge, app.stream));
    exec = end();
    for (int r = 0; r < REPLAYS; r++) {
        attn_tensor host_o[2], host_lse[2];
        float *o = floats(whole.t.no), *lse = floats(whole.t.nlse);

        for (int p = 0; p < 2; p++) {
            change(&part[p].t, r + p);
            job_send(&part[p]);
        }
        job_send(&whole);
        replay(exec, r + 1 == REPLAYS);
        for (int p = 0; p < 2; p++) {
            trial_run(&part[p].t);
            host_o[p] = part[p].t.args.o;
            host_lse[p] = part[p].t.args.lse;
        }
        want.part_o = host_o;
        want.part_lse = host_lse;
        want.o = whole.t.args.o;
        want.lse = whole.t.args.lse;
        want.o.data = o;
        want.lse.data = lse;
        check_ok(attn_merge_host(fault_oracle.ctx, &want));
        job_check_to(&whole, o, lse);
        free(o);
        free(lse);
    }
    app_free(app.context, (CUdeviceptr)(uintptr_t)merge.workspace);
    job_close(&whole);
    job_close(&part[1]);
    job_close(&part[0]);
}

/* Refused before anything was enqueued, so the capture goes on. */
static void timing_is_refused_and_the_capture_lives(void **state)
{
    uint64_t ns = 1;
    CUgraphExec exec;
    job j;

    (void)state;
    job_open(&j, app.ctx, app.context, app.stream, NULL,
             "softmax_fwd:f32,b1,hq2,hkv2,lq9,lk40,d24,lens,lse");
    begin();
    check_error(attn_execute_timed(j.plan, &j.args, app.stream, &ns), ATTN_ERR_INVALID,
                "is being captured");
    assert_int_equal(ns, 0);
    check_ok(attn_execute(j.plan, &j.args, app.stream));
    exec = end();
    job_send(&j);
    replay(exec, true);
    job_check(&j);
    check_ok(attn_execute_timed(j.plan, &j.args, app.stream, &ns));
    assert_true(ns > 0);
    job_close(&j);
}

/* Planning allocates and waits. What a capture spoils is the capture, not the context. */
static void planning_is_refused(void **state)
{
    static const char *const variants[] = { "softmax_fwd_math", "softmax_fwd_tile" };
    const attn_options by_name[] = {
        { .size = sizeof by_name[0], .variant = variants[0] },
        { .size = sizeof by_name[0], .variant = variants[1] },
    };
    static const char problem[] = "softmax_fwd:f32,b1,hq2,hkv2,lq9,lk40,d24,sinks,lse";
    attn_softmax_desc desc;
    attn_plan *plan = NULL;
    CUgraph graph = NULL;
    void *memory = NULL;
    job j;

    (void)state;
    check_ok(attn_softmax_parse(problem, &desc));
    for (int i = 0; i < 2; i++) {
        begin();
        check_error(attn_plan_softmax_with(app.ctx, &desc, &by_name[i], &plan),
                    ATTN_ERR_INVALID, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
        assert_null(plan);
        check_error(attn_memory_alloc(app.ctx, 64, &memory), ATTN_ERR_INVALID,
                    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
        app_enter(app.context);
        assert_int_equal(cu.cuStreamEndCapture(app.stream, &graph),
                         CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        app_leave();
        job_open(&j, app.ctx, app.context, app.stream, variants[i], problem);
        job_run(&j);
        job_close(&j);
    }
}

/* cuDNN's own plans are made before a capture: with ours, for tensors row after row; else
 * at a first execution. */
static void cudnn_plans_before_a_capture(void **state)
{
    static const char *const problems[] = {
        "softmax_fwd:bf16,b1,hq4,hkv2,lq20,lk40,d64,causal,align=br,lse",
        "softmax_fwd:bf16,b2,hq2,hkv1,lq1,lk40,d64,causal,lse", /* 39 keys are unseen */
        "softmax_fwd:bf16,b1,hq2,hkv1,lq1,lk40,d64,causal,lse",
    };
    attn_device_info info;
    attn_tensor lse;
    CUgraphExec exec;
    job j;

    (void)state;
    check_ok(attn_ctx_info(app.ctx, &info));
    if (!info.cudnn_version || info.capability < 80)
        skip();
    for (int i = 2; i >= 0; i--) {
        job_open(&j, app.ctx, app.context, app.stream, "softmax_fwd_cudnn", problems[i]);
        begin();
        check_ok(attn_execute(j.plan, &j.args, app.stream));
        exec = end();
        for (int r = 0; r < 2; r++) {
            job_send(&j);
            replay(exec, r == 1);
            job_check(&j);
        }
        if (i)
            job_close(&j);
    }
    lse = j.args.lse;
    j.args.lse = (attn_tensor){ 0 }; /* which is another graph to cuDNN */
    begin();
    check_error(attn_execute(j.plan, &j.args, app.stream), ATTN_ERR_INVALID,
                "execute once before");
    j.args.lse = lse;
    check_ok(attn_execute(j.plan, &j.args, app.stream)); /* the capture lives */
    exec = end();
    job_send(&j);
    replay(exec, true);
    job_check(&j);
    job_close(&j);
}

/* It would wait for the stream that is captured. */
static void the_legacy_stream_is_refused(void **state)
{
    CUgraph graph = NULL;
    job j;

    (void)state;
    job_open(&j, app.ctx, app.context, app.stream, NULL,
             "softmax_fwd:f32,b1,hq2,hkv2,lq9,lk40,d24,lse");
    begin();
    check_error(attn_execute(j.plan, &j.args, CU_STREAM_LEGACY), ATTN_ERR_INVALID,
                "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT");
    app_enter(app.context);
    assert_int_equal(cu.cuStreamEndCapture(app.stream, &graph),
                     CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    app_leave();
    job_run(&j);
    job_close(&j);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_change_between_replays),
        cmocka_unit_test(a_merge_is_captured_too),
        cmocka_unit_test(timing_is_refused_and_the_capture_lives),
        cmocka_unit_test(planning_is_refused),
        cmocka_unit_test(cudnn_plans_before_a_capture),
        cmocka_unit_test(the_legacy_stream_is_refused),
    };
    const int absent = app_open(argc, argv);

    return absent ? absent : cmocka_run_group_tests(tests, app_begin, app_end);
}
