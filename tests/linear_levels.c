/* SPDX-License-Identifier: MIT */
/* tests/linear_levels.c: the vector kernels of linear attention of every instruction level
 * that this processor runs, in poisoned workspaces, against the plain loops; any number of
 * threads and of columns gives the same bits. */
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "host/linear_level.h"
#include "host/softmax.h"
#include "plan/plan.h"

static const char *const levels[] = { "generic", "sse2", "neon", "avx2", "avx512" };

enum { N_LEVELS = sizeof levels / sizeof levels[0], GUARD = 256, MOST = 16 };

/* A problem's tensors: contiguous, f32. */
typedef struct arrays {
    attn_problem p;
    attn_args args;
    float *of[MOST];
    int n;
} arrays;

static void make(arrays *x, attn_tensor *t, int64_t b, int64_t h, int64_t l, int64_t d)
{
    float *data = calloc((size_t)(b * h * l * d) + 1, sizeof *data);

    assert_non_null(data);
    assert_true(x->n < MOST);
    for (int64_t i = 0; i < b * h * l * d; i++)
        data[i] = sinf((float)i * 1.3f + (float)x->n);
    *t = attn_tensor_bhld(data, ATTN_F32, b, h, l, d);
    x->of[x->n++] = data;
}

static void make_all(arrays *x, const char *text)
{
    const attn_problem *p = &x->p;
    attn_args *a = &x->args;

    memset(x, 0, sizeof *x);
    check_ok(attn_problem_parse(&x->p, text));
    make(x, &a->q, p->b, p->hq, p->lq, p->d);
    make(x, &a->k, p->b, p->hkv, p->lk, p->d);
    make(x, &a->v, p->b, p->hkv, p->lk, p->dv);
    make(x, &a->o, p->b, p->hq, p->lq, p->dv);
    make(x, &a->state_in, p->b, p->hkv, p->d, p->dv);
    make(x, &a->z_in, p->b, p->hkv, p->d, 1);
    make(x, &a->den, p->b, p->hq, p->lq, 1);
    if (p->pass == ATTN_PASS_FWD) {
        make(x, &a->state_out, p->b, p->hkv, p->d, p->dv);
        make(x, &a->z_out, p->b, p->hkv, p->d, 1);
        if (p->features & ATTN_FEAT_DECAY)
            make(x, &a->decay, p->b, p->hkv, p->lk, p->d);
        if (p->features & ATTN_FEAT_BETA)
            make(x, &a->beta, p->b, p->hkv, p->lk, 1);
        return;
    }
    make(x, &a->grad_o, p->b, p->hq, p->lq, p->dv);
    make(x, &a->grad_state_out, p->b, p->hkv, p->d, p->dv);
    make(x, &a->grad_z_out, p->b, p->hkv, p->d, 1);
    make(x, &a->grad_q, p->b, p->hq, p->lq, p->d);
    make(x, &a->grad_k, p->b, p->hkv, p->lk, p->d);
    make(x, &a->grad_v, p->b, p->hkv, p->lk, p->dv);
    make(x, &a->grad_state_in, p->b, p->hkv, p->d, p->dv);
    make(x, &a->grad_z_in, p->b, p->hkv, p->d, 1);
}

static void free_all(arrays *x)
{
    for (int i = 0; i < x->n; i++)
        free(x->of[i]);
}

/* Plans a variant for a level and runs one of its functions. */
static void run(const arrays *x, const char *variant, const attn_host_level *level,
                int threads, attn_host_linear_fn *fn)
{
    const attn_caps caps = { .kind = ATTN_DEVICE_HOST,
                             .compute_units = threads,
                             .fast_bytes = 1 << 18,
                             .max_group = 1,
                             .subgroup = level->panel,
                             .vector_width = level->lanes };
    const attn_target target = { .backend = "host",
                                 .caps = caps,
                                 .variants = attn_variants_for("host", &caps) };
    const attn_options named = { .size = sizeof named, .variant = variant };
    const attn_problem *p = &x->p;
    unsigned char *guard;
    attn_choice c;
    attn_host_linear s;
    attn_sums sums;
    void *workspace = NULL;

    check_ok(attn_choose(p, &target, &named, &c));
    assert_int_equal(posix_memalign(&workspace, 64, (size_t)c.workspace_bytes + GUARD), 0);
    memset(workspace, 0xff, (size_t)c.workspace_bytes + GUARD); /* NaN */
    sums = attn_problem_sums(p);
    s = (attn_host_linear){ .t = x->args,
                            .type = ATTN_F32,
                            .batch = p->b,
                            .heads_q = p->hq,
                            .heads_kv = p->hkv,
                            .dim_qk = p->d,
                            .dim_v = p->dv,
                            .len_q = p->lq,
                            .len_kv = p->lk,
                            .phi = p->phi,
                            .rule = p->rule,
                            .causal = (p->features & ATTN_FEAT_CAUSAL) != 0,
                            .normalize = (p->features & ATTN_FEAT_NORMALIZE) != 0,
                            .scale = p->scale,
                            .eps = p->eps,
                            .sum_scale = sums.scale,
                            .sum_eps = sums.eps,
                            .sum_unit = sums.unit,
                            .tile = c.step[0].tile_q,
                            .columns = c.step[0].columns,
                            .threads = threads,
                            .workspace = workspace,
                            .scratch_bytes = (size_t)c.step[0].scratch_bytes };
    fn(&s);
    guard = (unsigned char *)workspace + c.workspace_bytes;
    for (int i = 0; i < GUARD; i++)
        if (guard[i] != 0xff)
            fail_msg("%s writes byte %d behind its workspace", c.variant->name, i);
    free(workspace);
}

