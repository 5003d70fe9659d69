/* What kermes bench decode, prompt and batch measured, as text, JSON and one page. */
#include "base/cpu.h"
#include "cli/bench/infer.h"
#include "ops/op.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/json.h"
#include <math.h>
#include <time.h>

/* ---- Telling ---- */

/* What memory could do for it: a GPU's own copies, or all threads reading. */
static double bandwidth(const km_infer_run *f) {
    const km_limits *l = &f->b->limits;
    return l->device_copy > 0 ? l->device_copy : l->read;
}

static double of_limit(const km_infer_run *f, const km_infer_figures *g) {
    return g->bytes / g->best / bandwidth(f);
}

static json_t *ops_json(const km_infer_figures *g) {
    json_t *list = json_array();
    for (int i = 0; i < KM_OP_COUNT; i++) {
        const km_op_time *t = &g->op[i];
        if (!t->count) continue;
        json_array_append_new(
            list, json_pack("{s:s, s:i, s:o, s:o, s:o}", "op", km_op_name((km_op)i), "calls",
                            t->count, "us", km_json_number(1e6 * t->seconds, 4), "us_a_call",
                            km_json_number(1e6 * t->seconds / t->count, 4), "weights_gbs",
                            km_json_number(t->bytes ? t->bytes / t->seconds / 1e9 : NAN, 4)));
    }
    return list;
}

static json_t *plan_json(const km_memory_plan *p) {
    json_t *list = json_array();
    for (int i = 0; i < p->n; i++) {
        const km_memory_part *a = &p->part[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "device", a->device,
                      "first_layer", a->first, "layers", a->last - a->first, "streamed_layers",
                      a->streamed, "weights_bytes", km_json_count(a->weights), "streamed_bytes",
                      km_json_count(a->streamed_weights), "cache_bytes", km_json_count(a->cache),
                      "scratch_bytes", km_json_count(a->scratch), "free_bytes",
                      km_json_count(a->room)));
    }
    return list;
}

static json_t *job_json(const km_infer_run *f, const km_infer_figures *g) {
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "job",
        km_infer_job_names[g->job], "sequences", (json_int_t)g->sequences, "context",
        (json_int_t)g->context, "tokens", (json_int_t)g->tokens, "tokens_per_s",
        km_json_number((double)g->tokens / g->best, 5), "tokens_per_s_median",
        km_json_number((double)g->tokens / g->median, 5), "seconds", km_json_number(g->best, 5),
        "seconds_median", km_json_number(g->median, 5), "bytes_per_token",
        km_json_count(g->bytes / (double)g->tokens), "of_limit", km_json_number(of_limit(f, g), 4),
        "tflops", km_json_number(g->flops / g->best / 1e12, 4), "heap_allocs_per_step",
        km_json_number(g->heap_allocs, 4), "pool_misses_per_step",
        km_json_number(g->pool_misses, 4), "ops", ops_json(g));
}

static json_t *rate_json(const km_together_rate *r) {
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens_per_s", km_json_number(r->tokens_per_s, 5),
                     "prompt_tokens_per_s", km_json_number(r->prompt_per_s, 5),
                     "between_tokens_s_median", km_json_number(r->p50, 4), "between_tokens_s_p99",
                     km_json_number(r->p99, 4));
}

static json_t *together_json(const km_infer_run *f) {
    const km_together *t = &f->mixed;
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "job", "mixed", "sequences",
        (json_int_t)f->together_how.sequences, "context", (json_int_t)f->together_how.context,
        "prompt", (json_int_t)f->together_how.prompt, "plain", rate_json(&t->plain), "with_prompts",
        rate_json(&t->mixed), "with_schemas", rate_json(&t->schema), "prompt_alone_tokens_per_s",
        km_json_number(t->prompt_alone, 5), "decode_kept",
        km_json_number(t->mixed.tokens_per_s / t->plain.tokens_per_s, 4), "prompt_kept",
        km_json_number(t->mixed.prompt_per_s / t->prompt_alone, 4), "schema_kept",
        km_json_number(t->schema.tokens_per_s / t->plain.tokens_per_s, 4));
}

