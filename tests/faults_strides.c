/* SPDX-License-Identifier: MIT */
/* tests/faults_strides.c: the same values through other strides, guard bytes around them,
 * views that overlap; which head reads which (I strides, J grouped heads). */
#include "tests/fault.h"

enum { B = 2, HQ = 4, HK = 2, LQ = 19, LK = 70, D = 24 };

static const char problem_text[] =
    "softmax_fwd:f32,b2,hq4,hkv2,lq19,lk70,d24,causal,lse,layout=any";

/* Rows `row` elements apart in an array of [B, L, H, row], filled with `value`. */
static float *spread(attn_tensor *t, int64_t row, float value)
{
    const int64_t h = t->size[1], l = t->size[2], d = t->size[3], n = t->size[0] * h * l;
    float *wide = floats(n * row), *from = t->data;

    fill(wide, n * row, value);
    for (int64_t r = 0; r < n; r++)
        for (int64_t e = 0; e < d; e++)
            wide[((r / h / l * l + r % l) * h + r / l % h) * row + e] = from[r * d + e];
    t->data = wide;
    t->stride[0] = l * h * row;
    t->stride[1] = row;
    t->stride[2] = h * row;
    t->data_bytes = (size_t)(n * row) * sizeof *wide;
    return wide;
}

/* I1, I2: contiguous first, then with padded strides, each tensor its own, then
 * contiguous again: the same values, whatever kernels are kept. */
static void one_context_many_strides(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b2,hq4,hkv2,lq19,lk70,d24,causal,lse,layout=any",
        "softmax_fwd:f32,b1,hq2,hkv1,lq5,lk70,d256,lse,layout=any",
    };

    for (size_t p = 0; p < 2; p++) {
        trial t, plain;

        if (!takes(who, problems[p]))
            continue;
        trial_make(&plain, who, problems[p]);
        trial_make(&t, who, problems[p]);
        trial_run(&plain);
        attn_args packed = t.args;
        attn_tensor *const list[] = { &t.args.q, &t.args.k, &t.args.v };
        float *wide[3];
        for (int i = 0; i < 3; i++) /* gaps of 4, 3 and 8: three layout classes */
            wide[i] = spread(list[i],
                             list[i]->size[3] + (i == 0   ? 4
                                                 : i == 1 ? 3
                                                          : 8),
                             NAN);
        trial_run(&t);
        trial_compare_to(&t, plain.o, plain.lse);
        t.args = packed;
        trial_run(&t);
        assert_memory_equal(t.o, plain.o, (size_t)t.no * sizeof *t.o);
        for (int i = 0; i < 3; i++)
            free(wide[i]);
        trial_free(&t);
        trial_free(&plain);
    }
}

/* I3, I6: O as [B, L, H, D] with a gap behind each row, one element into its buffer;
 * nothing is written between the rows. */
static void outputs_in_a_larger_buffer(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b2,hq4,hkv2,lq19,lk70,d24,causal,lse,layout=any",
        "softmax_fwd:f32,b2,hq4,hkv2,lq1,lk1500,d24,lse,layout=any",
    };
    enum { ROW = D + 5 };

    for (size_t p = 0; p < 2; p++) {
        trial t, plain;

        if (!takes(who, problems[p]))
            continue;
        trial_make(&plain, who, problems[p]);
        trial_make(&t, who, problems[p]);
        trial_run(&plain);
        const int64_t l = t.desc.len_q, n = (int64_t)B * l * HQ * ROW;
        float *wide = floats(n + 1), *lse = floats(2 * t.nlse);
        fill(wide, n + 1, -7);
        fill(lse, 2 * t.nlse, -7);
        t.args.o = (attn_tensor){ .type = ATTN_F32,
                                  .data = wide,
                                  .offset = 1,
                                  .size = { B, HQ, l, D },
                                  .stride = { l * HQ * ROW, ROW, HQ * ROW, 1 } };
        t.args.lse.data = lse;
        for (int i = 0; i < 4; i++)
            t.args.lse.stride[i] *= 2;
        trial_run(&t);
        for (int64_t e = 0; e <= n; e++) {
            const int64_t x = e - 1, d = x % ROW, h = x / ROW % HQ, i = x / ROW / HQ % l;
            const int64_t b = x / ROW / HQ / l;
            if (e == 0 || d >= D)
                near(&t, "gap of o", e, wide[e], -7, 0);
            else
                near(&t, "o", e, wide[e], plain.o[((b * HQ + h) * l + i) * D + d], 2e-6);
        }
        for (int64_t i = 0; i < t.nlse; i++) {
            near(&t, "lse", i, lse[2 * i], plain.lse[i], 2e-5);
            near(&t, "gap of lse", i, lse[2 * i + 1], -7, 0);
        }
        free(wide);
        free(lse);
        trial_free(&t);
        trial_free(&plain);
    }
}

/* I5: a last dimension that is not contiguous, rows backwards, an element off, an odd row
 * stride: right on a slower path. */
