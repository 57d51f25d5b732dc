/* SPDX-License-Identifier: MIT */
/* tests/faults_ragged.c: lengths, packed sequences, pages, and the same call again: bits,
 * threads, new numbers in device memory (H ragged, K pages, N determinism). */
#include "tests/fault.h"

#include <pthread.h>

/* The bits of `value`, which no kernel writes. */
static const float MARK = -123.25f;

static void mark_outputs(trial *t)
{
    t->keep = true;
    fill(t->o, t->no, MARK);
    fill(t->lse, t->nlse, MARK);
}

/* Token `i` of each head of packed outputs keeps its mark. */
static void token_is_untouched(const trial *t, int64_t i)
{
    const int64_t tokens = t->args.o.size[2], dv = t->args.o.size[3];

    for (int64_t h = 0; h < t->desc.heads_q; h++) {
        near(t, "lse past the end", h * tokens + i, t->lse[h * tokens + i], MARK, 0);
        for (int64_t e = 0; e < dv; e++)
            near(t, "o past the end", (h * tokens + i) * dv + e,
                 t->o[(h * tokens + i) * dv + e], MARK, 0);
    }
}

/* Each sequence of a packed problem against the oracle on that sequence alone. */
static void check_sequences(const trial *t, const char *plain_features)
{
    const attn_softmax_desc *d = &t->desc;
    const int64_t qt = t->args.q.size[2], kt = t->args.k.size[2], dim = d->dim_qk;

    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t q0 = t->cu_q[b], lq = t->cu_q[b + 1] - q0;
        const int64_t k0 = t->cu_k[b], lk = t->cu_k[b + 1] - k0;
        char problem[NAME_BYTES];
        trial one;

        snprintf(problem, sizeof problem,
                 "softmax_fwd:f32,b1,hq%d,hkv%d,lq%d,lk%d,d%d%s,lse", (int)d->heads_q,
                 (int)d->heads_kv, (int)lq, (int)lk, (int)dim, plain_features);
        trial_make(&one, &fault_oracle, problem);
        for (int64_t h = 0; h < d->heads_q; h++)
            memcpy(one.q + h * lq * dim, t->q + (h * qt + q0) * dim,
                   (size_t)(lq * dim) * sizeof *t->q);
        for (int64_t h = 0; h < d->heads_kv; h++) {
            memcpy(one.k + h * lk * dim, t->k + (h * kt + k0) * dim,
                   (size_t)(lk * dim) * sizeof *t->k);
            memcpy(one.v + h * lk * dim, t->v + (h * kt + k0) * dim,
                   (size_t)(lk * dim) * sizeof *t->v);
        }
        trial_run(&one);
        for (int64_t h = 0; h < d->heads_q; h++)
            for (int64_t i = 0; i < lq; i++) {
                const int64_t at = h * qt + q0 + i, from = h * lq + i;
                near(t, "lse", at, t->lse[at], one.lse[from],
                     isfinite(one.lse[from]) ? 3e-5 : 0);
                for (int64_t e = 0; e < dim; e++)
                    near(t, "o", at * dim + e, t->o[at * dim + e], one.o[from * dim + e],
                         isfinite(one.lse[from]) ? 1e-5 : 0);
            }
        trial_free(&one);
    }
}

/* H2, H3: sequences of unequal lengths, also 0; tokens in front of the first and behind
 * the last keep what was in the buffer. */
static void packed_sequences(const subject *who)
{
    static const char *const features[] = { "", ",causal,align=br",
                                            ",offset=2,window=3:1" };
    static const int32_t cu_q[6] = { 3, 3, 7, 8, 8, 47 }, cu_k[6] = { 0, 5, 9, 9, 12, 90 };

    for (size_t f = 0; f < sizeof features / sizeof features[0]; f++) {
        char problem[NAME_BYTES];
        trial t;

        snprintf(problem, sizeof problem,
                 "softmax_fwd:f32,b5,hq4,hkv2,lq39,lk78,d8%s,packed,lse", features[f]);
        if (!takes(who, problem))
            continue;
        trial_make(&t, who, problem);
        memcpy(t.cu_q, cu_q, sizeof cu_q);
        memcpy(t.cu_k, cu_k, sizeof cu_k);
        mark_outputs(&t);
        trial_run(&t);
        check_sequences(&t, features[f]);
        for (int64_t i = 0; i < t.args.q.size[2]; i++)
            if (i < 3 || i >= 47)
                token_is_untouched(&t, i);
        trial_free(&t);
    }
}

