/* The figures of a suite as tables: matmul and attention with a row per size and a column per
 * engine, the others with a row per op and a column per size. */
#include "cli/bench/bench.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *km_bench_unit(int suite) {
    return suite == KM_SUITE_MATMUL || suite == KM_SUITE_ATTENTION ? "GFLOP/s" : "GB/s";
}

int km_bench_sizes_of(const km_bench *b, const char *suite, double *sizes, int most) {
    int n = 0;
    for (int i = 0; i < b->n_samples; i++) {
        const km_sample *s = &b->samples[i];
        if (strcmp(s->suite, suite) != 0) continue;
        bool known = false;
        for (int k = 0; k < n; k++) known = known || sizes[k] == s->size;
        if (!known && n < most) sizes[n++] = s->size;
    }
    qsort(sizes, (size_t)n, sizeof *sizes, km_ascending);
    return n;
}

int km_bench_ops_of(const km_bench *b, const char *suite, const char **ops, int most) {
    int n = 0;
    for (int i = 0; i < b->n_samples; i++) {
        const km_sample *s = &b->samples[i];
        if (strcmp(s->suite, suite) != 0) continue;
        bool known = false;
        for (int k = 0; k < n; k++) known = known || strcmp(ops[k], s->op) == 0;
        if (!known && n < most) ops[n++] = s->op;
    }
    return n;
}

/* ---- Cells ---- */

static void cell_rate(km_grid *g, double rate) {
    char text[KM_NUMBER_TEXT];
    km_table_cell(&g->table, "%s", km_format_number(text, rate / 1e9));
}

static void cell_times(km_grid *g, double ratio) {
    char text[KM_NUMBER_TEXT];
    km_table_cell(&g->table, isfinite(ratio) ? "%sx" : "%s", km_format_number(text, ratio));
}

static void cell_part(km_grid *g, double ratio) {
    if (isfinite(ratio))
        km_table_cell(&g->table, "%.0f%%", 100 * ratio);
    else
        km_table_cell(&g->table, "-");
}

/* The quartiles of the rounds' rates, slow to quick, at the median's precision. */
static void cell_spread(km_grid *g, const km_sample *s) {
    char low[KM_NUMBER_TEXT], high[KM_NUMBER_TEXT];
    if (!s || s->skipped) {
        km_table_cell(&g->table, "-");
        return;
    }
    km_table_cell(&g->table, "%s to %s",
                  km_format_number(low, s->work / s->seconds.three_quarters / 1e9),
                  km_format_number(high, s->work / s->seconds.quarter / 1e9));
}

static void cell_median(km_grid *g, const km_sample *s) {
    cell_rate(g, s && !s->skipped ? s->work / s->seconds.median : NAN);
}

/* Starts the table with left columns first and right ones after; titles must be filled in. */
static void begin(km_grid *g, int left, int columns) {
    char align[KM_TABLE_MAX_COLUMNS + 1];
    const char *titles[KM_TABLE_MAX_COLUMNS];
    for (int i = 0; i < columns; i++) {
        align[i] = i < left ? 'l' : 'r';
        titles[i] = g->title[i];
    }
    align[columns] = '\0';
    km_table_init(&g->table, align, titles);
}

static void title(km_grid *g, int *n, const char *text) {
    if (*n < KM_TABLE_MAX_COLUMNS) snprintf(g->title[(*n)++], sizeof g->title[0], "%s", text);
}

/* ---- Grids ---- */

