/* SPDX-License-Identifier: MIT */
/* tests/opencl_queue.c: a caller's own context, queues, buffers and events, on
 * every OpenCL device found. */
#include "tests/check.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/opencl.h>

enum { B = 1, H = 2, L = 37, D = 20, N = B * H * L * D, MAX_DEVICES = 16, THREADS = 4 };

static cl_device_id devices[MAX_DEVICES];
static int n_devices;

#define CL_OK(call) assert_int_equal((call), CL_SUCCESS)

static void find_devices(void)
{
    cl_platform_id platforms[16];
    cl_uint n = 0, found;

    if (clGetPlatformIDs(16, platforms, &n) != CL_SUCCESS)
        return;
    for (cl_uint i = 0; i < n && i < 16; i++) {
        found = 0;
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL,
                           (cl_uint)(MAX_DEVICES - n_devices), devices + n_devices,
                           &found) == CL_SUCCESS)
            n_devices +=
                (int)found < MAX_DEVICES - n_devices ? (int)found : MAX_DEVICES - n_devices;
    }
}

typedef struct fixture {
    cl_context context;
    cl_device_id device;
    cl_command_queue queue;
    cl_mem q, k, v, o;
    attn_ctx *ctx;
    attn_plan *plan;
    attn_args args;
    float in[N], want[N];
} fixture;

static const int64_t size[4] = { B, H, L, D }, stride[4] = { H * L * D, L *D, D, 1 };

static cl_mem buffer(fixture *f, const float *data)
{
    cl_int code;
    cl_mem m =
        clCreateBuffer(f->context, CL_MEM_READ_WRITE | (data ? CL_MEM_COPY_HOST_PTR : 0),
                       sizeof f->in, (void *)(uintptr_t)data, &code);
    CL_OK(code);
    return m;
}

static void open_device(fixture *f, int d, cl_command_queue_properties properties)
{
    const attn_softmax_desc desc = { .size = sizeof desc,
                                     .type = ATTN_F32,
                                     .batch = B,
                                     .heads_q = H,
                                     .heads_kv = H,
                                     .len_q = L,
                                     .len_kv = L,
                                     .dim_qk = D,
                                     .use = ATTN_USE_CAUSAL };
    attn_ctx *host = NULL;
    cl_int code;

    memset(f, 0, sizeof *f);
    for (int i = 0; i < N; i++)
        f->in[i] = sinf((float)i);
    check_ok(attn_ctx_create("host", &host));
    check_ok(attn_softmax_forward_host(host, &desc, f->in, f->in, f->in, f->want, NULL));
    attn_ctx_destroy(&host);

    f->device = devices[d];
    f->context = clCreateContext(NULL, 1, &devices[d], NULL, NULL, &code);
    CL_OK(code);
    f->queue = clCreateCommandQueue(f->context, devices[d], properties, &code);
    CL_OK(code);
    f->q = buffer(f, f->in);
    f->k = buffer(f, f->in);
    f->v = buffer(f, f->in);
    f->o = buffer(f, NULL);
    check_ok(attn_ctx_create_opencl(f->context, devices[d], &f->ctx));
    check_ok(attn_plan_softmax(f->ctx, &desc, &f->plan));
    f->args = (attn_args){ .size = sizeof f->args,
                           .q = attn_tensor_cl(f->q, 0, ATTN_F32, size, stride),
                           .k = attn_tensor_cl(f->k, 0, ATTN_F32, size, stride),
                           .v = attn_tensor_cl(f->v, 0, ATTN_F32, size, stride),
                           .o = attn_tensor_cl(f->o, 0, ATTN_F32, size, stride) };
}

static void close_device(fixture *f)
{
    cl_mem all[] = { f->q, f->k, f->v, f->o };

    attn_plan_destroy(&f->plan);
    attn_ctx_destroy(&f->ctx);
    for (int i = 0; i < 4; i++)
        CL_OK(clReleaseMemObject(all[i]));
    CL_OK(clReleaseCommandQueue(f->queue));
    CL_OK(clReleaseContext(f->context));
}

