/* How good and how fast an index is: recall against exact search, error, latency, throughput. */
#ifndef KM_VECTOR_MEASURE_H
#define KM_VECTOR_MEASURE_H
#include "vector/index.h"
#include "vector/input.h"

typedef struct km_measured {
    int64_t queries, k;
    double recall[3];       /* @1, @10, @100; NaN where there are fewer vectors or k is lower */
    double recall_k;        /* @k */
    double low[4], high[4]; /* 95% intervals of recall[] and, last, recall_k */
    double mse;             /* mean squared distance of a vector to what the index gives back */
    double p50, p95, p99;   /* seconds of one query alone, on one thread */
    double qps;             /* queries a second, all at once on all threads, or on the GPU */
    double exact_qps;       /* of the exact search, reading the base included */
} km_measured;

/* Truth is found by exact search of the rows of `base` that are in the index; their numbers are its
 * ids. */
km_status km_index_measure(km_ctx *ctx, km_index *x, km_input *base, const float *queries,
                           int64_t n, int64_t k, const km_search_options *o, km_measured *out,
                           km_error *err);

/* Sorts candidates (n, m) of an index by their true distance in `base` and keeps the k best. */
km_status km_rerank_from(km_input *base, km_metric metric, const float *queries, int64_t n,
                         const uint64_t *candidates, int64_t m, int64_t k, uint64_t *ids,
                         float *dist, km_error *err);

#endif
