/* Cosines and sines of the rows of a call, made once for all layers that rotate alike: a step asks
 * for the same positions again and again. */
#ifndef KM_BACKEND_CPU_ROPE_ROWS_H
#define KM_BACKEND_CPU_ROPE_ROWS_H
#include "backend/backend.h"

typedef struct km_rope_way {
    double base;
    int64_t dims;          /* rotated, even */
    bool adjacent;         /* pairs are neighbours; else half of dims apart */
    const float *divisors; /* (dims / 2), or NULL */
    double magnitude;      /* both factors are multiplied by it */
} km_rope_way;

/* (n, 2, dims): for each row, factors of x[i] and of its partner: y[i] = x[i] c[i] + x[pair] s[i].
 * position i is at[i * step]. Valid until the next call; NULL when out of memory. */
const float *km_rope_rows(km_lane *lane, const km_rope_way *kind, const int32_t *at, int64_t step,
                          int64_t n);

#endif
