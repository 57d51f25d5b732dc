/* SPDX-License-Identifier: MIT */
/* backend/cuda/image.c: finds, chooses and unpacks what a driver is to load. */
#include "backend/cuda/image.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "backend/cuda/cuda_groups.h"

#define X(group) extern const attn_cu_image attn_cu_images_##group[];
ATTN_CUDA_GROUPS(X)
#undef X

static const attn_cu_image *const groups[] = {
#define X(group) attn_cu_images_##group,
    ATTN_CUDA_GROUPS(X)
#undef X
};

const attn_cu_image *attn_cu_image_find(const char *kernel)
{
    const attn_cu_image *best = NULL;
    size_t longest = 0;

    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++)
        for (const attn_cu_image *i = groups[g]; i->name; i++) {
            const size_t n = strlen(i->name);
            if (n > longest && !strncmp(i->name, kernel, n) &&
                (!kernel[n] || kernel[n] == '_')) {
                best = i;
                longest = n;
            }
        }
    return best;
}

/* Machine code runs on later minor versions of its major one, PTX on all later ones. */
static bool fits(const attn_cu_part *part, int64_t capability)
{
    if (part->exact)
        return part->capability == capability;
    return part->capability <= capability &&
           (part->ptx || part->capability / 10 == capability / 10);
}

static bool better(const attn_cu_part *a, const attn_cu_part *b)
{
    return a->ptx != b->ptx ? b->ptx : a->capability > b->capability;
}

int attn_cu_image_parts(const attn_cu_image *image, int64_t capability,
                        const attn_cu_part *parts[ATTN_CU_MOST_PARTS])
{
    int n = 0;

    for (int i = 0; i < image->n_parts && n < ATTN_CU_MOST_PARTS; i++) {
        const attn_cu_part *part = &image->parts[i];
        int at = n;

        if (!fits(part, capability))
            continue;
        for (; at > 0 && better(part, parts[at - 1]); at--)
            parts[at] = parts[at - 1];
        parts[at] = part;
        n++;
    }
    if (!n)
        parts[n++] = &image->parts[0];
    return n;
}

bool attn_cu_image_exact(int64_t capability)
{
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++)
        for (const attn_cu_image *i = groups[g]; i->name; i++)
            for (int part = 0; part < i->n_parts; part++)
                if (i->parts[part].exact && i->parts[part].capability == capability)
                    return true;
    return false;
}

static attn_status unpack(const attn_cu_pack *pack, char *out)
{
    const size_t bytes = ZSTD_decompress(out, pack->raw_bytes, pack->data, pack->bytes);

    if (ZSTD_getErrorCode(bytes) == ZSTD_error_memory_allocation)
        return attn_fail(ATTN_ERR_NO_MEMORY, "unpacking %zu bytes", pack->raw_bytes);
    if (bytes != pack->raw_bytes)
        return attn_fail(
            ATTN_ERR_BUILD,
            "the library's file is damaged: %zu bytes do not unpack to %zu (zstd: %s)",
            pack->bytes, pack->raw_bytes, ZSTD_getErrorName(bytes));
    return ATTN_OK;
}

attn_status attn_cu_image_unpack(const attn_cu_part *part, char **out)
{
    const attn_cu_pack *pack = part->pack;
    char *raw = malloc(pack->raw_bytes), *text = NULL;
    attn_status st = ATTN_OK;

    *out = NULL;
    if (!raw)
        return attn_fail(ATTN_ERR_NO_MEMORY, "image: %zu bytes", pack->raw_bytes);
    if ((st = unpack(pack, raw)) != ATTN_OK)
        goto done;
    if (!part->ptx) {
        memmove(raw, raw + part->offset, part->bytes);
        *out = raw;
        return ATTN_OK;
    }
    if (!(text = malloc(part->text_bytes + 1))) {
        st = attn_fail(ATTN_ERR_NO_MEMORY, "PTX: %zu bytes", part->text_bytes);
        goto done;
    }
    st = attn_cu_ptx_restore(raw + part->offset, part->bytes, text, part->text_bytes);
    if (st != ATTN_OK)
        goto done;
    text[part->text_bytes] = '\0';
    *out = text;
    text = NULL;

done:
    free(text);
    free(raw);
    return st;
}
