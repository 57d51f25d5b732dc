/* SPDX-License-Identifier: MIT */
/* tools/npy.c: reads and writes .npy files; trusts nothing that a file says. */
#define _POSIX_C_SOURCE 200809L
#include "npy.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the data of a file are used as they are: little endian only"
#endif

enum {
    MAX_RANK = 4,
    MAX_HEADER = 10000, /* NumPy's own limit */
    ALIGN = 64,         /* of the data, in the file and in memory */
    FIRST_READ = 1 << 20,
};

static const struct {
    const char *descr;
    size_t bytes;
} types[] = {
    [NPY_F4] = { "<f4", 4 }, [NPY_F2] = { "<f2", 2 }, [NPY_F8] = { "<f8", 8 },
    [NPY_B1] = { "|b1", 1 }, [NPY_I4] = { "<i4", 4 }, [NPY_I8] = { "<i8", 8 },
};
enum { N_TYPES = sizeof types / sizeof types[0] };

size_t npy_type_bytes(npy_type type)
{
    return types[type].bytes;
}
const char *npy_type_descr(npy_type type)
{
    return types[type].descr;
}

/* Where a message goes, and the file that it is about. */
struct report {
    const char *name;
    char *err;
    size_t cap;
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int
fail(const struct report *to, const char *format, ...)
{
    va_list args;

    if (!to->cap)
        return -1;
    int used = snprintf(to->err, to->cap, "%s: ", to->name);
    if (used >= 0 && (size_t)used < to->cap) {
        va_start(args, format);
        vsnprintf(to->err + used, to->cap - (size_t)used, format, args);
        va_end(args);
    }
    for (char *c = to->err; *c; c++) /* a file's name may hold anything */
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    return -1;
}

/* The size of the data. Zeros are left out of the product, so that strides
 * computed from an empty array's shape fit as well. */
static bool size_of(npy_type type, int rank, const int64_t *shape, size_t *bytes)
{
    size_t product = types[type].bytes;
    bool empty = false;

    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0)
            return false;
        if (shape[i] == 0)
            empty = true;
        else if ((uint64_t)shape[i] > PTRDIFF_MAX / product)
            return false;
        else
            product *= (size_t)shape[i];
    }
    *bytes = empty ? 0 : product;
    return true;
}

