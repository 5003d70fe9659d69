/* The public calls on indexes in memory: arguments checked, the error told. */
#include "base/alloc.h"
#include "base/sized.h"
#include "tensor/tensor.h"
#include "vector/device_index.h"
#include "vector/index.h"
#include "vector/input.h"
#include "vector/learn.h"
#include "vector/make.h"
#include <math.h>
#include <string.h>

/* ---- Options ---- */

km_status km_anchor_training_defaults_sized(km_anchor_training *out, size_t size) {
    km_anchor_training own = {.size = sizeof(km_anchor_training)};
    return KM_HAND_OUT(out, size, &own, km_anchor_training);
}

km_status km_index_defaults_sized(km_index_options *out, size_t size) {
    km_index_options own = {.size = sizeof(km_index_options)};
    return KM_HAND_OUT(out, size, &own, km_index_options);
}

km_status km_search_defaults_sized(km_search_options *out, size_t size) {
    km_search_options own = {.size = sizeof(km_search_options)};
    return KM_HAND_OUT(out, size, &own, km_search_options);
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
    km_index_options own, *o = &own;
    km_anchor_training training;
    km_error err = {0};
    if (!ctx || !x || n < 1 || dim < 1) {
        km_missing("km_index_build");
        return NULL;
    }
    KM_INSIDE(on);
    if (!km_enter(&on, "km_index_build", ctx, KM_HANDLE_CONTEXT)) return NULL;
    km_index *index = NULL;
    km_status s = km_index_take_options(options, &own, &training, &err);
    if (s == KM_OK && dim > INT64_MAX / n / (int64_t)sizeof *x)
        s = km_error_set(&err, KM_ERR_RANGE,
                         "%lld vectors of %lld dimensions are beyond all memory", (long long)n,
                         (long long)dim);
    if (s == KM_OK) s = km_index_check_options(o, n, dim, &err);
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
    km_told(&err);
    return index;
}

km_index *km_index_open(const char *path) {
    km_error err = {0};
    if (!path) {
        km_missing("km_index_open");
        return NULL;
    }
    km_index *x = km_index_load(path, &err);
    km_told(&err);
    return x;
}

/* The options of a search whose arguments are there, and whose sizes fit into memory. */
static km_status check_search(const km_index *index, int64_t n, int64_t k,
                              const km_search_options *given, km_search_options *own,
                              km_error *err) {
    *own = km_search_defaults();
    km_status s = km_take_sized(own, sizeof *own, given, "km_search_options", err);
    if (s != KM_OK) return s;
    if ((own->n_allow && !own->allow) || (own->n_deny && !own->deny))
        return km_error_set(err, KM_ERR_NULL, "a list of ids is missing");
    if (n > 0 && (k > INT64_MAX / 16 / n || index->dim > INT64_MAX / 16 / n))
        return km_error_set(err, KM_ERR_RANGE, "%lld queries for %lld each are beyond all memory",
                            (long long)n, (long long)k);
    return KM_OK;
}

km_status km_index_search(km_index *index, const float *queries, int64_t n, int64_t k,
                          const km_search_options *options, int threads, uint64_t *ids,
                          float *distances) {
    km_error err = {0};
    km_search_options own;
    if (!index || !queries || !ids || !distances || n < 0 || threads < 0)
        return km_missing("km_index_search");
    KM_HOLDING(held);
    if (!km_index_usable(&held, "km_index_search", index)) return km_last_status();
    if (check_search(index, n, k, options, &own, &err) != KM_OK) return km_told(&err);
    km_threads *pool = threads > 1 ? km_threads_new(threads) : NULL, *t = pool;
    if (threads == 0) { /* all cores: one pool that stays */
        pthread_mutex_lock(&index->pool_lock);
        if (!index->pool) index->pool = km_threads_new(0);
        t = index->pool;
        pthread_mutex_unlock(&index->pool_lock);
    }
    km_index_find(index, queries, n, k, &own, t, ids, distances, &err);
    km_threads_free(pool);
    return km_told(&err);
}

/* ---- On a context's device ---- */

struct km_searcher {
    km_handle handle;
    km_ctx *ctx;
    km_index *index;
    km_device_index *there; /* NULL: nothing is on a GPU */
    km_snapshot *rows;      /* of which it was made, held so that another cannot look the same */
    int64_t deleted;
    bool on_gpu;
};

