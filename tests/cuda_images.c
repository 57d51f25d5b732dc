/* SPDX-License-Identifier: MIT */
/* tests/cuda_images.c: the embedded machine code and PTX: all of it unpacks, by several
 * threads too; what a device gets; damaged packs and PTX; no memory. */
#include "tests/check.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/cuda_groups.h"
#include "backend/cuda/image.h"

enum { N_THREADS = 8, N_DAMAGES = 200 };

#define X(group) extern const attn_cu_image attn_cu_images_##group[];
ATTN_CUDA_GROUPS(X)
#undef X

static const attn_cu_image *const groups[] = {
#define X(group) attn_cu_images_##group,
    ATTN_CUDA_GROUPS(X)
#undef X
};
enum { N_GROUPS = sizeof groups / sizeof groups[0] };

static bool is_code(const char *data)
{
    return !memcmp(data, "\177ELF", 4);
}

/* Whether a compiler made the images; what only stands for one makes others. */
static bool compiled(void)
{
    char *data = NULL;
    bool is;

    check_ok(attn_cu_image_unpack(&groups[0][0].parts[0], &data));
    is = is_code(data) || strstr(data, ".version");
    free(data);
    return is;
}

static void check_part(const attn_cu_image *image, const attn_cu_part *part)
{
    char *data = NULL, target[32], entry[128];

    check_ok(attn_cu_image_unpack(part, &data));
    if (part->ptx) {
        snprintf(target, sizeof target, ".target sm_%d", part->capability);
        snprintf(entry, sizeof entry, ".entry attn_%s", image->name);
        if (!strstr(data, target) || !strstr(data, entry) ||
            strlen(data) != part->text_bytes)
            fail_msg("%s: no PTX for %d with its kernel", image->name, part->capability);
    } else if (!is_code(data)) {
        fail_msg("%s: no machine code for %d", image->name, part->capability);
    }
    free(data);
}

static void all_unpack(void **state)
{
    const bool real = compiled();

    (void)state;
    for (int g = 0; g < N_GROUPS; g++)
        for (const attn_cu_image *i = groups[g]; i->name; i++) {
            assert_ptr_equal(attn_cu_image_find(i->name), i);
            assert_true(i->n_parts > 0);
            for (int p = 0; real && p < i->n_parts; p++)
                check_part(i, &i->parts[p]);
        }
    assert_null(attn_cu_image_find("softmax_fwd_nothing"));
}

static void what_devices_get(void **state)
{
    static const attn_cu_part have[] = { { .capability = 75, .ptx = true },
                                         { .capability = 80 },
                                         { .capability = 80, .ptx = true },
                                         { .capability = 86 },
                                         { .capability = 90, .exact = true } };
    static const attn_cu_image image = { "x", have, 5 };
    static const struct {
        int capability, n, part[4];
    } cases[] = {
        { 75, 1, { 0 } },          { 80, 3, { 1, 2, 0 } }, { 87, 4, { 3, 1, 2, 0 } },
        { 90, 3, { 4, 2, 0 } },    { 100, 2, { 2, 0 } },   { 121, 2, { 2, 0 } },
        { 89, 4, { 3, 1, 2, 0 } }, { 70, 1, { 0 } }, /* none: the driver is to say so */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_cu_part *parts[ATTN_CU_MOST_PARTS];

        assert_int_equal(attn_cu_image_parts(&image, cases[i].capability, parts),
                         cases[i].n);
        for (int p = 0; p < cases[i].n; p++)
            assert_int_equal(parts[p] - have, cases[i].part[p]);
    }
}

typedef struct reader {
    pthread_t thread;
    const attn_cu_image *image;
    char *data[ATTN_CU_MOST_PARTS];
    attn_status st;
} reader;

static void *read_all(void *arg)
{
    reader *r = arg;

    for (int p = 0; p < r->image->n_parts && r->st == ATTN_OK; p++)
        r->st = attn_cu_image_unpack(&r->image->parts[p], &r->data[p]);
    return NULL;
}

static void threads_at_once(void **state)
{
    reader r[N_THREADS] = { 0 };

    (void)state;
    for (int t = 0; t < N_THREADS; t++) {
        r[t].image = attn_cu_image_find("softmax_fwd_tile_f32_d64");
        assert_int_equal(pthread_create(&r[t].thread, NULL, read_all, &r[t]), 0);
    }
    for (int t = 0; t < N_THREADS; t++)
        pthread_join(r[t].thread, NULL);
    for (int t = 0; t < N_THREADS; t++) {
        assert_int_equal(r[t].st, ATTN_OK);
        for (int p = 0; p < r[t].image->n_parts; p++) {
            const attn_cu_part *part = &r[t].image->parts[p];
            const size_t bytes = part->ptx ? part->text_bytes + 1 : part->bytes;

            assert_memory_equal(r[t].data[p], r[0].data[p], bytes);
            if (t)
                free(r[t].data[p]);
        }
    }
    for (int p = 0; p < r[0].image->n_parts; p++)
        free(r[0].data[p]);
}

/* A bit that is not what it was is noticed, unless the pack unpacks to the same bytes with
 * it, too: the format has bits that mean nothing, and more than one way to say a match. So is
 * a missing end. */
