/* SPDX-License-Identifier: MIT */
/* tests/planner_linear.c: plans of linear attention for made-up devices. */
#include "tests/check.h"

#include <string.h>

#include "plan/plan.h"

static attn_target opencl_of(int64_t fast_bytes, int64_t max_group)
{
    attn_target t = { .backend = "opencl",
                      .caps = { .kind = ATTN_DEVICE_GPU,
                                .compute_units = 8,
                                .fast_bytes = fast_bytes,
                                .max_group = max_group,
                                .vector_width = 1,
                                .memory_bytes = (int64_t)8 << 30,
                                .max_alloc_bytes = (int64_t)8 << 30 } };

    t.variants = attn_variants_for("opencl", &t.caps);
    return t;
}

static attn_target cuda_of(int64_t fast_bytes, int64_t units, int64_t capability)
{
    attn_target t = { .backend = "cuda",
                      .caps = { .kind = ATTN_DEVICE_GPU,
                                .compute_units = units,
                                .fast_bytes = fast_bytes,
                                .max_group = 1024,
                                .subgroup = 32,
                                .vector_width = 1,
                                .memory_bytes = (int64_t)16 << 30,
                                .max_alloc_bytes = (int64_t)16 << 30,
                                .capability = capability } };

    t.variants = attn_variants_for("cuda", &t.caps);
    return t;
}

static attn_target host_of(int64_t threads)
{
    attn_target t = { .backend = "host",
                      .caps = { .kind = ATTN_DEVICE_HOST,
                                .compute_units = threads,
                                .fast_bytes = 1 << 20,
                                .max_group = 1,
                                .subgroup = 24,
                                .vector_width = 8 } };

    t.variants = attn_variants_for("host", &t.caps);
    return t;
}

static void choose(const char *text, const attn_target *t, attn_choice *c)
{
    attn_problem p;

    check_ok(attn_problem_parse(&p, text));
    check_ok(attn_choose(&p, t, NULL, c));
}

/* The state goes to local memory where it fits, else to the workspace; z is copied first. */
static void opencl_state(void **state)
{
    static const char plain[] = "linear_fwd:f32,b2,hq4,hkv2,lq9,lk9,d64,dv100,causal";
    const attn_target large = opencl_of(32768, 256), small = opencl_of(8192, 32);
    attn_choice c;

    (void)state;
    choose(plain, &large, &c);
    assert_int_equal(c.n_steps, 1);
    assert_int_equal(c.workspace_bytes, 0);
    assert_string_equal(c.instance, "items64,local,d64,dv100,f32");
    assert_int_equal(c.step[0].fast_bytes, 4 * 4 * 64 + 4 * 64 * 64);
    choose(plain, &small, &c); /* four tiles of 32 columns for each of 4 states */
    assert_string_equal(c.instance, "items32,global,d64,dv100,f32");
    assert_int_equal(c.workspace_bytes, 4 * 4 * 4 * 64 * 32);
    choose("linear_fwd:f32,b2,hq4,hkv2,lq9,lk9,d64,dv100,causal,normalize", &small, &c);
    assert_int_equal(c.n_steps, 2);
    assert_string_equal(c.step[0].kernel, "linear_fwd_begin");
    assert_int_equal(c.workspace_bytes, 4 * 4 * 64 + 4 * 4 * 4 * 64 * 32);
}

static void rows_that_fit_nowhere(void **state)
{
    const attn_target t = opencl_of(8192, 64);
    attn_problem p;
    attn_choice c;

    (void)state;
    check_ok(attn_problem_parse(&p, "linear_fwd:f32,b1,hq1,hkv1,lq9,lk9,d600,dv8,causal"));
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "rows of D elements do not fit local memory");
}

/* Chunks on OpenCL: tiles by local memory and columns; segments where the heads do not fill the
 * device; few tokens and rules one by one. */
