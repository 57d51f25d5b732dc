/* SPDX-License-Identifier: MIT */
/* tests/merge.c: results over parts of the keys, merged, against the whole; on all devices. */
#include "tests/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

#include "src/core/float16.h"

enum { B = 2, H = 4, LQ = 3, LK = 56, D = 16, DV = 21, MAX_DEVICES = 16, MOST_PARTS = 8 };
enum { ROWS = B * H * LQ, N = ROWS * DV };

static attn_device_info devices[MAX_DEVICES];
static size_t n_devices;
static attn_ctx *contexts[MAX_DEVICES];

/* The whole, and up to MOST_PARTS parts of it, by the host. */
typedef struct fixture {
    float q[B * H * LQ * D], k[B * H * LK * D], v[B * H * LK * DV];
    float o[N], lse[ROWS];
    float part_o[MOST_PARTS][N], part_lse[MOST_PARTS][ROWS];
    attn_tensor t_o[MOST_PARTS], t_lse[MOST_PARTS];
    float have_o[N], have_lse[ROWS];
    attn_merge_args args;
} fixture;

static fixture f;

static attn_tensor o_of(void *data, attn_type type)
{
    return attn_tensor_bhld(data, type, B, H, LQ, DV);
}

static attn_tensor lse_of(float *data)
{
    return attn_tensor_bhld(data, ATTN_F32, B, H, LQ, 1);
}

/* Keys first .. end - 1. */
static void attend(attn_ctx *host, int64_t first, int64_t end, float *o, float *lse)
{
    const attn_softmax_desc desc = { .size = sizeof desc,
                                     .type = ATTN_F32,
                                     .batch = B,
                                     .heads_q = H,
                                     .heads_kv = H,
                                     .len_q = LQ,
                                     .len_kv = end - first,
                                     .dim_qk = D,
                                     .dim_v = DV,
                                     .use = ATTN_USE_LSE };
    attn_args args = { .size = sizeof args,
                       .q = attn_tensor_bhld(f.q, ATTN_F32, B, H, LQ, D),
                       .k = attn_tensor_bhld(f.k, ATTN_F32, B, H, LK, D),
                       .v = attn_tensor_bhld(f.v, ATTN_F32, B, H, LK, DV),
                       .o = o_of(o, ATTN_F32),
                       .lse = lse_of(lse) };

    args.k.size[2] = args.v.size[2] = end - first;
    args.k.offset = first * D;
    args.v.offset = first * DV;
    check_ok(attn_softmax_forward_host_args(host, &desc, NULL, &args));
}

/* The fixture with n parts of equal length. */
static void make(int n)
{
    attn_ctx *host = NULL;

    memset(&f, 0, sizeof f);
    for (int i = 0; i < B * H * LQ * D; i++)
        f.q[i] = 3 * sinf((float)i);
    for (int i = 0; i < B * H * LK * D; i++)
        f.k[i] = cosf(1.3f * (float)i);
    for (int i = 0; i < B * H * LK * DV; i++)
        f.v[i] = sinf(0.7f * (float)i);
    check_ok(attn_ctx_create("host", &host));
    attend(host, 0, LK, f.o, f.lse);
    for (int p = 0; p < n; p++) {
        attend(host, (int64_t)LK * p / n, (int64_t)LK * (p + 1) / n, f.part_o[p],
               f.part_lse[p]);
        f.t_o[p] = o_of(f.part_o[p], ATTN_F32);
        f.t_lse[p] = lse_of(f.part_lse[p]);
    }
    attn_ctx_destroy(&host);
    f.args = (attn_merge_args){ .size = sizeof f.args,
                                .n_parts = n,
                                .part_o = f.t_o,
                                .part_lse = f.t_lse,
                                .o = o_of(f.have_o, ATTN_F32),
                                .lse = lse_of(f.have_lse) };
}

