/* SPDX-License-Identifier: MIT */
/* tests/fuzz_replay.c: runs a fuzz target over the files of a folder, without a fuzzer:
 * what was once found stays found. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t n = 0, room = 0;
    int bad = 1;

    if (!file)
        goto done;
    do {
        uint8_t *grown = realloc(data, room += 4096);
        if (!grown)
            goto done;
        data = grown;
        n += fread(data + n, 1, room - n, file);
    } while (n == room);
    /* exactly as much memory as there is data: what reads on is seen */
    uint8_t *exact = realloc(data, n ? n : 1);
    data = exact ? exact : data;
    bad = ferror(file);
    if (!bad)
        LLVMFuzzerTestOneInput(data, n);
done:
    if (bad)
        fprintf(stderr, "%s: cannot be read\n", path);
    free(data);
    if (file)
        fclose(file);
    return bad;
}

int main(int argc, char **argv)
{
    int n = 0, bad = argc != 2;
    DIR *folder = bad ? NULL : opendir(argv[1]);

    if (!folder) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    for (struct dirent *e; (e = readdir(folder));) {
        char path[4096];

        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        bad |= replay(path);
        n++;
    }
    closedir(folder);
    printf("%d inputs\n", n);
    return bad || !n;
}
