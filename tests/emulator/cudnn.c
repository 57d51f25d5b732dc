/* SPDX-License-Identifier: MIT */
/* emulator/cudnn.c: a libcudnn.so.9 for the emulator: the calls that the back end makes,
 * each checked for what the true library asks of its caller. Of its proposals the first can
 * never be made, which occurs; the second can.
 *
 *   EMULATED_CUDNN            "FUNCTION=STATUS": what that function answers
 *   EMULATED_CUDNN_VERSION    what it says of itself (91900)
 *   EMULATED_CUDNN_WORKSPACE  bytes that plans want (4096) */
#define _POSIX_C_SOURCE 200809L
#include "cudnn.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Every attribute: of which descriptor, its type, how many elements, whether one can do
 * without it, and of what type the descriptors in it are. At most 8 of a descriptor. */
static const struct rule {
    int of, name, type;
    int64_t least, most;
    bool optional;
    int holds;
} rules[] = {
    { TENSOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, false, 0 },
    { TENSOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DIMS, DIMS, false, 0 },
    { TENSOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DIMS, DIMS, false, 0 },
    { TENSOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1, false, 0 },
    { TENSOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1, false, 0 },
    { TENSOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1, true, 0 },
    { TENSOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, 1, true, 0 },
    { MATMUL, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, false, 0 },
    { MATMUL_OP, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
      false, TENSOR },
    { MATMUL_OP, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
      false, TENSOR },
    { MATMUL_OP, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
      false, TENSOR },
    { MATMUL_OP, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
      false, MATMUL },
    { POINT, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1, false, 0 },
    { POINT, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1, false, 0 },
    { POINT, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, 1, true, 0 },
    { POINT_OP, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR,
      1, 1, false, POINT },
    { POINT_OP, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
      false, TENSOR },
    { POINT_OP, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
      true, TENSOR },
    { POINT_OP, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
      true, TENSOR },
    { POINT_OP, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
      false, TENSOR },
    { REDUCTION, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, 1,
      false, 0 },
    { REDUCTION, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, false, 0 },
    { REDUCTION_OP, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
      1, false, TENSOR },
    { REDUCTION_OP, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
      1, false, TENSOR },
    { REDUCTION_OP, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
      1, false, REDUCTION },
    { GRAPH, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, false, 0 },
    { GRAPH, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
      MOST_OPERATIONS, false, ANY },
    { HEURISTICS, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
      1, false, GRAPH },
    { HEURISTICS, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1, false, 0 },
    { CONFIG, ANY, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, false, GRAPH }, /* not settable */
    { PLAN, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, false, 0 },
    { PLAN, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
      false, CONFIG },
    { PACK, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, MOST_SLOTS, false, 0 },
    { PACK, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, MOST_SLOTS,
      false, 0 },
    { PACK, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1, false, 0 },
};
enum { N_RULES = sizeof rules / sizeof rules[0] };

struct cudnnContext {
    CUcontext context;
    CUstream stream;
    pthread_t owner; /* who set the stream last */
};

/* graph.cpp */
CUresult emulated_enqueue(CUstream stream, void (*run)(const void *), const void *with,
                          size_t bytes);

static atomic_int live; /* descriptors */
static _Thread_local char why[128];

int emulated_cudnn_live(void)
{
    return live;
}

cudnnStatus_t no(cudnnStatus_t code, const char *reason)
{
    snprintf(why, sizeof why, "%s\nin the emulator", reason);
    return code;
}

/* What it is told to answer. */
static cudnnStatus_t told(const char *function)
{
    const char *const all = getenv("EMULATED_CUDNN");
    const size_t n = strlen(function);

    if (!all || strncmp(all, function, n) || all[n] != '=')
        return CUDNN_STATUS_SUCCESS;
    return no(atoi(all + n + 1), "as it was told");
}

static int64_t number(const char *name, int64_t otherwise)
{
    const char *const value = getenv(name);
    return value ? atoll(value) : otherwise;
}

static CUcontext current(void)
{
    CUcontext context = NULL;

    if (cuCtxPopCurrent(&context) == CUDA_SUCCESS)
        cuCtxPushCurrent(context);
    return context;
}

size_t cudnnGetVersion(void)
{
    return (size_t)number("EMULATED_CUDNN_VERSION", 91900);
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_NOT_SUPPORTED      ? "CUDNN_STATUS_NOT_SUPPORTED"
           : status == CUDNN_STATUS_EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED"
                                                     : "CUDNN_STATUS_EMULATED";
}

