/* Rows of Gaussian numbers for tests of codes: the same every time. */
#ifndef KM_TESTS_VECTOR_NORMAL_ROWS_H
#define KM_TESTS_VECTOR_NORMAL_ROWS_H
#include "base/rng.h"
#include <stdint.h>
#include <stdlib.h>

static inline float *normal_rows(uint64_t seed, int64_t n, int64_t dim) {
    float *x = malloc((size_t)(n * dim + 4) * sizeof *x);
    for (int64_t i = 0; x && i < n * dim; i += 2) {
        km_philox4 p = km_philox(seed, 7, (uint64_t)i);
        double a, b;
        km_box_muller(p.v[0], p.v[1], &a, &b);
        x[i] = (float)a;
        x[i + 1] = (float)b;
    }
    return x;
}

#endif
