/* SPDX-License-Identifier: MIT */
/* examples/host_arrays.c: attention over arrays of the program, in one call.
 *
 * cc host_arrays.c $(pkg-config --cflags --libs attn) -lm */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

enum { HEADS = 8, KV_HEADS = 2, LEN = 100, DIM = 64 };

static float *random_array(size_t n)
{
    float *x = malloc(n * sizeof *x);

    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return x;
}

int main(void)
{
    float *q = random_array(HEADS * LEN * DIM), *k = random_array(KV_HEADS * LEN * DIM);
    float *v = random_array(KV_HEADS * LEN * DIM), *o = random_array(HEADS * LEN * DIM);
    float *lse = random_array(HEADS * LEN);
    attn_softmax_desc desc = { .size = sizeof desc,
                               .type = ATTN_F32,
                               .batch = 1,
                               .heads_q = HEADS,
                               .heads_kv = KV_HEADS,
                               .len_q = LEN,
                               .len_kv = LEN,
                               .dim_qk = DIM,
                               .use = ATTN_USE_CAUSAL };
    attn_device_info info;
    attn_ctx *ctx = NULL;
    int status = 1;

    if (!q || !k || !v || !o || !lse)
        goto end;
    if (attn_ctx_create(NULL, &ctx) != ATTN_OK || attn_ctx_info(ctx, &info) != ATTN_OK ||
        attn_softmax_forward_host(ctx, &desc, q, k, v, o, lse) != ATTN_OK) {
        fprintf(stderr, "%s\n", attn_last_error());
        goto end;
    }
    /* the first query sees one key: its output is that key's value */
    printf("on %s: o[0] = %.6f, v[0] = %.6f, lse of the last query %.4f\n", info.selector,
           (double)o[0], (double)v[0], (double)lse[HEADS * LEN - 1]);
    status = fabsf(o[0] - v[0]) > 1e-6f;

end:
    attn_ctx_destroy(&ctx);
    free(q);
    free(k);
    free(v);
    free(o);
    free(lse);
    return status;
}
