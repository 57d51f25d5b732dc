/* SPDX-License-Identifier: MIT */
/* tests/faults_linear_values.c: faults of linear attention's numbers that users met in other
 * libraries, on every variant of every device: sums and products beyond a type, huge rows,
 * denominators. */
#include "tests/linear_case.h"

#include <math.h>
#include <string.h>

/* Sums over keys that f16 does not hold: z and S are f32. */
static void sums_beyond_f16(const subject *who)
{
    double mean = 0;
    linear_case c;

    linear_case_make(&c, who, "linear_fwd:f16,b1,hq1,hkv1,lq4096,lk4096,d64,dv1,normalize");
    linear_fill(c.in[IN_Q], c.n_in[IN_Q], 2);
    linear_fill(c.in[IN_K], c.n_in[IN_K], 2);
    linear_case_run(&c);
    for (int64_t n = 0; n < 4096; n++)
        mean += (double)c.in[IN_V][n] / 4096;
    for (int64_t n = 0; n < 4096; n++)
        linear_near(&c, "o", n, (double)c.out[LINEAR_O][n], mean, 1e-3 * fabs(mean) + 1e-6);
    linear_case_free(&c);
}
EACH(sums_beyond_f16, "linear_fwd:f16,b1,hq1,hkv1,lq4096,lk4096,d64,dv1,normalize")

/* q times a and k times b: num and den overflow, O does not change. */
static void huge_products(const subject *who)
{
    static const float factors[][2] = { { 1e18f, 1 },      { 1, 1e18f }, { 1e18f, 1e18f },
                                        { 1e-15f, 1e15f }, { 3e38f, 1 }, { 1e10f, 1e10f } };
    float before[90 * 12];
    linear_case c;

    linear_case_make(&c, who,
                     "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d16,dv12,causal,phi=relu,"
                     "normalize,eps=0");
    linear_fill(c.in[IN_Q], c.n_in[IN_Q], 0.75f);
    linear_fill(c.in[IN_K], c.n_in[IN_K], 0.5f);
    for (int64_t n = 0; n < c.n_in[IN_Q]; n += 3)
        c.in[IN_Q][n] = c.in[IN_K][n] = 1;
    linear_case_run(&c);
    memcpy(before, c.out[LINEAR_O], sizeof before);
    for (size_t f = 0; f < sizeof factors / sizeof factors[0]; f++) {
        float *const in[2] = { c.in[IN_Q], c.in[IN_K] };

        for (int64_t n = 0; n < c.n_in[IN_Q]; n++)
            for (int i = 0; i < 2; i++)
                in[i][n] = (n % 3 ? (i ? 0.5f : 0.75f) : 1) * factors[f][i];
        linear_case_run(&c);
        for (int64_t n = 0; n < 90 * 12; n++)
            linear_near(&c, "o", n, (double)c.out[LINEAR_O][n], (double)before[n], 1e-5);
    }
    linear_case_free(&c);
}
EACH(huge_products, "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d16,dv12,causal,phi=relu,"
                    "normalize,eps=0")

/* A huge row of q beside an eps that counts: both are scaled. */
static void huge_query_and_eps(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who,
                     "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d16,dv12,causal,phi=relu,"
                     "normalize,eps=5,den");
    for (int64_t n = 0; n < c.n_in[IN_Q]; n++) {
        c.in[IN_Q][n] *= n / 16 % 2 ? 0x1p40f : 0x1p-3f;
        c.in[IN_K][n] *= 0x1p-40f;
    }
    linear_case_compare(&c);
    linear_case_free(&c);
}
EACH(huge_query_and_eps, "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d16,dv12,causal,phi=relu,"
                         "normalize,eps=5,den")

/* Products of q and k, and sums of states, that f16 has no number for; some rows of each, or
 * parts of rows, are of usual size. */
static void products_beyond_f16(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    for (int64_t n = 0; n < c.n_in[IN_Q]; n++) {
        c.in[IN_Q][n] *= n / 64 % 3 ? 200.0f : 0.5f;
        c.in[IN_K][n] *= n / 64 % 5 ? 200.0f : 0.5f;
    }
    linear_case_compare(&c);
    for (int64_t n = 0; n < c.n_in[IN_V]; n++)
        c.in[IN_V][n] *= 100;
    linear_case_compare(&c);
    linear_case_free(&c);
}
static const char *const products_beyond_f16_problems[] = {
    "linear_fwd:f16,b1,hq1,hkv1,lq200,lk200,d64,dv16,causal,normalize,state,den",
    "linear_fwd:f16,b1,hq1,hkv1,lq200,lk200,d192,dv16,causal,normalize,state,den",
};
EACH_OF(products_beyond_f16, products_beyond_f16_problems)

