/* Timing: runners in turns, warm-up, best round and quartiles; and the collection of samples. */
#include "backend/backend.h"
#include "base/alloc.h"
#include "base/array.h"
#include "cli/bench/bench.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MAX_RUNNERS 8
#define MAX_ROUNDS 100

typedef struct timing {
    double seconds[MAX_ROUNDS]; /* of one run */
    int rounds;
    int64_t times;
    double spent;
} timing;

const char *km_bench_engine(const km_bench *b) {
    return b->device ? km_ctx_device(b->device) : KM_ENGINE_CPU;
}

const km_sizes *km_bench_sizes(const km_bench *b, const km_sizes *quick, const km_sizes *full) {
    return b->sizes.n ? &b->sizes : b->quick ? quick : full;
}

static bool engine_failed(km_bench *b, const km_sample *what, const km_runner *r) {
    if (!r->ctx || km_ctx_status(r->ctx) == KM_OK) return false;
    km_error_set(&b->error, km_ctx_status(r->ctx), "%s %s on %s: %s", what->op, what->shape,
                 r->engine, km_ctx_error(r->ctx));
    return true;
}

int km_ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value a part p of the way through sorted ones, between two neighbours where it must be. */
static double quantile(const double *sorted, int n, double p) {
    double at = p * (n - 1);
    int below = (int)at, above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

km_spread km_spread_of(double *seconds, int n) {
    if (n == 0) return (km_spread){NAN, NAN, NAN, NAN, NAN};
    qsort(seconds, (size_t)n, sizeof *seconds, km_ascending);
    return (km_spread){seconds[0], quantile(seconds, n, 0.25), quantile(seconds, n, 0.5),
                       quantile(seconds, n, 0.75), seconds[n - 1]};
}

/* Runs to warm up, and finds how many runs make a round that a clock can see. A first run beyond
 * the whole budget counts as the measurement where there is nothing to warm up. */
static void warm_up(const km_bench *b, km_runner *r, timing *t) {
    double round = b->budget / 8 < 0.01 ? b->budget / 8 : 0.01;
    t->times = 1;
    for (;;) {
        double s = r->run(r->arg, t->times);
        if (!r->ctx && t->times == 1 && s >= b->budget) {
            t->seconds[t->rounds++] = s;
            t->spent = s;
        }
        if (s >= round / 2) return;
        double more = s > 0 ? round / s : 10;
        t->times = (int64_t)((double)t->times * (more < 10 ? more : 10)) + 1;
    }
}

static bool add_sample(km_bench *b, const km_sample *s) {
    if (!km_array_reserve(&b->samples, &b->cap_samples, b->n_samples + 1)) {
        km_no_memory(&b->error);
        return false;
    }
    b->samples[b->n_samples++] = *s;
    return true;
}

bool km_bench_measure(km_bench *b, const km_sample *what, km_runner *runners, int n) {
    static timing timings[MAX_RUNNERS];
    char note[64];
    snprintf(note, sizeof note, "%s %s", what->op, what->shape);
    km_progress_step(&b->progress, b->done++, note);
    if (n > MAX_RUNNERS) n = MAX_RUNNERS;
    for (int i = 0; i < n; i++) {
        timings[i].rounds = 0;
        timings[i].spent = 0;
        if (runners[i].skip) continue;
        warm_up(b, &runners[i], &timings[i]);
        if (engine_failed(b, what, &runners[i])) return false;
    }
    int most = (int)(b->repeat < MAX_ROUNDS ? b->repeat : MAX_ROUNDS);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < n; i++) {
            timing *t = &timings[i];
            if (runners[i].skip || t->rounds >= most || t->spent >= b->budget) continue;
            double s = runners[i].run(runners[i].arg, t->times);
            if (engine_failed(b, what, &runners[i])) return false;
            t->seconds[t->rounds++] = s / (double)t->times;
            t->spent += s;
            more = true;
        }
    }
    for (int i = 0; i < n; i++) {
        timing *t = &timings[i];
        km_sample s = *what;
        s.engine = runners[i].engine;
        s.skipped = runners[i].skip;
        if (runners[i].work > 0) s.work = runners[i].work;
        s.rounds = t->rounds;
        s.runs_per_round = s.skipped ? 0 : t->times;
        if (runners[i].part) snprintf(s.part, sizeof s.part, "%s", runners[i].part);
        s.seconds = km_spread_of(t->seconds, t->rounds);
        if (!add_sample(b, &s)) return false;
    }
    return true;
}

const km_sample *km_bench_find(const km_bench *b, const char *suite, const char *op, double size,
                               const char *engine) {
    for (int i = 0; i < b->n_samples; i++) {
        const km_sample *s = &b->samples[i];
        if (s->size == size && strcmp(s->engine, engine) == 0 && strcmp(s->op, op) == 0 &&
            strcmp(s->suite, suite) == 0)
            return s;
    }
    return NULL;
}

double km_sample_rate(const km_sample *s) {
    return s && !s->skipped ? s->work / s->seconds.best : NAN;
}

double km_bench_rate(const km_bench *b, const char *suite, const char *op, double size,
                     const char *engine) {
    return km_sample_rate(km_bench_find(b, suite, op, size, engine));
}

bool km_bench_fits(double bytes) { return !(bytes > 0.8 * km_host_memory_get().available); }

bool km_bench_is_ref(const km_bench *b) {
    return b->device && strcmp(km_ctx_device(b->device), "ref") == 0;
}

double km_peak_memory(void) {
    struct rusage use;
    return getrusage(RUSAGE_SELF, &use) == 0 ? 1024.0 * (double)use.ru_maxrss : NAN;
}
