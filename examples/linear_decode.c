/* SPDX-License-Identifier: MIT */
/* examples/linear_decode.c: linear attention over a prompt in one call, then token by token
 * with the state updated in place; the steps give what one call over all tokens gives.
 *
 * cc linear_decode.c $(pkg-config --cflags --libs attn) -lm */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

enum { HEADS = 8, KV_HEADS = 2, PROMPT = 100, LEN = 110, DIM = 64, STATE = DIM * DIM };

static float *random_array(size_t n)
{
    float *x = malloc(n * sizeof *x);

    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return x;
}

/* Tokens first .. first + n - 1 of [1, H, LEN, DIM]. */
static attn_tensor tokens(float *data, int64_t heads, int64_t first, int64_t n)
{
    attn_tensor t = attn_tensor_bhld(data, ATTN_F32, 1, heads, LEN, DIM);

    t.offset = first * t.stride[2];
    t.size[2] = n;
    return t;
}

static attn_args arguments(float *q, float *k, float *v, float *o, float *s, float *z,
                           int64_t first, int64_t n)
{
    attn_args a = { .size = sizeof a,
                    .q = tokens(q, HEADS, first, n),
                    .k = tokens(k, KV_HEADS, first, n),
                    .v = tokens(v, KV_HEADS, first, n),
                    .o = tokens(o, HEADS, first, n),
                    .state_in = attn_tensor_bhld(s, ATTN_F32, 1, KV_HEADS, DIM, DIM),
                    .z_in = attn_tensor_bhld(z, ATTN_F32, 1, KV_HEADS, DIM, 1) };

    a.state_out = a.state_in; /* in place */
    a.z_out = a.z_in;
    return a;
}

int main(void)
{
    float *q = random_array(HEADS * LEN * DIM), *k = random_array(KV_HEADS * LEN * DIM);
    float *v = random_array(KV_HEADS * LEN * DIM), *o = random_array(HEADS * LEN * DIM);
    float *whole = random_array(HEADS * LEN * DIM);
    float *s = calloc(KV_HEADS * STATE, sizeof *s), *z = calloc(KV_HEADS * DIM, sizeof *z);
    attn_linear_desc desc = { .size = sizeof desc,
                              .type = ATTN_F32,
                              .batch = 1,
                              .heads_q = HEADS,
                              .heads_kv = KV_HEADS,
                              .len_q = LEN,
                              .len_kv = LEN,
                              .dim_qk = DIM,
                              .use = ATTN_LINEAR_CAUSAL | ATTN_LINEAR_PHI |
                                     ATTN_LINEAR_NORMALIZE,
                              .phi = ATTN_PHI_ELU1 };
    attn_ctx *ctx = NULL;
    attn_plan *step = NULL;
    attn_args args;
    void *workspace = NULL;
    float worst = 0;
    int status = 1;

    if (!q || !k || !v || !o || !whole || !s || !z)
        goto end;
    if (attn_ctx_create("host", &ctx) != ATTN_OK ||
        attn_linear_forward_host(ctx, &desc, q, k, v, whole, NULL, NULL) != ATTN_OK)
        goto fail;

    /* the prompt; the state begins as zeros */
    desc.use |= ATTN_LINEAR_STATE_IN | ATTN_LINEAR_STATE_OUT;
    args = arguments(q, k, v, o, s, z, 0, PROMPT);
    if (attn_linear_forward_host_args(ctx, &desc, NULL, &args) != ATTN_OK)
        goto fail;

    /* then one plan, and one workspace, for all steps */
    desc.len_q = desc.len_kv = 1;
    if (attn_plan_linear(ctx, &desc, &step) != ATTN_OK ||
        attn_memory_alloc(ctx, attn_plan_workspace_bytes(step), &workspace) != ATTN_OK)
        goto fail;
    for (int64_t i = PROMPT; i < LEN; i++) {
        args = arguments(q, k, v, o, s, z, i, 1);
        args.workspace = workspace;
        args.workspace_bytes = attn_plan_workspace_bytes(step);
        if (attn_execute(step, &args, NULL) != ATTN_OK)
            goto fail;
    }
    for (int64_t i = 0; i < HEADS * LEN * DIM; i++)
        worst = fmaxf(worst, fabsf(o[i] - whole[i]));
    printf("%d tokens of a prompt and %d steps: within %.1e of one call over all\n", PROMPT,
           LEN - PROMPT, (double)worst);
    status = !(worst < 1e-5f);
    goto end;

fail:
    fprintf(stderr, "%s\n", attn_last_error());

end:
    attn_plan_destroy(&step);
    if (ctx)
        attn_memory_free(ctx, &workspace);
    attn_ctx_destroy(&ctx);
    free(q);
    free(k);
    free(v);
    free(o);
    free(whole);
    free(s);
    free(z);
    return status;
}
