/* Measuring an index, and re-ranking from the original vectors. */
#include "vector/measure.h"
#include "base/clock.h"
#include "vector/device_index.h"
#include "base/alloc.h"
#include "base/log.h"
#include "tensor/tensor.h"
#include "vector/exact.h"
#include "vector/heldout.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096, MSE_ROWS = 10000, TIMED = 1000, TIES = 28 /* seen beyond the deepest rank */ };

/* ---- Truth ---- */

/* Makes rows first to first + m, which the index does not hold, such that exact search passes over
 * them. live (n_live) is sorted. */
static void leave_out(const uint64_t *live, int64_t n_live, int64_t *at, int64_t first, int64_t m,
                      float *rows, int64_t dim) {
    for (int64_t i = 0; i < m; i++) {
        uint64_t id = (uint64_t)(first + i);
        while (*at < n_live && live[*at] < id) (*at)++;
        if (*at == n_live || live[*at] != id) rows[i * dim] = NAN;
    }
}

static km_status find_truth(km_ctx *ctx, const km_index *x, km_input *base, const float *queries,
                            int64_t n, int64_t k, uint64_t *ids, float *dist, double *seconds,
                            km_error *err) {
    int64_t all = km_input_rows(base), n_live, at = 0;
    uint64_t *live = km_index_live_ids(x, &n_live, err);
    if (!live) return err->code;
    if (n_live && live[n_live - 1] >= (uint64_t)all)
        km_note(KM_LOG_WARN,
                "the index holds vectors that the base does not, id %" PRIu64 " for one; "
                "where they are found they count as wrong",
                live[n_live - 1]);
    float *rows = km_alloc(sizeof *rows * (size_t)(BLOCK * x->dim));
    km_exact *e = rows ? km_exact_new(ctx, queries, n, x->dim, k, x->metric, err) : NULL;
    km_status s = e ? KM_OK : rows ? err->code : km_no_memory_for(err, "measuring");
    double start = km_now();
    for (int64_t i = 0; s == KM_OK && i < all; i += BLOCK) {
        int64_t m = all - i < BLOCK ? all - i : BLOCK;
        s = km_input_read(base, i, m, rows, err);
        if (s == KM_OK) leave_out(live, n_live, &at, i, m, rows, x->dim);
        if (s == KM_OK) s = km_exact_feed(e, rows, m, (uint64_t)i, err);
    }
    *seconds = km_now() - start;
    if (s == KM_OK) km_exact_result(e, ids, dist);
    km_exact_free(e);
    km_free(rows);
    km_free(live);
    return s;
}

/* ---- Error ---- */

/* Over rows of the base that are in the index, spread evenly. */
static km_status find_mse(km_ctx *ctx, const km_index *x, km_input *base, double *mse,
                          km_error *err) {
    int64_t n_ids, all = km_input_rows(base), dim = x->dim;
    uint64_t *ids = km_index_live_ids(x, &n_ids, err);
    if (!ids) return err->code;
    int64_t n = n_ids < MSE_ROWS ? n_ids : MSE_ROWS, used = 0;
    for (int64_t i = 0; i < n; i++) ids[i] = ids[(int64_t)((double)i * (double)n_ids / (double)n)];
    while (n > 0 && ids[n - 1] >= (uint64_t)all) n--; /* added later */
    km_snapshot *v = km_index_rows(x);
    km_row_place *places = km_index_places(x, v, ids, n, err);
    float *got = km_alloc(sizeof *got * (size_t)(n * dim + 1)), *row = km_alloc(4 * (size_t)dim);
    km_status s = !places ? err->code : got && row ? KM_OK : km_no_memory_for(err, "measuring");
    if (s == KM_OK) s = km_index_restore(x, v, ctx->threads, places, n, got, err);
    double sum = 0;
    for (int64_t i = 0; s == KM_OK && i < n; i++) {
        s = km_input_read(base, (int64_t)ids[i], 1, row, err);
        if (s != KM_OK || km_first_bad_row(row, 1, dim) == 0) continue;
        if (x->metric == KM_METRIC_COSINE) km_unit(row, 1, dim);
        for (int64_t j = 0; j < dim; j++) {
            double d = (double)row[j] - got[i * dim + j];
            sum += d * d;
        }
        used++;
    }
    *mse = used ? sum / (double)used : NAN;
    km_snapshot_drop(v);
    km_free(ids);
    km_free(places);
    km_free(got);
    km_free(row);
    return s;
}

/* ---- Speed ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static km_status find_speed(km_ctx *ctx, km_index *x, km_device_index *on, const float *queries,
                            int64_t n, int64_t k, const km_search_options *o, uint64_t *ids,
                            float *dist, km_measured *out, km_error *err) {
    int64_t timed = n < TIMED ? n : TIMED;
    double *each = km_alloc(sizeof *each * (size_t)timed), start;
    if (!each) return km_no_memory_for(err, "measuring");
    km_status s = KM_OK;
    for (int64_t i = 0; s == KM_OK && i < timed; i++) {
        start = km_now();
        s = km_index_find(x, queries + i * x->dim, 1, k, o, NULL, ids, dist, err);
        each[i] = km_now() - start;
    }
    qsort(each, (size_t)timed, sizeof *each, by_value);
    out->p50 = each[(timed - 1) * 50 / 100];
    out->p95 = each[(timed - 1) * 95 / 100];
    out->p99 = each[(timed - 1) * 99 / 100];
    km_free(each);
    double best = INFINITY, spent = 0; /* the best of a few runs, for at most a second */
    for (int run = 0; s == KM_OK && run < 3 && (run == 0 || spent < 1); run++) {
        start = km_now();
        s = km_find_anywhere(on, x, queries, n, k, o, ctx->threads, ids, dist, err);
        double t = km_now() - start;
        spent += t;
        best = t < best ? t : best;
    }
    out->qps = (double)n / best;
    return s;
}

