/* SPDX-License-Identifier: MIT */
/* backend/opencl/platform.c: the devices of all platforms, and what each is. No
 * list is kept: drivers may come and go between two calls. */
#include <stdlib.h>
#include <string.h>

#include "backend/opencl/clblast.h"
#include "backend/opencl/opencl.h"
#include "core/size.h"
#include "core/status.h"
#include "core/text.h"

/* Extensions' own queries; their headers are not needed for a number each. */
enum { WARP_SIZE_NV = 0x4003, WAVEFRONT_WIDTH_AMD = 0x4043, NO_PLATFORM = -1001 };

typedef struct device_list {
    cl_device_id *id;
    int n;
} device_list;

/* A string of a platform or a device, to be freed; NULL if it can't be had. */
static char *string_of(const attn_cl *cl, cl_platform_id platform, cl_device_id device,
                       cl_uint what)
{
    size_t bytes = 0;
    char *text = NULL;

    for (int pass = 0; pass < 2; pass++) {
        const cl_int code =
            device ? cl->clGetDeviceInfo(device, what, bytes, text, &bytes)
                   : cl->clGetPlatformInfo(platform, what, bytes, text, &bytes);
        if (code != CL_SUCCESS || !bytes || (!text && !(text = calloc(1, bytes + 1))))
            break;
        if (pass == 1)
            return text;
    }
    free(text);
    return NULL;
}

/* Appends a string for people: vendors pad names and may put anything in. */
static void add_string(attn_text *to, const attn_cl *cl, cl_platform_id platform,
                       cl_device_id device, cl_uint what)
{
    char *text = string_of(cl, platform, device, what), *start = text;

    if (!text)
        return;
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
    while (*start == ' ')
        start++;
    for (size_t n = strlen(start); n && start[n - 1] == ' '; n--)
        start[n - 1] = '\0';
    attn_text_add(to, "%s", start);
    free(text);
}

/* Appends a platform's devices. A platform that has none, or that fails, is
 * passed over, so that one broken driver does not hide the others; `why` says. */
static attn_status add_devices(const attn_cl *cl, cl_platform_id platform,
                               device_list *list, attn_text *why)
{
    cl_uint n = 0;
    cl_int code = cl->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, &n);

    if (code == CL_SUCCESS && n) {
        cl_device_id *id = realloc(list->id, ((size_t)list->n + n) * sizeof *id);
        if (!id)
            return attn_fail(ATTN_ERR_NO_MEMORY, "list of %u OpenCL devices", (unsigned)n);
        list->id = id;
        code = cl->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, n, id + list->n, NULL);
        if (code == CL_SUCCESS)
            list->n += (int)n;
    }
    if (code == CL_SUCCESS && n)
        return ATTN_OK;
    attn_text_add(why, why->len ? ", " : ": ");
    add_string(why, cl, platform, NULL, CL_PLATFORM_NAME);
    if (code != CL_SUCCESS && code != CL_DEVICE_NOT_FOUND)
        attn_text_add(why, " (clGetDeviceIDs = %d %s)", (int)code, attn_cl_code_name(code));
    return ATTN_OK;
}

/* On success list->id is the caller's to free. An empty list has its reason. */
static attn_status list_devices(const attn_cl *cl, device_list *list, char *reason,
                                size_t cap)
{
    char names[200] = "";
    attn_text why = attn_text_in(names, sizeof names), text = attn_text_in(reason, cap);
    cl_platform_id *platform = NULL;
    attn_status st = ATTN_OK;
    cl_uint n = 0;
    cl_int code = cl->clGetPlatformIDs(0, NULL, &n);

    *list = (device_list){ 0 };
    if (code == NO_PLATFORM || (code == CL_SUCCESS && !n)) {
        attn_text_add(&text, "the OpenCL loader is there, but it found no platform");
        return ATTN_OK;
    }
    if (code == CL_SUCCESS && !(platform = calloc(n, sizeof(cl_platform_id))))
        return attn_fail(ATTN_ERR_NO_MEMORY, "list of %u OpenCL platforms", (unsigned)n);
    if (code == CL_SUCCESS)
        code = cl->clGetPlatformIDs(n, platform, NULL);
    if (code != CL_SUCCESS)
        attn_text_add(&text, "clGetPlatformIDs = %d (%s)", (int)code,
                      attn_cl_code_name(code));
    for (cl_uint i = 0; code == CL_SUCCESS && st == ATTN_OK && i < n; i++)
        st = add_devices(cl, platform[i], list, &why);
    if (code == CL_SUCCESS && !list->n)
        attn_text_add(&text, "%u OpenCL platform%s, none with a device%s", (unsigned)n,
                      n == 1 ? "" : "s", names);
    free(platform);
    if (st != ATTN_OK)
        free(list->id);
    return st;
}

