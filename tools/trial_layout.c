/* SPDX-License-Identifier: MIT */
/* tools/trial_layout.c: from numbers to memory: packed, paged, strided, poisoned. */
#include <stdlib.h>

#include "trial.h"
#include "visible.h"

static const struct {
    const char *name;
    size_t at; /* in attn_args */
} tensors[TRIAL_TENSORS] = {
    [TRIAL_Q] = { "q", offsetof(attn_args, q) },
    [TRIAL_K] = { "k", offsetof(attn_args, k) },
    [TRIAL_V] = { "v", offsetof(attn_args, v) },
    [TRIAL_BIAS] = { "bias", offsetof(attn_args, bias) },
    [TRIAL_MASK] = { "mask", offsetof(attn_args, mask) },
    [TRIAL_ALIBI] = { "alibi", offsetof(attn_args, alibi) },
    [TRIAL_SINKS] = { "sinks", offsetof(attn_args, sinks) },
    [TRIAL_LENS_Q] = { "lens_q", offsetof(attn_args, lens_q) },
    [TRIAL_LENS] = { "lens_kv", offsetof(attn_args, lens_kv) },
    [TRIAL_OFFSETS] = { "offsets", offsetof(attn_args, offsets) },
    [TRIAL_CU_Q] = { "cu_q", offsetof(attn_args, cu_q) },
    [TRIAL_CU_K] = { "cu_k", offsetof(attn_args, cu_k) },
    [TRIAL_TABLE] = { "block_table", offsetof(attn_args, block_table) },
    [TRIAL_GRAD_O] = { "grad_o", offsetof(attn_args, grad_o) },
    [TRIAL_GRAD_LSE] = { "grad_lse", offsetof(attn_args, grad_lse) },
    [TRIAL_GRAD_Q] = { "grad_q", offsetof(attn_args, grad_q) },
    [TRIAL_GRAD_K] = { "grad_k", offsetof(attn_args, grad_k) },
    [TRIAL_GRAD_V] = { "grad_v", offsetof(attn_args, grad_v) },
    [TRIAL_GRAD_BIAS] = { "grad_bias", offsetof(attn_args, grad_bias) },
    [TRIAL_GRAD_SINKS] = { "grad_sinks", offsetof(attn_args, grad_sinks) },
    [TRIAL_O] = { "o", offsetof(attn_args, o) },
    [TRIAL_LSE] = { "lse", offsetof(attn_args, lse) },
    [TRIAL_STATUS] = { "status", offsetof(attn_args, status) },
    [TRIAL_STATE_IN] = { "state_in", offsetof(attn_args, state_in) },
    [TRIAL_Z_IN] = { "z_in", offsetof(attn_args, z_in) },
    [TRIAL_DECAY] = { "decay", offsetof(attn_args, decay) },
    [TRIAL_BETA] = { "beta", offsetof(attn_args, beta) },
    [TRIAL_GRAD_STATE_OUT] = { "grad_state_out", offsetof(attn_args, grad_state_out) },
    [TRIAL_GRAD_Z_OUT] = { "grad_z_out", offsetof(attn_args, grad_z_out) },
    [TRIAL_DEN] = { "den", offsetof(attn_args, den) },
    [TRIAL_STATE_OUT] = { "state_out", offsetof(attn_args, state_out) },
    [TRIAL_Z_OUT] = { "z_out", offsetof(attn_args, z_out) },
    [TRIAL_GRAD_STATE_IN] = { "grad_state_in", offsetof(attn_args, grad_state_in) },
    [TRIAL_GRAD_Z_IN] = { "grad_z_in", offsetof(attn_args, grad_z_in) },
};

const char *trial_name(trial_block block)
{
    return block < TRIAL_TENSORS ? tensors[block].name : "workspace";
}

attn_tensor *trial_arg(attn_args *args, trial_block tensor)
{
    return (attn_tensor *)(void *)((char *)args + tensors[tensor].at);
}

