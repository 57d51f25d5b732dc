// SPDX-License-Identifier: MIT
// emulator/driver.cpp: as much of the driver API as the back end, its tests and attn-bench
// call: devices, contexts, kernels, streams. All work is done when it is enqueued.
//
//   EMULATED_DEVICES     how many there are (1)
//   EMULATED_CAPABILITY  10 * major + minor (90)
//   EMULATED_VERSION     of the driver
//   EMULATED_SHARED      bytes of a group's shared memory
//   EMULATED_MEMORY_KIB  of a device, for those who ask: more can be allocated
//   EMULATED_IMAGE       the code with which no image can be loaded
//   EMULATED_CODE        that with which machine code cannot, but PTX can
//   EMULATED_BROKEN      how the names of kernels begin that lose their last group
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "common/maps.h"
#include "common/params.h"
#include "driver.h"
#include "map.h"

struct CUmod_st {
    CUcontext context;
};

struct CUevent_st {
    std::chrono::steady_clock::time_point at;
    CUstream captured; // in which it was recorded last, if that is captured
};

namespace {

template <typename PARAMS> void run(void *entry, const void *params)
{
    ((void (*)(PARAMS))entry)(*(const PARAMS *)params);
}

void run_mapped(void *entry, const void *params)
{
    attn_maps maps;

    memcpy(&maps, (const char *)params + sizeof(attn_kparams), sizeof maps);
    ((void (*)(attn_kparams, attn_maps))entry)(*(const attn_kparams *)params, maps);
}

// What each kernel takes, by how its name begins.
const struct runner_of {
    const char *name;
    runner *run;
    size_t bytes, more; // of the first parameter, of the second
} runners[] = {
    { "attn_softmax_merge_", run<attn_merge_kparams>, sizeof(attn_merge_kparams), 0 },
    { "attn_softmax_fwd_wgmma_", run_mapped, sizeof(attn_kparams), sizeof(attn_maps) },
    { "attn_softmax_bwd_wgmma_", run_mapped, sizeof(attn_kparams), sizeof(attn_maps) },
    { "attn_linear_", run<attn_linear_kparams>, sizeof(attn_linear_kparams), 0 },
    { "attn_", run<attn_kparams>, sizeof(attn_kparams), 0 },
};

CUctx_st primary[MOST_DEVICES];
std::set<CUcontext> made;
std::map<std::pair<CUcontext, std::string>, CUfunc_st> functions;
std::mutex lock; // guards the lists above
thread_local std::vector<CUcontext> contexts;

bool is_known(CUcontext context)
{
    return (context >= primary && context < primary + MOST_DEVICES) || made.count(context);
}

} // namespace

int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

CUcontext top() { return contexts.empty() ? NULL : contexts.back(); }

CUresult usable()
{
    return !top()          ? CUDA_ERROR_INVALID_CONTEXT
           : !top()->alive ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                           : top()->broken;
}

CUcontext context_of(CUstream stream)
{
    return stream <= CU_STREAM_PER_THREAD ? top() : stream->context;
}

