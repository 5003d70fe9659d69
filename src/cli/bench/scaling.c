/* How work scales over threads: a few ops that are bound by multiply-adds or by memory, with one
 * thread, two, four and so on, each beside the limit measured with as many. A curve that bends below
 * its limit is work that is not shared out well; one that bends with it is the machine. */
#include "base/clock.h"
#include "cli/bench/bench.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/json.h"
#include "tensor/dtype.h"
#include <math.h>
#include <string.h>

enum { MOST_COUNTS = 16, DIGITS = 5 };

typedef enum scaling_limit { LIMIT_NONE, LIMIT_FMA, LIMIT_COPY, LIMIT_READ } scaling_limit;

typedef struct scaling_op {
    const char *name, *unit;
    scaling_limit limit;
    int64_t rows, in, outs; /* of a product; of the others `in` elements */
    km_dtype dtype;         /* of the weights */
} scaling_op;

/* Beyond most caches where memory is the limit: 64 MiB and more. */
static const scaling_op ops[] = {
    {"matmul f32 1024", "GFLOP/s", LIMIT_FMA, 1024, 1024, 1024, KM_F32},
    {"matmul bf16 1024", "GFLOP/s", LIMIT_NONE, 1024, 1024, 1024, KM_BF16},
    {"512 rows of q4_k", "GFLOP/s", LIMIT_NONE, 512, 2048, 2048, KM_Q4_K},
    {"one row of q8_0", "GB/s", LIMIT_READ, 1, 8192, 8192, KM_Q8_0},
    {"one row of bf16", "GB/s", LIMIT_READ, 1, 8192, 4096, KM_BF16},
    {"add f32 32M", "GB/s", LIMIT_COPY, 0, 1 << 25, 0, KM_F32},
    {"sum f32 32M", "GB/s", LIMIT_READ, 0, 1 << 25, 0, KM_F32},
};
enum { OPS = sizeof ops / sizeof *ops };

/* ---- Measuring ---- */

/* 1, 2, 4 and so on, and all. */
static int thread_counts(const km_bench *b, int counts[MOST_COUNTS]) {
    int n = 0;
    for (int t = 1; t < b->threads && n < MOST_COUNTS - 1; t *= 2) counts[n++] = t;
    counts[n++] = b->threads;
    return n;
}

int km_bench_scaling_count(const km_bench *b) {
    int counts[MOST_COUNTS];
    return thread_counts(b, counts) * (OPS + 1);
}

/* Operations or bytes of one run. */
static double work_of(const scaling_op *o) {
    if (o->rows > 1) return 2.0 * (double)(o->rows * o->in * o->outs);
    if (o->rows) return (double)km_dtype_bytes(o->dtype, o->in * o->outs);
    return (o->limit == LIMIT_COPY ? 3 : 1) * 4.0 * (double)o->in;
}

typedef struct scaling_data {
    km_tensor *x, *w;
} scaling_data;

static scaling_data data_of(km_ctx *ctx, const scaling_op *o) {
    scaling_data d = {0};
    if (!o->rows) {
        d.x = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(o->in)));
        if (o->limit == LIMIT_COPY) d.w = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(o->in)));
        return d;
    }
    km_dtype x = o->dtype == KM_BF16 ? KM_BF16 : KM_F32;
    d.x = km_keep(ctx, km_cast(ctx, km_uniform(ctx, KM_F32, KM_SHAPE(o->rows, o->in), -1, 1), x));
    km_step_end(ctx);
    d.w = km_keep(ctx,
                  km_cast(ctx, km_uniform(ctx, KM_F32, KM_SHAPE(o->outs, o->in), -1, 1), o->dtype));
    km_step_end(ctx);
    return d;
}

static void run_once(km_ctx *ctx, const scaling_op *o, const scaling_data *d) {
    if (o->rows)
        km_linear(ctx, d->x, d->w, NULL, KM_ACT_NONE);
    else if (o->limit == LIMIT_COPY)
        km_add(ctx, d->x, d->w);
    else
        km_sum(ctx, d->x, NULL, 0, false);
    km_step_end(ctx);
}

/* Work a second of the best round; each takes a tenth of the time there is. */
static double rate_of(const km_bench *b, km_ctx *ctx, const scaling_op *o) {
    scaling_data d = data_of(ctx, o);
    double best = INFINITY, ends = km_now() + 2 * b->budget, round = 0;
    int64_t times = 1;
    for (int i = 0; i < 3 || (km_now() < ends && i < 100); i++) { /* the first two warm up */
        double start = km_now();
        for (int64_t k = 0; k < times; k++) run_once(ctx, o, &d);
        km_sync(ctx);
        round = (km_now() - start) / (double)times;
        if (i < 2)
            times = round > 0 ? 1 + (int64_t)(0.1 * b->budget / round) : 1;
        else if (round < best)
            best = round;
    }
    km_release(d.x);
    km_release(d.w);
    km_trim(ctx);
    return work_of(o) / best;
}

static double limit_of(const km_limits *l, scaling_limit kind) {
    return kind == LIMIT_FMA    ? l->fma
           : kind == LIMIT_COPY ? l->copy
           : kind == LIMIT_READ ? l->read
                                : NAN;
}

