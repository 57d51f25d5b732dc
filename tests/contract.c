/* SPDX-License-Identifier: MIT */
/* tests/contract.c: what every back end promises, on every device found. */
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

enum { MAX_DEVICES = 16 };

static attn_device_info devices[MAX_DEVICES];
static size_t n_devices;

/* One query of ones over three keys: O is the mean of V. */
enum { LK = 3, D = 16 };

static void run_small(attn_ctx *ctx)
{
    const attn_softmax_desc desc = { .size = sizeof desc,
                                     .type = ATTN_F32,
                                     .batch = 1,
                                     .heads_q = 1,
                                     .heads_kv = 1,
                                     .len_q = 1,
                                     .len_kv = LK,
                                     .dim_qk = D };
    float q[D], k[LK * D], v[LK * D], o[D], lse = 0;

    for (int i = 0; i < LK * D; i++) {
        q[i % D] = 0;
        k[i] = (float)i;
        v[i] = (float)(i / D);
    }
    for (int i = 0; i < D; i++)
        o[i] = -1;
    check_ok(attn_softmax_forward_host(ctx, &desc, q, k, v, o, &lse));
    for (int i = 0; i < D; i++)
        assert_true(o[i] > 0.99999f && o[i] < 1.00001f);
    assert_true(lse > 1.09861f && lse < 1.09862f); /* ln 3 */
}

static void lists_tell_what_is_here(void **state)
{
    attn_backend_info backends[8];
    size_t n = 0, devices_of_all = 0;

    (void)state;
    check_ok(attn_backend_list(backends, 8, &n));
    assert_int_equal(n, 3);
    for (size_t i = 0; i < n; i++) {
        devices_of_all += (size_t)backends[i].devices;
        assert_true((backends[i].devices == 0) == (backends[i].reason[0] != '\0'));
        printf("%s: %d devices%s%s\n", backends[i].name, (int)backends[i].devices,
               backends[i].reason[0] ? ": " : "", backends[i].reason);
    }
    assert_string_equal(backends[2].name, "host");
    assert_int_equal(backends[2].devices, 1);
    check_ok(attn_backend_list(NULL, 0, &n));
    check_ok(attn_device_list(NULL, 0, &n));
    assert_int_equal(n, devices_of_all);
    check_error(attn_backend_list(NULL, 2, &n), ATTN_ERR_INVALID, "out is NULL");
    check_error(attn_backend_list(NULL, 0, NULL), ATTN_ERR_INVALID, "n is NULL");
    check_error(attn_device_list(NULL, 1, &n), ATTN_ERR_INVALID, "out is NULL");
}

static void selectors(void **state)
{
    static const struct {
        const char *selector;
        attn_status want;
        const char *says;
    } bad[] = {
        { "", ATTN_ERR_INVALID, "want auto, host" },
        { "gpu", ATTN_ERR_INVALID, "selector = \"gpu\"" },
        { "opencl", ATTN_ERR_INVALID, "opencl:N" },
        { "opencl:", ATTN_ERR_INVALID, "opencl:N" },
        { "opencl:-1", ATTN_ERR_INVALID, "opencl:N" },
        { "opencl:1x", ATTN_ERR_INVALID, "opencl:N" },
        { "opencl:99999999999999999999", ATTN_ERR_INVALID, "opencl:N" },
        { "host:1", ATTN_ERR_NO_DEVICE, "host has 1 device" },
        { "opencl:99", ATTN_ERR_NO_DEVICE, "opencl has" },
        { "cuda:99", ATTN_ERR_NO_DEVICE, "cuda has" },
    };
    attn_device_info info;
    attn_ctx *ctx = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ctx = (attn_ctx *)&info;
        check_error(attn_ctx_create(bad[i].selector, &ctx), bad[i].want, bad[i].says);
        assert_null(ctx);
    }
    check_error(attn_ctx_create("host", NULL), ATTN_ERR_INVALID, "out is NULL");
    check_ok(attn_ctx_create("auto", &ctx));
    check_ok(attn_ctx_info(ctx, &info));
    assert_true(info.kind == ATTN_DEVICE_GPU || info.kind == ATTN_DEVICE_HOST);
    attn_ctx_destroy(&ctx);
    check_ok(attn_ctx_create("host:0", &ctx));
    attn_ctx_destroy(&ctx);
}

