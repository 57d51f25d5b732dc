/* SPDX-License-Identifier: MIT */
/* tests/fault.c: the devices, and a problem with all of its tensors, for faults_*.c. */
#define _GNU_SOURCE
#include "tests/fault.h"
#include "tests/wanted.h"

#include <sys/mman.h>

#include "src/core/float16.h"

attn_ctx *fault_ctx[MAX_DEVICES];
attn_device_info fault_device[MAX_DEVICES];
size_t fault_devices;
subject fault_oracle;

int fault_open(void)
{
    if (attn_device_list(fault_device, MAX_DEVICES, &fault_devices) != ATTN_OK)
        return 1;
    for (size_t d = 0; d < fault_devices; d++)
        if (attn_ctx_create(fault_device[d].selector, &fault_ctx[d]) != ATTN_OK) {
            fprintf(stderr, "%s: %s\n", fault_device[d].selector, attn_last_error());
            return 1;
        }
    fault_oracle =
        (subject){ fault_ctx[fault_devices - 1], &fault_device[fault_devices - 1],
                   "softmax_fwd_reference", 0 };
    return 0;
}

int fault_close(int result)
{
    for (size_t d = 0; d < fault_devices; d++)
        attn_ctx_destroy(&fault_ctx[d]);
    return result;
}

void on_each(const char *problem, fault_fn *fn)
{
    attn_softmax_desc desc;

    check_ok(attn_softmax_parse(problem, &desc));
    for (size_t d = 0; d < fault_devices; d++) {
        attn_variant_info list[MAX_VARIANTS];
        size_t n = 0;

        check_ok(attn_softmax_variants(fault_ctx[d], &desc, list, MAX_VARIANTS, &n));
        for (size_t i = 0; i < n; i++)
            if (list[i].applicable && wanted(&fault_device[d], list[i].name))
                fn(&(subject){ fault_ctx[d], &fault_device[d], list[i].name,
                               list[i].traits });
    }
}

bool takes(const subject *who, const char *problem)
{
    attn_softmax_desc desc;
    attn_variant_info list[MAX_VARIANTS];
    size_t n = 0;

    check_ok(attn_softmax_parse(problem, &desc));
    check_ok(attn_softmax_variants(who->ctx, &desc, list, MAX_VARIANTS, &n));
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i].name, who->variant))
            return list[i].applicable;
    return false;
}

float poison(const subject *who)
{
    return who->traits & ATTN_TRAIT_FINITE_V ? 10000 : NAN;
}

bool rounds_scores(const trial *t)
{
    return (t->who->traits & ATTN_TRAIT_ROUNDED) && t->desc.type != ATTN_F32;
}

void fill(float *x, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
}

static void *zeros(int64_t n, size_t bytes)
{
    void *x = calloc((size_t)(n ? n : 1), bytes);

    assert_non_null(x);
    return x;
}

void *sparse(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (at == MAP_FAILED) {
        print_message("no address space for %zu bytes: skipped\n", bytes);
        skip();
    }
    return at;
}

float *floats(int64_t n)
{
    float *x = zeros(n, sizeof *x);

    for (int64_t i = 0; i < n; i++)
        x[i] = sinf((float)i * 1.7f + (float)n);
    return x;
}

static int32_t *integers(attn_tensor *t, int64_t n, int64_t first, int64_t step)
{
    int32_t *x = zeros(n, sizeof *x);

    for (int64_t i = 0; i < n; i++)
        x[i] = (int32_t)(first + i * step);
    *t = attn_tensor_vector(x, ATTN_I32, n);
    return x;
}

static void make_terms(trial *t)
{
    const attn_softmax_desc *d = &t->desc;
    attn_args *a = &t->args;

    t->nbias = d->batch * d->heads_q * d->len_q * d->len_kv;
    if (d->use & ATTN_USE_BIAS) {
        t->bias = zeros(t->nbias, sizeof *t->bias);
        a->bias = attn_tensor_bhld(t->bias, d->type_bias, d->batch, d->heads_q, d->len_q,
                                   d->len_kv);
    }
    if (d->use & ATTN_USE_MASK) {
        t->mask = zeros(t->nbias, 1);
        memset(t->mask, 1, (size_t)t->nbias);
        a->mask =
            attn_tensor_bhld(t->mask, ATTN_BOOL, d->batch, d->heads_q, d->len_q, d->len_kv);
    }
    if (d->use & ATTN_USE_ALIBI) {
        t->alibi = zeros(d->heads_q, sizeof *t->alibi);
        for (int64_t h = 0; h < d->heads_q; h++)
            t->alibi[h] = ldexpf(1, -(int)h - 1);
        a->alibi = attn_tensor_bhld(t->alibi, ATTN_F32, 1, d->heads_q, 1, 1);
    }
    if (d->use & ATTN_USE_SINKS) {
        t->sinks = zeros(d->heads_q, sizeof *t->sinks);
        a->sinks = attn_tensor_bhld(t->sinks, ATTN_F32, 1, d->heads_q, 1, 1);
    }
}