attn_status attn_cl_count(const attn_env *env, int *n, char *reason, size_t cap)
{
    const attn_cl *cl = attn_cl_load(env->opencl_lib, reason, cap);
    device_list list;
    attn_status st;

    *n = 0;
    if (!cl)
        return ATTN_OK;
    if ((st = list_devices(cl, &list, reason, cap)) != ATTN_OK)
        return st;
    *n = list.n;
    free(list.id);
    return ATTN_OK;
}

attn_status attn_cl_find(const attn_env *env, int index, const attn_cl **cl,
                         cl_device_id *device)
{
    char reason[256];
    device_list list;
    attn_status st;

    *cl = attn_cl_load(env->opencl_lib, reason, sizeof reason);
    if (!*cl)
        return attn_fail(ATTN_ERR_NO_DEVICE, "opencl:%d: %s", index, reason);
    if ((st = list_devices(*cl, &list, reason, sizeof reason)) != ATTN_OK)
        return st;
    if (!list.n)
        st = attn_fail(ATTN_ERR_NO_DEVICE, "opencl:%d: %s", index, reason);
    else if (index < 0 || index >= list.n)
        st = attn_fail(ATTN_ERR_NO_DEVICE, "opencl:%d: the last OpenCL device is opencl:%d",
                       index, list.n - 1);
    else
        *device = list.id[index];
    free(list.id);
    return st;
}

int attn_cl_index(const attn_cl *cl, cl_device_id device)
{
    char reason[256];
    device_list list;
    int index = -1;

    if (list_devices(cl, &list, reason, sizeof reason) != ATTN_OK)
        return -1;
    for (int i = 0; i < list.n && index < 0; i++)
        if (list.id[i] == device)
            index = i;
    free(list.id);
    return index;
}

/* cl_uint, cl_ulong and size_t alike. */
static cl_int number_of(const attn_cl *cl, cl_device_id device, cl_device_info what,
                        int64_t *out)
{
    union {
        cl_uint u32;
        cl_ulong u64;
    } value = { .u64 = 0 };
    size_t bytes = 0;
    cl_int code = cl->clGetDeviceInfo(device, what, sizeof value, &value, &bytes);

    if (code == CL_SUCCESS)
        *out = bytes == sizeof value.u32 ? (int64_t)value.u32
               : value.u64 > INT64_MAX   ? INT64_MAX
                                         : (int64_t)value.u64;
    return code;
}

