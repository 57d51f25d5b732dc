/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear_lmha.c: linear attention token by token with the state of a head in the
 * registers of a group, and its gradients; in one walk, or in segments of the sequence. */
#include "core/size.h"
#include "plan/cuda/linear.h"

/* As cuda_kernels/linear/lmha.cuh, fwd_begin.cu and bwd_begin.cu have them. */
enum {
    COLUMNS = 64,
    THREADS = 256,
    WARPS = THREADS / 32,
    RUN = 4,        /* tokens from barrier to barrier                */
    FWD_BEGIN = 64, /* threads                                       */
    BEGIN_ROWS = 8,
    LEAST_PIECE = 32, /* tokens of a segment: its state costs as much  */
    BLOCKS = 2,       /* groups that a multiprocessor has registers for */
    BOTH = 128,       /* D and Dv up to which dK and dV share a state  */
    N_CLASSES = 3,
    N_TYPES = 3
};

static const int32_t class_dim[N_CLASSES] = { 64, 128, 256 };

typedef const char *const names[N_TYPES][N_CLASSES];
#define CLASSES(name)                           \
    {                                           \
        name "_d64", name "_d128", name "_d256" \
    }
#define KERNELS(pass, part)                           \
    {                                                 \
        CLASSES("linear_" pass "_lmha_f32" part),     \
            CLASSES("linear_" pass "_lmha_f16" part), \
            CLASSES("linear_" pass "_lmha_bf16" part) \
    }
static names outputs = KERNELS("fwd", ""), sums = KERNELS("fwd", "_sums");
static names sums_back = KERNELS("bwd", "_sums"), grads_q = KERNELS("bwd", "_q");
static names grads_kv = KERNELS("bwd", "_kv"); /* but of the last class */
static const char *const grads_k[N_TYPES] = { "linear_bwd_lmha_f32_k_d256",
                                              "linear_bwd_lmha_f16_k_d256",
                                              "linear_bwd_lmha_bf16_k_d256" };
static const char *const grads_v[N_TYPES] = { "linear_bwd_lmha_f32_v_d256",
                                              "linear_bwd_lmha_f16_v_d256",
                                              "linear_bwd_lmha_bf16_v_d256" };
static const char *const begins[N_TYPES] = { "linear_bwd_begin_f32", "linear_bwd_begin_f16",
                                             "linear_bwd_begin_bf16" };

/* Of a number of rows up to 256. */
static int class_of(int64_t rows)
{
    return rows <= class_dim[0] ? 0 : rows <= class_dim[1] ? 1 : 2;
}

/* Shared memory of a walk, as struct shared_lmha has it. */
static int64_t bytes_of(int64_t rows, int64_t columns, bool both)
{
    return 2 * 4 *
           (RUN * (2 * rows + (1 + WARPS) * columns + attn_max(rows, columns) + 2 +
                   2 * WARPS) +
            (both ? RUN : 1) * (rows + columns));
}

static bool is_causal(const attn_problem *p)
{
    return p->features & ATTN_FEAT_CAUSAL;
}

static bool normalizes(const attn_problem *p)
{
    return p->features & ATTN_FEAT_NORMALIZE;
}

/* How _split cuts a walk: tokens of a segment of the sums and of the walk, 0: one of all;
 * slots of each state. */
typedef struct cuts {
    int64_t sums, walk, slots;
} cuts;

/* Tokens of a segment, so that all groups run at once; an only one has room for a self-test. */
static int64_t cut(const attn_caps *c, int64_t tokens, int64_t groups)
{
    const int64_t room = attn_max(c->compute_units, 1) * BLOCKS / attn_max(groups, 1);
    const int64_t n = attn_max(attn_min(room, tokens / LEAST_PIECE), 1);

    if (n < 2)
        return attn_round_up(attn_max(tokens, ATTN_CUDA_LEAST_PIECE), RUN);
    return attn_round_up(attn_ceil_div(tokens, n), RUN);
}

static cuts find_cuts(const attn_problem *p, const attn_caps *c, bool back)
{
    const int64_t adding = back ? p->lq : p->lk, reading = back ? p->lk : p->lq;
    const int64_t width = attn_max(p->pass == ATTN_PASS_BWD ? p->d : 1, p->dv);
    const int64_t groups = p->b * p->hkv * attn_ceil_div(width, COLUMNS);
    cuts x = { 0 };

    if (is_causal(p)) {
        x.sums = x.walk = cut(c, p->lq, groups);
        x.slots = attn_max(attn_ceil_div(p->lq, x.sums), 1);
        return x;
    }
    x.sums = cut(c, adding, groups);
    x.walk = cut(c, reading, groups);
    x.slots = 1 + attn_max(attn_ceil_div(adding, x.sums), 1);
    return x;
}

static bool wants_back(const attn_problem *p)
{
    return p->grad & ~(uint32_t)ATTN_GRAD_Q;
}

