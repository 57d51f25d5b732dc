/* SPDX-License-Identifier: MIT */
/* tests/npy.c: .npy files round trip, corrupt ones are refused in one line, 16-bit floats. */
#define _POSIX_C_SOURCE 200809L
#include "npy.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64], path[96]; /* a folder of our own, and one file in it */
static char err[256];

static int enter(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/attn-npy-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/a.npy", dir);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir); /* fails if a test left a temporary file behind */
}

static void write_file(const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static size_t read_file(void *bytes, size_t cap)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, cap, f);
    fclose(f);
    return n;
}

/* A file of the given version and header text, newline added, with n data bytes. */
static void write_npy(int version, const char *text, size_t n)
{
    unsigned char file[2048] = "\x93NUMPY";
    size_t len = strlen(text) + 1, at = 6;

    assert_true(len + n + 12 <= sizeof file);
    file[at++] = (unsigned char)version;
    file[at++] = 0;
    for (int i = 0; i < (version == 1 ? 2 : 4); i++)
        file[at++] = (unsigned char)(len >> 8 * i);
    memcpy(file + at, text, len - 1);
    file[at + len - 1] = '\n';
    write_file(file, at + len + n);
}

/* Loading fails, with one line that starts with the name and has `want` in it. */
static void refused(const char *want)
{
    npy_array a;

    memset(err, 'x', sizeof err);
    assert_int_equal(npy_load(path, &a, err, sizeof err), -1);
    assert_non_null(memchr(err, '\0', sizeof err));
    assert_memory_equal(err, path, strlen(path));
    assert_null(strchr(err, '\n'));
    if (!strstr(err, want))
        fail_msg("want \"%s\" in \"%s\"", want, err);
    assert_null(a.data);
}

static void test_round_trip(void **state)
{
    static const struct {
        int rank;
        int64_t shape[4];
    } cases[] = {
        { 0, { 0 } },          { 1, { 7 } },          { 1, { 0 } },
        { 2, { 3, 5 } },       { 3, { 2, 0, 4 } },    { 4, { 1, 2, 3, 4 } },
        { 4, { 0, 0, 0, 0 } }, { 2, { 1000, 1000 } }, { 2, { INT64_C(1) << 59, 0 } },
    };
    (void)state;
    for (int t = NPY_F4; t <= NPY_I8; t++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            npy_array a, b;
            assert_int_equal(npy_alloc(&a, (npy_type)t, cases[i].rank, cases[i].shape), 0);
            for (size_t n = 0; n < a.bytes; n++)
                ((unsigned char *)a.data)[n] = (unsigned char)(n * 2654435761u >> 13);
            assert_int_equal(npy_save(path, &a, err, sizeof err), 0);
            assert_int_equal(npy_load(path, &b, err, sizeof err), 0);
            assert_int_equal(b.type, t);
            assert_int_equal(b.rank, cases[i].rank);
            assert_int_equal(b.bytes, a.bytes);
            assert_memory_equal(b.shape, a.shape, sizeof a.shape);
            assert_memory_equal(b.data, a.data, a.bytes);
            assert_int_equal((uintptr_t)b.data % 64, 0);
            struct stat st;
            assert_int_equal(stat(path, &st), 0);
            assert_int_equal(((size_t)st.st_size - a.bytes) % 64, 0);
            npy_free(&a);
            npy_free(&b);
            assert_null(b.data);
            npy_free(&b);
            npy_free(NULL);
        }
}