/* Scales that scale * phi(Q) leaves f32 by, or loses bits by, though O is of usual size: with
 * a normaliser, or since q, k and V are. */
static void scales_of_all_sizes(const subject *who)
{
    static const struct {
        float scale;
        int q, k, v; /* exponents of what is put to them */
    } sizes[] = {
        { 1e38f, 7, 0, 0 },      { -1e-38f, 0, 0, 0 },     { 1024, 120, -70, -40 },
        { 1e-15f, -90, 50, 60 }, { -1e30f, 40, -20, -70 }, { 1e-30f, 100, 20, -10 },
    };
    linear_case c;
    size_t n = 0;

    linear_case_make(&c, who, linear_in_hand);
    while (n < sizeof sizes / sizeof sizes[0] && sizes[n].scale != c.desc.scale)
        n++;
    assert_true(n < sizeof sizes / sizeof sizes[0]);
    for (int64_t i = 0; i < c.n_in[IN_Q]; i++)
        c.in[IN_Q][i] = ldexpf(c.in[IN_Q][i], sizes[n].q);
    for (int64_t i = 0; i < c.n_in[IN_K]; i++)
        c.in[IN_K][i] = ldexpf(c.in[IN_K][i], sizes[n].k);
    for (int64_t i = 0; i < c.n_in[IN_V]; i++)
        c.in[IN_V][i] = ldexpf(c.in[IN_V][i], sizes[n].v);
    linear_case_compare(&c);
    linear_case_free(&c);
}
static const char *const scales_of_all_sizes_problems[] = {
    "linear_fwd:f32,b1,hq2,hkv1,lq90,lk90,d64,dv16,causal,normalize,den,scale=1e38",
    "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d64,dv16,normalize,den,scale=1e38",
    "linear_fwd:bf16,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,normalize,den,scale=1e38",
    "linear_fwd:f16,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,normalize,den,scale=1e38",
    "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,normalize,eps=0,den,scale=-1e-38",
    "linear_fwd:f32,b1,hq2,hkv1,lq90,lk90,d64,dv16,causal,scale=1024",
    "linear_fwd:bf16,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,scale=1024",
    "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d64,dv16,scale=1024",
    "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,scale=1e-15",
    "linear_fwd:bf16,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,scale=1e-15",
    "linear_fwd:f32,b1,hq2,hkv1,lq90,lk90,d64,dv16,causal,scale=-1e30",
    "linear_fwd:bf16,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,scale=-1e30",
    "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,scale=1e-30",
};
EACH_OF(scales_of_all_sizes, scales_of_all_sizes_problems)

/* O beyond its type is an infinity, and 0 where V is, never a NaN. */
static void results_beyond_the_type(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    for (int64_t n = 0; n < c.n_in[IN_V]; n++)
        c.in[IN_V][n] = n % 16 % 3 ? 1 : 0;
    linear_fill(c.in[IN_Q], c.n_in[IN_Q], 200);
    linear_fill(c.in[IN_K], c.n_in[IN_K], 200);
    linear_case_run(&c);
    for (int64_t n = 0; n < c.desc.len_q * 16; n++)
        assert_true(n % 16 % 3 ? isinf(c.out[LINEAR_O][n]) && c.out[LINEAR_O][n] > 0
                               : c.out[LINEAR_O][n] == 0);
    linear_case_free(&c);
}
static const char *const results_beyond_the_type_problems[] = {
    "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,scale=3e38",
    "linear_fwd:bf16,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,scale=3e38",
    "linear_fwd:f16,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,scale=3e38",
    "linear_fwd:f16,b1,hq1,hkv1,lq90,lk90,d64,dv16,scale=3e38",
};
EACH_OF(results_beyond_the_type, results_beyond_the_type_problems)

/* Gradients that f16 has numbers for, though not for q / den or dO / den of later queries, of
 * which some rows of dO are far smaller than others. */
static void gradients_below_f16(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    for (int64_t n = 0; n < c.n_in[IN_K]; n++)
        c.in[IN_K][n] *= 64;
    for (int64_t n = 0; n < c.n_in[IN_V]; n++)
        c.in[IN_V][n] *= 64;
    for (int64_t n = 0; n < c.n_in[IN_GRAD_O]; n++)
        c.in[IN_GRAD_O][n] *= n / 64 % 7 ? 0x1p-6f : 0x1p-12f;
    linear_case_compare(&c);
    linear_case_free(&c);
}
static const char *const gradients_below_f16_problems[] = {
    "linear_bwd:f16,b1,hq2,hkv1,lq200,lk200,d64,causal,normalize,grad=q+k+v",
    "linear_bwd:f16,b1,hq2,hkv1,lq200,lk200,d64,normalize,state,grad=q+k+v+state",
    "linear_bwd:f16,b1,hq2,hkv1,lq130,lk130,d136,dv192,causal,normalize,grad=q+k+v",
};
EACH_OF(gradients_below_f16, gradients_below_f16_problems)

