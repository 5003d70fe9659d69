/* The seeded rotation: signs, transform, signs, transform, ... over halves that overlap. */
#include "vector/transform.h"
#include "base/rng.h"
#include <math.h>

#define ROUNDS 3
#define STREAM 0x68616461 /* tells these numbers from others of the same seed */

static int64_t power_within(int64_t dim) {
    int64_t p = 1;
    while (p * 2 <= dim) p *= 2;
    return p;
}

int64_t km_hadamard_signs(int64_t dim) { return 2 * ROUNDS * dim; }

void km_hadamard_seed(uint64_t seed, int64_t dim, float *signs) {
    int64_t n = km_hadamard_signs(dim);
    for (int64_t i = 0; i < n; i++) {
        km_philox4 r = km_philox(seed, STREAM, (uint64_t)i / 128);
        signs[i] = r.v[i / 32 % 4] >> (i % 32) & 1 ? -1.0f : 1.0f;
    }
}

/* The orthonormal Walsh-Hadamard transform of n = 2^k numbers, its own inverse. */
static void walsh(float *x, int64_t n) {
    for (int64_t h = 1; h < n; h *= 2) {
        for (int64_t i = 0; i < n; i += 2 * h) {
            for (int64_t j = i; j < i + h; j++) {
                float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
        }
    }
    float norm = 1.0f / sqrtf((float)n);
    for (int64_t i = 0; i < n; i++) x[i] *= norm;
}

static void flip(const float *signs, int64_t dim, float *x) {
    for (int64_t i = 0; i < dim; i++) x[i] *= signs[i];
}

void km_hadamard(const float *signs, int64_t dim, float *x) {
    int64_t p = power_within(dim);
    for (int r = 0; r < ROUNDS; r++) {
        flip(signs + 2 * r * dim, dim, x);
        walsh(x, p);
        if (p == dim) continue;
        flip(signs + (2 * r + 1) * dim, dim, x);
        walsh(x + dim - p, p);
    }
}

void km_hadamard_back(const float *signs, int64_t dim, float *x) {
    int64_t p = power_within(dim);
    for (int r = ROUNDS - 1; r >= 0; r--) {
        if (p != dim) {
            walsh(x + dim - p, p);
            flip(signs + (2 * r + 1) * dim, dim, x);
        }
        walsh(x, p);
        flip(signs + 2 * r * dim, dim, x);
    }
}
