/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_fwd_split.c: few queries and many keys: pieces of the keys fill the
 * device, and a second step merges them. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/cuda/variants.h"

enum {
    N_DIMS = ATTN_CUDA_DIMS,
    N_TYPES = 3,
    THREADS = 128,
    /* as cuda_kernels/softmax/fwd_split_merge.cu has them */
    MERGE_THREADS = 128,
    MERGE_WIDE_THREADS = 32,
    NARROW = 32, /* columns of a group */
    WIDE = 128,
    FEW_PIECES = 8,    /* more take a thread of a wide one several turns */
    MOST_OF_WIDE = 32, /* and these are nearly all that it has room for */
    MANY_ROWS = 4,     /* a multiprocessor: more groups for each would only wait in turn */
    FEW_KEYS = 256,
    FEW_QUERIES = 8,
    /* Without a tree keys of a piece follow from Lk alone, so that a row's bits do: up to
     * 8k keys there are about sixteen pieces, for eight key/value heads are to fill 132
     * multiprocessors; then pieces are long enough for their partial sums to be one
     * percent of K and V, and not so many that the merge takes long. */
    LEAST_PIECE = 64,
    USUAL_PIECE = 512,
    SHORT_PIECES = 16,
    MOST_PIECES = 128,
    /* With one (cuda_kernels/softmax/split_tree.cuh) pieces are nodes of it: four leaves of 64
     * keys at least, and four times as many on each level that a group has registers for. */
    TREE_WIDTH = 4,
    LEAST_NODE = 256,
    LARGEST_NODE = 16384,
    LARGEST_OF_MANY_ROWS = 4096,
    LARGEST_IF_UNEVEN = 1024, /* where some sequences may end early, others not */
    TURN_KEYS = 64,           /* what the begin and the end of a group cost, in keys */
    MOST_APART = 3,         /* pieces of a group: each ends with a state that is written */
    MOST_RESIDENT = 2,      /* groups on a multiprocessor, as their shared memory has it */
    ROUND_BYTES = 256 << 20 /* of workspace: more goes in rounds of queries */
};

/* Instances that have to look at single scores, or at pages, are not "ranges"; those for rows that
 * can be moved 16 bytes at a time, of which nothing is hidden, are "plain". */
enum { RANGES, ALL, MANY_RANGES, MANY_ALL, PLAIN, N_KINDS };

/* A kernel file, as cuda_kernels/softmax/fwd_split.cu and fwd_split_mma.cu are: rows of a
 * group, few or many, and its shared memory, where D is small and of the largest class: a
 * thread's for rows of K and V on their way, and the group's for its work. With many rows K and
 * V are read once where few would read them twice, for more registers; for D 256 there are not
 * so many. */
typedef struct family {
    int32_t few, many; /* 0: few only */
    int32_t ring_bytes[2], work_bytes[2];
    bool tree, plain; /* plain: has such instances, for few rows */
    const char *kernels[N_TYPES][N_DIMS][N_KINDS];
} family;

#define KINDS(name)                                                                       \
    {                                                                                     \
        name "_ranges", name "_all", name "_ranges_many", name "_all_many", name "_plain" \
    }
#define DIMS(name)                                                    \
    {                                                                 \
        KINDS(name "_d64"), KINDS(name "_d128"), KINDS(name "_d256"), \
    }

static const family cores = {
    .few = 4,
    .ring_bytes = { 384, 384 },
    .work_bytes = { 1024, 1024 },
    .kernels = { DIMS("softmax_fwd_split_f32"), DIMS("softmax_fwd_split_f16"),
                 DIMS("softmax_fwd_split_bf16") },
};

static const family tensor_cores = {
    .few = 8,
    .many = 16,
    .ring_bytes = { 512, 768 },
    .work_bytes = { 13312, 3072 },
    .tree = true,
    .plain = true,
    .kernels = { { { NULL } },
                 DIMS("softmax_fwd_split_mma_f16"),
                 DIMS("softmax_fwd_split_mma_bf16") },
};

/* Narrow, wide. */
#define MERGES(type)                                                                       \
    {                                                                                      \
        "softmax_fwd_split_merge_" type "_narrow", "softmax_fwd_split_merge_" type "_wide" \
    }
