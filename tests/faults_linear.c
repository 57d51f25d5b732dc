/* SPDX-License-Identifier: MIT */
/* tests/faults_linear.c: faults of linear attention that users met in other libraries, on
 * every variant of every device: strides, lengths, sizes, the same bits. */
#define _GNU_SOURCE
#include "tests/linear_case.h"

#include <math.h>
#include <stdlib.h>

#include <sys/mman.h>

/* The gradient of a sum: one number for all, with strides of 0. */
static void expanded_gradient(const subject *who)
{
    float one = 1;
    linear_case c;

    linear_case_make(&c, who, "linear_bwd:f32,b2,hq3,hkv3,lq16,lk16,d8,causal,grad=q+k+v");
    linear_fill(c.in[IN_GRAD_O], c.n_in[IN_GRAD_O], 1);
    c.args.grad_o = attn_tensor_bhld(&one, ATTN_F32, 2, 3, 16, 8);
    memset(c.args.grad_o.stride, 0, sizeof c.args.grad_o.stride);
    linear_case_compare(&c);
    linear_case_free(&c);
}
EACH(expanded_gradient, "linear_bwd:f32,b2,hq3,hkv3,lq16,lk16,d8,causal,grad=q+k+v,"
                        "layout=16:16:16:16:any:16:16:16")

enum { FEWER_KEYS = 3 * 5 * 8 };

/* More queries than keys: V ends where NaN begins, and dV has so many rows. */
static void fewer_keys(const subject *who)
{
    float v[FEWER_KEYS + 64];
    const int n = FEWER_KEYS;
    linear_case c;

    linear_case_make(&c, who,
                     "linear_fwd:f32,b1,hq3,hkv3,lq12,lk5,d8,causal,phi=elu1,normalize");
    linear_fill(v, n + 64, NAN);
    memcpy(v, c.in[IN_V], (size_t)n * sizeof *v);
    c.args.v.data = v;
    linear_case_compare(&c);
    linear_case_free(&c);
}
EACH(fewer_keys, "linear_fwd:f32,b1,hq3,hkv3,lq12,lk5,d8,causal,phi=elu1,normalize")

static void gradients_of_fewer_keys(const subject *who)
{
    float v[FEWER_KEYS + 64], dv[FEWER_KEYS + 64];
    const int n = FEWER_KEYS;
    linear_case b;

    linear_case_make(&b, who,
                     "linear_bwd:f32,b1,hq3,hkv3,lq12,lk5,d8,causal,phi=elu1,normalize,"
                     "grad=q+k+v");
    linear_fill(v, n + 64, NAN);
    linear_fill(dv, n + 64, 77);
    b.args.v.data = v;
    memcpy(v, b.in[IN_V], (size_t)n * sizeof *v);
    b.args.grad_v.data = dv;
    linear_case_want(&b);
    linear_case_run(&b);
    for (int i = 0; i < n; i++)
        linear_near(&b, "grad_v", i, (double)dv[i], b.want.out[LINEAR_GRAD_V].value[i],
                    1e-4);
    for (int i = n; i < n + 64; i++)
        assert_true(dv[i] == 77);
    linear_case_free(&b);
}
EACH(gradients_of_fewer_keys, "linear_bwd:f32,b1,hq3,hkv3,lq12,lk5,d8,causal,phi=elu1,"
                              "normalize,grad=q+k+v")

/* What lies past the key length is not read, and its gradients are not written. */
static const char *const poison_past_the_length_problems[] = {
    "linear_fwd:f32,b2,hq2,hkv1,lq70,lk70,d8,causal,phi=elu1,normalize,lens,state",
    "linear_fwd:f16,b2,hq2,hkv1,lq70,lk70,d8,phi=elu1,normalize,lens,state",
    "linear_bwd:f32,b2,hq2,hkv1,lq70,lk70,d8,causal,phi=elu1,normalize,lens,state,"
    "grad=q+k+v+state",
    "linear_bwd:f32,b2,hq2,hkv1,lq70,lk70,d8,phi=elu1,normalize,lens,state,"
    "grad=q+k+v+state",
};