/* Huge rows of bf16, and an eps that counts. */
static void huge_queries_of_bf16(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who,
                     "linear_fwd:bf16,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,phi=relu,"
                     "normalize,eps=5,den");
    for (int64_t n = 0; n < c.n_in[IN_Q]; n++) {
        c.in[IN_Q][n] *= n / 64 % 2 ? 0x1p120f : 0x1p-3f;
        c.in[IN_K][n] *= n / 64 % 2 ? 0x1p-118f : 0x1p5f;
    }
    linear_case_run(&c); /* num would be 2^125 */
    for (int64_t n = 0; n < 90 * 16; n++)
        assert_true(c.out[LINEAR_O][n] - c.out[LINEAR_O][n] == 0);
    for (int64_t n = 0; n < c.n_in[IN_Q]; n++)
        c.in[IN_K][n] *= n / 64 % 2 ? 1 : 0x1p-123f;
    linear_case_compare(&c);
    linear_case_free(&c);
}
EACH(huge_queries_of_bf16, "linear_fwd:bf16,b1,hq1,hkv1,lq90,lk90,d64,dv16,causal,phi=relu,"
                           "normalize,eps=5,den")

/* Huge rows of dO in bf16: what they are multiplied with makes them representable again. */
static void huge_gradients_of_bf16(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    for (int64_t n = 0; n < c.n_in[IN_GRAD_O]; n++)
        c.in[IN_GRAD_O][n] *= n / 128 % 2 ? 0x1p100f : 0x1p-3f;
    for (int64_t n = 0; n < c.n_in[IN_V]; n++)
        c.in[IN_V][n] *= 0x1p10f;
    for (int64_t n = 0; n < c.n_in[IN_K]; n++)
        c.in[IN_K][n] *= 0x1p-100f;
    linear_case_compare(&c);
    linear_case_free(&c);
}
static const char *const huge_gradients_of_bf16_problems[] = {
    "linear_bwd:bf16,b1,hq2,hkv2,lq200,lk200,d64,causal,grad=q+k+v",
    "linear_bwd:bf16,b1,hq2,hkv2,lq200,lk200,d128,causal,grad=q+k+v",
};
EACH_OF(huge_gradients_of_bf16, huge_gradients_of_bf16_problems)

/* Rows of f32 of very different sizes, later ones larger and smaller, single large elements,
 * rows of zeros, and none of usual size. */
static void gradients_of_wide_rows(const subject *who)
{
    static const struct {
        int in, every, part;
        float by;
    } patterns[] = {
        { IN_V, 70, 0, 0x1p30f },      { IN_K, 70, 0, 0x1p-20f },
        { IN_GRAD_O, 3, 0, 0x1p-24f }, { IN_Q, 9, 0, 0x1p18f },
        { IN_K, 100, 7, 0x1p40f },     { IN_V, 2, 0, 0 },
        { IN_GRAD_O, 1, 0, 0x1p-52f }, { IN_K, 1, 0, 0x1p70f },
        { IN_Q, 90, 5, 0x1p-60f },     { IN_GRAD_O, 110, 3, 0x1p35f },
    };
    linear_case c;

    for (size_t n = 0; n < sizeof patterns / sizeof patterns[0]; n++) {
        linear_case_make(&c, who, linear_in_hand);

        const int in = patterns[n].in;
        const int64_t d = c.desc.dim_qk;

        for (int64_t i = 0; i < c.n_in[in]; i++)
            if (i / d % patterns[n].every == 0 &&
                (!patterns[n].part || i % d == patterns[n].part))
                c.in[in][i] *= patterns[n].by;
        linear_case_compare(&c);
        linear_case_free(&c);
    }
}
static const char *const gradients_of_wide_rows_problems[] = {
    "linear_bwd:f32,b1,hq1,hkv1,lq140,lk140,d64,causal,grad=q+k+v",
    "linear_bwd:f32,b1,hq1,hkv1,lq140,lk140,d64,causal,phi=relu,normalize,grad=q+k+v",
};
EACH_OF(gradients_of_wide_rows, gradients_of_wide_rows_problems)