/* At least one unit, so that NULL means only one thing. */
static void *alloc_aligned(size_t bytes)
{
    return aligned_alloc(ALIGN, bytes ? (bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN);
}

int npy_alloc(npy_array *out, npy_type type, int rank, const int64_t *shape)
{
    npy_array a = { .type = type, .rank = rank };

    *out = (npy_array){ 0 };
    if ((unsigned)type >= N_TYPES || rank < 0 || rank > MAX_RANK ||
        !size_of(type, rank, shape, &a.bytes) || !(a.data = alloc_aligned(a.bytes)))
        return -1;
    for (int i = 0; i < rank; i++)
        a.shape[i] = shape[i];
    memset(a.data, 0, a.bytes);
    *out = a;
    return 0;
}

void npy_free(npy_array *array)
{
    if (!array)
        return;
    free(array->data);
    *array = (npy_array){ 0 };
}

/* The header is a Python dictionary display, here as a string ending in 0. */
struct reader {
    struct report to;
    FILE *file;
    int version;
    const char *at;
    char header[MAX_HEADER + 1];
};

static int malformed(const struct reader *r, const char *want)
{
    return fail(&r->to, "header, character %d: want %s", (int)(r->at - r->header), want);
}

static bool accept(struct reader *r, char c)
{
    r->at += strspn(r->at, " \t\r\n");
    if (*r->at != c)
        return false;
    r->at++;
    return true;
}

/* A string without escapes; what does not fit into `cap` is no word we know. */
static int parse_string(struct reader *r, char *out, size_t cap)
{
    char quote = accept(r, '\'') ? '\'' : accept(r, '"') ? '"' : 0;
    if (!quote)
        return malformed(r, "a string");
    size_t n = strcspn(r->at, quote == '"' ? "\"\\\n\r" : "'\\\n\r");
    if (r->at[n] != quote)
        return malformed(r, "a string without escapes, closed on its line");
    snprintf(out, cap, "%.*s", (int)n, r->at);
    r->at += n + 1;
    return 0;
}

static int parse_descr(struct reader *r, npy_array *a)
{
    char descr[32];

    if (accept(r, '['))
        return fail(&r->to, "structured type; want one of <f4 <f2 <f8 |b1 <i4 <i8");
    if (parse_string(r, descr, sizeof descr))
        return -1;
    for (int t = 0; t < N_TYPES; t++) {
        if (!strcmp(descr, types[t].descr)) {
            a->type = (npy_type)t;
            return 0;
        }
        if (descr[0] == '>' && !strcmp(descr + 1, types[t].descr + 1))
            return fail(&r->to, "big-endian type %s; save array.astype('%s')", descr,
                        types[t].descr);
    }
    return fail(&r->to, "type '%s'; want one of <f4 <f2 <f8 |b1 <i4 <i8", descr);
}

static int parse_order(struct reader *r, npy_array *a)
{
    (void)a;
    if (accept(r, 'T') && !strncmp(r->at, "rue", 3))
        return fail(&r->to, "Fortran order; save numpy.ascontiguousarray(array)");
    if (!accept(r, 'F') || strncmp(r->at, "alse", 4))
        return malformed(r, "True or False");
    r->at += 4;
    return 0;
}

static int parse_size(struct reader *r, int64_t *size)
{
    if (accept(r, '-'))
        return fail(&r->to, "negative dimension in the shape");
    size_t n = strspn(r->at, "0123456789");
    if (n == 0 || (n > 1 && *r->at == '0'))
        return malformed(r, "a number");
    errno = 0;
    long long value = strtoll(r->at, NULL, 10);
    if (errno == ERANGE)
        return fail(&r->to, "a dimension of %zu digits does not fit into 64 bits", n);
    *size = value;
    r->at += n;
    if (r->version < 3 && *r->at == 'L') /* as Python 2 wrote long numbers */
        r->at++;
    return 0;
}

/* (), (3,), (3, 4) or (3, 4,); but (3) is a number, not a tuple. */
static int parse_shape(struct reader *r, npy_array *a)
{
    bool comma = true;

    if (!accept(r, '('))
        return malformed(r, "a tuple");
    while (!accept(r, ')')) {
        if (!comma)
            return malformed(r, "',' or ')'");
        if (a->rank == MAX_RANK)
            return fail(&r->to, "more than %d dimensions", MAX_RANK);
        if (parse_size(r, &a->shape[a->rank++]))
            return -1;
        comma = accept(r, ',');
    }
    return a->rank == 1 && !comma ? malformed(r, "',' after the only dimension") : 0;
}

static int parse_header(struct reader *r, npy_array *a)
{
    static const struct {
        const char *name;
        int (*parse)(struct reader *, npy_array *);
    } keys[] = {
        { "descr", parse_descr },
        { "fortran_order", parse_order },
        { "shape", parse_shape },
    };
    bool seen[3] = { false }, comma = true;
    char key[32];
    int k;

    if (!accept(r, '{'))
        return malformed(r, "'{'");
    while (!accept(r, '}')) {
        if (!comma)
            return malformed(r, "',' or '}'");
        if (parse_string(r, key, sizeof key))
            return -1;
        for (k = 0; k < 3 && strcmp(key, keys[k].name); k++)
            ;
        if (k == 3)
            return fail(&r->to, "header has an unknown key '%s'", key);
        if (seen[k])
            return fail(&r->to, "header has the key '%s' twice", key);
        if (!accept(r, ':'))
            return malformed(r, "':'");
        if (keys[k].parse(r, a))
            return -1;
        seen[k] = true;
        comma = accept(r, ',');
    }
    if (!accept(r, '\0'))
        return malformed(r, "nothing after the dictionary");
    for (k = 0; k < 3; k++)
        if (!seen[k])
            return fail(&r->to, "header has no key '%s'", keys[k].name);
    return 0;
}

static int read_exact(struct reader *r, void *to, size_t n, const char *what)
{
    if (fread(to, 1, n, r->file) == n)
        return 0;
    if (ferror(r->file))
        return fail(&r->to, "cannot read: %s", strerror(errno));
    return fail(&r->to, "ends inside its %s; truncated, or no .npy file", what);
}

static int read_header(struct reader *r)
{
    static const unsigned char magic[6] = "\x93NUMPY";
    unsigned char start[8], length[4] = { 0 };

    if (read_exact(r, start, sizeof start, "first 8 bytes"))
        return -1;
    if (memcmp(start, magic, sizeof magic))
        return fail(&r->to, "no .npy file: it does not start with \\x93NUMPY");
    r->version = start[6];
    if (r->version < 1 || r->version > 3 || start[7] != 0)
        return fail(&r->to, ".npy version %d.%d; want 1.0, 2.0 or 3.0", start[6], start[7]);
    if (read_exact(r, length, r->version == 1 ? 2 : 4, "header length"))
        return -1;
    size_t n = length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16 |
               (size_t)length[3] << 24;
    if (n > MAX_HEADER)
        return fail(&r->to, "header of %zu bytes; want at most %d", n, MAX_HEADER);
    if (read_exact(r, r->header, n, "header"))
        return -1;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)r->header[i];
        if ((c < ' ' && (c == '\0' || !strchr("\t\r\n", c))) || c > '~')
            return fail(&r->to, "header byte %zu is 0x%02x, not ASCII text", i, c);
    }
    if (n == 0 || r->header[n - 1] != '\n')
        return fail(&r->to, "header does not end with a newline");
    r->header[n] = '\0';
    r->at = r->header;
    return 0;
}