static void opencl_chunks(void **state)
{
    static const struct {
        const char *text, *instance;
        int64_t steps, piece;
    } cases[] = {
        { "linear_fwd:f32,b8,hq8,hkv8,lq4096,lk4096,d64,causal",
          "chunk32,columns64,items128,vw4,states1,d64,dv64,f32", 1, 0 },
        { "linear_fwd:f32,b8,hq8,hkv8,lq4096,lk4096,d64,causal,state",
          "chunk32,columns64,items128,vw4,states1,d64,dv64,f32", 2, 0 },
        { "linear_fwd:bf16,b1,hq2,hkv1,lq4096,lk4096,d64,dv40,causal",
          "chunk32,columns64,items128,vw4,states16,d64,dv40,bf16", 3, 256 },
        { "linear_fwd:bf16,b1,hq2,hkv1,lq4096,lk4096,d64,dv32,causal",
          "chunk32,columns32,items128,vw4,states16,d64,dv32,bf16", 3, 256 },
        { "linear_fwd:f32,b1,hq1,hkv1,lq500,lk500,d128,causal",
          "chunk16,columns32,items64,vw4,states8,d128,dv128,f32", 2, 64 },
        { "linear_fwd:f32,b1,hq1,hkv1,lq70,lk1024,d200,dv16",
          "chunk16,columns16,items64,vw4,states17,d200,dv16,f32", 3, 64 },
        { "linear_fwd:f32,b1,hq1,hkv1,lq500,lk500,d256,causal",
          "chunk8,columns16,items32,vw4,states1,d256,dv256,f32", 1, 0 },
        { "linear_fwd:f32,b16,hq4,hkv4,lq99,lk99,d64",
          "chunk32,columns64,items128,vw4,states2,d64,dv64,f32", 2, 128 },
        { "linear_fwd:f32,b1,hq1,hkv1,lq1,lk1,d64,causal,state",
          "items64,local,d64,dv64,f32", 1, 0 },
        { "linear_fwd:f32,b1,hq1,hkv1,lq99,lk99,d64,causal,rule=delta,beta=f32",
          "items64,local,d64,dv64,f32", 1, 0 },
        { "linear_fwd:f32,b1,hq1,hkv1,lq99,lk99,d512,causal",
          "items64,global,d512,dv512,f32", 1, 0 },
    };
    const attn_target t = opencl_of(48 * 1024, 256);
    attn_target cpu = opencl_of(1 << 20, 4096);
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        choose(cases[i].text, &t, &c);
        assert_string_equal(c.instance, cases[i].instance);
        assert_int_equal(c.n_steps, cases[i].steps);
        assert_int_equal(c.step[0].piece, cases[i].piece);
        assert_true(c.step[c.n_steps - 1].fast_bytes <= 48 * 1024 - 256);
    }
    choose(cases[2].text, &t, &c);
    assert_int_equal(c.workspace_bytes, 16 * 4 * 64 * 41);
    assert_string_equal(c.step[0].kernel, "linear_fwd_chunk_sums");
    assert_string_equal(c.step[1].kernel, "linear_fwd_chunk_scan");
    assert_string_equal(c.step[2].kernel, "linear_fwd_chunk");
    cpu.caps.kind = ATTN_DEVICE_CPU;
    cpu.caps.vector_width = 16;
    choose(cases[0].text, &cpu, &c);
    assert_string_equal(c.instance, "chunk32,columns64,items1,vw16,states1,d64,dv64,f32");
}

/* Gradients on OpenCL: a scan for each that is asked for, dK's last; columns of the state in
 * registers, in local memory, in the workspace behind c. */