void cudnnGetLastErrorString(char *message, size_t cap)
{
    snprintf(message, cap, "%s", why);
    *why = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    const cudnnStatus_t answer = told("cudnnCreate");

    if (answer || !current())
        return answer ? answer : no(CUDNN_STATUS_NOT_INITIALIZED, "no context");
    *handle = calloc(1, sizeof **handle);
    if (!*handle)
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    (*handle)->context = current();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    if (handle->context != current())
        abort();
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, CUstream stream)
{
    const cudnnStatus_t answer = told("cudnnSetStream");

    if (answer)
        return answer;
    handle->stream = stream;
    handle->owner = pthread_self();
    nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL); /* let others spoil it */
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(int type, cudnnBackendDescriptor_t *out)
{
    const cudnnStatus_t answer = told("cudnnBackendCreateDescriptor");
    descriptor *d;

    if (answer)
        return answer;
    for (int i = 0; i < N_RULES; i++)
        if (rules[i].of == type) {
            if (!(d = calloc(1, sizeof *d)))
                return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
            d->type = type;
            live++;
            *out = d;
            return CUDNN_STATUS_SUCCESS;
        }
    return no(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a descriptor it does not know");
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor_)
{
    descriptor *d = descriptor_;

    if (d->type == GRAPH && d->finalized)
        free(d->value[7].pointers[0]);
    memset(d, 0x7f, sizeof *d);
    free(d);
    live--;
    return CUDNN_STATUS_SUCCESS;
}

/* The place of an attribute among those of its descriptor, and its rule; -1: none. */
static int place(int of, int name, const struct rule **rule)
{
    int n = 0;

    for (int i = 0; i < N_RULES; i++) {
        *rule = &rules[i];
        if (rules[i].of == of && rules[i].name == name)
            return n;
        n += rules[i].of == of;
    }
    return -1;
}

int64_t count_of(const descriptor *d, int name)
{
    const struct rule *rule;
    return d->count[place(d->type, name, &rule)];
}

const int64_t *numbers_of(const descriptor *d, int name)
{
    const struct rule *rule;
    return d->value[place(d->type, name, &rule)].numbers;
}

int64_t number_of(const descriptor *d, int name)
{
    return numbers_of(d, name)[0];
}

descriptor *const *list_of(const descriptor *d, int name)
{
    const struct rule *rule;
    return d->value[place(d->type, name, &rule)].list;
}

descriptor *one_of(const descriptor *d, int name)
{
    return list_of(d, name)[0];
}

/* Copies the elements; those of small types become 64-bit numbers. */
static cudnnStatus_t keep(descriptor *d, int at, const struct rule *rule, int64_t n,
                          const void *elements)
{
    d->count[at] = n;
    for (int64_t i = 0; i < n; i++)
        switch (rule->type) {
        case CUDNN_TYPE_BACKEND_DESCRIPTOR:
            d->value[at].list[i] = ((descriptor *const *)elements)[i];
            if (!d->value[at].list[i])
                return no(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
            if (!d->value[at].list[i]->finalized)
                return no(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "not finalized");
            if (rule->holds != ANY && d->value[at].list[i]->type != rule->holds)
                return no(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "of another type");
            break;
        case CUDNN_TYPE_VOID_PTR:
        case CUDNN_TYPE_HANDLE:
            d->value[at].pointers[i] = ((void *const *)elements)[i];
            if (rule->type == CUDNN_TYPE_HANDLE && !d->value[at].pointers[i])
                return no(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no handle");
            break;
        case CUDNN_TYPE_INT64:
            d->value[at].numbers[i] = ((const int64_t *)elements)[i];
            break;
        case CUDNN_TYPE_BOOLEAN:
            d->value[at].numbers[i] = ((const bool *)elements)[i];
            break;
        default: d->value[at].numbers[i] = ((const int *)elements)[i];
        }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t to, int name, int type,
                                       int64_t count, const void *elements)
{
    const cudnnStatus_t answer = told("cudnnBackendSetAttribute");
    descriptor *d = to;
    const struct rule *rule;
    const int at = place(d->type, name, &rule);

    if (answer)
        return answer;
    if (d->finalized)
        return no(CUDNN_STATUS_BAD_PARAM, "set after it was finalized");
    if (at < 0 || rule->name == ANY)
        return no(CUDNN_STATUS_BAD_PARAM, "an attribute of something else");
    if (type != rule->type)
        return no(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "an attribute of another type");
    if (count < rule->least || count > rule->most || !elements)
        return no(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "too few or too many elements");
    return keep(d, at, rule, count, elements);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor_)
{
    cudnnStatus_t code = told("cudnnBackendFinalize");
    descriptor *d = descriptor_;
    int n = 0;

    if (code)
        return code;
    if (d->finalized || d->type == CONFIG)
        return no(CUDNN_STATUS_BAD_PARAM, "not to be finalized");
    for (int i = 0; i < N_RULES; i++)
        if (rules[i].of == d->type && !d->count[n++] && !rules[i].optional)
            return no(CUDNN_STATUS_BAD_PARAM, "attributes are missing");
    code = check(d);
    d->finalized = code == CUDNN_STATUS_SUCCESS;
    return code;
}

static descriptor *graph_of(const descriptor *plan)
{
    return one_of(one_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), ANY);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t of, int name, int type,
                                       int64_t cap, int64_t *count, void *elements)
{
    const cudnnStatus_t answer = told("cudnnBackendGetAttribute");
    const descriptor *d = of;
    descriptor *const *to = elements;

    if (answer)
        return answer;
    if (!d->finalized)
        return no(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "not finalized");
    if (d->type == PLAN && name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE &&
        type == CUDNN_TYPE_INT64 && cap == 1) {
        *(int64_t *)elements = number("EMULATED_CUDNN_WORKSPACE", 4096);
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    if (d->type != HEURISTICS || name != CUDNN_ATTR_ENGINEHEUR_RESULTS ||
        type != CUDNN_TYPE_BACKEND_DESCRIPTOR)
        return no(CUDNN_STATUS_BAD_PARAM, "not to be asked for");
    *count = 0;
    if (number_of(d, CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_A &&
        is_attention(program_of(one_of(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH))))
        *count = cap < 2 ? cap : 2;
    for (int i = 0; i < *count; i++) {
        if (to[i]->type != CONFIG || to[i]->finalized)
            return no(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "no new configurations");
        to[i]->number = i;
        to[i]->value[0].list[0] = one_of(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        to[i]->finalized = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Every tensor that is not virtual has one entry, memory is aligned. */
static cudnnStatus_t bind(execution *e, const descriptor *pack)
{
    const int64_t *uid = numbers_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const int64_t n = count_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const struct rule *rule;
    void *const *pointers =
        pack->value[place(PACK, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &rule)].pointers;
    int64_t wanted = 0;

    for (int t = 0; t < e->p->n_tensors; t++) {
        const slot *s = &e->p->tensor[t];
        int64_t i = 0;

        if (s->is_virtual)
            continue;
        wanted++;
        while (i < n && uid[i] != s->uid)
            i++;
        if (i == n || !pointers[i])
            return no(CUDNN_STATUS_BAD_PARAM, "a tensor without memory");
        if (!s->by_value && (uintptr_t)pointers[i] % (uintptr_t)s->alignment)
            return no(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "misaligned");
        e->data[t] = pointers[i];
        if (s->by_value)
            e->value[t] = s->type == CUDNN_DATA_INT32 ? (float)*(const int32_t *)pointers[i]
                                                      : *(const float *)pointers[i];
    }
    return wanted == n ? CUDNN_STATUS_SUCCESS
                       : no(CUDNN_STATUS_BAD_PARAM, "memory without a tensor");
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const descriptor *d = plan, *with = pack;
    const struct rule *rule;
    execution e = { .workspace_bytes = number("EMULATED_CUDNN_WORKSPACE", 4096) };
    cudnnStatus_t code = told("cudnnBackendExecute");

    if (code)
        return code;
    if (!d->finalized || d->type != PLAN || !with->finalized || with->type != PACK)
        return no(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "no plan, or no pack");
    if (!handle->stream || handle->context != current() ||
        !pthread_equal(handle->owner, pthread_self()))
        return no(CUDNN_STATUS_INTERNAL_ERROR, "a handle that is another's");
    e.p = program_of(graph_of(d));
    e.workspace =
        with->value[place(PACK, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &rule)].pointers[0];
    if ((uintptr_t)e.workspace % 256)
        return no(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "a misaligned workspace");
    if ((code = bind(&e, with)) != CUDNN_STATUS_SUCCESS)
        return code;
    return emulated_enqueue(handle->stream, run_program, &e, sizeof e) == CUDA_SUCCESS
               ? CUDNN_STATUS_SUCCESS
               : no(CUDNN_STATUS_EXECUTION_FAILED, "the launch failed");
}