static void check_near(const float *have, const float *want, int n, float tolerance,
                       const char *what)
{
    for (int i = 0; i < n; i++)
        if (!(have[i] == want[i] ||
              fabsf(have[i] - want[i]) <= tolerance * (1 + fabsf(want[i]))))
            fail_msg("%s[%d] = %g, want %g", what, i, (double)have[i], (double)want[i]);
}

static void check_whole(float tolerance)
{
    check_near(f.have_o, f.o, N, tolerance, "o");
    check_near(f.have_lse, f.lse, ROWS, 1e-6f, "lse");
}

static void poison(void)
{
    memset(f.have_o, 0xff, sizeof f.have_o);
    memset(f.have_lse, 0xff, sizeof f.have_lse);
}

static void parts_make_the_whole(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST_PARTS; n++)
        for (size_t d = 0; d < n_devices; d++) {
            make(n);
            poison();
            check_ok(attn_merge_host(contexts[d], &f.args));
            check_whole(2e-6f);
        }
}

static void one_part_stays_as_it_is(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        make(1);
        poison();
        check_ok(attn_merge_host(contexts[d], &f.args));
        assert_memory_equal(f.have_o, f.part_o[0], sizeof f.have_o);
        check_near(f.have_lse, f.part_lse[0], ROWS, 0, "lse");
    }
}

/* Every other row of one part, and all rows of another, saw no key. */
static void empty_parts_are_not_read(void **state)
{
    (void)state;
    for (int empty = 0; empty < 3; empty++)
        for (size_t d = 0; d < n_devices; d++) {
            make(2);
            f.args.n_parts = 3;
            f.t_o[2] = o_of(f.part_o[2], ATTN_F32);
            f.t_lse[2] = lse_of(f.part_lse[2]);
            memcpy(f.part_o[2], f.part_o[empty], sizeof f.part_o[2]);
            memcpy(f.part_lse[2], f.part_lse[empty], sizeof f.part_lse[2]);
            for (int i = 0; i < N; i++)
                f.part_o[empty][i] = i % 2 ? NAN : INFINITY;
            for (int i = 0; i < ROWS; i++)
                f.part_lse[empty][i] = -INFINITY;
            poison();
            check_ok(attn_merge_host(contexts[d], &f.args));
            check_whole(2e-6f);
        }
}

static void all_empty_is_nothing(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        make(4);
        for (int p = 0; p < 4; p++)
            for (int i = 0; i < ROWS; i += 2) {
                f.part_lse[p][i] = -INFINITY;
                for (int c = 0; c < DV; c++)
                    f.part_o[p][i * DV + c] = NAN;
            }
        poison();
        check_ok(attn_merge_host(contexts[d], &f.args));
        for (int i = 0; i < ROWS; i += 2) {
            assert_true(f.have_lse[i] == -INFINITY);
            for (int c = 0; c < DV; c++) {
                assert_true(f.have_o[i * DV + c] == 0);
                f.have_o[i * DV + c] = f.o[i * DV + c];
            }
            f.have_lse[i] = f.lse[i];
        }
        check_whole(2e-6f);
    }
}

static void a_nan_spoils_its_row_only(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        make(3);
        f.part_lse[1][5] = NAN;
        poison();
        check_ok(attn_merge_host(contexts[d], &f.args));
        assert_true(isnan(f.have_lse[5]) && isnan(f.have_o[5 * DV]));
        f.have_lse[5] = f.lse[5];
        memcpy(f.have_o + 5 * DV, f.o + 5 * DV, DV * sizeof f.o[0]);
        check_whole(2e-6f);
    }
}

/* LSEs so far apart that one part is all there is; and of any size. */
static void weights_far_apart(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        make(3);
        for (int i = 0; i < ROWS; i++) {
            f.part_lse[0][i] = -3e38f;
            f.part_lse[1][i] = 1e30f;
            f.part_lse[2][i] = -200;
        }
        f.part_o[0][0] = INFINITY;
        f.part_o[2][1] = NAN;
        poison();
        check_ok(attn_merge_host(contexts[d], &f.args));
        assert_memory_equal(f.have_o, f.part_o[1], sizeof f.have_o);
        check_near(f.have_lse, f.part_lse[1], ROWS, 0, "lse");
    }
}

