/* SPDX-License-Identifier: MIT */
/* tests/faults_gradients.c: gradients where code goes wrong: rows and keys that see
 * nothing, very negative sums, what is asked for and given, odd views, repeated runs. */
#include "tests/fault_backward.h"

#define SMALL "f32,b1,hq1,hkv1,lq8,lk8,d8"

/* A1, A8: a query that sees no key has gradients of 0. What lies in its rows reaches nobody. */
static void hide_row(backward *x, const subject *who, const char *fields)
{
    backward_make(x, who, fields);
    memset(x->t.mask + 3 * 8, 0, 8);
    backward_forward(x);
    fill(x->t.q + 3 * 8, 8, NAN);
    fill(x->grad_o + 3 * 8, 8, INFINITY);
    backward_compare(x);
    backward_is_finite(x);
    backward_is_zero(x, Q, 3 * 8, 8);
}

/* And the others are those without the mask when its own gradients are 0 there. */
static void one_hidden_row(const subject *who)
{
    backward x, plain;

    hide_row(&x, who, "f32,b1,hq1,hkv1,lq8,lk8,d8,mask");
    backward_make(&plain, who, "f32,b1,hq1,hkv1,lq8,lk8,d8");
    fill(plain.grad_o + 3 * 8, 8, 0);
    plain.grad_lse[3] = 0;
    backward_run(&plain);
    for (int of = Q; of <= V; of++)
        for (int64_t i = 0; i < x.n[of]; i++)
            near(&x.t, "gradient", i, x.grad[of][i], plain.grad[of][i], 1e-5);
    backward_free(&plain);
    backward_free(&x);
}

static void one_hidden_row_of_16_bits(const subject *who)
{
    backward x;

    hide_row(&x, who, "f16,b1,hq1,hkv1,lq8,lk8,d8,mask");
    backward_free(&x);
    hide_row(&x, who, "bf16,b1,hq1,hkv1,lq8,lk8,d8,mask");
    backward_free(&x);
}

/* The same by a bias, and keys that do not fill a vector: a key that is not there is hidden
 * from the row too. */
static void one_row_hidden_by_a_bias(const subject *who)
{
    backward x;

    backward_make(&x, who, "f32,b1,hq1,hkv1,lq8,lk97,d8,bias=f32");
    fill(x.t.bias + 3 * 97, 97, -INFINITY);
    backward_forward(&x);
    fill(x.t.q + 3 * 8, 8, NAN);
    fill(x.grad_o + 3 * 8, 8, INFINITY);
    backward_compare(&x);
    backward_is_finite(&x);
    backward_is_zero(&x, Q, 3 * 8, 8);
    backward_free(&x);
}

/* A query with a NaN: dQ of the others is what it is without it, also where a key that nobody
 * sees holds NaN. */
static void one_query_with_a_nan(const subject *who)
{
    backward x, plain;

    for (int run = 0; run < 2; run++) {
        backward *const at = run ? &x : &plain;

        backward_make(at, who, "f32,b1,hq1,hkv1,lq8,lk97,d8,mask");
        for (int i = 0; i < 8; i++)
            at->t.mask[i * 97 + 5] = 0;
        fill(at->t.k + 5 * 8, 8, NAN);
        if (!strstr(who->variant, "_math")) /* products of matrices have that V */
            fill(at->t.v + 5 * 8, 8, NAN);
        if (run)
            at->t.q[3 * 8 + 2] = NAN; /* so is its LSE */
        backward_forward(at);
        backward_run(at);
    }
    for (int64_t i = 0; i < x.n[Q]; i++)
        if (i / 8 != 3)
            near(&x.t, "dq", i, x.grad[Q][i], plain.grad[Q][i], 1e-5);
    backward_is_zero(&x, V, 5 * 8, 8);
    backward_free(&plain);
    backward_free(&x);
}

/* Of a row of which only the sink is left it gets dLSE, whatever dO is there. Products of
 * whole matrices have that dO in them. */
