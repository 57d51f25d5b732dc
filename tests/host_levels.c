/* SPDX-License-Identifier: MIT */
/* tests/host_levels.c: the tiled kernels of every instruction level that this processor
 * runs, not of the best alone: forward and backward, against the plain loops. */
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/size.h"
#include "host/softmax.h"
#include "plan/plan.h"

static const char *const levels[] = { "generic", "sse2", "neon", "avx2", "avx512" };

enum { N_LEVELS = sizeof levels / sizeof levels[0] };

/* A problem's tensors: contiguous, f32. */
typedef struct arrays {
    attn_problem p;
    attn_args args;
    float *of[32];
    int n;
    unsigned char *mask;
} arrays;

static float *make(arrays *x, attn_tensor *t, int64_t b, int64_t h, int64_t l, int64_t d)
{
    float *data = calloc((size_t)(b * h * l * d) + 1, sizeof *data);

    assert_non_null(data);
    for (int64_t i = 0; i < b * h * l * d; i++)
        data[i] = sinf((float)i * 1.3f + (float)x->n);
    *t = attn_tensor_bhld(data, ATTN_F32, b, h, l, d);
    x->of[x->n++] = data;
    return data;
}

static void make_all(arrays *x, const char *text)
{
    const attn_problem *p = &x->p;
    attn_args *a = &x->args;

    memset(x, 0, sizeof *x);
    check_ok(attn_problem_parse(&x->p, text));
    a->dropout_seed = UINT64_C(0x123456789abcdef0);
    a->dropout_offset = UINT64_C(0xfedcba9876543210);
    make(x, &a->q, p->b, p->hq, p->lq, p->d);
    make(x, &a->k, p->b, p->hkv, p->lk, p->d);
    make(x, &a->v, p->b, p->hkv, p->lk, p->dv);
    make(x, &a->o, p->b, p->hq, p->lq, p->dv);
    make(x, &a->lse, p->b, p->hq, p->lq, 1);
    make(x, &a->grad_o, p->b, p->hq, p->lq, p->dv);
    make(x, &a->grad_lse, p->b, p->hq, p->lq, 1);
    make(x, &a->grad_q, p->b, p->hq, p->lq, p->d);
    make(x, &a->grad_k, p->b, p->hkv, p->lk, p->d);
    make(x, &a->grad_v, p->b, p->hkv, p->lk, p->dv);
    if (p->features & ATTN_FEAT_BIAS) {
        make(x, &a->bias, p->b, p->hq, p->lq, p->lk);
        make(x, &a->grad_bias, p->b, p->hq, p->lq, p->lk);
    }
    if (p->features & ATTN_FEAT_ALIBI)
        make(x, &a->alibi, p->b, p->hq, 1, 1);
    if (p->features & ATTN_FEAT_MASK) {
        const int64_t n = p->b * p->hq * p->lq * p->lk;

        x->mask = calloc((size_t)n + 1, 1);
        for (int64_t i = 0; i < n; i++)
            x->mask[i] = i % 5 != 2 && i / p->lk % p->lq != 3;
        a->mask = attn_tensor_bhld(x->mask, ATTN_BOOL, p->b, p->hq, p->lq, p->lk);
    }
}

static void free_all(arrays *x)
{
    for (int i = 0; i < x->n; i++)
        free(x->of[i]);
    free(x->mask);
}