static void opencl_gradients(void **state)
{
    const attn_target large = opencl_of(32768, 256), small = opencl_of(8192, 64);
    attn_choice c;
    attn_problem p;

    (void)state;
    choose("linear_bwd:f32,b2,hq4,hkv2,lq9,lk9,d64,dv135,causal,normalize,state,"
           "grad=q+k+v+state",
           &large, &c);
    assert_int_equal(c.n_steps, 4);
    assert_string_equal(c.step[0].kernel, "linear_bwd_begin");
    assert_int_equal(c.step[1].grad, ATTN_GRAD_Q);
    assert_int_equal(c.step[2].grad, ATTN_GRAD_V);
    assert_int_equal(c.step[3].grad, ATTN_GRAD_K | ATTN_GRAD_STATE);
    assert_string_equal(c.instance, "columns32,slices8,private,d64,dv135,f32");
    assert_int_equal(c.workspace_bytes, 4 * 2 * 4 * 9);
    assert_int_equal(c.step[3].fast_bytes, 4 * 4 * 136 + 4 * 2 * 256);
    choose("linear_bwd:f32,b2,hq4,hkv2,lq9,lk9,d100,causal,grad=v", &small, &c);
    assert_int_equal(c.n_steps, 1);
    assert_string_equal(c.instance, "columns32,slices2,global,d100,dv100,f32");
    assert_int_equal(c.workspace_bytes, 4 * 4 * 4 * 32 * 100);
    choose("linear_bwd:f32,b2,hq4,hkv2,lq9,lk9,d140,causal,grad=v", &large, &c);
    assert_string_equal(c.instance, "columns32,slices8,local,d140,dv140,f32");
    assert_int_equal(c.step[0].fast_bytes, 4 * 4 * 144 + 4 * 2 * 256 + 4 * 32 * 144);
    check_ok(attn_problem_parse(&p, "linear_bwd:f32,b1,hq1,hkv1,lq9,lk9,d600,grad=v"));
    check_error(attn_choose(&p, &small, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "rows of the state do not fit local memory");
}

/* ... in chunks: for each a scan of up to three steps, one after the other; dK's last. */
static void opencl_chunks_of_gradients(void **state)
{
    static const char *const kernels[] = {
        "linear_bwd_begin", "linear_bwd_chunk_sums", "linear_bwd_chunk_scan",
        "linear_bwd_chunk", "linear_bwd_chunk_sums", "linear_bwd_chunk_scan",
        "linear_bwd_chunk", "linear_bwd_chunk_sums", "linear_bwd_chunk_scan",
        "linear_bwd_chunk",
    };
    const attn_target t = opencl_of(48 * 1024, 256);
    attn_choice c;

    (void)state;
    choose("linear_bwd:f32,b1,hq2,hkv1,lq4096,lk4096,d64,dv32,causal,normalize,state,"
           "grad=q+k+v+state",
           &t, &c);
    assert_int_equal(c.n_steps, 10);
    for (int i = 0; i < 10; i++)
        assert_string_equal(c.step[i].kernel, kernels[i]);
    assert_int_equal(c.step[3].grad, ATTN_GRAD_Q);
    assert_false(c.step[3].grouped);
    assert_int_equal(c.step[6].grad, ATTN_GRAD_V);
    assert_true(c.step[6].grouped);
    assert_int_equal(c.step[9].grad, ATTN_GRAD_K | ATTN_GRAD_STATE);
    assert_int_equal(c.step[3].piece, 256); /* room for 16 of each of 2 heads */
    assert_int_equal(c.step[6].piece, 128); /* for 32 of the one state */
    assert_int_equal(c.workspace_bytes, 4 * 2 * 4096 + 32 * 4 * 33 * 64);
    choose("linear_bwd:f32,b8,hq8,hkv8,lq4096,lk4096,d64,causal,grad=v", &t, &c);
    assert_int_equal(c.n_steps, 1);
    assert_int_equal(c.workspace_bytes, 0);
    assert_string_equal(c.instance, "chunk32,columns64,items128,vw4,states1,d64,dv64,f32");
    choose("linear_bwd:f32,b8,hq8,hkv8,lq99,lk200,d64,grad=k", &t, &c);
    assert_int_equal(c.n_steps, 2);
    assert_int_equal(c.step[0].over, ATTN_OVER_STATES);
    assert_int_equal(c.step[1].over, ATTN_OVER_KEY_STATES);
    choose("linear_bwd:f32,b8,hq8,hkv8,lq99,lk200,d64,grad=q", &t, &c);
    assert_int_equal(c.step[0].over, ATTN_OVER_KEY_STATES);
    assert_int_equal(c.step[1].over, ATTN_OVER_STATES);
}

/* Drivers that cut loops off: a plan says no before they do. */
static void opencl_loops(void **state)
{
    attn_target t = opencl_of(32768, 256);
    attn_problem p;
    attn_choice c;

    (void)state;
    t.caps.max_loops = 65535;
    choose("linear_bwd:f32,b1,hq1,hkv1,lq900,lk900,d64,causal,grad=v", &t, &c);
    check_ok(attn_problem_parse(&p, "linear_bwd:f32,b1,hq1,hkv1,lq9000,lk9000,d64,causal,"
                                    "grad=v"));
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "the driver cuts loops off");
    choose("linear_fwd:f32,b1,hq1,hkv1,lq300,lk300,d64,causal,rule=gated,decay=f32", &t,
           &c);
    check_ok(attn_problem_parse(&p, "linear_fwd:f32,b1,hq1,hkv1,lq320,lk320,d64,causal,"
                                    "rule=gated,decay=f32"));
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "the driver cuts loops off");
    check_ok(
        attn_problem_parse(&p, "linear_fwd:f32,b99,hq1,hkv1,lq90000,lk90000,d64,causal"));
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "linear_fwd_chunk: the driver cuts loops off");
}

