/* A whole training step: how long it takes, and that it allocates nothing once it is warm. */
#include "cli/bench/bench.h"
#include "base/clock.h"
#include <math.h>

enum { WARM_STEPS = 2, MAX_STEPS = 50 };
static const km_net_size size = {
    .layers = 6, .width = 384, .heads = 6, .vocabulary = 65, .batch = 4, .tokens = 256};

int km_bench_step_count(const km_bench *b) {
    (void)b;
    return 1;
}

static void measure(km_bench *b, km_ctx *ctx, const km_bench_model *m) {
    km_step_figures *f = &b->step;
    *f = (km_step_figures){.model = size,
                           .parameters = km_bench_model_parameters(m),
                           .flops = km_bench_model_flops(m)};
    double seconds[MAX_STEPS];
    int wanted = (int)(b->repeat < MAX_STEPS ? b->repeat : MAX_STEPS);
    for (int i = 0; i < WARM_STEPS; i++) {
        double loss = km_bench_model_step(ctx, m);
        if (i == 0) f->first_loss = loss;
    }
    km_sync(ctx);
    km_stats_reset_peak(ctx);
    km_stats before = km_ctx_stats(ctx);
    for (int i = 0; i < wanted && km_ctx_status(ctx) == KM_OK; i++) {
        double start = km_now();
        f->last_loss = km_bench_model_step(ctx, m);
        km_sync(ctx);
        seconds[f->steps++] = km_now() - start;
    }
    km_stats after = km_ctx_stats(ctx);
    f->heap_allocs = (double)(after.heap_allocs - before.heap_allocs) / f->steps;
    f->pool_misses = (double)(after.pool_misses - before.pool_misses) / f->steps;
    f->peak_bytes = (double)after.peak_bytes;
    f->seconds = km_spread_of(seconds, f->steps);
    f->measured = true;
}

bool km_bench_step(km_bench *b) {
    km_ctx *ctx = b->device ? b->device : b->cpu;
    km_progress_step(&b->progress, b->done++, "training step");
    if (km_bench_is_ref(b)) return true; /* it would take minutes */
    km_trim(ctx);
    km_bench_model *m = km_bench_model_new(ctx, &size);
    if (m) measure(b, ctx, m);
    km_bench_model_free(ctx, m);
    if (km_ctx_status(ctx) != KM_OK) {
        km_error_set(&b->error, km_ctx_status(ctx), "training step: %s", km_ctx_error(ctx));
        return false;
    }
    if (!isfinite(b->step.last_loss)) {
        km_error_set(&b->error, KM_ERR_STATE, "training step: the loss is not a number");
        return false;
    }
    return true;
}
