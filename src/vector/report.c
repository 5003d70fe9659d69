/* The page about an index. The curve of recall against size is made by building small indexes of
 * every size from a part of the vectors, so that it also holds for sizes nobody asked for. */
#include "vector/measure.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/json_read.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/table.h"
#include "tensor/dtype.h"
#include "vector/exact.h"
#include "vector/learn.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SIZES = 7, PROBES = 12, ROWS = 5000, QUERIES = 200, OTHERS = 4 };

typedef struct sweep {
    char name[40];
    double bytes[SIZES], all[SIZES], recall[SIZES]; /* all: everything counted, a vector */
    int n;
} sweep;

typedef struct page_data {
    sweep codes[2 + OTHERS]; /* fast, dense; what other engines reached */
    int n_codes;
    double probe_recall[PROBES], probe_qps[PROBES];
    int64_t probe[PROBES];
    int n_probes;
    int64_t rows, queries; /* that the curves are of */
} page_data;

/* ---- Figures ---- */

static km_status sweep_sizes(km_ctx *ctx, const km_index *x, const float *rows, int64_t n,
                             const float *queries, int64_t q, page_data *d,
                             const km_report_options *how, km_error *err) {
    static const double parts[SIZES] = {1 / 32.0, 1 / 16.0, 1 / 8.0, 3 / 16.0, 1 / 4.0, 1 / 2.0, 1};
    uint64_t *wanted = km_alloc(sizeof *wanted * (size_t)(20 * q)), *found = NULL;
    float *dist = km_alloc(sizeof *dist * (size_t)(10 * q));
    float *copy = km_alloc(sizeof *copy * (size_t)(n * x->dim));
    km_status s = wanted && dist && copy ? KM_OK : km_no_memory(err);
    if (s == KM_OK) {
        found = wanted + 10 * q;
        memcpy(copy, rows, sizeof *copy * (size_t)(n * x->dim));
        km_exact *e = km_exact_new(ctx, queries, q, x->dim, 10, x->metric, err);
        s = e ? km_exact_feed(e, copy, n, 0, err) : err->code;
        if (s == KM_OK) km_exact_result(e, wanted, dist);
        km_exact_free(e);
    }
    for (int mode = 0; s == KM_OK && mode < 2; mode++)
        for (int i = 0; s == KM_OK && i < SIZES; i++) {
            if (how->progress && !how->progress(how->user, mode * SIZES + i, 2 * SIZES))
                s = km_stopped(err);
            double bytes = ceil(parts[i] * (double)x->dim) + 1;
            sweep *w = &d->codes[mode];
            if (s != KM_OK || (w->n && bytes <= w->bytes[w->n - 1])) continue;
            km_index_options o = {.size = sizeof(km_index_options),
                                  .metric = x->metric,
                                  .mode = (km_index_mode)mode,
                                  .bytes = bytes,
                                  .seed = x->seed};
            km_index *small = km_index_build(ctx, rows, n, x->dim, NULL, &o);
            if (!small) {
                s = km_error_set(err, KM_ERR_STATE, "%s", km_last_error());
                continue;
            }
            s = km_index_find(small, queries, q, 10, NULL, ctx->threads, found, dist, err);
            w->bytes[w->n] = (double)small->code_bytes;
            w->all[w->n] = km_index_size(small) / (double)n;
            w->recall[w->n++] = km_recall(wanted, found, q, 10, 10);
            km_index_close(small);
        }
    km_free(wanted);
    km_free(dist);
    km_free(copy);
    return s;
}

/* What other engines reached, from a file of results: rows of "quality" whose data is named in the
 * base's name, sizes ascending. */
static km_status read_others(const char *path, const char *base, page_data *d, km_error *err) {
    json_t *o = km_json_load(path, err), *row;
    if (!o) return err->code;
    size_t i;
    json_array_foreach(json_object_get(o, "quality"), i, row) {
        const char *data = json_string_value(json_object_get(row, "data"));
        const char *engine = json_string_value(json_object_get(row, "engine"));
        double bytes = json_number_value(json_object_get(row, "code_bytes"));
        double recall = json_number_value(json_object_get(row, "recall@10"));
        if (!data || !strcasestr(base, data) || !engine || strstr(engine, "kermes")) continue;
        int k = 2;
        while (k < d->n_codes && strcmp(d->codes[k].name, engine) != 0) k++;
        if (k == 2 + OTHERS) continue;
        sweep *w = &d->codes[k];
        if (w->n == SIZES || !(bytes > (w->n ? w->bytes[w->n - 1] : 0))) continue;
        if (k == d->n_codes) snprintf(d->codes[d->n_codes++].name, sizeof w->name, "%s", engine);
        w->bytes[w->n] = bytes;
        w->all[w->n] = json_number_value(json_object_get(row, "bytes_per_vector"));
        w->recall[w->n++] = recall;
    }
    json_decref(o);
    return KM_OK;
}