static void matmul_grid(const km_bench *b, km_grid *g) {
    const char *main_engine = km_bench_engine(b);
    int n = 0;
    title(g, &n, "n");
    title(g, &n, "naive");
    title(g, &n, "OpenBLAS");
    title(g, &n, "own GEMM");
    title(g, &n, "cpu");
    if (b->device) title(g, &n, main_engine);
    title(g, &n, "median");
    title(g, &n, "quartiles");
    title(g, &n, "x naive");
    title(g, &n, b->device ? "x OpenBLAS" : "of OpenBLAS");
    title(g, &n, "of limit");
    begin(g, 0, n);
    double sizes[KM_MAX_SIZES];
    int n_sizes = km_bench_sizes_of(b, "matmul", sizes, KM_MAX_SIZES);
    for (int i = 0; i < n_sizes; i++) {
        double naive = km_bench_rate(b, "matmul", "matmul", sizes[i], KM_ENGINE_NAIVE);
        double blas = km_bench_rate(b, "matmul", "matmul", sizes[i], KM_ENGINE_BLAS);
        const km_sample *s = km_bench_find(b, "matmul", "matmul", sizes[i], main_engine);
        double rate = km_sample_rate(s);
        km_table_cell(&g->table, "%.0f", sizes[i]);
        cell_rate(g, naive);
        cell_rate(g, blas);
        cell_rate(g, km_bench_rate(b, "matmul", "matmul", sizes[i], KM_ENGINE_OWN));
        cell_rate(g, km_bench_rate(b, "matmul", "matmul", sizes[i], KM_ENGINE_CPU));
        if (b->device) cell_rate(g, rate);
        cell_median(g, s);
        cell_spread(g, s);
        cell_times(g, rate / naive);
        (b->device ? cell_times : cell_part)(g, rate / blas);
        cell_part(g, s ? rate / km_sample_limit(b, s) : NAN);
    }
}

static void attention_grid(const km_bench *b, km_grid *g) {
    const char *engine = km_bench_engine(b);
    int n = 0;
    title(g, &n, "shape");
    title(g, &n, "naive forward");
    title(g, &n, "forward");
    title(g, &n, "backward");
    title(g, &n, "forward quartiles");
    title(g, &n, "backward quartiles");
    title(g, &n, "x naive");
    title(g, &n, "forward of limit");
    title(g, &n, "backward of limit");
    begin(g, 1, n);
    double sizes[KM_MAX_SIZES];
    int n_sizes = km_bench_sizes_of(b, "attention", sizes, KM_MAX_SIZES);
    for (int i = 0; i < n_sizes; i++) {
        double naive = km_bench_rate(b, "attention", "forward", sizes[i], KM_ENGINE_NAIVE);
        const km_sample *f = km_bench_find(b, "attention", "forward", sizes[i], engine);
        const km_sample *r = km_bench_find(b, "attention", "backward", sizes[i], engine);
        km_table_cell(&g->table, "%s", f ? f->shape : "");
        cell_rate(g, naive);
        cell_rate(g, km_sample_rate(f));
        cell_rate(g, km_sample_rate(r));
        cell_spread(g, f);
        cell_spread(g, r);
        cell_times(g, km_sample_rate(f) / naive);
        cell_part(g, f ? km_sample_rate(f) / km_sample_limit(b, f) : NAN);
        cell_part(g, r ? km_sample_rate(r) / km_sample_limit(b, r) : NAN);
    }
}

/* The speed-up at the largest size that plain C was measured at. */
static double over_naive(const km_bench *b, const char *suite, const char *op, const double *sizes,
                         int n) {
    for (int i = n - 1; i >= 0; i--) {
        double naive = km_bench_rate(b, suite, op, sizes[i], KM_ENGINE_NAIVE);
        if (isfinite(naive))
            return km_bench_rate(b, suite, op, sizes[i], km_bench_engine(b)) / naive;
    }
    return NAN;
}

