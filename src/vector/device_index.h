/* An index on a context's device, to be searched by batches of queries that meet every row there: the
 * codes of all live rows, uploaded once, and the op scan_codes over them. Where the device has no room for
 * them, they stay in the host's memory and come over in parts with each batch. For fast and dense codes;
 * what else there is (anchors alone, probes, filters, re-ranking) is searched for on the CPU. */
#ifndef KM_VECTOR_DEVICE_INDEX_H
#define KM_VECTOR_DEVICE_INDEX_H
#include "vector/index.h"

typedef struct km_device_index km_device_index;

/* The index must stay as it is while this exists. NULL with *err set; KM_ERR_UNSUPPORTED for an index
 * that has no codes. */
km_device_index *km_device_index_new(km_ctx *ctx, km_index *x, km_error *err);
/* The same, lent to the device in parts of so many rows; 0: only where it has no room for all. */
km_device_index *km_device_index_split(km_ctx *ctx, km_index *x, int64_t rows, km_error *err);
int km_device_index_parts(
    const km_device_index *d);                 /* that are lent; 0: the device holds all rows */
void km_device_index_free(km_device_index *d); /* NULL is fine */

/* Whether a search is one that can be done here. */
bool km_device_index_can(const km_device_index *d, int64_t k, const km_search_options *o);
/* As km_index_find; distances are the same within rounding. */
km_status km_device_index_find(km_device_index *d, const float *queries, int64_t n, int64_t k,
                               uint64_t *ids, float *dist, km_error *err);

/* One for the context's device where that is a GPU and the index is one for it; else NULL, and no error:
 * the CPU serves. */
km_device_index *km_device_index_for(km_ctx *ctx, km_index *x);
/* On the device where it can be, else by km_index_find. d may be NULL. */
km_status km_find_anywhere(km_device_index *d, km_index *x, const float *queries, int64_t n,
                           int64_t k, const km_search_options *o, km_threads *t, uint64_t *ids,
                           float *dist, km_error *err);

#endif