static void one_row_left_to_the_sink(const subject *who)
{
    backward x;
    float want;

    if (strstr(who->variant, "_math"))
        return;
    backward_make(&x, who, SMALL ",mask,sinks");
    memset(x.t.mask + 3 * 8, 0, 8);
    backward_forward(&x);
    fill(x.grad_o + 3 * 8, 8, 0);
    backward_run(&x);
    want = x.grad[SINKS][0];
    fill(x.grad_o + 3 * 8, 4, NAN);
    fill(x.grad_o + 3 * 8 + 4, 4, INFINITY);
    backward_compare(&x);
    backward_is_finite(&x);
    assert_true(x.grad[SINKS][0] == want);
    backward_free(&x);
}

/* A2: a head that sees nothing; the gradient of its bias is 0 too. */
static void one_hidden_head(const subject *who)
{
    backward x;

    backward_make(&x, who, "f32,b1,hq3,hkv3,lq4,lk8,d8,bias=f32,mask");
    memset(x.t.mask + 4 * 8, 0, 4 * 8);
    backward_forward(&x);
    backward_compare(&x);
    backward_is_finite(&x);
    for (int of = Q; of <= V; of++)
        backward_is_zero(&x, of, x.n[of] / 3, x.n[of] / 3);
    backward_is_zero(&x, BIAS, 4 * 8, 4 * 8);
    backward_free(&x);
}

/* A3: late rows see nothing in the first tiles. A5, B2: rows of which only the sink is
 * left; their dLSE goes to it. */
static void biases_that_hide(const subject *who)
{
    static const float sinks[] = { 0, 0.5f, -100000, INFINITY };
    backward x;

    backward_make(&x, who, "f32,b1,hq1,hkv1,lq640,lk640,d4,bias=f32");
    for (int64_t n = 0; n < 640 * 640; n++)
        x.t.bias[n] = llabs(n / 640 - n % 640) > 64 ? -INFINITY : 0;
    backward_forward(&x);
    backward_compare(&x);
    backward_is_finite(&x);
    for (int64_t i = 0; i < 640; i++)
        if (i + 65 < 640)
            backward_is_zero(&x, BIAS, i * 640 + i + 65, 640 - i - 65);
    backward_free(&x);

    for (int s = 0; s < 4; s++) {
        double want = 0;

        backward_make(&x, who, "f32,b1,hq1,hkv1,lq16,lk512,d64,bias=f32,sinks");
        fill(x.t.bias, 14 * 512, -INFINITY);
        x.t.sinks[0] = sinks[s];
        backward_forward(&x);
        fill(x.grad_o + 14 * 64, 2 * 64, 0);
        x.grad_lse[14] = x.grad_lse[15] = 0;
        for (int i = 0; i < 14; i++)
            want += x.grad_lse[i];
        backward_compare(&x);
        backward_is_finite(&x);
        backward_is_zero(&x, Q, 0, 14 * 64);
        backward_is_zero(&x, K, 0, x.n[K]);
        near(&x.t, "grad_sinks", 0, x.grad[SINKS][0], want, 1e-5);
        backward_free(&x);
    }
}

/* A9: sizes around a tile. */
static void tails(const subject *who)
{
    static const int keys[] = { 1, 31, 33, 63, 65, 127, 129 };

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            char fields[NAME_BYTES];
            backward x;

            snprintf(fields, sizeof fields, "f32,b1,hq2,hkv1,lq%d,lk%d,d16,dv24,causal",
                     keys[i], keys[k]);
            backward_make(&x, who, fields);
            backward_compare(&x);
            backward_is_finite(&x);
            backward_free(&x);
        }
}

/* A10: the gradient of one row reaches no key that the row does not see. */
static void single_rows(const subject *who)
{
    for (int i = 0; i < 4; i++) {
        backward x;

        backward_make(&x, who, "f32,b1,hq2,hkv2,lq4,lk4,d8,causal");
        fill(x.grad_o, x.t.no, 0);
        x.args.grad_lse = (attn_tensor){ 0 };
        fill(x.grad_o + i * 8, 8, 1);
        fill(x.grad_o + (4 + i) * 8, 8, 1);
        backward_compare(&x);
        for (int h = 0; h < 2; h++)
            for (int of = K; of <= V; of++) {
                backward_is_zero(&x, of, (h * 4 + i + 1) * 8, (3 - i) * 8);
                if (of == V && x.grad[V][h * 4 * 8] == 0)
                    fail_msg("%s: key 0 has no gradient", x.t.name);
            }
        backward_free(&x);
    }
}