typedef struct output {
    const char *name;
    size_t at;
} output;

#define AT(field)                          \
    {                                      \
#field, offsetof(attn_args, field) \
    }

static const output outputs[2][5] = {
    { AT(o), AT(den), AT(state_out), AT(z_out), AT(z_out) },
    { AT(grad_q), AT(grad_k), AT(grad_v), AT(grad_state_in), AT(grad_z_in) },
};

static const attn_tensor *tensor(const arrays *x, int i)
{
    const size_t at = outputs[x->p.pass][i].at;
    return (const attn_tensor *)(const void *)((const char *)&x->args + at);
}

static int64_t count(const attn_tensor *t)
{
    return t->size[0] * t->size[1] * t->size[2] * t->size[3];
}

static void compare(const char *level, const char *text, const arrays *have,
                    const arrays *want)
{
    for (int k = 0; k < 5; k++) {
        const attn_tensor *a = tensor(have, k), *b = tensor(want, k);
        double error = 0, size = 0;

        for (int64_t i = 0; i < count(a); i++) {
            const double x = (double)((float *)a->data)[i],
                         y = (double)((float *)b->data)[i];
            error += (x - y) * (x - y);
            size += y * y;
        }
        if (!(sqrt(error) <= 1e-5 * sqrt(size) + 1e-12))
            fail_msg("%s, %s: %s is off by %g of %g", level, text,
                     outputs[have->p.pass][k].name, sqrt(error), sqrt(size));
    }
}

static void compare_bits(const char *level, const char *text, const arrays *have,
                         const arrays *want)
{
    for (int k = 0; k < 5; k++)
        if (memcmp(tensor(have, k)->data, tensor(want, k)->data,
                   (size_t)count(tensor(have, k)) * sizeof(float)) != 0)
            fail_msg("%s, %s: %s differs with another number of threads", level, text,
                     outputs[have->p.pass][k].name);
}

static void on_level(const char *text, const char *variant, const char *reference,
                     const attn_host_level *level, attn_host_linear_fn *fn,
                     attn_host_linear_fn *truth)
{
    arrays want, have, again;

    make_all(&want, text);
    make_all(&have, text);
    make_all(&again, text);
    run(&want, reference, level, 3, truth);
    run(&have, variant, level, 1, fn);
    run(&again, variant, level, 16, fn); /* many units: narrow ones */
    compare(level->name, text, &have, &want);
    compare_bits(level->name, text, &again, &have);
    free_all(&want);
    free_all(&have);
    free_all(&again);
}

static void every_level(void **state)
{
    static const char *const texts[] = {
        "linear_fwd:f32,b1,hq2,hkv1,lq130,lk150,d64,dv96,causal,phi=elu1,normalize,state,"
        "den",
        "linear_fwd:f32,b2,hq2,hkv2,lq37,lk70,d17,dv9,phi=elu1,normalize,state,den",
        "linear_fwd:f32,b1,hq3,hkv1,lq65,lk49,d16,dv130,causal,phi=relu,normalize,eps=1,"
        "state,den",
        "linear_bwd:f32,b1,hq2,hkv1,lq130,lk150,d64,dv96,causal,phi=elu1,normalize,state,"
        "grad=q+k+v+state",
        "linear_bwd:f32,b2,hq2,hkv2,lq37,lk70,d17,dv9,phi=elu1,normalize,state,"
        "grad=q+k+v+state",
        "linear_bwd:f32,b1,hq3,hkv1,lq65,lk49,d130,dv16,causal,phi=relu,normalize,state,"
        "grad=q+k+v+state",
    };

    (void)state;
    for (size_t y = 0; y < sizeof texts / sizeof texts[0]; y++)
        for (int i = 0; i < N_LEVELS; i++) {
            const attn_host_level *level = attn_host_level_find(levels[i]);

            if (!level)
                continue;
            if (!strncmp(texts[y], "linear_bwd", 10)) {
                on_level(texts[y], "linear_bwd_chunk", "linear_bwd_reference", level,
                         level->linear_bwd_chunk, attn_host_linear_bwd_reference);
                continue;
            }
            on_level(texts[y], "linear_fwd_chunk", "linear_fwd_reference", level,
                     level->linear_fwd_chunk, attn_host_linear_fwd_reference);
            on_level(texts[y], "linear_fwd_recurrent", "linear_fwd_reference", level,
                     level->linear_fwd_recurrent, attn_host_linear_fwd_reference);
        }
}

static void rules_on_every_level(void **state)
{
    static const char *const texts[] = {
        "linear_fwd:f32,b1,hq2,hkv1,lq40,lk40,d16,dv80,causal,normalize,eps=300,"
        "rule=gated,decay=f32,state,den",
    };

    (void)state;
    for (size_t y = 0; y < sizeof texts / sizeof texts[0]; y++)
        for (int i = 0; i < N_LEVELS; i++) {
            const attn_host_level *level = attn_host_level_find(levels[i]);

            if (level)
                on_level(texts[y], "linear_fwd_recurrent", "linear_fwd_reference", level,
                         level->linear_fwd_recurrent, attn_host_linear_fwd_reference);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_level),
                                        cmocka_unit_test(rules_on_every_level) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
