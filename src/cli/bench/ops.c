/* The suites elementwise, rows and reduce: one table of ops, each timed at several sizes against
 * plain C and against memory itself, moving the same bytes in the same rounds. */
#include "base/alloc.h"
#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/naive.h"
#include <math.h>
#include <string.h>

#define EVERY_OP_BYTES ((double)(64 << 20)) /* from here the limit is measured beside each op */
#define CORE_FLOATS 16384                   /* in and out stay in a core's own caches */

typedef struct inputs {
    int64_t rows, cols;
    km_tensor *x, *y, *w, *b, *targets; /* x (-4, 4), y (0.5, 4): (rows, cols); w, b (cols) */
} inputs;

typedef km_tensor *(*call_fn)(km_ctx *ctx, const inputs *in);

#define UNARY(name, operand)                                                                       \
    static km_tensor *call_##name(km_ctx *ctx, const inputs *in) {                                 \
        return km_##name(ctx, in->operand);                                                        \
    }
#define BINARY(name)                                                                               \
    static km_tensor *call_##name(km_ctx *ctx, const inputs *in) {                                 \
        return km_##name(ctx, in->x, in->y);                                                       \
    }
#define REDUCTION(name, call)                                                                      \
    static km_tensor *call_##name(km_ctx *ctx, const inputs *in) { return call; }

BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
REDUCTION(pow, km_pow(ctx, in->y, in->x)) /* of positive numbers */
UNARY(relu, x)
UNARY(exp, x)
UNARY(log, y)
UNARY(sqrt, y)
UNARY(tanh, x)
UNARY(sigmoid, x)
UNARY(gelu, x)
UNARY(silu, x)
REDUCTION(softmax, km_softmax(ctx, in->x, 1))
REDUCTION(log_softmax, km_log_softmax(ctx, in->x, 1))
REDUCTION(layer_norm, km_layer_norm(ctx, in->x, in->w, in->b, 1e-5))
REDUCTION(rms_norm, km_rms_norm(ctx, in->x, in->w, 1e-5))
REDUCTION(cross_entropy, km_cross_entropy(ctx, in->x, in->targets, -1, KM_MEAN))
REDUCTION(sum, km_sum(ctx, in->x, NULL, 0, false))
REDUCTION(sum_rows, km_sum(ctx, in->x, (const int[]){1}, 1, false))
REDUCTION(sum_columns, km_sum(ctx, in->x, (const int[]){0}, 1, false))
REDUCTION(max, km_max(ctx, in->x, NULL, 0, false))
REDUCTION(argmax, km_argmax(ctx, in->x, 1, false))
REDUCTION(var, km_var(ctx, in->x, NULL, 0, false, 1))

typedef struct op_row {
    int suite;
    const char *name;
    call_fn call;
    km_naive_fn naive;
    int reads, writes; /* elements moved for each element of x: the least it can do */
    bool quick;        /* part of a quick run */
} op_row;

