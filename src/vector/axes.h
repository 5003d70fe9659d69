/* A class of rows: the axes it is turned to and how they share the bits. The axes are principal ones,
 * sorted by variance, or those of the Hadamard rotation, all alike.
 *
 * Principal axes are stored in bytes and made orthonormal again when they are read: any orthonormal
 * axes near the principal ones serve as well, so this costs nothing but a little sharpness. */
#ifndef KM_VECTOR_AXES_H
#define KM_VECTOR_AXES_H
#include "base/error.h"
#include <stdbool.h>
#include <stdint.h>

#define KM_AXES_PAD 16 /* lists of axes are padded to a multiple of this */

typedef struct km_axes {
    int64_t dim, count, padded; /* count <= dim axes carry something; the others are left out */
    int64_t ring;               /* the sum of bits */
    float water;                /* mean squared error of an axis that carries bits */
    uint8_t *bits;              /* (padded) */
    float *amp;                 /* (padded) deviation of the axis' values */
    int8_t *stored;             /* (count, dim), NULL for Hadamard */
    float *axis;                /* (count, dim), NULL for Hadamard */
    int32_t *at, *table;        /* (padded) windows of the trellis, NULL for levels */
} km_axes;

/* Shares `bits` among axes of the given variances (dim; sorted, largest first), for a trellis or for
 * levels. `vectors` (dim, dim), a row an axis, NULL for Hadamard, are rounded to bytes. `first` is
 * where the class' bits begin in a code. */
km_status km_axes_make(km_axes *a, int64_t dim, const double *variance, const double *vectors,
                       int64_t bits, bool trellis, int64_t first);

/* Allocates the lists, and fills what follows from bits, amp and stored. For readers of files. */
km_status km_axes_alloc(km_axes *a, int64_t dim, int64_t count, bool principal);
km_status km_axes_prepare(km_axes *a, bool trellis, int64_t first);
void km_axes_free(km_axes *a);

#endif