/* Plans a variant for a level and runs one of its functions. */
static void run(const arrays *x, attn_pass pass, const char *variant,
                const attn_host_level *level, attn_host_softmax_fn *fn)
{
    const attn_caps caps = { .kind = ATTN_DEVICE_HOST,
                             .compute_units = 3,
                             .fast_bytes = 1 << 18,
                             .max_group = 1,
                             .subgroup = level->panel,
                             .vector_width = level->lanes };
    const attn_target target = { .backend = "host",
                                 .caps = caps,
                                 .variants = attn_variants_for("host", &caps) };
    const attn_options named = { .size = sizeof named, .variant = variant };
    const bool causal = x->p.features & ATTN_FEAT_CAUSAL;
    attn_problem p = x->p;
    attn_choice c;
    attn_host_softmax s;
    void *workspace = NULL;

    p.pass = pass;
    p.grad = pass == ATTN_PASS_BWD ? p.grad : 0;
    check_ok(attn_choose(&p, &target, &named, &c));
    assert_int_equal(posix_memalign(&workspace, 64, (size_t)c.workspace_bytes + 64), 0);
    memset(workspace, 0xff, (size_t)c.workspace_bytes); /* NaN */
    s = (attn_host_softmax){ .t = x->args,
                             .type = ATTN_F32,
                             .batch = p.b,
                             .heads_q = p.hq,
                             .heads_kv = p.hkv,
                             .dim_qk = p.d,
                             .dim_v = p.dv,
                             .len_q = p.lq,
                             .len_kv = p.lk,
                             .align_br = (p.features & ATTN_FEAT_ALIGN_BR) != 0,
                             .left = ATTN_UNBOUNDED,
                             .right = causal ? 0 : ATTN_UNBOUNDED,
                             .scale = p.scale,
                             .softcap = p.softcap,
                             .dropout = p.dropout,
                             .tile_q = c.step[0].tile_q,
                             .tile_k = c.step[0].tile_k,
                             .threads = 3,
                             .workspace = workspace,
                             .scratch_bytes = (size_t)c.step[0].scratch_bytes };
    fn(&s);
    free(workspace);
}

static void compare(const char *level, const char *text, const char *what,
                    const attn_tensor *have, const attn_tensor *want)
{
    const int64_t n = have->size[0] * have->size[1] * have->size[2] * have->size[3];
    double error = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        const double x = (double)((float *)have->data)[i],
                     y = (double)((float *)want->data)[i];
        error += x == y ? 0 : (x - y) * (x - y);
        size += isfinite(y) ? y * y : 0;
    }
    if (!(sqrt(error) <= 1e-5 * sqrt(size) + 1e-12))
        fail_msg("%s, %s: %s is off by %g of %g", level, text, what, sqrt(error),
                 sqrt(size));
}

static void every_level(void **state)
{
    static const char *const texts[] = {
        "softmax_bwd:f32,b1,hq2,hkv1,lq130,lk150,d64,grad=q+k+v",
        "softmax_bwd:f32,b2,hq2,hkv2,lq37,lk70,d17,dv9,causal,align=br,grad=q+k+v",
        "softmax_bwd:f32,b1,hq3,hkv1,lq65,lk49,d16,softcap=2,bias=f32,mask,alibi,"
        "grad=q+k+v+bias",
        "softmax_bwd:f32,b1,hq1,hkv1,lq1,lk33,d8,causal,grad=q+k+v",
        "softmax_bwd:f32,b2,hq4,hkv2,lq130,lk150,d16,causal,align=br,softcap=2,"
        "dropout=0.3,grad=q+k+v",
    };

    (void)state;
    for (size_t y = 0; y < sizeof texts / sizeof texts[0]; y++)
        for (int i = 0; i < N_LEVELS; i++) {
            const attn_host_level *level = attn_host_level_find(levels[i]);
            arrays want, have;

            if (!level)
                continue;
            make_all(&want, texts[y]);
            make_all(&have, texts[y]);
            run(&want, ATTN_PASS_FWD, "softmax_fwd_reference", level,
                attn_host_softmax_fwd_reference);
            run(&have, ATTN_PASS_FWD, "softmax_fwd_tile", level, level->softmax_fwd_tile);
            compare(levels[i], texts[y], "o", &have.args.o, &want.args.o);
            compare(levels[i], texts[y], "lse", &have.args.lse, &want.args.lse);
            run(&want, ATTN_PASS_BWD, "softmax_bwd_reference", level,
                attn_host_softmax_bwd_reference);
            run(&have, ATTN_PASS_BWD, "softmax_bwd_tile", level, level->softmax_bwd_tile);
            compare(levels[i], texts[y], "grad_q", &have.args.grad_q, &want.args.grad_q);
            compare(levels[i], texts[y], "grad_k", &have.args.grad_k, &want.args.grad_k);
            compare(levels[i], texts[y], "grad_v", &have.args.grad_v, &want.args.grad_v);
            if (want.args.grad_bias.type != ATTN_TYPE_NONE)
                compare(levels[i], texts[y], "grad_bias", &have.args.grad_bias,
                        &want.args.grad_bias);
            free_all(&want);
            free_all(&have);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_level) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