/* B5: sums far below 0, up to the last tile; the weights must not overflow. */
static void negative_sums(const subject *who)
{
    static const float low[] = { -100, -3000, -1e9f, -3e38f };

    for (size_t k = 0; k < sizeof low / sizeof low[0]; k++) {
        backward x;

        backward_make(&x, who, "f32,b1,hq1,hkv1,lq704,lk704,d64,bias=f32");
        fill(x.t.bias, x.t.nbias, low[k]);
        backward_forward(&x);
        if (k == 0) {
            backward_compare(&x);
        } else {
            backward_run(&x);
        }
        backward_is_finite(&x);
        for (int of = Q; of <= V; of++) /* of the right size: no weight is over 1 */
            for (int64_t i = 0; i < x.n[of]; i++)
                near(&x.t, "gradient", i, x.grad[of][i], 0, 704 * 64);
        backward_free(&x);
    }
}

/* B9: large scores in 16 bits. */
static void large_scores(const subject *who)
{
    static const char *const fields[] = { "f16,b1,hq1,hkv1,lq300,lk300,d128,causal",
                                          "bf16,b1,hq1,hkv1,lq300,lk300,d128,causal" };

    for (int y = 0; y < 2; y++) {
        backward x;

        backward_make(&x, who, fields[y]);
        for (int64_t i = 0; i < x.t.nq; i++)
            x.t.q[i] *= 3;
        for (int64_t i = 0; i < x.t.nk; i++)
            x.t.k[i] *= 3;
        for (int64_t i = 0; i < x.t.nv; i++)
            x.t.v[i] *= 3;
        backward_forward(&x);
        backward_compare(&x);
        backward_is_finite(&x);
        backward_free(&x);
    }
}

/* H1: no keys. H2: empty sequences. H4: keys that no query sees, in buffers full of NaN. */
static void nothing_to_see(const subject *who)
{
    backward x;

    backward_make(&x, who, "f32,b1,hq2,hkv2,lq4,lk0,d8");
    backward_run(&x);
    backward_is_zero(&x, Q, 0, x.n[Q]);
    backward_free(&x);

    backward_make(&x, who, "f32,b2,hq1,hkv1,lq4,lk5,d8,packed");
    x.t.cu_q[0] = x.t.cu_q[1] = 0;
    x.t.cu_q[2] = 4;
    x.t.cu_k[1] = 5;
    x.t.cu_k[2] = 9;
    x.t.keep = true;
    backward_forward(&x);
    backward_run(&x);
    backward_is_zero(&x, K, 0, 5 * 8);
    backward_is_zero(&x, V, 0, 5 * 8);
    for (int64_t i = 9 * 8; i < x.n[K]; i++) /* token 9 is nobody's: still NaN */
        if (!isnan(x.grad[K][i]) || !isnan(x.grad[V][i]))
            fail_msg("%s: a token of no sequence was written", x.t.name);
    for (int64_t i = 4 * 8; i < x.n[Q]; i++)
        if (!isnan(x.grad[Q][i]))
            fail_msg("%s: a query of no sequence was written", x.t.name);
    backward_free(&x);

    backward_make(&x, who, "f32,b1,hq1,hkv1,lq4,lk12,d8,causal");
    backward_compare(&x);
    backward_is_zero(&x, K, 4 * 8, 8 * 8);
    backward_is_zero(&x, V, 4 * 8, 8 * 8);
    backward_free(&x);
}

/* What is asked of a query without a key in sight, be it as large as f32 can tell, has nothing
 * to do with the gradients of the others. */
static void silent_rows(const subject *who)
{
    backward x;

    backward_make(&x, who, "f16,b1,hq2,hkv1,lq96,lk64,d64,causal,align=br");
    for (int i = 0; i < 32; i++)
        x.grad_lse[i] = x.grad_lse[96 + i] = i % 2 ? 1e20f : INFINITY;
    backward_compare(&x);
    backward_is_zero(&x, Q, 0, 32 * 64);
    backward_is_finite(&x);
    backward_free(&x);
}

