/* SPDX-License-Identifier: MIT */
/* examples/training.c: a step of gradient descent: two plans of one descriptor, the forward
 * and the backward, made once and executed as often as wanted.
 *
 * The loss is half the squared distance of O to a target; its gradient by O is O - target.
 *
 * cc training.c $(pkg-config --cflags --libs attn) -lm */
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

enum { HEADS = 4, KV_HEADS = 2, LEN = 48, DIM = 32, STEPS = 40 };
enum { N_Q = HEADS * LEN * DIM, N_KV = KV_HEADS * LEN * DIM, ARRAYS = 9 };

/* Where arrays lie: host memory, so that this program can read and write them. */
typedef struct arrays {
    float *q, *k, *v, *o, *lse, *grad_o, *grad_q, *grad_k, *grad_v;
} arrays;

static void descend(float *x, const float *grad, int n)
{
    for (int i = 0; i < n; i++)
        x[i] -= 0.1f * grad[i];
}

static double loss_of(arrays *a, const float *target)
{
    double loss = 0;

    for (int i = 0; i < N_Q; i++) {
        a->grad_o[i] = a->o[i] - target[i];
        loss += 0.5 * (double)a->grad_o[i] * (double)a->grad_o[i];
    }
    return loss;
}

static attn_tensor queries(float *data, int dim)
{
    return attn_tensor_bhld(data, ATTN_F32, 1, HEADS, LEN, dim);
}

static attn_tensor keys(float *data)
{
    return attn_tensor_bhld(data, ATTN_F32, 1, KV_HEADS, LEN, DIM);
}

int main(void)
{
    static const int size[ARRAYS] = { N_Q, N_KV, N_KV, N_Q, HEADS * LEN,
                                      N_Q, N_Q,  N_KV, N_KV };
    static float target[N_Q];
    attn_softmax_desc desc = { .size = sizeof desc,
                               .type = ATTN_F32,
                               .batch = 1,
                               .heads_q = HEADS,
                               .heads_kv = KV_HEADS,
                               .len_q = LEN,
                               .len_kv = LEN,
                               .dim_qk = DIM,
                               .use = ATTN_USE_CAUSAL | ATTN_USE_LSE };
    arrays a = { 0 };
    float **const all[ARRAYS] = { &a.q,      &a.k,      &a.v,      &a.o,     &a.lse,
                                  &a.grad_o, &a.grad_q, &a.grad_k, &a.grad_v };
    attn_plan *forward = NULL, *backward = NULL;
    attn_ctx *ctx = NULL;
    void *workspace = NULL;
    double first = 0, loss = 0;
    size_t bytes;
    int status = 1;

    if (attn_ctx_create("host", &ctx) != ATTN_OK)
        goto fail;
    for (int i = 0; i < ARRAYS; i++)
        if (attn_memory_alloc(ctx, (size_t)size[i] * sizeof(float), (void **)all[i]) !=
            ATTN_OK)
            goto fail;
    for (int i = 0; i < 3; i++)
        for (int n = 0; n < size[i]; n++)
            (*all[i])[n] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (int i = 0; i < N_Q; i++)
        target[i] = (float)rand() / (float)RAND_MAX - 0.5f;

    if (attn_plan_softmax(ctx, &desc, &forward) != ATTN_OK)
        goto fail;
    desc.use |= ATTN_USE_GRAD;
    desc.grad = ATTN_GRAD_Q | ATTN_GRAD_K | ATTN_GRAD_V;
    if (attn_plan_softmax(ctx, &desc, &backward) != ATTN_OK)
        goto fail;
    bytes = attn_plan_workspace_bytes(forward);
    if (attn_plan_workspace_bytes(backward) > bytes)
        bytes = attn_plan_workspace_bytes(backward);
    if (bytes && attn_memory_alloc(ctx, bytes, &workspace) != ATTN_OK)
        goto fail;

    attn_args args = { .size = sizeof args,
                       .q = queries(a.q, DIM),
                       .k = keys(a.k),
                       .v = keys(a.v),
                       .o = queries(a.o, DIM),
                       .lse = queries(a.lse, 1),
                       .workspace = workspace,
                       .workspace_bytes = bytes };
    attn_args back = args; /* o and lse are inputs there */
    back.grad_o = queries(a.grad_o, DIM);
    back.grad_q = queries(a.grad_q, DIM);
    back.grad_k = keys(a.grad_k);
    back.grad_v = keys(a.grad_v);

    for (int step = 0; step < STEPS; step++) {
        if (attn_execute(forward, &args, NULL) != ATTN_OK)
            goto fail;
        loss = loss_of(&a, target);
        first = step ? first : loss;
        if (attn_execute(backward, &back, NULL) != ATTN_OK)
            goto fail;
        descend(a.q, a.grad_q, N_Q);
        descend(a.k, a.grad_k, N_KV);
        descend(a.v, a.grad_v, N_KV);
    }
    printf("the loss went from %.4f to %.4f in %d steps\n", first, loss, STEPS);
    status = !(loss < 0.9 * first);

fail:
    if (status && !loss)
        fprintf(stderr, "%s\n", attn_last_error());
    attn_memory_free(ctx, &workspace);
    for (int i = 0; i < ARRAYS; i++)
        attn_memory_free(ctx, (void **)all[i]);
    attn_plan_destroy(&forward);
    attn_plan_destroy(&backward);
    attn_ctx_destroy(&ctx);
    return status;
}
