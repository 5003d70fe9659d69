/* What Kermes promises about its speed on a CPU, as ratios within one run, and what came out. */
#include "backend/cpu/blas.h"
#include "cli/bench/bench.h"
#include <math.h>
#include <string.h>

#define MI (1024.0 * 1024.0)

typedef struct target_list {
    const km_bench *bench;
    km_target *targets;
    int n;
} target_list;

static km_target *add(target_list *l, double value, bool at_least, double bound,
                      const char *missing) {
    if (l->n == KM_MAX_TARGETS) return &l->targets[l->n - 1];
    km_target *t = &l->targets[l->n++];
    *t = (km_target){.value = value, .bound = bound, .at_least = at_least};
    if (isnan(value)) t->why_missing = missing;
    return t;
}

static double ratio(const km_bench *b, const char *suite, const char *op, double size,
                    const char *engine, const char *over) {
    return km_bench_rate(b, suite, op, size, engine) / km_bench_rate(b, suite, op, size, over);
}

static const char *not_run(const km_bench *b, int suite) {
    return b->suite[suite] ? "that size was not measured" : "that suite was not run";
}

static void matmul_targets(target_list *l) {
    const km_bench *b = l->bench;
    const char *missing = not_run(b, KM_SUITE_MATMUL);
    const char *no_blas =
        b->suite[KM_SUITE_MATMUL] && !km_blas_available() ? "no OpenBLAS here" : missing;
    for (int n = 512; n <= 2048; n *= 2) {
        km_target *t = add(l, ratio(b, "matmul", "matmul", n, KM_ENGINE_CPU, KM_ENGINE_BLAS), true,
                           0.95, no_blas);
        snprintf(t->name, sizeof t->name, "matmul %d, of OpenBLAS called directly", n);
        t = add(l, ratio(b, "matmul", "matmul", n, KM_ENGINE_OWN, KM_ENGINE_BLAS), true, 0.6,
                no_blas);
        snprintf(t->name, sizeof t->name, "matmul %d without BLAS, of OpenBLAS", n);
    }
    km_target *t = add(l, ratio(b, "matmul", "matmul", 1024, KM_ENGINE_CPU, KM_ENGINE_NAIVE), true,
                       60, missing);
    snprintf(t->name, sizeof t->name, "matmul 1024, times the triple loop");
}

static void memory_targets(target_list *l, int suite, double size, const char *size_name,
                           double bound, const char *const *ops, int n) {
    const km_bench *b = l->bench;
    const char *name = km_suite_names[suite];
    for (int i = 0; i < n; i++) {
        km_target *t = add(l, ratio(b, name, ops[i], size, KM_ENGINE_CPU, KM_ENGINE_COPY), true,
                           bound, not_run(b, suite));
        snprintf(t->name, sizeof t->name, "%s %s, of the copy bandwidth", ops[i], size_name);
    }
}

static void core_targets(target_list *l) {
    const km_bench *b = l->bench;
    const char *missing = not_run(b, KM_SUITE_ELEMENTWISE);
    km_target *t =
        add(l, ratio(b, KM_SUITE_PER_CORE, "exp", 16384, KM_ENGINE_CPU_ONE, KM_ENGINE_NAIVE), true,
            5, missing);
    snprintf(t->name, sizeof t->name, "exp on one core, times libm");
    t = add(l, b->exp_ulp, false, 2, missing);
    snprintf(t->name, sizeof t->name, "exp, largest error in units of the last place");
}

int km_bench_targets(const km_bench *b, km_target *targets) {
    target_list l = {b, targets, 0};
    matmul_targets(&l);
    memory_targets(&l, KM_SUITE_ELEMENTWISE, 64 * MI, "64M", 0.9,
                   (const char *const[]){"add", "mul", "relu"}, 3);
    core_targets(&l);
    memory_targets(&l, KM_SUITE_ELEMENTWISE, 32 * MI, "8192x4096", 0.5,
                   (const char *const[]){"tanh", "gelu", "sigmoid"}, 3);
    memory_targets(&l, KM_SUITE_ROWS, 32 * MI, "8192x4096", 0.5,
                   (const char *const[]){"softmax", "layer_norm"}, 2);
    km_target *t =
        add(&l, b->step.measured ? b->step.heap_allocs : NAN, false, 0, not_run(b, KM_SUITE_STEP));
    snprintf(t->name, sizeof t->name, "heap allocations in a steady training step");
    return l.n;
}

bool km_target_met(const km_target *t) {
    return !t->why_missing && (t->at_least ? t->value >= t->bound : t->value <= t->bound);
}