static void make_integers(trial *t)
{
    const attn_softmax_desc *d = &t->desc;
    const int64_t b = d->batch;
    attn_args *a = &t->args;

    if (d->use & ATTN_USE_LENS_Q)
        t->lens_q = integers(&a->lens_q, b, d->len_q, 0);
    if (d->use & ATTN_USE_LENS_KV)
        t->lens_kv = integers(&a->lens_kv, b, d->len_kv, 0);
    if (d->use & ATTN_USE_OFFSETS)
        t->offsets = integers(&a->offsets, b, 0, 0);
    if (d->use & ATTN_USE_PACKED_Q)
        t->cu_q = integers(&a->cu_q, b + 1, 0, d->len_q);
    if (d->use & ATTN_USE_PACKED_K)
        t->cu_k = integers(&a->cu_k, b + 1, 0, d->len_kv);
    if (d->use & ATTN_USE_PAGES) {
        t->table = integers(&a->block_table, b * t->blocks, 0, 1);
        a->block_table = attn_tensor_bhld(t->table, ATTN_I32, b, t->blocks, 1, 1);
    }
}

void trial_make(trial *t, const subject *who, const char *problem)
{
    attn_softmax_desc *d = &t->desc;
    attn_args *a = &t->args;
    int64_t dv, bq, lq, bk, lk;

    memset(t, 0, sizeof *t);
    check_ok(attn_softmax_parse(problem, d));
    t->who = who;
    t->options = (attn_options){ .size = sizeof t->options, .variant = who->variant };
    snprintf(t->name, sizeof t->name, "%s %s %s", who->device->selector, who->variant,
             problem);
    dv = d->dim_v ? d->dim_v : d->dim_qk;
    bq = d->use & ATTN_USE_PACKED_Q ? 1 : d->batch;
    lq = d->use & ATTN_USE_PACKED_Q ? d->batch * d->len_q : d->len_q;
    bk = d->use & ATTN_USE_PACKED_K ? 1 : d->batch;
    lk = d->use & ATTN_USE_PACKED_K ? d->batch * d->len_kv : d->len_kv;
    if (d->use & ATTN_USE_PAGES) {
        t->blocks = (d->len_kv + d->page_size - 1) / d->page_size;
        bk = d->batch * t->blocks;
        lk = d->page_size;
    }
    t->nq = bq * d->heads_q * lq * d->dim_qk;
    t->nk = bk * d->heads_kv * lk * d->dim_qk;
    t->nv = bk * d->heads_kv * lk * dv;
    t->no = bq * d->heads_q * lq * dv;
    t->nlse = bq * d->heads_q * lq;
    t->q = floats(t->nq);
    t->k = floats(t->nk);
    t->v = floats(t->nv);
    t->o = floats(t->no);
    t->lse = floats(t->nlse);
    *a = (attn_args){ .size = sizeof *a };
    a->q = attn_tensor_bhld(t->q, d->type, bq, d->heads_q, lq, d->dim_qk);
    a->k = attn_tensor_bhld(t->k, d->type, bk, d->heads_kv, lk, d->dim_qk);
    a->v = attn_tensor_bhld(t->v, d->type, bk, d->heads_kv, lk, dv);
    a->o = attn_tensor_bhld(t->o, d->type, bq, d->heads_q, lq, dv);
    a->lse = attn_tensor_bhld(t->lse, ATTN_F32, bq, d->heads_q, lq, 1);
    make_terms(t);
    make_integers(t);
}

void trial_free(trial *t)
{
    float *const of_floats[] = {
        t->q, t->k, t->v, t->o, t->lse, t->bias, t->alibi, t->sinks
    };
    int32_t *const of_integers[] = { t->lens_q, t->lens_kv, t->offsets,
                                     t->cu_q,   t->cu_k,    t->table };

    for (size_t i = 0; i < sizeof of_floats / sizeof of_floats[0]; i++)
        free(of_floats[i]);
    for (size_t i = 0; i < sizeof of_integers / sizeof of_integers[0]; i++)
        free(of_integers[i]);
    free(t->mask);
}

static void to_16(void *to, const float *from, int64_t n, attn_type type)
{
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)to)[i] =
            type == ATTN_F16 ? attn_f16_from_f32(from[i]) : attn_bf16_from_f32(from[i]);
}