km_searcher *km_searcher_new(km_ctx *ctx, km_index *index) {
    if (!ctx || !index) {
        km_missing("km_searcher_new");
        return NULL;
    }
    KM_HOLDING(held);
    KM_INSIDE(on);
    if (!km_enter(&on, "km_searcher_new", ctx, KM_HANDLE_CONTEXT) ||
        !km_index_usable(&held, "km_searcher_new", index))
        return NULL;
    km_searcher *s = km_calloc(1, sizeof *s);
    if (!s) {
        km_public_fail(KM_ERR_MEMORY, "out of memory for a searcher");
        return NULL;
    }
    *s = (km_searcher){.ctx = ctx, .index = index};
    km_handle_add(&s->handle, KM_HANDLE_SEARCHER);
    return s;
}

static void forget(km_searcher *s) {
    km_device_index_free(s->there);
    km_snapshot_drop(s->rows);
    s->there = NULL;
    s->rows = NULL;
}

static void drop_searcher(void *searcher) {
    forget(searcher);
    km_free(searcher);
}

/* What is on a GPU goes back to the context, which must be free for it, or closed already. */
void km_searcher_free(km_searcher *s) {
    KM_INSIDE(context); /* left after the searcher */
    KM_INSIDE(in);
    if (km_try_enter(&in, s, KM_HANDLE_SEARCHER) == KM_ENTERED &&
        km_try_enter(&context, s->ctx, KM_HANDLE_CONTEXT) == KM_ENTRY_BUSY)
        km_public_fail(KM_ERR_STATE, "km_searcher_free: another thread is using its context");
    else
        km_handle_free("km_searcher_free", s, KM_HANDLE_SEARCHER, drop_searcher);
}

bool km_searcher_on_gpu(const km_searcher *s) {
    KM_INSIDE(in);
    return s && km_enter(&in, "km_searcher_on_gpu", s, KM_HANDLE_SEARCHER) && s->on_gpu;
}

/* Brings the index to the device when it is not there, or not as it is now. */
static void refresh(km_searcher *s) {
    km_snapshot *now = km_index_rows(s->index);
    int64_t dead;
    km_snapshot_count(now, &dead);
    if (s->rows == now && s->deleted == dead) {
        km_snapshot_drop(now);
        return;
    }
    forget(s);
    s->rows = now;
    s->deleted = dead;
    s->there = km_device_index_for(s->ctx, s->index);
}

km_status km_searcher_search(km_searcher *s, const float *queries, int64_t n, int64_t k,
                             const km_search_options *options, uint64_t *ids, float *distances) {
    km_error err = {0};
    km_search_options own;
    if (!s || !queries || !ids || !distances || n < 0) return km_missing("km_searcher_search");
    KM_INSIDE(in);
    KM_HOLDING(held);
    KM_INSIDE(on);
    if (!km_enter(&in, "km_searcher_search", s, KM_HANDLE_SEARCHER) ||
        !km_enter(&on, "km_searcher_search", s->ctx, KM_HANDLE_CONTEXT) ||
        !km_index_usable(&held, "km_searcher_search", s->index))
        return km_last_status();
    if (check_search(s->index, n, k, options, &own, &err) != KM_OK) return km_told(&err);
    if (km_failed(s->ctx)) {
        km_error_set(&err, km_ctx_status(s->ctx), "%s", km_ctx_error(s->ctx));
        return km_told(&err);
    }
    if (!s->ctx->device->host) refresh(s);
    s->on_gpu = s->there && km_device_index_can(s->there, k, &own);
    km_find_anywhere(s->there, s->index, queries, n, k, &own, s->ctx->threads, ids, distances,
                     &err);
    return km_told(&err);
}

km_status km_index_add(km_ctx *ctx, km_index *index, const float *x, int64_t n,
                       const uint64_t *ids) {
    km_error err = {0};
    if (!ctx || !index || (!x && n > 0) || n < 0) return km_missing("km_index_add");
    KM_HOLDING(held);
    KM_INSIDE(on);
    if (!km_enter(&on, "km_index_add", ctx, KM_HANDLE_CONTEXT) ||
        !km_index_usable(&held, "km_index_add", index))
        return km_last_status();
    km_index_append(ctx, index, x, n, ids, &err);
    return km_told(&err);
}