int64_t trial_class_bytes(const attn_softmax_desc *d, trial_block tensor)
{
    const bool use = d->use & ATTN_USE_LAYOUT;
    attn_layout layout = ATTN_LAYOUT_16;

    switch (tensor) {
    case TRIAL_Q: layout = use ? d->layout_q : layout; break;
    case TRIAL_K: layout = use ? d->layout_k : layout; break;
    case TRIAL_V: layout = use ? d->layout_v : layout; break;
    case TRIAL_O: layout = use ? d->layout_o : layout; break;
    case TRIAL_GRAD_O: layout = use ? d->layout_grad_o : layout; break;
    case TRIAL_GRAD_Q: layout = use ? d->layout_grad_q : layout; break;
    case TRIAL_GRAD_K: layout = use ? d->layout_grad_k : layout; break;
    case TRIAL_GRAD_V: layout = use ? d->layout_grad_v : layout; break;
    default: return 0;
    }
    switch (layout) {
    case ATTN_LAYOUT_16: return 16;
    case ATTN_LAYOUT_8: return 8;
    case ATTN_LAYOUT_4: return 4;
    case ATTN_LAYOUT_ELEMENT: return (int64_t)attn_type_bytes(d->type);
    default: return 0;
    }
}

typedef struct shape {
    attn_type type; /* ATTN_TYPE_NONE: not there */
    int64_t size[4];
} shape;

static shape shape_4(attn_type type, bool there, int64_t b, int64_t h, int64_t l, int64_t d)
{
    return (shape){ there ? type : ATTN_TYPE_NONE, { b, h, l, d } };
}

static shape shape_of(attn_type type, bool there, const int64_t size[4])
{
    return shape_4(type, there, size[0], size[1], size[2], size[3]);
}

static void linear_shapes(const inputs *in, shape s[TRIAL_TENSORS])
{
    const attn_linear_desc *d = &in->linear;
    const int64_t b = d->batch, hkv = d->heads_kv, e = d->dim_qk, m = in->desc.dim_v;
#define WANTED(which) linear_output_wanted(d, LINEAR_##which)

    s[TRIAL_STATE_IN] = shape_4(ATTN_F32, in->state, b, hkv, e, m);
    s[TRIAL_Z_IN] = shape_4(ATTN_F32, in->z, b, hkv, e, 1);
    s[TRIAL_DECAY] = shape_of(d->type_decay, in->decay, in->decay_size);
    s[TRIAL_BETA] = shape_of(d->type_beta, in->beta, in->beta_size);
    s[TRIAL_GRAD_STATE_OUT] = shape_4(ATTN_F32, in->grad_state, b, hkv, e, m);
    s[TRIAL_GRAD_Z_OUT] = shape_4(ATTN_F32, in->grad_z, b, hkv, e, 1);
    s[TRIAL_DEN] = shape_4(ATTN_F32, in->den || WANTED(DEN), b, d->heads_q, d->len_q, 1);
    s[TRIAL_STATE_OUT] = shape_4(ATTN_F32, WANTED(STATE_OUT), b, hkv, e, m);
    s[TRIAL_Z_OUT] = shape_4(ATTN_F32, WANTED(Z_OUT), b, hkv, e, 1);
    s[TRIAL_GRAD_STATE_IN] = shape_4(ATTN_F32, WANTED(GRAD_STATE_IN), b, hkv, e, m);
    s[TRIAL_GRAD_Z_IN] = shape_4(ATTN_F32, WANTED(GRAD_Z_IN), b, hkv, e, 1);
#undef WANTED
}

