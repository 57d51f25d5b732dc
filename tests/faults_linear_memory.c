/* SPDX-License-Identifier: MIT */
/* tests/faults_linear_memory.c: linear attention in memory of each device itself, which the
 * one-call forms pack: states that are updated in place, where every group must have read what
 * the last one writes, heads or batches further apart than 32 bits count, and lengths that
 * nobody has looked at. */
#include "tests/linear_case.h"

#include <stdlib.h>

#include "src/core/float16.h"

/* What a call may have. */
static const struct {
    const char *name;
    size_t at;
    bool typed; /* has the problem's type; else f32, but for lengths */
} places[] = {
#define PLACE(field, typed)                       \
    {                                             \
#field, offsetof(attn_args, field), typed \
    }
    PLACE(q, true),
    PLACE(k, true),
    PLACE(v, true),
    PLACE(o, true),
    PLACE(den, false),
    PLACE(state_in, false),
    PLACE(z_in, false),
    PLACE(state_out, false),
    PLACE(z_out, false),
    PLACE(decay, false),
    PLACE(beta, false),
    PLACE(lens_kv, false),
    PLACE(grad_o, true),
    PLACE(grad_state_out, false),
    PLACE(grad_z_out, false),
    PLACE(grad_q, true),
    PLACE(grad_k, true),
    PLACE(grad_v, true),
    PLACE(grad_state_in, false),
    PLACE(grad_z_in, false),
};

enum { PLACES = sizeof places / sizeof places[0], LENS = 11, NONE = -1 };

static const int64_t FAR = ((int64_t)1 << 31) + 64; /* elements */

static attn_tensor *tensor(attn_args *args, int i)
{
    return (attn_tensor *)(void *)((char *)args + places[i].at);
}

static bool is_there(attn_args *args, int i)
{
    return tensor(args, i)->type != ATTN_TYPE_NONE;
}

static int64_t count(const attn_tensor *t)
{
    return t->size[0] * t->size[1] * t->size[2] * t->size[3];
}

/* Moves a tensor's numbers between the host's array and its memory on the device, in two
 * halves where those are far apart. */
static void move(attn_ctx *ctx, const attn_tensor *host, attn_tensor *t, bool up)
{
    const bool wide = attn_type_bytes(t->type) == sizeof(float);
    const bool apart = t->stride[0] == FAR || t->stride[1] == FAR;
    const int64_t n = count(t), part = apart ? n / 2 : n;
    const size_t bytes = (size_t)part * attn_type_bytes(t->type);
    uint16_t *const narrow = calloc((size_t)n + 1, sizeof *narrow);
    float *const x = host->data;

    assert_non_null(narrow);
    for (int64_t i = 0; i < n && up && !wide; i++)
        narrow[i] =
            t->type == ATTN_F16 ? attn_f16_from_f32(x[i]) : attn_bf16_from_f32(x[i]);
    for (int64_t p = 0; p < n; p += part) {
        const size_t at = (size_t)(p ? FAR : 0) * attn_type_bytes(t->type);
        void *const from = wide ? (void *)(x + p) : (void *)(narrow + p);

        check_ok(up ? attn_memory_upload(ctx, t->data, at, from, bytes)
                    : attn_memory_download(ctx, from, t->data, at, bytes));
    }
    for (int64_t i = 0; i < n && !up && !wide; i++)
        x[i] = t->type == ATTN_F16 ? attn_f32_from_f16(narrow[i])
                                   : attn_f32_from_bf16(narrow[i]);
    free(narrow);
}

/* Runs a case there, one tensor with batches (or heads, of one batch) far apart, or the state
 * updated in place, or lengths `lens` (NULL: full ones), which mean `clamped`; and holds all
 * outputs against the formula. */
