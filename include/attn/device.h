/* SPDX-License-Identifier: MIT */
/* attn/device.h: devices, contexts, memory on the device, variants. */
#ifndef ATTN_DEVICE_H
#define ATTN_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include <attn/linear.h>
#include <attn/softmax.h>
#include <attn/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A device opened for use, with its compiled kernels and its own queue. May be
 * shared between threads. */
typedef struct attn_ctx attn_ctx;

typedef enum attn_device_kind {
    ATTN_DEVICE_HOST = 0, /* this process, without a driver   */
    ATTN_DEVICE_CPU = 1,  /* a processor, through a driver    */
    ATTN_DEVICE_GPU = 2,
    ATTN_DEVICE_OTHER = 3
} attn_device_kind;

/* What is known of a device before any kernel is built. */
typedef struct attn_device_info {
    char selector[32];       /* "host", "opencl:0": for attn_ctx_create()     */
    char name[128];
    char vendor[128];
    char platform[128];      /* the driver that shows it, with its version    */
    char driver[128];
    attn_device_kind kind;
    int64_t compute_units;
    int64_t fast_bytes;      /* local (shared) memory of a group; host: cache */
    int64_t max_group;       /* work-items of a group                         */
    int64_t subgroup;        /* preferred width of a subgroup; 0: not told;
                                host: queries that a kernel holds in registers */
    int64_t vector_width;    /* f32 lanes of a native vector                  */
    int64_t memory_bytes;
    int64_t max_alloc_bytes; /* of one allocation                             */
    int64_t clock_mhz;       /* highest; 0: not told                          */
    int64_t max_loops;       /* the driver cuts a kernel's loops off, in silence,
                                after so many iterations; 0: it does not      */
    int64_t capability;      /* CUDA: 10 * major + minor of the compute capability;
                                elsewhere 0                                   */
    int32_t generic_code;    /* CUDA: the library has no kernels for this capability
                                alone (sm_90a), as a build with other nvcc_archs  */
    char isa[32];            /* host: the instruction level in use            */
    char blas[64];           /* the BLAS that the vendor variants call; "": none */
    int64_t cudnn_version;   /* CUDA: of the cuDNN that softmax_fwd_cudnn calls, 91900
                                is 9.19.0; 0: not found; elsewhere 0          */
} attn_device_info;

/* A back end of this build: "cuda", "opencl" or "host". */
typedef struct attn_backend_info {
    const char *name;
    int32_t devices;
    char reason[256];        /* why there are no devices; "" if there are     */
} attn_backend_info;

/* A variant's answer to a problem. */
typedef struct attn_variant_info {
    const char *name;        /* static                                        */
    int32_t applicable;      /* 1: it takes the problem                       */
    int32_t failed;          /* 1: it would, but was found to be wrong here: its
                                self-test, at first use, gave a wrong result or an
                                error of a vendor's library; `reason` tells   */
    char reason[160];        /* why not; if it does, why the planner passes it over
                                unless it is named, "" if it does not         */
    uint32_t traits;         /* ATTN_TRAIT_ bits                              */
} attn_variant_info;

/* What a caller should know of a variant before it is asked for. */
#define ATTN_TRAIT_BY_NAME  (1u << 0) /* never chosen by the planner          */
#define ATTN_TRAIT_FINITE_V (1u << 1) /* V wants finite numbers behind masks  */
#define ATTN_TRAIT_ROUNDED  (1u << 2) /* scores are rounded to the type: less exact,
                                         and large ones overflow in f16       */
#define ATTN_TRAIT_VENDOR   (1u << 3) /* calls a vendor's library, which may
                                         allocate and wait                    */
#define ATTN_TRAIT_BY_SIZE  (1u << 4) /* a row's bits may change with the batch, the heads
                                         and the queries: a library chooses by them */
#define ATTN_TRAIT_FORWARD  (1u << 5) /* takes no tensor with a negative stride:
                                         attn_execute() says UNSUPPORTED      */
#define ATTN_TRAIT_NONDET   (1u << 6) /* bits may differ from run to run: taken by name, or
                                         where the problem allows it
                                         (ATTN_LINEAR_ALLOW_NONDET)           */

/* Lists the back ends, best first, and how many devices each has. A back end
 * without devices is no error. Writes at most `cap` entries and stores their
 * full number in *n. `out` may be NULL with cap 0. Threads: safe. */
ATTN_API attn_status attn_backend_list(attn_backend_info *out, size_t cap, size_t *n);

/* Lists the devices of all back ends. As attn_backend_list(). */
ATTN_API attn_status attn_device_list(attn_device_info *out, size_t cap, size_t *n);

