/* kermes recall: how good and how fast an index is, against exact search. */
#include "base/alloc.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/vectors.h"
#include "report/json.h"
#include "base/text.h"
#include <math.h>

typedef struct recall_line {
    km_common common;
    km_input_line input;
    km_look_line look;
    const char *base, *queries, *html, *beside;
} recall_line;

static json_t *report(const recall_line *l, const char *path, const km_index_info *x,
                      const km_measured *m) {
    char name[32];
    double live = (double)x->count, bytes = x->total_bytes;
    json_t *o = json_pack(
        "{s:s, s:o, s:I, s:I, s:I, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:s, s:s}",
        "kermes", km_version(), "index", km_json_text(path), "vectors", (json_int_t)live, "queries",
        (json_int_t)m->queries, "k", (json_int_t)m->k, "bytes_per_vector",
        km_json_number(bytes / live, 7), "ratio",
        km_json_number(live * (double)x->dim * (double)km_dtype_size(x->dtype) / bytes, 6),
        "code_bytes", (json_int_t)x->code_bytes, "mse", km_json_number(m->mse, 9), "qps",
        km_json_number(m->qps, 6), "exact_qps", km_json_number(m->exact_qps, 6), "latency_p50",
        km_json_number(m->p50, 5), "latency_p95", km_json_number(m->p95, 5), "latency_p99",
        km_json_number(m->p99, 5), "probe", (json_int_t)l->look.probe, "metric",
        km_metric_names[x->metric], "mode", km_mode_names[x->mode]);
    static const char *const names[] = {"recall@1", "recall@10", "recall@100"};
    json_t *interval = json_object();
    snprintf(name, sizeof name, "recall@%lld", (long long)m->k);
    for (int i = 0; i < 4; i++) {
        double recall = i < 3 ? m->recall[i] : m->recall_k;
        const char *key = i < 3 ? names[i] : name;
        if (isnan(recall)) continue;
        json_object_set_new(o, key, km_json_number(recall, 6));
        json_object_set_new(
            interval, key,
            json_pack("[o, o]", km_json_number(m->low[i], 6), km_json_number(m->high[i], 6)));
    }
    json_object_set_new(o, "interval", interval);
    return o;
}

static void print_report(const recall_line *l, const char *path, const km_index_info *x,
                         const km_measured *m) {
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT], c[KM_NUMBER_TEXT], d[KM_NUMBER_TEXT];
    double live = (double)x->count, bytes = x->total_bytes;
    printf("%s: %.0f vectors, %lld queries", path, live, (long long)m->queries);
    if (l->look.probe)
        printf(", %lld of %lld cells", (long long)l->look.probe, (long long)x->anchors);
    printf("\n  %-10s", "recall");
    static const int at[] = {1, 10, 100};
    for (int i = 0; i < 3; i++)
        if (!isnan(m->recall[i])) printf("  @%d %.4f", at[i], m->recall[i]);
    if (m->k != 1 && m->k != 10 && m->k != 100)
        printf("  @%lld %.4f", (long long)m->k, m->recall_k);
    printf("\n  %-10s", "95%");
    for (int i = 0; i < 3; i++)
        if (!isnan(m->recall[i])) printf("  @%d %.4f to %.4f", at[i], m->low[i], m->high[i]);
    if (m->k != 1 && m->k != 10 && m->k != 100)
        printf("  @%lld %.4f to %.4f", (long long)m->k, m->low[3], m->high[3]);
    printf("\n  %-10s  %.1f bytes a vector all counted, %zu of code, %.1f times smaller\n", "size",
           bytes / live, x->code_bytes,
           live * (double)x->dim * (double)km_dtype_size(x->dtype) / bytes);
    printf("  %-10s  %s a vector\n", "error", km_format_number(a, m->mse));
    printf("  %-10s  p50 %s, p95 %s, p99 %s for one query on one thread\n", "latency",
           km_format_seconds(a, m->p50), km_format_seconds(b, m->p95),
           km_format_seconds(c, m->p99));
    printf("  %-10s  %s queries/s, exact search %s\n", "speed", km_format_number(a, m->qps),
           km_format_number(d, m->exact_qps));
}

static bool on_size(void *user, int done, int total) {
    (void)total;
    km_progress_step(user, done, NULL);
    return true;
}

static km_status write_page(const recall_line *l, km_ctx *ctx, km_index *x, km_vectors *base,
                            const float *queries, int64_t n, const km_measured *m) {
    km_progress bar;
    km_report_options how = km_report_defaults();
    how.path = l->html;
    how.beside = l->beside;
    how.progress = on_size;
    how.user = &bar;
    km_progress_begin(&bar, "sizes", "", 14, l->common.quiet);
    km_status s = km_index_report(ctx, x, base, queries, n, m, &how);
    km_progress_end(&bar);
    return s;
}