/* CUDA: registers, shared memory, the workspace; z is copied where two groups read it. */
static void cuda_state(void **state)
{
    const attn_target t = cuda_of(48 * 1024, 132, 90);
    attn_choice c;

    (void)state;
    choose("linear_fwd:f32,b2,hq4,hkv2,lq9,lk9,d64,dv100,causal", &t, &c);
    assert_string_equal(c.step[0].kernel, "linear_fwd_recurrent_f32_d64");
    assert_int_equal(c.n_steps, 1);
    assert_int_equal(c.workspace_bytes, 0);
    choose("linear_fwd:bf16,b2,hq4,hkv2,lq9,lk9,d100,dv100,causal,normalize,state", &t, &c);
    assert_int_equal(c.n_steps, 2);
    assert_string_equal(c.step[0].kernel, "linear_fwd_begin");
    assert_string_equal(c.step[1].kernel, "linear_fwd_recurrent_bf16_d128");
    assert_int_equal(c.workspace_bytes, 4 * 4 * 100);
    choose("linear_fwd:f16,b2,hq4,hkv2,lq9,lk9,d100,dv32,causal,normalize,state", &t, &c);
    assert_int_equal(c.n_steps, 1);
    assert_int_equal(c.workspace_bytes, 0);
    choose("linear_fwd:f16,b2,hq4,hkv2,lq9,lk9,d200,dv100,causal", &t, &c);
    assert_string_equal(c.step[0].kernel, "linear_fwd_recurrent_f16_shared");
    assert_int_equal(c.step[0].fast_bytes, 4 * 7 * 200 + 4 * (3 * 256 + 32) + 4 * 32 * 200);
    choose("linear_fwd:f16,b2,hq4,hkv2,lq9,lk9,d400,dv100,causal", &t, &c);
    assert_string_equal(c.step[0].kernel, "linear_fwd_recurrent_f16_global");
    assert_int_equal(c.workspace_bytes, 4 * 4 * 4 * 32 * 400);
}

/* One segment where the heads fill the device; else segments that run at once, whose states
 * a step of its own brings together if they are many. */