/* H2: the first sequence has no queries. H3: the last boundary lies before the end. */
static void packed_boundaries(const subject *who)
{
    static const int32_t cu_q[3] = { 0, 0, 4 }, cu_k[3] = { 0, 5, 9 };
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b2,hq1,hkv1,lq8,lk8,d8,packed,lse");
    memcpy(t.cu_q, cu_q, sizeof cu_q);
    memcpy(t.cu_k, cu_k, sizeof cu_k);
    mark_outputs(&t);
    trial_run(&t);
    check_sequences(&t, "");
    t.cu_q[1] = 5;
    t.cu_q[2] = 12;
    mark_outputs(&t);
    trial_run(&t);
    check_sequences(&t, "");
    for (int64_t i = 12; i < 16; i++)
        token_is_untouched(&t, i);
    trial_free(&t);
}

/* Queries packed and keys not, and the reverse; with lengths, the shorter one holds. */
static void packed_on_one_side(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b3,hq2,hkv1,lq6,lk40,d8,causal,align=br,packed=q,lse",
        "softmax_fwd:f32,b3,hq2,hkv1,lq6,lk40,d8,causal,align=br,packed=k,lse",
        "softmax_fwd:f32,b3,hq2,hkv1,lq6,lk40,d8,causal,align=br,qlens,lens,packed,lse",
    };

    for (size_t p = 0; p < 3; p++) {
        trial t;

        if (!takes(who, problems[p]))
            continue;
        trial_make(&t, who, problems[p]);
        if (t.cu_q)
            t.cu_q[1] = 1;
        if (t.cu_k)
            t.cu_k[1] = 33, t.cu_k[2] = 60;
        if (t.cu_q)
            t.cu_q[2] = 7, t.cu_q[3] = 13;
        if (t.lens_q) {
            t.lens_q[0] = 1, t.lens_q[1] = 4, t.lens_q[2] = 0;
            t.lens_kv[0] = 33, t.lens_kv[1] = 0, t.lens_kv[2] = 17;
        }
        if (t.cu_k)
            t.cu_k[3] = 100;
        t.keep = true; /* what belongs to no query stays NaN */
        fill(t.o, t.no, NAN);
        fill(t.lse, t.nlse, NAN);
        trial_compare(&t);
        trial_free(&t);
    }
}

/* Query lengths: rows past them keep their bytes; key lengths with NaN behind them. */
static void lengths(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b4,hq2,hkv1,lq20,lk70,d8,qlens,lens,lse",
        "softmax_fwd:f32,b4,hq2,hkv1,lq20,lk70,d8,causal,align=br,qlens,lens,lse",
        "softmax_fwd:f32,b4,hq2,hkv1,lq1,lk1100,d8,lens,lse",
        "softmax_fwd:f16,b4,hq2,hkv1,lq20,lk70,d8,causal,qlens,lens,sinks,lse",
    };
    static const int32_t some_q[4] = { 0, 20, 3, 17 };

    for (size_t p = 0; p < sizeof problems / sizeof problems[0]; p++) {
        trial t;

        if (!takes(who, problems[p]))
            continue;
        trial_make(&t, who, problems[p]);
        const int64_t lk = t.desc.len_kv;
        const int32_t some_k[4] = { (int32_t)lk, 0, 33, (int32_t)lk - 1 };
        memcpy(t.lens_kv, some_k, sizeof some_k);
        if (t.lens_q)
            memcpy(t.lens_q, some_q, sizeof some_q);
        for (int64_t b = 0; b < 4; b++) {
            fill(t.k + (b * lk + some_k[b]) * 8, (lk - some_k[b]) * 8, NAN);
            fill(t.v + (b * lk + some_k[b]) * 8, (lk - some_k[b]) * 8, NAN);
        }
        trial_compare(&t); /* unwritten rows are NaN in both */
        trial_free(&t);
    }
}