/* As of a sink of +inf, whatever comes before and behind. */
static void an_infinite_lse_takes_all(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++)
        for (int n = 1; n <= 3; n++)
            for (int at = 0; at < n; at++) {
                make(n);
                for (int i = 0; i < ROWS; i++)
                    f.part_lse[at][i] = INFINITY;
                poison();
                check_ok(attn_merge_host(contexts[d], &f.args));
                check_near(f.have_o, f.part_o[at], N, 0, "o");
                check_near(f.have_lse, f.part_lse[at], ROWS, 0, "lse");
            }
}

/* A mean of finite parts is finite: weights are divided before they multiply. */
static void a_mean_stays_in_range(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        make(5);
        for (int p = 0; p < 5; p++) {
            for (int i = 0; i < ROWS; i++)
                f.part_lse[p][i] = 0;
            for (int i = 0; i < N; i++)
                f.part_o[p][i] = 3e38f;
        }
        poison();
        check_ok(attn_merge_host(contexts[d], &f.args));
        check_near(f.have_o, f.part_o[0], N, 1e-6f, "o");
    }
}

static void types_may_differ(void **state)
{
    static uint16_t half[2][N], out[N];

    (void)state;
    for (size_t d = 0; d < n_devices; d++)
        for (int type = 0; type < 2; type++) {
            make(3); /* f16, bf16 and f32 parts */
            for (int i = 0; i < N; i++) {
                half[0][i] = attn_f16_from_f32(f.part_o[0][i]);
                half[1][i] = attn_bf16_from_f32(f.part_o[1][i]);
            }
            f.t_o[0] = o_of(half[0], ATTN_F16);
            f.t_o[1] = o_of(half[1], ATTN_BF16);
            poison();
            check_ok(attn_merge_host(contexts[d], &f.args));
            check_whole(5e-3f);

            f.args.o = o_of(out, type ? ATTN_BF16 : ATTN_F16);
            check_ok(attn_merge_host(contexts[d], &f.args));
            for (int i = 0; i < N; i++)
                f.have_o[i] = type ? attn_f32_from_bf16(out[i]) : attn_f32_from_f16(out[i]);
            check_whole(8e-3f);
        }
}

/* [B, L, H, D] with gaps, transposed LSEs; gaps stay as they are. */
static void strided_views(void **state)
{
    enum { PITCH = DV + 3, AT = 5 };
    static float part[2][B * LQ * H * PITCH + AT], o[B * LQ * H * PITCH + AT];
    static float lse[ROWS * 2];
    const int64_t size[4] = { B, H, LQ, DV };
    const int64_t stride[4] = { LQ * H * PITCH, PITCH, H * PITCH, 1 };
    const int64_t rows[4] = { B, H, LQ, 1 }, transposed[4] = { 2, 2 * B, 2 * B * H, 1 };

    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        make(2);
        for (size_t i = 0; i < sizeof o / sizeof o[0]; i++)
            o[i] = 77;
        for (size_t i = 0; i < sizeof lse / sizeof lse[0]; i++)
            lse[i] = 77;
        for (int p = 0; p < 2; p++) {
            for (int i = 0; i < N; i++) {
                const int c = i % DV, l = i / DV % LQ, h = i / DV / LQ % H;
                const int b = i / DV / LQ / H;
                part[p][AT + ((b * LQ + l) * H + h) * PITCH + c] = f.part_o[p][i];
            }
            f.t_o[p] = attn_tensor_strided(part[p], ATTN_F32, size, stride);
            f.t_o[p].offset = AT;
        }
        f.args.o = attn_tensor_strided(o, ATTN_F32, size, stride);
        f.args.o.offset = AT;
        f.args.lse = attn_tensor_strided(lse, ATTN_F32, rows, transposed);
        check_ok(attn_merge_host(contexts[d], &f.args));
        for (int i = 0; i < N; i++) {
            const int c = i % DV, l = i / DV % LQ, h = i / DV / LQ % H;
            const int b = i / DV / LQ / H;
            float *at = &o[AT + ((b * LQ + l) * H + h) * PITCH + c];

            f.have_o[i] = *at;
            f.have_lse[i / DV] = lse[2 * (b + B * (h + H * l))];
            *at = 77;
        }
        check_whole(2e-6f);
        for (size_t i = 0; i < sizeof o / sizeof o[0]; i++)
            assert_true(o[i] == 77);
        for (size_t i = 1; i < sizeof lse / sizeof lse[0]; i += 2)
            assert_true(lse[i] == 77);
    }
}