static void cuda_chunks(void **state)
{
    static const struct {
        const char *text, *variant;
        int64_t steps, piece;
    } cases[] = {
        { "linear_fwd:bf16,b8,hq16,hkv16,lq4096,lk4096,d64,causal", "linear_fwd_chunk", 1,
          0 },
        { "linear_fwd:bf16,b8,hq16,hkv16,lq4096,lk4096,d64,causal,state",
          "linear_fwd_chunk", 2, 0 },
        { "linear_fwd:bf16,b4,hq16,hkv16,lq4096,lk4096,d64,causal", "linear_fwd_chunk", 2,
          11 * 64 },
        { "linear_fwd:f16,b1,hq8,hkv8,lq16384,lk16384,d64,causal", "linear_fwd_chunk", 3,
          6 * 64 },
        { "linear_fwd:f16,b8,hq16,hkv16,lq2048,lk2048,d128,causal", "linear_fwd_chunk", 1,
          0 },
        { "linear_fwd:f16,b1,hq1,hkv1,lq500,lk500,d64,causal", "linear_fwd_chunk", 2,
          4 * 64 },
        { "linear_fwd:f32,b4,hq16,hkv16,lq4096,lk4096,d64,causal", "linear_fwd_chunk", 2,
          16 * 64 },
        { "linear_fwd:f32,b8,hq16,hkv16,lq2048,lk2048,d128,causal", "linear_fwd_chunk", 1,
          0 },
        { "linear_fwd:f16,b1,hq1,hkv1,lq1,lk1,d64,causal,state", "linear_fwd_recurrent", 1,
          0 },
        { "linear_fwd:f16,b1,hq1,hkv1,lq500,lk500,d65,causal", "linear_fwd_recurrent", 1,
          0 },
        { "linear_fwd:f16,b1,hq1,hkv1,lq500,lk500,d64,causal,layout=2",
          "linear_fwd_recurrent", 1, 0 },
        { "linear_fwd:f16,b1,hq1,hkv1,lq1,lk1,d64", "linear_fwd_recurrent", 1, 0 },
        { "linear_fwd:f16,b1,hq2,hkv1,lq70,lk1024,d64", "linear_fwd_chunk", 3, 4 * 64 },
        { "linear_fwd:f16,b16,hq16,hkv16,lq4096,lk4096,d64", "linear_fwd_chunk", 2, 4096 },
        { "linear_fwd:f16,b1,hq1,hkv1,lq500,lk500,d64,causal,rule=gated,decay=f32",
          "linear_fwd_recurrent", 1, 0 },
    };
    /* on Hopper warpgroups take f32: planner_linear_cuda.c */
    const attn_target t = cuda_of(227 * 1024, 132, 80), old = cuda_of(64 * 1024, 132, 75);
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        choose(cases[i].text, &t, &c);
        assert_string_equal(c.variant->name, cases[i].variant);
        assert_int_equal(c.n_steps, cases[i].steps);
        assert_int_equal(c.step[0].piece, cases[i].piece);
    }
    choose(cases[3].text, &t, &c);
    assert_int_equal(c.workspace_bytes, 8 * 43 * 4 * 64 * 65);
    choose("linear_fwd:f16,b1,hq2,hkv1,lq70,lk1000,d64", &t,
           &c); /* and the state as it came */
    assert_int_equal(c.workspace_bytes, (1 + 4) * 4 * 64 * 65);
    assert_int_equal(c.step[2].piece, 0);
    choose(cases[0].text, &old, &c);
    assert_string_equal(c.variant->name, "linear_fwd_recurrent");
    choose("linear_fwd:f32,b8,hq16,hkv16,lq2048,lk2048,d64,causal", &t, &c);
    assert_string_equal(c.step[0].kernel, "linear_fwd_chunk_tf32_d64_output");
    choose("linear_fwd:f32,b8,hq16,hkv16,lq2048,lk2048,d64,causal,allow=tf32", &t, &c);
    assert_string_equal(c.step[0].kernel, "linear_fwd_chunk_tf32_d64_output_tf32");
}

