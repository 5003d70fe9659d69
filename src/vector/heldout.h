/* Recall of an index as large as it is: queries held out, against all rows. Queries are rows of the set
 * itself, none of which finds itself, or come from elsewhere. A row as near as the tenth nearest, as
 * copies of it are, counts as one of the ten. */
#ifndef KM_VECTOR_HELDOUT_H
#define KM_VECTOR_HELDOUT_H
#include "vector/index.h"
#include "vector/input.h"

enum { KM_HELDOUT_QUERIES = 1000, KM_HELDOUT_K = 10 };

typedef struct km_heldout {
    int64_t n, dim, deep; /* queries, and the neighbours known of each */
    float *queries;       /* (n, dim) */
    uint64_t *self;       /* (n) the row that a query is, or KM_NO_ID */
    uint64_t *near;       /* (n, deep) rows by their numbers, the nearest first */
    float *dist;          /* (n, deep) */
    struct km_exact *exact;
} km_heldout;

typedef struct km_told_recall {
    int64_t queries;
    double recall, low, high; /* @10, and its 95% interval; NaN: not measured */
} km_told_recall;

/* Takes queries, at most `most`, from all of `from` or from rows of `in`, spread over the file; those that are not finite
 * are left out. NULL with the error set, or with none where there are too few rows to tell. */
km_heldout *km_heldout_new(km_ctx *ctx, km_input *in, km_input *from, km_metric metric,
                           int64_t most, int64_t deep, km_error *err);
void km_heldout_free(km_heldout *h); /* before the context; NULL is fine */
/* Rows (n, dim) with their numbers (n); of cosine they are scaled in place. All rows, once. */
km_status km_heldout_feed(km_heldout *h, float *rows, const uint64_t *number, int64_t n,
                          km_error *err);
/* All rows of `in` that are finite, and settles; progress is told as "neighbours". */
km_status km_heldout_feed_all(km_heldout *h, km_input *in, const km_index_options *o,
                              km_error *err);
void km_heldout_settle(km_heldout *h); /* all have been fed: near and dist are there */

/* Of the first `queries`: found (queries, KM_HELDOUT_K + 1), best first, in numbers of rows. */
km_told_recall km_heldout_score(const km_heldout *h, int64_t queries, const uint64_t *found);
/* Of all queries: found likewise, but in ids, which are ids[number of a row], or the numbers. */
km_told_recall km_heldout_told(const km_heldout *h, const uint64_t *found, const uint64_t *ids);
/* As META and manifests tell it; NULL: out of memory. */
json_t *km_told_recall_json(const km_told_recall *told);
/* What index x finds, whose ids are ids[number of a row], or the numbers. */
km_status km_heldout_measure(const km_heldout *h, km_index *x, const uint64_t *ids, km_threads *t,
                             km_told_recall *told, km_error *err);

/* The rows nearest to some of the queries: who is found in their place, if not they. */
typedef struct km_crowd {
    int64_t queries, n;
    float *rows;      /* (n, dim) */
    uint64_t *number; /* (n) */
} km_crowd;
/* As many queries as have room in `bytes`. */
km_status km_crowd_read(const km_heldout *h, km_input *in, double bytes, km_crowd *c,
                        km_error *err);
void km_crowd_free(km_crowd *c);

/* The mean of n numbers from 0 to 1 with its 95% interval (Wilson's, of as many trials as their
 * spread says). */
void km_mean_interval(const double *x, int64_t n, double *mean, double *low, double *high);

#endif
