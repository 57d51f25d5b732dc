/* SPDX-License-Identifier: MIT */
/* tests/rules.c: every rule of the descriptor: its code and its sentence. */
#include "tests/check.h"

#include <math.h>

#include <attn/attn.h>

static attn_softmax_desc good(void)
{
    return (attn_softmax_desc){ .size = sizeof(attn_softmax_desc),
                                .type = ATTN_F32,
                                .batch = 2,
                                .heads_q = 4,
                                .heads_kv = 2,
                                .len_q = 5,
                                .len_kv = 7,
                                .dim_qk = 8 };
}

/* A descriptor that is right but for one thing, and what the library says. */
#define BREAK(says, ...)                                             \
    do {                                                             \
        attn_softmax_desc d = good();                                \
        __VA_ARGS__;                                                 \
        check_error(attn_softmax_check(&d), ATTN_ERR_INVALID, says); \
    } while (0)

#define KEEP(...)                         \
    do {                                  \
        attn_softmax_desc d = good();     \
        __VA_ARGS__;                      \
        check_ok(attn_softmax_check(&d)); \
    } while (0)

static void sizes(void **state)
{
    const int64_t most = INT32_MAX, over = most + 1;

    (void)state;
    check_error(attn_softmax_check(NULL), ATTN_ERR_INVALID, "desc is NULL");
    BREAK("size = 0", d.size = 0);
    BREAK("size = 8", d.size = 8);
    BREAK("type = 0", d.type = ATTN_TYPE_NONE);
    BREAK("type = 4", d.type = ATTN_I32);
    BREAK("type = 99", d.type = (attn_type)99);
    BREAK("batch = -1", d.batch = -1);
    BREAK("batch = 2147483648", d.batch = over);
    BREAK("heads_q = -4", d.heads_q = -4);
    BREAK("heads_q = 2147483648", d.heads_q = over);
    BREAK("heads_kv = -1", d.heads_kv = -1);
    BREAK("heads_kv = 2147483648", d.heads_kv = over);
    BREAK("heads_kv = 0 with heads_q = 4", d.heads_kv = 0);
    BREAK("heads_kv = 2 with heads_q = 0", d.heads_q = 0);
    BREAK("heads_q = 3, want a multiple of heads_kv = 2", d.heads_q = 3);
    BREAK("heads_q = 33, want a multiple of heads_kv = 2", d.heads_q = 33);
    BREAK("heads_q = 1, want a multiple of heads_kv = 2", d.heads_q = 1);
    BREAK("len_q = -1", d.len_q = -1);
    BREAK("len_q = 2147483648", d.len_q = over);
    BREAK("len_kv = -7", d.len_kv = -7);
    BREAK("len_kv = 2147483648", d.len_kv = over);
    BREAK("dim_qk = 0", d.dim_qk = 0);
    BREAK("dim_qk = -1", d.dim_qk = -1);
    BREAK("dim_qk = 2147483648", d.dim_qk = over);
    BREAK("dim_v = -1", d.dim_v = -1);
    BREAK("dim_v = 2147483648", d.dim_v = over);
    BREAK("want <= 2^62", d.batch = d.len_q = d.dim_qk = most);
    BREAK("heads_kv * len_kv", d.batch = d.len_kv = most; d.dim_v = most; d.len_q = 0);
    KEEP((void)d);
    KEEP(d.batch = 0);
    KEEP(d.heads_q = d.heads_kv = 0);
    KEEP(d.len_q = 0);
    KEEP(d.len_kv = 0);
    KEEP(d.dim_qk = 100000); /* a question of capability */
}