json_t *km_infer_json(const km_infer_run *f) {
    const km_limits *l = &f->b->limits;
    json_t *jobs = json_array();
    for (int i = 0; i < f->n_done; i++) json_array_append_new(jobs, job_json(f, &f->done[i]));
    if (f->together) json_array_append_new(jobs, together_json(f));
    return json_pack("{s:s, s:o, s:s, s:i, s:o, s:o, s:s, s:{s:o, s:o, s:o}, s:o, s:o, s:o}",
                     "kermes", km_version(), "machine", km_machine_json(), "device", f->m.devices,
                     "threads", f->b->threads, "model", km_json_text(f->name), "weights_bytes",
                     km_json_count(f->weights), "cache_type", km_dtype_name(f->cache), "limits",
                     "read_gbs", km_json_number(l->read / 1e9, 5), "copy_gbs",
                     km_json_number(l->copy / 1e9, 5), "device_copy_gbs",
                     km_json_number(l->device_copy > 0 ? l->device_copy / 1e9 : NAN, 5), "memory",
                     plan_json(&f->m.plan), "results", jobs, "peak_memory_bytes",
                     km_json_count(km_peak_memory()));
}

static void ops_table(const km_infer_figures *g, km_table *t) {
    static const char *const titles[] = {"op", "calls", "us a call", "us", "GB/s of weights"};
    char a[KM_NUMBER_TEXT];
    km_table_init(t, "lrrrr", titles);
    for (int i = 0; i < KM_OP_COUNT; i++) {
        const km_op_time *o = &g->op[i];
        if (!o->count) continue;
        km_table_cell(t, "%s", km_op_name((km_op)i));
        km_table_cell(t, "%d", o->count);
        km_table_cell(t, "%s", km_format_number(a, 1e6 * o->seconds / o->count));
        km_table_cell(t, "%s", km_format_number(a, 1e6 * o->seconds));
        km_table_cell(t, "%s", o->bytes ? km_format_number(a, o->bytes / o->seconds / 1e9) : "");
    }
}

static void print_job(const km_infer_run *f, const km_infer_figures *g) {
    char a[KM_NUMBER_TEXT], c[KM_NUMBER_TEXT], d[KM_NUMBER_TEXT];
    if (g->job == KM_INFER_PROMPT)
        printf("\nprompt of %lld tokens: %s tokens/s (%s), %s TFLOP/s\n", (long long)g->tokens,
               km_format_number(a, (double)g->tokens / g->best), km_format_seconds(c, g->best),
               km_format_number(d, g->flops / g->best / 1e12));
    else
        printf("\n%s, %lld sequence%s after %lld tokens: %s tokens/s (%s a step)\n"
               "  %s a token, %.0f%% of the memory's speed\n",
               km_infer_job_names[g->job], (long long)g->sequences, g->sequences > 1 ? "s" : "",
               (long long)g->context, km_format_number(a, (double)g->tokens / g->best),
               km_format_seconds(c, g->best), km_format_bytes(d, g->bytes / (double)g->tokens),
               100 * of_limit(f, g));
    km_table t;
    ops_table(g, &t);
    km_table_print(&t, stdout, 2);
    km_table_free(&t);
}

/* Batches of several sizes. */
static int count_batches(const km_infer_run *f) {
    int n = 0;
    for (int i = 0; i < f->n_done; i++) n += f->done[i].job == KM_INFER_BATCH;
    return n;
}

static void curve_table(const km_infer_run *f, km_table *t) {
    static const char *const titles[] = {"sequences", "tokens/s", "of one sequence's",
                                         "a step",    "median",   "TFLOP/s"};
    char a[KM_NUMBER_TEXT];
    double one = NAN;
    km_table_init(t, "rrrrrr", titles);
    for (int i = 0; i < f->n_done; i++) {
        const km_infer_figures *g = &f->done[i];
        if (g->job != KM_INFER_BATCH) continue;
        double rate = (double)g->tokens / g->best;
        if (g->sequences == 1) one = rate;
        km_table_cell(t, "%lld", (long long)g->sequences);
        km_table_cell(t, "%s", km_format_number(a, rate));
        if (isnan(one))
            km_table_cell(t, "%s", "");
        else
            km_table_cell(t, "%.2f", rate / one);
        km_table_cell(t, "%s", km_format_seconds(a, g->best));
        km_table_cell(t, "%s", km_format_seconds(a, g->median));
        km_table_cell(t, "%s", km_format_number(a, g->flops / g->best / 1e12));
    }
}

