/* The results of a benchmark as JSON; docs/cli.md describes it. */
#include "cli/bench/bench.h"
#include "report/json.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DIGITS 5

static int suite_index(const char *name) {
    for (int i = 0; i < KM_SUITES; i++)
        if (strcmp(km_suite_names[i], name) == 0) return i;
    return KM_SUITE_ELEMENTWISE; /* per-core is part of it */
}

/* NAME, NAME_q1, NAME_median, NAME_q3 and NAME_max of the rounds' seconds times `scale`. */
static void put_seconds(json_t *v, const char *name, const km_spread *s, double scale) {
    static const char *const suffix[] = {"", "_q1", "_median", "_q3", "_max"};
    const double values[] = {s->best, s->quarter, s->median, s->three_quarters, s->worst};
    for (int i = 0; i < 5; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s%s", name, suffix[i]);
        json_object_set_new(v, key, km_json_number(scale * values[i], DIGITS));
    }
}

static json_t *sample_json(const km_bench *b, const km_sample *s) {
    double rate = km_sample_rate(s), limit = km_sample_limit(b, s);
    double naive = km_bench_rate(b, s->suite, s->op, s->size, KM_ENGINE_NAIVE);
    json_t *v = json_pack("{s:s, s:s, s:s, s:s, s:o, s:s}", "suite", s->suite, "op", s->op,
                          "engine", s->engine, "shape", s->shape, "size", km_json_count(s->size),
                          "unit", km_bench_unit(suite_index(s->suite)));
    if (!v) return NULL;
    if (s->skipped) {
        json_object_set_new(v, "skipped", km_json_text(s->skipped));
        return v;
    }
    json_object_set_new(v, "rate", km_json_number(rate / 1e9, DIGITS));
    json_object_set_new(v, "rate_median",
                        km_json_number(s->work / s->seconds.median / 1e9, DIGITS));
    put_seconds(v, "seconds", &s->seconds, 1);
    if (s->part[0]) json_object_set_new(v, "part", km_json_text(s->part));
    json_object_set_new(v, "rounds", json_integer(s->rounds));
    json_object_set_new(v, "runs_per_round", json_integer(s->runs_per_round));
    if (isfinite(limit)) {
        json_object_set_new(v, "limit", km_json_number(limit / 1e9, DIGITS));
        json_object_set_new(v, "of_limit", km_json_number(rate / limit, DIGITS));
    }
    if (isfinite(naive)) json_object_set_new(v, "speedup", km_json_number(rate / naive, DIGITS));
    return v;
}

static json_t *step_json(const km_bench *b) {
    const km_step_figures *f = &b->step;
    if (!f->measured) return json_null();
    const km_net_size *m = &f->model;
    double tokens = (double)m->batch * m->tokens;
    json_t *v = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "device", km_bench_engine(b), "layers", m->layers, "width", m->width, "heads", m->heads,
        "vocabulary", m->vocabulary, "batch", m->batch, "tokens", m->tokens, "parameters",
        km_json_count(f->parameters), "steps", f->steps, "tokens_per_second",
        km_json_number(tokens / f->seconds.best, DIGITS), "gflops",
        km_json_number(f->flops / f->seconds.best / 1e9, DIGITS), "heap_allocs_per_step",
        km_json_number(f->heap_allocs, DIGITS), "pool_misses_per_step",
        km_json_number(f->pool_misses, DIGITS), "peak_tensor_bytes", km_json_count(f->peak_bytes),
        "first_loss", km_json_number(f->first_loss, DIGITS), "last_loss",
        km_json_number(f->last_loss, DIGITS));
    if (v) put_seconds(v, "ms", &f->seconds, 1e3);
    return v;
}

/* A limit that was not measured is null. */
static json_t *limit_json(double v) {
    return v > 0 ? km_json_number(v / 1e9, DIGITS) : json_null();
}

static json_t *or_null(json_t *v) { return v ? json_incref(v) : json_null(); }

static json_t *targets_json(const km_bench *b) {
    km_target targets[KM_MAX_TARGETS];
    int n = km_bench_targets(b, targets);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        const km_target *t = &targets[i];
        json_t *v = json_pack("{s:s, s:o, s:s, s:o}", "name", t->name, "value",
                              km_json_number(t->value, DIGITS), "relation",
                              t->at_least ? "at least" : "at most", "target",
                              km_json_number(t->bound, DIGITS));
        if (!v) continue;
        json_object_set_new(v, "met",
                            t->why_missing ? json_null() : json_boolean(km_target_met(t)));
        if (t->why_missing) json_object_set_new(v, "why", km_json_text(t->why_missing));
        json_array_append_new(list, v);
    }
    return list;
}

json_t *km_bench_json(const km_bench *b) {
    json_t *results = json_array();
    for (int i = 0; i < b->n_samples; i++)
        json_array_append_new(results, sample_json(b, &b->samples[i]));
    return json_pack(
        "{s:s, s:o, s:s, s:i, s:b, s:s, s:{s:o, s:o, s:o, s:o}, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "kermes", km_version(), "machine", km_machine_json(), "device", km_bench_engine(b),
        "threads", b->threads, "quick", b->quick, "timing",
        "after a warm-up, engines in turns; rate and seconds are of the best round, q1, median and q3 "
        "the quartiles of all, max the slowest",
        "limits", "fma_gflops", limit_json(b->limits.fma), "copy_gbs", limit_json(b->limits.copy),
        "read_gbs", limit_json(b->limits.read), "device_copy_gbs",
        limit_json(b->limits.device_copy), "results", results, "exp_max_ulp",
        km_json_number(b->exp_ulp, DIGITS), "step", step_json(b), "memory", or_null(b->memory),
        "pool", or_null(b->pool_figures), "scaling", or_null(b->scaling), "targets",
        targets_json(b), "peak_memory_bytes", km_json_count(km_peak_memory()));
}