static void poison_past_the_length(const subject *who)
{
    static const int32_t lens[][2] = { { 3, 0 }, { 64, 69 }, { 65, 1 } };

    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        const bool backward = strstr(linear_in_hand, "_bwd");
        linear_case c;

        linear_case_make(&c, who, linear_in_hand);
        memcpy(c.lens, lens[i], sizeof lens[i]);
        for (int64_t b = 0; b < 2; b++)
            for (int64_t n = c.lens[b] * 8; n < 70 * 8; n++) {
                c.in[IN_K][b * 70 * 8 + n] = n % 2 ? NAN : INFINITY;
                c.in[IN_V][b * 70 * 8 + n] = n % 2 ? -INFINITY : NAN;
            }
        linear_case_compare(&c);
        for (int64_t b = 0; b < 2 && backward; b++)
            for (int64_t n = c.lens[b] * 8; n < 70 * 8; n++) {
                assert_true(isnan(c.out[LINEAR_GRAD_K][b * 70 * 8 + n]));
                assert_true(isnan(c.out[LINEAR_GRAD_V][b * 70 * 8 + n]));
            }
        linear_case_free(&c);
    }
}
EACH_OF(poison_past_the_length, poison_past_the_length_problems)

/* No queries, no keys: the state comes out as it went in, or with the keys added. */
static const char *const nothing_problems[] = {
    "linear_fwd:f32,b2,hq2,hkv1,lq0,lk0,d8,causal,phi=elu1,normalize,state,den",
    "linear_fwd:f32,b2,hq2,hkv1,lq0,lk5,d8,causal,state",
    "linear_fwd:f32,b2,hq2,hkv1,lq0,lk5,d8,phi=elu1,normalize,state",
    "linear_fwd:f32,b2,hq2,hkv1,lq5,lk0,d8,phi=elu1,normalize,state,den",
    "linear_fwd:f32,b2,hq2,hkv1,lq5,lk0,d8,causal,phi=elu1,normalize,den",
    "linear_fwd:f32,b0,hq2,hkv1,lq5,lk5,d8,state",
    "linear_fwd:f32,b2,hq0,hkv0,lq5,lk5,d8,state",
    "linear_fwd:f32,b2,hq2,hkv1,lq1,lk1,d8,causal,phi=elu1,normalize,state,den",
    "linear_bwd:f32,b2,hq2,hkv1,lq0,lk0,d8,causal,phi=elu1,normalize,state,"
    "grad=q+k+v+state",
    "linear_bwd:f32,b2,hq2,hkv1,lq0,lk5,d8,causal,state,grad=q+k+v+state",
    "linear_bwd:f32,b2,hq2,hkv1,lq0,lk5,d8,phi=elu1,normalize,state,grad=q+k+v+state",
    "linear_bwd:f32,b2,hq2,hkv1,lq5,lk0,d8,phi=elu1,normalize,state,grad=q+k+v+state",
    "linear_bwd:f32,b0,hq2,hkv1,lq5,lk5,d8,grad=q+k+v",
    "linear_bwd:f32,b2,hq2,hkv1,lq1,lk1,d8,causal,phi=elu1,normalize,state,"
    "grad=q+k+v+state",
};

static void nothing(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    linear_case_compare(&c);
    linear_case_free(&c);
}
EACH_OF(nothing, nothing_problems)

/* The same call twice, and with other outputs left out, is the same bits. */
static void same_bits(const subject *who)
{
    linear_case c;
    float *first;
    const size_t bytes = 2 * 4 * 200 * 40 * sizeof *first;

    if (who->traits & ATTN_TRAIT_NONDET) /* promises nothing of the kind */
        return;
    linear_case_make(&c, who,
                     "linear_fwd:f32,b2,hq4,hkv2,lq200,lk200,d24,dv40,causal,phi=elu1,"
                     "normalize,state,den");
    linear_case_run(&c);
    first = malloc(bytes);
    assert_non_null(first);
    memcpy(first, c.out[LINEAR_O], bytes);
    for (int run = 0; run < 10; run++) {
        if (run > 5) {
            c.args.state_out = c.args.den = (attn_tensor){ .type = ATTN_TYPE_NONE };
            c.args.z_out = c.args.den;
        }
        linear_case_run(&c);
        assert_memory_equal(first, c.out[LINEAR_O], bytes);
    }
    free(first);
    linear_case_free(&c);
}
EACH(same_bits, "linear_fwd:f32,b2,hq4,hkv2,lq200,lk200,d24,dv40,causal,phi=elu1,normalize,"
                "state,den")

