/* A first program for a GPU, and when one pays: a product there and on the CPU, which must agree, and
 * both timed at growing sizes, with operands that lie on the device and with operands that have to be
 * brought over and back. Without a GPU it says so and is done. `gpu --json` prints the times as JSON. */
#include <kermes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct sides { /* one kind of work at one size */
    int64_t n;
    float *host; /* (n, n) or (n) elements, in and out */
    size_t bytes;
    km_tensor *a, *b; /* kept, on the context's device */
} sides;

static km_tensor *product(km_ctx *ctx, km_tensor *a, km_tensor *b) { return km_matmul(ctx, a, b); }
static km_tensor *gelu(km_ctx *ctx, km_tensor *a, km_tensor *b) {
    return km_gelu(ctx, km_add(ctx, a, b));
}

typedef km_tensor *(*work_fn)(km_ctx *ctx, km_tensor *a, km_tensor *b);

/* Seconds of one run: the median of some, each long enough to be timed. */
static double seconds_of(km_ctx *ctx, const sides *s, work_fn work, int moved) {
    double times[7];
    int runs = 1;
    for (int i = 0; i < 7;) {
        double begin = now();
        for (int r = 0; r < runs; r++) {
            if (moved) km_write(ctx, s->a, s->host, s->bytes);
            km_tensor *y = work(ctx, s->a, s->b);
            if (moved) km_read(ctx, y, s->host, s->bytes);
            km_step_end(ctx);
        }
        km_sync(ctx);
        double took = now() - begin;
        if (took < 2e-3 && runs < 1 << 20)
            runs *= 2; /* this also warms up */
        else
            times[i++] = took / runs;
    }
    for (int i = 0; i < 7; i++)
        for (int k = i + 1; k < 7; k++)
            if (times[k] < times[i]) {
                double t = times[i];
                times[i] = times[k];
                times[k] = t;
            }
    return times[3];
}

static sides prepare(km_ctx *ctx, int64_t n, int square) {
    sides s = {.n = n, .bytes = sizeof(float) * (size_t)(square ? n * n : n)};
    km_shape shape = square ? KM_SHAPE(n, n) : KM_SHAPE(n);
    km_seed(ctx, 1);
    s.host = malloc(s.bytes);
    s.a = km_keep(ctx, km_normal(ctx, KM_F32, shape, 0, 1));
    s.b = km_keep(ctx, km_normal(ctx, KM_F32, shape, 0, 1));
    km_read(ctx, s.a, s.host, s.bytes);
    km_step_end(ctx);
    return s;
}

static void finish(sides *s) {
    km_release(s->a);
    km_release(s->b);
    free(s->host);
}

/* The same product on both, from the same random numbers: how far apart. */
static double apart(km_ctx *gpu, km_ctx *cpu) {
    enum { N = 256 };
    static float y[2][N * N];
    km_ctx *both[] = {gpu, cpu};
    double most = 0;
    for (int i = 0; i < 2; i++) {
        sides s = prepare(both[i], N, 1);
        km_read(both[i], km_matmul(both[i], s.a, s.b), y[i], sizeof y[i]);
        km_step_end(both[i]);
        finish(&s);
    }
    for (int i = 0; i < N * N; i++) most = fmax(most, fabs((double)y[0][i] - (double)y[1][i]));
    return most;
}

int main(int argc, char **argv) {
    static const int64_t squares[] = {16, 32, 64, 128, 256, 512, 1024, 2048};
    static const int64_t lengths[] = {1 << 10, 1 << 12, 1 << 14, 1 << 16,
                                      1 << 18, 1 << 20, 1 << 22};
    int json = argc > 1 && strcmp(argv[1], "--json") == 0, status = 0;
    km_ctx *gpu = km_ctx_new("gpu", 0), *cpu = NULL;
    if (!gpu) {
        printf("no GPU here: %s\n", km_last_error());
        return 0;
    }
    cpu = km_ctx_new("cpu", 0);
    if (!cpu) return 1;
    double off = apart(gpu, cpu);
    if (!json)
        printf("%s against cpu: results differ by %.1e at most\n\n", km_ctx_device(gpu), off);
    if (!(off < 1e-3)) status = 1;
    if (json)
        printf("{\"gpu\": \"%s\", \"threads\": %d, \"results\": [", km_ctx_device(gpu),
               km_ctx_threads(cpu));
    else
        printf("%-18s %12s %12s %12s %12s\n", "work", "cpu us", "gpu us", "moved us", "faster");
    for (int i = 0; i < 15; i++) {
        int square = i < 8;
        int64_t n = square ? squares[i] : lengths[i - 8];
        work_fn work = square ? product : gelu;
        sides there = prepare(gpu, n, square), here = prepare(cpu, n, square);
        double c = seconds_of(cpu, &here, work, 0), g = seconds_of(gpu, &there, work, 0);
        double m = seconds_of(gpu, &there, work, 1);
        finish(&there);
        finish(&here);
        if (json)
            printf("%s\n {\"work\": \"%s\", \"n\": %lld, \"cpu_us\": %.3f, \"gpu_us\": %.3f, "
                   "\"gpu_moved_us\": %.3f}",
                   i ? "," : "", square ? "matmul" : "gelu(a + b)", (long long)n, c * 1e6, g * 1e6,
                   m * 1e6);
        else
            printf("%-10s %7lld %12.1f %12.1f %12.1f %12s\n", square ? "matmul" : "gelu(a + b)",
                   (long long)n, c * 1e6, g * 1e6, m * 1e6,
                   c < g   ? "cpu"
                   : c < m ? "gpu, if there"
                           : "gpu");
    }
    if (json) puts("\n]}");
    if (km_ctx_status(gpu) != KM_OK) fprintf(stderr, "%s\n", km_ctx_error(gpu)), status = 1;
    km_ctx_free(cpu);
    km_ctx_free(gpu);
    return status;
}