static void options(void **state)
{
    (void)state;
    BREAK("use = 0x80000000", d.use = 1u << 31);
    BREAK("align = 2", d.use = ATTN_USE_ALIGN; d.align = (attn_align)2);
    BREAK("beside align", d.use = ATTN_USE_ALIGN | ATTN_USE_OFFSET;
          d.align = ATTN_ALIGN_BOTTOM_RIGHT);
    BREAK("offset = 2147483648", d.use = ATTN_USE_OFFSET;
          d.offset = (int64_t)INT32_MAX + 1);
    BREAK("offset = -2147483649", d.use = ATTN_USE_OFFSET;
          d.offset = (int64_t)INT32_MIN - 1);
    BREAK("window_left = -2", d.use = ATTN_USE_WINDOW; d.window_left = -2);
    BREAK("window_right = -2", d.use = ATTN_USE_WINDOW; d.window_right = -2);
    BREAK("window_left = 2147483648", d.use = ATTN_USE_WINDOW;
          d.window_left = (int64_t)INT32_MAX + 1);
    BREAK("scale = nan", d.use = ATTN_USE_SCALE; d.scale = NAN);
    BREAK("scale = inf", d.use = ATTN_USE_SCALE; d.scale = INFINITY);
    BREAK("softcap = -1", d.use = ATTN_USE_SOFTCAP; d.softcap = -1);
    BREAK("softcap = nan", d.use = ATTN_USE_SOFTCAP; d.softcap = NAN);
    BREAK("dropout = -0.5, want 0 .. 1", d.use = ATTN_USE_DROPOUT; d.dropout = -0.5f);
    BREAK("dropout = 1.5", d.use = ATTN_USE_DROPOUT; d.dropout = 1.5f);
    BREAK("dropout = nan", d.use = ATTN_USE_DROPOUT; d.dropout = NAN);
    BREAK("offsets beside align", d.use = ATTN_USE_OFFSETS | ATTN_USE_ALIGN;
          d.align = ATTN_ALIGN_BOTTOM_RIGHT);
    BREAK("offsets beside offset = 4", d.use = ATTN_USE_OFFSETS | ATTN_USE_OFFSET;
          d.offset = 4);
    BREAK("type_bias = 0", d.use = ATTN_USE_BIAS);
    BREAK("type_bias = 4", d.use = ATTN_USE_BIAS; d.type_bias = ATTN_I32);
    BREAK("type_bias = 5", d.use = ATTN_USE_BIAS; d.type_bias = ATTN_BOOL);
    BREAK("page_size = 0", d.use = ATTN_USE_PAGES);
    BREAK("page_size = -16", d.use = ATTN_USE_PAGES; d.page_size = -16);
    BREAK("page_size = 2147483648", d.use = ATTN_USE_PAGES;
          d.page_size = (int64_t)INT32_MAX + 1);
    BREAK("page_size = 16 beside packed keys", d.page_size = 16;
          d.use = ATTN_USE_PAGES | ATTN_USE_PACKED_K);
    BREAK("layout_q = 5", d.use = ATTN_USE_LAYOUT; d.layout_q = (attn_layout)5);
    BREAK("layout_k = -1", d.use = ATTN_USE_LAYOUT; d.layout_k = (attn_layout)-1);
    BREAK("layout_v = 9", d.use = ATTN_USE_LAYOUT; d.layout_v = (attn_layout)9);
    BREAK("layout_o = 5", d.use = ATTN_USE_LAYOUT; d.layout_o = (attn_layout)5);
    BREAK("grad = 0 beside ATTN_USE_GRAD", d.use = ATTN_USE_GRAD);
    BREAK("bits that mean nothing: 0x60", d.use = ATTN_USE_GRAD; d.grad = 0x61);
    BREAK("grad has ATTN_GRAD_BIAS, but use is without ATTN_USE_BIAS",
          d.use = ATTN_USE_GRAD | ATTN_USE_SINKS;
          d.grad = ATTN_GRAD_BIAS);
    BREAK("grad has ATTN_GRAD_SINKS, but use is without ATTN_USE_SINKS",
          d.use = ATTN_USE_GRAD;
          d.grad = ATTN_GRAD_Q | ATTN_GRAD_SINKS);
    BREAK("layout_grad_o = 5", d.use = ATTN_USE_GRAD | ATTN_USE_LAYOUT;
          d.grad = ATTN_GRAD_Q; d.layout_grad_o = (attn_layout)5);
    BREAK("layout_grad_v = -1", d.use = ATTN_USE_GRAD | ATTN_USE_LAYOUT;
          d.grad = ATTN_GRAD_Q; d.layout_grad_v = (attn_layout)-1);
    KEEP(d.use = ATTN_USE_GRAD; d.grad = ATTN_GRAD_K);
    KEEP(d.use = ATTN_USE_GRAD | ATTN_USE_LSE | ATTN_USE_BIAS | ATTN_USE_SINKS;
         d.type_bias = ATTN_F32; d.grad = ATTN_GRAD_BIAS | ATTN_GRAD_SINKS);
    KEEP(d.use = ATTN_USE_DROPOUT; d.dropout = 0);
    KEEP(d.use = ATTN_USE_DROPOUT; d.dropout = 1);
    KEEP(d.use = ATTN_USE_SCALE; d.scale = 0);
    KEEP(d.use = ATTN_USE_SCALE; d.scale = -3);
    KEEP(d.use = ATTN_USE_OFFSET; d.offset = INT32_MIN);
    KEEP(d.use = ATTN_USE_OFFSETS | ATTN_USE_ALIGN; d.align = ATTN_ALIGN_TOP_LEFT);
    KEEP(d.use = ATTN_USE_BIAS | ATTN_USE_MASK | ATTN_USE_ALIBI | ATTN_USE_SINKS |
                 ATTN_USE_LENS_Q | ATTN_USE_LENS_KV | ATTN_USE_PACKED_Q | ATTN_USE_PAGES;
         d.type_bias = ATTN_BF16; d.page_size = 1);
}