/* K3: a page table in any order, pages shared, everything not in use NaN. */
static void pages(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b1,hq2,hkv1,lq3,lk32,d8,lens,pages=16,lse",
        "softmax_fwd:f32,b3,hq2,hkv1,lq3,lk60,d8,causal,align=br,lens,pages=7,lse",
        "softmax_fwd:f32,b3,hq4,hkv2,lq1,lk1100,d8,lens,pages=16,lse",
        "softmax_fwd:f32,b3,hq4,hkv2,lq1,lk50,d8,lens,pages=1,lse",
        "softmax_fwd:f32,b2,hq2,hkv1,lq5,lk50,d8,lens,packed=q,pages=64,lse",
        "softmax_fwd:f16,b3,hq2,hkv2,lq3,lk60,d8,lens,bias=f32,pages=5,lse",
    };

    for (size_t p = 0; p < sizeof problems / sizeof problems[0]; p++) {
        trial t;

        if (!takes(who, problems[p]))
            continue;
        trial_make(&t, who, problems[p]);
        const int64_t size = t.desc.page_size, heads = t.desc.heads_kv, n = t.blocks;
        const int64_t all = t.desc.batch * n;
        for (int64_t i = 0; i < all; i++) /* backwards */
            t.table[i] = (int32_t)(all - 1 - i);
        for (int64_t b = 0; b < t.desc.batch; b++) {
            t.lens_kv[b] = (int32_t)(b == 0 ? 17 : t.desc.len_kv - 3 * b);
            for (int64_t j = t.lens_kv[b]; j < n * size; j++)
                for (int64_t h = 0; h < heads; h++) {
                    const int64_t row =
                        (t.table[b * n + j / size] * heads + h) * size + j % size;
                    fill(t.k + row * 8, 8, NAN);
                    fill(t.v + row * 8, 8, NAN);
                }
            for (int64_t i = (t.lens_kv[b] + size - 1) / size; i < n; i++)
                t.table[b * n + i] = i % 2 ? -1 : INT32_MAX; /* not needed, so never used */
        }
        if (t.desc.batch == 3 && t.bias == NULL) { /* batch 2 begins as batch 1 does */
            t.table[2 * n] = t.table[n];
        }
        trial_compare(&t);
        trial_free(&t);
    }
}

/* All keys lie left of every window: nothing is read of the page behind them, which the
 * status would tell. */
static void pages_out_of_sight(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b1,hq2,hkv1,lq4,lk60,d8,window=3:0,offset=200,lens,pages=10,lse",
        "softmax_fwd:f16,b1,hq2,hkv1,lq4,lk60,d8,window=3:0,offset=200,lens,pages=10,lse",
    };

    for (size_t p = 0; p < sizeof problems / sizeof problems[0]; p++) {
        int32_t status = 0;
        trial t;

        if (!takes(who, problems[p]))
            continue;
        trial_make(&t, who, problems[p]);
        t.lens_kv[0] = 50;
        t.table[5] = INT32_MAX;
        t.args.status = attn_tensor_vector(&status, ATTN_I32, 1);
        trial_run(&t);
        for (int64_t row = 0; row < t.nlse; row++)
            row_is_empty(&t, row, -INFINITY);
        assert_int_equal(status, 0);
        trial_free(&t);
    }
}

/* K1: a length for one of three batches, a table with rows too few: refused. */
static void shapes_of_integers(const subject *who)
{
    const attn_options options = { .size = sizeof options, .variant = who->variant };
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b3,hq2,hkv1,lq3,lk60,d8,lens,pages=7,lse");
    for (int i = 0; i < 4; i++) {
        attn_args a = t.args;

        if (i == 0)
            a.lens_kv.size[0] = 1;
        else if (i == 1)
            a.block_table.size[0] = 1;
        else if (i == 2)
            a.lens_kv.type = ATTN_F32;
        else
            a.k.size[2] = 8;
        check_error(attn_softmax_forward_host_args(who->ctx, &t.desc, &options, &a),
                    ATTN_ERR_INVALID,
                    i == 1   ? "block_table"
                    : i == 3 ? "k.size"
                             : "lens_kv");
    }
    t.lens_kv[1] = 61;
    check_error(attn_softmax_forward_host_args(who->ctx, &t.desc, &options, &t.args),
                ATTN_ERR_INVALID, "lens_kv[1]");
    t.lens_kv[1] = 60;
    t.table[9] = 99;
    check_error(attn_softmax_forward_host_args(who->ctx, &t.desc, &options, &t.args),
                ATTN_ERR_INVALID, "block_table[1, 0]");
    trial_free(&t);
}

