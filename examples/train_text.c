/* SPDX-License-Identifier: MIT */
/* examples/train_text.c: trains a transformer of one layer to foretell the next letter of the
 * text below. Attention and its gradients are the library's, on any of its devices; all else
 * is plain loops:
 *
 *     x    = token + position                       [tokens, WIDTH]
 *     x   += attention(norm(x) qkv) out             causal, HEADS heads
 *     x   += relu(norm(x) up) down
 *     loss = mean cross-entropy of softmax(norm(x) head) and the next letter
 *
 * where norm divides a row by its root mean square. Plain stochastic gradient descent; the
 * same device gives the same losses every time.
 *
 * usage: train_text [DEVICE [STEPS]]     prints the loss; 1 if it did not fall, 2 on errors
 *
 * cc train_text.c $(pkg-config --cflags --libs attn) -lm */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attn/attn.h>

static const char text[] =
    "a letter looks back at the letters before it. to each of them it gives a weight, "
    "and all the weights together are one. a letter that helps gets much of it, a "
    "letter that does not help gets next to none. what comes out is the mean of what "
    "the letters have to say, by their weights. this is called attention.\n"
    "in the beginning the weights are all alike, and the next letter is a guess. then "
    "the guess is held against the text. where it was wrong, a small step is taken "
    "that makes it less wrong. step after step the loss goes down, and the weights "
    "begin to tell one letter from another. first the model learns which letters are "
    "common, then which letters stand side by side, then short words, and in the end "
    "whole lines of the text.\n"
    "a large model reads a large part of all that was ever written. this one reads a "
    "single page, again and again, until it knows the page by heart. the steps are the "
    "same.\n";

static const char letters[] = "\n abcdefghijklmnopqrstuvwxyz,.";

enum { HEADS = 4, DIM = 8, WIDTH = HEADS * DIM, HIDDEN = 4 * WIDTH };
enum { BATCH = 4, LEN = 32, TOKENS = BATCH * LEN }; /* of a step: windows of the text */
enum { VOCAB = sizeof letters - 1 };
enum { PARAMETERS = (VOCAB + LEN + 4 * WIDTH + 2 * HIDDEN + VOCAB) * WIDTH };

/* The parameters, or their gradients; matrices are [in][out]. */
typedef union model {
    struct {
        float token[VOCAB * WIDTH], position[LEN * WIDTH];
        float qkv[WIDTH * 3 * WIDTH], out[WIDTH * WIDTH];
        float up[WIDTH * HIDDEN], down[HIDDEN * WIDTH];
        float head[WIDTH * VOCAB];
    };
    float all[PARAMETERS];
} model;

/* What lies between the layers, or its gradients: a row a token. */
typedef struct activations {
    float x0[TOKENS * WIDTH], norm0[TOKENS * WIDTH];
    float qkv[TOKENS * 3 * WIDTH], o[TOKENS * WIDTH], lse[BATCH * HEADS * LEN];
    float x1[TOKENS * WIDTH], norm1[TOKENS * WIDTH], hidden[TOKENS * HIDDEN];
    float x2[TOKENS * WIDTH], norm2[TOKENS * WIDTH], logits[TOKENS * VOCAB];
} activations;

static model weights, slopes;    /* a slope is d loss / d weight */
static activations values, back; /* back: d loss / d value       */

static void must(attn_status status)
{
    if (status != ATTN_OK) {
        fprintf(stderr, "%s\n", attn_last_error());
        exit(2);
    }
}

/* In -1 .. 1, the same numbers on every machine. */
static float chance(void)
{
    static uint32_t state = 1;

    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (float)(1 << 23) - 1;
}

/* y = x w */
static void linear(float *y, const float *x, const float *w, int in, int out)
{
    for (int n = 0; n < TOKENS; n++, x += in, y += out) {
        memset(y, 0, (size_t)out * sizeof *y);
        for (int i = 0; i < in; i++)
            for (int o = 0; o < out; o++)
                y[o] += x[i] * w[i * out + o];
    }
}