static void shapes(const trial *t, shape s[TRIAL_TENSORS])
{
    const inputs *in = t->in;
    const attn_softmax_desc *d = &in->desc;
    const int64_t b = d->batch, hq = d->heads_q, hkv = d->heads_kv;
    const int64_t dim = d->dim_qk, dv = visible_dim_v(d);
    const int64_t bq = in->cu_q ? 1 : b, lq = in->cu_q ? in->tokens_q : d->len_q;
    const int64_t bk = in->table ? in->pages : in->cu_k ? 1 : b;
    const int64_t lk = in->table ? d->page_size : in->cu_k ? in->tokens_k : d->len_kv;
    const bool backward = d->use & ATTN_USE_GRAD;
    const shape all[TRIAL_TENSORS] = {
        [TRIAL_Q] = shape_4(d->type, true, bq, hq, lq, dim),
        [TRIAL_K] = shape_4(d->type, true, bk, hkv, lk, dim),
        [TRIAL_V] = shape_4(d->type, true, bk, hkv, lk, dv),
        [TRIAL_BIAS] = shape_of(d->type_bias, in->bias, in->bias_size),
        [TRIAL_MASK] = shape_of(ATTN_BOOL, in->mask, in->mask_size),
        [TRIAL_ALIBI] = shape_of(ATTN_F32, in->alibi, in->alibi_size),
        [TRIAL_SINKS] = shape_4(ATTN_F32, in->sinks, 1, hq, 1, 1),
        [TRIAL_LENS_Q] = shape_4(ATTN_I32, in->lens_q, b, 1, 1, 1),
        [TRIAL_LENS] = shape_4(ATTN_I32, in->lens, b, 1, 1, 1),
        [TRIAL_OFFSETS] = shape_4(ATTN_I32, in->offsets, b, 1, 1, 1),
        [TRIAL_CU_Q] = shape_4(ATTN_I32, in->cu_q, b + 1, 1, 1, 1),
        [TRIAL_CU_K] = shape_4(ATTN_I32, in->cu_k, b + 1, 1, 1, 1),
        [TRIAL_TABLE] = shape_4(ATTN_I32, in->table, b, in->blocks, 1, 1),
        [TRIAL_O] = shape_4(d->type, !backward || in->o, bq, hq, lq, dv),
        [TRIAL_LSE] = shape_4(
            ATTN_F32, !in->is_linear && (backward || d->use & ATTN_USE_LSE), bq, hq, lq, 1),
        [TRIAL_GRAD_O] = shape_4(d->type, in->grad_o, bq, hq, lq, dv),
        [TRIAL_GRAD_LSE] = shape_4(ATTN_F32, in->grad_lse, bq, hq, lq, 1),
        [TRIAL_GRAD_Q] = shape_4(d->type, gradient_wanted(d, GRADIENT_Q), bq, hq, lq, dim),
        [TRIAL_GRAD_K] = shape_4(d->type, gradient_wanted(d, GRADIENT_K), bk, hkv, lk, dim),
        [TRIAL_GRAD_V] = shape_4(d->type, gradient_wanted(d, GRADIENT_V), bk, hkv, lk, dv),
        [TRIAL_GRAD_BIAS] =
            shape_of(ATTN_F32, gradient_wanted(d, GRADIENT_BIAS), in->bias_size),
        [TRIAL_GRAD_SINKS] =
            shape_4(ATTN_F32, gradient_wanted(d, GRADIENT_SINKS), 1, hq, 1, 1),
        [TRIAL_STATUS] = shape_4(ATTN_I32, t->status, 1, 1, 1, 1),
    };

    for (int i = 0; i < TRIAL_TENSORS; i++)
        s[i] = all[i];
    if (in->is_linear)
        linear_shapes(in, s);
}

void trial_make_views(trial *t)
{
    const attn_softmax_desc *d = &t->in->desc;
    const int64_t full[4] = { d->batch, d->heads_q, d->len_q, d->len_kv };
    shape s[TRIAL_TENSORS];

    shapes(t, s);
    for (int i = 0; i < TRIAL_TENSORS; i++) {
        int64_t wide[4] = { 1, 1, 1, 1 };

        if (s[i].type == ATTN_TYPE_NONE)
            continue;
        t->view[i] = view_make(s[i].type, s[i].size, trial_class_bytes(d, (trial_block)i),
                               t->kind[i]);
        for (int k = 0; k < 4; k++) /* a gradient has the sizes of its bias as told */
            if (((i == TRIAL_BIAS && !gradient_wanted(d, GRADIENT_BIAS)) ||
                 i == TRIAL_MASK || (i == TRIAL_ALIBI && k == 0)) &&
                t->expanded >> (4 * i + k) & 1)
                wide[k] = full[k];
        view_broadcast(&t->view[i], wide);
        t->bytes[i] = t->view[i].tensor.data_bytes;
    }
}

/* Where query i, or key j, of batch b lies. */
static void query_at(const inputs *in, const visible_batch *x, int64_t b, int64_t h,
                     int64_t i, int64_t at[3])
{
    at[0] = in->cu_q ? 0 : b;
    at[1] = h;
    at[2] = x->q_first + i;
}

static void key_at(const inputs *in, const visible_batch *x, int64_t b, int64_t h,
                   int64_t j, int64_t at[3])
{
    at[0] = in->cu_k ? 0 : b;
    at[1] = h;
    at[2] = x->k_first + j;
    if (in->table) {
        at[0] = visible_page(in, b, j / in->desc.page_size);
        at[2] = j % in->desc.page_size;
    }
}

/* A row of an input that has one for each query; NULL: the tensor is not there. */
static void put_query(trial *t, trial_block block, const float *from, const int64_t at[3],
                      int64_t n, int64_t dim, bool counts)
{
    if (!from)
        return;
    if (counts)
        view_put_row(&t->view[block], t->image[block], at, from + n * dim);
    else
        view_put_wild(&t->view[block], t->image[block], at);
}

