/* Queries held out, their true neighbours, and what an index finds of them. */
#include "vector/heldout.h"
#include "base/alloc.h"
#include "vector/exact.h"
#include "vector/learn.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { K = KM_HELDOUT_K, BLOCK = 1024 };

void km_mean_interval(const double *x, int64_t n, double *mean, double *low, double *high) {
    double sum = 0, square = 0, z = 1.96;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i];
        square += x[i] * x[i];
    }
    double count = (double)n, p = sum / count, var = square / count - p * p;
    double trials = var > 1e-9 ? count * p * (1 - p) / var : count, half, mid;
    mid = (p + z * z / (2 * trials)) / (1 + z * z / trials);
    half = z / (1 + z * z / trials) * sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials));
    *mean = p;
    *low = fmax(0, fmin(p, mid - half));
    *high = fmin(1, fmax(p, mid + half));
}

km_heldout *km_heldout_new(km_ctx *ctx, km_input *in, km_input *from, km_metric metric,
                           int64_t most, int64_t deep, km_error *err) {
    km_input *of = from ? from : in;
    int64_t rows = km_input_rows(of), n = rows < most ? rows : most, dim = km_input_dim(in);
    if (km_input_dim(of) != dim) {
        km_error_set(
            err, KM_ERR_SHAPE, "'%s' holds queries of %lld dimensions, '%s' vectors of %lld",
            km_input_name(of), (long long)km_input_dim(of), km_input_name(in), (long long)dim);
        return NULL;
    }
    if (km_input_rows(in) < 2 * K) return NULL;
    km_heldout *h = km_calloc(1, sizeof *h);
    if (h) {
        *h = (km_heldout){.dim = dim, .deep = deep};
        h->queries = km_alloc(sizeof *h->queries * (size_t)(n * dim));
        h->self = km_alloc(sizeof *h->self * (size_t)n);
        h->near = km_alloc(sizeof *h->near * (size_t)(n * deep));
        h->dist = km_alloc(sizeof *h->dist * (size_t)(n * deep));
    }
    km_status s = h && h->queries && h->self && h->near && h->dist
                      ? KM_OK
                      : km_no_memory_for(err, "measuring recall");
    for (int64_t i = 0; s == KM_OK && i < n; i++) {
        int64_t row = (int64_t)(((double)i + 0.5) * (double)rows / (double)n);
        float *to = h->queries + h->n * dim;
        s = km_input_read(of, row, 1, to, err);
        if (s != KM_OK || km_first_bad_row(to, 1, dim) == 0) continue;
        h->self[h->n++] = from ? KM_NO_ID : (uint64_t)row;
    }
    if (s == KM_OK && h->n) {
        h->exact = km_exact_new(ctx, h->queries, h->n, dim, deep, metric, err);
        if (h->exact) km_exact_pass_over(h->exact, h->self);
        if (h->exact) return h;
    }
    km_heldout_free(h);
    return NULL;
}

void km_heldout_free(km_heldout *h) {
    if (!h) return;
    km_exact_free(h->exact);
    km_free(h->queries);
    km_free(h->self);
    km_free(h->near);
    km_free(h->dist);
    km_free(h);
}

km_status km_heldout_feed(km_heldout *h, float *rows, const uint64_t *number, int64_t n,
                          km_error *err) {
    return km_exact_feed_ids(h->exact, rows, number, n, err);
}

km_status km_heldout_feed_all(km_heldout *h, km_input *in, const km_index_options *o,
                              km_error *err) {
    int64_t all = km_input_rows(in), dim = h->dim, block = (4 << 20) / dim;
    block = block < 16 ? 16 : block > 8192 ? 8192 : block;
    float *rows = km_alloc(sizeof *rows * (size_t)(block * dim));
    uint64_t *number = km_alloc(sizeof *number * (size_t)block);
    km_status s = rows && number ? KM_OK : km_no_memory_for(err, "measuring recall");
    for (int64_t at = 0; s == KM_OK && at < all; at += block) {
        int64_t n = all - at < block ? all - at : block;
        if (!km_tell(o, "neighbours", at, all)) s = km_stopped(err);
        if (s == KM_OK) s = km_input_read(in, at, n, rows, err);
        for (int64_t i = 0; i < n; i++) number[i] = (uint64_t)(at + i); /* others are passed over */
        if (s == KM_OK) s = km_heldout_feed(h, rows, number, n, err);
    }
    km_free(rows);
    km_free(number);
    if (s == KM_OK) km_heldout_settle(h);
    return s;
}

