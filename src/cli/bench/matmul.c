/* Square f32 products: the triple loop, OpenBLAS called directly, Kermes with and without BLAS. */
#include "backend/cpu/blas.h"
#include "backend/cpu/gemm.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "cli/bench/bench.h"
#include "cli/bench/naive.h"
#include <string.h>
#include <time.h>

#define NAIVE_LARGEST                                                                              \
    1024 /* beyond it a run takes many seconds: plain C then does its first rows */

static const km_sizes quick_sizes = {{256, 512, 1024, 2048}, 4};
static const km_sizes full_sizes = {{128, 256, 512, 1024, 2048, 4096}, 6};

typedef struct product {
    int64_t n, naive_rows;
    km_ctx *ctx;
    km_tensor *a, *b;     /* (n, n), kept */
    const float *pa, *pb; /* the same, for calls without Kermes */
    float *c;
    km_gemm_blas blas;
    int threads;
} product;

int km_bench_matmul_count(const km_bench *b) {
    return km_bench_sizes(b, &quick_sizes, &full_sizes)->n;
}

static double run_naive(void *arg, int64_t times) {
    const product *p = arg;
    double start = km_now();
    for (int64_t i = 0; i < times; i++) km_naive_matmul(p->n, p->naive_rows, p->pa, p->pb, p->c);
    return km_now() - start;
}

static double run_blas(void *arg, int64_t times) {
    const product *p = arg;
    km_blas_set_threads(p->threads);
    double start = km_now();
    for (int64_t i = 0; i < times; i++)
        km_blas_sgemm(false, false, p->n, p->n, p->n, 1, p->pa, p->n, p->pb, p->n, 0, p->c, p->n);
    double seconds = km_now() - start;
    km_blas_set_threads(1);
    if (p->threads > 1) /* its workers spin for a while, which would slow down the next engine */
        nanosleep(&(struct timespec){.tv_nsec = 40 * 1000 * 1000}, NULL);
    return seconds;
}

static double run_kermes(void *arg, int64_t times) {
    const product *p = arg;
    km_gemm_choose(km_gemm_isa(), p->blas);
    double start = km_now();
    for (int64_t i = 0; i < times; i++) {
        km_scope_begin(p->ctx);
        km_matmul(p->ctx, p->a, p->b);
        km_scope_end(p->ctx, NULL);
    }
    km_sync(p->ctx);
    double seconds = km_now() - start;
    km_step_end(p->ctx);
    km_gemm_choose(km_gemm_isa(), KM_GEMM_BLAS_AUTO);
    return seconds;
}

static km_tensor *random_matrix(km_ctx *ctx, int64_t n) {
    return km_keep(ctx, km_uniform(ctx, KM_F32, KM_SHAPE(n, n), -1, 1));
}

static km_sample describe(int64_t n) {
    km_sample s = {.suite = "matmul",
                   .op = "matmul",
                   .size = (double)n,
                   .limited_by = KM_ENGINE_FMA,
                   .work = 2 * (double)n * (double)n * (double)n};
    snprintf(s.shape, sizeof s.shape, "%lldx%lldx%lld", (long long)n, (long long)n, (long long)n);
    return s;
}

/* About as many multiply-adds for every size from there on. */
static int64_t naive_rows(int64_t n) {
    if (n <= NAIVE_LARGEST) return n;
    int64_t rows = NAIVE_LARGEST * NAIVE_LARGEST / n * (NAIVE_LARGEST / 4) / n;
    return rows > 0 ? rows : 1;
}

static bool measure(km_bench *b, int64_t n, float *c) {
    product cpu = {n,    naive_rows(n), b->cpu, random_matrix(b->cpu, n), random_matrix(b->cpu, n),
                   NULL, NULL,          c,      KM_GEMM_BLAS_AUTO,        b->threads};
    if (cpu.a && cpu.b) {
        cpu.pa = km_tensor_data(cpu.a);
        cpu.pb = km_tensor_data(cpu.b);
    }
    product own = cpu, device = cpu;
    char part[32];
    snprintf(part, sizeof part, "the first %lld rows", (long long)cpu.naive_rows);
    own.blas = KM_GEMM_BLAS_NEVER;
    km_runner runners[] = {
        {.engine = KM_ENGINE_NAIVE,
         .run = run_naive,
         .arg = &cpu,
         .work = 2 * (double)cpu.naive_rows * (double)n * (double)n,
         .part = cpu.naive_rows < n ? part : NULL},
        {.engine = KM_ENGINE_BLAS,
         .run = run_blas,
         .arg = &cpu,
         .skip = km_blas_available() ? NULL : km_blas_name()},
        {.engine = KM_ENGINE_OWN, .run = run_kermes, .arg = &own, .ctx = b->cpu},
        {.engine = KM_ENGINE_CPU, .run = run_kermes, .arg = &cpu, .ctx = b->cpu},
        {.engine = km_bench_engine(b), .run = run_kermes, .arg = &device, .ctx = b->device},
    };
    if (b->device) {
        device.ctx = b->device;
        device.a = random_matrix(b->device, n);
        device.b = random_matrix(b->device, n);
        if (km_bench_is_ref(b) && n > NAIVE_LARGEST / 2)
            runners[4].skip = "the reference is measured up to 512 only";
    }
    km_sample what = describe(n);
    bool ok = km_ctx_status(b->cpu) == KM_OK;
    if (!ok) km_error_set(&b->error, km_ctx_status(b->cpu), "%s", km_ctx_error(b->cpu));
    ok = ok && km_bench_measure(b, &what, runners, b->device ? 5 : 4);
    km_release(cpu.a);
    km_release(cpu.b);
    if (b->device) {
        km_release(device.a);
        km_release(device.b);
    }
    return ok;
}

bool km_bench_matmul(km_bench *b) {
    const km_sizes *sizes = km_bench_sizes(b, &quick_sizes, &full_sizes);
    for (int i = 0; i < sizes->n; i++) {
        int64_t n = sizes->value[i];
        size_t bytes = (size_t)n * (size_t)n * sizeof(float);
        if (!km_bench_fits(5.0 * (double)bytes)) {
            km_sample what = describe(n);
            km_runner runner = {.engine = KM_ENGINE_CPU, .skip = "does not fit in free memory"};
            if (!km_bench_measure(b, &what, &runner, 1)) return false;
            continue;
        }
        float *c = km_alloc_aligned(bytes);
        if (!c) {
            km_no_memory(&b->error);
            return false;
        }
        memset(c, 0, bytes);
        bool ok = measure(b, n, c);
        km_free_aligned(c, bytes);
        km_trim(b->cpu);
        if (b->device) km_trim(b->device);
        if (!ok) return false;
    }
    return true;
}
