/* Exact search, as the measure of all others: every query against every row, by products of blocks. */
#ifndef KM_VECTOR_EXACT_H
#define KM_VECTOR_EXACT_H
#include "base/error.h"
#include <stdint.h>

typedef struct km_exact km_exact;

/* The k nearest of each query (n, dim), which is copied; of cosine, queries and rows are scaled. */
km_exact *km_exact_new(km_ctx *ctx, const float *queries, int64_t n, int64_t dim, int64_t k,
                       km_metric metric, km_error *err);
void km_exact_free(km_exact *e); /* before the context; NULL is fine */
/* Rows (n, dim), scaled in place for cosine, with the ids first, first + 1, ... Rows that are not
 * finite are passed over. */
km_status km_exact_feed(km_exact *e, float *rows, int64_t n, uint64_t first, km_error *err);
/* The same with ids (n), ascending from feed to feed. */
km_status km_exact_feed_ids(km_exact *e, float *rows, const uint64_t *ids, int64_t n,
                            km_error *err);
/* A query never finds the row of the id self[query]; self stays the caller's. */
void km_exact_pass_over(km_exact *e, const uint64_t *self);
/* ids and distances (queries, k), best first; KM_NO_ID and infinity where there are fewer. */
void km_exact_result(const km_exact *e, uint64_t *ids, float *dist);

/* The part of wanted (n, stride) that is in found (n, stride), looking at the first k of both. */
double km_recall(const uint64_t *wanted, const uint64_t *found, int64_t n, int64_t stride,
                 int64_t k);
/* The part of one query's k nearest that is found (k; k + 1 where `self`, which does not count, may be among
 * them; KM_NO_ID: no self). Truth is near and dist (deep), best first: whoever is as near as the kth is right,
 * since of copies of a vector none is more right than another. */
double km_recall_tied(const uint64_t *near, const float *dist, int64_t deep, int64_t k,
                      const uint64_t *found, uint64_t self);

#endif