km_status km_index_delete(km_index *index, const uint64_t *ids, int64_t n) {
    km_error err = {0};
    int64_t removed;
    if (!index || (!ids && n > 0) || n < 0) return km_missing("km_index_delete");
    KM_HOLDING(held);
    if (!km_index_usable(&held, "km_index_delete", index)) return km_last_status();
    km_index_remove(index, ids, n, false, &removed, &err);
    return km_told(&err);
}

km_status km_index_delete_some(km_index *index, const uint64_t *ids, int64_t n, int64_t *deleted) {
    km_error err = {0};
    int64_t removed = 0;
    if (!index || (!ids && n > 0) || n < 0) return km_missing("km_index_delete_some");
    KM_HOLDING(held);
    if (!km_index_usable(&held, "km_index_delete_some", index)) return km_last_status();
    km_index_remove(index, ids, n, true, &removed, &err);
    if (deleted) *deleted = removed;
    return km_told(&err);
}

int64_t km_index_ids(km_index *index, uint64_t *ids, int64_t cap) {
    km_error err = {0};
    int64_t n = 0;
    if (!index || cap < 0 || (cap && !ids)) {
        km_missing("km_index_ids");
        return -1;
    }
    KM_HOLDING(held);
    if (!km_index_usable(&held, "km_index_ids", index)) return -1;
    uint64_t *all = km_index_live_ids(index, &n, &err);
    if (all && cap && n) memcpy(ids, all, sizeof *ids * (size_t)(n < cap ? n : cap));
    km_free(all);
    return km_told(&err) == KM_OK ? n : -1;
}

km_status km_index_decode(km_index *index, const uint64_t *ids, int64_t n, float *x) {
    km_error err = {0};
    if (!index || ((!ids || !x) && n > 0) || n < 0) return km_missing("km_index_decode");
    KM_HOLDING(held);
    if (!km_index_usable(&held, "km_index_decode", index)) return km_last_status();
    km_snapshot *v = km_index_rows(index);
    km_row_place *places = km_index_places(index, v, ids, n, &err);
    if (places) km_index_restore(index, v, NULL, places, n, x, &err);
    km_snapshot_drop(v);
    km_free(places);
    return km_told(&err);
}

km_status km_index_anchors(km_index *index, float *x) {
    if (!index || !x) return km_missing("km_index_anchors");
    KM_HOLDING(held);
    if (!km_index_usable(&held, "km_index_anchors", index)) return km_last_status();
    memcpy(x, index->anchors, sizeof *x * (size_t)(index->cells * index->dim));
    return KM_OK;
}

km_status km_index_assignments(km_index *index, const uint64_t *ids, int64_t n, int32_t *anchors) {
    km_error err = {0};
    if (!index || ((!ids || !anchors) && n > 0) || n < 0) return km_missing("km_index_assignments");
    KM_HOLDING(held);
    if (!km_index_usable(&held, "km_index_assignments", index)) return km_last_status();
    km_snapshot *v = km_index_rows(index);
    km_row_place *places = km_index_places(index, v, ids, n, &err);
    if (places) km_index_cells(index, v, places, n, anchors);
    km_snapshot_drop(v);
    km_free(places);
    return km_told(&err);
}

km_status km_index_merge(km_ctx *ctx, km_index *index, km_index *other, uint64_t *shift) {
    km_error err = {0};
    uint64_t by = 0;
    if (!ctx || !index || !other) return km_missing("km_index_merge");
    KM_HOLDING(held);
    KM_HOLDING(second);
    KM_INSIDE(on);
    if (!km_enter(&on, "km_index_merge", ctx, KM_HANDLE_CONTEXT) ||
        !km_index_usable(&held, "km_index_merge", index) ||
        !km_index_usable(&second, "km_index_merge", other))
        return km_last_status();
    if (index == other) {
        km_error_set(&err, KM_ERR_STATE, "an index cannot be merged with itself");
        return km_told(&err);
    }
    km_status s =
        shift ? km_index_behind(index, km_index_describe(other).next_id, &by, &err) : KM_OK;
    if (s == KM_OK) s = km_index_absorb(ctx, index, other, by, &err);
    if (shift && s == KM_OK) *shift = by;
    return km_told(&err);
}

km_status km_index_save(km_index *index, const char *path, bool compact) {
    km_error err = {0};
    if (!index || !path) return km_missing("km_index_save");
    KM_HOLDING(held);
    if (!km_index_usable(&held, "km_index_save", index)) return km_last_status();
    km_index_store(index, path, compact, NULL, NULL, &err);
    return km_told(&err);
}