extern "C" {

// As if a kernel of the context had met that error.
void emulated_break(CUcontext context, CUresult code) { context->broken = code; }

CUresult cuInit(unsigned)
{
    return number("EMULATED_DEVICES", 1) ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = number("EMULATED_VERSION", CUDA_VERSION);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char **text)
{
    switch (code) {
#define NAME(code) case code: *text = #code; break
    NAME(CUDA_ERROR_INVALID_VALUE);
    NAME(CUDA_ERROR_OUT_OF_MEMORY);
    NAME(CUDA_ERROR_NO_DEVICE);
    NAME(CUDA_ERROR_INVALID_CONTEXT);
    NAME(CUDA_ERROR_NO_BINARY_FOR_GPU);
    NAME(CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
    NAME(CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    NAME(CUDA_ERROR_ILLEGAL_ADDRESS);
    NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    NAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    NAME(CUDA_ERROR_CAPTURED_EVENT);
#undef NAME
    default: *text = "CUDA_ERROR_EMULATED";
    }
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
    return *n <= MOST_DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGet(CUdevice *id, int index)
{
    *id = index;
    return index >= 0 && index < number("EMULATED_DEVICES", 1) ? CUDA_SUCCESS
                                                               : CUDA_ERROR_INVALID_DEVICE;
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
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = number("EMULATED_UNITS", 4);
        break;
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

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice id)
{
    std::lock_guard<std::mutex> guard(lock);

    *context = &primary[id];
    if (!primary[id].users++)
        primary[id] = { id, true, CUDA_SUCCESS, 1 };
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice id)
{
    std::lock_guard<std::mutex> guard(lock);

    if (primary[id].users <= 0)
        fault("primary context released more often than retained");
    primary[id].alive = --primary[id].users > 0;
    return CUDA_SUCCESS;
}

// By the name that all drivers have, whatever the header calls it.
CUresult cuCtxCreate_v2(CUcontext *context, unsigned, CUdevice id)
{
    std::lock_guard<std::mutex> guard(lock);

    *context = new CUctx_st{ id, true, CUDA_SUCCESS, 0 };
    made.insert(*context);
    contexts.push_back(*context);
    return CUDA_SUCCESS;
}

// Kept, so that its address is not another's.
CUresult cuCtxDestroy(CUcontext context)
{
    context->alive = false;
    if (top() == context)
        contexts.pop_back();
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    std::lock_guard<std::mutex> guard(lock);

    if (!is_known(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
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
    *id = top() ? top()->device : -1;
    return top() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    const bool is_code = !memcmp(image, "\177ELF", 4);
    const int all = number("EMULATED_IMAGE", CUDA_SUCCESS);
    const int refused = !all && is_code ? number("EMULATED_CODE", CUDA_SUCCESS) : all;
    CUresult code = usable();

    if (code == CUDA_SUCCESS)
        code = refused ? (CUresult)refused : unsafe();
    *module = code == CUDA_SUCCESS ? new CUmod_st{ top() } : NULL;
    return code;
}

CUresult cuModuleUnload(CUmodule module)
{
    if (!module->context->alive)
        fault("a module was unloaded that had gone with its context");
    delete module;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    std::lock_guard<std::mutex> guard(lock);
    const char *const broken = getenv("EMULATED_BROKEN");
    const bool is_broken = broken && !strncmp(broken, name, strlen(broken));
    const runner_of *takes = runners;
    Dl_info self;
    void *entry;

    if (!dladdr((void *)cuModuleGetFunction, &self) ||
        !(entry = dlsym(dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD), name)))
        return CUDA_ERROR_NOT_FOUND;
    while (strncmp(name, takes->name, strlen(takes->name)))
        takes++;
    *function = &functions
                     .insert({ { module->context, name },
                               { name, entry, takes->run, takes->bytes, takes->more,
                                 module->context, is_broken } })
                     .first->second;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute what, CUfunction function)
{
    // those of warpgroups say how many in the source
    const int threads = function->name.find("_wgmma_") != std::string::npos ? 512 : 256;

    *value = what == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? threads : 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned, unsigned,
                        unsigned threads, unsigned, unsigned, unsigned bytes,
                        CUstream stream, void **arguments, void **)
{
    const char *params = (const char *)arguments[0];

    if (function->context != top())
        return CUDA_ERROR_INVALID_HANDLE;
    if (!x || !threads || threads > MOST_THREADS || threads % 32)
        return CUDA_ERROR_INVALID_VALUE;

    launch l = { function, x - function->broken, threads, bytes,
                 { params, params + function->bytes } };
    if (function->more) {
        const char *const second = (const char *)arguments[1];

        l.params.insert(l.params.end(), second, second + function->more);
    }
    return enqueue(stream, CU_GRAPH_NODE_TYPE_KERNEL, [=] { emulate(l); });
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *x, const cuuint64_t *size, const cuuint64_t *stride,
                                const cuuint32_t *box, const cuuint32_t *step,
                                CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    emulated_map m = { (const char *)x, {}, {}, { (int32_t)box[0], (int32_t)box[1] } };

    if (rank != 4 || swizzle != CU_TENSOR_MAP_SWIZZLE_128B || (uintptr_t)x % 16 || box[0] != 64 ||
        box[1] > 256 || box[2] != 1 || box[3] != 1 ||
        (type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16))
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 4; i++) {
        if (!size[i] || size[i] > (cuuint64_t)1 << 32 || step[i] != 1 ||
            (i < 3 && (stride[i] % 16 || stride[i] >= (cuuint64_t)1 << 40)))
            return CUDA_ERROR_INVALID_VALUE;
        m.size[i] = (int64_t)size[i];
        if (i < 3)
            m.stride[i] = (int64_t)stride[i];
    }
    memset(map, 0, sizeof *map);
    memcpy(map, &m, sizeof m);
    return CUDA_SUCCESS;
}

// Kernels run one after another: that is an overlap too.
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **arguments,
                          void **extra)
{
    return cuLaunchKernel(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
                          c->blockDimY, c->blockDimZ, c->sharedMemBytes, c->hStream,
                          arguments, extra);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    const CUresult code = usable();

    *stream = code == CUDA_SUCCESS ? new CUstream_st{ top(), flags, NULL, false } : NULL;
    return code;
}

CUresult cuStreamDestroy(CUstream stream)
{
    delete stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) { return wait_for(stream); }

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    *context = context_of(stream);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned)
{
    *event = new CUevent_st{ {}, NULL };
    return usable();
}

CUresult cuEventDestroy(CUevent event)
{
    delete event;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    event->captured = is_captured(stream) ? stream : NULL;
    return enqueue(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                   [=] { event->at = std::chrono::steady_clock::now(); });
}

CUresult cuEventSynchronize(CUevent event)
{
    return event->captured ? break_capture(event->captured, CUDA_ERROR_CAPTURED_EVENT)
                           : usable();
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn run, void *with)
{
    return enqueue(stream, CU_GRAPH_NODE_TYPE_HOST, [=] { run(with); });
}

} // extern "C"