static void fields_that_are_not_in_use_are_not_read(void **state)
{
    (void)state;
    KEEP(d.scale = NAN; d.softcap = -1; d.window_left = -9; d.offset = INT64_MAX;
         d.align = (attn_align)77; d.type_bias = (attn_type)9; d.page_size = -1;
         d.layout_q = (attn_layout)77; d.grad = 0xff00; d.layout_grad_q = (attn_layout)77;
         d.dropout = NAN);
    KEEP(d.use = ATTN_USE_LAYOUT; d.layout_grad_q = (attn_layout)77);
}

/* A program that was built against another version of the header. */
static void descriptors_of_other_sizes(void **state)
{
    struct {
        attn_softmax_desc desc;
        int64_t later[2];
    } newer = { .desc = good() };

    (void)state;
    newer.desc.size = sizeof newer;
    check_ok(attn_softmax_check(&newer.desc));
    newer.later[1] = 1; /* a field that this library does not know */
    check_error(attn_softmax_check(&newer.desc), ATTN_ERR_INVALID, "size =");

    /* an older one ended before the bias: what lies behind it is not read */
    newer.desc.size = offsetof(attn_softmax_desc, type_bias);
    newer.desc.type_bias = (attn_type)77;
    check_ok(attn_softmax_check(&newer.desc));
    newer.desc.size--;
    check_error(attn_softmax_check(&newer.desc), ATTN_ERR_INVALID, "size =");
}

static void statuses_have_names_and_sentences(void **state)
{
    (void)state;
    assert_string_equal(attn_status_name(ATTN_OK), "ATTN_OK");
    assert_string_equal(attn_status_name(ATTN_ERR_INVALID), "ATTN_ERR_INVALID");
    assert_string_equal(attn_status_name((attn_status)99), "unknown status");
    assert_string_equal(attn_status_text(ATTN_ERR_BUILD),
                        "a kernel did not compile or load");
    assert_string_equal(attn_version(), "0.1.0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(options),
        cmocka_unit_test(fields_that_are_not_in_use_are_not_read),
        cmocka_unit_test(descriptors_of_other_sizes),
        cmocka_unit_test(statuses_have_names_and_sentences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
