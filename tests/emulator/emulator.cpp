// SPDX-License-Identifier: MIT
// emulator/emulator.cpp: runs the CUDA kernels on a processor, behind as much of the driver
// API as the back end and attn-bench call: a libcuda.so.1 for tests without a GPU.
//
// What it can show: wrong indices, masks, features and results; a barrier or shuffle that
// not all threads reach; reads of copies that were not waited for and of shared memory that
// was never written (both are NaN); writes past the shared memory of a launch, and just past
// a block of memory. The threads of a group run in another order after each barrier. What
// it can't: races between them that need both at once, speed, and what nvcc makes of the
// source.
#include <cuda.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <ucontext.h>

#include <map>
#include <mutex>
#include <string>
#include <chrono>
#include <vector>

#include "common/device.cuh"
#include "common/params.h"

namespace {

enum { STACK = 256 * 1024, GUARD = 64, MOST_THREADS = 1024 };

enum waits { RUNS, AT_BARRIER, AT_WARP, ENDED };

struct pending {
    float *to;
    const void *from;
    int bytes;
    bool inside;
    int group;
};

// makecontext() gives a fiber its stack; after that _longjmp() is the faster switch.
struct fiber {
    ucontext_t context;
    jmp_buf at;
    bool begun;
    std::vector<char> stack;
    waits state;
    std::vector<pending> copies;
    int group;    // of copies, that is open
};

// Calls a kernel with the parameters of a launch, which it takes by value.
typedef void runner(void *entry, const void *params);

} // namespace

struct CUfunc_st {
    void *entry;
    runner *run;
};

namespace {

template <typename PARAMS> void run(void *entry, const void *params)
{
    ((void (*)(PARAMS))entry)(*(const PARAMS *)params);
}

// What each kernel takes, by how its name begins.
const struct runner_of {
    const char *name;
    runner *run;
} runners[] = {
    { "attn_softmax_merge_", run<attn_merge_kparams> },
    { "attn_", run<attn_kparams> },
};

std::map<std::string, CUfunc_st> functions;
std::mutex lock; // one launch at a time
fiber fibers[MOST_THREADS];
ucontext_t beginning;
jmp_buf scheduler;
int n_threads, current;
unsigned group;
std::vector<float4> shared;
uint32_t slot[2][MOST_THREADS]; // in turn: who is ahead must not overwrite
unsigned turn[MOST_THREADS];
CUfunction launched;
const void *params;

void run_fiber()
{
    launched->run(launched->entry, params);
    fibers[current].state = ENDED;
    _longjmp(scheduler, 1);
}

void resume(int i)
{
    current = i;
    if (_setjmp(scheduler))
        return;
    if (fibers[i].begun)
        _longjmp(fibers[i].at, 1);
    fibers[i].begun = true;
    swapcontext(&beginning, &fibers[i].context);
}

void fault(const char *what)
{
    fprintf(stderr, "emulator: group %u: %s\n", group, what);
    abort();
}

// Lets those go on who all wait at the same barrier.
bool release(int from, int to, waits at)
{
    bool any = false;

    for (int i = from; i < to; i++) {
        if (fibers[i].state != at && fibers[i].state != ENDED)
            return false;
        any |= fibers[i].state == at;
    }
    for (int i = from; i < to; i++)
        if (fibers[i].state == at)
            fibers[i].state = RUNS;
    return any;
}

void run_group(size_t bytes)
{
    static unsigned seed = 1;
    int ended = 0;

    memset((void *)shared.data(), 0xff, shared.size() * sizeof shared[0]);
    for (int i = 0; i < n_threads; i++) {
        fiber &f = fibers[i];

        f.stack.resize(STACK);
        f.copies.clear();
        f.group = 0;
        f.state = RUNS;
        f.begun = false;
        turn[i] = 0;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        f.context.uc_link = NULL;
        makecontext(&f.context, run_fiber, 0);
    }
    while (ended < n_threads) {
        bool moved = false;

        seed = seed * 1664525u + 1013904223u;
        for (int k = 0, start = (int)(seed >> 8) % n_threads; k < n_threads; k++) {
            const int i = (start + (seed & 1 ? k : n_threads - k)) % n_threads;

            if (fibers[i].state != RUNS)
                continue;
            moved = true;
            resume(i);
            ended += fibers[i].state == ENDED;
        }
        for (int i = 0; i < n_threads; i += 32)
            moved |= release(i, i + 32, AT_WARP);
        moved |= release(0, n_threads, AT_BARRIER);
        if (!moved && ended < n_threads)
            fault("threads wait for each other at different barriers");
    }
    for (size_t i = bytes; i < shared.size() * sizeof shared[0]; i++)
        if (((unsigned char *)shared.data())[i] != 0xff)
            fault("wrote past the end of its shared memory");
}

} // namespace

