/* How fast anchors are learnt: whole trainings and single rounds on a device. One JSON object.
 *
 *   bench_kmeans DEVICE train N D K ROUNDS [THREADS]   random vectors, seeding included
 *   bench_kmeans DEVICE round N D K                    one assign and update, best and median
 *   bench_kmeans DEVICE file PATH.f32 N D K ROUNDS     a training on a file of N x D floats
 *   bench_kmeans DEVICE anneal PATH.f32 N D K ROUNDS   the same, annealed; the others are plain Lloyd */
#include "base/alloc.h"
#include "base/clock.h"
#include "ops/nearest.h"
#include "vector/anchors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *random_rows(int64_t n, int64_t d) {
    float *x = km_alloc(sizeof *x * (size_t)(n * d));
    uint64_t s = 1;
    for (int64_t i = 0; x && i < n * d; i++) { /* nearly normal: a sum of four */
        float v = 0;
        for (int k = 0; k < 4; k++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            v += (float)(s >> 40) * 0x1p-24f - 0.5f;
        }
        x[i] = v * 1.732f;
    }
    return x;
}

static int train(km_ctx *ctx, const float *x, int64_t n, int64_t d, int64_t k, int rounds,
                 bool lloyd) {
    double best = 1e9, first = 0;
    km_anchors a = {0};
    for (int i = 0; i < 3; i++) {
        km_anchor_options o = {.count = k, .training.rounds = rounds, .lloyd = lloyd, .seed = 1};
        km_anchors_release(&a);
        double begin = km_now();
        km_anchors_train(ctx, x, n, d, &o, NULL, &a);
        km_sync(ctx);
        double took = km_now() - begin;
        if (i == 0) first = took;
        if (took < best) best = took;
        if (km_ctx_status(ctx) != KM_OK || best > 3) break;
    }
    if (km_ctx_status(ctx) != KM_OK) return fprintf(stderr, "%s\n", km_ctx_error(ctx)), 1;
    printf("{\"device\": \"%s\", \"job\": \"train\", \"n\": %lld, \"d\": %lld, \"k\": %lld, "
           "\"rounds\": %d, \"seconds\": %.6f, \"first_seconds\": %.6f, \"energy\": %.6g}\n",
           km_ctx_device(ctx), (long long)n, (long long)d, (long long)a.count, a.rounds, best,
           first, a.energy);
    km_anchors_release(&a);
    return 0;
}

typedef struct job {
    km_tensor *x, *c, *work, *out;
    bool noted;
    int what; /* 1: assign alone, 2: update alone, 3: both */
    km_tensor *id;
} job;

static void one_round(km_ctx *ctx, void *user) {
    job *j = user;
    km_tensor *id = j->id, *dist = NULL;
    km_cell_sums_result r;
    if (j->what & 1) km_nearest_of(ctx, j->x, j->c, j->work, !j->noted, true, &id, &dist);
    if (j->what & 1) km_assign(ctx, j->id, id);
    if (!(j->what & 2)) return;
    km_cell_sums(ctx, j->x, id, NULL, dist, km_tensor_dim(j->c, 0), &r);
    km_tensor *count = km_reshape(ctx, r.count, KM_SHAPE(km_tensor_dim(j->c, 0), 1));
    km_tensor *one = km_full(ctx, KM_F32, KM_SHAPE(1, 1), 1);
    km_assign(ctx, j->out, km_div(ctx, r.sum, km_maximum(ctx, count, one)));
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int rounds_of(km_ctx *ctx, int64_t n, int64_t d, int64_t k) {
    static const char *const names[] = {"", "assign", "update", "round"};
    job j = {.x = km_keep(ctx, km_normal(ctx, KM_F32, KM_SHAPE(n, d), 0, 1))};
    j.c = km_keep(ctx, km_copy(ctx, km_narrow(ctx, j.x, 0, 0, k)));
    j.out = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(k, d)));
    j.id = km_keep(ctx, km_zeros(ctx, KM_I32, KM_SHAPE(n)));
    j.work = km_nearest_work(ctx, j.x);
    for (int i = 0; i < 3; i++) { /* anchors like those of a training: means, not vectors */
        j.what = 3;
        one_round(ctx, &j);
        km_assign(ctx, j.c, j.out);
        km_step_end(ctx);
        j.noted = true;
    }
    for (j.what = 1; j.what <= 3; j.what++) {
        enum { REPEATS = 15 };
        double took[REPEATS];
        km_graph *graph = NULL;
        for (int i = -3; i < REPEATS; i++) {
            km_sync(ctx);
            double begin = km_now();
            /* Several at once, so that the wait for the host counts little. */
            for (int u = 0; u < 4; u++) km_graph_run(ctx, &graph, 1, one_round, &j);
            km_sync(ctx);
            if (i >= 0) took[i] = (km_now() - begin) / 4;
        }
        km_graph_free(graph);
        if (km_ctx_status(ctx) != KM_OK) return fprintf(stderr, "%s\n", km_ctx_error(ctx)), 1;
        qsort(took, REPEATS, sizeof *took, by_size);
        double flop = 2.0 * (double)n * (double)d * (double)k;
        printf("{\"device\": \"%s\", \"job\": \"%s\", \"n\": %lld, \"d\": %lld, \"k\": %lld, "
               "\"ms\": %.5f, \"best_ms\": %.5f, \"tflops\": %.1f}\n",
               km_ctx_device(ctx), names[j.what], (long long)n, (long long)d, (long long)k,
               took[REPEATS / 2] * 1e3, took[0] * 1e3, flop / took[REPEATS / 2] * 1e-12);
        fflush(stdout);
    }
    km_release(j.x);
    km_release(j.c);
    km_release(j.out);
    km_release(j.id);
    km_release(j.work);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 6)
        return fprintf(stderr, "usage: bench_kmeans DEVICE train|round|file|anneal ...\n"), 2;
    bool anneal = !strcmp(argv[2], "anneal"), file = anneal || !strcmp(argv[2], "file");
    int at = file ? 4 : 3;
    int64_t n = atoll(argv[at]), d = atoll(argv[at + 1]),
            k = argc > at + 2 ? atoll(argv[at + 2]) : 0;
    int rounds = argc > at + 3 ? atoi(argv[at + 3]) : 25,
        threads = argc > at + 4 ? atoi(argv[at + 4]) : 0;
    km_ctx *ctx = km_ctx_new(argv[1], threads);
    if (!ctx) return fprintf(stderr, "%s\n", km_last_error()), 1;
    int rc = 1;
    if (!strcmp(argv[2], "round")) {
        rc = rounds_of(ctx, n, d, k);
    } else {
        float *x = file ? km_alloc(sizeof *x * (size_t)(n * d)) : random_rows(n, d);
        FILE *f = file ? fopen(argv[3], "rb") : NULL;
        if (file && (!f || !x || fread(x, sizeof *x * (size_t)d, (size_t)n, f) != (size_t)n))
            return fprintf(stderr, "%s: not %lld x %lld floats\n", argv[3], (long long)n,
                           (long long)d),
                   1;
        if (f) fclose(f);
        rc = train(ctx, x, n, d, k, rounds, !anneal);
        km_free(x);
    }
    km_ctx_free(ctx);
    return rc;
}
