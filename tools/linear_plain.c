/* SPDX-License-Identifier: MIT */
/* tools/linear_plain.c: sums over pairs for the rule LINEAR, the recurrence for others. */
#include "linear_plain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *linear_output_name(linear_output which)
{
    static const char *const names[LINEAR_OUTPUTS] = {
        "o",      "state_out", "z_out",         "den",      "grad_q",
        "grad_k", "grad_v",    "grad_state_in", "grad_z_in"
    };
    return names[which];
}

static int64_t dim_v(const attn_linear_desc *d)
{
    return d->dim_v ? d->dim_v : d->dim_qk;
}

void linear_output_size(const attn_linear_desc *d, linear_output which, int64_t size[4])
{
    const int64_t b = d->batch, hq = d->heads_q, hkv = d->heads_kv;
    const int64_t lq = d->len_q, lk = d->len_kv, e = d->dim_qk, m = dim_v(d);
    const int64_t all[LINEAR_OUTPUTS][4] = {
        { b, hq, lq, m },  { b, hkv, e, m }, { b, hkv, e, 1 },
        { b, hq, lq, 1 },  { b, hq, lq, e }, { b, hkv, lk, e },
        { b, hkv, lk, m }, { b, hkv, e, m }, { b, hkv, e, 1 },
    };

    memcpy(size, all[which], sizeof all[which]);
}

int64_t linear_output_count(const attn_linear_desc *d, linear_output which)
{
    int64_t size[4];

    linear_output_size(d, which, size);
    return size[0] * size[1] * size[2] * size[3];
}

bool linear_output_wanted(const attn_linear_desc *d, linear_output which)
{
    const bool backward = d->use & ATTN_LINEAR_GRAD;
    const bool normalize = d->use & ATTN_LINEAR_NORMALIZE;

    switch (which) {
    case LINEAR_O: return !backward;
    case LINEAR_STATE_OUT: return !backward && d->use & ATTN_LINEAR_STATE_OUT;
    case LINEAR_Z_OUT: return !backward && normalize && d->use & ATTN_LINEAR_STATE_OUT;
    case LINEAR_DEN: return !backward && d->use & ATTN_LINEAR_DEN;
    case LINEAR_GRAD_Q: return backward && d->grad & ATTN_GRAD_Q;
    case LINEAR_GRAD_K: return backward && d->grad & ATTN_GRAD_K;
    case LINEAR_GRAD_V: return backward && d->grad & ATTN_GRAD_V;
    case LINEAR_GRAD_STATE_IN: return backward && d->grad & ATTN_GRAD_STATE;
    case LINEAR_GRAD_Z_IN: return backward && normalize && d->grad & ATTN_GRAD_STATE;
    case LINEAR_OUTPUTS: break;
    }
    return false;
}

int64_t linear_plain_length(const linear_plain *p, int64_t b)
{
    const int64_t n = p->lens ? p->lens[b] : p->desc.len_kv;
    return n < 0 ? 0 : n > p->desc.len_kv ? p->desc.len_kv : n;
}

int64_t linear_plain_keys(const linear_plain *p, int64_t b)
{
    const int64_t n = linear_plain_length(p, b);
    return p->desc.use & ATTN_LINEAR_CAUSAL && n > p->desc.len_q ? p->desc.len_q : n;
}

/* The head in hand: phi of its rows and of all queries that read it. */
typedef struct work {
    linear_plain *p;
    const attn_linear_desc *d;
    int64_t b, kvh, group, keys, e, m;
    bool causal, normalize;
    double scale, eps;
    double *q, *k;             /* [group, Lq, D], times scale; [Lk, D] */
    double *slope_q, *slope_k; /* of each element, times scale for q */
    double *state, *z;         /* of the rules that are no sum  */
    double *square;            /* of the terms of `state`       */
} work;