/* Numbers of each query in the workspace. */
static int64_t row_floats(const attn_problem *p)
{
    return p->pass == ATTN_PASS_BWD && normalizes(p);
}

/* z is copied where several groups of a head read it, since the last of them may find
 * what the first wrote; _split has it in its slots. */
static bool copies_z(const attn_problem *p, bool split)
{
    const uint32_t both = ATTN_FEAT_NORMALIZE | ATTN_FEAT_STATE_IN;

    return !split && p->pass == ATTN_PASS_FWD && (p->features & both) == both &&
           p->dv > COLUMNS;
}

/* false: more than 2^63 - 1. */
static bool work_bytes(const attn_problem *p, const attn_caps *c, bool split, int64_t *out)
{
    const bool backward = p->pass == ATTN_PASS_BWD;
    const int64_t forth =
        !backward || p->grad & ATTN_GRAD_Q ? find_cuts(p, c, false).slots : 0;
    const int64_t back = backward && wants_back(p) ? find_cuts(p, c, true).slots : 0;
    int64_t rows;

    *out = copies_z(p, split) ? p->b * p->hkv * p->d : 0;
    return attn_mul(row_floats(p) * p->b * p->hq, p->lq, &rows) &&
           (!split || (attn_mul(p->b * p->hkv * p->d, attn_max(forth, back), out) &&
                       attn_mul(*out, p->dv + 1, out))) &&
           attn_add(*out, rows, out) && attn_mul(4, *out, out);
}

static const char *refusal(const attn_problem *p, const attn_caps *c, bool split)
{
    const int64_t most = attn_max(p->d, p->dv);
    const double heads = (double)p->b * (double)p->hq;
    const bool both = p->pass == ATTN_PASS_BWD && most <= BOTH;
    const int64_t dim = most <= class_dim[N_CLASSES - 1] ? class_dim[class_of(most)] : 0;
    int64_t bytes;

    if (!dim)
        return "D or Dv is over 256";
    if (!attn_cuda_counts(p))
        return "the tiles of so many queries or keys end beyond 2^31 - 1";
    if (bytes_of(dim, both ? dim : COLUMNS, both) > c->fast_bytes ||
        ATTN_CUDA_SCAN_THREADS > c->max_group)
        return "rows of four tokens do not fit the shared memory, or a group the limit of "
               "threads";
    if (heads * (double)attn_max(attn_ceil_div(most, COLUMNS),
                                 attn_ceil_div(p->lq, BEGIN_ROWS)) >
        0x1p31 - 1)
        return "more groups than a grid can have, 2^31 - 1";
    if (!work_bytes(p, c, split, &bytes) || bytes > c->max_alloc_bytes)
        return "a workspace with the states exceeds the device's memory";
    return NULL;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    return refusal(p, c, false);
}

static const char *applicable_split(const attn_problem *p, const attn_caps *c)
{
    return refusal(p, c, true);
}

/* What the steps of a scan have in common. */
typedef struct scan {
    bool back, split, scanned;
    uint32_t grad;
    cuts cut;
} scan;

static scan make_scan(const attn_problem *p, const attn_caps *c, bool back, bool split)
{
    scan s = { .back = back, .split = split };

    if (p->pass == ATTN_PASS_BWD)
        s.grad = p->grad & (back ? ~(uint32_t)ATTN_GRAD_Q : (uint32_t)ATTN_GRAD_Q);
    if (split)
        s.cut = find_cuts(p, c, back);
    s.scanned = s.cut.slots > (is_causal(p) ? ATTN_CUDA_MOST_ADDED : 2);
    return s;
}

static attn_step *add_step(const attn_problem *p, const scan *s, const char *kernel,
                           bool walks, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->grad = s->grad;
    step->grouped = true;
    step->tile_q = step->tile_k = 1;
    step->columns = COLUMNS;
    step->piece = walks ? s->cut.walk : s->cut.sums;
    step->merges = is_causal(p) ? 0 : s->cut.sums;
    step->merges_queries = s->back;
    step->row_floats = row_floats(p);
    step->block = THREADS;
    attn_cuda_linear_step(p, step);
    if (!is_causal(p) && s->back == walks)
        step->over = ATTN_OVER_KEY_STATES;
    attn_step_define(step, "LINEAR_SCANNED", s->scanned);
    attn_step_define(step, "LINEAR_SLOTS", s->split);
    return step;
}

/* A walk: its rows are those of D or of Dv, its columns the other's. */
static void add_walk(const attn_problem *p, const scan *s, const char *kernel,
                     uint32_t grad, bool by_d, int64_t rows, int64_t columns, bool both,
                     attn_choice *out)
{
    attn_step *const step = add_step(p, s, kernel, true, out);

    step->grad = grad;
    step->by_d = by_d;
    step->columns = columns;
    step->fast_bytes = bytes_of(rows, columns, both);
}