static bool has_extension(const char *list, const char *name)
{
    const size_t n = strlen(name);

    for (const char *at = list; at && (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

/* OpenCL 1.2 does not know subgroups; these two vendors tell the width of theirs.
 * On others it is chosen for each kernel, or there is none. */
static int64_t subgroup_of(const attn_cl *cl, cl_device_id device)
{
    static const struct {
        const char *extension;
        cl_device_info what;
    } widths[] = {
        { "cl_nv_device_attribute_query", WARP_SIZE_NV },
        { "cl_amd_device_attribute_query", WAVEFRONT_WIDTH_AMD },
    };
    char *list = string_of(cl, NULL, device, CL_DEVICE_EXTENSIONS);
    int64_t width = 0;

    for (size_t i = 0; i < sizeof widths / sizeof widths[0] && !width; i++)
        if (has_extension(list, widths[i].extension))
            number_of(cl, device, widths[i].what, &width);
    free(list);
    return width;
}

attn_status attn_cl_info(const attn_cl *cl, cl_device_id device, int index,
                         attn_device_info *info)
{
    static const struct {
        cl_device_info what;
        const char *name;
        size_t offset;
    } numbers[] = {
#define ROW(what, field) \
    { what, "clGetDeviceInfo(" #what ")", offsetof(attn_device_info, field) }
        ROW(CL_DEVICE_MAX_COMPUTE_UNITS, compute_units),
        ROW(CL_DEVICE_LOCAL_MEM_SIZE, fast_bytes),
        ROW(CL_DEVICE_MAX_WORK_GROUP_SIZE, max_group),
        ROW(CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, vector_width),
        ROW(CL_DEVICE_GLOBAL_MEM_SIZE, memory_bytes),
        ROW(CL_DEVICE_MAX_MEM_ALLOC_SIZE, max_alloc_bytes),
        ROW(CL_DEVICE_MAX_CLOCK_FREQUENCY, clock_mhz),
#undef ROW
    };
    attn_text selector = attn_text_in(info->selector, sizeof info->selector);
    attn_text name = attn_text_in(info->name, sizeof info->name);
    attn_text vendor = attn_text_in(info->vendor, sizeof info->vendor);
    attn_text driver = attn_text_in(info->driver, sizeof info->driver);
    attn_text shown = attn_text_in(info->platform, sizeof info->platform);
    cl_platform_id platform = NULL;
    cl_device_type type = 0;
    attn_status st = ATTN_OK;

    attn_text_add(&selector, index < 0 ? "opencl" : "opencl:%d", index);
    info->isa[0] = '\0';
    CL(cl->clGetDeviceInfo(device, CL_DEVICE_TYPE, sizeof type, &type, NULL));
    CL(cl->clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL));
    info->kind = type & CL_DEVICE_TYPE_GPU   ? ATTN_DEVICE_GPU
                 : type & CL_DEVICE_TYPE_CPU ? ATTN_DEVICE_CPU
                                             : ATTN_DEVICE_OTHER;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        int64_t *field = (int64_t *)(void *)((char *)info + numbers[i].offset);
        const cl_int code = number_of(cl, device, numbers[i].what, field);
        if (code != CL_SUCCESS)
            return attn_cl_fail(code, numbers[i].name);
    }
    info->vector_width = attn_max(info->vector_width, 1);
    info->subgroup = subgroup_of(cl, device);
    add_string(&name, cl, NULL, device, CL_DEVICE_NAME);
    /* Mesa's processor driver ends each invocation's loops after this many rounds
     * in all, and reports success */
    info->max_loops = strncmp(info->name, "llvmpipe", 8) ? 0 : 65535;
    add_string(&vendor, cl, NULL, device, CL_DEVICE_VENDOR);
    add_string(&driver, cl, NULL, device, CL_DRIVER_VERSION);
    add_string(&shown, cl, platform, NULL, CL_PLATFORM_NAME);
    attn_text_add(&shown, " ");
    add_string(&shown, cl, platform, NULL, CL_PLATFORM_VERSION);
fail:
    return st;
}

void attn_cl_identity(const attn_cl *cl, cl_device_id device, attn_text *text)
{
    static const cl_uint of_platform[] = { CL_PLATFORM_NAME, CL_PLATFORM_VERSION };
    static const cl_uint of_device[] = { CL_DEVICE_NAME, CL_DEVICE_VENDOR,
                                         CL_DEVICE_VERSION, CL_DRIVER_VERSION };
    cl_platform_id platform = NULL;

    if (cl->clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL))
        return;
    for (size_t i = 0; i < sizeof of_platform / sizeof of_platform[0]; i++) {
        add_string(text, cl, platform, NULL, of_platform[i]);
        attn_text_add(text, "\n");
    }
    for (size_t i = 0; i < sizeof of_device / sizeof of_device[0]; i++) {
        add_string(text, cl, NULL, device, of_device[i]);
        attn_text_add(text, "\n");
    }
}

attn_status attn_cl_describe(const attn_env *env, int index, attn_device_info *info)
{
    const attn_cl *cl;
    cl_device_id device;
    attn_status st;

    if ((st = attn_cl_find(env, index, &cl, &device)) != ATTN_OK)
        return st;
    attn_clblast_load(env->clblast_lib, info->blas, sizeof info->blas);
    return attn_cl_info(cl, device, index, info);
}