static double phi_of(const attn_linear_desc *d, double x, double *slope)
{
    const attn_phi phi = d->use & ATTN_LINEAR_PHI ? d->phi : ATTN_PHI_IDENTITY;

    *slope = 1;
    if (phi == ATTN_PHI_IDENTITY || (phi == ATTN_PHI_ELU1 && x > 0))
        return phi == ATTN_PHI_ELU1 ? x + 1 : x;
    if (phi == ATTN_PHI_ELU1)
        return *slope = exp(x);
    *slope = x > 0;
    return x > 0 ? x : 0;
}

static void add(const linear_plain *p, linear_output which, int64_t at, double term,
                double square)
{
    if (!p->out[which].value)
        return;
    p->out[which].value[at] += term;
    p->out[which].terms[at] += square;
}

static void add_one(const linear_plain *p, linear_output which, int64_t at, double term)
{
    add(p, which, at, term, term * term);
}

static int64_t state_at(const work *w)
{
    return (w->b * w->d->heads_kv + w->kvh) * w->e;
}

/* Row of query i of head g of the group. */
static int64_t query_at(const work *w, int64_t g, int64_t i)
{
    return (w->b * w->d->heads_q + w->kvh * w->group + g) * w->d->len_q + i;
}

static int64_t key_at(const work *w, int64_t j)
{
    return (w->b * w->d->heads_kv + w->kvh) * w->d->len_kv + j;
}

static void load(work *w)
{
    const linear_plain *p = w->p;

    for (int64_t n = 0; n < w->group * w->d->len_q * w->e; n++) {
        w->q[n] =
            w->scale * phi_of(w->d, p->q[query_at(w, 0, 0) * w->e + n], &w->slope_q[n]);
        w->slope_q[n] *= w->scale;
    }
    for (int64_t n = 0; n < w->keys * w->e; n++)
        w->k[n] = phi_of(w->d, p->k[key_at(w, 0) * w->e + n], &w->slope_k[n]);
}

/* <q, k> and the sum of the squares of its terms. */
static double dot(const double *q, const double *k, int64_t n, double *square)
{
    double sum = 0;

    *square = 0;
    for (int64_t e = 0; e < n; e++) {
        sum += q[e] * k[e];
        *square += q[e] * k[e] * q[e] * k[e];
    }
    return sum;
}

static int64_t seen(const work *w, int64_t i)
{
    return w->causal && i + 1 < w->keys ? i + 1 : w->keys;
}

/* num (and the squares of its terms) and den of a query, the state that came in included. */
static double numerator(const work *w, int64_t g, int64_t i, double *num, double *square,
                        double *den_square)
{
    const linear_plain *p = w->p;
    const double *q = w->q + (g * w->d->len_q + i) * w->e;
    double den = w->eps;

    *den_square = w->eps * w->eps;
    memset(num, 0, (size_t)w->m * sizeof *num);
    memset(square, 0, (size_t)w->m * sizeof *square);
    for (int64_t e = 0; p->state_in && e < w->e; e++) {
        for (int64_t m = 0; m < w->m; m++) {
            const double term = q[e] * p->state_in[(state_at(w) + e) * w->m + m];

            num[m] += term;
            square[m] += term * term;
        }
        if (w->normalize && p->z_in) {
            const double term = q[e] * p->z_in[state_at(w) + e];

            den += term;
            *den_square += term * term;
        }
    }
    for (int64_t j = 0; j < seen(w, i); j++) {
        const double *v = p->v + key_at(w, j) * w->m;
        double terms, weight = dot(q, w->k + j * w->e, w->e, &terms);

        for (int64_t m = 0; m < w->m; m++) {
            num[m] += weight * v[m];
            square[m] += terms * v[m] * v[m];
        }
        den += weight;
        *den_square += terms;
    }
    return w->normalize ? den : 1;
}

static void forward_row(const work *w, int64_t g, int64_t i, double *num, double *square)
{
    const int64_t n = query_at(w, g, i);
    double den_square, den = numerator(w, g, i, num, square, &den_square);

    for (int64_t m = 0; m < w->m; m++)
        add(w->p, LINEAR_O, n * w->m + m, den == 0 ? 0 : num[m] / den,
            den == 0 ? 0 : square[m] / den / den);
    add(w->p, LINEAR_DEN, n, den, den_square);
}