static void test_accepted(void **state)
{
    static const struct {
        const char *text;
        int rank;
        size_t bytes;
    } cases[] = {
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 2, 24 },
        { "{'descr':'<f4','fortran_order':False,'shape':(2,3)}", 2, 24 },
        { "  {\t\"shape\" :\n ( 2 , 3 , ) , \"fortran_order\" : False ,\r\n'descr' : "
          "\"<f4\" }  ",
          2, 24 },
        { "{'shape': (), 'fortran_order': False, 'descr': '<f8'}", 0, 8 },
        { "{'shape': (3,), 'fortran_order': False, 'descr': '|b1'}", 1, 3 },
        { "{'shape': (0,), 'fortran_order': False, 'descr': '<i8'}", 1, 0 },
        { "{'shape': (1, 2, 3, 4), 'fortran_order': False, 'descr': '<f2'}", 4, 48 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int version = 1; version <= 3; version++) {
            npy_array a;
            write_npy(version, cases[i].text, cases[i].bytes);
            if (npy_load(path, &a, err, sizeof err))
                fail_msg("%s: %s", cases[i].text, err);
            assert_int_equal(a.rank, cases[i].rank);
            assert_int_equal(a.bytes, cases[i].bytes);
            npy_free(&a);
        }
    npy_array a;
    write_npy(1, "{'shape': (3L, 2L), 'fortran_order': False, 'descr': '<i4'}", 24);
    assert_int_equal(npy_load(path, &a, err, sizeof err), 0);
    npy_free(&a);
    write_npy(3, "{'shape': (3L, 2L), 'fortran_order': False, 'descr': '<i4'}", 24);
    refused("',' or ')'");
}

#define HEAD "{'descr': '<f4', 'fortran_order': False, 'shape': "

static void test_refused_headers(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { HEAD "(2, 3)} x", "nothing after the dictionary" },
        { HEAD "(2, 3)", "',' or '}'" },
        { HEAD "(2, 3),,}", "a string" },
        { HEAD "(6)}", "',' after the only dimension" },
        { HEAD "6}", "a tuple" },
        { HEAD "[6]}", "a tuple" },
        { HEAD "(,)}", "a number" },
        { HEAD "(2 3)}", "',' or ')'" },
        { HEAD "(2.0, 3)}", "',' or ')'" },
        { HEAD "(2, 03)}", "a number" },
        { HEAD "(2, True)}", "a number" },
        { HEAD "(2, -3)}", "negative dimension" },
        { HEAD "(-2, -3)}", "negative dimension" },
        { HEAD "(1, 1, 1, 2, 3)}", "more than 4 dimensions" },
        { HEAD "(4611686018427387904, 4)}", "too large" },
        { HEAD "(4294967296, 4294967296)}", "too large" },
        { HEAD "(0, 4611686018427387904, 4)}", "too large" },
        { HEAD "(9223372036854775807,)}", "too large" },
        { HEAD "(9223372036854775808,)}", "64 bits" },
        { HEAD "(99999999999999999999999999999999999999999999999999,)}", "64 bits" },
        { HEAD "(1000000000000,)}",
          "holds 24 bytes of data, its shape needs 4000000000000" },
        { HEAD "(2, 4)}", "holds 24 bytes of data, its shape needs 32" },
        { HEAD "(2, 2)}", "goes on after the 16 bytes" },
        { HEAD "()}", "goes on after the 4 bytes" },
        { HEAD "(0,)}", "goes on after the 0 bytes" },
        { HEAD "(2, 3), 'shape': (2, 3)}", "'shape' twice" },
        { HEAD "(2, 3), 'order': 1}", "unknown key 'order'" },
        { "{'descr': '<f4', 'shape': (2, 3)}", "no key 'fortran_order'" },
        { "{}", "no key 'descr'" },
        { "", "'{'" },
        { "('descr', '<f4')", "'{'" },
        { "{descr: '<f4'}", "a string" },
        { "{'descr' '<f4'}", "':'" },
        { "{'descr: <f4}", "closed on its line" },
        { "{'descr\": '<f4'}", "unknown key" },
        { "{'de\\x73cr': '<f4'}", "without escapes" },
        { "{'descr': <f4}", "a string" },
        { "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3)}", "astype('<f4')" },
        { "{'descr': '=f4', 'fortran_order': False, 'shape': (2, 3)}", "type '=f4'" },
        { "{'descr': '<c8', 'fortran_order': False, 'shape': (3,)}", "type '<c8'" },
        { "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", "type '|O'" },
        { "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (6,)}",
          "structured" },
        { "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}", "ascontiguousarray" },
        { "{'descr': '<f4', 'fortran_order': true, 'shape': (2, 3)}", "True or False" },
        { "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}", "True or False" },
        { "{'descr': '<f4', 'fortran_order': Falsey, 'shape': (2, 3)}", "',' or '}'" },
        { "{'descr': '<f4', 'fortran_order': False, 'shap\xc3\xa9': (2, 3)}",
          "0xc3, not ASCII" },
        { "{'descr': '<f4', \x01 'fortran_order': False, 'shape': (2, 3)}",
          "0x01, not ASCII" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int version = 1; version <= 3; version++) {
            write_npy(version, cases[i].text, 24);
            refused(cases[i].want);
        }
}

