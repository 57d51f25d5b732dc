/* SPDX-License-Identifier: MIT */
/* tests/opencl_cache.c: the kernel cache on disk: made, used, spoiled in every
 * way, and never in the way of a right answer. tests/on.py gives it a folder. */
#include "tests/check.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <attn/attn.h>

static attn_device_info device;
static bool caches; /* PoCL keeps kernels itself */
static char folder[512];

/* The one entry in the folder; "" if there is none, fails if more. */
static void entry(char path[1024])
{
    DIR *dir = opendir(folder);
    struct dirent *e;

    path[0] = '\0';
    while (dir && (e = readdir(dir))) {
        if (e->d_name[0] == '.')
            continue;
        assert_int_equal(path[0], '\0');
        snprintf(path, 1024, "%s/%s", folder, e->d_name);
    }
    if (dir)
        closedir(dir);
}

static void run(void)
{
    const attn_softmax_desc desc = { .size = sizeof desc,
                                     .type = ATTN_F32,
                                     .batch = 1,
                                     .heads_q = 1,
                                     .heads_kv = 1,
                                     .len_q = 1,
                                     .len_kv = 3,
                                     .dim_qk = 8 };
    float q[8] = { 0 }, k[24] = { 0 }, v[24], o[8] = { 0 };
    attn_ctx *ctx = NULL;

    for (int i = 0; i < 24; i++)
        v[i] = (float)(i / 8);
    check_ok(attn_ctx_create(device.selector, &ctx));
    check_ok(attn_softmax_forward_host(ctx, &desc, q, k, v, o, NULL));
    for (int i = 0; i < 8; i++)
        assert_true(o[i] > 0.99999f && o[i] < 1.00001f);
    attn_ctx_destroy(&ctx);
}

static size_t read_file(const char *path, unsigned char **data)
{
    FILE *file = fopen(path, "rb");
    struct stat st;

    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &st), 0);
    *data = malloc((size_t)st.st_size + 1);
    assert_int_equal(fread(*data, 1, (size_t)st.st_size, file), (size_t)st.st_size);
    fclose(file);
    return (size_t)st.st_size;
}

static void write_file(const char *path, const unsigned char *data, size_t n)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void an_entry_is_made_and_used(void **state)
{
    unsigned char *first, *second;
    char path[1024], again[1024];
    size_t n;

    (void)state;
    run();
    entry(path);
    if (!caches) {
        assert_string_equal(path, "");
        skip();
    }
    assert_string_not_equal(path, "");
    n = read_file(path, &first);
    run();
    entry(again);
    assert_string_equal(path, again);
    assert_int_equal(read_file(again, &second), n);
    assert_memory_equal(first, second, n);
    free(first);
    free(second);
}

/* Whatever is wrong with it, the entry is replaced and the answer is right. */
static void spoiled_entries_are_replaced(void **state)
{
    unsigned char *good, *have;
    char path[1024];
    size_t n;

    (void)state;
    if (!caches)
        skip();
    run();
    entry(path);
    n = read_file(path, &good);
    const size_t cuts[] = { 0, 1, 8, n / 2, n - 1 };
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        write_file(path, good, cuts[i]);
        run();
        assert_int_equal(read_file(path, &have), n);
        free(have);
    }
    for (size_t at = 0; at < n; at += n / 37 + 1) {
        good[at] ^= 0x10;
        write_file(path, good, n);
        good[at] ^= 0x10;
        run();
        assert_int_equal(read_file(path, &have), n);
        assert_int_equal(have[at], good[at]);
        free(have);
    }
    good = realloc(good, n + 100);
    memset(good + n, 0, 100);
    write_file(path, good, n + 100);
    run();
    assert_int_equal(read_file(path, &have), n);
    free(have);
    free(good);
}

static void no_cache_is_no_error(void **state)
{
    char path[1024], before[512];

    (void)state;
    snprintf(before, sizeof before, "%s", folder);
    setenv("ATTN_CACHE_DIR", "/proc/no/such/folder", 1);
    run();
    snprintf(folder, sizeof folder, "%.500s-off", before);
    setenv("ATTN_CACHE_DIR", folder, 1);
    setenv("ATTN_CACHE", "0", 1);
    run();
    entry(path);
    assert_string_equal(path, "");
    unsetenv("ATTN_CACHE");
    setenv("ATTN_CACHE_DIR", before, 1);
    snprintf(folder, sizeof folder, "%s", before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_entry_is_made_and_used),
        cmocka_unit_test(spoiled_entries_are_replaced),
        cmocka_unit_test(no_cache_is_no_error),
    };
    size_t n = 0;

    if (!getenv("ATTN_CACHE_DIR") || attn_device_list(&device, 1, &n) != ATTN_OK || n < 2 ||
        device.kind == ATTN_DEVICE_HOST) {
        puts("no OpenCL device here, or no ATTN_CACHE_DIR");
        return EXIT_SKIPPED;
    }
    caches = !strstr(device.platform, "Portable Computing Language");
    snprintf(folder, sizeof folder, "%s", getenv("ATTN_CACHE_DIR"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