/* A head's dQ has the same bits whatever gradients come to the head that it shares keys with. */
static void loud_heads(const subject *who)
{
    enum { HEAD = 64 * 64 };
    backward x;
    float *quiet;

    backward_make(&x, who, "f16,b1,hq2,hkv1,lq64,lk64,d64");
    for (int i = 0; i < 2 * HEAD; i++)
        x.grad_o[i] *= 0.01f;
    backward_compare(&x);
    quiet = floats(HEAD);
    memcpy(quiet, x.grad[Q] + HEAD, HEAD * sizeof *quiet);
    for (int i = 0; i < HEAD; i++)
        x.grad_o[i] *= 1e6f;
    backward_run(&x);
    assert_memory_equal(x.grad[Q] + HEAD, quiet, HEAD * sizeof *quiet);
    free(quiet);
    backward_free(&x);
}

/* H3: a buffer longer than its sequences. */
static void tokens_behind(const subject *who)
{
    backward x;

    backward_make(&x, who, "f32,b2,hq2,hkv1,lq8,lk8,d8,packed");
    x.t.cu_q[1] = x.t.cu_k[1] = 5;
    x.t.cu_q[2] = x.t.cu_k[2] = 12;
    x.t.keep = true;
    backward_forward(&x);
    backward_compare(&x); /* what the reference leaves alone must be left alone */
    for (int of = Q; of <= V; of++)
        for (int64_t h = 0; h < x.n[of] / 16 / 8; h++)
            for (int64_t i = (h * 16 + 12) * 8; i < (h + 1) * 16 * 8; i++)
                if (!isnan(x.grad[of][i]))
                    fail_msg("%s: token %lld was written", x.t.name,
                             (long long)(i / 8 % 16));
    backward_free(&x);
}

/* I4: dO with strides of 0, as the gradient of a sum has it. And transposed. */
static void odd_views(const subject *who)
{
    backward x, plain;
    float one = 0.75f, *turned;

    backward_make(&x, who, "f32,b2,hq2,hkv2,lq20,lk33,d8,dv12,causal");
    backward_make(&plain, who, "f32,b2,hq2,hkv2,lq20,lk33,d8,dv12,causal");
    fill(plain.grad_o, plain.t.no, one);
    x.args.grad_o.data = &one;
    memset(x.args.grad_o.stride, 0, sizeof x.args.grad_o.stride);
    backward_run(&x);
    backward_run(&plain);
    for (int of = Q; of <= V; of++)
        assert_memory_equal(x.grad[of], plain.grad[of], (size_t)x.n[of] * sizeof(float));
    backward_free(&plain);

    /* [B, H, D, L] and back */
    backward_make(&plain, who, "f32,b2,hq2,hkv2,lq20,lk33,d8,dv12,causal");
    turned = floats(x.t.no);
    for (int64_t n = 0; n < x.t.no; n++)
        turned[n / 240 * 240 + n % 12 * 20 + n / 12 % 20] = plain.grad_o[n];
    x.args.grad_o.data = turned;
    memcpy(x.args.grad_o.stride, (int64_t[4]){ 480, 240, 1, 20 },
           sizeof x.args.grad_o.stride);
    backward_run(&x);
    backward_run(&plain);
    for (int of = Q; of <= V; of++)
        assert_memory_equal(x.grad[of], plain.grad[of], (size_t)x.n[of] * sizeof(float));
    free(turned);
    backward_free(&plain);
    backward_free(&x);
}

/* J: as many heads in a group as there are groups; and of every number. */
static void grouped_heads(const subject *who)
{
    for (int hkv = 1; hkv <= 4; hkv++)
        for (int group = 1; group <= 4; group++) {
            char fields[NAME_BYTES];
            backward x;

            snprintf(fields, sizeof fields, "f32,b2,hq%d,hkv%d,lq9,lk20,d8,dv4",
                     hkv * group, hkv);
            backward_make(&x, who, fields);
            backward_compare(&x);
            backward_free(&x);
        }
}

/* Q1: every subset, and each kind of given gradient: what is asked for besides changes no
 * bit. */