/* A scan for each gradient that is asked for; dK's, which writes dS_in, is the last. */
static void cuda_gradients(void **state)
{
    const attn_target t = cuda_of(48 * 1024, 132, 90);
    attn_choice c;

    (void)state;
    choose("linear_bwd:f32,b2,hq4,hkv2,lq9,lk9,d64,dv135,causal,normalize,state,"
           "grad=q+k+v+state",
           &t, &c);
    assert_int_equal(c.n_steps, 4);
    assert_string_equal(c.step[0].kernel, "linear_bwd_begin_f32");
    assert_string_equal(c.step[1].kernel, "linear_bwd_recurrent_f32_q_kept");
    assert_string_equal(c.step[2].kernel, "linear_bwd_recurrent_f32_v_kept");
    assert_string_equal(c.step[3].kernel, "linear_bwd_recurrent_f32_k_kept");
    assert_int_equal(c.step[3].grad, ATTN_GRAD_K | ATTN_GRAD_STATE);
    assert_int_equal(c.workspace_bytes, 4 * 2 * 4 * 9);
    choose("linear_bwd:bf16,b2,hq4,hkv2,lq9,lk9,d500,dv200,causal,normalize,grad=v", &t,
           &c);
    assert_int_equal(c.n_steps, 1);
    assert_string_equal(c.step[0].kernel, "linear_bwd_recurrent_bf16_v_global");
    assert_int_equal(c.workspace_bytes, 4 * 2 * 4 * 9 + 4 * 7 * 4 * 32 * 504);
    choose("linear_bwd:bf16,b2,hq4,hkv2,lq9,lk9,d500,dv200,causal,grad=q", &t, &c);
    assert_string_equal(c.step[0].kernel, "linear_bwd_recurrent_bf16_q_shared");
}

/* Gradients in chunks: the sums and the walk of dQ, then the sums of dK and dV and their
 * walks, dK's last; segments where there are few heads. */
static void cuda_gradients_in_chunks(void **state)
{
    static const struct {
        const char *text;
        int64_t steps, last_piece, workspace;
    } cases[] = {
        { "linear_bwd:bf16,b8,hq16,hkv16,lq4096,lk4096,d64,causal,grad=q+k+v", 3, 0, 0 },
        { "linear_bwd:f16,b8,hq16,hkv16,lq4096,lk4096,d64,causal,grad=v", 2, 0,
          4 * 4 * 128 * 4096 },
        { "linear_bwd:bf16,b8,hq16,hkv16,lq4096,lk4096,d64,causal,normalize,state,"
          "grad=q+k+v+state",
          6, 0, 4 * 128 * (2 * 4096 + 64 * 65) },
        { "linear_bwd:bf16,b4,hq16,hkv16,lq4096,lk4096,d64,causal,grad=k", 2, 11 * 64,
          4 * 64 * 6 * 64 * 65 },
        { "linear_bwd:f32,b1,hq8,hkv8,lq16384,lk16384,d64,causal,normalize,grad=q+k+v", 8,
          8 * 64, 4 * 8 * (2 * 16384 + 32 * 64 * 65) },
        { "linear_bwd:bf16,b1,hq2,hkv1,lq70,lk1024,d64,grad=q", 3, 0, 4 * 5 * 64 * 65 },
        { "linear_bwd:bf16,b1,hq2,hkv1,lq1024,lk70,d64,grad=v", 3, 0, 4 * 5 * 64 * 65 },
    };
    const attn_target t = cuda_of(227 * 1024, 132, 80), old = cuda_of(64 * 1024, 132, 75);
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        choose(cases[i].text, &t, &c);
        assert_string_equal(c.variant->name, "linear_bwd_chunk");
        assert_int_equal(c.n_steps, cases[i].steps);
        assert_int_equal(c.step[c.n_steps - 1].piece, cases[i].last_piece);
        assert_int_equal(c.workspace_bytes, cases[i].workspace);
    }
    choose(cases[4].text, &t, &c);
    assert_string_equal(c.step[0].kernel, "linear_bwd_chunk_begin_f32");
    assert_string_equal(c.step[1].kernel, "linear_bwd_chunk_tf32_d64_q_sums");
    assert_string_equal(c.step[2].kernel, "linear_fwd_scan");
    assert_string_equal(c.step[3].kernel, "linear_bwd_chunk_tf32_d64_q");
    assert_string_equal(c.step[6].kernel, "linear_bwd_chunk_tf32_d64_v");
    assert_string_equal(c.step[7].kernel, "linear_bwd_chunk_tf32_d64_k");
    choose("linear_bwd:f32,b2,hq4,hkv2,lq99,lk99,d64,causal,grad=q,allow=tf32", &t, &c);
    assert_string_equal(c.step[0].kernel, "linear_bwd_chunk_tf32_d64_q_tf32");
    choose("linear_bwd:f32,b2,hq4,hkv2,lq99,lk99,d64,causal,normalize,grad=q,allow=tf32",
           &t, &c); /* what TF32 rounds would not cancel */
    assert_string_equal(c.step[1].kernel, "linear_bwd_chunk_tf32_d64_q");
    choose("linear_bwd:bf16,b2,hq4,hkv2,lq99,lk99,d64,dv264,causal,grad=q", &t, &c);
    assert_string_equal(c.variant->name, "linear_bwd_recurrent");
    choose("linear_bwd:bf16,b2,hq4,hkv2,lq9,lk9,d64,causal,grad=q", &t, &c);
    assert_string_equal(c.variant->name, "linear_bwd_recurrent");
    choose(cases[0].text, &old, &c);
    assert_string_equal(c.variant->name, "linear_bwd_recurrent");
}