typedef struct planned {
    trial *t;
    attn_plan *plan;
    attn_args args; /* on the device */
} planned;

enum { N_TENSORS = 9 };

static attn_tensor **tensors(attn_args *a, attn_tensor *list[N_TENSORS])
{
    attn_tensor *const all[N_TENSORS] = { &a->q,      &a->k,    &a->v,
                                          &a->o,      &a->lse,  &a->lens_kv,
                                          &a->lens_q, &a->cu_q, &a->cu_k };

    memcpy(list, all, sizeof all);
    return list;
}

static void planned_make(planned *p, trial *t)
{
    attn_tensor *from[N_TENSORS], *to[N_TENSORS];

    *p = (planned){ .t = t, .args = { .size = sizeof p->args } };
    check_ok(attn_plan_softmax_with(t->who->ctx, &t->desc, &t->options, &p->plan));
    tensors(&t->args, from);
    tensors(&p->args, to);
    for (int i = 0; i < N_TENSORS; i++)
        if (from[i]->type != ATTN_TYPE_NONE)
            *to[i] = fault_upload(t->who->ctx, from[i]);
    p->args.workspace_bytes = attn_plan_workspace_bytes(p->plan);
    if (p->args.workspace_bytes)
        check_ok(
            attn_memory_alloc(t->who->ctx, p->args.workspace_bytes, &p->args.workspace));
}

/* Runs with what now lies in the device's memory. */
static void planned_run(planned *p)
{
    trial *t = p->t;

    check_ok(attn_execute(p->plan, &p->args, NULL));
    check_ok(attn_ctx_wait(t->who->ctx));
    check_ok(attn_memory_download(t->who->ctx, t->o, p->args.o.data, 0,
                                  (size_t)t->no * attn_type_bytes(t->desc.type)));
    check_ok(attn_memory_download(t->who->ctx, t->lse, p->args.lse.data, 0,
                                  (size_t)t->nlse * sizeof *t->lse));
}

static void planned_free(planned *p)
{
    attn_tensor *list[N_TENSORS];

    tensors(&p->args, list);
    for (int i = 0; i < N_TENSORS; i++)
        attn_memory_free(p->t->who->ctx, &list[i]->data);
    attn_memory_free(p->t->who->ctx, &p->args.workspace);
    attn_plan_destroy(&p->plan);
}

/* N5: lengths that change in device memory between executions of one plan count. */
static void lengths_in_device_memory(const subject *who)
{
    static const int32_t lens[][2] = { { 5, 5 }, { 9, 9 }, { 1, 0 }, { 900, 3 } };
    planned p;
    trial t;

    trial_make(&t, who,
               "softmax_fwd:f32,b2,hq2,hkv1,lq2,lk900,d8,causal,align=br,lens,lse");
    planned_make(&p, &t);
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        trial want;

        check_ok(
            attn_memory_upload(who->ctx, p.args.lens_kv.data, 0, lens[i], sizeof lens[i]));
        planned_run(&p);
        trial_make(&want, &fault_oracle,
                   "softmax_fwd:f32,b2,hq2,hkv1,lq2,lk900,d8,causal,align=br,lens,lse");
        memcpy(want.lens_kv, lens[i], sizeof lens[i]);
        trial_run(&want);
        trial_compare_to(&t, want.o, want.lse);
        trial_free(&want);
    }
    planned_free(&p);
    trial_free(&t);
}

