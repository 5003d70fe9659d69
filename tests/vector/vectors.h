/* What the tests of vectors share: made-up vectors in clusters, and exact answers to compare with. */
#ifndef KM_TESTS_VECTOR_VECTORS_H
#define KM_TESTS_VECTOR_VECTORS_H
#include "base/rng.h"
#include "format/formats.h"
#include "kermes.h"
#include <math.h>

/* n vectors around a few centres; the caller frees them. */
static inline float *clustered(int64_t n, int64_t dim, uint64_t seed) {
    float *x = malloc(sizeof *x * (size_t)(n * dim));
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        uint64_t c = km_philox(seed, 1, (uint64_t)i).v[0] % 13;
        for (int64_t j = 0; j < dim; j++) {
            double a, b, u, v;
            km_philox4 at = km_philox(seed, 2 + c, (uint64_t)j);
            km_philox4 noise = km_philox(seed, 99, (uint64_t)(i * dim + j));
            km_box_muller(at.v[0], at.v[1], &a, &b);
            km_box_muller(noise.v[0], noise.v[1], &u, &v);
            x[i * dim + j] = (float)(2 * a + 0.7 * u);
        }
    }
    return x;
}

static inline void write_npy(const char *path, const float *x, int64_t n, int64_t dim) {
    char head[128] = {0}, text[128];
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    int length = snprintf(text, sizeof text,
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                          (long long)n, (long long)dim);
    memcpy(head + 10, text, (size_t)length);
    head[127] = '\n';
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(head, 1, sizeof head, f);
    fwrite(x, sizeof *x, (size_t)(n * dim), f);
    fclose(f);
}

/* The id of the vector nearest to the query, by plain arithmetic. */
static inline int64_t nearest(const float *x, int64_t n, int64_t dim, const float *q) {
    int64_t best = -1;
    double least = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double d = 0;
        for (int64_t j = 0; j < dim; j++)
            d += (x[i * dim + j] - (double)q[j]) * (x[i * dim + j] - (double)q[j]);
        if (d < least) {
            least = d;
            best = i;
        }
    }
    return best;
}

#endif