static void compare_there(const subject *who, int far, bool in_place, const int32_t *lens,
                          const int32_t *clamped)
{
    const attn_options options = { .size = sizeof options, .variant = who->variant };
    linear_comparison found = { .norm = 0 };
    attn_plan *plan = NULL;
    attn_args host, args;
    int32_t status = 0;
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    if (lens)
        memcpy(c.lens, clamped, (size_t)c.desc.batch * sizeof *lens);
    linear_case_want(&c);
    if (lens)
        memcpy(c.lens, lens, (size_t)c.desc.batch * sizeof *lens);
    host = args = c.args;
    for (int i = 0; i < PLACES; i++) {
        attn_tensor *const t = tensor(&args, i);

        if (!is_there(&args, i))
            continue;
        if (places[i].typed)
            t->type = c.desc.type;
        if (i == far)
            t->stride[c.desc.batch == 2 ? 0 : 1] = FAR;
        t->data_bytes =
            attn_type_bytes(t->type) * (size_t)(count(t) + (i == far ? FAR : 0));
        check_ok(attn_memory_alloc(who->ctx, t->data_bytes + 1, &t->data));
        move(who->ctx, tensor(&host, i), t, true);
    }
    if (in_place) {
        attn_memory_free(who->ctx, &args.state_out.data);
        args.state_out = args.state_in;
        if (args.z_out.type != ATTN_TYPE_NONE)
            attn_memory_free(who->ctx, &args.z_out.data);
        args.z_out = args.z_in;
    }
    if (lens) {
        args.status = attn_tensor_vector(NULL, ATTN_I32, 1);
        check_ok(attn_memory_alloc(who->ctx, sizeof status, &args.status.data));
        check_ok(attn_memory_upload(who->ctx, args.status.data, 0, &status, sizeof status));
    }
    check_ok(attn_plan_linear_with(who->ctx, &c.desc, &options, &plan));
    args.workspace_bytes = attn_plan_workspace_bytes(plan);
    if (args.workspace_bytes)
        check_ok(attn_memory_alloc(who->ctx, args.workspace_bytes, &args.workspace));
    check_ok(attn_execute(plan, &args, NULL));
    check_ok(attn_ctx_wait(who->ctx));
    for (int o = 0; o < LINEAR_OUTPUTS; o++)
        for (int i = 0; i < PLACES && c.out[o]; i++)
            if (is_there(&host, i) && tensor(&host, i)->data == c.out[o])
                move(who->ctx, tensor(&host, i), tensor(&args, i), false);
    for (int o = 0; o < LINEAR_OUTPUTS; o++)
        if (c.out[o])
            linear_compare(&c.want, (linear_output)o, c.out[o], &found);
    if (found.share > 1)
        fail_msg("%s, %s: %s", c.name,
                 far >= 0   ? places[far].name
                 : in_place ? "in place"
                            : "lengths",
                 found.what);
    if (lens) {
        check_ok(
            attn_memory_download(who->ctx, &status, args.status.data, 0, sizeof status));
        assert_int_equal(status, ATTN_CLAMPED_LENS_KV);
        attn_memory_free(who->ctx, &args.status.data);
    }
    if (in_place)
        args.state_out.data = args.z_out.data = NULL;
    for (int i = 0; i < PLACES; i++)
        if (is_there(&args, i))
            attn_memory_free(who->ctx, &tensor(&args, i)->data);
    attn_memory_free(who->ctx, &args.workspace);
    attn_plan_destroy(&plan);
    linear_case_free(&c);
}

static void state_in_place(const subject *who)
{
    compare_there(who, NONE, true, NULL, NULL);
}

/* Heads that share a state, slices of its columns, segments of the sequence, single steps. */
static const char *const state_in_place_problems[] = {
    "linear_fwd:f32,b2,hq4,hkv2,lq70,lk70,d40,dv72,causal,phi=elu1,normalize,state,den",
    "linear_fwd:f32,b2,hq4,hkv1,lq70,lk90,d40,dv136,phi=elu1,normalize,lens,state,den",
    "linear_fwd:f32,b2,hq6,hkv2,lq1,lk1,d64,dv80,causal,phi=elu1,normalize,state,den",
    "linear_fwd:f32,b1,hq2,hkv1,lq1030,lk1030,d16,dv136,causal,phi=elu1,normalize,state",
    "linear_fwd:f32,b1,hq2,hkv1,lq600,lk1030,d24,dv100,normalize,state",
    "linear_fwd:bf16,b1,hq2,hkv1,lq1030,lk1030,d64,dv128,causal,phi=elu1,normalize,state",
    "linear_fwd:f16,b2,hq4,hkv1,lq200,lk200,d128,dv64,causal,phi=relu,normalize,state",
    "linear_fwd:f32,b1,hq4,hkv2,lq9,lk9,d8,dv20,causal,phi=elu1,normalize,rule=gated,"
    "decay=f32,state,den",
    "linear_fwd:f32,b1,hq4,hkv2,lq9,lk9,d8,dv20,causal,rule=gated_delta,decay=f32,"
    "beta=f32,state",
};
EACH_OF(state_in_place, state_in_place_problems)