void km_heldout_settle(km_heldout *h) { km_exact_result(h->exact, h->near, h->dist); }

/* The part of the ten nearest that is found; `map` gives rows their ids, NULL: their numbers. */
static double score_one(const km_heldout *h, int64_t q, const uint64_t *found,
                        const uint64_t *map) {
    const uint64_t *near = h->near + q * h->deep;
    uint64_t wanted[256], self = h->self[q];
    int64_t deep = h->deep < 256 ? h->deep : 256;
    for (int64_t i = 0; i < deep; i++)
        wanted[i] = map && near[i] != KM_NO_ID ? map[near[i]] : near[i];
    if (self != KM_NO_ID && map) self = map[self];
    return km_recall_tied(wanted, h->dist + q * h->deep, deep, K, found, self);
}

static km_told_recall score(const km_heldout *h, int64_t n, const uint64_t *found,
                            const uint64_t *map) {
    km_told_recall told = {.queries = n, .recall = NAN, .low = NAN, .high = NAN};
    double *each = km_alloc(sizeof *each * (size_t)(n + 1));
    for (int64_t q = 0; each && q < n; q++) each[q] = score_one(h, q, found + q * (K + 1), map);
    if (each && n) km_mean_interval(each, n, &told.recall, &told.low, &told.high);
    km_free(each);
    return told;
}

km_told_recall km_heldout_score(const km_heldout *h, int64_t queries, const uint64_t *found) {
    return score(h, queries, found, NULL);
}

km_told_recall km_heldout_told(const km_heldout *h, const uint64_t *found, const uint64_t *ids) {
    return score(h, h->n, found, ids);
}

json_t *km_told_recall_json(const km_told_recall *told) {
    return json_pack("{s:I, s:f, s:[f, f]}", "queries", (json_int_t)told->queries, "recall@10",
                     told->recall, "interval", told->low, told->high);
}

km_status km_heldout_measure(const km_heldout *h, km_index *x, const uint64_t *ids, km_threads *t,
                             km_told_recall *told, km_error *err) {
    uint64_t *found = km_alloc(sizeof *found * (size_t)(h->n * (K + 1)));
    float *dist = km_alloc(sizeof *dist * (size_t)(h->n * (K + 1)));
    km_status s = found && dist
                      ? km_index_find(x, h->queries, h->n, K + 1, NULL, t, found, dist, err)
                      : km_no_memory_for(err, "measuring recall");
    if (s == KM_OK) *told = score(h, h->n, found, ids);
    km_free(found);
    km_free(dist);
    return s;
}

/* ---- Crowds ---- */

km_status km_crowd_read(const km_heldout *h, km_input *in, double bytes, km_crowd *c,
                        km_error *err) {
    double room = bytes / (4.0 * (double)h->dim + 8) / (double)(h->deep + 1);
    *c = (km_crowd){.queries = room < (double)h->n ? (int64_t)room : h->n};
    if (c->queries < 1) c->queries = 1;
    uint64_t *number = c->number = km_alloc(sizeof *number * (size_t)(c->queries * (h->deep + 1)));
    if (!number) return km_no_memory_for(err, "measuring recall");
    int64_t n = 0;
    for (int64_t q = 0; q < c->queries; q++) {
        if (h->self[q] != KM_NO_ID) number[n++] = h->self[q]; /* it stands in others' way */
        for (int64_t i = 0; i < h->deep; i++)
            if (h->near[q * h->deep + i] != KM_NO_ID) number[n++] = h->near[q * h->deep + i];
    }
    qsort(number, (size_t)n, sizeof *number, km_by_id);
    for (int64_t i = 0; i < n; i++)
        if (c->n == 0 || number[i] != number[c->n - 1]) number[c->n++] = number[i];
    c->rows = km_alloc(sizeof *c->rows * (size_t)(c->n * h->dim + 1));
    km_status s = c->rows ? KM_OK : km_no_memory_for(err, "measuring recall");
    for (int64_t i = 0, m; s == KM_OK && i < c->n; i += m) { /* runs of rows at once */
        for (m = 1; i + m < c->n && m < BLOCK && number[i + m] == number[i] + (uint64_t)m;) m++;
        s = km_input_read(in, (int64_t)number[i], m, c->rows + i * h->dim, err);
    }
    if (s != KM_OK) km_crowd_free(c);
    return s;
}

void km_crowd_free(km_crowd *c) {
    km_free(c->rows);
    km_free(c->number);
    *c = (km_crowd){0};
}