/* dx = dy w^T, dw += x^T dy */
static void linear_back(float *dx, float *dw, const float *dy, const float *x,
                        const float *w, int in, int out)
{
    for (int n = 0; n < TOKENS; n++, x += in, dx += in, dy += out)
        for (int i = 0; i < in; i++) {
            float sum = 0;

            for (int o = 0; o < out; o++) {
                sum += dy[o] * w[i * out + o];
                dw[i * out + o] += x[i] * dy[o];
            }
            dx[i] = sum;
        }
}

static float root_mean_square(const float *x)
{
    float sum = 0;

    for (int i = 0; i < WIDTH; i++)
        sum += x[i] * x[i];
    return sqrtf(sum / WIDTH + 1e-6f);
}

static void norm(float *y, const float *x)
{
    for (int n = 0; n < TOKENS; n++, x += WIDTH, y += WIDTH) {
        const float size = root_mean_square(x);

        for (int i = 0; i < WIDTH; i++)
            y[i] = x[i] / size;
    }
}

/* dx += (dy - y mean(dy y)) / rms(x) */
static void norm_back(float *dx, const float *dy, const float *y, const float *x)
{
    for (int n = 0; n < TOKENS; n++, x += WIDTH, dx += WIDTH, y += WIDTH, dy += WIDTH) {
        float size = root_mean_square(x), along = 0;

        for (int i = 0; i < WIDTH; i++)
            along += dy[i] * y[i] / WIDTH;
        for (int i = 0; i < WIDTH; i++)
            dx[i] += (dy[i] - y[i] * along) / size;
    }
}

static void add(float *y, const float *x)
{
    for (int i = 0; i < TOKENS * WIDTH; i++)
        y[i] += x[i];
}

/* [B, L, row] of the heads side by side, from column `first` on, as [B, H, L, D]. */
static attn_tensor heads(float *data, int row, int first)
{
    const int64_t size[4] = { BATCH, HEADS, LEN, DIM };
    const int64_t stride[4] = { (int64_t)LEN * row, DIM, row, 1 };

    return attn_tensor_strided(data + first, ATTN_F32, size, stride);
}

static const attn_softmax_desc attention = { .size = sizeof attention,
                                             .type = ATTN_F32,
                                             .batch = BATCH,
                                             .heads_q = HEADS,
                                             .heads_kv = HEADS,
                                             .len_q = LEN,
                                             .len_kv = LEN,
                                             .dim_qk = DIM,
                                             .use = ATTN_USE_CAUSAL };

static attn_args attention_args(activations *a)
{
    return (attn_args){ .size = sizeof(attn_args),
                        .q = heads(a->qkv, 3 * WIDTH, 0),
                        .k = heads(a->qkv, 3 * WIDTH, WIDTH),
                        .v = heads(a->qkv, 3 * WIDTH, 2 * WIDTH),
                        .o = heads(a->o, WIDTH, 0),
                        .lse = attn_tensor_bhld(a->lse, ATTN_F32, BATCH, HEADS, LEN, 1) };
}

static void forward(attn_ctx *ctx, const int *input)
{
    const model *w = &weights;
    activations *a = &values;
    attn_args args = attention_args(a);

    for (int n = 0; n < TOKENS; n++)
        for (int i = 0; i < WIDTH; i++)
            a->x0[n * WIDTH + i] =
                w->token[input[n] * WIDTH + i] + w->position[n % LEN * WIDTH + i];
    norm(a->norm0, a->x0);
    linear(a->qkv, a->norm0, w->qkv, WIDTH, 3 * WIDTH);
    must(attn_softmax_forward_host_args(ctx, &attention, NULL, &args));
    linear(a->x1, a->o, w->out, WIDTH, WIDTH);
    add(a->x1, a->x0);
    norm(a->norm1, a->x1);
    linear(a->hidden, a->norm1, w->up, WIDTH, HIDDEN);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        a->hidden[i] = fmaxf(a->hidden[i], 0);
    linear(a->x2, a->hidden, w->down, HIDDEN, WIDTH);
    add(a->x2, a->x1);
    norm(a->norm2, a->x2);
    linear(a->logits, a->norm2, w->head, WIDTH, VOCAB);
}