static void print_curve(const km_infer_run *f) {
    km_table t;
    printf("\nbatches after %lld tokens, all sequences together:\n", (long long)f->o->context);
    curve_table(f, &t);
    km_table_print(&t, stdout, 2);
    km_table_free(&t);
}

static void together_table(const km_infer_run *f, km_table *t) {
    static const char *const titles[] = {"what",       "tokens/s",
                                         "of plain",   "prompt tokens/s",
                                         "of alone",   "between tokens, median",
                                         "99th of 100"};
    static const char *const names[] = {"plain", "prompts come in", "half under a schema"};
    const km_together_rate *rate[] = {&f->mixed.plain, &f->mixed.mixed, &f->mixed.schema};
    char a[KM_NUMBER_TEXT];
    km_table_init(t, "lrrrrrr", titles);
    for (int i = 0; i < 3; i++) {
        const km_together_rate *r = rate[i];
        bool prompts = r->prompt_per_s > 0;
        km_table_cell(t, "%s", names[i]);
        km_table_cell(t, "%s", km_format_number(a, r->tokens_per_s));
        km_table_cell(t, "%.2f", r->tokens_per_s / f->mixed.plain.tokens_per_s);
        km_table_cell(t, "%s", prompts ? km_format_number(a, r->prompt_per_s) : "");
        if (prompts)
            km_table_cell(t, "%.2f", r->prompt_per_s / f->mixed.prompt_alone);
        else
            km_table_cell(t, "%s", "");
        km_table_cell(t, "%s", km_format_seconds(a, r->p50));
        km_table_cell(t, "%s", km_format_seconds(a, r->p99));
    }
}

static void together_lead(const km_infer_run *f, char *text, size_t size) {
    char a[KM_NUMBER_TEXT];
    snprintf(
        text, size,
        "%lld texts made together, each after %lld tokens; prompts of %lld tokens, one after the "
        "other: %s tokens/s alone.",
        (long long)f->together_how.sequences, (long long)f->together_how.context,
        (long long)f->together_how.prompt, km_format_number(a, f->mixed.prompt_alone));
}

static void print_together(const km_infer_run *f) {
    char text[240];
    km_table t;
    together_lead(f, text, sizeof text);
    printf("\n%s\n", text);
    together_table(f, &t);
    km_table_print(&t, stdout, 2);
    km_table_free(&t);
}

void km_infer_print(const km_infer_run *f) {
    char a[KM_NUMBER_TEXT], c[KM_NUMBER_TEXT];
    bool curve = count_batches(f) > 1, ops = false;
    if (f->n_done == 0) printf("%s\n", f->name);
    if (f->together) print_together(f);
    if (f->n_done == 0) return;
    if (f->together) printf("\n");
    printf("%s on %s: weights %s, cache in %s, memory %s GB/s (%s)\n", f->name, f->m.devices,
           km_format_bytes(a, f->weights), km_dtype_name(f->cache),
           km_format_number(c, bandwidth(f) / 1e9),
           f->b->limits.device_copy > 0 ? "the GPU's own copies" : "all threads reading");
    for (int i = 0; i < f->n_done; i++) {
        if (curve && f->done[i].job == KM_INFER_BATCH) continue;
        print_job(f, &f->done[i]);
        ops = true;
    }
    if (curve) print_curve(f);
    if (ops) printf("\nOps are timed one by one, so that they add up to more than a step.\n");
}

/* ---- The page ---- */