static void damaged_packs(void **state)
{
    const attn_cu_image *image = attn_cu_image_find("linear_fwd_begin");

    (void)state;
    for (int p = 0; p < image->n_parts; p++) {
        attn_cu_part part = image->parts[p];
        attn_cu_pack pack = *part.pack;
        unsigned char *copy = malloc(pack.bytes);
        const size_t step = pack.bytes / N_DAMAGES + 1;
        char *data = "", *good = NULL;
        size_t tried = 0, noticed = 0;

        assert_non_null(copy);
        check_ok(attn_cu_image_unpack(&part, &good));
        memcpy(copy, pack.data, pack.bytes);
        pack.data = copy;
        part.pack = &pack;
        for (size_t at = 0; at < pack.bytes; at += step) {
            copy[at] ^= (unsigned char)(1 << at % 8);
            if (attn_cu_image_unpack(&part, &data) == ATTN_OK) {
                assert_memory_equal(data, good,
                                    part.ptx ? part.text_bytes + 1 : part.bytes);
                free(data);
            } else {
                check_error(attn_cu_image_unpack(&part, &data), ATTN_ERR_BUILD,
                            "is damaged");
                assert_null(data);
                noticed++;
            }
            tried++;
            copy[at] ^= (unsigned char)(1 << at % 8);
        }
        assert_true(noticed > tried / 10 * 9);
        pack.bytes--;
        check_error(attn_cu_image_unpack(&part, &data), ATTN_ERR_BUILD, "is damaged");
        pack.bytes++;
        pack.raw_bytes++;
        check_error(attn_cu_image_unpack(&part, &data), ATTN_ERR_BUILD, "is damaged");
        pack.raw_bytes -= 2;
        check_error(attn_cu_image_unpack(&part, &data), ATTN_ERR_BUILD, "is damaged");
        pack.raw_bytes++;
        check_ok(attn_cu_image_unpack(&part, &data));
        free(data);
        free(good);
        free(copy);
    }
}

static void no_memory(void **state)
{
    const attn_cu_image *image = attn_cu_image_find("linear_fwd_begin");
    attn_cu_part part = image->parts[0];
    attn_cu_pack pack = *part.pack;
    char *data = "";

    (void)state;
    part.pack = &pack;
    pack.raw_bytes = SIZE_MAX / 4;
    check_error(attn_cu_image_unpack(&part, &data), ATTN_ERR_NO_MEMORY, "image: ");
    assert_null(data);
    pack.raw_bytes = image->parts[0].pack->raw_bytes;
    part.ptx = true;
    part.text_bytes = SIZE_MAX / 4;
    check_error(attn_cu_image_unpack(&part, &data), ATTN_ERR_NO_MEMORY, "PTX: ");
    assert_null(data);
}

static attn_status restore(const char *text, char *out, size_t cap)
{
    memset(out, 0, 256);
    return attn_cu_ptx_restore(text, strlen(text), out, cap);
}

static void registers(void **state)
{
    static const char text[] = ".reg .b32 %r<5>;\n.reg .f32 %f<3>;\n"
                               "mov %r+, %tid.x; add %r+, %r-1, %r+;\n"
                               "ld %f+, [%r-2+4]; st [%r-1], %f-0; mov %r-2, %clock64;\n"
                               "} .reg .b32 %r<3>; mov %r+, %r+; %";
    static const char want[] = ".reg .b32 %r<5>;\n.reg .f32 %f<3>;\n"
                               "mov %r1, %tid.x; add %r2, %r1, %r3;\n"
                               "ld %f1, [%r2+4]; st [%r3], %f1; mov %r1, %clock64;\n"
                               "} .reg .b32 %r<3>; mov %r1, %r2; %";
    static const struct {
        const char *text, *says;
    } wrong[] = {
        { "%r+", "register that is not there" },
        { ".reg .b32 %r<2>; %r-0", "register that is not there" },
        { ".reg .b32 %r<2>; %r+ %r-1", "register that is not there" },
        { ".reg .b32 %r<2>; %r+ %r-99999999999999999999999", "register that is not there" },
        { ".reg .b32 %r<2>; %r+ %r+ %r+", "register that is not there" },
        { ".reg .b32 %r<0>;", "wrong number" },
        { ".reg .b32 %r<99999999999999999999>;", "wrong number" },
        { "%a<1>%b<1>%c<1>%d<1>%e<1>%f<1>%g<1>%h<1>%i<1>%j<1>%k<1>%l<1>%m<1>%n<1>%o<1>%p<1>"
          "%q<1>",
          "too many kinds" },
    };
    char out[256];

    (void)state;
    check_ok(restore(text, out, strlen(want)));
    assert_string_equal(out, want);
    check_error(restore(text, out, strlen(want) - 1), ATTN_ERR_BUILD, "too much text");
    check_error(restore(text, out, strlen(want) + 1), ATTN_ERR_BUILD, "too little text");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        check_error(restore(wrong[i].text, out, 200), ATTN_ERR_BUILD, wrong[i].says);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_unpack),      cmocka_unit_test(what_devices_get),
        cmocka_unit_test(threads_at_once), cmocka_unit_test(damaged_packs),
        cmocka_unit_test(no_memory),       cmocka_unit_test(registers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
