/* Eigenvectors of a symmetric matrix in f64: Householder reflections to three diagonals, then QL
 * with implicit shifts. For the principal axes of a few hundred dimensions: about 4 n^3 operations,
 * all along rows. */
#ifndef KM_VECTOR_EIGEN_H
#define KM_VECTOR_EIGEN_H
#include <stdbool.h>
#include <stdint.h>

/* a (n, n), symmetric, becomes its eigenvectors, one a row; value (n) its eigenvalues, both from the
 * largest down. `work` is (2 n). False when the iteration does not settle (never seen on finite
 * input). */
bool km_eigen(int64_t n, double *a, double *value, double *work);

#endif