#define ROW(suite, name, reads, writes, quick)                                                     \
    { KM_SUITE_##suite, #name, call_##name, km_naive_##name, reads, writes, quick }
static const op_row ops[] = {
    ROW(ELEMENTWISE, add, 2, 1, true),     ROW(ELEMENTWISE, sub, 2, 1, true),
    ROW(ELEMENTWISE, mul, 2, 1, true),     ROW(ELEMENTWISE, div, 2, 1, false),
    ROW(ELEMENTWISE, pow, 2, 1, true),     ROW(ELEMENTWISE, relu, 1, 1, true),
    ROW(ELEMENTWISE, exp, 1, 1, true),     ROW(ELEMENTWISE, log, 1, 1, true),
    ROW(ELEMENTWISE, sqrt, 1, 1, false),   ROW(ELEMENTWISE, tanh, 1, 1, true),
    ROW(ELEMENTWISE, sigmoid, 1, 1, true), ROW(ELEMENTWISE, gelu, 1, 1, true),
    ROW(ELEMENTWISE, silu, 1, 1, false),   ROW(ROWS, softmax, 1, 1, true),
    ROW(ROWS, log_softmax, 1, 1, false),   ROW(ROWS, layer_norm, 1, 1, true),
    ROW(ROWS, rms_norm, 1, 1, true),       ROW(ROWS, cross_entropy, 1, 0, true),
    ROW(REDUCE, sum, 1, 0, true),          ROW(REDUCE, sum_rows, 1, 0, true),
    ROW(REDUCE, sum_columns, 1, 0, true),  ROW(REDUCE, max, 1, 0, true),
    ROW(REDUCE, argmax, 1, 0, true),       ROW(REDUCE, var, 1, 0, true),
};
enum { N_OPS = sizeof ops / sizeof *ops };

/* Elements; rows: columns, under as many rows as the table below says. */
#define K 1024
#define M (1024 * 1024)
static const km_sizes quick_sizes[KM_SUITES] = {
    [KM_SUITE_ELEMENTWISE] = {{64 * K, 32 * M, 64 * M}, 3},
    [KM_SUITE_ROWS] = {{8192 * 4096}, 1},
    [KM_SUITE_REDUCE] = {{64 * K, 64 * M}, 2},
};
static const km_sizes full_sizes[KM_SUITES] = {
    [KM_SUITE_ELEMENTWISE] = {{1 * K, 4 * K, 16 * K, 64 * K, 256 * K, 1 * M, 4 * M, 16 * M, 32 * M,
                               64 * M},
                              10},
    [KM_SUITE_ROWS] = {{64 * K, 1 * M, 8 * M, 8192 * 4096}, 4},
    [KM_SUITE_REDUCE] = {{1 * K, 64 * K, 1 * M, 16 * M, 64 * M}, 5},
};

static const km_sizes *suite_sizes(const km_bench *b, int suite) {
    return km_bench_sizes(b, &quick_sizes[suite], &full_sizes[suite]);
}

static bool wanted(const km_bench *b, const op_row *op, int suite) {
    return op->suite == suite && (op->quick || !b->quick);
}

int km_bench_ops_count(const km_bench *b, int suite) {
    int n = 0;
    for (int i = 0; i < N_OPS; i++) n += wanted(b, &ops[i], suite);
    return n * suite_sizes(b, suite)->n + (suite == KM_SUITE_ELEMENTWISE ? 4 : 0);
}

/* ---- Inputs ---- */

/* The columns asked for; else 4096 where there are many elements, as in a vocabulary or a wide layer. */
static int64_t columns_of(const km_bench *b, int suite, int64_t n) {
    if (b->columns && suite != KM_SUITE_ELEMENTWISE) return b->columns < n ? b->columns : n;
    return n % 4096 == 0 && n >= 8 * M ? 4096 : n % 1024 == 0 ? 1024 : n;
}

static bool make_inputs(km_ctx *ctx, int64_t n, int64_t cols, inputs *in) {
    *in = (inputs){.rows = n / cols, .cols = cols};
    km_shape all = KM_SHAPE(in->rows, cols);
    in->x = km_keep(ctx, km_uniform(ctx, KM_F32, all, -4, 4));
    in->y = km_keep(ctx, km_uniform(ctx, KM_F32, all, 0.5, 4));
    in->w = km_keep(ctx, km_uniform(ctx, KM_F32, KM_SHAPE(cols), 0.5, 1.5));
    in->b = km_keep(ctx, km_uniform(ctx, KM_F32, KM_SHAPE(cols), -1, 1));
    km_tensor *ids = km_uniform(ctx, KM_F32, KM_SHAPE(in->rows), 0, (double)cols);
    ids = km_clamp(ctx, ids, 0, (double)(cols - 1));
    in->targets = km_keep(ctx, km_cast(ctx, ids, KM_I32));
    km_step_end(ctx);
    return km_ctx_status(ctx) == KM_OK;
}

static void free_inputs(km_ctx *ctx, inputs *in) {
    km_release(in->x);
    km_release(in->y);
    km_release(in->w);
    km_release(in->b);
    km_release(in->targets);
    km_trim(ctx);
}

/* ---- Runners ---- */

typedef struct op_run {
    const op_row *op;
    km_ctx *ctx;
    const inputs *in;
} op_run;

static double run_kermes(void *arg, int64_t times) {
    const op_run *r = arg;
    double start = km_now();
    for (int64_t i = 0; i < times; i++) {
        km_scope_begin(r->ctx);
        r->op->call(r->ctx, r->in);
        km_scope_end(r->ctx, NULL);
        if (i % 64 == 63) km_step_end(r->ctx);
    }
    km_sync(r->ctx);
    double seconds = km_now() - start;
    km_step_end(r->ctx);
    return seconds;
}

typedef struct naive_run {
    km_naive_fn fn;
    km_naive_args args;
} naive_run;

static double run_naive(void *arg, int64_t times) {
    naive_run *r = arg;
    double start = km_now();
    for (int64_t i = 0; i < times; i++) {
        r->fn(&r->args);
        __asm__ volatile("" : : "r"(r->args.out) : "memory");
    }
    return km_now() - start;
}

static km_naive_args host_args(const inputs *in, float *out) {
    return (km_naive_args){in->rows,
                           in->cols,
                           km_tensor_data(in->x),
                           km_tensor_data(in->y),
                           km_tensor_data(in->w),
                           km_tensor_data(in->b),
                           km_tensor_data(in->targets),
                           out};
}

static km_sample describe(const op_row *op, const inputs *in) {
    double n = (double)in->rows * (double)in->cols;
    km_sample s = {.suite = km_suite_names[op->suite],
                   .op = op->name,
                   .size = n,
                   .work = (double)(op->reads + op->writes) * n * sizeof(float),
                   .limited_by = op->writes ? KM_ENGINE_COPY : KM_ENGINE_READ};
    if (op->suite == KM_SUITE_ELEMENTWISE)
        km_format_binary(s.shape, n);
    else
        snprintf(s.shape, sizeof s.shape, "%lldx%lld", (long long)in->rows, (long long)in->cols);
    return s;
}

static bool too_slow(const km_bench *b, int64_t n) { return km_bench_is_ref(b) && n > 4 * M; }

static bool measure(km_bench *b, const op_row *op, const inputs *in, const inputs *there,
                    float *out) {
    km_sample what = describe(op, in);
    int64_t n = in->rows * in->cols;
    naive_run naive = {op->naive, host_args(in, out)};
    op_run cpu = {op, b->cpu, in}, device = {op, b->device, there};
    km_stream stream = {b->pool, out, naive.args.x, n, n >= 256 * K ? b->threads : 1};
    km_runner runners[4];
    int count = 0;
    runners[count++] =
        (km_runner){.engine = KM_ENGINE_NAIVE,
                    .run = run_naive,
                    .arg = &naive,
                    .skip = b->quick && n > 32 * M ? "left out of a quick run" : NULL};
    runners[count++] =
        (km_runner){.engine = KM_ENGINE_CPU, .run = run_kermes, .arg = &cpu, .ctx = b->cpu};
    if (b->device) {
        bool slow = too_slow(b, n);
        runners[count++] =
            (km_runner){.engine = km_bench_engine(b),
                        .run = run_kermes,
                        .arg = &device,
                        .ctx = b->device,
                        .skip = slow ? "the reference is measured up to 4M only" : NULL};
    }
    /* Small sizes live in caches, where one figure serves all ops; beyond, each op has its own. */
    if (what.work >= EVERY_OP_BYTES || isnan(km_sample_limit(b, &what)))
        runners[count++] =
            (km_runner){.engine = what.limited_by,
                        .run = op->writes ? km_run_copy : km_run_read,
                        .arg = &stream,
                        .work = (op->writes ? 2.0 : 1.0) * (double)n * sizeof(float)};
    return km_bench_measure(b, &what, runners, count);
}

/* Transcendental functions by one core out of its own cache, against libm. */
static bool measure_core(km_bench *b) {
    static const char *const names[] = {"exp", "tanh", "sigmoid", "gelu"};
    inputs in;
    size_t bytes = CORE_FLOATS * sizeof(float);
    float *out = km_alloc_aligned(bytes);
    bool ok = make_inputs(b->cpu_one, CORE_FLOATS, 1024, &in) && out;
    if (!ok) km_no_memory(&b->error);
    for (int i = 0; i < N_OPS && ok; i++)
        for (int k = 0; k < 4 && ok; k++) {
            if (strcmp(ops[i].name, names[k]) != 0) continue;
            naive_run naive = {ops[i].naive, host_args(&in, out)};
            op_run one = {&ops[i], b->cpu_one, &in};
            km_runner runners[] = {
                {.engine = KM_ENGINE_NAIVE, .run = run_naive, .arg = &naive},
                {.engine = KM_ENGINE_CPU_ONE, .run = run_kermes, .arg = &one, .ctx = b->cpu_one},
            };
            km_sample what = describe(&ops[i], &in);
            what.suite = KM_SUITE_PER_CORE;
            ok = km_bench_measure(b, &what, runners, 2);
        }
    free_inputs(b->cpu_one, &in);
    if (out) km_free_aligned(out, bytes);
    return ok;
}

/* The largest error of exp over the range where its result is a normal number. */
static double exp_error(km_ctx *ctx) {
    enum { N = 1 << 20 };
    km_tensor *x = km_arange(ctx, KM_F32, N, -87.3, 175.9 / N), *y = km_exp(ctx, x);
    double worst = NAN;
    if (km_ctx_status(ctx) == KM_OK) {
        const float *px = km_tensor_data(x), *py = km_tensor_data(y);
        worst = 0;
        for (int i = 0; i < N; i++) {
            double want = exp((double)px[i]);
            int e;
            frexp(want, &e);
            double ulp = fabs((double)py[i] - want) / ldexp(1, e - 24);
            if (!(ulp <= worst)) worst = ulp;
        }
    }
    km_step_end(ctx);
    return worst;
}

static bool skip_size(km_bench *b, int suite, int64_t n) {
    const inputs none = {.rows = 1, .cols = n};
    km_runner runner = {.engine = KM_ENGINE_CPU, .skip = "does not fit in free memory"};
    bool ok = true;
    for (int i = 0; i < N_OPS && ok; i++) {
        if (!wanted(b, &ops[i], suite)) continue;
        km_sample what = describe(&ops[i], &none);
        ok = km_bench_measure(b, &what, &runner, 1);
    }
    return ok;
}

static bool measure_size(km_bench *b, int suite, int64_t n) {
    int64_t cols = columns_of(b, suite, n);
    n = n / cols * cols; /* whole rows */
    size_t bytes = (size_t)n * sizeof(float);
    if (!km_bench_fits(4.5 * (double)bytes)) return skip_size(b, suite, n);
    float *out = km_alloc_aligned(bytes);
    inputs in = {0}, there = {0};
    bool ok = out != NULL;
    if (!ok) km_no_memory(&b->error);
    if (ok) memset(out, 0, bytes);
    km_ctx *failed = NULL;
    if (ok && !make_inputs(b->cpu, n, cols, &in)) failed = b->cpu;
    bool device = b->device && !too_slow(b, n);
    if (ok && !failed && device && !make_inputs(b->device, n, cols, &there)) failed = b->device;
    if (failed) {
        km_error_set(&b->error, km_ctx_status(failed), "%s", km_ctx_error(failed));
        ok = false;
    }
    for (int i = 0; i < N_OPS && ok; i++)
        if (wanted(b, &ops[i], suite)) ok = measure(b, &ops[i], &in, &there, out);
    free_inputs(b->cpu, &in);
    if (b->device) free_inputs(b->device, &there);
    if (out) km_free_aligned(out, bytes);
    return ok;
}

bool km_bench_ops(km_bench *b, int suite) {
    const km_sizes *sizes = suite_sizes(b, suite);
    for (int i = 0; i < sizes->n; i++)
        if (!measure_size(b, suite, sizes->value[i])) return false;
    if (suite != KM_SUITE_ELEMENTWISE) return true;
    b->exp_ulp = exp_error(b->cpu);
    return measure_core(b);
}