/* Recall here is against the index's own search of all its cells. */
static km_status sweep_probes(km_ctx *ctx, km_index *x, const float *queries, int64_t q,
                              page_data *d, km_error *err) {
    uint64_t *all = km_alloc(sizeof *all * (size_t)(20 * q)), *some = all + 10 * q;
    float *dist = km_alloc(sizeof *dist * (size_t)(10 * q));
    km_status s = all && dist ? KM_OK : km_no_memory(err);
    if (s == KM_OK) s = km_index_find(x, queries, q, 10, NULL, ctx->threads, all, dist, err);
    for (int64_t p = 1; s == KM_OK && d->n_probes < PROBES; p *= 2) {
        if (p > x->cells) p = x->cells;
        double best = INFINITY;
        for (int run = 0; s == KM_OK && run < 2; run++) {
            double start = km_now();
            s = km_index_find(x, queries, q, 10,
                              &(km_search_options){.size = sizeof(km_search_options), .probe = p},
                              ctx->threads, some, dist, err);
            best = fmin(best, km_now() - start);
        }
        d->probe[d->n_probes] = p;
        d->probe_qps[d->n_probes] = (double)q / best;
        d->probe_recall[d->n_probes++] = km_recall(all, some, q, 10, 10);
        if (p == x->cells) break;
    }
    km_free(all);
    km_free(dist);
    return s;
}

/* ---- The page ---- */

static void add_tiles(const km_index *x, const km_measured *m, km_text *page) {
    char v[6][KM_NUMBER_TEXT];
    double live = (double)km_index_live(x), bytes = km_index_size(x);
    double raw = live * (double)x->dim * (double)km_dtype_size(x->dtype);
    snprintf(v[0], sizeof v[0], "%.4f", m->recall[1]);
    snprintf(v[1], sizeof v[1], "%.1f", bytes / live);
    snprintf(v[2], sizeof v[2], "%.1f", raw / bytes);
    const km_tile tiles[] = {
        {isnan(m->recall[1]) ? "none" : v[0], "", "recall@10"},
        {v[1], "bytes", "a vector, everything counted"},
        {v[2], "x", "smaller than the vectors"},
        {km_format_si(v[3], m->qps), "queries/s", "on all threads"},
        {km_format_seconds(v[4], m->p50), "", "for one query, median"},
        {km_format_si(v[5], live), "vectors", "in the index"},
    };
    km_html_tiles(page, tiles, 6);
}

static void add_size_chart(const km_index *x, const km_measured *m, const page_data *d,
                           km_text *page) {
    double own_x = (double)x->code_bytes, own_y = m->recall[1];
    km_series s[3 + OTHERS];
    int n = 0;
    for (int i = 0; i < d->n_codes; i++)
        if (d->codes[i].n)
            s[n++] = (km_series){.name = d->codes[i].name,
                                 .color = i < 2 ? i + 1 : i + 2, /* 3 is the index itself */
                                 .x = d->codes[i].bytes,
                                 .y = d->codes[i].recall,
                                 .n = d->codes[i].n};
    if (x->code_bytes && !isnan(own_y))
        s[n++] = (km_series){.name = "this index", .x = &own_x, .y = &own_y, .n = 1, .color = 3};
    char note[160];
    snprintf(note, sizeof note, "curves: %lld of the vectors, %lld queries, all cells",
             (long long)d->rows, (long long)d->queries);
    km_chart c = {.title = "Recall against size",
                  .note = note,
                  .x = {.label = "bytes of a vector's code", .scale = KM_SCALE_LOG2},
                  .y = {.label = "recall@10"},
                  .series = s,
                  .n_series = n,
                  .wide = true};
    km_chart_html(&c, page);
}