/* S and z as they come out. */
static void forward_state(const work *w)
{
    const linear_plain *p = w->p;

    for (int64_t e = 0; e < w->e; e++) {
        const int64_t at = state_at(w) + e;

        for (int64_t m = 0; m < w->m; m++) {
            if (p->state_in)
                add_one(p, LINEAR_STATE_OUT, at * w->m + m, p->state_in[at * w->m + m]);
            for (int64_t j = 0; j < w->keys; j++)
                add_one(p, LINEAR_STATE_OUT, at * w->m + m,
                        w->k[j * w->e + e] * p->v[key_at(w, j) * w->m + m]);
        }
        if (p->z_in)
            add_one(p, LINEAR_Z_OUT, at, p->z_in[at]);
        for (int64_t j = 0; j < w->keys; j++)
            add_one(p, LINEAR_Z_OUT, at, w->k[j * w->e + e]);
    }
}

/* O is given in its type, and dO O goes into every element of a row's dQ with the sum of the
 * keys: where O's elements are rounded the same way, so far is dQ off. In halves of what a
 * gradient may be off by. */
static void allow_for_rounded_o(const work *w, int64_t g, int64_t i, double product)
{
    static const double halves[] = { [ATTN_F32] = 0x1p-23 / 1e-5,
                                     [ATTN_F16] = 0x1p-10 / 3e-3,
                                     [ATTN_BF16] = 0x1p-7 / 2e-2 };
    const int64_t n = query_at(w, g, i), at_q = (g * w->d->len_q + i) * w->e;
    const double moved = product * halves[w->d->type];

    for (int64_t e = 0; e < w->e; e++) {
        double z = w->p->z_in ? w->p->z_in[state_at(w) + e] : 0, by;

        for (int64_t j = 0; j < seen(w, i); j++)
            z += w->k[j * w->e + e];
        by = w->slope_q[at_q + e] * moved * z;
        add(w->p, LINEAR_GRAD_Q, n * w->e + e, 0, by * by);
    }
}

/* What query i and head g add to all gradients. */
static void backward_row(const work *w, int64_t g, int64_t i, double *num, double *square)
{
    const linear_plain *p = w->p;
    const int64_t n = query_at(w, g, i), at_q = (g * w->d->len_q + i) * w->e;
    const double *q = w->q + at_q, *grad = p->grad_o + n * w->m;
    double unused, den = numerator(w, g, i, num, square, &unused), c = 0, c_square = 0;
    double product = 0;

    if (den == 0)
        return;
    for (int64_t m = 0; w->normalize && m < w->m; m++) {
        const double term = -grad[m] / den * num[m] / den;

        c += term;
        c_square += term * term;
        product += fabs(term);
    }
    allow_for_rounded_o(w, g, i, product);
    for (int64_t e = 0; e < w->e; e++) {
        const double slope = w->slope_q[at_q + e];
        const int64_t s = state_at(w) + e;

        for (int64_t m = 0; p->state_in && m < w->m; m++) {
            add_one(p, LINEAR_GRAD_Q, n * w->e + e,
                    slope * grad[m] / den * p->state_in[s * w->m + m]);
            add_one(p, LINEAR_GRAD_STATE_IN, s * w->m + m, q[e] * grad[m] / den);
        }
        if (w->normalize && p->z_in) {
            add(p, LINEAR_GRAD_Q, n * w->e + e, slope * c * p->z_in[s],
                slope * slope * c_square * p->z_in[s] * p->z_in[s]);
            add(p, LINEAR_GRAD_Z_IN, s, c * q[e], c_square * q[e] * q[e]);
        }
    }
    for (int64_t j = 0; j < seen(w, i); j++) {
        const double *k = w->k + j * w->e, *v = p->v + key_at(w, j) * w->m;
        double terms, by_grad, weight = dot(q, k, w->e, &terms);
        const double by_weight = dot(grad, v, w->m, &by_grad) / den + c;

        by_grad = by_grad / den / den + c_square;
        for (int64_t e = 0; e < w->e; e++) {
            const double sq = w->slope_q[at_q + e], sk = w->slope_k[j * w->e + e];

            add(p, LINEAR_GRAD_Q, n * w->e + e, sq * by_weight * k[e],
                sq * sq * by_grad * k[e] * k[e]);
            add(p, LINEAR_GRAD_K, key_at(w, j) * w->e + e, sk * by_weight * q[e],
                sk * sk * by_grad * q[e] * q[e]);
        }
        for (int64_t m = 0; m < w->m; m++)
            add(p, LINEAR_GRAD_V, key_at(w, j) * w->m + m, weight * grad[m] / den,
                terms * grad[m] * grad[m] / den / den);
    }
}