/* Opens a device.
 *
 *   selector  "host", "opencl:N", "cuda:N"; or "auto": the first CUDA device of
 *             compute capability 7.5 and up, then the first OpenCL GPU, then
 *             the host, then an OpenCL CPU. NULL: the value of ATTN_DEVICE, or
 *             "auto"
 *   out       receives the context, owned by the caller until
 *             attn_ctx_destroy(); set to NULL on failure
 *
 * ATTN_ERR_INVALID    the selector is not of that form
 * ATTN_ERR_NO_DEVICE  there is no such device; the text says why
 * ATTN_ERR_DEVICE, ATTN_ERR_NO_MEMORY
 *
 * These environment variables are read here, in attn_ctx_create_opencl() (but for
 * the device) and nowhere else: ATTN_DEVICE, ATTN_CACHE (0: no kernel cache on disk),
 * ATTN_CACHE_DIR, XDG_CACHE_HOME, HOME, ATTN_OPENCL_LIB (full name or folder of the
 * OpenCL loader; also read by the two list functions, as all that follow),
 * ATTN_CLBLAST_LIB (likewise that of CLBlast),
 * ATTN_CUDA_LIB (likewise the driver's libcuda.so.1), ATTN_CUBLAS_LIB (likewise
 * libcublas.so of the toolkit's major version), ATTN_CUDNN_LIB (likewise libcudnn.so.9).
 * attn_ctx_create_cuda() reads the last three. Threads: safe. */
ATTN_API attn_status attn_ctx_create(const char *selector, attn_ctx **out);

/* Waits for the context's own queue, frees everything it holds and sets *ctx to
 * NULL. Plans must be destroyed first. Accepts NULL and a NULL context. */
ATTN_API void attn_ctx_destroy(attn_ctx **ctx);

/* Waits until all work on the context's own queue has ended, and reports an
 * error that the device met in it. Threads: safe. */
ATTN_API attn_status attn_ctx_wait(attn_ctx *ctx);

/* The device of a context. Threads: safe. */
ATTN_API attn_status attn_ctx_info(const attn_ctx *ctx, attn_device_info *out);

/* How many threads "host" plans of this context use from now on, 1 .. 4096; 0: what
 * OpenMP says (OMP_NUM_THREADS). Other devices ignore it. Plans made before keep
 * their number. Threads: safe. */
ATTN_API attn_status attn_ctx_set_threads(attn_ctx *ctx, int32_t n);

/* Memory on the context's device: a host pointer on "host", a cl_mem on
 * "opencl", a device pointer on "cuda"; what attn_tensor.data takes. Aligned to
 * 64 bytes at least, not initialised. 0 bytes give a valid, unusable block.
 *
 * ATTN_ERR_NO_MEMORY if the device has not that much. Threads: safe. */
ATTN_API attn_status attn_memory_alloc(attn_ctx *ctx, size_t bytes, void **out);

/* Frees a block of this context and sets *memory to NULL; the work that uses it
 * must have ended. Accepts NULL and a NULL block. */
ATTN_API void attn_memory_free(attn_ctx *ctx, void **memory);

/* Copies `bytes` bytes between host memory and a block, `offset` bytes into it,
 * on the context's own queue, after all work enqueued there. Returns when the
 * copy is done. A range that leaves the block is INVALID where the device
 * knows its size. Threads: safe. */
ATTN_API attn_status attn_memory_upload(attn_ctx *ctx, void *memory, size_t offset,
                                        const void *from, size_t bytes);
ATTN_API attn_status attn_memory_download(attn_ctx *ctx, void *to, const void *memory,
                                          size_t offset, size_t bytes);

/* What every variant of the context's back end for the pass of a problem answers to it, in
 * the planner's order: attn_plan_softmax() takes the first that says yes without a
 * reason, or the first that says yes and may be chosen if there is none such.
 * The same code gives both answers. A variant that fails its self-test when it is
 * planned says no from then on, in that context. Writes at most `cap` entries, and their
 * full number to *n. ATTN_ERR_INVALID if desc breaks a rule. Threads: safe. */
ATTN_API attn_status attn_softmax_variants(attn_ctx *ctx, const attn_softmax_desc *desc,
                                           attn_variant_info *out, size_t cap, size_t *n);

/* The same of linear attention: none at all where a back end has none. */
ATTN_API attn_status attn_linear_variants(attn_ctx *ctx, const attn_linear_desc *desc,
                                          attn_variant_info *out, size_t cap, size_t *n);

#ifdef __cplusplus
}
#endif

#endif