/* What the segments add to the state, and the sums of that. */
static void add_sums(const attn_problem *p, const scan *s, attn_choice *out)
{
    const int k = class_of(p->d), type = p->type - ATTN_F32;

    if (!s->split)
        return;
    add_step(p, s, s->back ? sums_back[type][k] : sums[type][k], false, out)->fast_bytes =
        bytes_of(class_dim[k], COLUMNS, s->back);
    if (s->scanned)
        add_step(p, s, "linear_fwd_scan", false, out)->block = ATTN_CUDA_SCAN_THREADS;
}

static void lower_begin(const attn_problem *p, bool split, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps];

    if (copies_z(p, split)) {
        step->kernel = "linear_fwd_begin";
        step->grouped = true;
        step->tile_q = step->tile_k = 1;
        step->columns = p->dv;
        step->block = FWD_BEGIN;
        attn_cuda_linear_step(p, step);
        out->n_steps++;
    } else if (row_floats(p) && p->grad & ~(uint32_t)ATTN_GRAD_V) {
        step->kernel = begins[p->type - ATTN_F32];
        step->grad = p->grad & ~(uint32_t)ATTN_GRAD_V;
        step->tile_q = BEGIN_ROWS;
        step->tile_k = 1;
        step->block = 32 * BEGIN_ROWS;
        attn_cuda_linear_step(p, step);
        step->over = ATTN_OVER_QUERIES;
        out->n_steps++;
    }
}

/* dV before dK: that one writes dS_in, which may lie where dS does. */
static void lower_gradients(const attn_problem *p, const attn_caps *c, bool split,
                            attn_choice *out)
{
    const int type = p->type - ATTN_F32, k = class_of(attn_max(p->d, p->dv));
    const uint32_t of_k = p->grad & (ATTN_GRAD_K | ATTN_GRAD_STATE);
    const int64_t dim = class_dim[k];
    scan s;

    if (p->grad & ATTN_GRAD_Q) {
        s = make_scan(p, c, false, split);
        add_sums(p, &s, out);
        add_walk(p, &s, grads_q[type][class_of(p->dv)], s.grad, true,
                 class_dim[class_of(p->dv)], COLUMNS, false, out);
    }
    if (!wants_back(p))
        return;
    s = make_scan(p, c, true, split);
    add_sums(p, &s, out);
    if (dim <= BOTH) {
        add_walk(p, &s, grads_kv[type][k], s.grad, false, dim, dim, true, out);
        return;
    }
    if (p->grad & ATTN_GRAD_V)
        add_walk(p, &s, grads_v[type], ATTN_GRAD_V, false, dim, COLUMNS, false, out);
    if (of_k)
        add_walk(p, &s, grads_k[type], of_k, true, dim, COLUMNS, false, out);
}

static void lower_any(const attn_problem *p, const attn_caps *c, bool split,
                      attn_choice *out)
{
    const int k = class_of(p->d);
    scan s;

    out->splits = 0;
    work_bytes(p, c, split, &out->workspace_bytes);
    lower_begin(p, split, out);
    if (p->pass == ATTN_PASS_BWD) {
        lower_gradients(p, c, split, out);
    } else {
        s = make_scan(p, c, false, split);
        add_sums(p, &s, out);
        add_walk(p, &s, outputs[p->type - ATTN_F32][k], 0, false, class_dim[k], COLUMNS,
                 false, out);
    }
    attn_choice_instance(out, "columns%d,run%d,states%lld,d%lld,dv%lld,%s", COLUMNS, RUN,
                         (long long)(split ? find_cuts(p, c, false).slots : 1),
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason =
        split ? "segments of the sequence, as many as run at once, of 32 tokens "
                "at least"
              : "64 columns of a head's state for each group, in registers";
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    lower_any(p, c, false, out);
}

static void lower_split(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    lower_any(p, c, true, out);
}

#define VARIANT(which, pass_of, text, takes, lowers)          \
    const attn_variant attn_cuda_linear_##which##_variant = { \
        .name = "linear_" #which,                             \
        .about = text,                                        \
        .op = ATTN_OP_LINEAR,                                 \
        .pass = pass_of,                                      \
        .features = ATTN_FEATURES_LINEAR,                     \
        .traits = ATTN_TRAIT_BY_NAME,                         \
        .applicable = takes,                                  \
        .lower = lowers,                                      \
    }

VARIANT(fwd_lmha, ATTN_PASS_FWD,
        "token by token, a head's state in the registers of a group", applicable, lower);
VARIANT(fwd_lmha_split, ATTN_PASS_FWD,
        "the same in segments of the sequence, for few heads", applicable_split,
        lower_split);
VARIANT(bwd_lmha, ATTN_PASS_BWD,
        "gradients token by token: a walk forwards for dQ, one backwards for dK and dV, "
        "which share a state in registers",
        applicable, lower);
VARIANT(bwd_lmha_split, ATTN_PASS_BWD,
        "the same in segments of the sequence, for few heads", applicable_split,
        lower_split);
