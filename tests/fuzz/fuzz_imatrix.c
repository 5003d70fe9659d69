/* Fuzzes the reader of importance matrices, in both forms: what it takes has finite means under
 * every name, and what it does not take has a reason.
 * seeds: tests/fixtures/formats/importance.dat tests/fixtures/formats/importance.gguf
 */
#include "model/imatrix.h"
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    km_error err = {0};
    int fd = memfd_create("imatrix", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    km_imatrix *m = km_imatrix_load(path, &err);
    if (!m && err.code == KM_OK) __builtin_trap(); /* a refusal without a reason */
    for (int i = 0; m && i < m->n; i++) {
        const km_imatrix_row *r = &m->row[i];
        if (!km_imatrix_find(m, r->name)) __builtin_trap();
        for (int64_t k = 0; k < r->in; k++)
            if (!(r->mean[k] >= 0) || !isfinite(r->mean[k])) __builtin_trap();
    }
    km_imatrix_free(m);
    close(fd);
    return 0;
}