static void ops_grid(const km_bench *b, int suite, km_grid *g) {
    enum { MOST_SIZES = 12, MOST_OPS = 32 };
    const char *name = km_suite_names[suite], *engine = km_bench_engine(b);
    const char *ops[MOST_OPS];
    double sizes[MOST_SIZES];
    int n_sizes = km_bench_sizes_of(b, name, sizes, MOST_SIZES);
    int n_ops = km_bench_ops_of(b, name, ops, MOST_OPS), n = 0;
    title(g, &n, "op");
    for (int i = 0; i < n_sizes; i++) {
        char text[40];
        km_format_binary(text, sizes[i]);
        const km_sample *s = km_bench_find(b, name, ops[0], sizes[i], KM_ENGINE_CPU);
        title(g, &n, suite == KM_SUITE_ROWS && s ? s->shape : text);
    }
    title(g, &n, "median");
    title(g, &n, "quartiles");
    title(g, &n, "x naive");
    if (b->device) title(g, &n, "x cpu");
    title(g, &n, "of limit");
    begin(g, 1, n);
    for (int o = 0; o < n_ops; o++) {
        double last = NAN, over_cpu = NAN;
        const km_sample *largest = NULL;
        km_table_cell(&g->table, "%s", ops[o]);
        for (int i = 0; i < n_sizes; i++) {
            const km_sample *s = km_bench_find(b, name, ops[o], sizes[i], engine);
            cell_rate(g, km_sample_rate(s));
            if (!s || s->skipped) continue;
            largest = s;
            last = km_sample_rate(s) / km_sample_limit(b, s);
            over_cpu = km_sample_rate(s) / km_bench_rate(b, name, ops[o], sizes[i], KM_ENGINE_CPU);
        }
        cell_median(g, largest);
        cell_spread(g, largest);
        cell_times(g, over_naive(b, name, ops[o], sizes, n_sizes));
        if (b->device) cell_times(g, over_cpu);
        cell_part(g, last);
    }
}

bool km_bench_grid(const km_bench *b, int suite, km_grid *g) {
    double size;
    if (km_bench_sizes_of(b, km_suite_names[suite], &size, 1) == 0) return false;
    if (suite == KM_SUITE_MATMUL)
        matmul_grid(b, g);
    else if (suite == KM_SUITE_ATTENTION)
        attention_grid(b, g);
    else
        ops_grid(b, suite, g);
    return true;
}

void km_bench_per_core_grid(const km_bench *b, km_grid *g) {
    const char *ops[8];
    double size = 0;
    int n = 0, n_ops = km_bench_ops_of(b, KM_SUITE_PER_CORE, ops, 8);
    km_bench_sizes_of(b, KM_SUITE_PER_CORE, &size, 1);
    title(g, &n, "op");
    title(g, &n, "libm");
    title(g, &n, "one core");
    title(g, &n, "x libm");
    begin(g, 1, n);
    for (int i = 0; i < n_ops; i++) {
        double libm = km_bench_rate(b, KM_SUITE_PER_CORE, ops[i], size, KM_ENGINE_NAIVE);
        double ours = km_bench_rate(b, KM_SUITE_PER_CORE, ops[i], size, KM_ENGINE_CPU_ONE);
        km_table_cell(&g->table, "%s", ops[i]);
        cell_rate(g, libm / 8); /* a result for each 8 bytes moved */
        cell_rate(g, ours / 8);
        cell_times(g, ours / libm);
    }
}

void km_bench_targets_grid(const km_bench *b, km_grid *g, int *met, int *missed, int *unknown) {
    km_target targets[KM_MAX_TARGETS];
    int n_targets = km_bench_targets(b, targets), n = 0;
    *met = *missed = *unknown = 0;
    title(g, &n, "result");
    title(g, &n, "target");
    title(g, &n, "measured");
    title(g, &n, "wanted");
    begin(g, 2, n);
    for (int i = 0; i < n_targets; i++) {
        const km_target *t = &targets[i];
        if (t->why_missing) {
            ++*unknown;
            continue;
        }
        bool ok = km_target_met(t);
        ++*(ok ? met : missed);
        km_table_cell(&g->table, "%s", ok ? "met" : "MISSED");
        km_table_cell(&g->table, "%s", t->name);
        km_table_cell(&g->table, "%.4g", t->value);
        km_table_cell(&g->table, "%s %g", t->at_least ? "at least" : "at most", t->bound);
    }
}
