/* What the hardware can do, measured here and now: multiply-adds in registers, copying and
 * reading memory, by all threads together. */
#include "backend/cpu/peak.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "cli/bench/bench.h"
#include <math.h>
#include <string.h>

#define BUFFER_FLOATS ((int64_t)64 << 20) /* 256 MiB: far beyond any cache */

/* Takes the result of a loop, so that no compiler can do without it. */
static void use(float value) {
    volatile float sink = value;
    (void)sink;
}

static void copy_part(void *arg, int64_t begin, int64_t end, int worker) {
    const km_stream *s = arg;
    (void)worker;
    memcpy(s->dst + begin, s->src + begin, (size_t)(end - begin) * sizeof(float));
}

static void read_part(void *arg, int64_t begin, int64_t end, int worker) {
    const km_stream *s = arg;
    (void)worker;
    use(km_peak()->read(s->src + begin, end - begin));
}

static double stream(const km_stream *s, km_range_fn part, int64_t times) {
    /* One slice a thread: memcpy turns to streaming stores only for large pieces. */
    int64_t grain = s->threads > 1 ? (s->n + s->threads - 1) / s->threads : s->n;
    grain = (grain + 1023) / 1024 * 1024;
    double start = km_now();
    for (int64_t i = 0; i < times; i++) {
        km_threads_for(s->threads > 1 ? s->pool : NULL, s->n, grain, part, (void *)s);
        __asm__ volatile("" : : "r"(s->dst) : "memory");
    }
    return km_now() - start;
}

double km_run_copy(void *arg, int64_t times) { return stream(arg, copy_part, times); }

double km_run_read(void *arg, int64_t times) { return stream(arg, read_part, times); }

/* Raises what is there where this time shows more. */
static bool measure_memory(km_threads *pool, int threads, int repeats, km_limits *out) {
    size_t bytes = (size_t)BUFFER_FLOATS * sizeof(float);
    float *src = km_alloc_aligned(bytes), *dst = km_alloc_aligned(bytes);
    if (src && dst) {
        memset(src, 1, bytes); /* real pages, not the kernel's one page of zeros */
        memset(dst, 1, bytes);
        km_stream s = {pool, dst, src, BUFFER_FLOATS, threads};
        for (int i = 0; i < repeats; i++) {
            out->copy = fmax(out->copy, 2 * (double)bytes / km_run_copy(&s, 1));
            out->read = fmax(out->read, (double)bytes / km_run_read(&s, 1));
        }
    }
    bool ok = src && dst;
    if (src) km_free_aligned(src, bytes);
    if (dst) km_free_aligned(dst, bytes);
    return ok;
}

bool km_limits_of(km_threads *pool, int threads, int repeats, km_limits *out) {
    out->fma = fmax(out->fma, km_cpu_peak(pool));
    return measure_memory(pool, threads, repeats, out);
}

void km_bench_fma_limit(km_bench *b) {
    double rate = km_cpu_peak(b->pool);
    if (rate > b->limits.fma) b->limits.fma = rate;
}

/* A GPU's own memory, by its own copy kernel. */
static bool measure_device(km_bench *b, int repeats) {
    km_ctx *ctx = b->device;
    km_tensor *x = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(BUFFER_FLOATS)));
    for (int i = 0; i <= repeats && km_ctx_status(ctx) == KM_OK; i++) {
        enum { COPIES = 10 };
        km_sync(ctx);
        double start = km_now();
        for (int k = 0; k < COPIES; k++) {
            km_scope_begin(ctx);
            km_copy(ctx, x);
            km_scope_end(ctx, NULL);
        }
        km_sync(ctx);
        double rate = COPIES * 2.0 * (double)BUFFER_FLOATS * sizeof(float) / (km_now() - start);
        if (i > 0 && rate > b->limits.device_copy) b->limits.device_copy = rate; /* 0 warms up */
        km_step_end(ctx);
    }
    km_release(x);
    km_trim(ctx);
    if (km_ctx_status(ctx) == KM_OK) return true;
    km_error_set(&b->error, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    return false;
}

/* Whether an engine is a GPU, whose limits are its own. */
static bool is_gpu(const km_bench *b, const char *engine) {
    return engine && b->device && strcmp(engine, km_ctx_device(b->device)) == 0 &&
           !km_bench_is_ref(b);
}

bool km_bench_limits(km_bench *b) {
    int repeats = b->quick ? 4 : 8;
    if (b->repeat > 0 && b->repeat < repeats) repeats = (int)b->repeat; /* 0: not said */
    if (!km_limits_of(b->pool, b->threads, repeats, &b->limits)) {
        km_error_set(&b->error, KM_ERR_MEMORY, "bench needs 512 MiB of free memory at least");
        return false;
    }
    return !is_gpu(b, km_bench_engine(b)) || measure_device(b, repeats);
}

double km_sample_limit(const km_bench *b, const km_sample *s) {
    if (!s->limited_by) return NAN;
    bool fma = strcmp(s->limited_by, KM_ENGINE_FMA) == 0;
    if (is_gpu(b, s->engine)) return fma ? NAN : b->limits.device_copy;
    if (fma) return b->limits.fma;
    const km_sample *best = km_bench_find(b, s->suite, s->op, s->size, s->limited_by);
    for (int i = 0; i < b->n_samples && !best; i++) {
        const km_sample *other = &b->samples[i];
        if (other->size == s->size && strcmp(other->suite, s->suite) == 0 &&
            strcmp(other->engine, s->limited_by) == 0)
            best = other;
    }
    return km_sample_rate(best);
}
