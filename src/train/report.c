/* DIR/report.html: what a run did, on one page that needs nothing else. */
#include "base/alloc.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/table.h"
#include "train/history.h"
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_POINTS 600 /* of a curve; more are averaged, which a screen could not show anyway */

typedef struct curve {
    double x[MAX_POINTS], y[MAX_POINTS];
    int n;
} curve;

static double value(const km_train_point *p, size_t offset) {
    return *(const double *)(const void *)((const char *)p + offset);
}

/* The field at `offset` over the steps, in at most MAX_POINTS averages of neighbours. */
static void draw(const km_train_history *h, size_t offset, curve *c) {
    int known = 0, taken = 0;
    for (int i = 0; i < h->n; i++) known += isfinite(value(&h->at[i], offset));
    int per = (known + MAX_POINTS - 1) / MAX_POINTS;
    double sum = 0;
    c->n = 0;
    for (int i = 0; i < h->n; i++) {
        double v = value(&h->at[i], offset);
        if (!isfinite(v)) continue;
        sum += v;
        if (++taken < per) continue;
        c->x[c->n] = (double)h->at[i].step;
        c->y[c->n++] = sum / taken;
        sum = 0;
        taken = 0;
    }
}

static void chart(km_text *page, const char *title, const char *unit, const char *note,
                  km_chart_ticks ticks, const km_series *series, int n, bool from_zero) {
    km_chart c = {.title = title,
                  .note = note,
                  .x = {.label = "step", .ticks = KM_TICKS_SI},
                  .y = {.label = unit, .ticks = ticks, .from_zero = from_zero},
                  .series = series,
                  .n_series = n};
    km_chart_html(&c, page);
}

static void add_curves(const km_train_history *h, curve *c, km_text *page) {
    draw(h, offsetof(km_train_point, train_loss), &c[0]);
    draw(h, offsetof(km_train_point, val_loss), &c[1]);
    km_series loss[2];
    int n = 0;
    if (c[0].n) loss[n++] = (km_series){.name = "training", .x = c[0].x, .y = c[0].y, .n = c[0].n};
    if (c[1].n)
        loss[n++] = (km_series){.name = "validation", .x = c[1].x, .y = c[1].y, .n = c[1].n};
    km_html_charts_begin(page);
    chart(page, "Loss", "nats a token", "mean cross-entropy of the next token", KM_TICKS_NUMBER,
          loss, n, false);
    static const struct {
        const char *title, *unit, *note;
        km_chart_ticks ticks;
        size_t offset;
    } others[] = {
        {"Learning rate", "", "by the schedule", KM_TICKS_NUMBER, offsetof(km_train_point, lr)},
        {"Gradient norm", "", "of all parameters together, before clipping", KM_TICKS_NUMBER,
         offsetof(km_train_point, norm)},
        {"Throughput", "tokens/s", "evaluation and saving not counted", KM_TICKS_SI,
         offsetof(km_train_point, tokens_per_s)},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        draw(h, others[i].offset, &c[0]);
        km_series s = {.name = others[i].title, .x = c[0].x, .y = c[0].y, .n = c[0].n};
        chart(page, others[i].title, others[i].unit, others[i].note, others[i].ticks, &s, 1, true);
    }
    km_html_charts_end(page);
}

static void add_tiles(const km_train_result *r, km_text *page) {
    const km_train_status *s = &r->status;
    char v[6][KM_NUMBER_TEXT];
    snprintf(v[0], sizeof v[0], "%.4f", s->train_loss);
    snprintf(v[1], sizeof v[1], "%.4f", s->val_loss);
    const km_tile tiles[] = {
        {v[0], "", "training loss"},
        {isnan(s->val_loss) ? "none" : v[1], "", "validation loss"},
        {km_format_si(v[2], (double)s->step), "", "steps"},
        {km_format_si(v[3], r->tokens_per_s), "tokens/s", "trained on"},
        {km_format_seconds(v[4], s->seconds), "", "of training"},
        {isnan(s->mfu) ? "" : km_format_number(v[5], 100 * s->mfu), "%",
         "of the device's measured rate of products"},
    };
    km_html_tiles(page, tiles, isnan(s->mfu) ? 5 : 6);
}

static void add_settings(const km_train_settings *s, km_text *page) {
    static const char *const titles[] = {"setting", "value"};
    km_table t;
    km_table_init(&t, "ll", titles);
    json_t *o = km_train_to_json(s), *v;
    const char *key;
    json_object_foreach(o, key, v) {
        if (json_is_null(v)) continue;
        char *text =
            json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        km_table_cell(&t, "%s", key);
        km_table_cell(&t, "%s", text ? text : json_is_string(v) ? json_string_value(v) : "");
        free(text);
    }
    json_decref(o);
    km_html_section(page, "Settings", NULL);
    km_table_html(&t, page);
    km_table_free(&t);
}

km_status km_train_report(const km_train_history *h, const km_train_settings *s,
                          const km_train_result *r, const char *lead, const char *path,
                          km_error *err) {
    curve *c = km_calloc(2, sizeof *c);
    km_text page = {0};
    if (!c) return km_no_memory_for(err, "'%s'", path);
    km_html_begin(&page, "Kermes training run", lead);
    add_tiles(r, &page);
    km_html_section(&page, "Curves", NULL);
    add_curves(h, c, &page);
    add_settings(s, &page);
    char footer[120], date[40];
    time_t now = time(NULL);
    struct tm tm;
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime_r(&now, &tm));
    snprintf(footer, sizeof footer, "Kermes %s, %s, on %s.", km_version(), date, r->device);
    km_html_end(&page, footer);
    km_status status = km_html_write(&page, path, err);
    km_text_free(&page);
    km_free(c);
    return status;
}