static const char *const merges[N_TYPES][2] = { MERGES("f32"), MERGES("f16"),
                                                MERGES("bf16") };

static int64_t group_of(const attn_problem *p)
{
    return p->hkv ? p->hq / p->hkv : 1;
}

static bool is_large(const attn_problem *p)
{
    return attn_cuda_dim_class(p) >= N_DIMS - 1;
}

static bool many_rows(const family *f, const attn_problem *p)
{
    return f->many && !is_large(p) && p->lq > f->few / group_of(p);
}

static int64_t rows_of(const family *f, const attn_problem *p)
{
    return many_rows(f, p) ? f->many : f->few;
}

static int64_t ring_bytes(const family *f, const attn_problem *p)
{
    return (int64_t)THREADS * f->ring_bytes[is_large(p)];
}

static int64_t group_bytes(const family *f, const attn_problem *p)
{
    return ring_bytes(f, p) + f->work_bytes[is_large(p)];
}

static int64_t pieces_of(const attn_problem *p, int64_t piece)
{
    return attn_max(attn_ceil_div(p->lk, piece), 1);
}

static int64_t even_piece(int64_t keys, int64_t splits)
{
    const int64_t wish = splits ? attn_ceil_div(keys, splits)
                         : keys > (int64_t)USUAL_PIECE * MOST_PIECES
                             ? attn_ceil_div(keys, MOST_PIECES)
                             : attn_min(attn_ceil_div(keys, SHORT_PIECES), USUAL_PIECE);

    return attn_round_up(wish, LEAST_PIECE);
}

static int64_t largest_node(const family *f, const attn_problem *p)
{
    return many_rows(f, p) ? LARGEST_OF_MANY_ROWS : LARGEST_NODE;
}

/* The keys of a piece, and of a group that has one or more of them. */
typedef struct cut {
    int64_t piece, share;
} cut;

/* Bits do not follow from the node that a piece is, so it may follow from batch and heads, and
 * so may the pieces of a group: that with which all groups are done first, if each takes as long
 * as its keys, and of those the fewest pieces. Where keys may be hidden at run time from some
 * groups alone, the others are not to have too many. */
static cut best_cut(const family *f, const attn_problem *p, const attn_caps *c)
{
    enum {
        MAY_END_EARLY =
            ATTN_FEAT_LENS_KV | ATTN_FEAT_PACKED_K | ATTN_FEAT_OFFSETS | ATTN_FEAT_WINDOW
    };
    const int64_t resident = attn_min(c->fast_bytes / group_bytes(f, p), MOST_RESIDENT);
    const int64_t at_once = attn_max(resident, 1) * c->compute_units;
    const int64_t rows = attn_max(attn_ceil_div(p->lq * group_of(p), rows_of(f, p)), 1);
    const int64_t largest =
        p->features & MAY_END_EARLY ? LARGEST_IF_UNEVEN : largest_node(f, p);
    const int apart = many_rows(f, p) || is_large(p) ? 1 : MOST_APART; /* for registers */
    int64_t least = INT64_MAX;
    cut best = { LEAST_NODE, LEAST_NODE };

    for (int64_t node = LEAST_NODE; node <= largest; node *= TREE_WIDTH)
        for (int64_t share = node; share <= node * apart && share <= largest;
             share += node) {
            int64_t groups, cost;

            if (attn_mul(rows * pieces_of(p, share), p->b * attn_max(p->hkv, 1), &groups) &&
                attn_mul(attn_ceil_div(groups, at_once), attn_min(share, p->lk) + TURN_KEYS,
                         &cost) &&
                (cost < least ||
                 (cost == least && pieces_of(p, node) < pieces_of(p, best.piece)))) {
                least = cost;
                best = (cut){ node, share };
            }
        }
    return best;
}

static cut even_cut(int64_t piece)
{
    return (cut){ piece, piece };
}

static cut cut_of(const family *f, const attn_problem *p, const attn_caps *c,
                  int64_t splits)
{
    const int64_t keys = attn_max(p->lk, 1),
                  wish = splits ? attn_ceil_div(keys, splits) : 0;
    int64_t node = LEAST_NODE;

    if (!f->tree)
        return even_cut(even_piece(keys, splits));
    if (!splits)
        return best_cut(f, p, c);
    if (wish > largest_node(f, p)) /* of such, one after another without a tree */
        return even_cut(attn_round_up(wish, largest_node(f, p)));
    while (node < wish)
        node *= TREE_WIDTH;
    return even_cut(node);
}