/* One part of long rows of q is huge, and that of k small: all parts count alike. */
static void huge_parts(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    for (int64_t n = 64; n < c.n_in[IN_Q]; n++)
        if (n / 64 % 3 == 1) {
            c.in[IN_Q][n] *= 0x1p70f;
            c.in[IN_K][n] *= 0x1p-70f;
        }
    linear_case_compare(&c);
    linear_case_free(&c);
}
static const char *const huge_parts_problems[] = {
    "linear_fwd:bf16,b1,hq1,hkv1,lq70,lk70,d192,dv16,causal,phi=relu,normalize,den",
    "linear_fwd:f32,b1,hq1,hkv1,lq70,lk70,d192,dv16,causal,phi=relu,normalize,den",
};
EACH_OF(huge_parts, huge_parts_problems)

/* Rows of very different sizes side by side, so that no power of two suits them all, as if by
 * chance or growing from token to token, some of them zeros. */
static void rows_of_all_sizes(const subject *who)
{
    linear_case c;
    int d, dv;

    for (int grows = 0; grows < 2; grows++) {
        linear_case_make(&c, who, linear_in_hand);
        d = (int)c.desc.dim_qk, dv = c.desc.dim_v ? (int)c.desc.dim_v : d;
        for (int64_t n = 0; n < c.n_in[IN_Q]; n++)
            c.in[IN_Q][n] *= ldexpf(1, (int)(n / d * 11 % 64) - 32);
        for (int64_t n = 0; n < c.n_in[IN_K]; n++)
            c.in[IN_K][n] *= n / d % 64 < 3 ? 0 : ldexpf(1, (int)(n / d * 23 % 64) - 32);
        for (int64_t n = 0; n < c.n_in[IN_V]; n++)
            c.in[IN_V][n] *= ldexpf(1, (int)(n / dv * (grows ? 1 : 37) % 64) - 32);
        linear_case_compare(&c);
        linear_case_free(&c);
    }
}
static const char *const rows_of_all_sizes_problems[] = {
    "linear_fwd:f32,b1,hq1,hkv1,lq150,lk150,d64,causal",
    "linear_fwd:f32,b1,hq1,hkv1,lq150,lk150,d24,dv36,causal,phi=relu,normalize,den",
    "linear_fwd:f32,b1,hq2,hkv1,lq150,lk150,d128,dv32,causal,state",
};
EACH_OF(rows_of_all_sizes, rows_of_all_sizes_problems)

/* Features of very different sizes within each row, those of q the other way round, so that all
 * count alike. One power of two for a row or a tile would lose the small ones. */
static void features_of_all_sizes(const subject *who)
{
    linear_case c;
    int d;

    linear_case_make(&c, who, linear_in_hand);
    d = (int)c.desc.dim_qk;
    for (int64_t n = 0; n < c.n_in[IN_Q]; n++)
        c.in[IN_Q][n] *= ldexpf(1, (int)(n % d * 7 % 41) - 20);
    for (int64_t n = 0; n < c.n_in[IN_K]; n++)
        c.in[IN_K][n] *= ldexpf(1, 20 - (int)(n % d * 7 % 41));
    linear_case_compare(&c);
    linear_case_free(&c);
}
static const char *const features_of_all_sizes_problems[] = {
    "linear_fwd:f32,b1,hq1,hkv1,lq150,lk150,d64,causal",
    "linear_fwd:f32,b1,hq1,hkv1,lq150,lk150,d128,dv32,causal,state",
    "linear_fwd:f32,b1,hq1,hkv1,lq150,lk150,d64,causal,phi=relu,normalize,den",
};
EACH_OF(features_of_all_sizes, features_of_all_sizes_problems)

/* Values change their sign halfway, so that what later segments add cancels what earlier ones
 * have: rounded before it is added to theirs, it fails. */
static void segments_that_cancel(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    for (int64_t n = 0; n < c.n_in[IN_Q]; n++)
        c.in[IN_Q][n] = 1 + 0.0625f * (float)(n * 7 % 5 - 2);
    for (int64_t n = 0; n < c.n_in[IN_K]; n++)
        c.in[IN_K][n] = 1 + 0.0625f * (float)(n * 11 % 7 - 3);
    for (int64_t n = 0; n < c.n_in[IN_V]; n++)
        c.in[IN_V][n] = n < c.n_in[IN_V] / 2 ? 1 : -1;
    linear_case_compare(&c);
    linear_case_free(&c);
}
static const char *const segments_that_cancel_problems[] = {
    "linear_fwd:bf16,b1,hq1,hkv1,lq512,lk512,d64,causal",
    "linear_fwd:f16,b1,hq1,hkv1,lq512,lk512,d64,causal,phi=elu1,normalize",
};
EACH_OF(segments_that_cancel, segments_that_cancel_problems)

