/* The results of a benchmark as one HTML page with charts. */
#include "backend/cpu/blas.h"
#include "base/alloc.h"
#include "base/cpu.h"
#include "cli/bench/bench.h"
#include "report/chart.h"
#include "report/html.h"
#include <math.h>
#include <string.h>
#include <time.h>

#define MAX_POINTS KM_MAX_SIZES
#define MAX_LINES 8
#define NAIVE_COLOR 3

/* How an engine is drawn: the same colour in every chart. */
typedef struct engine_line {
    const char *engine, *name;
    int color;
    km_series_kind kind;
} engine_line;

typedef struct drawing {
    km_series series[MAX_LINES];
    double x[MAX_LINES][MAX_POINTS], y[MAX_LINES][MAX_POINTS];
    char text[MAX_LINES][MAX_POINTS][128];
    const char *titles[MAX_LINES][MAX_POINTS];
    int n;
} drawing;

static void draw_engine(const km_bench *b, drawing *d, int suite, const char *op,
                        const engine_line *l) {
    const char *name = km_suite_names[suite];
    double sizes[MAX_POINTS];
    int n_sizes = km_bench_sizes_of(b, name, sizes, MAX_POINTS), at = d->n, n = 0;
    if (at == MAX_LINES) return;
    for (int i = 0; i < n_sizes; i++) {
        const km_sample *s = km_bench_find(b, name, op, sizes[i], l->engine);
        km_sample any = {.suite = name, .op = op, .size = sizes[i], .limited_by = l->engine};
        double rate = l->kind == KM_SERIES_LIMIT ? km_sample_limit(b, &any) : km_sample_rate(s);
        if (!isfinite(rate)) continue;
        char number[KM_NUMBER_TEXT], time[KM_NUMBER_TEXT], low[KM_NUMBER_TEXT],
            high[KM_NUMBER_TEXT];
        int used =
            snprintf(d->text[at][n], sizeof d->text[at][n], "%s, %s: %s %s", l->name,
                     s ? s->shape : "", km_format_number(number, rate / 1e9), km_bench_unit(suite));
        if (s && used > 0 && used < (int)sizeof d->text[at][n])
            snprintf(d->text[at][n] + used, sizeof d->text[at][n] - (size_t)used,
                     ", %s, quartiles %s to %s", km_format_seconds(time, s->seconds.best),
                     km_format_seconds(low, s->seconds.quarter),
                     km_format_seconds(high, s->seconds.three_quarters));
        d->titles[at][n] = d->text[at][n];
        d->x[at][n] = sizes[i];
        d->y[at][n++] = rate / 1e9;
    }
    if (n == 0) return;
    d->series[d->n++] = (km_series){.name = l->name,
                                    .x = d->x[at],
                                    .y = d->y[at],
                                    .titles = d->titles[at],
                                    .n = n,
                                    .kind = l->kind,
                                    .color = l->color};
}

static const char *limit_of(const km_bench *b, int suite, const char *op) {
    for (int i = 0; i < b->n_samples; i++)
        if (strcmp(b->samples[i].suite, km_suite_names[suite]) == 0 &&
            strcmp(b->samples[i].op, op) == 0)
            return b->samples[i].limited_by;
    return "";
}

static void draw_all(const km_bench *b, drawing *d, int suite, const char *op) {
    const engine_line lines[] = {
        {KM_ENGINE_NAIVE, "plain C, one thread", NAIVE_COLOR, KM_SERIES_LINE},
        {KM_ENGINE_BLAS, "OpenBLAS directly", 2, KM_SERIES_LINE},
        {KM_ENGINE_OWN, "Kermes without BLAS", 4, KM_SERIES_LINE},
        {KM_ENGINE_CPU, "Kermes on cpu", 1, KM_SERIES_LINE},
        {b->device ? km_bench_engine(b) : "", b->device ? km_bench_engine(b) : "", 5,
         KM_SERIES_LINE},
        {KM_ENGINE_COPY, "memcpy, all threads", 0, KM_SERIES_LIMIT},
        {KM_ENGINE_READ, "reading memory, all threads", 0, KM_SERIES_LIMIT},
    };
    const char *limit = limit_of(b, suite, op);
    d->n = 0;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (lines[i].kind != KM_SERIES_LIMIT || strcmp(lines[i].engine, limit) == 0)
            draw_engine(b, d, suite, op, &lines[i]);
}

