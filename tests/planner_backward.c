/* SPDX-License-Identifier: MIT */
/* tests/planner_backward.c: which variant computes gradients, and what is said where none
 * does. */
#include "tests/check.h"

#include <attn/attn.h>

#include "plan/plan.h"

#define PROBLEM "softmax_bwd:f32,b2,hq4,hkv2,lq100,lk120,d64,causal,grad=q+k+v"

static attn_target target_of(const char *backend)
{
    attn_target t = { .backend = backend,
                      .caps = { .kind = ATTN_DEVICE_GPU,
                                .compute_units = 4,
                                .fast_bytes = 1 << 18,
                                .max_group = 1024,
                                .subgroup = 32,
                                .vector_width = 8,
                                .memory_bytes = (int64_t)8 << 30,
                                .max_alloc_bytes = (int64_t)8 << 30,
                                .capability = 90 } };

    t.variants = attn_variants_for(backend, &t.caps);
    return t;
}

/* Variants are asked about problems of their pass alone. */
static void passes_are_apart(void **state)
{
    static const char *const backends[] = { "cuda", "host", "opencl" };

    (void)state;
    for (size_t k = 0; k < sizeof backends / sizeof backends[0]; k++) {
        const attn_target t = target_of(backends[k]);
        attn_problem forward, backward;

        check_ok(attn_problem_parse(&backward, PROBLEM));
        check_ok(attn_problem_parse(&forward, "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8"));
        assert_int_equal(backward.pass, ATTN_PASS_BWD);
        for (int i = 0; t.variants[i]; i++) {
            const bool back = t.variants[i]->pass == ATTN_PASS_BWD;

            assert_int_equal(attn_variant_computes(&backward, &t, i), back);
            assert_int_equal(attn_variant_computes(&forward, &t, i), !back);
            assert_true(attn_refusal(back ? &forward : &backward, &t, i) != NULL);
            assert_int_equal(strncmp(t.variants[i]->name, "softmax_bwd_", 12) == 0, back);
        }
    }
}

static void devices_without_gradients_say_so(void **state)
{
    static const char *const backends[] = { "cuda", "opencl" };
    const attn_options named = { .size = sizeof named, .variant = "softmax_fwd_tile" };
    const char *const says =
        "grad=q+k+v; none of them computes gradients yet, \"host\" does";

    (void)state;
    for (size_t k = 0; k < sizeof backends / sizeof backends[0]; k++) {
        const attn_target t = target_of(backends[k]);
        attn_problem p;
        attn_choice c;

        check_ok(attn_problem_parse(&p, PROBLEM));
        check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED, says);
        check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED, says);
    }
}

/* On the host: by tiles, of which the rows follow from the head sizes alone, in memory that
 * grows with the length; and what is too wide for tiles by plain loops. */
static void the_host_takes_tiles(void **state)
{
    const attn_target t = target_of("host");
    attn_problem p, other;
    attn_choice c, alone, longer;

    (void)state;
    check_ok(attn_problem_parse(&p, PROBLEM));
    check_ok(attn_choose(&p, &t, NULL, &c));
    assert_string_equal(c.variant->name, "softmax_bwd_tile");
    other = p;
    other.b = 64;
    other.hq = other.hkv = 16;
    check_ok(attn_choose(&other, &t, NULL, &alone));
    assert_int_equal(alone.step[0].tile_k, c.step[0].tile_k);
    other = p;
    other.lq = other.lk = 1 << 20;
    check_ok(attn_choose(&other, &t, NULL, &longer));
    assert_true(longer.workspace_bytes < c.workspace_bytes +
                                             16 * longer.step[0].scratch_bytes +
                                             4 * p.b * p.hq * other.lq);

    other = p;
    other.d = 5000;
    check_ok(attn_choose(&other, &t, NULL, &c));
    assert_string_equal(c.variant->name, "softmax_bwd_reference");
    other = p;
    other.features |= ATTN_FEAT_PAGES;
    other.page_size = 16;
    check_error(attn_choose(&other, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "softmax_bwd_tile: does not take \"pages\"");
    other.features = p.features;
    check_error(attn_choose(&other, &t,
                            &(attn_options){ .size = sizeof(attn_options),
                                             .variant = "softmax_fwd_tile" },
                            &c),
                ATTN_ERR_INVALID,
                "want one of host's: softmax_bwd_tile, softmax_bwd_reference");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_are_apart),
        cmocka_unit_test(devices_without_gradients_say_so),
        cmocka_unit_test(the_host_takes_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
