/* SPDX-License-Identifier: MIT */
/* backend/opencl/kernel.c: from a step to a kernel that is ready to launch. */
#include <stdlib.h>
#include <string.h>

#include "backend/opencl/clblast.h"
#include "backend/opencl/opencl.h"
#include "core/status.h"

/* No option lets the compiler take numbers for finite or rounding for free:
 * hidden keys are true -inf. */
static char *options_of(const attn_step *step)
{
    attn_text text = attn_text_in(NULL, 0);
    char *data = NULL;

    for (int pass = 0; pass < 2; pass++) {
        if (pass && !(data = malloc(text.len + 1)))
            return NULL;
        text = attn_text_in(data, data ? text.len + 1 : 0);
        attn_text_add(&text, "-cl-std=CL1.2 -w"); /* some print what they warn of */
        for (int i = 0; i < step->n_defines; i++)
            attn_text_add(&text, " -D %s=%d", step->define[i].name,
                          (int)step->define[i].value);
    }
    return data;
}

/* Mesa's rusticl (22.3) reports twice the local memory that a kernel uses. */
static int64_t times_counted(const attn_device *dev)
{
    return strncmp(dev->info.platform, "rusticl ", 8) ? 1 : 2;
}

/* What is known only now: registers and local memory may lower the device's
 * work-group limit. */
static attn_status read_limits(attn_device *dev, attn_kernel *k)
{
    const attn_cl *cl = dev->cl;
    attn_status st = ATTN_OK;
    cl_ulong local = 0;
    size_t group = 0;

    CL(cl->clGetKernelWorkGroupInfo(k->kernel, dev->id, CL_KERNEL_WORK_GROUP_SIZE,
                                    sizeof group, &group, NULL));
    CL(cl->clGetKernelWorkGroupInfo(k->kernel, dev->id, CL_KERNEL_LOCAL_MEM_SIZE,
                                    sizeof local, &local, NULL));
    k->fast_bytes = (local > INT64_MAX ? INT64_MAX : (int64_t)local) / times_counted(dev);
    k->max_group = k->fast_bytes > dev->info.fast_bytes ? 0
                   : group > INT64_MAX                  ? INT64_MAX
                                                        : (int64_t)group;
fail:
    return st;
}

void attn_cl_kernel_free(attn_device *dev, attn_kernel *k)
{
    if (!k)
        return;
    attn_cl_program_drop(dev, k);
    pthread_mutex_destroy(&k->lock);
    free(k->options);
    free(k);
}

/* Takes `options` over, also on failure. */
static attn_status make_kernel(attn_device *dev, const attn_step *step, char *options,
                               attn_kernel **out)
{
    attn_kernel *k = calloc(1, sizeof *k);
    attn_status st;

    if (!k) {
        free(options);
        return attn_fail(ATTN_ERR_NO_MEMORY, "kernel: %zu bytes", sizeof *k);
    }
    pthread_mutex_init(&k->lock, NULL);
    k->name = step->kernel;
    k->options = options;
    if ((k->library = attn_clblast_step(k->name))) {
        k->max_group = dev->blas ? 1 : 0;
    } else if ((st = attn_cl_program(dev, k)) != ATTN_OK ||
               (st = read_limits(dev, k)) != ATTN_OK) {
        attn_cl_kernel_free(dev, k);
        return st;
    }
    *out = k;
    return ATTN_OK;
}

attn_status attn_cl_kernel(attn_device *dev, const attn_step *step, const attn_kernel **out,
                           int64_t *max_group)
{
    char *options = options_of(step);
    attn_kernel *k;
    attn_status st;

    *out = NULL;
    *max_group = 0;
    if (!options)
        return attn_fail(ATTN_ERR_NO_MEMORY, "build options of kernel %s", step->kernel);
    for (k = dev->kernels; k; k = k->next)
        if (!strcmp(k->name, step->kernel) && !strcmp(k->options, options))
            break;
    if (k) {
        free(options);
    } else {
        if ((st = make_kernel(dev, step, options, &k)) != ATTN_OK)
            return st;
        k->next = dev->kernels;
        dev->kernels = k;
    }
    if (!k->max_group)
        attn_fail(ATTN_ERR_UNSUPPORTED,
                  "kernel %s uses %lld bytes of local memory, %s has "
                  "%lld",
                  k->name, (long long)k->fast_bytes, dev->info.name,
                  (long long)dev->info.fast_bytes);
    *max_group = k->max_group;
    *out = k;
    return ATTN_OK;
}
