/* How good and how fast an index is: recall against exact search, error, latency, throughput. */
#ifndef KM_VECTOR_MEASURE_H
#define KM_VECTOR_MEASURE_H
#include "vector/index.h"
#include "vector/input.h"

/* Truth is found by exact search of the rows of `base` that are in the index; their numbers are its
 * ids. */
km_status km_measure_index(km_ctx *ctx, km_index *x, km_input *base, const float *queries,
                           int64_t n, int64_t k, const km_search_options *o, km_measured *out,
                           km_error *err);

/* Sorts candidates (n, m) of an index by their true distance in `base` and keeps the k best. */
km_status km_rerank_from(km_input *base, km_metric metric, const float *queries, int64_t n,
                         const uint64_t *candidates, int64_t m, int64_t k, uint64_t *ids,
                         float *dist, km_error *err);

/* An HTML page about an index (report.c): what it reaches, recall against size for both kinds of codes on
 * the same vectors, and against speed as more cells are looked at. `m` is what km_measure_index said of x. */
km_status km_write_report(km_ctx *ctx, km_index *x, km_input *base, const float *queries, int64_t n,
                          const km_measured *m, const km_report_options *o, km_error *err);

#endif
