/* SPDX-License-Identifier: MIT */
/* tests/faults_position.c: where a query stands, and which keys it sees from there: causal,
 * alignment, offsets, windows, ALiBi (D causal, E window, Q3 decode). */
#include "tests/fault.h"

/* Holds a run with q = 0 against rows of 0 and 1, a column a key: key j has the value 4^j,
 * so that a mean of visible values names them. */
static void check_rows(trial *t, const char *const *rows)
{
    for (int64_t r = 0; r < t->desc.len_q; r++) {
        double sum = 0, n = 0;

        for (int64_t j = 0; j < t->desc.len_kv; j++)
            if (rows[r][j] == '1')
                sum += pow(4, (double)j), n++;
        near(t, "o", r, t->o[r * 4], n ? sum / n : 0, n ? 1e-5 * sum : 0);
        near(t, "lse", r, t->lse[r], n ? log(n) : -INFINITY, 1e-6);
    }
}

/* D1, D2, D3: the matrices of the header, element by element. */
static void alignments(const subject *who)
{
    static const struct {
        const char *problem;
        const char *rows[9];
    } cases[] = {
        { "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk5,d4,causal,lse", { "10000", "11000" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk5,d4,causal,align=br,lse",
          { "11110", "11111" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk2,d4,causal,lse",
          { "10", "11", "11", "11", "11" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk2,d4,causal,align=br,lse",
          { "00", "00", "00", "10", "11" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk4,d4,causal,lse", { "1000" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk4,d4,causal,align=br,lse", { "1111" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk4,d4,causal,lse",
          { "1000", "1100", "1110", "1111", "1111", "1111", "1111", "1111", "1111" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk5,d4,causal,offset=2,lse",
          { "11100", "11110" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk5,d4,causal,offset=-1,lse",
          { "00000", "10000", "11000" } },
        /* E1 and its kind */
        { "softmax_fwd:f32,b1,hq1,hkv1,lq6,lk6,d4,window=2:0,lse",
          { "100000", "110000", "111000", "011100", "001110", "000111" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk5,d4,window=0:1,align=br,lse",
          { "00110", "00011", "00001" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk5,d4,window=-1:1,lse",
          { "11000", "11100", "11110" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk5,d4,window=1:-1,lse",
          { "11111", "11111", "01111" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk3,d4,causal,window=0:2,lse",
          { "100", "010", "001" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk3,d4,window=0:0,offset=7,lse",
          { "000", "000" } },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trial t;

        trial_make(&t, who, cases[i].problem);
        fill(t.q, t.nq, 0);
        for (int64_t e = 0; e < t.nv; e++)
            t.v[e] = powf(4, (float)(e / 4));
        trial_run(&t);
        check_rows(&t, cases[i].rows);
        trial_free(&t);
    }
}

/* D5: bottom-right counts from the keys and queries that are there. */
static void bottom_right_with_lengths(const subject *who)
{
    static const char *const two_keys[] = { "0000", "0000", "1000", "1100" };
    static const char *const two_queries[] = { "1110", "1111", "0000", "0000" };
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d4,causal,align=br,lens,lse");
    t.lens_kv[0] = 2;
    fill(t.q, t.nq, 0);
    for (int64_t e = 0; e < t.nv; e++)
        t.v[e] = e < 8 ? powf(4, (float)(e / 4)) : NAN;
    fill(t.k + 8, 8, NAN);
    trial_run(&t);
    check_rows(&t, two_keys);
    trial_free(&t);

    if (!takes(who, "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d4,causal,align=br,qlens,lse"))
        return;
    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d4,causal,align=br,qlens,lse");
    t.lens_q[0] = 2;
    t.keep = true;
    fill(t.o, t.no, 0); /* so that rows past the length are those of "nothing seen" */
    fill(t.lse, t.nlse, -INFINITY);
    fill(t.q, t.nq, 0);
    for (int64_t e = 0; e < t.nv; e++)
        t.v[e] = powf(4, (float)(e / 4));
    trial_run(&t);
    check_rows(&t, two_queries);
    trial_free(&t);
}

/* An offset for each batch, causal and window from it; one far outside sees nothing. */
static void offsets_of_batches(const subject *who)
{
    static const char *const rows[4][2] = {
        { "10000", "11000" },
        { "11110", "11111" },
        { "00000", "10000" },
        { "00000", "00000" },
    };
    static const int32_t offsets[4] = { 0, 3, -1, INT32_MIN };
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b4,hq1,hkv1,lq2,lk5,d4,causal,offsets,lse");
    memcpy(t.offsets, offsets, sizeof offsets);
    fill(t.q, t.nq, 0);
    for (int64_t e = 0; e < t.nv; e++)
        t.v[e] = powf(4, (float)(e / 4 % 5));
    trial_run(&t);
    for (int b = 0; b < 4; b++) {
        trial one = t;

        one.o += b * 8;
        one.lse += b * 2;
        check_rows(&one, rows[b]);
    }
    trial_free(&t);
}

/* E2, E3: spellings of one mask give the same bits. */
static void windows_that_are_causal_or_nothing(const subject *who)
{
    static const char *const pairs[][2] = {
        { "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8,causal,lse",
          "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8,window=-1:0,lse" },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8,causal,lse",
          "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8,window=32:0,lse" },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8,lse",
          "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8,window=-1:-1,lse" },
    };

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        trial a, b;

        trial_make(&a, who, pairs[i][0]);
        trial_make(&b, who, pairs[i][1]);
        trial_run(&a);
        trial_run(&b);
        assert_memory_equal(a.o, b.o, (size_t)a.no * sizeof *a.o);
        assert_memory_equal(a.lse, b.lse, (size_t)a.nlse * sizeof *a.lse);
        trial_free(&a);
        trial_free(&b);
    }
}

/* E4: a window that is not causal, past key 1024 too; D4: no causal at all. */
static void wide_windows(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b1,hq1,hkv1,lq1100,lk1100,d8,window=128:128,lse",
        "softmax_fwd:f32,b1,hq1,hkv1,lq200,lk1100,d8,window=128:128,align=br,lse",
        "softmax_fwd:f32,b1,hq1,hkv1,lq1100,lk300,d8,window=100:3,offset=-700,lse",
        "softmax_fwd:f32,b1,hq1,hkv1,lq64,lk64,d8,lse",
    };

    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        trial t;

        trial_make(&t, who, problems[i]);
        trial_compare(&t);
        trial_free(&t);
    }
}

/* Keys that no query of the head sees by causal or window may hold anything. */
static void poison_outside_the_window(const subject *who)
{
    trial t;

    trial_make(&t, who,
               "softmax_fwd:f32,b1,hq2,hkv1,lq40,lk200,d8,window=20:10,offset=90,lse");
    fill(t.k, 70 * 8, NAN); /* the first query stands at 90, the last at 129 */
    fill(t.v, 70 * 8, NAN);
    fill(t.k + 140 * 8, 60 * 8, NAN);
    fill(t.v + 140 * 8, 60 * 8, NAN);
    trial_compare(&t);
    for (int64_t e = 0; e < t.no; e++)
        assert_false(isnan(t.o[e]));
    trial_free(&t);
}

/* Q3: ALiBi, whose slope counts from the query's position: as a whole, and the last
 * token as a step of decoding. */
static void alibi(const subject *who)
{
    static const char *const steps[] = {
        "softmax_fwd:f32,b1,hq2,hkv2,lq1,lk5,d8,causal,align=br,alibi,lse",
        "softmax_fwd:f32,b1,hq2,hkv2,lq1,lk5,d8,causal,offset=4,alibi,lse",
    };
    trial whole, t;

    trial_make(&whole, who, "softmax_fwd:f32,b1,hq2,hkv2,lq5,lk5,d8,causal,alibi,lse");
    whole.alibi[1] = -0.25f;
    trial_compare(&whole);
    for (size_t i = 0; i < 2; i++) {
        if (!takes(who, steps[i]))
            continue;
        trial_make(&t, who, steps[i]);
        t.alibi[1] = -0.25f;
        memcpy(t.k, whole.k, (size_t)t.nk * sizeof *t.k);
        memcpy(t.v, whole.v, (size_t)t.nv * sizeof *t.v);
        for (int h = 0; h < 2; h++)
            memcpy(t.q + h * 8, whole.q + (h * 5 + 4) * 8, 8 * sizeof *t.q);
        trial_run(&t);
        for (int h = 0; h < 2; h++) {
            near(&t, "lse", h, t.lse[h], whole.lse[h * 5 + 4], 1e-5);
            for (int e = 0; e < 8; e++)
                near(&t, "o", h * 8 + e, t.o[h * 8 + e], whole.o[(h * 5 + 4) * 8 + e],
                     1e-5);
        }
        trial_free(&t);
    }
    trial_free(&whole);

    /* the number itself: q = 0, so s = -slope |p - j|, on both sides of the query */
    if (!takes(who, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk3,d8,offset=1,alibi,lse"))
        return;
    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk3,d8,offset=1,alibi,lse");
    fill(t.q, t.nq, 0);
    t.alibi[0] = 0.5f;
    trial_run(&t);
    near(&t, "lse", 0, t.lse[0], log(1 + 2 * exp(-0.5)), 1e-6);
    trial_free(&t);
}

/* ALiBi over several tiles, with slopes for each batch, and with a window. */
static void alibi_over_tiles(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b2,hq4,hkv2,lq70,lk150,d8,align=br,alibi,lse",
        "softmax_fwd:f32,b2,hq4,hkv2,lq70,lk150,d8,causal,align=br,window=40:-1,alibi,lse",
        "softmax_fwd:f16,b2,hq4,hkv2,lq3,lk150,d8,offset=60,alibi,lse",
    };

    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        float slopes[8];
        trial t;

        if (!takes(who, problems[i]))
            continue;
        trial_make(&t, who, problems[i]);
        trial_compare(&t);
        for (int n = 0; n < 8; n++)
            slopes[n] = ldexpf(1, -n) - 0.1f;
        t.args.alibi = attn_tensor_bhld(slopes, ATTN_F32, 2, 4, 1, 1);
        trial_compare(&t);
        trial_free(&t);
    }
}

#define SOME_ROWS(type) \
    "softmax_fwd:" type ",b1,hq1,hkv1,lq130,lk600,d64,window=70:5,offsets,lse"

/* Some rows alone, through the same descriptor: the same bits as among all, though keys
 * then begin and end elsewhere. */
static void check_rows_alone(const subject *who, const char *problem)
{
    enum { LQ = 130, D = 64, AT = 470 };
    static const int runs[][2] = { { 0, 1 },   { 0, 13 },   { 40, 1 },
                                   { 60, 70 }, { 117, 13 }, { 129, 1 } };
    float *all;
    trial t;

    if (who->traits & ATTN_TRAIT_BY_SIZE) /* promises nothing of the kind */
        return;
    all = calloc(LQ * (D + 1), sizeof *all);
    assert_non_null(all);
    trial_make(&t, who, problem);
    t.offsets[0] = AT;
    trial_run(&t);
    memcpy(all, t.o, LQ * D * sizeof *all);
    memcpy(all + LQ * D, t.lse, LQ * sizeof *all);
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        const int first = runs[i][0], n = runs[i][1];

        t.offsets[0] = AT + first;
        t.args.q.size[2] = t.args.o.size[2] = t.args.lse.size[2] = n;
        t.args.q.offset = t.args.o.offset = first * D;
        t.args.lse.offset = first;
        trial_run(&t);
        for (int r = first; r < first + n; r++)
            if (memcmp(all + r * D, t.o + r * D, D * sizeof *all) ||
                all[LQ * D + r] != t.lse[r])
                fail_msg("%s: row %d of %d .. %d alone is other bits than among all",
                         t.name, r, first, first + n - 1);
    }
    trial_free(&t);
    free(all);
}

static void rows_alone(const subject *who)
{
    check_rows_alone(who, SOME_ROWS("f32"));
}

/* On matrix units, too. */
static void rows_alone_16(const subject *who)
{
    check_rows_alone(who, SOME_ROWS("f16"));
}

#define ONE_ROW(type) "softmax_fwd:" type ",b2,hq4,hkv2,lq1,lk9000,d64,lens,lse"

/* Any number of pieces; where they follow from batch and heads, they change no bit. */
static void pieces_change_nothing(const subject *who)
{
    enum { ROWS = 8, D = 64 };
    static const int64_t splits[] = {
        0, 36, 9, 3, 1, 141
    }; /* from the second: of 256, 1024,
                                                                4096 keys and all, if of a tree */
    const bool tree = !strcmp(who->variant, "softmax_fwd_split_mma");
    float first[ROWS * (D + 1)];
    trial t;

    if (!tree && strcmp(who->variant, "softmax_fwd_split"))
        return;
    trial_make(&t, who, ONE_ROW("f16"));
    t.lens_kv[1] = 3333;
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        t.options.splits = splits[i];
        trial_compare(&t);
        if (i && tree &&
            (memcmp(first, t.o, ROWS * D * sizeof *first) ||
             memcmp(first + ROWS * D, t.lse, ROWS * sizeof *first)))
            fail_msg("%s: %lld pieces give other bits", t.name, (long long)splits[i]);
        memcpy(first, t.o, ROWS * D * sizeof *first);
        memcpy(first + ROWS * D, t.lse, ROWS * sizeof *first);
    }
    trial_free(&t);
}

EACH(rows_alone, SOME_ROWS("f32"))
EACH(rows_alone_16, SOME_ROWS("f16"))
EACH(pieces_change_nothing, ONE_ROW("f16"))
EACH(alignments, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk5,d4,causal,lse")
EACH(bottom_right_with_lengths,
     "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d4,causal,align=br,lens,lse")
EACH(offsets_of_batches, "softmax_fwd:f32,b4,hq1,hkv1,lq2,lk5,d4,causal,offsets,lse")
EACH(windows_that_are_causal_or_nothing,
     "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8,causal,lse")
EACH(wide_windows, "softmax_fwd:f32,b1,hq1,hkv1,lq1100,lk1100,d8,window=128:128,lse")
EACH(poison_outside_the_window,
     "softmax_fwd:f32,b1,hq2,hkv1,lq40,lk200,d8,window=20:10,offset=90,lse")
EACH(alibi, "softmax_fwd:f32,b1,hq2,hkv2,lq5,lk5,d8,causal,alibi,lse")
EACH(alibi_over_tiles, "softmax_fwd:f32,b2,hq4,hkv2,lq70,lk150,d8,align=br,alibi,lse")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignments),
        cmocka_unit_test(test_bottom_right_with_lengths),
        cmocka_unit_test(test_offsets_of_batches),
        cmocka_unit_test(test_windows_that_are_causal_or_nothing),
        cmocka_unit_test(test_wide_windows),
        cmocka_unit_test(test_poison_outside_the_window),
        cmocka_unit_test(test_alibi),
        cmocka_unit_test(test_alibi_over_tiles),
        cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_rows_alone_16),
        cmocka_unit_test(test_pieces_change_nothing),
    };

    return FAULTS_RUN(tests);
}
