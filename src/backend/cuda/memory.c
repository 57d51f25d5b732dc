/* SPDX-License-Identifier: MIT */
/* backend/cuda/memory.c: memory of the device, and copies on the device's own stream. */
#include "backend/cuda/cuda.h"
#include "core/status.h"

static CUdeviceptr address(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

attn_status attn_cu_wait(attn_device *dev)
{
    const attn_cu *cu = dev->cu;
    attn_status st = attn_cu_enter(dev);

    if (st != ATTN_OK)
        return st;
    CU(cu->cuStreamSynchronize(dev->stream));
fail:
    attn_cu_leave(dev);
    return st;
}

/* CUDA has no block of 0 bytes, so that one gets a byte. */
attn_status attn_cu_alloc(attn_device *dev, size_t bytes, void **out)
{
    const attn_cu *cu = dev->cu;
    CUdeviceptr at = 0;
    attn_status st;

    *out = NULL;
    if ((st = attn_cu_enter(dev)) != ATTN_OK)
        return st;
    CU(cu->cuMemAlloc(&at, bytes ? bytes : 1));
    *out = (void *)(uintptr_t)at;
fail:
    attn_cu_leave(dev);
    return st == ATTN_OK ? st : attn_fail_in(st, "%zu bytes on %s", bytes, dev->info.name);
}

void attn_cu_free(attn_device *dev, void *memory)
{
    attn_error_text before;

    if (!memory)
        return;
    attn_error_save(&before);
    if (attn_cu_enter(dev) == ATTN_OK) {
        dev->cu->cuMemFree(address(memory));
        attn_cu_leave(dev);
    }
    attn_error_restore(&before);
}

/* What the driver knows of an address; asked all at once. Of one that it does not know
 * the answer is zeros, and no error that stays with the context. */
typedef struct known {
    unsigned type; /* CUmemorytype; 0: none */
    unsigned managed;
    int device;
    CUcontext context;   /* NULL: of a pool, mapped or managed */
    CUdeviceptr pointer; /* as kernels may use it */
    CUdeviceptr start;
    size_t bytes;
} known;

static attn_status ask(const attn_device *dev, const void *memory, known *k)
{
    const attn_cu *cu = dev->cu;
    CUpointer_attribute what[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_CONTEXT,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    };
    void *where[] = { &k->type,    &k->managed, &k->device, &k->context,
                      &k->pointer, &k->start,   &k->bytes };
    attn_status st;

    *k = (known){ .device = -1 };
    if ((st = attn_cu_enter(dev)) != ATTN_OK)
        return st;
    CU(cu->cuPointerGetAttributes(sizeof what / sizeof what[0], what, where,
                                  address(memory)));
fail:
    attn_cu_leave(dev);
    return st;
}

attn_status attn_cu_buffer_bytes(attn_device *dev, const void *memory, size_t *bytes)
{
    const CUdeviceptr at = address(memory);
    attn_status st;
    known k;

    *bytes = 0;
    if (!memory)
        return attn_fail(ATTN_ERR_INVALID, "the address is NULL");
    if ((st = ask(dev, memory, &k)) != ATTN_OK)
        return st;
    if (!k.type || k.pointer != at)
        return attn_fail(ATTN_ERR_INVALID, "%p is %s, want memory of %s", memory,
                         k.type ? "host memory that this device sees elsewhere"
                                : "no memory that CUDA knows of",
                         dev->info.name);
    if (k.type == CU_MEMORYTYPE_DEVICE && !k.managed && k.context &&
        k.context != dev->context)
        return attn_fail(ATTN_ERR_INVALID, "%p belongs to another CUcontext", memory);
    if (k.type == CU_MEMORYTYPE_DEVICE && !k.managed && k.device != dev->id)
        return attn_fail(ATTN_ERR_INVALID, "%p is memory of CUDA device %d, not of %s",
                         memory, k.device, dev->info.name);
    if (k.bytes && k.start <= at && at - k.start < k.bytes)
        *bytes = k.bytes - (size_t)(at - k.start);
    return ATTN_OK;
}

static attn_status check_range(attn_device *dev, const void *memory, size_t offset,
                               size_t bytes)
{
    size_t size;
    attn_status st = attn_cu_buffer_bytes(dev, memory, &size);

    if (st != ATTN_OK)
        return attn_fail_in(st, "memory");
    if (size && (offset > size || bytes > size - offset))
        return attn_fail(ATTN_ERR_INVALID,
                         "bytes = %zu at offset = %zu leave a block of %zu bytes", bytes,
                         offset, size);
    return ATTN_OK;
}

attn_status attn_cu_upload(attn_device *dev, void *memory, size_t offset, const void *from,
                           size_t bytes)
{
    const attn_cu *cu = dev->cu;
    attn_status st = check_range(dev, memory, offset, bytes);

    if (st != ATTN_OK || !bytes || (st = attn_cu_enter(dev)) != ATTN_OK)
        return st;
    CU(cu->cuMemcpyHtoDAsync(address(memory) + offset, from, bytes, dev->stream));
    CU(cu->cuStreamSynchronize(dev->stream));
fail:
    attn_cu_leave(dev);
    return st;
}

attn_status attn_cu_download(attn_device *dev, void *to, const void *memory, size_t offset,
                             size_t bytes)
{
    const attn_cu *cu = dev->cu;
    attn_status st = check_range(dev, memory, offset, bytes);

    if (st != ATTN_OK || !bytes || (st = attn_cu_enter(dev)) != ATTN_OK)
        return st;
    CU(cu->cuMemcpyDtoHAsync(to, address(memory) + offset, bytes, dev->stream));
    CU(cu->cuStreamSynchronize(dev->stream));
fail:
    attn_cu_leave(dev);
    return st;
}