static void outputs_may_be_left_out(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        make(3);
        poison();
        f.args.o.type = ATTN_TYPE_NONE;
        f.args.part_o = NULL;
        check_ok(attn_merge_host(contexts[d], &f.args));
        check_near(f.have_lse, f.lse, ROWS, 1e-6f, "lse");
        f.args.lse.type = ATTN_TYPE_NONE;
        check_ok(attn_merge_host(contexts[d], &f.args));

        make(3);
        poison();
        f.args.lse.type = ATTN_TYPE_NONE;
        check_ok(attn_merge_host(contexts[d], &f.args));
        check_near(f.have_o, f.o, N, 2e-6f, "o");
    }
}

static void no_rows_succeed(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        make(2);
        f.args.o.size[2] = f.args.lse.size[2] = 0;
        for (int p = 0; p < 2; p++)
            f.t_o[p].size[2] = f.t_lse[p].size[2] = 0;
        check_ok(attn_merge_host(contexts[d], &f.args));
        check_ok(attn_merge(contexts[d], &f.args, NULL));
    }
}

/* What is left is the LSE; of parts of each type alone. */
static void no_columns_succeed(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3 * n_devices; i++) {
        make(3);
        poison();
        f.args.o = attn_tensor_bhld(NULL, (attn_type)(ATTN_F32 + i % 3), B, H, LQ, 0);
        f.t_o[0] = f.t_o[1] = f.t_o[2] = f.args.o;
        check_ok(attn_merge_host(contexts[i / 3], &f.args));
        check_near(f.have_lse, f.lse, ROWS, 1e-6f, "lse");
    }
}

/* The fixture's tensors in memory of the device, with some to spare. */
static void to_device(attn_ctx *ctx, attn_tensor *t, int n)
{
    const void *data = t->data;

    check_ok(attn_memory_alloc(ctx, (size_t)n * 2 * sizeof(float), &t->data));
    check_ok(attn_memory_upload(ctx, t->data, 0, data, (size_t)n * sizeof(float)));
}

static void free_all(attn_ctx *ctx, int n_parts)
{
    for (int p = 0; p < n_parts; p++) {
        attn_memory_free(ctx, &f.t_o[p].data);
        attn_memory_free(ctx, &f.t_lse[p].data);
    }
    attn_memory_free(ctx, &f.args.o.data);
    attn_memory_free(ctx, &f.args.lse.data);
    attn_memory_free(ctx, &f.args.workspace);
}

/* Workspaces in which a part lies, and where memory has addresses, one between two
 * multiples of 64. */
static void refused_workspaces(attn_ctx *ctx, bool addresses)
{
    char *const mine = f.args.workspace;

    f.args.workspace = f.t_o[3].data;
    check_error(attn_merge(ctx, &f.args, NULL), ATTN_ERR_INVALID, "part 3");
    if (addresses) {
        f.args.workspace = (char *)f.t_o[3].data + 64;
        check_error(attn_merge(ctx, &f.args, NULL), ATTN_ERR_INVALID, "part 3");
        f.args.workspace = mine + 4;
        check_error(attn_merge(ctx, &f.args, NULL), ATTN_ERR_WORKSPACE, "multiple of 64");
    }
    f.args.workspace = mine;
}