/* Lengths in the device's memory are clamped, and told of. */
static void lengths_out_of_range(const subject *who)
{
    static const int32_t lens[] = { -5, 1000, INT32_MIN }, clamped[] = { 0, 70, 0 };

    compare_there(who, NONE, false, lens, clamped);
}

static const char *const lengths_out_of_range_problems[] = {
    "linear_fwd:f32,b3,hq2,hkv1,lq70,lk70,d16,causal,phi=elu1,normalize,lens,state,den",
    "linear_fwd:bf16,b3,hq2,hkv1,lq9,lk70,d16,phi=elu1,normalize,lens,state",
    "linear_fwd:f32,b3,hq2,hkv2,lq70,lk70,d8,causal,lens,rule=delta,beta=f32,state",
    "linear_bwd:f32,b3,hq2,hkv1,lq70,lk70,d16,causal,phi=elu1,normalize,lens,state,"
    "grad=q+k+v+state",
    "linear_bwd:bf16,b3,hq2,hkv1,lq9,lk70,d16,lens,grad=q+k+v",
};
EACH_OF(lengths_out_of_range, lengths_out_of_range_problems)

/* Each tensor in turn, where there is the memory. */
static void far_apart(const subject *who)
{
    attn_device_info info;

    check_ok(attn_ctx_info(who->ctx, &info));
    for (int far = 0; far < PLACES && info.kind != ATTN_DEVICE_HOST; far++) {
        linear_case c;
        int64_t most;
        bool there;

        linear_case_make(&c, who, linear_in_hand);
        most = (FAR + 65536) *
               (int64_t)attn_type_bytes(places[far].typed ? c.desc.type : ATTN_F32);
        there = is_there(&c.args, far) && far != LENS;
        linear_case_free(&c);
        if (there && info.max_alloc_bytes >= most && info.memory_bytes >= most + most / 2)
            compare_there(who, far, false, NULL, NULL);
    }
}

static const char *const far_apart_problems[] = {
    "linear_fwd:f32,b2,hq1,hkv1,lq70,lk70,d64,causal,phi=elu1,normalize,state,den",
    "linear_fwd:bf16,b1,hq2,hkv2,lq70,lk70,d64,causal,phi=elu1,normalize,state,den",
    "linear_fwd:f16,b2,hq1,hkv1,lq9,lk70,d64,dv32,phi=elu1,normalize,state,den",
    "linear_fwd:f32,b2,hq1,hkv1,lq9,lk9,d8,causal,rule=gated_delta,decay=f32,beta=f32,"
    "state",
    "linear_bwd:f32,b1,hq2,hkv2,lq70,lk70,d64,causal,grad=q+k+v",
    "linear_bwd:bf16,b2,hq1,hkv1,lq70,lk70,d64,causal,grad=q+k+v",
    "linear_bwd:f32,b2,hq1,hkv1,lq9,lk70,d64,phi=elu1,normalize,state,grad=q+k+v+state",
    "linear_bwd:bf16,b1,hq2,hkv2,lq70,lk70,d64,causal,phi=elu1,normalize,state,"
    "grad=q+k+v+state",
};
EACH_OF(far_apart, far_apart_problems)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_in_place),
        cmocka_unit_test(test_lengths_out_of_range),
        cmocka_unit_test(test_far_apart),
    };
    return LINEAR_RUN(tests);
}