#define BYTES(text) text, sizeof text - 1

static void test_refused_starts(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *want;
    } cases[] = {
        { BYTES(""), "first 8 bytes" },
        { BYTES("\x93NUM"), "first 8 bytes" },
        { BYTES("PK\x03\x04 is a zip"), "does not start with" },
        { BYTES("\x93NUMPZ\x01\0\x01\0\n"), "does not start with" },
        { BYTES("\x93NUMPY\x00\0\x01\0\n"), "version 0.0" },
        { BYTES("\x93NUMPY\x01\x01\x01\0\n"), "version 1.1" },
        { BYTES("\x93NUMPY\x04\0\x01\0\n"), "version 4.0" },
        { BYTES("\x93NUMPY\x01\0\x01"), "header length" },
        { BYTES("\x93NUMPY\x02\0\x01\0\0"), "header length" },
        { BYTES("\x93NUMPY\x01\0\0\0"), "newline" },
        { BYTES("\x93NUMPY\x01\0\x02\0{}"), "newline" },
        { BYTES("\x93NUMPY\x01\0\x02\0{"), "inside its header" },
        { BYTES("\x93NUMPY\x01\0\x03\0{\0\n"), "0x00, not ASCII" },
        { BYTES("\x93NUMPY\x01\0\xff\xff{}"), "header of 65535 bytes" },
        { BYTES("\x93NUMPY\x02\0\xff\xff\xff\xff{}"), "header of 4294967295 bytes" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(cases[i].bytes, cases[i].n);
        refused(cases[i].want);
    }
}

/* A small array in `file`; returns its length, and where its data start. */
static size_t small_file(unsigned char *file, size_t cap, size_t *data)
{
    static float values[6] = { 1, 2, 3, 4, 5, 6 };
    const npy_array a = { NPY_F4, 2, { 2, 3 }, values, sizeof values };

    assert_int_equal(npy_save(path, &a, err, sizeof err), 0);
    size_t n = read_file(file, cap);
    assert_int_equal(n, 128 + sizeof values);
    *data = 128;
    return n;
}

static void test_truncations(void **state)
{
    unsigned char file[256];
    size_t data, n = small_file(file, sizeof file, &data);
    npy_array a;

    (void)state;
    for (size_t cut = 0; cut < n; cut++) {
        write_file(file, cut);
        refused(cut < 8      ? "first 8"
                : cut < 10   ? "length"
                : cut < data ? "header"
                             : "needs 24");
    }
    write_file(file, n);
    assert_int_equal(npy_load(path, &a, err, sizeof err), 0);
    npy_free(&a);
    write_file(file, n + 1);
    refused("goes on after the 24 bytes");
}