static void same_bits_of_gradients(const subject *who)
{
    linear_case c;
    float *first;
    const size_t bytes = 2 * 2 * 200 * 24 * sizeof *first;

    if (who->traits & ATTN_TRAIT_NONDET)
        return;
    linear_case_make(&c, who,
                     "linear_bwd:f32,b2,hq4,hkv2,lq200,lk200,d24,dv40,causal,phi=elu1,"
                     "normalize,state,grad=q+k+v+state");
    linear_case_want(&c);
    linear_case_run(&c);
    first = malloc(bytes);
    assert_non_null(first);
    memcpy(first, c.out[LINEAR_GRAD_K], bytes);
    for (int run = 0; run < 10; run++) {
        if (run > 5)
            c.args.grad_q = c.args.grad_v = c.args.grad_state_in =
                (attn_tensor){ .type = ATTN_TYPE_NONE };
        linear_case_run(&c);
        assert_memory_equal(first, c.out[LINEAR_GRAD_K], bytes);
    }
    free(first);
    linear_case_free(&c);
}
EACH(same_bits_of_gradients, "linear_bwd:f32,b2,hq4,hkv2,lq200,lk200,d24,dv40,causal,"
                             "phi=elu1,normalize,state,grad=q+k+v+state")

/* Sizes at which blocks and dispatch of another library gave up. */
static const char *const large_heads_problems[] = {
    "linear_fwd:f32,b1,hq1,hkv1,lq20,lk20,d8,dv513,causal,phi=elu1,normalize",
    "linear_fwd:f32,b1,hq1,hkv1,lq20,lk20,d8,dv1024,causal",
    "linear_fwd:f32,b1,hq1,hkv1,lq70,lk70,d512,dv512,causal,phi=elu1,normalize",
    "linear_bwd:f32,b1,hq1,hkv1,lq20,lk20,d260,dv7,causal,grad=q+k+v",
    "linear_bwd:f32,b1,hq1,hkv1,lq20,lk20,d7,dv600,causal,phi=elu1,normalize,grad=q+k+"
    "v",
};

static void large_heads(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    linear_case_compare(&c);
    linear_case_free(&c);
}
EACH_OF(large_heads, large_heads_problems)

/* The fast kernels take heads that another library's fast ones did not. */
static void fast_for_512(void **state)
{
    attn_ctx *ctx = NULL;
    attn_plan *plan = NULL;
    char text[512];

    (void)state;
    check_ok(attn_ctx_create("host", &ctx));
    check_ok(attn_plan_parse(ctx, "linear_fwd:f32,b1,hq1,hkv1,lq4096,lk4096,d512,causal",
                             &plan));
    check_ok(attn_plan_text(plan, text, sizeof text, NULL));
    assert_memory_equal(text, "host:linear_fwd_chunk[", 22);
    attn_plan_destroy(&plan);
    attn_ctx_destroy(&ctx);
}

/* Heads and batches further apart than 32 bits count, of every tensor in turn. */
static const char *const far_strides_problems[] = {
    "linear_fwd:f32,b2,hq1,hkv1,lq9,lk9,d8,causal,phi=elu1,normalize,state,den,layout=4",
    "linear_fwd:f32,b1,hq2,hkv2,lq9,lk9,d8,causal,phi=elu1,normalize,state,den,layout=4",
    "linear_bwd:f32,b2,hq1,hkv1,lq9,lk9,d8,causal,phi=elu1,normalize,state,"
    "grad=q+k+v+state,layout=4",
    "linear_bwd:f32,b1,hq2,hkv2,lq9,lk9,d8,phi=elu1,normalize,state,grad=q+k+v+state,"
    "layout=4",
};