/* What the gradients of the state that came out add. */
static void backward_state(const work *w)
{
    const linear_plain *p = w->p;

    for (int64_t e = 0; e < w->e; e++) {
        const int64_t s = state_at(w) + e;
        const double dz = p->grad_z_out ? p->grad_z_out[s] : 0;

        for (int64_t m = 0; p->grad_state_out && m < w->m; m++) {
            const double ds = p->grad_state_out[s * w->m + m];

            add_one(p, LINEAR_GRAD_STATE_IN, s * w->m + m, ds);
            for (int64_t j = 0; j < w->keys; j++) {
                add_one(p, LINEAR_GRAD_K, key_at(w, j) * w->e + e,
                        w->slope_k[j * w->e + e] * ds * p->v[key_at(w, j) * w->m + m]);
                add_one(p, LINEAR_GRAD_V, key_at(w, j) * w->m + m, ds * w->k[j * w->e + e]);
            }
        }
        add_one(p, LINEAR_GRAD_Z_IN, s, dz);
        for (int64_t j = 0; j < w->keys; j++)
            add_one(p, LINEAR_GRAD_K, key_at(w, j) * w->e + e,
                    w->slope_k[j * w->e + e] * dz);
    }
}

/* One step of a rule that is no sum. */
static void step(const work *w, int64_t j)
{
    const linear_plain *p = w->p;
    const double *k = w->k + j * w->e, *v = p->v + key_at(w, j) * w->m;
    const double beta = p->beta ? p->beta[key_at(w, j)] : 1;

    for (int64_t e = 0; e < w->e && p->decay; e++) {
        const double g = exp(p->decay[key_at(w, j) * w->e + e]);

        for (int64_t m = 0; m < w->m; m++) {
            w->state[e * w->m + m] *= g;
            w->square[e * w->m + m] *= g * g;
        }
        w->z[e] *= g;
    }
    for (int64_t m = 0; m < w->m; m++) {
        double u = v[m], square = v[m] * v[m];

        for (int64_t e = 0; e < w->e && p->beta; e++) {
            const double read = w->state[e * w->m + m] * k[e];

            u -= read;
            square += read * read;
        }
        for (int64_t e = 0; e < w->e; e++) {
            w->state[e * w->m + m] += beta * u * k[e];
            w->square[e * w->m + m] += beta * beta * k[e] * k[e] * square;
        }
    }
    for (int64_t e = 0; e < w->e; e++)
        w->z[e] += k[e];
}

static void recurrence(const work *w)
{
    const linear_plain *p = w->p;
    const int64_t n = w->e * w->m;

    for (int64_t x = 0; x < n; x++) {
        w->state[x] = p->state_in ? p->state_in[state_at(w) * w->m + x] : 0;
        w->square[x] = w->state[x] * w->state[x];
    }
    for (int64_t e = 0; e < w->e; e++)
        w->z[e] = p->z_in ? p->z_in[state_at(w) + e] : 0;
    for (int64_t i = 0; i < w->d->len_q; i++) {
        if (i < w->keys)
            step(w, i);
        for (int64_t g = 0; g < w->group; g++) {
            const double *q = w->q + (g * w->d->len_q + i) * w->e;
            double squares, den = dot(q, w->z, w->e, &squares) + w->eps;
            const double by = w->normalize ? den : 1;

            add(p, LINEAR_DEN, query_at(w, g, i), den, squares + w->eps * w->eps);
            for (int64_t x = 0; x < n && by != 0; x++) {
                const double at = q[x / w->m] / by;

                add(p, LINEAR_O, query_at(w, g, i) * w->m + x % w->m, at * w->state[x],
                    at * at * w->square[x]);
            }
        }
    }
    for (int64_t x = 0; x < n; x++)
        add(p, LINEAR_STATE_OUT, state_at(w) * w->m + x, w->state[x], w->square[x]);
    for (int64_t e = 0; e < w->e; e++)
        add_one(p, LINEAR_Z_OUT, state_at(w) + e, w->z[e]);
}

