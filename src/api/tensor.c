/* SPDX-License-Identifier: MIT */
/* api/tensor.c: the tensors of one call against the problem that was planned. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "core/size.h"
#include "core/status.h"

#define RULE(cond, ...)                                      \
    do {                                                     \
        if (!(cond))                                         \
            return attn_fail(ATTN_ERR_INVALID, __VA_ARGS__); \
    } while (0)

bool attn_tensor_empty(const attn_tensor *t)
{
    return !t->size[0] || !t->size[1] || !t->size[2] || !t->size[3];
}

bool attn_tensor_extent(const attn_tensor *t, int64_t *first, int64_t *last)
{
    int64_t reach;

    *first = *last = t->offset;
    for (int i = 0; i < 4; i++) {
        if (!attn_mul(t->size[i] - 1, t->stride[i], &reach) ||
            !attn_add(reach < 0 ? *first : *last, reach, reach < 0 ? first : last))
            return false;
    }
    return true;
}

/* An output whose elements may coincide. Sufficient for all views that come
 * from slicing, transposing and reshaping an array. */
static bool writes_twice(const attn_tensor *t)
{
    int64_t stride[4], span[4], reach = 0;
    int n = 0;

    for (int i = 0; i < 4; i++) {
        int k = n;
        if (t->size[i] < 2)
            continue;
        const int64_t s = llabs(t->stride[i]);
        for (; k > 0 && stride[k - 1] > s; k--) {
            stride[k] = stride[k - 1];
            span[k] = span[k - 1];
        }
        stride[k] = s;
        span[k] = s * (t->size[i] - 1);
        n++;
    }
    for (int i = 0; i < n; i++) {
        if (stride[i] <= reach)
            return true;
        reach += span[i];
    }
    return false;
}

static attn_status check_layout(const attn_operand *o, attn_layout layout)
{
    const attn_tensor *t = o->t;
    const int64_t bytes = attn_layout_bytes(layout, t->type);
    const int64_t elem = (int64_t)attn_type_bytes(t->type);

    if (layout == ATTN_LAYOUT_ANY)
        return ATTN_OK;
    RULE(t->size[3] == 1 || t->stride[3] == 1,
         "%s.stride[3] = %lld, want 1: the plan's layout is not ATTN_LAYOUT_ANY", o->name,
         (long long)t->stride[3]);
    RULE((o->place.at + (uintptr_t)(t->offset * elem)) % (uintptr_t)bytes == 0,
         "%s starts at a byte that is no multiple of the plan's layout, %lld bytes",
         o->name, (long long)bytes);
    for (int i = 0; i < 3; i++)
        RULE(t->size[i] == 1 || t->stride[i] * elem % bytes == 0,
             "%s.stride[%d] = %lld elements of %lld bytes, want a multiple of the plan's "
             "layout, %lld bytes",
             o->name, i, (long long)t->stride[i], (long long)elem, (long long)bytes);
    return ATTN_OK;
}

const char *attn_type_shown(attn_type type, char text[ATTN_TYPE_BYTES])
{
    if (type == ATTN_TYPE_NONE || attn_type_bytes(type))
        return attn_type_name(type);
    snprintf(text, ATTN_TYPE_BYTES, "%d", (int)type);
    return text;
}

static attn_status check_memory(const attn_ctx *ctx, attn_operand *o, bool buffers)
{
    const attn_tensor *t = o->t;
    const int64_t elem = (int64_t)attn_type_bytes(t->type);
    size_t bytes = t->data_bytes, known = 0;
    int64_t end;
    attn_status st;

    RULE(t->data, "%s.data is NULL", o->name);
    RULE(t->offset >= 0, "%s.offset = %lld, want >= 0", o->name, (long long)t->offset);
    if (!buffers || ctx->backend->addresses)
        RULE((uintptr_t)t->data % (uintptr_t)elem == 0,
             "%s.data = %p, want a multiple of its element's %lld bytes", o->name, t->data,
             (long long)elem);
    if (buffers &&
        (st = ctx->backend->buffer_bytes(ctx->device, t->data, &known)) != ATTN_OK)
        return attn_fail_in(st, "%s.data", o->name);
    if ((st = attn_place_of(ctx, t->data, buffers, &o->place)) != ATTN_OK)
        return attn_fail_in(st, "%s.data", o->name);
    RULE(o->place.at % (uintptr_t)elem == 0,
         "%s.data begins at byte %llu of memory, want a multiple of its element's %lld "
         "bytes",
         o->name, (unsigned long long)o->place.at, (long long)elem);
    RULE(!known || bytes <= known, "%s.data_bytes = %zu, but the buffer has %zu", o->name,
         bytes, known);
    bytes = bytes ? bytes : known;
    RULE(o->first >= 0, "%s reaches element %lld, before the start of its buffer", o->name,
         (long long)o->first);
    RULE(attn_add(o->last, 1, &end) && attn_mul(end, elem, &end) &&
             (uint64_t)end <= PTRDIFF_MAX,
         "%s reaches element %lld, too far for an address", o->name, (long long)o->last);
    RULE(!bytes || (uint64_t)end <= bytes,
         "%s reaches byte %lld, but its buffer has %zu bytes", o->name, (long long)end,
         bytes);
    return ATTN_OK;
}

