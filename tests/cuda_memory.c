/* SPDX-License-Identifier: MIT */
/* tests/cuda_memory.c: memory of every kind as arguments: what the device can use is taken,
 * all else is an error that names the argument, and is not felt afterwards. */
#include "tests/cuda_app.h"

static const char problem[] = "softmax_fwd:f32,b1,hq2,hkv2,lq3,lk900,d20,lens,lse";

static job good; /* split: it has a workspace */

static int open_all(void **state)
{
    if (app_begin(state))
        return 1;
    job_open(&good, app.ctx, app.context, app.stream, "softmax_fwd_split", problem);
    assert_non_null(good.args.workspace);
    return 0;
}

static int close_all(void **state)
{
    job_close(&good);
    return app_end(state);
}

static void *pointer(CUdeviceptr at)
{
    return (void *)(uintptr_t)at;
}

static const struct {
    const char *name;
    size_t at;
} tensors[] = {
#define ROW(field)                                 \
    {                                              \
#field ".data", offsetof(attn_args, field) \
    }
    ROW(q), ROW(k), ROW(v), ROW(o), ROW(lse), ROW(lens_kv),
#undef ROW
};
enum { N_TENSORS = sizeof tensors / sizeof tensors[0] };

/* In place of each tensor, and of the workspace. */
static void refused(void *memory, const char *says)
{
    char byte;

    for (int i = 0; i < N_TENSORS; i++) {
        attn_args args = good.args;

        ((attn_tensor *)(void *)((char *)&args + tensors[i].at))->data = memory;
        check_error(attn_execute(good.plan, &args, app.stream), ATTN_ERR_INVALID, says);
        if (!strstr(attn_last_error(), tensors[i].name))
            fail_msg("%s is not named: %s", tensors[i].name, attn_last_error());
    }
    {
        attn_args args = good.args;

        args.workspace = memory;
        check_error(attn_execute(good.plan, &args, app.stream), ATTN_ERR_INVALID, says);
        check_error(attn_execute(good.plan, &args, app.stream), ATTN_ERR_INVALID,
                    "workspace");
    }
    check_error(attn_memory_upload(app.ctx, memory, 0, "", 1), ATTN_ERR_INVALID, says);
    check_error(attn_memory_upload(app.ctx, memory, 0, "", 1), ATTN_ERR_INVALID,
                "memory: ");
    check_error(attn_memory_download(app.ctx, &byte, memory, 0, 1), ATTN_ERR_INVALID,
                "memory: ");
    job_run(&good);
}

static void host_memory(void **state)
{
    void *const memory = malloc(1 << 20);
    int32_t local = 0;

    (void)state;
    assert_non_null(memory);
    refused(memory, "no memory that CUDA knows of");
    refused(&local, "no memory that CUDA knows of");
    refused((void *)64, "no memory that CUDA knows of");
    free(memory);
}

/* Large, so that it is not a part of a block that lives on. */
static void freed_memory(void **state)
{
    const CUdeviceptr gone = app_alloc(app.context, 64 << 20);

    (void)state;
    app_free(app.context, gone);
    refused(pointer(gone), "no memory that CUDA knows of");
    refused(pointer(gone + (32 << 20)), "no memory that CUDA knows of");
}

static void memory_of_another_context(void **state)
{
    CUcontext other = NULL;
    CUdeviceptr foreign;

    (void)state;
    assert_int_equal(cu.create(&other, 0, 0), CUDA_SUCCESS);
    app_leave();
    foreign = app_alloc(other, 1 << 20);
    refused(pointer(foreign), "belongs to another CUcontext");
    cu_ok(cuCtxDestroy(other));
    refused(pointer(foreign), "no memory that CUDA knows of");
}

/* Another block holds one of the tensors for a while. */
static void taken(attn_tensor *t, CUdeviceptr memory)
{
    void *const own = t->data;

    t->data = pointer(memory);
    job_run(&good);
    t->data = own;
}

static void taken_as_both(CUdeviceptr memory)
{
    taken(&good.args.k, memory);
    taken(&good.args.o, memory);
    taken(&good.args.lens_kv, memory);
}

enum { BLOCK = 1 << 20 };