static void add_chart(const km_bench *b, drawing *d, int suite, const char *op, km_text *page) {
    bool products = suite == KM_SUITE_MATMUL || suite == KM_SUITE_ATTENTION;
    draw_all(b, d, suite, op);
    int n = d->n;
    double peak = b->limits.fma / 1e9, device = b->limits.device_copy / 1e9, zero = 0;
    if (!products && device > 0 && n < MAX_LINES)
        d->series[n++] = (km_series){
            .name = "copy on the GPU", .x = &zero, .y = &device, .n = 1, .kind = KM_SERIES_LIMIT};
    if (products && n < MAX_LINES)
        d->series[n++] = (km_series){.name = "multiply-adds in registers",
                                     .x = &zero,
                                     .y = &peak,
                                     .n = 1,
                                     .kind = KM_SERIES_LIMIT};
    char note[64];
    snprintf(note, sizeof note, "f32, %s over %s", km_bench_unit(suite),
             suite == KM_SUITE_MATMUL      ? "the side of the matrices"
             : suite == KM_SUITE_ATTENTION ? "the length of the sequence"
                                           : "the number of elements");
    km_chart c = {.title = op,
                  .note = note,
                  .x = {.label = suite == KM_SUITE_MATMUL      ? "n"
                                 : suite == KM_SUITE_ATTENTION ? "tokens"
                                                               : "elements",
                        .scale = KM_SCALE_LOG2,
                        .ticks = products ? KM_TICKS_NUMBER : KM_TICKS_BINARY},
                  .y = {.label = km_bench_unit(suite),
                        .scale = products ? KM_SCALE_LINEAR : KM_SCALE_LOG10,
                        .from_zero = true},
                  .series = d->series,
                  .n_series = n};
    km_chart_html(&c, page);
}

/* How many times faster than the triple loop, where that was measured. */
static void add_speedup_chart(const km_bench *b, drawing *d, km_text *page) {
    draw_all(b, d, KM_SUITE_MATMUL, "matmul");
    int n = 0;
    for (int i = 0; i < d->n; i++) {
        km_series *s = &d->series[i];
        if (s->color == NAIVE_COLOR) continue;
        double *y = d->y[i];
        for (int k = 0; k < s->n; k++)
            y[k] /= km_bench_rate(b, "matmul", "matmul", s->x[k], KM_ENGINE_NAIVE) / 1e9;
        s->titles = NULL;
        d->series[n++] = *s;
    }
    km_chart c = {.title = "matmul, speed-up over plain C",
                  .note = "times the triple loop, up to where that was measured",
                  .x = {.label = "n", .scale = KM_SCALE_LOG2},
                  .y = {.label = "times", .from_zero = true},
                  .series = d->series,
                  .n_series = n};
    km_chart_html(&c, page);
}

static void add_suite(const km_bench *b, drawing *d, int suite, km_text *page) {
    static const char *const headings[KM_SUITE_STEP] = {"Matrix products", "Elementwise", "Rows",
                                                        "Reductions", "Attention"};
    static const char *const texts[KM_SUITE_STEP] = {
        "c = a b for square matrices.",
        "Bytes read and written over the time taken; small sizes live in caches.",
        "One read and one write of each element is the least; cross_entropy only reads.",
        "One read of each element is the least.",
        "Causal, half of the square counted; the backward pass alone."};
    km_grid g;
    if (!km_bench_grid(b, suite, &g)) return;
    km_html_section(page, headings[suite], texts[suite]);
    const char *ops[32];
    int n = km_bench_ops_of(b, km_suite_names[suite], ops, 32);
    double sizes[2];
    if (km_bench_sizes_of(b, km_suite_names[suite], sizes, 2) > 1) { /* a point is not a curve */
        km_html_charts_begin(page);
        for (int i = 0; i < n; i++) add_chart(b, d, suite, ops[i], page);
        if (suite == KM_SUITE_MATMUL) add_speedup_chart(b, d, page);
        km_html_charts_end(page);
    }
    km_table_html(&g.table, page);
    km_table_free(&g.table);
    if (suite == KM_SUITE_ELEMENTWISE) {
        km_bench_per_core_grid(b, &g);
        km_html_note(page, "One core out of its own cache, 1e9 results a second:");
        km_table_html(&g.table, page);
        km_table_free(&g.table);
    }
}