static void odd_views(const subject *who)
{
    trial t, plain;
    float *wide;

    trial_make(&plain, who, problem_text);
    trial_make(&t, who, problem_text);
    trial_run(&plain);
    wide = floats(plain.nk * 2);
    for (int64_t e = 0; e < plain.nk; e++)
        wide[2 * e] = plain.k[e], wide[2 * e + 1] = NAN;
    t.args.k = (attn_tensor){ .type = ATTN_F32,
                              .data = wide,
                              .size = { B, HK, LK, D },
                              .stride = { HK * LK * D * 2, LK * D * 2, D * 2, 2 } };
    for (int64_t e = 0; e < plain.nv; e++)
        t.v[e] = plain.v[(e / D / LK * LK + LK - 1 - e / D % LK) * D + e % D];
    t.args.v.offset = (LK - 1) * D;
    t.args.v.stride[2] = -D;
    trial_run(&t);
    trial_compare_to(&t, plain.o, plain.lse);
    free(wide);
    t.args.k = plain.args.k;
    t.args.v = plain.args.v;

    /* one element off, rows 33 apart */
    wide = floats(1 + B * HQ * LQ * 33);
    t.args.q = (attn_tensor){ .type = ATTN_F32,
                              .data = wide,
                              .offset = 1,
                              .size = { B, HQ, LQ, D },
                              .stride = { HQ * LQ * 33, LQ * 33, 33, 1 } };
    for (int64_t r = 0; r < B * HQ * LQ; r++)
        memcpy(wide + 1 + r * 33, plain.q + r * D, D * sizeof *wide);
    trial_run(&t);
    trial_compare_to(&t, plain.o, plain.lse);
    free(wide);
    trial_free(&t);
    trial_free(&plain);
}

/* I4: one key/value head for all by a stride of 0; terms that are broadcast by strides of
 * 0, over 32 n + 1 keys, in a head size beyond the usual. */
static void strides_of_zero(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b2,hq4,hkv2,lq3,lk65,d24,bias=f32,mask,lse,layout=any",
        "softmax_fwd:f32,b2,hq2,hkv2,lq3,lk65,d512,bias=f32,mask,lse,layout=any",
        "softmax_fwd:f32,b2,hq4,hkv2,lq3,lk65,d24,lse,layout=any",
    };

    for (size_t p = 0; p < 3; p++) {
        trial t, copies;

        if (!takes(who, problems[p]))
            continue;
        trial_make(&t, who, problems[p]);
        trial_make(&copies, &fault_oracle, problems[p]);
        const int64_t one = 65 * t.desc.dim_qk;
        for (int64_t i = 0; i < t.nk; i++) {
            copies.k[i] = t.k[i % one];
            copies.v[i] = t.v[i % one];
        }
        for (int64_t i = 0; i < t.nbias && t.bias; i++) {
            t.bias[i] = sinf((float)i);
            t.mask[i] = i % 65 % 4 != 1;
            copies.bias[i] = t.bias[i % 65];
            copies.mask[i] = t.mask[i % 65];
        }
        for (int i = 0; i < 2; i++)
            t.args.k.stride[i] = t.args.v.stride[i] = 0;
        for (int i = 0; i < 3; i++)
            t.args.bias.stride[i] = t.args.mask.stride[i] = 0;
        trial_run(&t);
        trial_run(&copies);
        trial_compare_to(&t, copies.o, copies.lse);
        trial_free(&t);
        trial_free(&copies);
    }
}

/* I5, I8: masks and biases of odd shapes: a last dimension of 5, a query dimension of 1,
 * NaN and "attend" behind them, keys as the fastest or the slowest dimension. */
static void views_of_terms(const subject *who)
{
    static const struct {
        const char *problem;
        int lq, lk;
    } cases[] = {
        { "softmax_fwd:f32,b2,hq2,hkv1,lq7,lk5,d8,bias=f32,mask,lse", 7, 5 },
        { "softmax_fwd:f32,b2,hq2,hkv1,lq9,lk33,d8,bias=f32,mask,lse", 9, 33 },
        { "softmax_fwd:f32,b2,hq2,hkv1,lq40,lk97,d8,bias=f16,mask,lse", 40, 97 },
    };

    for (size_t c = 0; c < 3; c++)
        for (int how = 0; how < 3; how++) {
            const int64_t lq = cases[c].lq, lk = cases[c].lk;
            trial t;

            if (!takes(who, cases[c].problem))
                continue;
            trial_make(&t, who, cases[c].problem);
            for (int64_t i = 0; i < t.nbias; i++) {
                t.bias[i] = cosf((float)i);
                t.mask[i] = i % 4 != 2;
            }
            if (how == 0) { /* one query row for all, poison behind it */
                t.args.bias.size[0] = t.args.bias.size[1] = t.args.bias.size[2] = 1;
                t.args.mask.size[0] = t.args.mask.size[1] = t.args.mask.size[2] = 1;
                fill(t.bias + lk, t.nbias - lk, NAN);
                memset(t.mask + lk, 1, (size_t)(t.nbias - lk));
                t.args.bias.data_bytes = (size_t)lk * attn_type_bytes(t.desc.type_bias);
                t.args.mask.data_bytes = (size_t)lk;
            } else if (how == 1) { /* keys are the slower dimension */
                t.args.bias.stride[2] = t.args.mask.stride[2] = 1;
                t.args.bias.stride[3] = t.args.mask.stride[3] = lq;
            } else { /* backwards from the last key, one element in front */
                t.args.bias.offset = t.args.mask.offset = lk - 1;
                t.args.bias.stride[3] = t.args.mask.stride[3] = -1;
            }
            trial_compare(&t);
            trial_free(&t);
        }
}