/* Workspace of so many queries of all heads; false if that overflows. */
static bool work_bytes(const attn_problem *p, int64_t pieces, int64_t queries,
                       int64_t *bytes)
{
    return attn_mul(attn_max(p->b * p->hq, 1), pieces, bytes) &&
           attn_mul(*bytes, 4 * (attn_round_up(p->dv, 4) + 2), bytes) &&
           attn_mul(*bytes, queries, bytes) && *bytes <= INT64_MAX - 16;
}

/* Queries of a round; 0: not even one. */
static int64_t round_of(const attn_problem *p, const attn_caps *c, int64_t piece)
{
    int64_t one;

    if (!work_bytes(p, pieces_of(p, piece), 1, &one) || one > c->max_alloc_bytes - 16)
        return 0;
    return attn_max(attn_min(p->lq, attn_min(ROUND_BYTES, c->max_alloc_bytes) / one), 1);
}

/* The rows of a round of one head are an int to the kernel; both steps fit a grid. */
static bool fits_grid(const family *f, const attn_problem *p, int64_t piece,
                      int64_t queries)
{
    int64_t rows, n;

    return attn_mul(queries, group_of(p), &rows) && rows <= INT32_MAX &&
           attn_mul(attn_ceil_div(rows, rows_of(f, p)) * pieces_of(p, piece),
                    p->b * attn_max(p->hkv, 1), &n) &&
           n <= INT32_MAX &&
           attn_mul(queries * attn_max(attn_ceil_div(p->dv, NARROW), 1), p->b * p->hq,
                    &n) &&
           n <= INT32_MAX;
}

static const char *refusal(const family *f, const attn_problem *p, const attn_caps *c)
{
    const int64_t piece = cut_of(f, p, c, 0).piece, queries = round_of(p, c, piece);

    if (attn_cuda_dim_class(p) == N_DIMS)
        return "D or Dv is over 256";
    if (!attn_cuda_counts(p))
        return "the tiles of so many queries or keys end beyond 2^31 - 1";
    if (group_bytes(f, p) > c->fast_bytes || THREADS > c->max_group ||
        MERGE_THREADS > c->max_group)
        return "its ring does not fit the shared memory, or a group the limit of threads";
    if (!queries)
        return "the partial results of one query of all heads fit no allocation";
    if (!fits_grid(f, p, piece, queries))
        return "more groups than a grid can have, 2^31 - 1";
    return NULL;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    return refusal(&cores, p, c);
}

static const char *applicable_mma(const attn_problem *p, const attn_caps *c)
{
    if (p->type == ATTN_F32)
        return "takes f16 and bf16, not f32";
    if (c->capability < 80)
        return "wants compute capability 8.0 or more";
    return refusal(&tensor_cores, p, c);
}

/* Never by batch or heads: a row's bits must not depend on them. */
static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->lk < FEW_KEYS)
        return "takes it, but so few keys are not worth a second step";
    if (p->lq > FEW_QUERIES)
        return "takes it, but so many queries reuse K and V without it";
    return NULL;
}

/* Rows of `dim` elements can be moved 16 bytes at a time. */
static bool whole(const attn_problem *p, int tensor, int64_t dim)
{
    return p->layout[tensor] == ATTN_LAYOUT_16 &&
           dim * (int64_t)attn_type_bytes(p->type) % 16 == 0;
}

static int kind_of(const family *f, const attn_problem *p)
{
    enum { EACH_SCORE = ATTN_FEATURES_TERMS | ATTN_FEAT_SOFTCAP | ATTN_FEAT_PAGES };
    const bool all = p->features & EACH_SCORE;

    if (many_rows(f, p))
        return all ? MANY_ALL : MANY_RANGES;
    if (f->plain && !(p->features & ~(uint32_t)ATTN_FEAT_LSE) &&
        whole(p, ATTN_TENSOR_Q, p->d) && whole(p, ATTN_TENSOR_K, p->d) &&
        whole(p, ATTN_TENSOR_V, p->dv))
        return PLAIN;
    return all ? ALL : RANGES;
}