static void add_probe_chart(const page_data *d, km_text *page) {
    double x[PROBES], y[PROBES]; /* ascending in speed: from all cells to one */
    for (int i = 0; i < d->n_probes; i++) {
        x[i] = (double)d->probe[i];
        y[i] = d->probe_recall[i];
    }
    km_series s = {.name = "of what all cells find", .x = x, .y = y, .n = d->n_probes};
    km_chart c = {.title = "Recall against cells looked at",
                  .note = "search --probe",
                  .x = {.label = "cells", .scale = KM_SCALE_LOG2},
                  .y = {.label = "recall@10"},
                  .series = &s,
                  .n_series = 1};
    km_chart_html(&c, page);
    km_series speed = {.name = "queries/s", .x = x, .y = d->probe_qps, .n = d->n_probes};
    c = (km_chart){.title = "Speed against cells looked at",
                   .note = "on all threads",
                   .x = {.label = "cells", .scale = KM_SCALE_LOG2},
                   .y = {.label = "queries/s", .ticks = KM_TICKS_SI, .from_zero = true},
                   .series = &speed,
                   .n_series = 1};
    km_chart_html(&c, page);
}

static void add_table(const page_data *d, km_text *page) {
    km_table t;
    km_table_init(&t, "lrrr", (const char *[]){"codes", "bytes", "all counted", "recall@10"});
    for (int k = 0; k < d->n_codes; k++)
        for (int i = 0; i < d->codes[k].n; i++) {
            km_table_cell(&t, "%s", d->codes[k].name);
            km_table_cell(&t, "%.0f", d->codes[k].bytes[i]);
            km_table_cell(&t, "%.1f", d->codes[k].all[i]);
            km_table_cell(&t, "%.4f", d->codes[k].recall[i]);
        }
    km_html_section(page, "Sizes",
                    "What codes of each size reach on these vectors. All counted are a vector's "
                    "share of anchors, transform and levels too, which vanishes as vectors become "
                    "many.");
    km_table_html(&t, page);
    km_table_free(&t);
}

static km_status write_page(const km_index *x, const km_measured *m, const page_data *d,
                            const char *name, const char *path, km_error *err) {
    char lead[400], footer[120], date[40];
    static const char *const metrics[] = {"squared L2", "inner product", "cosine"};
    snprintf(lead, sizeof lead,
             "%lld vectors of %lld dimensions from %.200s, %s, %lld anchors, codes of %zu bytes; "
             "%lld queries.",
             (long long)km_index_live(x), (long long)x->dim, name, metrics[x->metric],
             (long long)x->cells, x->code_bytes, (long long)m->queries);
    km_text page = {0};
    km_html_begin(&page, "Kermes vector index", lead);
    add_tiles(x, m, &page);
    km_html_section(&page, "Recall",
                    "The part of the ten true neighbours that are among the ten "
                    "found.");
    add_size_chart(x, m, d, &page);
    km_html_charts_begin(&page);
    add_probe_chart(d, &page);
    km_html_charts_end(&page);
    add_table(d, &page);
    time_t now = time(NULL);
    struct tm tm;
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime_r(&now, &tm));
    snprintf(footer, sizeof footer, "Kermes %s, %s.", km_version(), date);
    km_html_end(&page, footer);
    km_status s = km_html_write(&page, path, err);
    km_text_free(&page);
    return s;
}

km_status km_write_report(km_ctx *ctx, km_index *x, km_input *base, const float *queries, int64_t n,
                          const km_measured *m, const km_report_options *o, km_error *err) {
    page_data *d = km_calloc(1, sizeof *d);
    int64_t all = km_input_rows(base), rows = all < ROWS ? all : ROWS, dim = x->dim, good = 0;
    float *some = km_alloc(sizeof *some * (size_t)(rows * dim));
    km_status s = d && some ? KM_OK : km_no_memory(err);
    for (int64_t i = 0; s == KM_OK && i < rows; i++) {
        int64_t from = (int64_t)((double)i * (double)all / (double)rows);
        s = km_input_read(base, from, 1, some + good * dim, err);
        if (s == KM_OK && km_first_bad_row(some + good * dim, 1, dim) < 0) good++;
    }
    if (s == KM_OK) {
        d->rows = good;
        d->queries = n < QUERIES ? n : QUERIES;
        d->n_codes = 2;
        snprintf(d->codes[0].name, sizeof d->codes[0].name, "fast");
        snprintf(d->codes[1].name, sizeof d->codes[1].name, "dense");
        s = sweep_sizes(ctx, x, some, good, queries, d->queries, d, o, err);
    }
    if (s == KM_OK && o->beside) s = read_others(o->beside, km_input_name(base), d, err);
    if (s == KM_OK) s = sweep_probes(ctx, x, queries, d->queries, d, err);
    if (s == KM_OK) s = write_page(x, m, d, km_input_name(base), o->path, err);
    km_free(some);
    km_free(d);
    return s;
}
