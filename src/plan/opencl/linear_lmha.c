/* SPDX-License-Identifier: MIT */
/* plan/opencl/linear_lmha.c: linear attention token by token on OpenCL devices with the state of
 * a head in the registers or the local memory of a group, and its gradients; in one walk, or in
 * segments of the sequence. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/variants.h"

enum {
    COLUMNS = 64,     /* of the state, of a group, at most                         */
    MOST_DIM = 256,   /* D and Dv                                                  */
    BOTH = 128,       /* ... up to which dK and dV share a state                   */
    SPAN = 16,        /* items along the columns                                   */
    FEW_SLICES = 8,   /* and along the rows                                        */
    MANY_SLICES = 16, /* ... where there are many rows                             */
    MOST_KEPT = 64,   /* numbers of an item that registers hold                    */
    MOST_RUN = 4,     /* tokens from barrier to barrier                            */
    RESERVE = 256,    /* bytes that drivers keep of the local memory               */
    LEAST_PIECE = 32, /* tokens of a segment: its state costs as much              */
    ONLY_PIECE = 128, /* ... of an only one: a self-test has 67                    */
    BLOCKS = 2,       /* groups of a GPU's compute unit at once                    */
    MOST_ADDED = 8,   /* states of segments that a walk adds up itself             */
    LARGEST_STEP = 1024
};

/* A scan as cl_kernels/linear/scan.clh counts them; the first three are ATTN_SCAN_. */
enum { SCAN_Q = ATTN_SCAN_Q, SCAN_K = ATTN_SCAN_K, SCAN_V = ATTN_SCAN_V, SCAN_KV, SCAN_O };

/* What a kernel instance does; `sums`: the step before a walk of segments. */
typedef struct walk {
    int scan;
    bool sums;
} walk;

/* The numbers of an instance, as lmha.clh names them. */
typedef struct shape {
    int64_t span, slices, wide, run, bytes;
    bool in_local;
} shape;

static bool is_causal(const attn_problem *p)
{
    return p->features & ATTN_FEAT_CAUSAL;
}

static bool normalizes(const attn_problem *p)
{
    return p->features & ATTN_FEAT_NORMALIZE;
}

static bool is_backward(const attn_problem *p)
{
    return p->pass == ATTN_PASS_BWD;
}

static bool is_cpu(const attn_caps *c)
{
    return c->kind == ATTN_DEVICE_CPU;
}

/* Rows and columns of a scan's state, the normaliser's beside. */
static int64_t rows_of(const attn_problem *p, walk w)
{
    return w.scan == SCAN_Q || w.scan == SCAN_K ? p->dv : p->d;
}

static int64_t width_of(const attn_problem *p, walk w)
{
    return w.scan == SCAN_Q || w.scan == SCAN_K ? p->d : p->dv;
}

/* Whether rows read the columns of the state, too. */
static bool reads_both(walk w)
{
    return w.scan == SCAN_KV && !w.sums;
}

/* Local memory of a group, as lmha.clh has it. */
static int64_t bytes_of(const attn_problem *p, walk w, const shape *s)
{
    const int64_t keep = attn_ceil_div(rows_of(p, w), s->slices), pitch = keep * s->slices;
    const int64_t columns = s->span * s->wide, two = reads_both(w) ? 2 : 1;
    const int64_t token = (w.sums ? 1 : 2) * pitch + two * columns;
    const int64_t side = reads_both(w)      ? s->span * (pitch + 1)
                         : w.scan == SCAN_O ? s->slices
                                            : 1;

    return 4 * (2 * s->run * (token + (w.sums ? 1 : s->slices * columns) + side + 1) +
                4 * s->run + (s->in_local ? pitch * columns : 1));
}

/* The first shape that keeps the device's limits: fewer tokens from barrier to barrier, then
 * fewer columns, if the group need not have all. false: none. */
static bool find_shape(const attn_problem *p, const attn_caps *c, walk w, shape *s)
{
    const bool all = reads_both(w);
    const int64_t rows = rows_of(p, w), width = width_of(p, w);
    const bool many = all || rows > MOST_KEPT / 4 * FEW_SLICES;

    /* a processor has one item, which needs no other: PoCL 5 lets items share what they have
     * to themselves across barriers (LLVM 16 and 17; CONTRIBUTING.md) */
    s->span = is_cpu(c) ? 1 : SPAN;
    s->slices = is_cpu(c) ? 1 : many ? MANY_SLICES : FEW_SLICES;
    while (s->span * s->slices > c->max_group && s->slices > 1)
        s->slices /= 2;
    while (s->span > c->max_group && s->span > 1)
        s->span /= 2;
    s->wide = attn_ceil_div(all ? width : attn_min(width, COLUMNS), s->span);
    for (; s->wide; s->wide = all ? 0 : s->wide / 2) {
        s->in_local = s->wide * attn_ceil_div(rows, s->slices) > MOST_KEPT;
        for (s->run = attn_min(MOST_RUN, s->span * s->slices); s->run; s->run /= 2) {
            s->bytes = bytes_of(p, w, s);
            if (s->bytes <= c->fast_bytes - RESERVE)
                return true;
        }
    }
    return false;
}

