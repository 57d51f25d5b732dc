/* SPDX-License-Identifier: MIT */
/* examples/opencl_queue.c: attention on a program's own OpenCL queue and
 * buffers, between its own commands, with events.
 *
 * cc opencl_queue.c $(pkg-config --cflags --libs attn) -lOpenCL -lm */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/opencl.h>

enum { BATCH = 2, HEADS = 4, LEN = 50, DIM = 32, N = BATCH * HEADS * LEN * DIM };

#define CHECK(call)                                \
    do {                                           \
        if ((call) != CL_SUCCESS) {                \
            fprintf(stderr, "%s failed\n", #call); \
            goto end;                              \
        }                                          \
    } while (0)

#define ATTN(call)                                      \
    do {                                                \
        if ((call) != ATTN_OK) {                        \
            fprintf(stderr, "%s\n", attn_last_error()); \
            goto end;                                   \
        }                                               \
    } while (0)

static cl_device_id first_device(void)
{
    cl_platform_id platforms[16];
    cl_device_id device;
    cl_uint n = 0;

    if (clGetPlatformIDs(16, platforms, &n) != CL_SUCCESS)
        return NULL;
    for (cl_uint i = 0; i < n && i < 16; i++)
        if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &device, NULL) ==
            CL_SUCCESS)
            return device;
    return NULL;
}

int main(void)
{
    /* [B, L, H, D] arrays, seen as [B, H, L, D] */
    const int64_t size[4] = { BATCH, HEADS, LEN, DIM };
    const int64_t stride[4] = { LEN * HEADS * DIM, DIM, HEADS * DIM, 1 };
    const attn_softmax_desc desc = { .size = sizeof desc,
                                     .type = ATTN_F32,
                                     .batch = BATCH,
                                     .heads_q = HEADS,
                                     .heads_kv = HEADS,
                                     .len_q = LEN,
                                     .len_kv = LEN,
                                     .dim_qk = DIM };
    const cl_float zero = 0, one = 1;
    cl_device_id device = first_device();
    cl_context context = NULL;
    cl_command_queue queue = NULL;
    cl_mem q = NULL, k = NULL, v = NULL, o = NULL;
    cl_event filled[3] = { NULL }, done = NULL;
    attn_ctx *ctx = NULL;
    attn_plan *plan = NULL;
    attn_args args = { .size = sizeof args };
    static float out[N];
    cl_int code;
    int status = 1;

    if (!device) {
        puts("no OpenCL device here: nothing to show");
        return 0;
    }
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
    CHECK(code);
    queue = clCreateCommandQueue(context, device, 0, &code);
    CHECK(code);
    q = clCreateBuffer(context, CL_MEM_READ_ONLY, sizeof out, NULL, &code);
    CHECK(code);
    k = clCreateBuffer(context, CL_MEM_READ_ONLY, sizeof out, NULL, &code);
    CHECK(code);
    v = clCreateBuffer(context, CL_MEM_READ_ONLY, sizeof out, NULL, &code);
    CHECK(code);
    o = clCreateBuffer(context, CL_MEM_WRITE_ONLY, sizeof out, NULL, &code);
    CHECK(code);
    CHECK(clEnqueueFillBuffer(queue, q, &zero, sizeof zero, 0, sizeof out, 0, NULL,
                              &filled[0]));
    CHECK(clEnqueueFillBuffer(queue, k, &one, sizeof one, 0, sizeof out, 0, NULL,
                              &filled[1]));
    CHECK(clEnqueueFillBuffer(queue, v, &one, sizeof one, 0, sizeof out, 0, NULL,
                              &filled[2]));

    ATTN(attn_ctx_create_opencl(context, device, &ctx));
    ATTN(attn_plan_softmax(ctx, &desc, &plan));
    args.q = attn_tensor_cl(q, 0, ATTN_F32, size, stride);
    args.k = attn_tensor_cl(k, 0, ATTN_F32, size, stride);
    args.v = attn_tensor_cl(v, 0, ATTN_F32, size, stride);
    args.o = attn_tensor_cl(o, 0, ATTN_F32, size, stride);
    ATTN(attn_execute_opencl(plan, &args, queue, 3, filled, &done)); /* waits for nothing */
    CHECK(clEnqueueReadBuffer(queue, o, CL_TRUE, 0, sizeof out, out, 1, &done, NULL));

    printf("o[0] = %.6f, o[last] = %.6f, want 1\n", (double)out[0], (double)out[N - 1]);
    status = fabsf(out[0] - 1) > 1e-6f || fabsf(out[N - 1] - 1) > 1e-6f;

end:
    attn_plan_destroy(&plan);
    attn_ctx_destroy(&ctx);
    for (int i = 0; i < 3; i++)
        if (filled[i])
            clReleaseEvent(filled[i]);
    if (done)
        clReleaseEvent(done);
    cl_mem buffers[] = { q, k, v, o };
    for (int i = 0; i < 4; i++)
        if (buffers[i])
            clReleaseMemObject(buffers[i]);
    if (queue)
        clReleaseCommandQueue(queue);
    if (context)
        clReleaseContext(context);
    return status;
}