static void device_memory(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        attn_ctx *ctx = contexts[d];
        float first[N];

        make(7);
        poison();
        for (int p = 0; p < 7; p++) {
            to_device(ctx, &f.t_o[p], N);
            to_device(ctx, &f.t_lse[p], ROWS);
        }
        to_device(ctx, &f.args.o, N);
        to_device(ctx, &f.args.lse, ROWS);
        f.args.workspace_bytes = attn_merge_workspace_bytes(ctx, &f.args);
        assert_true((f.args.workspace_bytes == 0) == !strcmp(devices[d].selector, "host"));
        if (f.args.workspace_bytes)
            check_error(attn_merge(ctx, &f.args, NULL), ATTN_ERR_WORKSPACE, "workspace");
        check_ok(attn_memory_alloc(ctx, f.args.workspace_bytes + 64, &f.args.workspace));
        for (int turn = 0; turn < 2; turn++) {
            check_ok(attn_merge(ctx, &f.args, NULL));
            check_ok(attn_memory_download(ctx, f.have_o, f.args.o.data, 0, sizeof f.o));
            check_ok(
                attn_memory_download(ctx, f.have_lse, f.args.lse.data, 0, sizeof f.lse));
            check_whole(2e-6f);
            if (turn)
                assert_memory_equal(first, f.have_o, sizeof first);
            memcpy(first, f.have_o, sizeof first);
        }
        if (f.args.workspace_bytes)
            refused_workspaces(ctx, !strncmp(devices[d].selector, "cuda", 4));
        free_all(ctx, 7);
    }
}

static float block[3 + 2 * N];

/* Place of element i of a contiguous [B, H, LQ, cols] tensor in a block that has it as
 * [LQ, H, B, cols], every other element. */
static int place(int i, int cols)
{
    const int c = i % cols, l = i / cols % LQ, h = i / cols / LQ % H, b = i / cols / LQ / H;

    return 3 + 2 * (((l * H + h) * B + b) * cols + c);
}

/* Moves the fixture's tensor into such a block of the device, with 0x77 in its gaps. */
static void to_strided(attn_ctx *ctx, attn_tensor *t)
{
    const int cols = (int)t->size[3];
    const int64_t stride[4] = { 2 * cols, 2 * cols * B, 2 * cols * B * H, 2 };
    const float *from = t->data;

    memset(block, 0x77, sizeof block);
    for (int i = 0; i < ROWS * cols; i++)
        block[place(i, cols)] = from[i];
    check_ok(attn_memory_alloc(ctx, sizeof block, &t->data));
    check_ok(attn_memory_upload(ctx, t->data, 0, block, sizeof block));
    memcpy(t->stride, stride, sizeof stride);
    t->offset = 3;
}

static void from_strided(attn_ctx *ctx, const attn_tensor *t, float *to)
{
    const int cols = (int)t->size[3];

    check_ok(attn_memory_download(ctx, block, t->data, 0, sizeof block));
    for (int i = 0; i < ROWS * cols; i++) {
        to[i] = block[place(i, cols)];
        block[place(i, cols)] = block[0];
    }
    for (int i = 1; i < 3 + 2 * N; i++)
        assert_memory_equal(&block[i], &block[0], sizeof block[0]);
}

/* attn_merge_host() gives a device contiguous copies; these are not. */
static void strided_device_memory(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        attn_ctx *ctx = contexts[d];

        make(3);
        for (int p = 0; p < 3; p++) {
            to_strided(ctx, &f.t_o[p]);
            to_strided(ctx, &f.t_lse[p]);
        }
        to_strided(ctx, &f.args.o);
        to_strided(ctx, &f.args.lse);
        f.args.workspace_bytes = attn_merge_workspace_bytes(ctx, &f.args);
        check_ok(attn_memory_alloc(ctx, f.args.workspace_bytes, &f.args.workspace));
        check_ok(attn_merge(ctx, &f.args, NULL));
        from_strided(ctx, &f.args.o, f.have_o);
        from_strided(ctx, &f.args.lse, f.have_lse);
        check_whole(2e-6f);
        free_all(ctx, 3);
    }
}

