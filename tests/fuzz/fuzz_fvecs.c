/* Fuzzes the readers of fvecs, bvecs, ivecs and IDX, through a file: whatever opens can be read, or
 * says which vector is wrong.
 * seeds: tests/fixtures/vectors/x.fvecs tests/fixtures/vectors/x.bvecs tests/fixtures/vectors/x.ivecs tests/fixtures/vectors/x.idx tests/fixtures/vectors/x-f32.idx
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "vector/input.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/kermes-fuzz-XXXXXX", name[64];
static int fd = -1;

static void remove_link(void) {
    unlink(name);
    rmdir(folder);
}

static void try_layout(const km_row_layout *l, uint64_t size) {
    uint64_t row = km_row_layout_bytes(l);
    if (l->rows < 1 || l->dim < 1 || l->offset > size) __builtin_trap();
    if ((uint64_t)l->rows > (size - l->offset) / row) __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const km_dtype types[] = {KM_F32, KM_I32, KM_U8};
    km_row_layout l;
    km_error err = {0};
    for (int i = 0; i < 3; i++)
        if (km_vecs_parse(&l, types[i], data, size, size, "input", NULL) == KM_OK)
            try_layout(&l, size);
    if (km_idx_parse(&l, data, size, size, "input", &err) == KM_OK) try_layout(&l, size);

    if (fd < 0) { /* a link whose name ends as the format's files do */
        char target[64];
        fd = memfd_create("x", 0);
        snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
        if (fd < 0 || !mkdtemp(folder)) abort();
        snprintf(name, sizeof name, "%s/x.fvecs", folder);
        if (symlink(target, name) != 0 || atexit(remove_link) != 0) abort();
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
    err = (km_error){0};
    km_input *in = km_input_open(name, NULL, &err);
    if (!in && err.code == KM_OK) __builtin_trap(); /* a refusal without a reason */
    if (!in) return 0;
    int64_t n = km_input_rows(in), dim = km_input_dim(in);
    float *x = malloc(sizeof(float) * (size_t)(n * dim));
    if (km_input_read(in, 0, n, x, &err) != KM_OK && err.code == KM_OK) __builtin_trap();
    free(x);
    km_input_close(in);
    return 0;
}