/* Gradients that cancel what like rows have added up in a state: queries, dO or values the same
 * for all tokens, with elements that sum to nearly nothing, against rows of ones, beside rows of
 * nearly ones. A state that is read rounded to 16 bits fails. */
static void like_rows(const subject *who)
{
    static const float row[8] = { 1,       -0.7109375f,  0.48828125f, -1.2109375f,
                                  1.9375f, -0.36328125f, -0.640625f,  -0.5f };
    static const struct {
        int like, ones, near;
    } patterns[] = { { IN_Q, IN_K, IN_GRAD_O },
                     { IN_GRAD_O, IN_V, IN_Q },
                     { IN_V, IN_GRAD_O, IN_K } };
    linear_case c;

    for (size_t n = 0; n < sizeof patterns / sizeof patterns[0]; n++) {
        linear_case_make(&c, who, linear_in_hand);
        for (int64_t i = 0; i < c.n_in[patterns[n].like]; i++)
            c.in[patterns[n].like][i] = row[i % 8];
        for (int64_t i = 0; i < c.n_in[patterns[n].ones]; i++)
            c.in[patterns[n].ones][i] = 1;
        for (int64_t i = 0; i < c.n_in[patterns[n].near]; i++)
            c.in[patterns[n].near][i] = 1 + 0.0625f * (float)(i * 7 % 5 - 2);
        linear_case_compare(&c);
        linear_case_free(&c);
    }
}
static const char *const like_rows_problems[] = {
    "linear_bwd:bf16,b1,hq1,hkv1,lq300,lk300,d64,causal,grad=q+k+v",
    "linear_bwd:bf16,b1,hq1,hkv1,lq150,lk150,d128,dv64,causal,grad=q+k+v",
    "linear_bwd:f16,b1,hq1,hkv1,lq300,lk300,d64,causal,grad=q+k+v",
};
EACH_OF(like_rows, like_rows_problems)

/* Denominators that are 0: with eps = 0 O and all gradients are 0; with one what that
 * gives. */
static const char *const zero_denominators_problems[] = {
    "linear_fwd:f32,b1,hq1,hkv1,lq70,lk70,d8,causal,phi=relu,normalize,eps=0,den",
    "linear_fwd:f32,b1,hq1,hkv1,lq70,lk70,d8,phi=relu,normalize,den",
    "linear_bwd:f32,b1,hq1,hkv1,lq70,lk70,d8,causal,phi=relu,normalize,eps=0,"
    "grad=q+k+v",
    "linear_bwd:f32,b1,hq1,hkv1,lq70,lk70,d8,phi=relu,normalize,grad=q+k+v",
};

static void zero_denominators(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    for (int64_t n = 0; n < 3 * 8; n++) /* no key that the first queries see */
        c.in[IN_K][n] = -1;
    for (int64_t n = 30 * 8; n < 40 * 8; n++)
        c.in[IN_Q][n] = 0;
    linear_case_compare(&c);
    for (int o = 0; o < LINEAR_OUTPUTS; o++)
        for (int64_t n = 30 * 8; n < 40 * 8 && (o == LINEAR_O || o == LINEAR_GRAD_Q) &&
                                 c.out[o] && strstr(linear_in_hand, "eps=0");
             n++)
            assert_true(c.out[o][n] == 0);
    linear_case_free(&c);
}
EACH_OF(zero_denominators, zero_denominators_problems)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_beyond_f16),
        cmocka_unit_test(test_huge_products),
        cmocka_unit_test(test_huge_query_and_eps),
        cmocka_unit_test(test_products_beyond_f16),
        cmocka_unit_test(test_scales_of_all_sizes),
        cmocka_unit_test(test_results_beyond_the_type),
        cmocka_unit_test(test_gradients_below_f16),
        cmocka_unit_test(test_huge_queries_of_bf16),
        cmocka_unit_test(test_huge_gradients_of_bf16),
        cmocka_unit_test(test_gradients_of_wide_rows),
        cmocka_unit_test(test_huge_parts),
        cmocka_unit_test(test_rows_of_all_sizes),
        cmocka_unit_test(test_features_of_all_sizes),
        cmocka_unit_test(test_segments_that_cancel),
        cmocka_unit_test(test_like_rows),
        cmocka_unit_test(test_zero_denominators),
    };
    return LINEAR_RUN(tests);
}
