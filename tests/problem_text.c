/* SPDX-License-Identifier: MIT */
/* tests/problem_text.c: problems as text: round trip, canonical form, positions. */
#include "tests/check.h"

#include <locale.h>
#include <string.h>

#include <attn/attn.h>

static void canonical_texts_come_back_as_they_are(void **state)
{
    static const char *const texts[] = {
        "softmax_fwd:f16,b1,hq32,hkv8,lq512,lk512,d128,causal,align=br",
        "softmax_fwd:f32,b0,hq0,hkv0,lq0,lk0,d1",
        "softmax_fwd:bf16,b2,hq4,hkv2,lq7,lk9,d40,dv24,causal,offset=-3,window=5:-1,"
        "scale=-0.25,lens,lse,layout=16:4:any:2",
        "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk1,d256,window=0:0,scale=0,softcap=50,layout=any",
        "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk1,d8,scale=0.100000001",
        "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk1,d8,layout=8",
        "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk1,d8,pages=4,dropout=0.5,lse",
        "softmax_bwd:f32,b1,hq1,hkv1,lq1,lk1,d8,lens,dropout=1,grad=q",
        "softmax_bwd:f16,b1,hq32,hkv8,lq512,lk512,d128,causal,align=br,grad=q+k+v",
        "softmax_bwd:bf16,b2,hq4,hkv2,lq7,lk9,d40,dv24,softcap=50,bias=f16,mask,sinks,"
        "packed,"
        "grad=v+bias+sinks,layout=16:16:16:4:16:8:any:2",
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        attn_softmax_desc desc;
        char text[256];
        size_t len = 0;

        check_ok(attn_softmax_parse(texts[i], &desc));
        check_ok(attn_softmax_text(&desc, text, sizeof text, &len));
        assert_string_equal(text, texts[i]);
        assert_int_equal(len, strlen(texts[i]));
    }
}