static void far_strides(const subject *who)
{
    static const struct {
        const char *name;
        size_t at;
        int in, out; /* -1: none */
    } tensors[] = {
#define FAR(field, in, out) { #field, offsetof(attn_args, field), in, out }
        FAR(q, IN_Q, -1),
        FAR(k, IN_K, -1),
        FAR(v, IN_V, -1),
        FAR(state_in, IN_STATE, -1),
        FAR(z_in, IN_Z, -1),
        FAR(o, IN_O, -1),
        FAR(den, IN_DEN, -1),
        FAR(grad_o, IN_GRAD_O, -1),
        FAR(grad_state_out, IN_GRAD_STATE, -1),
        FAR(o, -1, LINEAR_O),
        FAR(den, -1, LINEAR_DEN),
        FAR(state_out, -1, LINEAR_STATE_OUT),
        FAR(z_out, -1, LINEAR_Z_OUT),
        FAR(grad_q, -1, LINEAR_GRAD_Q),
        FAR(grad_k, -1, LINEAR_GRAD_K),
        FAR(grad_v, -1, LINEAR_GRAD_V),
        FAR(grad_state_in, -1, LINEAR_GRAD_STATE_IN),
    };
    const int64_t far = ((int64_t)1 << 31) + 64;
    const size_t bytes = ((size_t)far + 4096) * sizeof(float);

    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        const int in = tensors[i].in, out = tensors[i].out;
        linear_comparison found = { .norm = 0 };
        float *at, *near_by;
        attn_tensor *t;
        int64_t half;
        linear_case c;

        linear_case_make(&c, who, linear_in_hand);
        linear_case_want(&c);
        t = (attn_tensor *)(void *)((char *)&c.args + tensors[i].at);
        near_by = in >= 0 ? c.in[in] : c.out[out];
        if (!near_by) {
            linear_case_free(&c);
            continue;
        }
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
            skip();
        half =
            (in >= 0 ? c.n_in[in] : linear_output_count(&c.desc, (linear_output)out)) / 2;
        for (int n = 0; n < 2 && in >= 0; n++)
            memcpy(at + n * far, near_by + n * half, (size_t)half * sizeof *at);
        t->data = at;
        t->stride[c.desc.batch == 2 ? 0 : 1] = far;
        linear_case_run(&c);
        for (int n = 0; n < 2 && out >= 0; n++)
            memcpy(near_by + n * half, at + n * far, (size_t)half * sizeof *at);
        for (int o = 0; o < LINEAR_OUTPUTS; o++)
            if (c.out[o])
                linear_compare(&c.want, (linear_output)o, c.out[o], &found);
        if (found.share > 1)
            fail_msg("%s: %s far apart: %s", c.name, tensors[i].name, found.what);
        linear_case_free(&c);
        munmap(at, bytes);
    }
}
EACH_OF(far_strides, far_strides_problems)

/* Views of every kind, and memory around them that must stay. */
static void odd_views(const subject *who)
{
    enum { B = 2, H = 2, L = 67, D = 6, ROW = 2 * H * (D + 1) + 4 };
    float *room = malloc(B * L * ROW * 2 * sizeof *room);
    linear_case c;

    assert_non_null(room);
    linear_fill(room, B * L * ROW * 2, 5);
    linear_case_make(&c, who,
                     "linear_fwd:f32,b2,hq2,hkv2,lq67,lk67,d6,causal,phi=elu1,"
                     "normalize,layout=any");
    /* q [B, L, H, D] with elements two apart and gaps, o between them */
    for (int64_t n = 0; n < B * H * L * D; n++) {
        const int64_t d = n % D, l = n / D % L, h = n / D / L % H, b = n / D / L / H;

        room[(b * L + l) * ROW + 2 * (h * (D + 1) + d)] = c.in[IN_Q][n];
    }
    c.args.q =
        (attn_tensor){ ATTN_F32, room, 0, { B, H, L, D }, { L * ROW, 2 * (D + 1), ROW, 2 },
                       0 };
    c.args.o =
        (attn_tensor){ ATTN_F32, room, 1, { B, H, L, D }, { L * ROW, 2 * (D + 1), ROW, 2 },
                       0 };
    linear_case_want(&c);
    linear_case_run(&c);
    for (int64_t n = 0; n < B * H * L * D; n++) {
        const int64_t d = n % D, l = n / D % L, h = n / D / L % H, b = n / D / L / H;
        const int64_t at = (b * L + l) * ROW + 2 * (h * (D + 1) + d);

        assert_true(room[at] == c.in[IN_Q][n]);
        linear_near(&c, "o", n, (double)room[at + 1], c.want.out[LINEAR_O].value[n], 1e-4);
        room[at] = room[at + 1] = 5;
    }
    for (int64_t n = 0; n < B * L * ROW * 2; n++)
        assert_true(room[n] == 5);
    free(room);
    linear_case_free(&c);
}
EACH(odd_views,
     "linear_fwd:f32,b2,hq2,hkv2,lq67,lk67,d6,causal,phi=elu1,normalize,layout=any")

