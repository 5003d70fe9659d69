/* The axes of a reduction, sorted out: those kept and those reduced, each set in the order of its
 * strides (largest first, so that the last axis is the one to run along) with axes merged where
 * they lie in one piece. */
#ifndef KM_BACKEND_CPU_REDUCE_H
#define KM_BACKEND_CPU_REDUCE_H
#include "backend/backend.h"

typedef struct km_reduce_axes {
    int n;
    int64_t dim[KM_MAX_DIMS];
    int64_t x[KM_MAX_DIMS];   /* strides in x, in elements */
    int64_t out[KM_MAX_DIMS]; /* strides in out; 0 for reduced axes */
    int64_t count;            /* product of dim */
} km_reduce_axes;

void km_reduce_plan(const km_call *c, km_reduce_axes *kept, km_reduce_axes *reduced);

/* Offset in x (and in out, unless NULL) of element i of a set of axes. */
int64_t km_reduce_at(const km_reduce_axes *axes, int64_t i, int64_t *out);

/* sum, max and argmax of integers; declines everything else. */
km_status km_cpu_reduce_integers(km_ctx *ctx, const km_call *c);

#endif
