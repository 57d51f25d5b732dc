/* SPDX-License-Identifier: MIT */
/* tools/ceiling.c: how ceilings are timed, and what they are fed with. */
#include "ceiling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inputs.h"
#include "timing.h"

enum { REPEATS = 7, WARM_UPS = 2, PARCEL = 1 << 20 };

static const double IDLE_S = 5e-3, BLOCK_MS = 250, COUNTED = 0.6;

static int runs_of(double share_ms, double ms)
{
    return (int)fmax(1, ceil(share_ms / fmax(ms, 1e-3)));
}

double ceiling_ms(ceiling_run *run, void *with, bool blocks)
{
    double ms[REPEATS], once = 0, all = 0;

    for (int i = 0; i < WARM_UPS; i++)
        if (!run(with, 1, &once))
            return NAN;
    if (blocks) {
        const int n = runs_of(COUNTED * BLOCK_MS, once);
        return run(with, runs_of((1 - COUNTED) * BLOCK_MS, once), &all) &&
                       run(with, n, &all)
                   ? all / n
                   : NAN;
    }
    for (int i = 0; i < REPEATS; i++) {
        timing_idle(IDLE_S);
        if (!run(with, 1, &ms[i]))
            return NAN;
    }
    return timing_median(ms, REPEATS);
}

/* The type's bits of a number that it holds. */
static void put(attn_type type, void *to, size_t i, float x)
{
    uint32_t bits;

    x = round_to_type(type, x);
    memcpy(&bits, &x, sizeof bits);
    if (type == ATTN_F32)
        ((float *)to)[i] = x;
    else if (type == ATTN_BF16)
        ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
    else /* f16: of numbers in its normal range, or 0 */
        ((uint16_t *)to)[i] =
            (uint16_t)((bits >> 16 & 0x8000) |
                       (fabsf(x) < 0x1p-14f ? 0 : ((bits >> 13) - (112u << 10)) & 0x7fff));
}

void *ceiling_numbers(attn_ctx *ctx, attn_type type, int64_t n)
{
    const size_t element = attn_type_bytes(type);
    void *parcel = malloc(PARCEL * element), *block = NULL;
    attn_status st = ATTN_ERR_NO_MEMORY;

    if (parcel && attn_memory_alloc(ctx, (size_t)n * element, &block) == ATTN_OK) {
        for (size_t i = 0; i < PARCEL; i++)
            put(type, parcel, i, (float)random_normal(1, 1, i));
        st = ATTN_OK;
    }
    for (int64_t i = 0; i < n && st == ATTN_OK; i += PARCEL) {
        const int64_t left = n - i < PARCEL ? n - i : PARCEL;
        st = attn_memory_upload(ctx, block, (size_t)i * element, parcel,
                                (size_t)left * element);
    }
    if (st != ATTN_OK)
        attn_memory_free(ctx, &block);
    free(parcel);
    return block;
}

/* 1 GiB, or a sixteenth of a small memory. */
int64_t ceiling_copy_size(const attn_device_info *info)
{
    const int64_t most = (int64_t)1 << 30, part = info->memory_bytes / 16;

    return (part < most ? part : most) / 4;
}

double ceiling_product_flop(int size)
{
    return 2.0 * size * size * size;
}

void ceiling_measure(ceiling *c, const ceiling_how *how)
{
    *c = (ceiling){ .copy_gb_s = NAN };
    for (int i = 0; i < CEILING_TYPES; i++)
        c->product_gflop_s[i] = NAN;
    if (!strncmp(how->info->selector, "cuda:", 5))
        ceiling_cuda(c, how);
    else if (how->info->kind == ATTN_DEVICE_GPU)
        ceiling_opencl(c, how);
}