/* ... of heads of over 128 elements: narrower groups, rows in parts; a class for the rows that
 * each kernel multiplies with each other, Dv in the scans of dQ and dK, D in all others. */
static void cuda_wide_chunks(void **state)
{
    static const char fwd[] = "linear_fwd:f16,b8,hq16,hkv16,lq2048,lk2048,d200,causal";
    static const char exact[] =
        "linear_fwd:f32,b8,hq16,hkv16,lq2048,lk2048,d256,dv64,causal";
    static const char bwd[] =
        "linear_bwd:bf16,b8,hq16,hkv16,lq2048,lk2048,d64,dv256,causal,"
        "state=in,grad=q+k+v";
    const attn_target t = cuda_of(227 * 1024, 132, 80), least = cuda_of(99 * 1024, 84, 86);
    attn_choice c;
    attn_problem p;

    (void)state;
    choose(fwd, &t, &c);
    assert_int_equal(c.n_steps, 1);
    assert_string_equal(c.step[0].kernel, "linear_fwd_chunk_mma_f16_d256_output");
    assert_int_equal(c.step[0].columns, 32);
    /* two parts of Q, K and V in shared memory; S, z and exponents */
    assert_int_equal(c.step[0].fast_bytes,
                     2 * 2 * 64 * (64 + 64 + 32) + 256 * (2 * 32 + 16) + 16);
    choose(fwd, &least, &c);
    assert_string_equal(c.variant->name, "linear_fwd_chunk");
    choose(exact, &t, &c);
    assert_string_equal(c.step[0].kernel, "linear_fwd_chunk_tf32_d256_output");
    assert_int_equal(c.step[0].fast_bytes,
                     2 * 4 * 64 * (64 + 64 + 32) + 256 * 4 * (32 + 1));
    assert_true(2 * (c.step[0].fast_bytes + 1024) <= 228 * 1024); /* two groups */
    choose(exact, &least, &c);
    assert_string_equal(c.variant->name, "linear_fwd_recurrent");
    choose("linear_fwd:f16,b1,hq1,hkv1,lq500,lk500,d256,dv96,causal", &t, &c);
    assert_string_equal(c.step[0].kernel, "linear_fwd_chunk_mma_f16_d256_sums");
    assert_int_equal(c.step[0].fast_bytes, 4 * 2 * 64 * (64 + 32));
    choose("linear_fwd:f16,b1,hq1,hkv1,lq500,lk500,d64,dv256,causal", &t, &c);
    assert_string_equal(c.step[0].kernel, "linear_fwd_chunk_mma_f16_d64_sums");
    check_ok(attn_problem_parse(&p, "linear_fwd:f16,b1,hq1,hkv1,lq500,lk500,d264,causal"));
    assert_non_null(strstr(c.variant->applicable(&p, &t.caps), "D is over 256"));

    choose(bwd, &t, &c);
    assert_int_equal(c.n_steps, 4);
    assert_string_equal(c.step[0].kernel, "linear_bwd_chunk_mma_bf16_d256_q_sums");
    assert_string_equal(c.step[1].kernel, "linear_bwd_chunk_mma_bf16_d256_q");
    assert_string_equal(c.step[2].kernel, "linear_bwd_chunk_mma_bf16_d64_v");
    assert_string_equal(c.step[3].kernel, "linear_bwd_chunk_mma_bf16_d256_k");
    assert_int_equal(c.step[1].columns, 32);
    assert_int_equal(c.step[2].columns, 64);
    /* two parts of A, B and X, and c; two parts of S, exponents, its last row */
    assert_int_equal(c.step[1].fast_bytes, 2 * 2 * 64 * (64 + 64 + 32) + 2 * 4 * 64 +
                                               2 * 256 * 2 * 32 + 16 + 4 * 32);
    assert_string_equal(c.instance, "chunk64,dims64:256,d64,dv256,bf16");
    choose(bwd, &least, &c);
    assert_string_equal(c.variant->name, "linear_bwd_chunk");
    /* whole rows of 128 do not fit, parts do */
    choose("linear_bwd:f16,b8,hq16,hkv16,lq2048,lk2048,d128,dv64,causal,grad=v", &t, &c);
    assert_string_equal(c.instance, "chunk64,dims128:64,d128,dv64,f16");
    choose("linear_bwd:f16,b8,hq16,hkv16,lq2048,lk2048,d128,dv64,causal,grad=v", &least,
           &c);
    assert_string_equal(c.instance, "chunk64,dims256:64,d128,dv64,f16");
    check_ok(
        attn_problem_parse(&p, "linear_bwd:f16,b1,hq1,hkv1,lq500,lk500,d64,dv264,grad=q"));
    assert_non_null(strstr(c.variant->applicable(&p, &t.caps), "D or Dv is over 256"));
}

