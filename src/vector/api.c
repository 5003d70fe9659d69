/* The public calls on indexes: arguments checked, the error told. */
#include "base/alloc.h"
#include "tensor/tensor.h"
#include "vector/index.h"
#include "vector/learn.h"
#include "vector/make.h"
#include <math.h>
#include <string.h>

static km_status told(km_status s, const km_error *err) {
    km_last_error_set(err);
    return s;
}

static km_status missing(const char *call) {
    km_error err = {0};
    km_error_set(&err, KM_ERR_NULL, "%s: an argument is missing or negative", call);
    return told(KM_ERR_NULL, &err);
}

/* What the recall asked for is tried on: held-out vectors, and those near them. */
static km_heldout *neighbours(km_ctx *ctx, const float *x, int64_t n, int64_t dim,
                              const km_index_options *o, km_crowd *crowd, km_error *err) {
    enum { CROWD = 64 };
    km_input *in = km_input_memory(x, n, dim, err);
    km_heldout *h =
        in ? km_heldout_new(ctx, in, NULL, o->metric, KM_HELDOUT_QUERIES, CROWD, err) : NULL;
    if (h && km_heldout_feed_all(h, in, o, err) == KM_OK) km_crowd_read(h, in, 1e9, crowd, err);
    km_input_close(in);
    return h;
}

km_index *km_index_build(km_ctx *ctx, const float *x, int64_t n, int64_t dim, const uint64_t *ids,
                         const km_index_options *options) {
    static const km_index_options plain;
    const km_index_options *o = options ? options : &plain;
    km_error err = {0};
    if (!ctx || !x || n < 1 || dim < 1) {
        missing("km_index_build");
        return NULL;
    }
    km_index *index = NULL;
    km_status s = km_index_check_options(o, n, dim, &err);
    int64_t bad = s == KM_OK ? km_first_unfit_row(x, n, dim, o->metric) : -1;
    char why[KM_TROUBLE_TEXT];
    if (bad >= 0)
        s = km_error_set(&err, KM_ERR_RANGE, "vector %lld %s", (long long)bad,
                         km_row_trouble(why, x + bad * dim, dim, o->metric));
    if (s == KM_OK) {
        int64_t m = km_learn_sample(o, n, dim, (double)(o->memory ? o->memory : (size_t)2 << 30));
        float *sample = km_alloc(sizeof *sample * (size_t)(m * dim));
        for (int64_t i = 0; sample && i < m; i++)
            memcpy(sample + i * dim, x + (int64_t)((double)i * (double)n / (double)m) * dim,
                   sizeof *sample * (size_t)dim);
        km_learn l = {.ctx = ctx, .options = o, .sample = sample, .n = m, .dim = dim, .total = n};
        km_crowd crowd = {0};
        km_heldout *held = o->recall > 0 ? neighbours(ctx, x, n, dim, o, &crowd, &err) : NULL;
        l.held = held;
        l.crowd = crowd.n ? &crowd : NULL;
        if (sample && err.code == KM_OK)
            index = km_index_learn(&l, &err);
        else if (!sample)
            km_no_memory_for(&err, "a sample");
        km_free(sample);
        km_crowd_free(&crowd);
        km_heldout_free(held);
    }
    if (index && km_index_append(ctx, index, x, n, ids, &err) != KM_OK) {
        km_index_close(index);
        index = NULL;
    }
    told(err.code, &err);
    return index;
}

km_status km_index_compress(km_ctx *ctx, const char *vectors, const char *path,
                            const km_index_options *options) {
    static const km_index_options plain;
    km_error err = {0};
    km_made made;
    if (!ctx || !vectors || !path) return missing("km_index_compress");
    km_input *in = km_input_open(vectors, NULL, &err);
    km_status s =
        in ? km_index_make(ctx, NULL, in, NULL, path, options ? options : &plain, &made, &err)
           : err.code;
    km_input_close(in);
    return told(s, &err);
}