static void every_subset(const subject *who)
{
    const char *const fields = "f32,b2,hq4,hkv2,lq20,lk40,d8,dv16,causal,bias=f32,sinks";
    attn_tensor *of_args[GRADS];
    backward all, x;

    for (int given = 0; given < 3; given++) {
        backward_make(&all, who, fields);
        if (given == 1)
            all.args.grad_lse = (attn_tensor){ 0 };
        if (given == 2)
            all.args.grad_o = all.args.o = (attn_tensor){ 0 };
        backward_compare(&all);
        for (int set = 1; set < 1 << GRADS; set++) {
            backward_make(&x, who, fields);
            if (given == 1)
                x.args.grad_lse = (attn_tensor){ 0 };
            if (given == 2)
                x.args.grad_o = x.args.o = (attn_tensor){ 0 };
            of_args[Q] = &x.args.grad_q;
            of_args[K] = &x.args.grad_k;
            of_args[V] = &x.args.grad_v;
            of_args[BIAS] = &x.args.grad_bias;
            of_args[SINKS] = &x.args.grad_sinks;
            for (int of = 0; of < GRADS; of++)
                if (!(set >> of & 1))
                    *of_args[of] = (attn_tensor){ 0 };
            backward_run(&x);
            for (int of = 0; of < GRADS; of++)
                if (set >> of & 1)
                    assert_memory_equal(x.grad[of], all.grad[of],
                                        (size_t)x.n[of] * sizeof(float));
            backward_free(&x);
        }
        if (given == 2) /* no gradient of O: V is not in it */
            backward_is_zero(&all, V, 0, all.n[V]);
        backward_free(&all);
    }
}

/* The gradient of a bias that is told as large with a stride of 0 has its own elements. */
static void expanded_biases(const subject *who)
{
    backward x, plain;
    float row[40];

    backward_make(&x, who, "f32,b2,hq2,hkv2,lq20,lk40,d8,bias=f32");
    backward_make(&plain, who, "f32,b2,hq2,hkv2,lq20,lk40,d8,bias=f32");
    for (int j = 0; j < 40; j++)
        row[j] = (float)(j % 7) / 4;
    for (int64_t n = 0; n < plain.t.nbias; n++)
        plain.t.bias[n] = row[n % 40];
    x.args.bias.data = x.t.args.bias.data = row;
    for (int i = 0; i < 3; i++)
        x.args.bias.stride[i] = x.t.args.bias.stride[i] = 0;
    backward_forward(&x);
    backward_forward(&plain);
    backward_run(&x);
    backward_run(&plain);
    for (int of = 0; of <= BIAS; of++)
        assert_memory_equal(x.grad[of], plain.grad[of], (size_t)x.n[of] * sizeof(float));

    /* and of the row alone it is the sum */
    for (int i = 0; i < 3; i++)
        x.args.bias.size[i] = x.args.grad_bias.size[i] = 1;
    backward_run(&x);
    for (int j = 0; j < 40; j++) {
        double want = 0;

        for (int64_t n = j; n < plain.n[BIAS]; n += 40)
            want += (double)plain.grad[BIAS][n];
        near(&x.t, "grad_bias", j, x.grad[BIAS][j], want, 1e-5);
    }
    backward_free(&x);
    backward_free(&plain);
}

/* Q2: a tail behind 1024, with a bias. E4: a window past 1024. */
static void long_rows(const subject *who)
{
    static const char *const fields[] = {
        "f32,b1,hq1,hkv1,lq1025,lk1025,d8,bias=f32",
        "f32,b1,hq1,hkv1,lq1100,lk1100,d8,window=128:128"
    };

    for (int y = 0; y < 2; y++) {
        backward x;

        backward_make(&x, who, fields[y]);
        for (int64_t i = 0; i < x.t.nbias && x.t.bias; i++)
            x.t.bias[i] = (float)(i % 11) / 8;
        backward_forward(&x);
        backward_compare(&x);
        backward_is_finite(&x);
        backward_free(&x);
    }
}

