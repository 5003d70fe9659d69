/* Whether the processor's limit is one: how much of it the best product reaches, which is never above 1,
 * and what threads beyond the cores add to it, which is nothing. Each figure is the best of a few, since
 * other programs can only slow it down. */
#include "backend/backend.h"
#include "backend/cpu/peak.h"
#include "base/clock.h"
#include <stdio.h>

static double most(km_threads *pool) {
    double best = 0;
    for (int i = 0; i < 3; i++) {
        double rate = km_cpu_peak(pool);
        if (rate > best) best = rate;
    }
    return best;
}

static double products(km_ctx *ctx, int64_t n) {
    double best = 0;
    km_tensor *a = km_normal(ctx, KM_F32, KM_SHAPE(n, n), 0, 1);
    for (int i = 0; i < 5; i++) {
        double start = km_now();
        km_matmul(ctx, a, a);
        double rate = 2.0 * (double)(n * n * n) / (km_now() - start);
        if (rate > best) best = rate;
    }
    km_step_end(ctx);
    return best;
}

int main(void) {
    int cores = km_cpu_count();
    for (int threads = 1; threads <= cores; threads *= 2) {
        km_ctx *ctx = km_ctx_new("cpu", threads);
        if (!ctx) return 1;
        double before = most(ctx->threads), product = products(ctx, 320);
        double after = most(ctx->threads), limit = before > after ? before : after;
        printf("%d threads: limit %.1f GFLOP/s, product %.1f (%.2f of it)\n", threads, limit / 1e9,
               product / 1e9, product / limit);
        km_ctx_free(ctx);
    }
    km_threads *fit = km_threads_new(cores), *many = km_threads_new(4 * cores);
    double of_fit = most(fit), of_many = most(many);
    printf("%d threads on %d cores: %.2f of the limit\n", 4 * cores, cores, of_many / of_fit);
    km_threads_free(fit);
    km_threads_free(many);
    return 0;
}