static void add_step(const km_bench *b, km_text *page) {
    const km_step_figures *f = &b->step;
    if (!f->measured) return;
    const km_net_size *m = &f->model;
    char v[4][KM_NUMBER_TEXT], text[200];
    snprintf(
        text, sizeof text,
        "%d layers, %d wide, %d heads, %d x %d tokens, %.1fM parameters, on %s: forward, loss, "
        "backward, update.",
        m->layers, m->width, m->heads, m->batch, m->tokens, f->parameters / 1e6,
        km_bench_engine(b));
    km_html_section(page, "Training step", text);
    snprintf(v[2], sizeof v[2], "%g", f->heap_allocs);
    char step_spread[96];
    snprintf(step_spread, sizeof step_spread,
             "a step, the best; median %.1f, quartiles %.1f to %.1f", 1e3 * f->seconds.median,
             1e3 * f->seconds.quarter, 1e3 * f->seconds.three_quarters);
    const km_tile tiles[] = {
        {km_format_number(v[0], 1e3 * f->seconds.best), "ms", step_spread},
        {km_format_si(v[1], m->batch * m->tokens / f->seconds.best), "tokens/s", "trained on"},
        {v[2], "", "heap allocations a step"},
        {km_format_bytes(v[3], f->peak_bytes), "", "in tensors at most"},
    };
    km_html_tiles(page, tiles, 4);
}

static void add_head(const km_bench *b, km_text *page) {
    char lead[256], v[4][KM_NUMBER_TEXT];
    snprintf(lead, sizeof lead, "%s, %d thread%s, %s kernels, %s.", km_cpu_info()->name, b->threads,
             b->threads == 1 ? "" : "s", km_isa_name(km_cpu_isa()),
             km_blas_available() ? km_blas_name() : "no BLAS");
    km_html_begin(page, "Kermes bench", lead);
    if (!(b->limits.fma > 0)) return;
    const km_tile tiles[] = {
        {km_format_number(v[0], b->limits.fma / 1e9), "GFLOP/s", "f32 multiply-adds in registers"},
        {km_format_number(v[1], b->limits.copy / 1e9), "GB/s", "memory copied, read plus written"},
        {km_format_number(v[2], b->limits.read / 1e9), "GB/s", "memory read"},
        {km_format_bytes(v[3], km_peak_memory()), "", "memory at most, this program"},
    };
    km_html_tiles(page, tiles, 4);
    km_html_note(page, "The first three are this machine's limits, measured in the same run.");
}

static void add_targets(const km_bench *b, km_text *page) {
    km_grid g;
    int met, missed, unknown;
    char text[120];
    km_bench_targets_grid(b, &g, &met, &missed, &unknown);
    if (met + missed) {
        snprintf(text, sizeof text, "Ratios within this run: %d met, %d missed%s.", met, missed,
                 unknown ? ", others not measured" : "");
        km_html_section(page, "Targets for a CPU with 2 threads", text);
        km_table_html(&g.table, page);
    }
    km_table_free(&g.table);
}

void km_bench_html(const km_bench *b, km_text *page) {
    drawing *d = km_calloc(1, sizeof *d);
    if (!d) {
        page->failed = true;
        return;
    }
    add_head(b, page);
    for (int i = 0; i < KM_SUITE_STEP; i++) add_suite(b, d, i, page);
    add_step(b, page);
    if (b->memory) km_memory_html(b->memory, page);
    if (b->pool_figures) km_pool_html(b->pool_figures, page);
    if (b->scaling) km_scaling_html(b->scaling, page);
    add_targets(b, page);
    char footer[160], date[40];
    time_t now = time(NULL);
    struct tm tm;
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime_r(&now, &tm));
    snprintf(footer, sizeof footer,
             "Kermes %s, %s. Figures are from the best round after a warm-up, engines in turns.",
             km_version(), date);
    km_html_end(page, footer);
    km_free(d);
}
