/* Fuzzes the .npy reader: whatever opens can be read to its last row, forwards and in columns.
 * seeds: tests/fixtures/vectors/f4.npy tests/fixtures/vectors/columns-big-f8.npy tests/fixtures/vectors/version2.npy tests/fixtures/vectors/u1.npy
 */
#include "vector/input.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    km_error err = {0};
    km_input *in = km_input_parse(data, size, "input", &err);
    if (!in && err.code == KM_OK) __builtin_trap(); /* a refusal without a reason */
    if (!in) return 0;
    int64_t n = km_input_rows(in), dim = km_input_dim(in);
    if (n < 1 || dim < 1 || (uint64_t)n > size / (uint64_t)dim) __builtin_trap();
    float *x = malloc(sizeof(float) * (size_t)(n * dim));
    if (km_input_read(in, 0, n, x, &err) != KM_OK) __builtin_trap();
    free(x);
    km_input_close(in);
    return 0;
}