/* N1: the same bits 100 times, with any number of threads, and of a batch alone. */
static void repeated(const subject *who)
{
    backward x;
    float *first[GRADS];

    backward_make(&x, who, "f16,b6,hq4,hkv2,lq70,lk90,d24,causal,bias=f32,sinks");
    for (int64_t i = 0; i < x.t.nq; i++)
        x.t.q[i] *= 3;
    backward_forward(&x);
    backward_compare(&x);
    for (int of = 0; of < GRADS; of++) {
        first[of] = floats(x.n[of]);
        memcpy(first[of], x.grad[of], (size_t)x.n[of] * sizeof(float));
    }
    for (int run = 0; run < 100; run++) {
        check_ok(attn_ctx_set_threads(who->ctx, run % 8));
        backward_run(&x);
        for (int of = 0; of < GRADS; of++)
            assert_memory_equal(x.grad[of], first[of], (size_t)x.n[of] * sizeof(float));
    }
    check_ok(attn_ctx_set_threads(who->ctx, 0));
    for (int of = 0; of < GRADS; of++)
        free(first[of]);
    backward_free(&x);
}

/* P: the cap has a derivative, also where scores are far beyond it. */
static void capped(const subject *who)
{
    static const char *const fields[] = {
        "f32,b1,hq2,hkv1,lq20,lk70,d16,softcap=0.5",
        "f32,b1,hq2,hkv1,lq20,lk70,d16,softcap=50,scale=3",
        "f32,b1,hq2,hkv1,lq20,lk70,d16,softcap=1,scale=100,bias=f32",
    };

    for (int y = 0; y < 3; y++) {
        backward x;

        backward_make(&x, who, fields[y]);
        backward_compare(&x);
        backward_is_finite(&x);
        backward_free(&x);
    }
}

EACH_BACKWARD(one_hidden_row, SMALL ",mask")
EACH_BACKWARD(one_hidden_row_of_16_bits, "f16,b1,hq1,hkv1,lq8,lk8,d8,mask")
EACH_BACKWARD(one_query_with_a_nan, SMALL ",mask")
EACH_BACKWARD(one_row_hidden_by_a_bias, SMALL ",bias=f32")
EACH_BACKWARD(one_row_left_to_the_sink, SMALL ",mask,sinks")
EACH_BACKWARD(one_hidden_head, SMALL ",bias=f32,mask")
EACH_BACKWARD(biases_that_hide, SMALL ",bias=f32,sinks")
EACH_BACKWARD(tails, SMALL ",causal")
EACH_BACKWARD(single_rows, SMALL ",causal")
EACH_BACKWARD(negative_sums, SMALL ",bias=f32")
EACH_BACKWARD(large_scores, "f16,b1,hq1,hkv1,lq8,lk8,d8,causal")
EACH_BACKWARD(nothing_to_see, SMALL ",packed")
EACH_BACKWARD(silent_rows, "f16,b1,hq2,hkv1,lq8,lk8,d8,causal")
EACH_BACKWARD(loud_heads, "f16,b1,hq2,hkv1,lq8,lk8,d8")
EACH_BACKWARD(tokens_behind, SMALL ",packed")
EACH_BACKWARD(odd_views, SMALL ",layout=any")
EACH_BACKWARD(grouped_heads, SMALL)
EACH_BACKWARD(every_subset, SMALL ",bias=f32,sinks")
EACH_BACKWARD(expanded_biases, SMALL ",bias=f32")
EACH_BACKWARD(long_rows, SMALL ",bias=f32")
EACH_BACKWARD(repeated, "f16,b1,hq1,hkv1,lq8,lk8,d8,bias=f32,sinks")
EACH_BACKWARD(capped, SMALL ",softcap=1,bias=f32")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_hidden_row),
        cmocka_unit_test(test_one_hidden_row_of_16_bits),
        cmocka_unit_test(test_one_row_hidden_by_a_bias),
        cmocka_unit_test(test_one_query_with_a_nan),
        cmocka_unit_test(test_one_row_left_to_the_sink),
        cmocka_unit_test(test_one_hidden_head),
        cmocka_unit_test(test_biases_that_hide),
        cmocka_unit_test(test_tails),
        cmocka_unit_test(test_single_rows),
        cmocka_unit_test(test_negative_sums),
        cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_nothing_to_see),
        cmocka_unit_test(test_silent_rows),
        cmocka_unit_test(test_loud_heads),
        cmocka_unit_test(test_tokens_behind),
        cmocka_unit_test(test_odd_views),
        cmocka_unit_test(test_grouped_heads),
        cmocka_unit_test(test_every_subset),
        cmocka_unit_test(test_expanded_biases),
        cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_capped),
    };
    return FAULTS_RUN(tests);
}