static void lower_merge(const attn_problem *p, const attn_caps *c, int64_t piece,
                        int64_t queries, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    const bool many = p->b * p->hq * queries >= MANY_ROWS * c->compute_units;
    const bool wide = pieces_of(p, piece) <= (many ? MOST_OF_WIDE : FEW_PIECES);

    step->kernel = merges[p->type - ATTN_F32][wide];
    step->tile_q = 1;
    step->tile_k = step->merges = piece;
    step->columns = wide ? WIDE : NARROW;
    step->overlaps = true;
    step->block = wide ? MERGE_WIDE_THREADS : MERGE_THREADS;
    attn_step_softmax(step, p, ATTN_READS_ALL);
}

static void lower_with(const family *f, const attn_problem *p, const attn_caps *c,
                       attn_choice *out)
{
    static const char *const names[N_KINDS] = { "ranges", "all", "ranges", "all", "plain" };
    const int i = attn_cuda_dim_class(p), kind = kind_of(f, p);
    attn_step *step = &out->step[out->n_steps++];
    cut keys = cut_of(f, p, c, out->splits);
    int64_t queries = round_of(p, c, keys.piece);

    if (!queries ||
        !fits_grid(f, p, keys.piece, queries)) { /* the wish is more than it can do */
        keys = cut_of(f, p, c, 0);
        queries = round_of(p, c, keys.piece);
    }
    out->splits = pieces_of(p, keys.piece);
    step->ends = f->tree && out->splits == 1;
    if (step->ends)
        queries = p->lq;
    else {
        work_bytes(p, out->splits, queries, &out->workspace_bytes);
        out->workspace_bytes += 16;
    }
    step->kernel = f->kernels[p->type - ATTN_F32][i][kind];
    step->grouped = true;
    step->tile_q = rows_of(f, p);
    step->tile_k = step->piece = keys.piece;
    step->share = keys.share;
    step->block = THREADS;
    attn_step_softmax(step, p, ATTN_READS_ALL);
    attn_step_define(step, "WHOLE_Q", whole(p, ATTN_TENSOR_Q, p->d));
    attn_step_define(step, "WHOLE_K", whole(p, ATTN_TENSOR_K, p->d));
    attn_step_define(step, "WHOLE_V", whole(p, ATTN_TENSOR_V, p->dv));
    attn_choice_instance(out, "p%lld,r%lld,dim%d,d%lld,dv%lld,%s,%s", (long long)keys.piece,
                         (long long)step->tile_q, attn_cuda_dim[i], (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type), names[kind]);
    out->tile_reason =
        f->tree ? "r: rows of all heads that share K and V, read once for all of them; "
                  "pieces are nodes of a tree of keys, which bits follow from"
                : "r: rows of all heads that share K and V, read once for all of them; "
                  "pieces follow from the number of keys";
    attn_choice_budget(out, "rows of k and v on their way", ring_bytes(f, p));
    attn_choice_budget(out, "the group's work", f->work_bytes[is_large(p)]);
    if (!step->ends)
        lower_merge(p, c, keys.piece, queries, out);
    for (int n = 0; n < out->n_steps; n++)
        out->step[n].round_queries = queries < p->lq ? queries : 0;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    lower_with(&cores, p, c, out);
}

static void lower_mma(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    lower_with(&tensor_cores, p, c, out);
}

const attn_variant attn_cuda_softmax_fwd_split_mma_variant = {
    .name = "softmax_fwd_split_mma",
    .about = "few queries, f16 and bf16: the same on tensor cores",
    .features = ATTN_FEATURES_ALL & ~(uint32_t)(ATTN_FEAT_BIAS | ATTN_FEAT_MASK),
    .splits = true,
    .applicable = applicable_mma,
    .worse = worse,
    .lower = lower_mma,
};

const attn_variant attn_cuda_softmax_fwd_split_variant = {
    .name = "softmax_fwd_split",
    .about = "few queries: keys in pieces over the whole device, merged by a second step",
    .features = ATTN_FEATURES_ALL,
    .splits = true,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