static int64_t groups_of(const attn_problem *p, walk w, const shape *s)
{
    return p->b * p->hkv * attn_ceil_div(width_of(p, w), s->span * s->wide);
}

/* Iterations of a work-item's loops in a walk of so many tokens. */
static double loops_of(const attn_problem *p, walk w, const shape *s, int64_t tokens)
{
    const double keep = (double)attn_ceil_div(rows_of(p, w), s->slices);
    const double items = (double)(s->span * s->slices), run = (double)s->run;
    const double columns = (double)(s->span * s->wide);
    const double places = run * (keep * (double)s->slices + columns) / items + 2;
    const double token = 2 * keep * (double)(s->wide + 1) + 2 * (double)s->wide + 1;

    return ((double)tokens / run + 2) *
               (4 * places + run * token + places * (double)(s->slices + s->span)) +
           4 * keep * (double)(s->wide + 1) + (double)p->lk;
}

/* How _split cuts a walk: tokens of a segment of the sums and of the walk; slots of each
 * state. */
typedef struct cuts {
    int64_t sums, walk, slots;
} cuts;

/* Tokens of a segment, so that all groups run at once. */
static int64_t cut(const attn_caps *c, int64_t tokens, int64_t groups)
{
    const int64_t room = attn_max(c->compute_units, 1) * (is_cpu(c) ? 1 : BLOCKS);
    const int64_t n = attn_min(room / attn_max(groups, 1), tokens / LEAST_PIECE);

    if (n < 2)
        return attn_round_up(attn_max(tokens, ONLY_PIECE), MOST_RUN);
    return attn_round_up(attn_ceil_div(tokens, n), MOST_RUN);
}