static attn_status check_operand(const attn_ctx *ctx, const attn_problem *p,
                                 attn_operand *o, bool buffers)
{
    static const char axis[] = "BHLD";
    const attn_tensor *t = o->t;
    attn_status st;

    RULE(t->type == o->type, "%s.type = %s, want %s", o->name,
         attn_type_shown(t->type, (char[ATTN_TYPE_BYTES]){ 0 }), attn_type_name(o->type));
    for (int i = 0; i < 4; i++)
        RULE(t->size[i] == o->size[i] || (o->broadcast & 1u << i && t->size[i] == 1),
             "%s.size[%d] (%c) = %lld, want %lld%s", o->name, i,
             strcmp(o->name, "bias") && strcmp(o->name, "mask") ? axis[i] : "BHQK"[i],
             (long long)t -> size[i], (long long)o -> size[i],
             o -> broadcast & 1u << i ? ", or 1 to broadcast" : "");
    if (attn_tensor_empty(t))
        return ATTN_OK;
    RULE(attn_tensor_extent(t, &o->first, &o->last),
         "%s: sizes times strides do not fit 64 bits", o->name);
    if ((st = check_memory(ctx, o, buffers)) != ATTN_OK)
        return st;
    RULE(!o->output || !writes_twice(t),
         "%s has strides %lld, %lld, %lld, %lld: elements of an output coincide", o->name,
         (long long)t->stride[0], (long long)t->stride[1], (long long)t->stride[2],
         (long long)t->stride[3]);
    if (buffers && o->layout >= 0)
        return check_layout(o, p->layout[o->layout]);
    return ATTN_OK;
}

/* Views of equal outer strides that lie side by side, as Q, K, V and O do in one
 * packed array: modulo the stride `g`, in bytes, their inner parts must not meet.
 * `shift` is how far b starts behind a. */
static bool side_by_side(const attn_tensor *a, const attn_tensor *b, int64_t g,
                         int64_t shift)
{
    const attn_tensor *t[2] = { a, b };
    int64_t low[2] = { 0, shift }, high[2] = { 0, shift };

    for (int k = 0; k < 2; k++) {
        const int64_t elem = (int64_t)attn_type_bytes(t[k]->type);
        for (int i = 0; i < 4; i++) {
            /* the stride of a single step may be any number */
            const int64_t stride = t[k]->size[i] > 1 ? t[k]->stride[i] * elem : 0;
            const int64_t reach = (t[k]->size[i] - 1) * stride;
            if (stride % g)
                *(reach < 0 ? &low[k] : &high[k]) += reach;
        }
        high[k] += elem - 1;
    }
    /* b's inner part relative to a's start, in 0 .. g - 1 */
    const int64_t at = ((low[1] - low[0]) % g + g) % g;
    return at > high[0] - low[0] && at + (high[1] - low[1]) < g;
}

static bool overlap(const attn_operand *a, const attn_operand *b)
{
    const int64_t size_a = (int64_t)attn_type_bytes(a->t->type);
    const int64_t size_b = (int64_t)attn_type_bytes(b->t->type);
    const uintptr_t base_a = a->place.at, base_b = b->place.at;
    int64_t shift;

    if (a->place.block != b->place.block)
        return false;
    if (base_a + (uintptr_t)((a->last + 1) * size_a) <=
            base_b + (uintptr_t)(b->first * size_b) ||
        base_b + (uintptr_t)((b->last + 1) * size_b) <=
            base_a + (uintptr_t)(a->first * size_a))
        return false;
    shift = (int64_t)(base_b - base_a) + b->t->offset * size_b - a->t->offset * size_a;
    for (int i = 0; i < 8; i++) { /* the strides of both: one with one row may have none */
        const attn_tensor *t = i < 4 ? a->t : b->t;
        const int64_t size = i < 4 ? size_a : size_b;
        const int64_t g = t->size[i % 4] > 1 ? llabs(t->stride[i % 4]) * size : 0;

        if (g > size && side_by_side(a->t, b->t, g, shift))
            return false;
    }
    return true;
}