km_status km_measure_index(km_ctx *ctx, km_index *x, km_input *base, const float *queries,
                           int64_t n, int64_t k, const km_search_options *o, km_measured *out,
                           km_error *err) {
    static const int64_t at[3] = {1, 10, 100};
    int64_t live = km_index_live(x), depth = k > 100 ? k : 100, truth = depth + TIES;
    if (km_input_dim(base) != x->dim)
        return km_error_set(err, KM_ERR_SHAPE,
                            "'%s' holds vectors of %lld dimensions, the index "
                            "%lld",
                            km_input_name(base), (long long)km_input_dim(base), (long long)x->dim);
    if (n < 1) return km_error_set(err, KM_ERR_RANGE, "there are no queries");
    size_t cells = (size_t)(n * depth);
    uint64_t *wanted = km_alloc(sizeof *wanted * (size_t)(n * truth));
    uint64_t *found = km_alloc(sizeof *found * cells);
    float *near = km_alloc(sizeof *near * (size_t)(n * truth)); /* of those wanted */
    float *dist = km_alloc(sizeof *dist * cells);
    double seconds = 0, *each = km_alloc(sizeof *each * (size_t)n);
    *out = (km_measured){.size = sizeof *out, .queries = n, .k = k};
    km_status s =
        wanted && found && near && dist && each ? KM_OK : km_no_memory_for(err, "measuring");
    if (s == KM_OK) s = find_truth(ctx, x, base, queries, n, truth, wanted, near, &seconds, err);
    out->exact_qps = (double)n / seconds;
    km_device_index *on = s == KM_OK ? km_device_index_for(ctx, x) : NULL;
    if (s == KM_OK)
        s = km_find_anywhere(on, x, queries, n, depth, o, ctx->threads, found, dist, err);
    for (int i = 0; s == KM_OK && i < 4; i++) {
        int64_t deep = i < 3 ? at[i] : k;
        double *recall = i < 3 ? &out->recall[i] : &out->recall_k;
        *recall = out->low[i] = out->high[i] = NAN;
        if (i < 3 && deep > live) continue;
        for (int64_t q = 0; q < n; q++)
            each[q] = km_recall_tied(wanted + q * truth, near + q * truth, truth, deep,
                                     found + q * depth, KM_NO_ID);
        km_mean_interval(each, n, recall, &out->low[i], &out->high[i]);
    }
    if (s == KM_OK) s = find_speed(ctx, x, on, queries, n, k, o, found, dist, out, err);
    km_device_index_free(on);
    if (s == KM_OK) s = find_mse(ctx, x, base, &out->mse, err);
    km_free(each);
    km_free(wanted);
    km_free(found);
    km_free(near);
    km_free(dist);
    return s;
}

/* ---- Re-ranking from the original vectors ---- */

typedef struct measure_hit {
    float dist;
    uint64_t id;
} measure_hit;

static int nearer(const void *a, const void *b) {
    const measure_hit *x = a, *y = b;
    if (x->dist != y->dist) return x->dist < y->dist ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

km_status km_rerank_from(km_input *base, km_metric metric, const float *queries, int64_t n,
                         const uint64_t *candidates, int64_t m, int64_t k, uint64_t *ids,
                         float *dist, km_error *err) {
    int64_t dim = km_input_dim(base);
    float *row = km_alloc(8 * (size_t)dim), *query = row ? row + dim : NULL;
    measure_hit *list = km_alloc(sizeof *list * (size_t)(m + 1));
    km_status s = row && list ? KM_OK : km_no_memory(err);
    for (int64_t q = 0; s == KM_OK && q < n; q++) {
        int64_t have = 0;
        memcpy(query, queries + q * dim, 4 * (size_t)dim);
        if (metric == KM_METRIC_COSINE) km_unit(query, 1, dim);
        for (int64_t i = 0; s == KM_OK && i < m && candidates[q * m + i] != KM_NO_ID; i++) {
            uint64_t id = candidates[q * m + i];
            if (id >= (uint64_t)km_input_rows(base)) {
                s = km_error_set(err, KM_ERR_RANGE, "'%s' has no vector %" PRIu64,
                                 km_input_name(base), id);
                break;
            }
            s = km_input_read(base, (int64_t)id, 1, row, err);
            if (metric == KM_METRIC_COSINE) km_unit(row, 1, dim);
            list[have++] = (measure_hit){km_distance(metric, query, row, dim), id};
        }
        qsort(list, (size_t)have, sizeof *list, nearer);
        for (int64_t i = 0; i < k; i++) {
            ids[q * k + i] = i < have ? list[i].id : KM_NO_ID;
            dist[q * k + i] = i < have ? list[i].dist : INFINITY;
        }
    }
    km_free(row);
    km_free(list);
    return s;
}
