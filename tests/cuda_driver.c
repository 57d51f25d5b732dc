/* SPDX-License-Identifier: MIT */
/* tests/cuda_driver.c: drivers that are absent or too old, and those that refuse the images
 * of the kernels, against the emulator of tests/emulator, which is told to. */
#include "tests/check.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>
#include <attn/cuda.h>
#include <attn/merge.h>

static const char *folder;

/* A library is opened once in a process, so each test names it anew: by other spellings
 * of its path. */
static void name_library(int slashes, const char *end)
{
    char path[8400];

    snprintf(path, sizeof path, "%s%.*s%s", folder, slashes, "////////////////", end);
    setenv("ATTN_CUDA_LIB", path, 1);
}

static void drivers_that_do_not_do(void **state)
{
    static const struct {
        const char *variable, *value, *says;
    } cases[] = {
        { "EMULATED_VERSION", "12040",
          "the driver is of CUDA 12.4, the kernels here want" },
        { "EMULATED_DEVICES", "0", "cuInit = 100 (CUDA_ERROR_NO_DEVICE" },
        { "EMULATED_CAPABILITY", "70", "none of compute capability 7.5" },
    };
    attn_ctx *ctx = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        name_library((int)i + 2, "");
        setenv(cases[i].variable, cases[i].value, 1);
        check_error(attn_ctx_create("cuda:0", &ctx), ATTN_ERR_NO_DEVICE, cases[i].says);
        assert_null(ctx);
        unsetenv(cases[i].variable);
    }
    setenv("ATTN_CUDA_LIB", "/nowhere/libcuda.so.1", 1);
    check_error(attn_ctx_create("cuda:0", &ctx), ATTN_ERR_NO_DEVICE,
                "/nowhere/libcuda.so.1");
    check_error(attn_ctx_create_cuda((CUcontext)&ctx, &ctx), ATTN_ERR_NO_DEVICE,
                "no usable CUDA");
    setenv("ATTN_CUDA_LIB", "libm.so.6", 1);
    check_error(attn_ctx_create("cuda:0", &ctx), ATTN_ERR_NO_DEVICE,
                "libm.so.6 has no cuInit, so it is no CUDA driver");
    name_library(1, "libcuda.so.1");
    check_ok(attn_ctx_create("cuda:0", &ctx));
    attn_ctx_destroy(&ctx);
    check_error(attn_ctx_create_cuda((CUcontext)&ctx, &ctx), ATTN_ERR_INVALID, "= 201");
    assert_null(ctx);
}

static void auto_takes_cuda_first(void **state)
{
    attn_ctx *ctx = NULL;
    attn_device_info info;

    (void)state;
    name_library(0, "");
    check_ok(attn_ctx_create("auto", &ctx));
    check_ok(attn_ctx_info(ctx, &info));
    assert_string_equal(info.selector, "cuda:0");
    assert_string_equal(info.isa, "sm_90");
    assert_int_equal(info.kind, ATTN_DEVICE_GPU);
    attn_ctx_destroy(&ctx);
}

static attn_status merge_nothing(attn_ctx *ctx)
{
    float part[4] = { 0 }, lse[4];
    const attn_tensor rows = attn_tensor_bhld(part, ATTN_F32, 1, 1, 4, 1);
    const attn_merge_args args = { .size = sizeof args,
                                   .n_parts = 1,
                                   .part_lse = &rows,
                                   .lse = attn_tensor_bhld(lse, ATTN_F32, 1, 1, 4, 1) };

    return attn_merge_host(ctx, &args);
}

/* No machine code for the device; PTX newer than the driver; no compiler for it. The
 * context is none the worse for it. */
static void images_that_do_not_load(void **state)
{
    static const struct {
        const char *code, *says;
    } cases[] = {
        { "209", "CUDA_ERROR_NO_BINARY_FOR_GPU" },
        { "222", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" },
        { "221", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND" },
    };
    attn_softmax_desc desc;
    attn_ctx *ctx = NULL;
    attn_plan *plan = NULL;

    (void)state;
    name_library(0, "");
    check_ok(attn_softmax_parse("softmax_fwd:f32,b1,hq2,hkv2,lq37,lk37,d20", &desc));
    check_ok(attn_ctx_create("cuda:0", &ctx));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("EMULATED_IMAGE", cases[i].code, 1);
        check_error(attn_plan_softmax(ctx, &desc, &plan), ATTN_ERR_BUILD, cases[i].says);
        check_error(attn_plan_softmax(ctx, &desc, &plan), ATTN_ERR_BUILD,
                    "image softmax_fwd_tile_f32_d64 on CUDA emulator");
        assert_null(plan);
        check_error(merge_nothing(ctx), ATTN_ERR_BUILD, cases[i].says);
        unsetenv("EMULATED_IMAGE");
    }
    check_ok(attn_plan_softmax(ctx, &desc, &plan));
    check_ok(merge_nothing(ctx));
    attn_plan_destroy(&plan);
    attn_ctx_destroy(&ctx);
}

/* PTX is taken in place of machine code that a device has no use for, as on a Tegra, and not
 * for other reasons. Images that no compiler made are neither. */
static void ptx_for_machine_code(void **state)
{
    static const struct {
        const char *code;
        bool plans;
    } cases[] = { { "209", true }, { "200", false } };
    attn_softmax_desc desc;
    attn_plan *plan = NULL;

    (void)state;
    name_library(0, "");
    check_ok(attn_softmax_parse("softmax_fwd:f32,b1,hq2,hkv2,lq37,lk37,d20", &desc));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_ctx *ctx = NULL;
        attn_status st;

        setenv("EMULATED_CODE", cases[i].code, 1);
        check_ok(attn_ctx_create("cuda:0", &ctx));
        st = attn_plan_softmax(ctx, &desc, &plan);
        if (cases[i].plans)
            check_ok(st);
        else if (st != ATTN_OK)
            assert_non_null(strstr(attn_last_error(), "cuModuleLoadData = 200"));
        printf("machine code refused by %s: %s\n", cases[i].code, attn_status_name(st));
        attn_plan_destroy(&plan);
        attn_ctx_destroy(&ctx);
        unsetenv("EMULATED_CODE");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drivers_that_do_not_do),
        cmocka_unit_test(auto_takes_cuda_first),
        cmocka_unit_test(images_that_do_not_load),
        cmocka_unit_test(ptx_for_machine_code),
    };

    if (argc != 2) {
        printf("usage: %s FOLDER_OF_THE_EMULATOR\n", argv[0]);
        return EXIT_SKIPPED;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