static void put_queries(trial *t, int64_t b)
{
    const inputs *in = t->in;
    const attn_softmax_desc *d = &in->desc;
    const visible_batch x = visible_batch_of(in, b);
    const int64_t dv = visible_dim_v(d);
    int64_t at[3];

    for (int64_t h = 0; h < d->heads_q; h++)
        for (int64_t i = 0; i < x.tokens_q; i++) {
            const int64_t n = (b * d->heads_q + h) * d->len_q + i;

            query_at(in, &x, b, h, i, at);
            put_query(t, TRIAL_Q, in->q, at, n, d->dim_qk, i < x.queries);
            put_query(t, TRIAL_O, in->o, at, n, dv, i < x.queries);
            put_query(t, TRIAL_LSE, in->lse, at, n, 1, i < x.queries);
            put_query(t, TRIAL_GRAD_O, in->grad_o, at, n, dv, i < x.queries);
            put_query(t, TRIAL_GRAD_LSE, in->grad_lse, at, n, 1, i < x.queries);
            put_query(t, TRIAL_DEN, in->den, at, n, 1, i < x.queries);
        }
}

/* Rows of no query's key hold NaN and infinity; those behind masks do, too, but for V
 * where a variant wants finite numbers. Heads that share memory (stride 0) write the
 * same twice. */
static void put_keys(trial *t, int64_t b)
{
    const inputs *in = t->in;
    const attn_softmax_desc *d = &in->desc;
    const visible_batch x = visible_batch_of(in, b);
    const int64_t dv = visible_dim_v(d);
    float *large = malloc((size_t)(dv + 1) * sizeof *large);
    int64_t at[3];

    for (int64_t e = 0; large && e < dv; e++)
        large[e] = 10000;
    for (int64_t h = 0; h < d->heads_kv; h++)
        for (int64_t j = 0; j < (in->table ? x.keys : x.tokens_k); j++) {
            const int64_t n = (b * d->heads_kv + h) * d->len_kv + j;

            key_at(in, &x, b, h, j, at);
            if (in->seen[n] == SEEN)
                view_put_row(&t->view[TRIAL_K], t->image[TRIAL_K], at,
                             in->k + n * d->dim_qk);
            else
                view_put_wild(&t->view[TRIAL_K], t->image[TRIAL_K], at);
            if (in->seen[n] == SEEN)
                view_put_row(&t->view[TRIAL_V], t->image[TRIAL_V], at, in->v + n * dv);
            else if (in->seen[n] == SEEN_BUT_HIDDEN && t->finite_v && large)
                view_put_row(&t->view[TRIAL_V], t->image[TRIAL_V], at, large);
            else
                view_put_wild(&t->view[TRIAL_V], t->image[TRIAL_V], at);
        }
    free(large);
}

/* Elements that no pair in sight reads stay poison, a NaN. The view may be broadcast:
 * `size` is what the array has. */
static void put_bias(trial *t)
{
    const inputs *in = t->in;
    const int64_t *size = in->bias_size, n = size[0] * size[1] * size[2] * size[3];
    view one = t->view[TRIAL_BIAS];

    one.tensor.size[3] = 1;
    for (int64_t e = 0; e < n; e++) {
        const int64_t row = e / size[3];
        const int64_t at[3] = { row / size[2] / size[1], row / size[2] % size[1],
                                row % size[2] };
        const int64_t j = e % size[3];

        one.tensor.offset = t->view[TRIAL_BIAS].tensor.offset + j * one.tensor.stride[3];
        if (in->bias_used[e])
            view_put_row(&one, t->image[TRIAL_BIAS], at, in->bias + e);
    }
}

/* A contiguous array of `size`. */
static void put_bytes(trial *t, trial_block block, const void *from, const int64_t size[4])
{
    const view *v = &t->view[block];
    const size_t bytes = attn_type_bytes(v->tensor.type);
    view row = *v;

    row.tensor.size[3] = size[3];
    for (int64_t n = 0; from && n < size[0] * size[1] * size[2]; n++) {
        const int64_t at[3] = { n / size[2] / size[1], n / size[2] % size[1], n % size[2] };
        view_put_bytes(&row, t->image[block], at,
                       (const char *)from + (size_t)(n * size[3]) * bytes);
    }
}

/* A contiguous array of floats, to be rounded. */
static void put_rows(trial *t, trial_block block, const float *from)
{
    const int64_t *size = t->view[block].tensor.size;

    for (int64_t n = 0; from && n < size[0] * size[1] * size[2]; n++) {
        const int64_t at[3] = { n / size[2] / size[1], n / size[2] % size[1], n % size[2] };
        view_put_row(&t->view[block], t->image[block], at, from + n * size[3]);
    }
}