/* Outputs want memory of their own; but a state may be updated in place. */
static void overlaps(const subject *who)
{
    const attn_options options = { .size = sizeof options, .variant = who->variant };
    linear_case c;
    attn_args kept;

    linear_case_make(&c, who,
                     "linear_fwd:f32,b1,hq2,hkv2,lq8,lk8,d8,causal,phi=elu1,"
                     "normalize,state");
    kept = c.args;
    c.args.o.data = c.in[IN_Q];
    check_error(attn_linear_forward_host_args(who->ctx, &c.desc, &options, &c.args),
                ATTN_ERR_INVALID, "o overlaps q");
    c.args = kept;
    c.args.state_out = c.args.state_in;
    c.args.z_out = c.args.z_in;
    check_ok(attn_linear_forward_host_args(who->ctx, &c.desc, &options, &c.args));
    c.args.state_out.stride[0] = 1; /* of one step: the same view still */
    check_ok(attn_linear_forward_host_args(who->ctx, &c.desc, &options, &c.args));
    c.args.state_out.stride[2] = 1;
    c.args.state_out.stride[3] = 8; /* transposed */
    check_error(attn_linear_forward_host_args(who->ctx, &c.desc, &options, &c.args),
                ATTN_ERR_INVALID, "state_out overlaps state_in");
    c.args = kept;
    c.args.z_out = c.args.z_in;
    c.args.state_out.data = c.in[IN_V];
    check_error(attn_linear_forward_host_args(who->ctx, &c.desc, &options, &c.args),
                ATTN_ERR_INVALID, "state_out overlaps v");
    c.args = kept;
    c.args.z_in = (attn_tensor){ .type = ATTN_TYPE_NONE };
    check_error(attn_linear_forward_host_args(who->ctx, &c.desc, &options, &c.args),
                ATTN_ERR_INVALID,
                "z_in is missing, but the plan was made with "
                "ATTN_LINEAR_STATE_IN");
    c.args = kept;
    c.args.bias = c.args.q;
    check_error(attn_linear_forward_host_args(who->ctx, &c.desc, &options, &c.args),
                ATTN_ERR_INVALID, "bias is given, but the plan was made without softmax");
    c.args = kept;
    c.args.decay = c.args.k;
    check_error(attn_linear_forward_host_args(who->ctx, &c.desc, &options, &c.args),
                ATTN_ERR_INVALID, "decay is given, but the plan was made without a rule");
    c.args = kept;
    c.args.state_in.size[3] = 7;
    check_error(attn_linear_forward_host_args(who->ctx, &c.desc, &options, &c.args),
                ATTN_ERR_INVALID, "state_in.size[3] (D) = 7, want 8");
    linear_case_free(&c);
}
EACH(overlaps, "linear_fwd:f32,b1,hq2,hkv2,lq8,lk8,d8,causal,phi=elu1,normalize,state")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expanded_gradient),
        cmocka_unit_test(test_fewer_keys),
        cmocka_unit_test(test_gradients_of_fewer_keys),
        cmocka_unit_test(test_poison_past_the_length),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_same_bits_of_gradients),
        cmocka_unit_test(test_large_heads),
        cmocka_unit_test(fast_for_512),
        cmocka_unit_test(test_far_strides),
        cmocka_unit_test(test_odd_views),
        cmocka_unit_test(test_overlaps),
    };
    return LINEAR_RUN(tests);
}