/* No single bit of this header is without meaning, padding included. */
static void test_bit_flips(void **state)
{
    unsigned char file[256];
    size_t data, n = small_file(file, sizeof file, &data);

    (void)state;
    for (size_t bit = 0; bit < 8 * data; bit++) {
        file[bit / 8] ^= (unsigned char)(1u << bit % 8);
        write_file(file, n);
        refused("");
        file[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

static void test_unreadable(void **state)
{
    npy_array a;

    (void)state;
    unlink(path);
    refused("cannot open: No such file");
    assert_int_equal(mkdir(path, 0777), 0);
    refused("directory");
    assert_int_equal(rmdir(path), 0);
    write_file("", 0);
    assert_int_equal(chmod(path, 0), 0);
    if (geteuid() != 0) /* root reads everything */
        refused("cannot open: Permission denied");
    unlink(path);
    assert_int_equal(npy_load(path, &a, NULL, 0), -1);
    for (size_t cap = 1; cap < sizeof err; cap++) {
        memset(err, 'x', sizeof err);
        assert_int_equal(npy_load(path, &a, err, cap), -1);
        assert_true(strlen(err) < cap);
        assert_int_equal(err[cap], 'x');
    }
    assert_int_equal(npy_load("no\nsuch\x1b"
                              "file",
                              &a, err, sizeof err),
                     -1);
    assert_memory_equal(err, "no?such?file: ", 14);
}

/* Through a pipe: nothing can be asked of its size or sought in it. */
static void test_pipe(void **state)
{
    unsigned char file[256];
    size_t data, n = small_file(file, sizeof file, &data);

    (void)state;
    for (int extra = -1; extra <= 1; extra++) {
        int fds[2];
        npy_array a;
        size_t send = (size_t)((int)n + extra);
        assert_int_equal(pipe(fds), 0);
        assert_int_equal(write(fds[1], file, send), send);
        close(fds[1]);
        FILE *f = fdopen(fds[0], "rb");
        assert_non_null(f);
        assert_int_equal(npy_parse(f, "pipe", &a, err, sizeof err), extra ? -1 : 0);
        if (extra)
            assert_memory_equal(err, "pipe: ", 6);
        else
            assert_memory_equal(a.data, file + data, a.bytes);
        npy_free(&a);
        fclose(f);
    }
    int fds[2];
    char name[32];
    npy_array a, b;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(npy_load(path, &a, err, sizeof err), 0);
    snprintf(name, sizeof name, "/dev/fd/%d", fds[1]);
    assert_int_equal(npy_save(name, &a, err, sizeof err), 0);
    close(fds[1]);
    snprintf(name, sizeof name, "/dev/fd/%d", fds[0]);
    assert_int_equal(npy_load(name, &b, err, sizeof err), 0);
    assert_memory_equal(a.data, b.data, a.bytes);
    close(fds[0]);
    npy_free(&a);
    npy_free(&b);
}

static void test_save_keeps_old(void **state)
{
    unsigned char before[256], after[256];
    size_t data, n = small_file(before, sizeof before, &data);
    struct rlimit old, tight;
    npy_array big;
    struct stat st;

    (void)state;
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(npy_alloc(&big, NPY_F8, 1, (int64_t[]){ 100000 }), 0);
    signal(SIGXFSZ, SIG_IGN); /* the nearest thing to a full disk */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight = old;
    tight.rlim_cur = 65536;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    int failed = npy_save(path, &big, err, sizeof err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(failed, -1);
    assert_non_null(strstr(err, "cannot write 800128 bytes: "));
    assert_int_equal(read_file(after, sizeof after), n);
    assert_memory_equal(before, after, n);
    assert_int_equal(npy_save(path, &big, err, sizeof err), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(chmod(path, 0440), 0);
    if (geteuid() != 0) { /* root writes everything */
        assert_int_equal(npy_save(path, &big, err, sizeof err), -1);
        assert_non_null(strstr(err, "cannot write: Permission denied"));
    }
    assert_int_equal(unlink(path), 0);
    npy_free(&big);
}

static void test_save_elsewhere(void **state)
{
    float values[6] = { 0 };
    npy_array a = { NPY_F4, 2, { 2, 3 }, values, sizeof values };
    char link[96];
    struct stat st;

    (void)state;
    assert_int_equal(npy_save("/dev/null", &a, err, sizeof err), 0);
    if (stat("/dev/full", &st) == 0) {
        assert_int_equal(npy_save("/dev/full", &a, err, sizeof err), -1);
        assert_non_null(strstr(err, "/dev/full: cannot write 152 bytes: No space"));
    }
    assert_int_equal(npy_save(dir, &a, err, sizeof err), -1);
    assert_non_null(strstr(err, "cannot open: Is a directory"));
    assert_int_equal(npy_save("/no-such-dir/a.npy", &a, err, sizeof err), -1);
    assert_non_null(strstr(err, "No such file"));

    snprintf(link, sizeof link, "%s/link", dir);
    assert_int_equal(symlink("a.npy", link), 0);
    assert_int_equal(npy_save(link, &a, err, sizeof err), 0);
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 152);
    unlink(link);

    a.bytes--;
    assert_int_equal(npy_save(path, &a, err, sizeof err), -1);
    assert_non_null(strstr(err, "disagree"));
    a.bytes++;
    a.rank = 5;
    assert_int_equal(npy_save(path, &a, err, sizeof err), -1);
    assert_int_equal(npy_alloc(&a, NPY_F4, 5, a.shape), -1);
    assert_int_equal(npy_alloc(&a, NPY_F4, 1, (int64_t[]){ -1 }), -1);
    assert_int_equal(npy_alloc(&a, NPY_F8, 2, (int64_t[]){ INT64_C(1) << 32, 1 << 30 }),
                     -1);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Every half against its definition, there and back. */
static void test_half(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        unsigned e = h >> 10 & 31, m = h & 1023;
        float x = npy_half_to_float((uint16_t)h);
        double want = e == 31 ? INFINITY : e ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24);
        assert_int_equal(bits_of(x) >> 31, h >> 15);
        if (e == 31 && m) {
            assert_true(isnan(x));
            assert_int_equal(npy_float_to_half(x), h | 0x200);
        } else {
            assert_true(fabs((double)x) == want);
            assert_int_equal(npy_float_to_half(x), h);
        }
    }
}

/* Half way between two neighbours goes to the even one; a hair off, to the nearer. */
static void test_rounding(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x7c00; h++)
        for (unsigned sign = 0; sign <= 0x8000; sign += 0x8000) {
            float lo = npy_half_to_float((uint16_t)h), s = sign ? -1.0f : 1.0f;
            float hi = h == 0x7bff ? 65536.0f : npy_half_to_float((uint16_t)(h + 1));
            float mid = 0.5f * (lo + hi);
            assert_int_equal(npy_float_to_half(s * mid), sign | (h + (h & 1)));
            assert_int_equal(npy_float_to_half(s * nextafterf(mid, 0)), sign | h);
            assert_int_equal(npy_float_to_half(s * nextafterf(mid, INFINITY)),
                             sign | (h + 1));
        }
    assert_int_equal(npy_float_to_half(1e30f), 0x7c00);
    assert_int_equal(npy_float_to_half(-1e-30f), 0x8000);

    for (unsigned b = 0; b < 65536; b++) {
        float x = npy_bf16_to_float((uint16_t)b);
        assert_int_equal(bits_of(x), b << 16);
        assert_int_equal(npy_float_to_bf16(x), isnan(x) ? b | 0x40 : b);
        for (uint32_t low = 0x7fff; low <= 0x8001 && !isnan(x) && !isinf(x); low++) {
            uint32_t bits = b << 16 | low;
            float y;
            memcpy(&y, &bits, sizeof y);
            assert_int_equal(npy_float_to_bf16(y),
                             b + (low > 0x8000 || (low == 0x8000 && (b & 1))));
        }
    }
    uint32_t nan = 0x7f800001; /* cutting its bits off would give infinity */
    float x;
    memcpy(&x, &nan, sizeof x);
    assert_int_equal(npy_float_to_bf16(x), 0x7fc0);
    assert_int_equal(npy_float_to_half(x), 0x7e00);
}

#define TEST(name, what)             \
    {                                \
        what, name, NULL, NULL, NULL \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_round_trip, "every type and rank comes back as written"),
        TEST(test_accepted, "headers that NumPy accepts, in any order and spacing"),
        TEST(test_refused_headers, "headers refused, each with its reason"),
        TEST(test_refused_starts, "magic, version and header length refused"),
        TEST(test_truncations, "a file cut at any byte"),
        TEST(test_bit_flips, "any bit of the header flipped"),
        TEST(test_unreadable, "no file, a directory, no permission, short error buffers"),
        TEST(test_pipe, "pipes, in and out"),
        TEST(test_save_keeps_old, "a failed save leaves the old file, a good one its mode"),
        TEST(test_save_elsewhere, "devices, links, folders and arrays that disagree"),
        TEST(test_half, "all 65536 halves, both ways"),
        TEST(test_rounding, "rounding of halves and bf16, ties to even"),
    };
    return cmocka_run_group_tests_name("npy", tests, enter, leave);
}
