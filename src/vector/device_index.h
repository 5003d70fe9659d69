/* An index on a context's device, to be searched by batches of queries that meet every row there: the
 * codes of all live rows, uploaded once, and the op scan_codes over them. For fast codes; what else
 * there is (dense codes, anchors alone, probes, filters, re-ranking) is searched for on the CPU. */
#ifndef KM_VECTOR_DEVICE_INDEX_H
#define KM_VECTOR_DEVICE_INDEX_H
#include "vector/index.h"

typedef struct km_device_index km_device_index;

/* The index must stay as it is while this exists. NULL with *err set; KM_ERR_UNSUPPORTED for an index
 * that has no fast codes. */
km_device_index *km_device_index_new(km_ctx *ctx, km_index *x, km_error *err);
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
km_status km_find_anywhere(km_device_index *d, km_index *x, const float *queries, int64_t n, int64_t k,
                           const km_search_options *o, km_threads *t, uint64_t *ids, float *dist,
                           km_error *err);

#endif
