// SPDX-License-Identifier: MIT
// emulator/memory.cpp: the driver API's memory: of a device, of its pool, managed, and of
// the host. Behind each block lies what nobody may write. Blocks of more than 4 GiB, which
// there are where EMULATED_MEMORY_KIB says so, are mostly not there, and zeros.
//
//   EMULATED_ELSEWHERE  registered memory has another address on the device
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <map>
#include <mutex>

#include "driver.h"

namespace {

enum kind { DEVICE_MEMORY, POOL, MANAGED, HOST, REGISTERED };

struct block {
    size_t bytes;
    enum kind kind;
    CUcontext context;
};

std::map<uintptr_t, block> blocks;
std::mutex lock;

const size_t MOST_FILLED = (size_t)4 << 30;

size_t whole(size_t bytes) { return (bytes + 255) / 256 * 256 + 4096; }

CUresult make(enum kind kind, size_t bytes, uintptr_t *at)
{
    CUresult code = usable();
    void *memory = NULL;

    if (code == CUDA_SUCCESS && kind != POOL)
        code = unsafe();
    if (code != CUDA_SUCCESS)
        return code;
    if (bytes <= MOST_FILLED)
        memory = aligned_alloc(256, whole(bytes));
    else if (bytes >> 10 <= (size_t)number("EMULATED_MEMORY_KIB", 0))
        memory = mmap(NULL, whole(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!memory || memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t first = bytes <= MOST_FILLED ? 0 : bytes;
    memset((char *)memory + first, 0xff, whole(bytes) - first);
    std::lock_guard<std::mutex> guard(lock);
    *at = (uintptr_t)memory;
    blocks[*at] = { bytes, kind, top() };
    return CUDA_SUCCESS;
}

CUresult drop(uintptr_t at)
{
    std::lock_guard<std::mutex> guard(lock);
    const auto found = blocks.find(at);

    if (found == blocks.end() || found->second.kind == REGISTERED)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = found->second.bytes; i < whole(found->second.bytes); i++)
        if (((unsigned char *)at)[i] != 0xff)
            fault("wrote past the end of a block of memory");
    if (found->second.bytes > MOST_FILLED)
        munmap((void *)at, whole(found->second.bytes));
    else
        free((void *)at);
    blocks.erase(found);
    return CUDA_SUCCESS;
}

CUresult copy(void *to, const void *from, size_t bytes, CUstream stream)
{
    return enqueue(stream, CU_GRAPH_NODE_TYPE_MEMCPY, [=] { memcpy(to, from, bytes); });
}

// Of an address that is in no block: zeros.
CUresult answer(CUpointer_attribute what, void *to, CUdeviceptr at, uintptr_t start,
                const block *b)
{
    const bool host = b && (b->kind == HOST || b->kind == REGISTERED);
    const bool elsewhere = b && b->kind == REGISTERED && number("EMULATED_ELSEWHERE", 0);

    switch (what) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)to = host ? CU_MEMORYTYPE_HOST : b ? CU_MEMORYTYPE_DEVICE : 0;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)to = b && b->kind == MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)to = b ? b->context->device : -2;
        break;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)to = b && b->kind != POOL ? b->context : NULL;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)to = b ? at + (elsewhere ? 1 << 20 : 0) : 0;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)to = b ? start : 0; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)to = b ? b->bytes : 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

} // namespace

extern "C" {

CUresult cuMemAlloc(CUdeviceptr *at, size_t bytes)
{
    uintptr_t found = 0;
    const CUresult code = make(DEVICE_MEMORY, bytes, &found);

    *at = found;
    return code;
}

CUresult cuMemAllocManaged(CUdeviceptr *at, size_t bytes, unsigned)
{
    uintptr_t found = 0;
    const CUresult code = make(MANAGED, bytes, &found);

    *at = found;
    return code;
}

CUresult cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream)
{
    uintptr_t found = 0;
    const CUresult code = make(POOL, bytes, &found);

    *at = found;
    return code;
}

CUresult cuMemHostAlloc(void **at, size_t bytes, unsigned)
{
    uintptr_t found = 0;
    const CUresult code = make(HOST, bytes, &found);

    *at = (void *)found;
    return code;
}

CUresult cuMemFree(CUdeviceptr at)
{
    const CUresult code = unsafe();

    return code == CUDA_SUCCESS ? drop((uintptr_t)at) : code;
}

CUresult cuMemFreeAsync(CUdeviceptr at, CUstream) { return drop((uintptr_t)at); }

CUresult cuMemFreeHost(void *at) { return drop((uintptr_t)at); }

CUresult cuMemHostRegister(void *at, size_t bytes, unsigned)
{
    std::lock_guard<std::mutex> guard(lock);

    blocks[(uintptr_t)at] = { bytes, REGISTERED, top() };
    return usable();
}

CUresult cuMemHostUnregister(void *at)
{
    std::lock_guard<std::mutex> guard(lock);

    return blocks.erase((uintptr_t)at) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return copy((void *)(uintptr_t)to, from, bytes, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t n, CUstream stream)
{
    return enqueue(stream, CU_GRAPH_NODE_TYPE_MEMSET,
                   [=] { std::fill_n((unsigned *)(uintptr_t)to, n, value); });
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(to, (void *)(uintptr_t)from, bytes, stream);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, stream);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, stream);
}

CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *what, void **where,
                                CUdeviceptr at)
{
    std::lock_guard<std::mutex> guard(lock);
    auto found = blocks.upper_bound((uintptr_t)at);
    const bool known = found != blocks.begin() &&
                       (uintptr_t)at - (--found)->first < found->second.bytes &&
                       found->second.context->alive;
    CUresult code = top() ? usable() : CUDA_SUCCESS;

    for (unsigned i = 0; i < n && code == CUDA_SUCCESS; i++)
        code = answer(what[i], where[i], at, known ? found->first : 0,
                      known ? &found->second : NULL);
    return code;
}

} // extern "C"