/* Managed memory and the host's are no context's, whichever made them. */
static void memory_that_the_device_can_use(void **state)
{
    CUcontext other = NULL;
    CUdeviceptr managed = 0, pooled = 0;
    void *pinned = NULL, *const registered = aligned_alloc(4096, BLOCK);

    (void)state;
    assert_int_equal(cu.create(&other, 0, 0), CUDA_SUCCESS);
    cu_ok(cuMemAllocManaged(&managed, BLOCK, CU_MEM_ATTACH_GLOBAL));
    cu_ok(cuMemHostAlloc(&pinned, BLOCK, CU_MEMHOSTALLOC_PORTABLE));
    app_leave();
    app_enter(app.context);
    cu_ok(cuMemAllocAsync(&pooled, BLOCK, app.stream));
    cu_ok(cuMemHostRegister(registered, BLOCK, CU_MEMHOSTREGISTER_DEVICEMAP));
    app_leave();
    taken_as_both(managed);
    taken_as_both(pooled);
    taken_as_both((CUdeviceptr)(uintptr_t)pinned);
    taken_as_both((CUdeviceptr)(uintptr_t)registered);
    if (cu.break_context) { /* old devices and systems have it elsewhere */
        setenv("EMULATED_ELSEWHERE", "1", 1);
        refused(registered, "host memory that this device sees elsewhere");
        unsetenv("EMULATED_ELSEWHERE");
    }
    app_enter(app.context);
    cu_ok(cuMemHostUnregister(registered));
    app_leave();
    refused(registered, "no memory that CUDA knows of");
    app_enter(app.context);
    cu_ok(cuMemFreeAsync(pooled, app.stream));
    app_leave();
    app_enter(other);
    cu_ok(cuMemFree(managed));
    cu_ok(cuMemFreeHost(pinned));
    app_leave();
    cu_ok(cuCtxDestroy(other));
    free(registered);
}

static void views_that_do_not_fit(void **state)
{
    const CUdeviceptr v = (CUdeviceptr)(uintptr_t)good.args.v.data;
    attn_args args = good.args;

    (void)state;
    args.v.data = pointer(v + 16); /* reaches past the end */
    check_error(attn_execute(good.plan, &args, app.stream), ATTN_ERR_INVALID,
                "v reaches byte");
    args = good.args;
    args.v.data_bytes = (size_t)1 << 40;
    check_error(attn_execute(good.plan, &args, app.stream), ATTN_ERR_INVALID,
                "but the buffer has");
    args = good.args;
    args.v.data = pointer(v + 2);
    check_error(attn_execute(good.plan, &args, app.stream), ATTN_ERR_INVALID, "v.data = ");
    args = good.args;
    args.v = attn_tensor_cuda(v + 4, ATTN_F32, args.v.size, (int64_t[]){ 0, 0, 0, 1 });
    check_error(attn_execute(good.plan, &args, app.stream), ATTN_ERR_INVALID,
                "v starts at a byte that is no multiple");
    args = good.args;
    args.o.data = args.q.data;
    check_error(attn_execute(good.plan, &args, app.stream), ATTN_ERR_INVALID, "overlaps");
    job_run(&good);
}

static void workspaces_that_do_not_fit(void **state)
{
    const CUdeviceptr block = app_alloc(app.context, good.args.workspace_bytes);
    attn_args args = good.args;

    (void)state;
    args.workspace = NULL;
    check_error(attn_execute(good.plan, &args, app.stream), ATTN_ERR_WORKSPACE,
                "workspace");
    args = good.args;
    args.workspace_bytes--;
    check_error(attn_execute(good.plan, &args, app.stream), ATTN_ERR_WORKSPACE, "want");
    args = good.args;
    args.workspace = pointer(block + 64); /* so many bytes, but not from there on */
    check_error(attn_execute(good.plan, &args, app.stream), ATTN_ERR_WORKSPACE,
                "workspace has");
    args.workspace = args.o.data;
    args.workspace_bytes = good.args.workspace_bytes;
    assert_int_not_equal(attn_execute(good.plan, &args, app.stream), ATTN_OK);
    app_free(app.context, block);
    job_run(&good);
}

static void more_than_there_is(void **state)
{
    const size_t much = (size_t)1 << 50;
    void *memory = &memory;
    char size[32];

    (void)state;
    snprintf(size, sizeof size, "%zu bytes", much);
    check_error(attn_memory_alloc(app.ctx, much, &memory), ATTN_ERR_NO_MEMORY, size);
    assert_null(memory);
    check_error(attn_memory_alloc(app.ctx, much, &memory), ATTN_ERR_NO_MEMORY,
                ": cuMemAlloc = 2 (CUDA_ERROR_OUT_OF_MEMORY");
    check_ok(attn_memory_alloc(app.ctx, 64, &memory));
    check_error(attn_memory_upload(app.ctx, memory, 60, "12345", 5), ATTN_ERR_INVALID,
                "leave");
    check_ok(attn_memory_upload(app.ctx, memory, 60, "1234", 4));
    attn_memory_free(app.ctx, &memory);
    job_run(&good);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_memory),
        cmocka_unit_test(freed_memory),
        cmocka_unit_test(memory_of_another_context),
        cmocka_unit_test(memory_that_the_device_can_use),
        cmocka_unit_test(views_that_do_not_fit),
        cmocka_unit_test(workspaces_that_do_not_fit),
        cmocka_unit_test(more_than_there_is),
    };
    const int absent = app_open(argc, argv);

    return absent ? absent : cmocka_run_group_tests(tests, open_all, close_all);
}