/* Changes one thing in a good call. */
#define REFUSED(change, says)                                                       \
    do {                                                                            \
        make(2);                                                                    \
        change;                                                                     \
        check_error(attn_merge_host(contexts[d], &f.args), ATTN_ERR_INVALID, says); \
    } while (0)

static void what_breaks_a_rule_is_refused(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        REFUSED(f.args.n_parts = 0, "n_parts = 0");
        REFUSED(f.args.n_parts = -1, "n_parts = -1");
        REFUSED(f.args.size = 3, "args.size = 3");
        REFUSED(f.args.part_lse = NULL, "part_lse is NULL");
        REFUSED(f.args.part_o = NULL, "part_o is NULL");
        REFUSED(f.t_o[1].size[2] = LQ - 1, "part_o[1].size[2]");
        REFUSED(f.t_o[1].size[3] = DV - 1, "part_o[1].size[3]");
        REFUSED(f.t_lse[1].size[0] = 1, "part_lse[1].size[0]");
        REFUSED(f.t_lse[1].type = ATTN_F16, "part_lse[1].type");
        REFUSED(f.t_o[0].type = ATTN_I32, "part_o[0].type");
        REFUSED(f.args.o.type = ATTN_BOOL, "o.type");
        REFUSED(f.args.o.type = (attn_type)77, "o.type = 77, want f32");
        REFUSED(f.args.lse.type = ATTN_BF16, "lse.type");
        REFUSED(f.args.lse.size[1] = 1, "lse.size[1]");
        REFUSED(f.args.o.data = NULL, "o.data is NULL");
        REFUSED(f.t_lse[0].data = NULL, "part_lse[0].data is NULL");
        REFUSED(f.args.o.stride[2] = 0, "o has strides");
        REFUSED(f.args.o.data = f.part_o[1], "o overlaps part_o[1]");
        REFUSED(f.args.lse.data = f.part_lse[0], "lse overlaps part_lse[0]");
        REFUSED(f.args.lse.data = f.have_o, "o overlaps lse");
        REFUSED(f.t_o[0].data_bytes = 64, "part_o[0] reaches byte");
    }
    check_error(attn_merge_host(NULL, &f.args), ATTN_ERR_INVALID, "ctx is NULL");
    check_error(attn_merge(NULL, &f.args, NULL), ATTN_ERR_INVALID, "ctx is NULL");
    check_error(attn_merge(contexts[0], NULL, NULL), ATTN_ERR_INVALID, "args is NULL");
    assert_int_equal(attn_merge_workspace_bytes(NULL, &f.args), 0);
}

static int open_devices(void **state)
{
    (void)state;
    if (attn_device_list(devices, MAX_DEVICES, &n_devices) != ATTN_OK)
        return -1;
    n_devices = n_devices < MAX_DEVICES ? n_devices : MAX_DEVICES;
    for (size_t d = 0; d < n_devices; d++)
        if (attn_ctx_create(devices[d].selector, &contexts[d]) != ATTN_OK)
            return -1;
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++)
        attn_ctx_destroy(&contexts[d]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_make_the_whole),
        cmocka_unit_test(one_part_stays_as_it_is),
        cmocka_unit_test(empty_parts_are_not_read),
        cmocka_unit_test(all_empty_is_nothing),
        cmocka_unit_test(a_nan_spoils_its_row_only),
        cmocka_unit_test(weights_far_apart),
        cmocka_unit_test(an_infinite_lse_takes_all),
        cmocka_unit_test(a_mean_stays_in_range),
        cmocka_unit_test(types_may_differ),
        cmocka_unit_test(strided_views),
        cmocka_unit_test(outputs_may_be_left_out),
        cmocka_unit_test(no_rows_succeed),
        cmocka_unit_test(no_columns_succeed),
        cmocka_unit_test(device_memory),
        cmocka_unit_test(strided_device_memory),
        cmocka_unit_test(what_breaks_a_rule_is_refused),
    };

    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
