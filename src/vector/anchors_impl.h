/* What the files about anchors share. */
#ifndef KM_VECTOR_ANCHORS_IMPL_H
#define KM_VECTOR_ANCHORS_IMPL_H
#include "vector/anchors.h"

/* x (n, d), each row scaled to length 1; rows of zeros stay. */
km_tensor *km_unit_rows(km_ctx *ctx, km_tensor *x);
/* Kept: host memory as a tensor on the context's device, in place where that is the host's memory. */
km_tensor *km_vectors_in(km_ctx *ctx, const float *x, int64_t n, int64_t d);

#endif