/* N1: many runs of one plan, and the row alone: the same bits. */
static void the_same_bits_each_time(const subject *who)
{
    planned p;
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b12,hq1,hkv1,lq130,lk128,d64,lse");
    for (int64_t e = 0; e < t.nq; e++)
        t.q[e] *= 3;
    planned_make(&p, &t);
    planned_run(&p);
    float *first = floats(t.no);
    memcpy(first, t.o, (size_t)t.no * sizeof *first);
    for (int i = 0; i < 20; i++) {
        planned_run(&p);
        if (memcmp(t.o, first, (size_t)t.no * sizeof *first))
            fail_msg("%s: run %d gave other bits", t.name, i);
    }
    planned_free(&p);

    trial one;
    trial_make(&one, who, "softmax_fwd:f32,b1,hq1,hkv1,lq130,lk128,d64,lse");
    memcpy(one.q, t.q + 7 * one.nq, (size_t)one.nq * sizeof *one.q);
    memcpy(one.k, t.k + 7 * one.nk, (size_t)one.nk * sizeof *one.k);
    memcpy(one.v, t.v + 7 * one.nv, (size_t)one.nv * sizeof *one.v);
    trial_run(&one);
    if (!(who->traits & ATTN_TRAIT_BY_SIZE) &&
        memcmp(one.o, first + 7 * one.no, (size_t)one.no * sizeof *one.o))
        fail_msg("%s: a batch alone has other bits than among 12", t.name);
    trial_free(&one);
    free(first);
    trial_free(&t);
}

/* N4: threads that come and go with contexts of their own. */
static void *come_and_go(void *arg)
{
    const attn_device_info *info = arg;
    uintptr_t wrong = 0;

    for (int i = 0; i < 3; i++) {
        const attn_softmax_desc d = { .size = sizeof d,
                                      .type = ATTN_F32,
                                      .batch = 1,
                                      .heads_q = 1,
                                      .heads_kv = 1,
                                      .len_q = 2,
                                      .len_kv = 3,
                                      .dim_qk = 8 };
        float q[16] = { 0 }, k[24] = { 0 }, v[24], o[16] = { 0 };
        attn_ctx *ctx = NULL;

        fill(v, 24, 3);
        wrong |= attn_ctx_create(info->selector, &ctx) != ATTN_OK ||
                 attn_softmax_forward_host(ctx, &d, q, k, v, o, NULL) != ATTN_OK;
        for (int e = 0; e < 16; e++)
            wrong |= !(fabsf(o[e] - 3) < 1e-5f);
        attn_ctx_destroy(&ctx);
    }
    return (void *)wrong;
}

static void test_threads_with_contexts_of_their_own(void **state)
{
    (void)state;
    for (size_t d = 0; d < fault_devices; d++) {
        pthread_t thread[8];
        void *wrong;

        for (int i = 0; i < 8; i++)
            assert_int_equal(
                pthread_create(&thread[i], NULL, come_and_go, &fault_device[d]), 0);
        for (int i = 0; i < 8; i++) {
            assert_int_equal(pthread_join(thread[i], &wrong), 0);
            assert_null(wrong);
        }
    }
}

EACH(packed_sequences, "softmax_fwd:f32,b5,hq4,hkv2,lq39,lk78,d8,packed,lse")
EACH(packed_boundaries, "softmax_fwd:f32,b2,hq1,hkv1,lq8,lk8,d8,packed,lse")
EACH(packed_on_one_side, "softmax_fwd:f32,b3,hq2,hkv1,lq6,lk40,d8,packed=q,lse")
EACH(lengths, "softmax_fwd:f32,b4,hq2,hkv1,lq1,lk1100,d8,lens,lse")
EACH(pages, "softmax_fwd:f32,b1,hq2,hkv1,lq3,lk32,d8,lens,pages=16,lse")
EACH(pages_out_of_sight,
     "softmax_fwd:f32,b1,hq2,hkv1,lq4,lk60,d8,window=3:0,offset=200,lens,pages=10,lse")
EACH(shapes_of_integers, "softmax_fwd:f32,b3,hq2,hkv1,lq3,lk60,d8,lens,pages=7,lse")
EACH(lengths_in_device_memory,
     "softmax_fwd:f32,b2,hq2,hkv1,lq2,lk900,d8,causal,align=br,lens,lse")
EACH(the_same_bits_each_time, "softmax_fwd:f32,b12,hq1,hkv1,lq130,lk128,d64,lse")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_sequences),
        cmocka_unit_test(test_packed_boundaries),
        cmocka_unit_test(test_packed_on_one_side),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_pages_out_of_sight),
        cmocka_unit_test(test_shapes_of_integers),
        cmocka_unit_test(test_lengths_in_device_memory),
        cmocka_unit_test(test_the_same_bits_each_time),
        cmocka_unit_test(test_threads_with_contexts_of_their_own),
    };

    return FAULTS_RUN(tests);
}