km_index *km_index_open(const char *path) {
    km_error err = {0};
    if (!path) {
        missing("km_index_open");
        return NULL;
    }
    km_index *x = km_index_load(path, &err);
    told(err.code, &err);
    return x;
}

km_status km_index_search(km_index *index, const float *queries, int64_t n, int64_t k,
                          const km_search_options *options, int threads, uint64_t *ids,
                          float *distances) {
    km_error err = {0};
    if (!index || !queries || !ids || !distances || n < 0 || threads < 0)
        return missing("km_index_search");
    km_threads *own = threads > 1 ? km_threads_new(threads) : NULL, *t = own;
    if (threads == 0) { /* all cores: one pool that stays */
        pthread_mutex_lock(&index->pool_lock);
        if (!index->pool) index->pool = km_threads_new(0);
        t = index->pool;
        pthread_mutex_unlock(&index->pool_lock);
    }
    km_status s = km_index_find(index, queries, n, k, options, t, ids, distances, &err);
    km_threads_free(own);
    return told(s, &err);
}

km_status km_index_add(km_ctx *ctx, km_index *index, const float *x, int64_t n,
                       const uint64_t *ids) {
    km_error err = {0};
    if (!ctx || !index || (!x && n > 0) || n < 0) return missing("km_index_add");
    return told(km_index_append(ctx, index, x, n, ids, &err), &err);
}

km_status km_index_delete(km_index *index, const uint64_t *ids, int64_t n) {
    km_error err = {0};
    int64_t removed;
    if (!index || (!ids && n > 0) || n < 0) return missing("km_index_delete");
    return told(km_index_remove(index, ids, n, false, &removed, &err), &err);
}

km_status km_index_decode(km_index *index, const uint64_t *ids, int64_t n, float *x) {
    km_error err = {0};
    if (!index || ((!ids || !x) && n > 0) || n < 0) return missing("km_index_decode");
    km_snapshot *v = km_index_rows(index);
    km_row_place *places = km_index_places(index, v, ids, n, &err);
    km_status s = places ? km_index_restore(index, v, NULL, places, n, x, &err) : err.code;
    km_snapshot_drop(v);
    km_free(places);
    return told(s, &err);
}

km_status km_index_anchors(km_index *index, float *x) {
    km_error err = {0};
    if (!index || !x) return missing("km_index_anchors");
    memcpy(x, index->anchors, sizeof *x * (size_t)(index->cells * index->dim));
    return told(KM_OK, &err);
}

km_status km_index_assignments(km_index *index, const uint64_t *ids, int64_t n, int32_t *anchors) {
    km_error err = {0};
    if (!index || ((!ids || !anchors) && n > 0) || n < 0) return missing("km_index_assignments");
    km_snapshot *v = km_index_rows(index);
    km_row_place *places = km_index_places(index, v, ids, n, &err);
    if (places) km_index_cells(index, v, places, n, anchors);
    km_snapshot_drop(v);
    km_free(places);
    return told(err.code, &err);
}

km_status km_index_merge(km_ctx *ctx, km_index *index, km_index *other, uint64_t *shift) {
    km_error err = {0};
    uint64_t by = 0;
    if (!ctx || !index || !other) return missing("km_index_merge");
    if (index == other) {
        km_error_set(&err, KM_ERR_STATE, "an index cannot be merged with itself");
        return told(KM_ERR_STATE, &err);
    }
    km_status s =
        shift ? km_index_behind(index, km_index_describe(other).next_id, &by, &err) : KM_OK;
    if (s == KM_OK) s = km_index_absorb(ctx, index, other, by, &err);
    if (shift && s == KM_OK) *shift = by;
    return told(s, &err);
}

km_status km_index_save(km_index *index, const char *path, bool compact) {
    km_error err = {0};
    if (!index || !path) return missing("km_index_save");
    return told(km_index_store(index, path, compact, NULL, NULL, &err), &err);
}