/* Whether an output may be, and is, the very view of an input. */
static bool is_in_place(const attn_operand *out, const attn_operand *in)
{
    const attn_tensor *a = out->t, *b = in->t;
    bool same = out->over && !strcmp(out->over, in->name) && a->data == b->data &&
                a->offset == b->offset;

    for (int i = 0; i < 4; i++)
        same = same && (a->size[i] == 1 || a->stride[i] == b->stride[i]);
    return same;
}

static attn_status check_overlap(const attn_operand *list, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            if (i == k || !list[i].output || (list[k].output && k < i) ||
                attn_tensor_empty(list[i].t) || attn_tensor_empty(list[k].t) ||
                is_in_place(&list[i], &list[k]))
                continue;
            RULE(!overlap(&list[i], &list[k]),
                 "%s overlaps %s; outputs want memory of their own", list[i].name,
                 list[k].name);
        }
    return ATTN_OK;
}

attn_status attn_operands_check(const attn_ctx *ctx, attn_operand *list, int n,
                                bool buffers)
{
    attn_status st;

    for (int i = 0; i < n; i++)
        if ((st = check_operand(ctx, NULL, &list[i], buffers)) != ATTN_OK)
            return st;
    return check_overlap(list, n);
}

/* The tensors that are there, and what each must be. */
static attn_status list_operands(const attn_problem *p, const attn_args *a,
                                 const attn_extent *e, attn_operand *list, int *n)
{
    *n = 0;
    for (int k = 0; k < ATTN_ARGS; k++) {
        const attn_arg *arg = &attn_arg_list[k];
        const attn_tensor *t = attn_arg_given(a, k);
        attn_operand *o = &list[*n];

        if (t->type == ATTN_TYPE_NONE) {
            RULE(!attn_arg_is_needed(p, k), "%s is missing%s%s", arg->name,
                 arg->feature ? ", but the plan was made with " : "",
                 arg->feature ? attn_arg_reason(p, k) : "");
            continue;
        }
        RULE(attn_arg_belongs(p, k), "%s is given, but the plan was made without %s",
             arg->name, attn_arg_reason(p, k));
        *o = (attn_operand){
            .name = arg->name,
            .t = t,
            .layout = arg->layout,
            .output = attn_arg_is_output(p, k),
            .over = arg->at == offsetof(attn_args, state_out) ? "state_in"
                    : arg->at == offsetof(attn_args, z_out)   ? "z_in"
                                                              : NULL,
        };
        attn_arg_want(p, a, e, k, &o->type, o->size, &o->broadcast);
        (*n)++;
    }
    return ATTN_OK;
}

/* The gradients that a backward pass begins with. */
static attn_status check_given(const attn_problem *p, const attn_args *a)
{
    const bool grad_o = a->grad_o.type != ATTN_TYPE_NONE;

    if (p->op == ATTN_OP_LINEAR)
        RULE(
            grad_o || a->grad_state_out.type != ATTN_TYPE_NONE ||
                a->grad_z_out.type != ATTN_TYPE_NONE,
            "grad_o, grad_state_out and grad_z_out are missing, want at least one of them");
    else
        RULE(grad_o || a->grad_lse.type != ATTN_TYPE_NONE,
             "grad_o and grad_lse are missing, want at least one of them");
    if (p->op == ATTN_OP_SOFTMAX || p->features & ATTN_FEAT_NORMALIZE)
        RULE(!grad_o || a->o.type != ATTN_TYPE_NONE,
             "o is missing, but grad_o is given, which needs it");
    return ATTN_OK;
}

attn_status attn_args_check(const attn_ctx *ctx, const attn_problem *p,
                            const attn_args *args, bool buffers, attn_extent *extent)
{
    attn_operand list[ATTN_ARGS];
    attn_status st;
    int n = 0;

    if ((st = attn_args_extent(p, args, extent)) != ATTN_OK ||
        (st = list_operands(p, args, extent, list, &n)) != ATTN_OK)
        return st;
    if (p->pass == ATTN_PASS_BWD && (st = check_given(p, args)) != ATTN_OK)
        return st;
    for (int i = 0; i < n; i++)
        if ((st = check_operand(ctx, p, &list[i], buffers)) != ATTN_OK)
            return st;
    return check_overlap(list, n);
}