/* Runs a call whose o lies at `o`. */
static void run_call(trial *t, const subject *who, attn_args a, float *o)
{
    const bool is_16 = t->desc.type != ATTN_F32,
               bias_16 = t->bias && a.bias.type != ATTN_F32;
    attn_options options = t->options;
    uint16_t *copy[5] = { NULL };

    options.variant = who->variant;
    if (!strcmp(who->variant, fault_oracle.variant))
        options.splits = 0; /* it makes no pieces */
    if (is_16) {
        const int64_t n[4] = { t->nq, t->nk, t->nv, t->no };
        float *const from[4] = { t->q, t->k, t->v, o };
        attn_tensor *const to[4] = { &a.q, &a.k, &a.v, &a.o };

        for (int i = 0; i < 4; i++) {
            copy[i] = zeros(n[i], sizeof *copy[i]);
            to_16(copy[i], from[i], n[i], t->desc.type);
            to[i]->data = copy[i];
        }
    }
    if (bias_16) {
        copy[4] = zeros(t->nbias, sizeof *copy[4]);
        to_16(copy[4], t->bias, t->nbias, a.bias.type);
        a.bias.data = copy[4];
    }
    if (attn_softmax_forward_host_args(who->ctx, &t->desc, &options, &a) != ATTN_OK)
        fail_msg("%s, by %s: %s", t->name, who->variant, attn_last_error());
    for (int64_t i = 0; is_16 && i < t->no; i++)
        o[i] = t->desc.type == ATTN_F16 ? attn_f32_from_f16(copy[3][i])
                                        : attn_f32_from_bf16(copy[3][i]);
    for (int i = 0; i < 5; i++)
        free(copy[i]);
}

attn_tensor fault_upload(attn_ctx *ctx, const attn_tensor *host)
{
    const int64_t n = host->size[0] * host->size[1] * host->size[2] * host->size[3];
    const size_t bytes = (size_t)n * attn_type_bytes(host->type);
    attn_tensor t = *host;

    t.data = NULL;
    check_ok(attn_memory_alloc(ctx, bytes, &t.data));
    check_ok(attn_memory_upload(ctx, t.data, 0, host->data, bytes));
    return t;
}

void trial_run(trial *t)
{
    if (!t->keep) {
        fill(t->o, t->no, NAN);
        fill(t->lse, t->nlse, NAN);
    }
    run_call(t, t->who, t->args, t->o);
}

void near(const trial *t, const char *what, int64_t i, double have, double want,
          double tolerance)
{
    if (!(fabs(have - want) <= tolerance) && !(isinf(want) && have == want) &&
        !(isnan(want) && isnan(have)))
        fail_msg("%s: %s[%lld] = %.9g, want %.9g", t->name, what, (long long)i, have, want);
}

void row_is_empty(const trial *t, int64_t row, float lse)
{
    const int64_t dv = t->desc.dim_v ? t->desc.dim_v : t->desc.dim_qk;

    if (t->lse[row] != lse && (t->lse[row] == t->lse[row] || lse == lse))
        fail_msg("%s: lse[%lld] = %.9g, want exactly %.9g", t->name, (long long)row,
                 (double)t->lse[row], (double)lse);
    for (int64_t e = row * dv; e < (row + 1) * dv; e++)
        near(t, "o", e, t->o[e], 0, 0);
}

double trial_tolerance(const trial *t, double largest_score)
{
    const double norm = t->desc.type == ATTN_F32   ? 2e-6
                        : t->desc.type == ATTN_F16 ? 1e-3
                                                   : 8e-3;
    const double step = t->desc.type == ATTN_F16 ? 0x1p-10 : 0x1p-7;

    return 8 * norm + 4 * 0x1p-24 * largest_score +
           (rounds_scores(t) ? 4 * step * fmax(1, largest_score) : 0);
}

void trial_compare_to(const trial *t, const float *want_o, const float *want_lse)
{
    const int64_t dv = t->no && t->nlse ? t->no / t->nlse : 0;
    double largest = 0, score = 0, tolerance;

    for (int64_t i = 0; i < t->nlse; i++)
        if (isfinite(want_lse[i]))
            score = fmax(score, fabs((double)want_lse[i]));
    for (int64_t i = 0; i < t->no; i++)
        if (isfinite(want_o[i]))
            largest = fmax(largest, fabs((double)want_o[i]));
    tolerance = trial_tolerance(t, score);
    for (int64_t i = 0; i < t->nlse; i++) {
        const bool nothing = want_lse[i] == -INFINITY;

        if (isnan(want_lse[i])) { /* belongs to no query: as it was, by bytes or NaN */
            if (!isnan(t->lse[i]))
                fail_msg("%s: lse[%lld] was written", t->name, (long long)i);
        } else {
            near(t, "lse", i, t->lse[i], want_lse[i],
                 nothing ? 0 : fmax(1e-5, 1e-5 * fabs((double)want_lse[i])) + tolerance);
        }
        for (int64_t e = i * dv; e < (i + 1) * dv; e++)
            if (isnan(want_o[e]) != isnan(t->o[e]))
                fail_msg("%s: o[%lld] = %g, want %g", t->name, (long long)e,
                         (double)t->o[e], (double)want_o[e]);
            else if (!isnan(want_o[e]))
                near(t, "o", e, t->o[e], want_o[e],
                     nothing ? 0 : tolerance * largest + 1e-30);
    }
}

void trial_compare(trial *t)
{
    float *o = floats(t->no), *lse = floats(t->nlse);
    attn_args a = t->args;

    trial_run(t);
    fill(o, t->no, NAN);
    fill(lse, t->nlse, NAN);
    a.o.data = o;
    a.lse.data = lse;
    run_call(t, &fault_oracle, a, o);
    trial_compare_to(t, o, lse);
    free(o);
    free(lse);
}