static void null_is_accepted_where_it_says_so(void **state)
{
    attn_ctx *ctx = NULL;
    attn_plan *plan = NULL;
    void *memory = NULL;

    (void)state;
    attn_ctx_destroy(NULL);
    attn_ctx_destroy(&ctx);
    attn_plan_destroy(NULL);
    attn_plan_destroy(&plan);
    attn_memory_free(NULL, NULL);
    attn_memory_free(NULL, &memory);
    assert_int_equal(attn_plan_workspace_bytes(NULL), 0);
    check_error(attn_ctx_wait(NULL), ATTN_ERR_INVALID, "ctx is NULL");
    check_error(attn_ctx_set_threads(NULL, 1), ATTN_ERR_INVALID, "ctx is NULL");
    check_error(attn_memory_alloc(NULL, 1, &memory), ATTN_ERR_INVALID, "ctx is NULL");
    check_error(attn_plan_softmax(NULL, NULL, &plan), ATTN_ERR_INVALID, "ctx is NULL");
    check_error(attn_plan_softmax(NULL, NULL, NULL), ATTN_ERR_INVALID, "out is NULL");
}

static void memory_on_each_device(void **state)
{
    unsigned char out[64], in[64];

    (void)state;
    for (int i = 0; i < 64; i++)
        in[i] = (unsigned char)(3 * i);
    for (size_t d = 0; d < n_devices; d++) {
        attn_ctx *ctx = NULL;
        void *memory = NULL, *none = NULL;
        const char *selector = devices[d].selector;

        check_ok(attn_ctx_create(selector, &ctx));
        check_ok(attn_memory_alloc(ctx, 100, &memory));
        check_ok(attn_memory_alloc(ctx, 0, &none));
        check_ok(attn_memory_upload(ctx, memory, 36, in, 64));
        memset(out, 0, sizeof out);
        check_ok(attn_memory_download(ctx, out, memory, 36, 64));
        assert_memory_equal(in, out, 64);
        check_ok(attn_memory_upload(ctx, memory, 0, NULL, 0));
        check_error(attn_memory_upload(ctx, NULL, 0, in, 4), ATTN_ERR_INVALID, "memory");
        check_error(attn_memory_upload(ctx, memory, 0, NULL, 4), ATTN_ERR_INVALID, "from");
        check_error(attn_memory_download(ctx, NULL, memory, 0, 4), ATTN_ERR_INVALID, "to");
        if (devices[d].kind != ATTN_DEVICE_HOST) { /* a pointer does not know its size */
            check_error(attn_memory_upload(ctx, memory, 37, in, 64), ATTN_ERR_INVALID, "");
            check_error(attn_memory_download(ctx, out, memory, SIZE_MAX, 64),
                        ATTN_ERR_INVALID, "");
        }
        attn_memory_free(ctx, &memory);
        assert_null(memory);
        attn_memory_free(ctx, &none);
        check_error(attn_memory_alloc(ctx, (size_t)1 << 60, &memory), ATTN_ERR_NO_MEMORY,
                    "");
        assert_null(memory);
        if (devices[d].kind != ATTN_DEVICE_HOST) {
            check_error(
                attn_memory_alloc(ctx, (size_t)devices[d].max_alloc_bytes + 1, &memory),
                ATTN_ERR_NO_MEMORY, "bytes");
            assert_null(memory);
        }
        run_small(ctx); /* the context still works */
        attn_ctx_destroy(&ctx);
    }
}

static void create_use_release_many_times(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++)
        for (int i = 0; i < 50; i++) {
            attn_ctx *ctx = NULL;

            check_ok(attn_ctx_create(devices[d].selector, &ctx));
            run_small(ctx);
            attn_ctx_destroy(&ctx);
            assert_null(ctx);
        }
}