static void check_result(const fixture *f, const float *have)
{
    for (int i = 0; i < N; i++)
        if (!(fabsf(have[i] - f->want[i]) < 1e-5f))
            fail_msg("o[%d] = %g, want %g", i, (double)have[i], (double)f->want[i]);
}

/* An out-of-order queue: only the events order the fill, our kernel, the read. */
static void events_order_the_work(void **state)
{
    (void)state;
    for (int d = 0; d < n_devices; d++) {
        cl_event written = NULL, done = NULL;
        cl_command_queue_properties can = 0;
        float have[N];
        fixture f;

        CL_OK(clGetDeviceInfo(devices[d], CL_DEVICE_QUEUE_PROPERTIES, sizeof can, &can,
                              NULL));
        open_device(&f, d, can & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
        for (int i = 0; i < 20; i++) {
            CL_OK(clEnqueueWriteBuffer(f.queue, f.q, CL_FALSE, 0, sizeof f.in, f.in, 0,
                                       NULL, &written));
            check_ok(attn_execute_opencl(f.plan, &f.args, f.queue, 1, &written, &done));
            memset(have, 0xff, sizeof have);
            CL_OK(clEnqueueReadBuffer(f.queue, f.o, CL_TRUE, 0, sizeof have, have, 1, &done,
                                      NULL));
            check_result(&f, have);
            CL_OK(clReleaseEvent(written));
            CL_OK(clReleaseEvent(done));
        }
        close_device(&f);
    }
}

/* Nothing to compute: the event still comes, after the wait list. */
static void an_empty_call_has_its_event(void **state)
{
    (void)state;
    for (int d = 0; d < n_devices; d++) {
        cl_event first, done = NULL;
        cl_int code, status;
        fixture f;

        open_device(&f, d, 0);
        first = clCreateUserEvent(f.context, &code);
        CL_OK(code);
        f.args.q.size[2] = f.args.o.size[2] = 0;
        check_ok(attn_execute_opencl(f.plan, &f.args, f.queue, 1, &first, &done));
        CL_OK(clFlush(f.queue));
        CL_OK(clGetEventInfo(done, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status,
                             &status, NULL));
        assert_int_not_equal(status, CL_COMPLETE);
        CL_OK(clSetUserEventStatus(first, CL_COMPLETE));
        CL_OK(clWaitForEvents(1, &done));
        CL_OK(clReleaseEvent(first));
        CL_OK(clReleaseEvent(done));
        close_device(&f);
    }
}

static void what_does_not_belong_is_refused(void **state)
{
    (void)state;
    for (int d = 0; d < n_devices; d++) {
        cl_context other;
        cl_command_queue foreign;
        cl_mem strange;
        cl_event event = NULL;
        attn_ctx *ctx = NULL;
        uint64_t ns;
        cl_int code;
        fixture f;

        open_device(&f, d, 0);
        other = clCreateContext(NULL, 1, &devices[d], NULL, NULL, &code);
        CL_OK(code);
        foreign = clCreateCommandQueue(other, devices[d], 0, &code);
        CL_OK(code);
        strange = clCreateBuffer(other, CL_MEM_READ_WRITE, sizeof f.in, NULL, &code);
        CL_OK(code);

        check_error(attn_execute(f.plan, &f.args, NULL), ATTN_ERR_INVALID,
                    "stream is NULL");
        check_error(attn_execute_opencl(f.plan, &f.args, NULL, 0, NULL, NULL),
                    ATTN_ERR_INVALID, "queue is NULL");
        check_error(attn_execute_opencl(NULL, &f.args, f.queue, 0, NULL, NULL),
                    ATTN_ERR_INVALID, "plan is NULL");
        check_error(attn_execute_opencl(f.plan, &f.args, f.queue, 1, NULL, NULL),
                    ATTN_ERR_INVALID, "n_wait = 1");
        check_error(attn_execute_opencl(f.plan, &f.args, f.queue, 0, &event, NULL),
                    ATTN_ERR_INVALID, "n_wait = 0");
        check_error(attn_execute(f.plan, &f.args, foreign), ATTN_ERR_INVALID, "queue");
        check_error(attn_execute_timed(f.plan, &f.args, f.queue, &ns), ATTN_ERR_INVALID,
                    "PROFILING");
        f.args.k.data = strange;
        check_error(attn_execute(f.plan, &f.args, f.queue), ATTN_ERR_INVALID, "k.data");
        f.args.k.data = f.k;
        f.args.k.offset = 1;
        check_error(attn_execute(f.plan, &f.args, f.queue), ATTN_ERR_INVALID, "k ");
        f.args.k.offset = 0;
        f.args.o.data = f.q;
        check_error(attn_execute(f.plan, &f.args, f.queue), ATTN_ERR_INVALID,
                    "o overlaps q");
        check_error(attn_ctx_create_opencl(NULL, devices[d], &ctx), ATTN_ERR_INVALID,
                    "context");
        check_error(attn_ctx_create_opencl(other, NULL, &ctx), ATTN_ERR_INVALID, "device");
        for (int e = 0; e < n_devices; e++)
            if (e != d)
                check_error(attn_ctx_create_opencl(other, devices[e], &ctx),
                            ATTN_ERR_INVALID, "device");
        CL_OK(clReleaseMemObject(strange));
        CL_OK(clReleaseCommandQueue(foreign));
        CL_OK(clReleaseContext(other));
        close_device(&f);
    }
}

/* The two halves of the keys, merged on the caller's queue: only the events order the
 * writes, a kernel for each part, the read. */
static void a_merge_between_events(void **state)
{
    enum { ROWS = B * H * L };

    (void)state;
    for (int d = 0; d < n_devices; d++) {
        const int64_t rows[4] = { B, H, L, 1 }, one[4] = { H * L, L, 1, 1 };
        cl_command_queue_properties can = 0;
        cl_event written[2] = { NULL }, done = NULL;
        attn_tensor part_o[2], part_lse[2];
        attn_merge_args args = { .size = sizeof args, .n_parts = 2 };
        float half[ROWS], have[N];
        cl_mem lse, o, work;
        cl_int code;
        fixture f;

        CL_OK(clGetDeviceInfo(devices[d], CL_DEVICE_QUEUE_PROPERTIES, sizeof can, &can,
                              NULL));
        open_device(&f, d, can & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
        lse = clCreateBuffer(f.context, CL_MEM_READ_WRITE, sizeof half, NULL, &code);
        CL_OK(code);
        o = f.o;
        for (int i = 0; i < ROWS; i++)
            half[i] = (float)(i % 7);
        /* equal parts of equal weight: O stays, the LSE grows by ln 2 */
        for (int p = 0; p < 2; p++) {
            part_o[p] = attn_tensor_cl(p ? f.k : f.q, 0, ATTN_F32, size, stride);
            part_lse[p] = attn_tensor_cl(lse, 0, ATTN_F32, rows, one);
        }
        args.part_o = part_o;
        args.part_lse = part_lse;
        args.o = attn_tensor_cl(o, 0, ATTN_F32, size, stride);
        args.workspace_bytes = attn_merge_workspace_bytes(f.ctx, &args);
        work =
            clCreateBuffer(f.context, CL_MEM_READ_WRITE, args.workspace_bytes, NULL, &code);
        CL_OK(code);
        args.workspace = work;
        check_error(attn_merge(f.ctx, &args, NULL), ATTN_ERR_INVALID, "stream is NULL");
        check_error(attn_merge_opencl(f.ctx, &args, NULL, 0, NULL, NULL), ATTN_ERR_INVALID,
                    "queue is NULL");
        check_error(attn_merge_opencl(f.ctx, &args, f.queue, 1, NULL, NULL),
                    ATTN_ERR_INVALID, "n_wait = 1");
        for (int i = 0; i < 20; i++) {
            CL_OK(clEnqueueWriteBuffer(f.queue, lse, CL_FALSE, 0, sizeof half, half, 0,
                                       NULL, &written[0]));
            CL_OK(clEnqueueWriteBuffer(f.queue, f.q, CL_FALSE, 0, sizeof f.in, f.in, 0,
                                       NULL, &written[1]));
            check_ok(attn_merge_opencl(f.ctx, &args, f.queue, 2, written, &done));
            memset(have, 0xff, sizeof have);
            CL_OK(clEnqueueReadBuffer(f.queue, o, CL_TRUE, 0, sizeof have, have, 1, &done,
                                      NULL));
            for (int k = 0; k < N; k++)
                if (!(fabsf(have[k] - f.in[k]) < 1e-6f))
                    fail_msg("o[%d] = %g, want %g", k, (double)have[k], (double)f.in[k]);
            CL_OK(clReleaseEvent(written[0]));
            CL_OK(clReleaseEvent(written[1]));
            CL_OK(clReleaseEvent(done));
        }
        CL_OK(clReleaseMemObject(lse));
        CL_OK(clReleaseMemObject(work));
        close_device(&f);
    }
}

/* Two halves of one device share a context: kernels belong to one of them. The halves are
 * not released: a worker of PoCL 3.1 that has finished the last command still asks the
 * command's device for its functions, after clFinish() has returned and the context is
 * gone, and clReleaseDevice() frees a sub-device at once. */
static void sub_devices_of_one_context(void **state)
{
    (void)state;
    for (int d = 0; d < n_devices; d++) {
        const cl_device_partition_property by_one[] = { CL_DEVICE_PARTITION_EQUALLY, 1, 0 };
        cl_device_id half[2];
        cl_uint n = 0, most = 0;
        cl_context context;
        cl_int code;

        /* some drivers crash when they are asked for what they do not have */
        CL_OK(clGetDeviceInfo(devices[d], CL_DEVICE_PARTITION_MAX_SUB_DEVICES, sizeof most,
                              &most, NULL));
        if (most < 2)
            continue;
        if (clCreateSubDevices(devices[d], by_one, 2, half, &n) != CL_SUCCESS || n != 2)
            continue;
        context = clCreateContext(NULL, 2, half, NULL, NULL, &code);
        CL_OK(code);
        for (int i = 0; i < 2; i++) {
            attn_ctx *ctx = NULL;
            attn_plan *plan = NULL;

            check_ok(attn_ctx_create_opencl(context, half[i], &ctx));
            check_ok(attn_plan_parse(ctx, "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8", &plan));
            attn_plan_destroy(&plan);
            attn_ctx_destroy(&ctx);
        }
        CL_OK(clReleaseContext(context));
    }
}

static cl_mem part_of(cl_mem whole, size_t origin, size_t bytes)
{
    const cl_buffer_region region = { origin, bytes };
    cl_int code;
    cl_mem m = clCreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION,
                                 &region, &code);

    CL_OK(code);
    return m;
}

/* Sub-buffers, and a buffer and one of its own, may share bytes though they are not the same. */
static void parts_of_one_buffer(void **state)
{
    (void)state;
    for (int d = 0; d < n_devices; d++) {
        const size_t bytes = N * sizeof(float);
        cl_uint bits = 0;
        cl_mem whole, v, o, apart;
        float have[N];
        size_t align;
        cl_int code;
        fixture f;

        open_device(&f, d, 0);
        CL_OK(clGetDeviceInfo(devices[d], CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits,
                              NULL));
        align = bits / 8;
        assert_true(align && align < bytes);
        whole =
            clCreateBuffer(f.context, CL_MEM_READ_WRITE, 2 * bytes + align, NULL, &code);
        CL_OK(code);
        v = part_of(whole, 0, bytes);
        o = part_of(whole, align, bytes);
        apart = part_of(whole, (bytes + align - 1) / align * align, bytes);
        CL_OK(clEnqueueWriteBuffer(f.queue, v, CL_TRUE, 0, bytes, f.in, 0, NULL, NULL));
        f.args.v.data = v;
        f.args.o.data = o;
        check_error(attn_execute(f.plan, &f.args, f.queue), ATTN_ERR_INVALID,
                    "o overlaps v");
        f.args.o.data = whole;
        check_error(attn_execute(f.plan, &f.args, f.queue), ATTN_ERR_INVALID,
                    "o overlaps v");
        f.args.o.data = apart;
        check_ok(attn_execute(f.plan, &f.args, f.queue));
        CL_OK(clEnqueueReadBuffer(f.queue, apart, CL_TRUE, 0, bytes, have, 0, NULL, NULL));
        check_result(&f, have);
        CL_OK(clReleaseMemObject(v));
        CL_OK(clReleaseMemObject(o));
        CL_OK(clReleaseMemObject(apart));
        CL_OK(clReleaseMemObject(whole));
        close_device(&f);
    }
}

/* Memory of the caller's own that does not begin where the plan's layout wants it. */
static void memory_at_an_odd_address(void **state)
{
    (void)state;
    for (int d = 0; d < n_devices; d++) {
        float *memory = aligned_alloc(64, (N + 16) * sizeof(float));
        cl_mem odd;
        cl_int code;
        fixture f;

        assert_non_null(memory);
        open_device(&f, d, 0);
        memcpy(memory + 1, f.in, sizeof f.in);
        odd = clCreateBuffer(f.context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                             sizeof f.in, memory + 1, &code);
        CL_OK(code);
        f.args.q.data = odd;
        check_error(attn_execute(f.plan, &f.args, f.queue), ATTN_ERR_INVALID,
                    "q starts at a byte that is no multiple");
        CL_OK(clReleaseMemObject(odd));
        close_device(&f);
        free(memory);
    }
}

/* A workspace that the plan does not want is not looked at; an event that is none is named. */
static void what_is_given_besides(void **state)
{
    (void)state;
    for (int d = 0; d < n_devices; d++) {
        const cl_event none = NULL;
        float have[N];
        fixture f;

        open_device(&f, d, 0);
        check_error(attn_execute_opencl(f.plan, &f.args, f.queue, 1, &none, NULL),
                    ATTN_ERR_INVALID, "wait[0] is NULL");
        if (!attn_plan_workspace_bytes(f.plan)) {
            f.args.workspace = have;
            f.args.workspace_bytes = sizeof have;
            check_ok(attn_execute(f.plan, &f.args, f.queue));
            CL_OK(clEnqueueReadBuffer(f.queue, f.o, CL_TRUE, 0, sizeof have, have, 0, NULL,
                                      NULL));
            check_result(&f, have);
        }
        close_device(&f);
    }
}

static void *execute_often(void *arg)
{
    const fixture *f = arg;
    attn_args args = f->args;
    float have[N];
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(f->context, f->device, 0, &code);
    cl_mem o = clCreateBuffer(f->context, CL_MEM_READ_WRITE, sizeof have, NULL, &code);
    uintptr_t wrong = code != CL_SUCCESS;

    args.o = attn_tensor_cl(o, 0, ATTN_F32, size, stride);
    for (int i = 0; i < 50 && !wrong; i++) {
        memset(have, 0xff, sizeof have);
        wrong |= attn_execute(f->plan, &args, queue) != ATTN_OK;
        wrong |= clEnqueueReadBuffer(queue, o, CL_TRUE, 0, sizeof have, have, 0, NULL,
                                     NULL) != CL_SUCCESS;
        for (int k = 0; k < N; k++)
            wrong |= !(fabsf(have[k] - f->want[k]) < 1e-5f);
    }
    clReleaseMemObject(o);
    clReleaseCommandQueue(queue);
    return (void *)wrong;
}

/* One plan, one context, a queue for each thread. */
static void threads_share_a_plan(void **state)
{
    (void)state;
    for (int d = 0; d < n_devices; d++) {
        pthread_t thread[THREADS];
        fixture f;

        open_device(&f, d, 0);
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, execute_often, &f), 0);
        for (int i = 0; i < THREADS; i++) {
            void *wrong;
            assert_int_equal(pthread_join(thread[i], &wrong), 0);
            assert_null(wrong);
        }
        close_device(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_order_the_work),
        cmocka_unit_test(an_empty_call_has_its_event),
        cmocka_unit_test(a_merge_between_events),
        cmocka_unit_test(what_does_not_belong_is_refused),
        cmocka_unit_test(parts_of_one_buffer),
        cmocka_unit_test(memory_at_an_odd_address),
        cmocka_unit_test(what_is_given_besides),
        cmocka_unit_test(sub_devices_of_one_context),
        cmocka_unit_test(threads_share_a_plan),
    };

    find_devices();
    if (!n_devices) {
        puts("no OpenCL device here");
        return EXIT_SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