/* Memory grows with what has really come, not with what the header promises. */
static int read_data(struct reader *r, npy_array *a)
{
    size_t got = 0, room = FIRST_READ;
    struct stat st;
    int fd = fileno(r->file);

    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > FIRST_READ)
        room = (size_t)st.st_size;
    for (;;) {
        room = room < a->bytes ? room : a->bytes;
        void *grown = alloc_aligned(room);
        if (!grown)
            return fail(&r->to, "no memory for %zu bytes", room);
        if (got)
            memcpy(grown, a->data, got);
        free(a->data);
        a->data = grown;
        got += fread((char *)a->data + got, 1, room - got, r->file);
        if (got < room || room == a->bytes)
            break;
        room *= 2;
    }
    bool more = got == a->bytes && fgetc(r->file) != EOF;
    if (ferror(r->file))
        return fail(&r->to, "cannot read: %s", strerror(errno));
    if (got < a->bytes)
        return fail(&r->to, "holds %zu bytes of data, its shape needs %zu", got, a->bytes);
    if (more)
        return fail(&r->to, "goes on after the %zu bytes of data its shape needs",
                    a->bytes);
    return 0;
}

int npy_parse(FILE *file, const char *name, npy_array *out, char *err, size_t cap)
{
    struct reader r = { .to = { name, err, cap }, .file = file };
    npy_array a = { 0 };

    *out = a;
    if (read_header(&r) || parse_header(&r, &a))
        return -1;
    if (!size_of(a.type, a.rank, a.shape, &a.bytes))
        return fail(&r.to, "its shape is too large for this machine's memory");
    if (read_data(&r, &a)) {
        npy_free(&a);
        return -1;
    }
    *out = a;
    return 0;
}

int npy_load(const char *path, npy_array *out, char *err, size_t cap)
{
    const struct report to = { path, err, cap };
    FILE *file = fopen(path, "rb");

    *out = (npy_array){ 0 };
    if (!file)
        return fail(&to, "cannot open: %s", strerror(errno));
    int failed = npy_parse(file, path, out, err, cap);
    fclose(file);
    return failed;
}

/* As numpy.save: room for the first dimension to grow to 21 characters, then
 * spaces up to a newline just before a multiple of 64. Returns the length. */
static size_t format_header(const npy_array *a, char header[256])
{
    char shape[4 * 24] = "";
    int n = 0, first = 0;

    for (int i = 0; i < a->rank; i++) {
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%lld", i ? ", " : "",
                      (long long)a->shape[i]);
        first = i ? first : 21 - n;
    }
    n = snprintf(header + 10, 246,
                 "{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }%*s",
                 types[a->type].descr, shape, a->rank == 1 ? "," : "", first, "");
    size_t end = ((size_t)n + 11) / ALIGN * ALIGN + ALIGN;
    memset(header + 10 + n, ' ', end - 10 - (size_t)n);
    header[end - 1] = '\n';
    memcpy(header, "\x93NUMPY\x01", 8);
    header[8] = (char)((end - 10) & 0xff);
    header[9] = (char)((end - 10) >> 8);
    return end;
}

/* Closes the file in any case. */
static int write_array(const struct report *to, FILE *file, const npy_array *a)
{
    char header[256];
    size_t n = format_header(a, header);
    bool good = fwrite(header, 1, n, file) == n &&
                (!a->bytes || fwrite(a->data, 1, a->bytes, file) == a->bytes) &&
                fflush(file) == 0;
    int why = errno;

    if (fclose(file) != 0 && good) {
        good = false;
        why = errno;
    }
    return good ? 0 : fail(to, "cannot write %zu bytes: %s", n + a->bytes, strerror(why));
}

/* One file on its way: written beside its path, to be renamed. */
struct pending {
    struct report to;
    char *beside; /* NULL: nothing to rename */
};