emulated_index emulated_thread() { return { (unsigned)current }; }
emulated_index emulated_group() { return { group }; }
void *emulated_shared() { return shared.data(); }

void emulated_barrier(bool warp)
{
    const int me = current;

    fibers[me].state = warp ? AT_WARP : AT_BARRIER;
    if (!_setjmp(fibers[me].at))
        _longjmp(scheduler, 1);
}

// What all lanes of the warp gave.
static const uint32_t *exchange(uint32_t value)
{
    const unsigned t = turn[current]++ % 2;

    slot[t][current] = value;
    emulated_barrier(true);
    return &slot[t][current / 32 * 32];
}

uint32_t emulated_exchange(uint32_t value, int mask)
{
    return exchange(value)[(current ^ mask) % 32];
}

uint64_t (*emulated_scratch())[8]
{
    static uint64_t words[MOST_THREADS][8];

    return &words[current / 32 * 32];
}

bool emulated_any(bool x)
{
    const uint32_t *all = exchange(x);
    bool any = false;

    for (int i = 0; i < 32; i++)
        any |= all[i] != 0;
    return any;
}

// What is on its way is neither the old nor the new.
void emulated_copy(float *to, const void *from, int bytes, bool inside)
{
    memset(to, 0xff, (size_t)bytes);
    if ((uintptr_t)to % (unsigned)bytes || (inside && (uintptr_t)from % (unsigned)bytes))
        fault("copies from or to an address that is not aligned");
    fibers[current].copies.push_back({ to, from, bytes, inside, fibers[current].group });
}

void emulated_commit()
{
    fibers[current].group++;
}

void emulated_copies(int pending_groups)
{
    fiber &f = fibers[current];
    size_t n = 0;

    for (; n < f.copies.size() && f.copies[n].group < f.group - pending_groups; n++) {
        const pending &c = f.copies[n];

        if (c.inside)
            memcpy(c.to, c.from, (size_t)c.bytes);
        else
            memset(c.to, 0, (size_t)c.bytes);
    }
    f.copies.erase(f.copies.begin(), f.copies.begin() + (long)n);
}

// The driver API. One device, whose shared memory is that of EMULATED_SHARED bytes; of
// EMULATED_MEMORY KiB, if that is given, for those who ask: more can be allocated.
struct CUctx_st {
    int users;
};
struct CUstream_st {
    CUcontext context;
};
struct CUevent_st {
    std::chrono::steady_clock::time_point at;
};

namespace {
CUctx_st primary, second;    // EMULATED_SECOND: tests ask for it by its symbol
thread_local std::vector<CUcontext> contexts;
std::map<uintptr_t, std::pair<size_t, CUcontext>> blocks;
std::mutex blocks_lock;

int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

// A block with what lies behind it, which nobody writes.
size_t whole(size_t bytes) { return (bytes + 255) / 256 * 256 + 4096; }

CUcontext top() { return contexts.empty() ? NULL : contexts.back(); }
} // namespace