static void run_head(work *w, double *room)
{
    load(w);
    if (w->p->decay || w->p->beta) {
        recurrence(w);
        return;
    }
    for (int64_t g = 0; g < w->group; g++)
        for (int64_t i = 0; i < w->d->len_q; i++)
            if (!(w->d->use & ATTN_LINEAR_GRAD))
                forward_row(w, g, i, room, room + w->m);
            else if (w->p->grad_o)
                backward_row(w, g, i, room, room + w->m);
    if (w->d->use & ATTN_LINEAR_GRAD)
        backward_state(w);
    else
        forward_state(w);
}

static bool allocate(linear_plain *p)
{
    for (int i = 0; i < LINEAR_OUTPUTS; i++) {
        const size_t n = (size_t)linear_output_count(&p->desc, (linear_output)i) + 1;
        linear_result *r = &p->out[i];

        *r = (linear_result){ NULL, NULL };
        if (!linear_output_wanted(&p->desc, (linear_output)i))
            continue;
        r->value = calloc(n, sizeof *r->value);
        r->terms = calloc(n, sizeof *r->terms);
        if (!r->value || !r->terms)
            return false;
    }
    return true;
}

/* The heads of one batch and key/value head; false: no memory. */
static bool run_one(linear_plain *p, int64_t bh)
{
    const attn_linear_desc *d = &p->desc;
    work w = { .p = p,
               .d = d,
               .b = bh / d->heads_kv,
               .kvh = bh % d->heads_kv,
               .group = d->heads_q / d->heads_kv,
               .e = d->dim_qk,
               .m = dim_v(d),
               .causal = d->use & ATTN_LINEAR_CAUSAL,
               .normalize = d->use & ATTN_LINEAR_NORMALIZE,
               .scale = d->use & ATTN_LINEAR_SCALE ? (double)d->scale : 1,
               .eps = d->use & ATTN_LINEAR_EPS ? (double)d->eps : (double)1e-6f };
    const size_t q = (size_t)(w.group * d->len_q * w.e), k = (size_t)(d->len_kv * w.e);
    double *room =
        calloc(2 * q + 2 * k + (size_t)(2 * w.e * w.m + w.e + 2 * w.m) + 1, sizeof *room);

    if (!room)
        return false;
    w.eps = w.normalize ? w.eps : 0;
    w.keys = linear_plain_keys(p, w.b);
    w.q = room;
    w.slope_q = w.q + q;
    w.k = w.slope_q + q;
    w.slope_k = w.k + k;
    w.state = w.slope_k + k;
    w.square = w.state + w.e * w.m;
    w.z = w.square + w.e * w.m;
    run_head(&w, w.z + w.e);
    free(room);
    return true;
}

bool linear_plain_run(linear_plain *p)
{
    const attn_linear_desc *d = &p->desc;
    bool good = allocate(p);

#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) reduction(&& : good)
#endif
    for (int64_t bh = 0; bh < d->batch * d->heads_kv; bh++)
        good = good && run_one(p, bh);
    for (int i = 0; i < LINEAR_OUTPUTS && good; i++)
        for (int64_t n = 0; p->out[i].value && n < linear_output_count(d, (linear_output)i);
             n++)
            p->out[i].terms[n] = sqrt(p->out[i].terms[n]);
    if (!good)
        linear_plain_free(p);
    return good;
}

void linear_plain_free(linear_plain *p)
{
    for (int i = 0; i < LINEAR_OUTPUTS; i++) {
        free(p->out[i].value);
        free(p->out[i].terms);
        p->out[i] = (linear_result){ NULL, NULL };
    }
}
