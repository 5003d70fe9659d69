/* Causal attention, forward and backward, over the length of the sequence. */
#include "base/alloc.h"
#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/naive.h"
#include <string.h>

enum { HEADS = 6, HEAD_SIZE = 64 };

static const km_sizes quick_sizes = {{256, 1024}, 2};
static const km_sizes full_sizes = {{128, 256, 512, 1024, 2048}, 5};

typedef struct attention {
    int64_t t;
    km_ctx *ctx;
    km_tensor *q, *k, *v; /* (1, HEADS, t, HEAD_SIZE), kept */
    float *out, *scores;  /* for plain C */
} attention;

int km_bench_attention_count(const km_bench *b) {
    return 2 * km_bench_sizes(b, &quick_sizes, &full_sizes)->n;
}

static double run_naive(void *arg, int64_t times) {
    const attention *a = arg;
    const float *q = km_tensor_data(a->q), *k = km_tensor_data(a->k), *v = km_tensor_data(a->v);
    double start = km_now();
    for (int64_t i = 0; i < times; i++)
        km_naive_attention(HEADS, a->t, HEAD_SIZE, q, k, v, a->out, a->scores);
    return km_now() - start;
}

static double run_forward(void *arg, int64_t times) {
    const attention *a = arg;
    km_no_grad_begin(a->ctx);
    double start = km_now();
    for (int64_t i = 0; i < times; i++) {
        km_scope_begin(a->ctx);
        km_attention(a->ctx, a->q, a->k, a->v, true, 0);
        km_scope_end(a->ctx, NULL);
    }
    km_sync(a->ctx);
    double seconds = km_now() - start;
    km_no_grad_end(a->ctx);
    km_step_end(a->ctx);
    return seconds;
}

/* The backward pass alone; the forward pass that it needs is not timed. */
static double run_backward(void *arg, int64_t times) {
    const attention *a = arg;
    km_tensor *const inputs[] = {a->q, a->k, a->v};
    double seconds = 0;
    for (int64_t i = 0; i < times; i++) {
        km_tensor *loss =
            km_sum(a->ctx, km_attention(a->ctx, a->q, a->k, a->v, true, 0), NULL, 0, false);
        km_sync(a->ctx);
        double start = km_now();
        km_backward(a->ctx, loss);
        km_sync(a->ctx);
        seconds += km_now() - start;
        km_zero_grad(a->ctx, inputs, 3);
        km_step_end(a->ctx);
    }
    return seconds;
}

static km_tensor *random_heads(km_ctx *ctx, int64_t t) {
    km_tensor *x = km_uniform(ctx, KM_F32, KM_SHAPE(1, HEADS, t, HEAD_SIZE), -1, 1);
    x = km_keep(ctx, x);
    km_require_grad(ctx, x, true);
    return x;
}

static attention make(km_ctx *ctx, int64_t t) {
    attention a = {.t = t, .ctx = ctx};
    a.q = random_heads(ctx, t);
    a.k = random_heads(ctx, t);
    a.v = random_heads(ctx, t);
    km_step_end(ctx);
    return a;
}

static void destroy(attention *a) {
    km_release(a->q);
    km_release(a->k);
    km_release(a->v);
    km_trim(a->ctx);
}

static bool measure(km_bench *b, attention *cpu, attention *device) {
    double t = (double)cpu->t;
    bool slow = km_bench_is_ref(b) && cpu->t > 512;
    const char *skip = slow ? "the reference is measured up to 512 only" : NULL;
    km_runner forward[] = {
        {.engine = KM_ENGINE_NAIVE, .run = run_naive, .arg = cpu},
        {.engine = KM_ENGINE_CPU, .run = run_forward, .arg = cpu, .ctx = b->cpu},
        {.engine = km_bench_engine(b),
         .run = run_forward,
         .arg = device,
         .ctx = b->device,
         .skip = skip},
    };
    km_runner backward[] = {
        {.engine = KM_ENGINE_CPU, .run = run_backward, .arg = cpu, .ctx = b->cpu},
        {.engine = km_bench_engine(b),
         .run = run_backward,
         .arg = device,
         .ctx = b->device,
         .skip = skip},
    };
    /* Two products forward and five backward, each over the lower half of the (t, t) square. */
    km_sample what = {.suite = "attention",
                      .op = "forward",
                      .size = t,
                      .work = 2 * HEADS * t * t * HEAD_SIZE,
                      .limited_by = KM_ENGINE_FMA};
    snprintf(what.shape, sizeof what.shape, "B1 H%d T%lld D%d", HEADS, (long long)cpu->t,
             HEAD_SIZE);
    if (!km_bench_measure(b, &what, forward, b->device ? 3 : 2)) return false;
    what.op = "backward";
    what.work *= 2.5;
    return km_bench_measure(b, &what, backward, b->device ? 2 : 1);
}

bool km_bench_attention(km_bench *b) {
    const km_sizes *sizes = km_bench_sizes(b, &quick_sizes, &full_sizes);
    for (int i = 0; i < sizes->n; i++) {
        int64_t t = sizes->value[i];
        attention cpu = make(b->cpu, t), device = {0};
        if (b->device) device = make(b->device, t);
        cpu.out = km_alloc((size_t)(HEADS * t * HEAD_SIZE) * sizeof(float));
        cpu.scores = km_alloc((size_t)t * sizeof(float));
        bool ok = cpu.out && cpu.scores && km_ctx_status(b->cpu) == KM_OK;
        if (!ok)
            km_error_set(&b->error, KM_ERR_MEMORY, "attention: %s",
                         km_ctx_status(b->cpu) ? km_ctx_error(b->cpu) : "out of memory");
        ok = ok && measure(b, &cpu, &device);
        km_free(cpu.out);
        km_free(cpu.scores);
        destroy(&cpu);
        if (b->device) destroy(&device);
        if (!ok) return false;
    }
    return true;
}