static void add_curves(const km_infer_run *f, km_text *page) {
    double x[KM_MAX_SIZES], rate[KM_MAX_SIZES], ms[KM_MAX_SIZES], median[KM_MAX_SIZES];
    char text[120];
    int n = 0;
    for (int i = 0; i < f->n_done; i++) {
        const km_infer_figures *g = &f->done[i];
        if (g->job != KM_INFER_BATCH) continue;
        x[n] = (double)g->sequences;
        rate[n] = (double)g->tokens / g->best;
        median[n] = 1e3 * g->median;
        ms[n++] = 1e3 * g->best;
    }
    if (n == 0) return;
    snprintf(text, sizeof text, "Sequences that go on together, each after %lld tokens.",
             (long long)f->o->context);
    km_html_section(page, "Batches", text);
    const km_series rates[] = {{.name = "all sequences together", .x = x, .y = rate, .n = n}};
    const km_series steps[] = {{.name = "best", .x = x, .y = ms, .n = n},
                               {.name = "median", .x = x, .y = median, .n = n}};
    const km_chart charts[] = {{.title = "Tokens a second",
                                .x = {.label = "sequences", .scale = KM_SCALE_LOG2},
                                .y = {.label = "tokens/s", .from_zero = true},
                                .series = rates,
                                .n_series = 1},
                               {.title = "Time of a step",
                                .x = {.label = "sequences", .scale = KM_SCALE_LOG2},
                                .y = {.label = "ms", .from_zero = true},
                                .series = steps,
                                .n_series = 2}};
    if (n > 1) { /* a point is not a curve */
        km_html_charts_begin(page);
        for (int i = 0; i < 2; i++) km_chart_html(&charts[i], page);
        km_html_charts_end(page);
    }
    km_table t;
    curve_table(f, &t);
    km_table_html(&t, page);
    km_table_free(&t);
}

static void add_together(const km_infer_run *f, km_text *page) {
    char text[240];
    km_table t;
    if (!f->together) return;
    together_lead(f, text, sizeof text);
    km_html_section(page, "A batch beside other work", text);
    together_table(f, &t);
    km_table_html(&t, page);
    km_table_free(&t);
}

static void add_ops(const km_infer_run *f, const km_infer_figures *g, km_text *page) {
    char heading[96], text[160], a[KM_NUMBER_TEXT], c[KM_NUMBER_TEXT];
    if (g->job == KM_INFER_BATCH) return;
    snprintf(heading, sizeof heading,
             g->job == KM_INFER_PROMPT ? "A prompt of %lld tokens"
                                       : "One sequence after %lld tokens",
             (long long)(g->job == KM_INFER_PROMPT ? g->tokens : g->context));
    int used =
        snprintf(text, sizeof text, "%s tokens/s, %s",
                 km_format_number(a, (double)g->tokens / g->best), km_format_seconds(c, g->best));
    if (g->job == KM_INFER_DECODE && used > 0)
        snprintf(text + used, sizeof text - (size_t)used, " a token: %.0f%% of the memory's speed",
                 100 * of_limit(f, g));
    km_html_section(page, heading, text);
    km_table t;
    ops_table(g, &t);
    km_table_html(&t, page);
    km_table_free(&t);
}

void km_infer_html(const km_infer_run *f, km_text *page) {
    char lead[600], footer[160], date[40], a[KM_NUMBER_TEXT];
    time_t now = time(NULL);
    struct tm tm;
    snprintf(lead, sizeof lead, "%s on %s (%s, %d thread%s): weights %s, cache in %s.", f->name,
             f->m.devices, km_cpu_info()->name, f->b->threads, f->b->threads == 1 ? "" : "s",
             km_format_bytes(a, f->weights), km_dtype_name(f->cache));
    km_html_begin(page, "Kermes bench: a language model", lead);
    add_curves(f, page);
    add_together(f, page);
    for (int i = 0; i < f->n_done; i++) add_ops(f, &f->done[i], page);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime_r(&now, &tm));
    snprintf(footer, sizeof footer,
             "Kermes %s, %s. Figures are from the best round after a warm-up.", km_version(), date);
    km_html_end(page, footer);
}