int32_t trial_preset_status(void)
{
    return 1 << 20; /* a bit that is nobody's: it must stay */
}

void trial_put_inputs(trial *t)
{
    const inputs *in = t->in;
    const int64_t b = in->desc.batch, one[4] = { 1, 1, 1, 1 };
    const int64_t batch[4] = { b, 1, 1, 1 }, ends[4] = { b + 1, 1, 1, 1 };
    const int64_t table[4] = { b, in->blocks, 1, 1 },
                  heads[4] = { 1, in->desc.heads_q, 1, 1 };
    const int32_t preset = trial_preset_status();

    for (int64_t i = 0; i < b; i++) {
        put_queries(t, i);
        put_keys(t, i);
    }
    if (in->bias)
        put_bias(t);
    put_bytes(t, TRIAL_MASK, in->mask, in->mask_size);
    put_bytes(t, TRIAL_ALIBI, in->alibi, in->alibi_size);
    put_bytes(t, TRIAL_SINKS, in->sinks, heads);
    put_bytes(t, TRIAL_LENS_Q, in->lens_q, batch);
    put_bytes(t, TRIAL_LENS, in->lens, batch);
    put_bytes(t, TRIAL_OFFSETS, in->offsets, batch);
    put_bytes(t, TRIAL_CU_Q, in->cu_q, ends);
    put_bytes(t, TRIAL_CU_K, in->cu_k, ends);
    put_bytes(t, TRIAL_TABLE, in->table, table);
    put_rows(t, TRIAL_STATE_IN, in->state);
    put_rows(t, TRIAL_Z_IN, in->z);
    put_rows(t, TRIAL_DECAY, in->decay);
    put_rows(t, TRIAL_BETA, in->beta);
    put_rows(t, TRIAL_GRAD_STATE_OUT, in->grad_state);
    put_rows(t, TRIAL_GRAD_Z_OUT, in->grad_z);
    if (t->status)
        put_bytes(t, TRIAL_STATUS, &preset, one);
}

/* Keys of a gradient, all of them; and of one that has no queries or keys, everything. */
static void take_keys(const trial *t, trial_block output, void *image, int64_t dim,
                      float *to)
{
    const inputs *in = t->in;
    const attn_softmax_desc *d = &in->desc;
    int64_t at[3];

    for (int64_t b = 0; b < d->batch; b++) {
        const visible_batch x = visible_batch_of(in, b);

        for (int64_t h = 0; h < d->heads_kv; h++)
            for (int64_t j = 0; j < x.keys; j++) {
                key_at(in, &x, b, h, j, at);
                view_take_row(&t->view[output], image, at,
                              to + ((b * d->heads_kv + h) * d->len_kv + j) * dim);
            }
    }
}

static void take_all(const trial *t, trial_block output, void *image, float *to)
{
    const attn_tensor *x = &t->view[output].tensor;

    for (int64_t n = 0; n < x->size[0] * x->size[1] * x->size[2]; n++) {
        const int64_t at[3] = { n / x->size[2] / x->size[1], n / x->size[2] % x->size[1],
                                n % x->size[2] };
        view_take_row(&t->view[output], image, at, to + n * x->size[3]);
    }
}

void trial_take(const trial *t, trial_block output, void *image, int64_t only, float *to)
{
    const inputs *in = t->in;
    const attn_softmax_desc *d = &in->desc;
    const int64_t dv = visible_dim_v(d);
    const int64_t dim = output == TRIAL_O ? dv : output == TRIAL_GRAD_Q ? d->dim_qk : 1;
    int64_t at[3];

    switch (output) {
    case TRIAL_GRAD_K: take_keys(t, output, image, d->dim_qk, to); return;
    case TRIAL_GRAD_V: take_keys(t, output, image, dv, to); return;
    case TRIAL_STATE_OUT:
    case TRIAL_Z_OUT:
    case TRIAL_GRAD_STATE_IN:
    case TRIAL_GRAD_Z_IN:
    case TRIAL_GRAD_BIAS:
    case TRIAL_GRAD_SINKS: take_all(t, output, image, to); return;
    default: break;
    }
    for (int64_t b = 0; b < d->batch; b++) {
        const visible_batch x = visible_batch_of(in, b);

        for (int64_t h = 0; h < d->heads_q; h++)
            for (int64_t i = 0; i < x.queries; i++) {
                if (only >= 0 && i != only)
                    continue;
                query_at(in, &x, b, h, i, at);
                view_take_row(&t->view[output], image, at,
                              to + ((b * d->heads_q + h) * d->len_q + i) * dim);
            }
    }
}