static km_status measure(const recall_line *l, km_ctx *ctx, km_index *x, km_vectors *base,
                         const float *queries, int64_t n, km_measured *m) {
    km_search_options o = km_look_options(&l->look);
    km_status s = km_index_measure(ctx, x, base, queries, n, l->look.k, &o, m);
    return s == KM_OK && l->html ? write_page(l, ctx, x, base, queries, n, m) : s;
}

static int run(const recall_line *l, const char *path) {
    km_error err = {0};
    km_index *x = km_index_open(path);
    if (!x) return km_cli_fail("recall: %s", km_last_error());
    km_index_info info = km_index_describe(x);
    km_vectors *base = km_open_vectors(l->base, &l->input, &err);
    int64_t n = 0;
    float *queries = base ? km_read_queries(l->queries, NULL, &l->input, info.dim, &n, &err) : NULL;
    km_ctx *ctx = queries ? km_ctx_new(l->common.device, (int)l->common.threads) : NULL;
    if (queries && !ctx) km_error_set(&err, KM_ERR_DEVICE, "%s", km_last_error());
    km_measured m = {.size = sizeof m};
    km_common common = l->common;
    km_status s = ctx ? measure(l, ctx, x, base, queries, n, &m) : KM_OK;
    if (s != KM_OK && km_cli_lost(ctx, &common)) {
        km_ctx_free(ctx);
        ctx = km_ctx_new(common.device, (int)common.threads);
        s = ctx ? measure(l, ctx, x, base, queries, n, &m) : km_last_status();
    }
    if (s != KM_OK) km_error_set(&err, s, "%s", km_last_error());
    int code = KM_EXIT_OK;
    if (err.code != KM_OK)
        code = km_cli_fail("recall: %s", err.text);
    else if (l->common.json)
        code = km_cli_print_json(report(l, path, &info, &m));
    else
        print_report(l, path, &info, &m);
    km_ctx_free(ctx);
    km_free(queries);
    km_vectors_close(base);
    km_index_close(x);
    return code;
}

int km_command_recall(int argc, char **argv) {
    recall_line l = {
        .common = KM_COMMON_DEFAULTS, .input = KM_INPUT_DEFAULTS, .look = KM_LOOK_DEFAULTS};
    const km_option options[] = {
        {"base", KM_OPTION_TEXT, "FILE", &l.base, 0, 0, "the vectors that the index was made from"},
        {"queries", KM_OPTION_TEXT, "FILE", &l.queries, 0, 0, "vectors to look for"},
        KM_LOOK_ROWS(l.look, 10000, "recall@N besides @1, @10 and @100 (-k; 10)",
                     "compare candidates again by the vectors kept with compress --rerank"),
        {"html", KM_OPTION_TEXT, "FILE", &l.html, 0, 0,
         "write a page with charts: recall against size, and against cells\nlooked at"},
        {"beside", KM_OPTION_TEXT, "FILE", &l.beside, 0, 0,
         "draw what other engines reached on data that the base is named after,\nfrom results of "
         "bench/peers/vectors.py"},
        KM_INPUT_ROWS(l.input),
        KM_OPTION_DEVICE_ROW(
            l.common, "where the exact search runs: auto, cpu, gpu, metal, cuda:N, vulkan:N"),
        KM_OPTION_THREADS_ROW(l.common),
        KM_OPTION_OUTPUT_ROWS(l.common),
        {0},
    };
    const km_spec spec = {
        .name = "recall",
        .words = "INDEX",
        .summary = "Measures an index against exact search: recall, error, latency, queries/s.",
        .details = "recall@k is the part of the k true neighbours that are among the k found, with "
                   "the 95%\ninterval that so many queries leave. Row numbers of the base must be "
                   "the ids of the\nindex, as compress gives them; rows that were deleted are not "
                   "asked for.\n",
        .options = options,
        .examples = "kermes recall v.kmx --base vectors.npy --queries q.npy\n"
                    "kermes recall v.kmx --base vectors.npy --queries q.npy -k 20 --probe 8 "
                    "--json\n"
                    "kermes recall v.kmx --base vectors.npy --queries q.npy --html recall.html\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words != 1 || !l.base || !l.queries)
        return km_cli_usage("recall takes one index, --base FILE and --queries FILE");
    if (l.beside && !l.html) return km_cli_usage("recall: --beside goes with --html");
    if ((code = km_look_check(&l.look, "recall")) != KM_EXIT_OK) return code;
    km_cli_notes(l.common.quiet);
    return run(&l, args.words[0]);
}