/* A yes can be planned; a no has a reason, and asking for it by name gives that. */
static void check_variants(attn_ctx *ctx, const char *problem)
{
    attn_softmax_desc desc;
    attn_variant_info list[16];
    attn_plan *plan = NULL;
    size_t n = 0;

    check_ok(attn_softmax_parse(problem, &desc));
    check_ok(attn_softmax_variants(ctx, &desc, list, 16, &n));
    assert_in_range(n, 1, 16);
    for (size_t i = 0; i < n; i++) {
        const attn_options o = { .size = sizeof o, .variant = list[i].name };

        assert_true(list[i].applicable || list[i].reason[0]);
        if (list[i].applicable)
            check_ok(attn_plan_softmax_with(ctx, &desc, &o, &plan));
        else
            check_error(attn_plan_softmax_with(ctx, &desc, &o, &plan), ATTN_ERR_UNSUPPORTED,
                        list[i].reason);
        attn_plan_destroy(&plan);
    }
}

static void variants_say_yes_or_why_not(void **state)
{
    static const char *const problems[] = {
        "softmax_fwd:f16,b1,hq2,hkv1,lq9,lk17,d512,softcap=9",
        "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk7,d5000",
        "softmax_fwd:f32,b1,hq2,hkv2,lq3,lk9,d8,bias=f16,mask,alibi,sinks,pages=4",
        "softmax_fwd:bf16,b3,hq2,hkv1,lq2,lk9,d16,packed,causal,align=br,lse",
    };

    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        attn_softmax_desc desc;
        attn_ctx *ctx = NULL;
        attn_plan *plan = NULL;

        check_ok(attn_ctx_create(devices[d].selector, &ctx));
        for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
            check_variants(ctx, problems[i]);
        check_ok(attn_softmax_parse(problems[0], &desc));
        check_error(attn_plan_softmax_with(ctx, &desc,
                                           &(attn_options){ .size = sizeof(attn_options),
                                                            .variant = "fastest" },
                                           &plan),
                    ATTN_ERR_INVALID, "variant = \"fastest\"");
        check_error(attn_plan_softmax_with(ctx, &desc, &(attn_options){ .size = 1 }, &plan),
                    ATTN_ERR_INVALID, "options.size = 1");
        attn_ctx_destroy(&ctx);
    }
}

/* A plan's text makes the same plan again; another's is refused. */
static void plans_as_text(void **state)
{
    static const char problem[] = "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk7,d16,causal";

    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        attn_ctx *ctx = NULL;
        attn_plan *plan = NULL;
        char text[512], again[512];

        check_ok(attn_ctx_create(devices[d].selector, &ctx));
        check_ok(attn_plan_parse(ctx, problem, &plan));
        check_ok(attn_plan_text(plan, text, sizeof text, NULL));
        attn_plan_destroy(&plan);
        check_ok(attn_plan_parse(ctx, text, &plan));
        check_ok(attn_plan_text(plan, again, sizeof again, NULL));
        assert_string_equal(text, again);
        attn_plan_destroy(&plan);

        check_error(
            attn_plan_parse(ctx, "vulkan:softmax_fwd_tile[x] softmax_fwd:f32", &plan),
            ATTN_ERR_INVALID, "back end \"vulkan\"");
        check_error(attn_plan_parse(ctx, "softmax_fwd_tile softmax_fwd:f32", &plan),
                    ATTN_ERR_INVALID, "want BACKEND:VARIANT[INSTANCE] PROBLEM");
        snprintf(again, sizeof again, "%.*s[another] %s", (int)strcspn(text, "["), text,
                 problem);
        check_error(attn_plan_parse(ctx, again, &plan), ATTN_ERR_UNSUPPORTED, "[another]");
        assert_null(plan);
        attn_ctx_destroy(&ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_tell_what_is_here),
        cmocka_unit_test(selectors),
        cmocka_unit_test(null_is_accepted_where_it_says_so),
        cmocka_unit_test(memory_on_each_device),
        cmocka_unit_test(create_use_release_many_times),
        cmocka_unit_test(variants_say_yes_or_why_not),
        cmocka_unit_test(plans_as_text),
    };

    if (attn_device_list(devices, MAX_DEVICES, &n_devices) != ATTN_OK) {
        fprintf(stderr, "%s\n", attn_last_error());
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