/* I7: outputs that overlap inputs or each other are refused; side by side they are not. */
static void overlaps(const subject *who)
{
    const attn_options options = { .size = sizeof options, .variant = who->variant };
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b1,hq2,hkv2,lq8,lk8,d16,lse");
    for (int i = 0; i < 4; i++) {
        attn_args a = t.args;
        attn_tensor *const in[] = { &a.q, &a.k, &a.v, &a.lse };

        if (i < 3)
            a.o.data = in[i]->data;
        else
            a.lse.data = a.o.data;
        check_error(attn_softmax_forward_host_args(who->ctx, &t.desc, &options, &a),
                    ATTN_ERR_INVALID, "overlaps");
    }
    /* Q, K, V and O as parts of one packed row */
    float *all = floats(8 * 2 * 64);
    attn_args a = t.args;
    attn_tensor *const part[] = { &a.q, &a.k, &a.v, &a.o };
    for (int i = 0; i < 4; i++) {
        const int64_t stride[4] = { 8 * 128, 64, 128, 1 };

        for (int64_t e = 0; e < 256 && i < 3; e++)
            all[e / 16 % 8 * 128 + e / 128 * 64 + i * 16 + e % 16] =
                ((float *)part[i]->data)[e];
        memcpy(part[i]->stride, stride, sizeof stride);
        part[i]->data = all;
        part[i]->offset = i * 16;
    }
    trial_run(&t);
    check_ok(attn_softmax_forward_host_args(who->ctx, &t.desc, &options, &a));
    for (int64_t e = 0; e < 256; e++)
        near(&t, "packed o", e, all[e / 16 % 8 * 128 + e / 128 * 64 + 48 + e % 16], t.o[e],
             0);
    free(all);
    trial_free(&t);
}

/* J2: which head reads which. */
static void grouped_heads(const subject *who)
{
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b2,hq4,hkv2,lq3,lk5,d8,lse");
    for (int64_t e = 0; e < t.nv; e++)
        t.v[e] = (float)(e / 40); /* batch * 2 + head */
    trial_run(&t);
    for (int64_t e = 0; e < t.no; e++)
        near(&t, "o", e, t.o[e], (double)(e / 48), 1e-5);
    trial_free(&t);
}

/* J3, J4: groups of every size, one query, several batches. */
static void groups_of_every_size(const subject *who)
{
    static const int heads[][2] = { { 8, 1 }, { 8, 2 },  { 2, 1 },  { 4, 2 },  { 6, 3 },
                                    { 8, 4 }, { 10, 5 }, { 12, 6 }, { 14, 7 }, { 33, 3 } };

    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        for (int lq = 1; lq <= 5; lq += 4) {
            char problem[NAME_BYTES];
            trial t;

            snprintf(problem, sizeof problem,
                     "softmax_fwd:f32,b3,hq%d,hkv%d,lq%d,lk70,d32,causal,align=br,lse",
                     heads[i][0], heads[i][1], lq);
            trial_make(&t, who, problem);
            trial_compare(&t);
            trial_free(&t);
        }
}

EACH(one_context_many_strides, problem_text)
EACH(outputs_in_a_larger_buffer, problem_text)
EACH(odd_views, problem_text)
EACH(strides_of_zero, "softmax_fwd:f32,b2,hq4,hkv2,lq3,lk65,d24,lse,layout=any")
EACH(views_of_terms, "softmax_fwd:f32,b2,hq2,hkv1,lq7,lk5,d8,bias=f32,mask,lse")
EACH(overlaps, "softmax_fwd:f32,b1,hq2,hkv2,lq8,lk8,d16,lse")
EACH(grouped_heads, "softmax_fwd:f32,b2,hq4,hkv2,lq3,lk5,d8,lse")
EACH(groups_of_every_size, "softmax_fwd:f32,b3,hq8,hkv2,lq1,lk70,d32,causal,align=br,lse")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_context_many_strides),
        cmocka_unit_test(test_outputs_in_a_larger_buffer),
        cmocka_unit_test(test_odd_views),
        cmocka_unit_test(test_strides_of_zero),
        cmocka_unit_test(test_views_of_terms),
        cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_grouped_heads),
        cmocka_unit_test(test_groups_of_every_size),
    };

    return FAULTS_RUN(tests);
}