extern "C" {

CUcontext emulated_second_context(void) { return &second; }

CUresult cuInit(unsigned) { return number("EMULATED_DEVICES", 1) ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }

CUresult cuDriverGetVersion(int *version)
{
    *version = number("EMULATED_VERSION", CUDA_VERSION);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char **text)
{
    *text = code == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_EMULATED";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char **text)
{
    *text = "an error of the emulator";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *n)
{
    *n = number("EMULATED_DEVICES", 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *id, int index)
{
    *id = index;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int n, CUdevice)
{
    snprintf(name, (size_t)n, "CUDA emulator on the processor");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice)
{
    const int capability = number("EMULATED_CAPABILITY", 90);

    switch (what) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = capability / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = capability % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 4; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = number("EMULATED_SHARED", 227 * 1024);
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = MOST_THREADS; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1000000; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice)
{
    *bytes = (size_t)number("EMULATED_MEMORY_KIB", 4 << 20) << 10;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice)
{
    primary.users++;
    *context = &primary;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice)
{
    if (primary.users-- <= 0)
        fault("primary context released more often than retained");
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    if (context != &primary && context != &second)
        return CUDA_ERROR_INVALID_CONTEXT;
    contexts.push_back(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    if (contexts.empty())
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = contexts.back();
    contexts.pop_back();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *id)
{
    *id = 0;
    return top() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = (CUmodule)image;
    return top() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *name)
{
    const runner_of *takes = runners;
    Dl_info self;
    void *entry;

    if (!dladdr((void *)cuModuleGetFunction, &self) ||
        !(entry = dlsym(dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD), name)))
        return CUDA_ERROR_NOT_FOUND;
    while (strncmp(name, takes->name, strlen(takes->name)))
        takes++;
    *function = &functions.insert({ name, { entry, takes->run } }).first->second;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute what, CUfunction)
{
    *value = what == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 256 : 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned, unsigned, unsigned threads,
                        unsigned, unsigned, unsigned bytes, CUstream stream, void **arguments,
                        void **)
{
    std::lock_guard<std::mutex> guard(lock);

    if (!top() || stream->context != top())
        return CUDA_ERROR_INVALID_HANDLE;
    if (!x || !threads || threads > MOST_THREADS || threads % 32)
        return CUDA_ERROR_INVALID_VALUE;
    launched = function;
    params = arguments[0];
    n_threads = (int)threads;
    shared.resize(bytes / sizeof shared[0] + 1 + GUARD);
    for (group = 0; group < x; group++)
        run_group(bytes);
    return CUDA_SUCCESS;
}

// Kernels run one after another: that is an overlap too.
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **arguments,
                          void **extra)
{
    return cuLaunchKernel(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
                          c->blockDimY, c->blockDimZ, c->sharedMemBytes, c->hStream, arguments,
                          extra);
}

CUresult cuStreamCreate(CUstream *stream, unsigned)
{
    *stream = new CUstream_st{ top() };
    return top() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuStreamDestroy(CUstream stream)
{
    delete stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    *context = stream->context;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned)
{
    *event = new CUevent_st;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    delete event;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream)
{
    event->at = std::chrono::steady_clock::now();
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *at, size_t bytes)
{
    void *block = bytes <= (size_t)4 << 30 ? aligned_alloc(256, whole(bytes)) : NULL;

    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(block, 0xff, whole(bytes));
    std::lock_guard<std::mutex> guard(blocks_lock);
    blocks[(uintptr_t)block] = { bytes, top() };
    *at = (CUdeviceptr)(uintptr_t)block;
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr at)
{
    std::lock_guard<std::mutex> guard(blocks_lock);

    const auto block = blocks.find((uintptr_t)at);

    if (block == blocks.end())
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = block->second.first; i < whole(block->second.first); i++)
        if (((unsigned char *)block->first)[i] != 0xff)
            fault("wrote past the end of a block of memory");
    blocks.erase(block);
    free((void *)(uintptr_t)at);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream)
{
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream)
{
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn run, void *with)
{
    if (!top() || stream->context != top())
        return CUDA_ERROR_INVALID_HANDLE;
    run(with);
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *what, void **where,
                                CUdeviceptr at)
{
    std::lock_guard<std::mutex> guard(blocks_lock);
    auto block = blocks.upper_bound((uintptr_t)at);
    bool known = block != blocks.begin();

    if (known) {
        --block;
        known = (uintptr_t)at - block->first < block->second.first;
    }
    for (unsigned i = 0; i < n; i++)
        switch (what[i]) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(unsigned *)where[i] = known ? CU_MEMORYTYPE_DEVICE : 0;
            break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)where[i] = 0; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)where[i] = known ? 0 : -2; break;
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            *(CUcontext *)where[i] = known ? block->second.second : NULL;
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            *(CUdeviceptr *)where[i] = known ? at : 0;
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            *(CUdeviceptr *)where[i] = known ? block->first : 0;
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            *(size_t *)where[i] = known ? block->second.first : 0;
            break;
        default: return CUDA_ERROR_INVALID_VALUE;
        }
    return CUDA_SUCCESS;
}

} // extern "C"
