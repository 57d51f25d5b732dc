/* SPDX-License-Identifier: MIT */
/* tests/fuzz_npy.c: libFuzzer harness; any bytes give an array or one line of error. */
/* clang -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined -Itools tests/fuzz_npy.c tools/npy.c
 * -o fuzz_npy && ./fuzz_npy -max_total_time=120 samples-of-npy-files/ */
#define _POSIX_C_SOURCE 200809L
#include "npy.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    npy_array a;
    char err[256] = "";
    FILE *file = size ? fmemopen((void *)(uintptr_t)data, size, "rb") : NULL;

    if (!file)
        return 0;
    if (npy_parse(file, "fuzz", &a, err, sizeof err) == 0) {
        size_t want = npy_type_bytes(a.type);
        for (int i = 0; i < a.rank; i++)
            want *= (size_t)a.shape[i];
        if (want != a.bytes || a.bytes > size || !a.data || (uintptr_t)a.data % 64)
            abort();
    } else if (a.data || strncmp(err, "fuzz: ", 6) || strchr(err, '\n')) {
        abort();
    }
    npy_free(&a);
    fclose(file);
    return 0;
}