static void fields_in_any_order_become_canonical(void **state)
{
    static const struct {
        const char *name, *text, *want;
    } cases[] = {
        { "any order", "softmax_fwd:causal,d8,lk4,lq4,hkv1,hq1,b1,f32",
          "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,causal" },
        { "defaults vanish",
          "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,dv8,align=tl,offset=0,window=-1:-1,"
          "softcap=0,dropout=0,"
          "layout=16",
          "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8" },
        { "one element of f32 is four bytes",
          "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,layout=2",
          "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,layout=4" },
        { "four equal classes are one",
          "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,layout=8:8:8:8",
          "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,layout=8" },
        { "gradients in their order, and lse goes without saying",
          "softmax_bwd:f32,b1,hq1,hkv1,lq4,lk4,d8,sinks,lse,grad=sinks+v+q",
          "softmax_bwd:f32,b1,hq1,hkv1,lq4,lk4,d8,sinks,grad=q+v+sinks" },
        { "what is allowed comes last",
          "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,allow=tf32,lse",
          "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,lse,allow=tf32" },
        { "16-bit types have nothing of TF32",
          "softmax_fwd:f16,b1,hq1,hkv1,lq4,lk4,d8,allow=tf32",
          "softmax_fwd:f16,b1,hq1,hkv1,lq4,lk4,d8" },
        { "eight equal classes are one",
          "softmax_bwd:f32,b1,hq1,hkv1,lq4,lk4,d8,grad=q,layout=8:8:8:8:8:8:8:8",
          "softmax_bwd:f32,b1,hq1,hkv1,lq4,lk4,d8,grad=q,layout=8" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_softmax_desc desc;
        char text[256];

        check_ok(attn_softmax_parse(cases[i].text, &desc));
        check_ok(attn_softmax_text(&desc, text, sizeof text, NULL));
        assert_string_equal(text, cases[i].want);
    }
}

static void what_is_no_problem_is_named_with_its_position(void **state)
{
#define GOOD "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8"
#define BACK "softmax_bwd:f32,b1,hq1,hkv1,lq4,lk4,d8"
    static const struct {
        const char *text, *says;
    } cases[] = {
        { "", "position 0" },
        { "softmax", "want \"softmax_fwd:\", \"softmax_bwd:\", \"linear_fwd:\" or" },
        { "softmax_all:f32", "position 0" },
        { "linear_fwd:f32", "lacks b" },
        { "linear_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8", "want one of softmax attention" },
        { "softmax_fwd:", "position 12" },
        { "softmax_fwd:f32", "lacks b" },
        { "softmax_fwd:b1,hq1,hkv1,lq4,lk4,d8", "lacks a type" },
        { GOOD ",", "position 39" },
        { GOOD ",nonsense", "position 39: \"nonsense\"" },
        { GOOD ",causalx", "position 39" },
        { GOOD ",f16", "each field once" },
        { GOOD ",b2", "each field once" },
        { GOOD ",causal,causal", "position 46" },
        { GOOD ",dv0", "not 0" },
        { GOOD ",dv1x", "dv and an integer" },
        { GOOD ",dv", "position 39" },
        { GOOD ",align=up", "align=br" },
        { GOOD ",offset=", "offset=INTEGER" },
        { GOOD ",offset=1.5", "offset=INTEGER" },
        { GOOD ",offset= 1", "offset=INTEGER" },
        { GOOD ",offset=99999999999999999999", "offset=INTEGER" },
        { GOOD ",window=1", "LEFT:RIGHT" },
        { GOOD ",window=1:", "LEFT:RIGHT" },
        { GOOD ",window=1:2:3", "LEFT:RIGHT" },
        { GOOD ",scale=one", "scale=NUMBER" },
        { GOOD ",layout=3", "CLASS" },
        { GOOD ",layout=16:16", "CLASS" },
        { GOOD ",layout=16:16:16:16:16", "CLASS" },
        { GOOD ",allow=fp8", "position 39: \"allow=fp8\", want allow=tf32" },
        { GOOD ",masks", "position 39: \"masks\"" },
        { GOOD ",mask,mask", "each field once" },
        { GOOD ",bias", "position 39: \"bias\"" },
        { GOOD ",bias=", "bias=f32" },
        { GOOD ",bias=f64", "bias=f32" },
        { GOOD ",bias=f3", "bias=f32" },
        { GOOD ",packed=v", "want packed=q or packed=k" },
        { GOOD ",packed,packed=q", "each field once" },
        { GOOD ",pages=", "pages=INTEGER" },
        { GOOD ",pages=0", "page_size = 0" },
        { GOOD ",pages=4,packed", "page_size = 4 beside packed keys" },
        { GOOD ",offsets,offset=3", "offsets beside offset = 3" },
        { GOOD ",offsets,align=br", "offsets beside align" },
        { GOOD ",grad=q", "\"grad=q\", want gradients of a softmax_bwd problem alone" },
        { "softmax_bwd:", "position 12" },
        { BACK, "lacks grad=" },
        { BACK ",grad=", "each once" },
        { BACK ",grad=q+", "each once" },
        { BACK ",grad=+q", "each once" },
        { BACK ",grad=q+q", "each once" },
        { BACK ",grad=qk", "each once" },
        { BACK ",grad=o", "each once" },
        { BACK ",grad=q,grad=k", "each field once" },
        { BACK ",grad=q+bias", "grad has ATTN_GRAD_BIAS" },
        { BACK ",grad=q,layout=16:16:16:16", "eight" },
        { GOOD " ", "d and an integer" },
        /* the rules of the descriptor hold for texts too */
        { GOOD ",scale=nan", "scale = nan" },
        { GOOD ",softcap=-1", "softcap = -1" },
        { GOOD ",dropout=2", "dropout = 2, want 0 .. 1" },
        { GOOD ",dropout", "position 39: \"dropout\"" },
        { GOOD ",window=-2:0", "window_left = -2" },
        { "softmax_fwd:f32,b-1,hq1,hkv1,lq4,lk4,d8", "batch = -1" },
        { "softmax_fwd:f32,b1,hq3,hkv2,lq4,lk4,d8", "heads_q = 3" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_softmax_desc desc = { .size = 77 };

        check_error(attn_softmax_parse(cases[i].text, &desc), ATTN_ERR_INVALID,
                    cases[i].says);
        assert_int_equal(desc.size, 77); /* not written on failure */
    }
#undef GOOD
#undef BACK
}

static void short_buffers_cut_the_text(void **state)
{
    attn_softmax_desc desc;
    char text[8];
    size_t len = 0;

    (void)state;
    check_ok(attn_softmax_parse("softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8", &desc));
    check_ok(attn_softmax_text(&desc, text, sizeof text, &len));
    assert_string_equal(text, "softmax");
    assert_int_equal(len, 38);
    check_ok(attn_softmax_text(&desc, NULL, 0, &len));
    assert_int_equal(len, 38);
    check_error(attn_softmax_text(&desc, NULL, 5, &len), ATTN_ERR_INVALID, "text is NULL");
    check_error(attn_softmax_parse(NULL, &desc), ATTN_ERR_INVALID, "text is NULL");
    check_error(attn_softmax_parse("x", NULL), ATTN_ERR_INVALID, "desc is NULL");
}

/* Texts travel between machines: the point is a point in every locale. */
static void numbers_do_not_depend_on_the_locale(void **state)
{
    static const float numbers[] = { 0.5f,  -0.25f,          1e-38f, 3.4028235e38f,
                                     0.1f,  1.17549435e-38f, 1e-45f, 12345.678f,
                                     1e10f, 16777216.0f };
    static const char *const locales[] = { "C", "de_DE.UTF-8", "de_DE.utf8",
                                           "fr_FR.UTF-8" };

    (void)state;
    for (size_t l = 0; l < sizeof locales / sizeof locales[0]; l++) {
        if (!setlocale(LC_ALL, locales[l]))
            continue;
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
            attn_softmax_desc desc, again;
            char text[256];

            check_ok(attn_softmax_parse("softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,scale=0.5",
                                        &desc));
            desc.scale = numbers[i];
            check_ok(attn_softmax_text(&desc, text, sizeof text, NULL));
            check_ok(attn_softmax_parse(text, &again));
            assert_memory_equal(&again.scale, &numbers[i], sizeof numbers[i]);
        }
    }
    setlocale(LC_ALL, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(canonical_texts_come_back_as_they_are),
        cmocka_unit_test(fields_in_any_order_become_canonical),
        cmocka_unit_test(what_is_no_problem_is_named_with_its_position),
        cmocka_unit_test(short_buffers_cut_the_text),
        cmocka_unit_test(numbers_do_not_depend_on_the_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