static bool measure_count(km_bench *b, int threads, double one[OPS], json_t *figures) {
    char note[40];
    snprintf(note, sizeof note, "%d thread%s", threads, threads == 1 ? "" : "s");
    km_progress_step(&b->progress, b->done++, note);
    km_ctx *ctx = km_ctx_new("cpu", threads);
    km_threads *pool = km_threads_new(threads);
    km_limits limits = {0};
    bool ok = ctx && pool && km_limits_of(pool, threads, b->quick ? 3 : 6, &limits);
    if (!ok)
        km_error_set(&b->error, KM_ERR_MEMORY, "cannot start %d threads, or less than 512 MiB",
                     threads);
    json_t *list = json_array();
    for (int i = 0; i < OPS && ok; i++) {
        km_progress_step(&b->progress, b->done++, note);
        double rate = rate_of(b, ctx, &ops[i]), limit = limit_of(&limits, ops[i].limit);
        ok = km_ctx_status(ctx) == KM_OK;
        if (!ok) km_error_set(&b->error, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
        if (threads == 1) one[i] = rate;
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "op", ops[i].name, "unit",
                                        ops[i].unit, "rate", km_json_number(rate / 1e9, DIGITS),
                                        "times", km_json_number(rate / one[i], DIGITS), "limit",
                                        km_json_number(limit / 1e9, DIGITS), "of_limit",
                                        km_json_number(rate / limit, DIGITS)));
    }
    json_array_append_new(figures,
                          json_pack("{s:i, s:o, s:o, s:o, s:o}", "threads", threads, "fma_gflops",
                                    km_json_number(limits.fma / 1e9, DIGITS), "copy_gbs",
                                    km_json_number(limits.copy / 1e9, DIGITS), "read_gbs",
                                    km_json_number(limits.read / 1e9, DIGITS), "ops", list));
    km_threads_free(pool);
    if (ctx) km_ctx_free(ctx);
    return ok;
}

bool km_bench_scaling(km_bench *b) {
    int counts[MOST_COUNTS], n = thread_counts(b, counts);
    double one[OPS] = {0};
    json_t *figures = json_array();
    bool ok = true;
    for (int i = 0; i < n && ok; i++) ok = measure_count(b, counts[i], one, figures);
    b->scaling = json_pack("{s:o}", "figures", figures);
    return ok;
}

/* ---- Reports ---- */

static void scaling_table(const json_t *scaling, km_table *t) {
    static const char *const titles[] = {"op", "threads", "rate", "", "times one", "of the limit"};
    const json_t *figures = json_object_get(scaling, "figures"), *f, *o;
    const json_t *first = json_object_get(json_array_get(figures, 0), "ops");
    km_table_init(t, "lrrlrr", titles);
    for (size_t k = 0; k < json_array_size(first); k++)
        for (size_t i = 0; i < json_array_size(figures); i++) {
            char a[KM_NUMBER_TEXT];
            f = json_array_get(figures, i);
            o = json_array_get(json_object_get(f, "ops"), k);
            double part = km_json_number_at(o, "of_limit");
            km_table_cell(t, "%s", i ? "" : km_json_text_at(o, "op"));
            km_table_cell(t, "%.0f", km_json_number_at(f, "threads"));
            km_table_cell(t, "%s", km_format_number(a, km_json_number_at(o, "rate")));
            km_table_cell(t, "%s", km_json_text_at(o, "unit"));
            km_table_cell(t, "%.2f", km_json_number_at(o, "times"));
            if (isfinite(part))
                km_table_cell(t, "%.0f%%", 100 * part);
            else
                km_table_cell(t, "-");
        }
}

void km_scaling_print(const json_t *scaling, FILE *out) {
    km_table t;
    fprintf(out, "\nScaling over threads, each beside the limit of as many\n");
    scaling_table(scaling, &t);
    km_table_print(&t, out, 2);
    km_table_free(&t);
}

static void add_chart(const json_t *figures, size_t op, km_text *page) {
    double x[MOST_COUNTS], y[MOST_COUNTS], limit[MOST_COUNTS];
    int n = 0;
    const json_t *o = NULL;
    for (size_t i = 0; i < json_array_size(figures) && n < MOST_COUNTS; i++, n++) {
        const json_t *f = json_array_get(figures, i);
        o = json_array_get(json_object_get(f, "ops"), op);
        x[n] = km_json_number_at(f, "threads");
        y[n] = km_json_number_at(o, "rate");
        limit[n] = km_json_number_at(o, "limit");
    }
    const km_series series[] = {
        {.name = "Kermes on cpu", .x = x, .y = y, .n = n, .color = 1},
        {.name = "the limit", .x = x, .y = limit, .n = n, .kind = KM_SERIES_LIMIT}};
    km_chart c = {.title = km_json_text_at(o, "op"),
                  .note = "over threads",
                  .x = {.label = "threads", .scale = KM_SCALE_LOG2},
                  .y = {.label = km_json_text_at(o, "unit"), .from_zero = true},
                  .series = series,
                  .n_series = n && isfinite(limit[0]) ? 2 : 1};
    km_chart_html(&c, page);
}

void km_scaling_html(const json_t *scaling, km_text *page) {
    const json_t *figures = json_object_get(scaling, "figures");
    const json_t *first = json_object_get(json_array_get(figures, 0), "ops");
    km_table t;
    km_html_section(page, "Scaling over threads",
                    "One thread, two, four and so on; limits are measured with as many.");
    if (json_array_size(figures) > 1) {
        km_html_charts_begin(page);
        for (size_t i = 0; i < json_array_size(first); i++) add_chart(figures, i, page);
        km_html_charts_end(page);
    }
    scaling_table(scaling, &t);
    km_table_html(&t, page);
    km_table_free(&t);
}