/* The loss, and its gradient by the logits: (softmax - wanted) / TOKENS. */
static double cross_entropy(const int *wanted)
{
    double loss = 0;

    for (int n = 0; n < TOKENS; n++) {
        const float *x = values.logits + n * VOCAB;
        float *dx = back.logits + n * VOCAB, top = x[0], sum = 0;

        for (int i = 1; i < VOCAB; i++)
            top = fmaxf(top, x[i]);
        for (int i = 0; i < VOCAB; i++)
            sum += dx[i] = expf(x[i] - top);
        for (int i = 0; i < VOCAB; i++)
            dx[i] = (dx[i] / sum - (float)(i == wanted[n])) / TOKENS;
        loss += (double)(top + logf(sum) - x[wanted[n]]) / TOKENS;
    }
    return loss;
}

static void backward(attn_ctx *ctx, const int *input)
{
    const model *w = &weights;
    model *dw = &slopes;
    activations *a = &values, *d = &back;
    attn_args args = attention_args(a);

    memset(dw, 0, sizeof *dw);
    linear_back(d->norm2, dw->head, d->logits, a->norm2, w->head, WIDTH, VOCAB);
    memset(d->x2, 0, sizeof d->x2);
    norm_back(d->x2, d->norm2, a->norm2, a->x2);

    linear_back(d->hidden, dw->down, d->x2, a->hidden, w->down, HIDDEN, WIDTH);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        d->hidden[i] = a->hidden[i] > 0 ? d->hidden[i] : 0;
    linear_back(d->norm1, dw->up, d->hidden, a->norm1, w->up, WIDTH, HIDDEN);
    memcpy(d->x1, d->x2, sizeof d->x1);
    norm_back(d->x1, d->norm1, a->norm1, a->x1);

    linear_back(d->o, dw->out, d->x1, a->o, w->out, WIDTH, WIDTH);
    args.grad_o = heads(d->o, WIDTH, 0); /* o and lse are inputs here */
    args.grad_q = heads(d->qkv, 3 * WIDTH, 0);
    args.grad_k = heads(d->qkv, 3 * WIDTH, WIDTH);
    args.grad_v = heads(d->qkv, 3 * WIDTH, 2 * WIDTH);
    must(attn_softmax_backward_host_args(ctx, &attention, NULL, &args));
    linear_back(d->norm0, dw->qkv, d->qkv, a->norm0, w->qkv, WIDTH, 3 * WIDTH);
    memcpy(d->x0, d->x1, sizeof d->x0);
    norm_back(d->x0, d->norm0, a->norm0, a->x0);

    for (int n = 0; n < TOKENS; n++)
        for (int i = 0; i < WIDTH; i++) {
            dw->token[input[n] * WIDTH + i] += d->x0[n * WIDTH + i];
            dw->position[n % LEN * WIDTH + i] += d->x0[n * WIDTH + i];
        }
}

int main(int argc, char **argv)
{
    const int steps = argc > 2 ? atoi(argv[2]) : 300;
    int input[TOKENS], wanted[TOKENS];
    double mean = 0, first = 0; /* loss: of about 20 steps, of the first */
    attn_device_info info;
    attn_ctx *ctx = NULL;

    must(attn_ctx_create(argc > 1 ? argv[1] : NULL, &ctx));
    must(attn_ctx_info(ctx, &info));
    printf("on %s (%s): %d letters, %d parameters\n", info.selector, info.name,
           (int)sizeof text - 1, PARAMETERS);
    for (int i = 0; i < PARAMETERS; i++)
        weights.all[i] = 0.15f * chance();

    for (int step = 0; step < steps; step++) {
        for (int b = 0; b < BATCH; b++) {
            const char *at = text + (int)((chance() + 1) / 2 * (sizeof text - 2 - LEN));

            for (int i = 0; i < LEN; i++) {
                input[b * LEN + i] = (int)(strchr(letters, at[i]) - letters);
                wanted[b * LEN + i] = (int)(strchr(letters, at[i + 1]) - letters);
            }
        }
        forward(ctx, input);
        double loss = cross_entropy(wanted);
        backward(ctx, input);
        for (int i = 0; i < PARAMETERS; i++)
            weights.all[i] -= 0.5f * slopes.all[i];
        first = step ? first : loss;
        mean = step ? 0.95 * mean + 0.05 * loss : loss;
        if (step % 20 == 0 || step == steps - 1)
            printf("step %4d  loss %.4f\n", step, mean);
    }
    attn_ctx_destroy(&ctx);
    return !(mean < first);
}