/* The host: chunks, but single steps and rules token by token; narrow units where there are
 * few states. */
static void the_host(void **state)
{
    static const struct {
        const char *text, *variant;
    } cases[] = {
        { "linear_fwd:f32,b1,hq8,hkv8,lq4096,lk4096,d64,causal", "linear_fwd_chunk" },
        { "linear_fwd:f32,b1,hq8,hkv8,lq1,lk1,d64,causal,state", "linear_fwd_recurrent" },
        { "linear_fwd:f32,b1,hq8,hkv8,lq64,lk64,d64,causal,rule=delta,beta=f32",
          "linear_fwd_recurrent" },
        { "linear_fwd:f32,b1,hq1,hkv1,lq64,lk64,d5000,causal", "linear_fwd_recurrent" },
        { "linear_bwd:f32,b1,hq8,hkv8,lq1,lk1,d64,causal,grad=q", "linear_bwd_chunk" },
        { "linear_bwd:f32,b1,hq1,hkv1,lq9,lk9,d5000,causal,grad=q",
          "linear_bwd_reference" },
    };
    const attn_target few = host_of(2), many = host_of(64);
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        choose(cases[i].text, &few, &c);
        assert_string_equal(c.variant->name, cases[i].variant);
    }
    choose(cases[0].text, &few, &c);
    assert_int_equal(c.step[0].columns, 64);
    choose(cases[0].text, &many, &c);
    assert_int_equal(c.step[0].columns, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opencl_chunks),    cmocka_unit_test(opencl_chunks_of_gradients),
        cmocka_unit_test(opencl_gradients), cmocka_unit_test(opencl_loops),
        cmocka_unit_test(opencl_state),     cmocka_unit_test(rows_that_fit_nowhere),
        cmocka_unit_test(cuda_state),       cmocka_unit_test(cuda_chunks),
        cmocka_unit_test(cuda_gradients),   cmocka_unit_test(cuda_gradients_in_chunks),
        cmocka_unit_test(cuda_wide_chunks), cmocka_unit_test(the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