static cuts find_cuts(const attn_problem *p, const attn_caps *c, bool back)
{
    const int64_t adding = back ? p->lq : p->lk, reading = back ? p->lk : p->lq;
    const int64_t width = attn_max(is_backward(p) ? p->d : 1, p->dv);
    const int64_t groups = p->b * p->hkv * attn_ceil_div(width, COLUMNS);
    cuts x;

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

static bool wants_forth(const attn_problem *p)
{
    return !is_backward(p) || p->grad & ATTN_GRAD_Q;
}

/* Whether one walk has dK and dV. */
static bool shares(const attn_problem *p, const attn_caps *c)
{
    shape s = { 0 };

    return attn_max(p->d, p->dv) <= BOTH && find_shape(p, c, (walk){ SCAN_KV, false }, &s);
}

/* The walks of a problem, in their order. dV before dK: that one writes dS_in, which may lie
 * where dS does. */
static int find_walks(const attn_problem *p, const attn_caps *c, int out[ATTN_SCANS])
{
    int n = 0;

    if (wants_forth(p))
        out[n++] = is_backward(p) ? SCAN_Q : SCAN_O;
    if (!wants_back(p) || !is_backward(p))
        return n;
    if (shares(p, c)) {
        out[n++] = SCAN_KV;
        return n;
    }
    if (p->grad & ATTN_GRAD_V)
        out[n++] = SCAN_V;
    if (p->grad & (ATTN_GRAD_K | ATTN_GRAD_STATE))
        out[n++] = SCAN_K;
    return n;
}

static bool goes_back(int scan)
{
    return scan != SCAN_Q && scan != SCAN_O;
}

/* The step that finds the sums of the segments before a walk. */
static walk sums_of(int scan)
{
    return (walk){ goes_back(scan) ? SCAN_KV : scan, true };
}

static int64_t columns_of(const shape *s)
{
    return s->span * s->wide;
}

/* z is copied where several groups of a head read it, since the last of them may find what the
 * first wrote; _split has it in its slots. */
static bool copies_z(const attn_problem *p, const attn_caps *c, bool split)
{
    const uint32_t both = ATTN_FEAT_NORMALIZE | ATTN_FEAT_STATE_IN;
    shape s = { 0 };

    return !split && !is_backward(p) && (p->features & both) == both &&
           find_shape(p, c, (walk){ SCAN_O, false }, &s) && p->dv > columns_of(&s);
}

/* false: more than 2^63 - 1. */
static bool work_bytes(const attn_problem *p, const attn_caps *c, bool split, int64_t *out)
{
    const int64_t forth = wants_forth(p) ? find_cuts(p, c, false).slots : 0;
    const int64_t back = is_backward(p) && wants_back(p) ? find_cuts(p, c, true).slots : 0;
    int64_t rows = 0;

    *out = copies_z(p, c, split) ? p->b * p->hkv * p->d : 0;
    return (!is_backward(p) || !normalizes(p) || attn_mul(p->b * p->hq, p->lq, &rows)) &&
           (!split || (attn_mul(p->b * p->hkv * p->d, attn_max(forth, back), out) &&
                       attn_mul(*out, p->dv + 1, out))) &&
           attn_add(*out, rows, out) && attn_mul(4, *out, out);
}

/* Tokens of a walk: of the queries of a group's heads, and in the full form keys. */
static double tokens_of(const attn_problem *p)
{
    const double share = p->hkv ? (double)p->hq / (double)p->hkv : 1;

    return share * (double)p->lq + (is_causal(p) ? 0 : (double)p->lk);
}

static double walked_of(const attn_problem *p, const attn_caps *c, bool back, bool split)
{
    const double share = p->hkv ? (double)p->hq / (double)p->hkv : 1;
    const cuts x = find_cuts(p, c, back);

    return split ? share * (double)attn_max(x.sums, x.walk) : tokens_of(p);
}

static const char *refusal(const attn_problem *p, const attn_caps *c, bool split)
{
    int scans[ATTN_SCANS];
    double most_groups = 0;
    shape s = { 0 };
    int n;
    int64_t bytes;

    if (attn_max(p->d, p->dv) > MOST_DIM)
        return "D or Dv is over 256";
    if (attn_max(p->lq, p->lk) > INT32_MAX - LARGEST_STEP ||
        tokens_of(p) > INT32_MAX - LARGEST_STEP)
        return "the tiles of so many queries or keys end beyond 2^31 - 1";
    n = find_walks(p, c, scans);
    for (int i = 0; i < 2 * n; i++) {
        const walk w = i % 2 ? sums_of(scans[i / 2]) : (walk){ scans[i / 2], false };
        const cuts x = find_cuts(p, c, goes_back(w.scan));
        double groups;

        if (w.sums && !split)
            continue;
        if (!find_shape(p, c, w, &s))
            return "rows of four tokens do not fit the local memory, or a group the limit "
                   "of "
                   "work-items";
        groups =
            (double)groups_of(p, w, &s) * (split ? (double)(x.slots + p->lk / x.walk) : 1);
        most_groups = groups > most_groups ? groups : most_groups;
        if (c->max_loops &&
            loops_of(p, w, &s, (int64_t)walked_of(p, c, goes_back(w.scan), split)) >
                (double)c->max_loops)
            return "the driver cuts loops off before so many tokens are walked";
    }
    if (most_groups > INT32_MAX ||
        (is_backward(p) && (double)p->b * (double)p->hq * (double)p->lq > INT32_MAX))
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

/* A walk, what the segments add to the state, or, with a kernel of its own, the sums of that. */
static void add_step(const attn_problem *p, const attn_caps *c, walk w, bool split,
                     const char *scanner, attn_choice *out)
{
    static const char *const names[2] = { "linear_fwd_lmha", "linear_bwd_lmha" };
    const bool back = goes_back(w.scan), causal = is_causal(p);
    attn_step *step =
        attn_opencl_linear_step(p, scanner ? scanner : names[is_backward(p)], out);
    const cuts x = split ? find_cuts(p, c, back) : (cuts){ 0 };
    const bool scanned = x.slots > (causal ? MOST_ADDED : 2);
    shape s = { 0 };

    find_shape(p, c, w, &s);
    step->columns = scanner ? COLUMNS : columns_of(&s);
    step->by_d = scanner ? is_backward(p) : w.scan == SCAN_Q || w.scan == SCAN_K;
    step->piece = w.sums ? x.sums : x.walk;
    step->merges = causal ? 0 : x.sums;
    step->merges_queries = back;
    step->block = scanner ? attn_min(COLUMNS, c->max_group) : s.span * s.slices;
    step->fast_bytes = scanner ? 0 : s.bytes;
    if (is_backward(p) && back)
        step->grad = w.scan == SCAN_V   ? ATTN_GRAD_V
                     : w.scan == SCAN_K ? p->grad & (ATTN_GRAD_K | ATTN_GRAD_STATE)
                                        : p->grad & ~(uint32_t)ATTN_GRAD_Q;
    else if (is_backward(p))
        step->grad = ATTN_GRAD_Q;
    if (!causal && back != w.sums)
        step->over = ATTN_OVER_KEY_STATES;
    if (scanner) { /* slots of every scan of gradients lie as those of dK and dQ do */
        if (is_backward(p))
            attn_step_define(step, "SCAN", back ? SCAN_K : SCAN_Q);
        attn_step_define(step, "COLUMNS", COLUMNS);
        attn_step_define(step, "ITEMS", step->block);
        return;
    }
    attn_step_define(step, "SCAN", w.scan);
    attn_step_define(step, "SPAN", s.span);
    attn_step_define(step, "SLICES", s.slices);
    attn_step_define(step, "WIDE", s.wide);
    attn_step_define(step, "RUN", s.run);
    attn_step_define(step, "IN_LOCAL", s.in_local);
    attn_step_define(step, "SUMS", w.sums);
    attn_step_define(step, "SPLIT", split);
    attn_step_define(step, "SCANNED", scanned);
}

static void add_sums(const attn_problem *p, const attn_caps *c, int scan, attn_choice *out)
{
    const walk w = sums_of(scan);

    add_step(p, c, w, true, NULL, out);
    if (find_cuts(p, c, goes_back(scan)).slots > (is_causal(p) ? MOST_ADDED : 2))
        add_step(p, c, w, true,
                 is_backward(p) ? "linear_bwd_chunk_scan" : "linear_fwd_chunk_scan", out);
}

static void lower_begin(const attn_problem *p, const attn_caps *c, bool split,
                        attn_choice *out)
{
    attn_step *step;

    if (is_backward(p) && normalizes(p) && p->grad & ~(uint32_t)ATTN_GRAD_V)
        attn_opencl_linear_begin(p, c, out);
    if (!copies_z(p, c, split))
        return;
    step = attn_opencl_linear_step(p, "linear_fwd_begin", out);
    step->columns = p->dv;
    step->block = attn_min(COLUMNS, c->max_group);
    attn_step_define(step, "ITEMS", step->block);
}

static void lower_any(const attn_problem *p, const attn_caps *c, bool split,
                      attn_choice *out)
{
    int scans[ATTN_SCANS];
    const int n = find_walks(p, c, scans);
    shape s = { 0 };

    out->splits = 0;
    work_bytes(p, c, split, &out->workspace_bytes);
    lower_begin(p, c, split, out);
    for (int i = 0; i < n; i++) {
        /* dK and dV read the same sums */
        if (split && (i == 0 || !goes_back(scans[i - 1])))
            add_sums(p, c, scans[i], out);
        add_step(p, c, (walk){ scans[i], false }, split, NULL, out);
        find_shape(p, c, (walk){ scans[i], false }, &s);
    }
    attn_choice_instance(out,
                         "columns%lld,slices%lld,run%lld,%s,states%lld,d%lld,dv%lld,%s",
                         (long long)columns_of(&s), (long long)s.slices, (long long)s.run,
                         s.in_local ? "local" : "private",
                         (long long)(split ? find_cuts(p, c, false).slots : 1),
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason =
        split ? "segments of the sequence, as many as run at once, of 32 tokens "
                "at least"
              : "64 columns of a head's state for each group, in registers up to 64 "
                "numbers of "
                "each work-item, else in local memory; of the last step";
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    lower_any(p, c, false, out);
}

static void lower_split(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    lower_any(p, c, true, out);
}

#define VARIANT(which, pass_of, text, takes, lowers)            \
    const attn_variant attn_opencl_linear_##which##_variant = { \
        .name = "linear_" #which,                               \
        .about = text,                                          \
        .op = ATTN_OP_LINEAR,                                   \
        .pass = pass_of,                                        \
        .features = ATTN_FEATURES_LINEAR,                       \
        .traits = ATTN_TRAIT_BY_NAME,                           \
        .applicable = takes,                                    \
        .lower = lowers,                                        \
    }

VARIANT(fwd_lmha, ATTN_PASS_FWD,
        "token by token, a head's state in the registers or the local memory of a group",
        applicable, lower);
VARIANT(fwd_lmha_split, ATTN_PASS_FWD,
        "the same in segments of the sequence, for few heads", applicable_split,
        lower_split);
VARIANT(bwd_lmha, ATTN_PASS_BWD,
        "gradients token by token: a walk forwards for dQ, one backwards for dK and dV, "
        "which share a state",
        applicable, lower);
VARIANT(bwd_lmha_split, ATTN_PASS_BWD,
        "the same in segments of the sequence, for few heads", applicable_split,
        lower_split);
