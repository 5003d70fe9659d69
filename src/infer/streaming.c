/* Rates of the bus and of the CPU, and what a turn takes by them. */
#include "infer/streaming.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "ops/infer.h"
#include "tensor/tensor.h"
#include <math.h>
#include <string.h>

double km_turn_streamed(const km_stream_rates *r, double bytes, int64_t chunk) {
    return (KM_TURN_SAID + ceil((double)KM_TURN_READ / (double)chunk)) * bytes / r->bus;
}

double km_turn_on_cpu(const km_stream_rates *r, double bytes, double flops) {
    return KM_TURN_SAID * bytes / r->cpu_bytes + KM_TURN_READ * flops / r->cpu_flops;
}

/* ---- Measuring ---- */

enum { IN = 4096, OUT = 8192, ROWS = 64, ROUNDS = 3 }; /* q8_0: 34 MiB, more than most caches */

/* The best time of some uploads of so many bytes. */
static double upload_seconds(km_ctx *ctx, const void *data, size_t bytes) {
    double best = INFINITY;
    km_tensor *t = km_keep(ctx, km_zeros(ctx, KM_U8, KM_SHAPE((int64_t)bytes)));
    for (int i = 0; i < ROUNDS && !km_failed(ctx); i++) {
        double start = km_now();
        km_write(ctx, t, data, bytes);
        km_sync(ctx);
        best = fmin(best, km_now() - start);
    }
    km_release(t);
    return best;
}

static double layer_seconds(km_ctx *ctx, km_tensor *w, int64_t rows) {
    double best = INFINITY;
    km_tensor *x = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(rows, IN))), *y = NULL;
    for (int i = 0; i < ROUNDS && !km_failed(ctx); i++) {
        double start = km_now();
        km_linears(ctx, x, &w, NULL, 1, &y);
        km_step_end(ctx);
        best = fmin(best, km_now() - start);
    }
    km_release(x);
    return best;
}

km_status km_stream_measure(const char *device, km_stream_rates *out, km_error *err) {
    km_ctx *cpu = km_ctx_new("cpu", 0), *there = cpu ? km_ctx_new(device, 0) : NULL;
    size_t bytes = (size_t)km_dtype_bytes(KM_Q8_0, (int64_t)IN * OUT);
    unsigned char *data = km_alloc(bytes);
    km_status s = KM_OK;
    if (!there)
        s = km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
    else if (!data)
        s = km_no_memory(err);
    if (s == KM_OK) {
        memset(data, 1, bytes);
        km_scope_begin(cpu);
        km_tensor *w = km_keep(cpu, km_from_data(cpu, KM_Q8_0, KM_SHAPE(OUT, IN), data));
        km_scope_end(cpu, NULL);
        out->bus = (double)bytes / upload_seconds(there, data, bytes);
        out->cpu_bytes = (double)bytes / layer_seconds(cpu, w, 1);
        out->cpu_flops = 2.0 * IN * OUT * ROWS / layer_seconds(cpu, w, ROWS);
        km_release(w);
        const km_ctx *bad = km_failed(cpu) ? cpu : km_failed(there) ? there : NULL;
        if (bad) s = km_error_set(err, km_ctx_status(bad), "%s", km_ctx_error(bad));
    }
    km_free(data);
    km_ctx_free(there);
    km_ctx_free(cpu);
    return s;
}
