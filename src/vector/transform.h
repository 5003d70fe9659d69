/* Rotations of vectors: to their principal axes, and by random signs. */
#ifndef KM_VECTOR_TRANSFORM_H
#define KM_VECTOR_TRANSFORM_H
#include <stdbool.h>
#include <stdint.h>

/* Eigenvectors of a symmetric matrix in f64: Householder reflections to three diagonals, then QL
 * with implicit shifts. For the principal axes of a few hundred dimensions: about 4 n^3 operations,
 * all along rows. */

/* a (n, n), symmetric, becomes its eigenvectors, one a row; value (n) its eigenvalues, both from the
 * largest down. `work` is (2 n). False when the iteration does not settle (never seen on finite
 * input). */
bool km_eigen(int64_t n, double *a, double *value, double *work);

/* A random rotation that costs d log d and is stored as its seed: rounds of random signs and
 * Walsh-Hadamard transforms. Where d is no power of two, each round transforms the first and then
 * the last 2^k coordinates (2^k <= d < 2^(k+1)), so nothing is padded. After it the coordinates of
 * any vector look Gaussian and alike, which is what scalar levels and trellises want. */

/* signs (km_hadamard_signs(dim)) of the rotation `seed`: +1 and -1. */
int64_t km_hadamard_signs(int64_t dim);
void km_hadamard_seed(uint64_t seed, int64_t dim, float *signs);

/* x (dim) in place, and its inverse. */
void km_hadamard(const float *signs, int64_t dim, float *x);
void km_hadamard_back(const float *signs, int64_t dim, float *x);

#endif