/* `old` is the file to replace, NULL if there is none. */
static int write_beside(struct pending *p, const struct stat *old, const npy_array *a)
{
    const struct report *to = &p->to;
    size_t cap = strlen(to->name) + 48;
    FILE *file = NULL;
    int fd = -1;

    if (!(p->beside = malloc(cap)))
        return fail(to, "no memory");
    errno = EEXIST;
    for (int i = 0; i < 1000 && fd < 0 && errno == EEXIST; i++) {
        snprintf(p->beside, cap, "%s.%ld-%d.tmp", to->name, (long)getpid(), i);
        fd = open(p->beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    if (fd < 0) {
        fail(to, "cannot create %s: %s", p->beside, strerror(errno));
        free(p->beside);
        p->beside = NULL;
        return -1;
    }
    if (old)
        (void)fchmod(fd, old->st_mode & 0777); /* some file systems have no modes */
    if ((file = fdopen(fd, "wb")))
        return write_array(to, file, a);
    fail(to, "cannot write: %s", strerror(errno));
    close(fd);
    return -1;
}

/* Regular files are written beside their path; with `direct` the others are written. */
static int write_one(struct pending *p, const npy_array *a, bool direct)
{
    const struct report *to = &p->to;
    struct stat st;
    size_t bytes;

    if ((unsigned)a->type >= N_TYPES || a->rank < 0 || a->rank > MAX_RANK ||
        !size_of(a->type, a->rank, a->shape, &bytes) || bytes != a->bytes ||
        (bytes && !a->data))
        return fail(to, "not written: type, shape, data and bytes of the array disagree");
    bool there = lstat(to->name, &st) == 0;
    bool regular = there && S_ISREG(st.st_mode);
    if (direct == (!there || regular))
        return 0;
    if (regular && access(to->name, W_OK) != 0) /* renaming would not ask */
        return fail(to, "cannot write: %s", strerror(errno));
    if (!direct)
        return write_beside(p, there ? &st : NULL, a);
    FILE *file = fopen(to->name, "wb");
    return file ? write_array(to, file, a) : fail(to, "cannot open: %s", strerror(errno));
}

int npy_save_all(const npy_output outputs[], int n, char *err, size_t cap)
{
    struct pending all[NPY_MOST_OUTPUTS] = { 0 };
    int failed = 0;

    assert(n <= NPY_MOST_OUTPUTS);
    for (int i = 0; i < n; i++)
        all[i].to = (struct report){ outputs[i].path, err, cap };
    for (int i = 0; i < n && !failed; i++)
        failed = write_one(&all[i], outputs[i].array, true);
    for (int i = 0; i < n && !failed; i++)
        failed = write_one(&all[i], outputs[i].array, false);
    for (int i = 0; i < n && !failed; i++) {
        struct pending *p = &all[i];
        if (!p->beside)
            continue;
        if (rename(p->beside, p->to.name) != 0) {
            failed = fail(&p->to, "cannot rename %s: %s", p->beside, strerror(errno));
            break;
        }
        free(p->beside);
        p->beside = NULL;
    }
    for (int i = 0; i < n; i++) {
        if (all[i].beside)
            unlink(all[i].beside);
        free(all[i].beside);
    }
    return failed;
}

int npy_save(const char *path, const npy_array *array, char *err, size_t cap)
{
    const npy_output one = { path, array };

    return npy_save_all(&one, 1, err, cap);
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* x / 2^n, to the nearest integer, ties to even; 1 <= n <= 31. */
static uint32_t shift_round(uint32_t x, unsigned n)
{
    uint32_t q = x >> n, rest = x & ((1u << n) - 1), half = 1u << (n - 1);
    return q + (rest > half || (rest == half && (q & 1)));
}

float npy_half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, x = half & 0x7fff;

    if (x >= 0x7c00) /* Inf, NaN */
        return float_of(sign | 0x7f800000 | (x & 0x3ff) << 13);
    if (x >= 0x0400)
        return float_of(sign | ((x << 13) + (112u << 23))); /* bias 127 - 15 */
    return float_of(sign | bits_of((float)x * 0x1p-24f));   /* exact */
}

uint16_t npy_float_to_half(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, x = bits & 0x7fffffff;

    if (x > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (x >> 13 & 0x1ff));
    if (x >= 0x477ff000) /* 65520, half way past the largest */
        return (uint16_t)(sign | 0x7c00);
    if (x >= 0x38800000) /* 2^-14, the smallest normal one */
        return (uint16_t)(sign | shift_round(x - (112u << 23), 13));
    unsigned n = 126 - (x >> 23); /* to units of 2^-24 */
    return (uint16_t)(sign | (n > 24 ? 0 : shift_round((x & 0x7fffff) | 0x800000, n)));
}

float npy_bf16_to_float(uint16_t bf16)
{
    return float_of((uint32_t)bf16 << 16);
}

uint16_t npy_float_to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return (uint16_t)(nan ? bits >> 16 | 0x0040 : shift_round(bits, 16));
}
