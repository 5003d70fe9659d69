/* First anchors: k-means++ on a sample. */
#ifndef KM_VECTOR_SEED_H
#define KM_VECTOR_SEED_H
#include "comm/comm.h"

/* Rows of the sample for k anchors of n vectors. */
int64_t km_seed_sample_rows(int64_t n, int64_t k);

/* Picks up to k of the rows of x (n, d), each with probability proportional to its squared distance
 * to those picked before, and writes their numbers to pick. Returns how many: fewer than k where no
 * other row differs from those picked. -1 with the context's error set. */
int64_t km_seed_pick(km_ctx *ctx, const float *x, int64_t n, int64_t d, int64_t k, uint64_t seed,
                     int64_t *pick);

#endif
