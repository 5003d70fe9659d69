/* How fast a whole index is searched on a device, from queries in the host's memory to ids in it: rows that
 * stay on the device, or, where it has no room for them, that come over with each batch. One JSON object.
 *
 *   [KERMES_GPU_MEMORY_FRACTION=0.002] bench_index DEVICE ROWS DIM BYTES fast|dense QUERIES K [CHECKED]
 *
 * The rows are normal numbers around 256 anchors. `parts` is in how many pieces they are lent (0: the
 * device holds them), `copied_gb_s` how fast these come over, and `same` the part of the answers to
 * CHECKED queries (16) that the CPU gives too. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tensor/tensor.h"
#include "vector/device_index.h"
#include "vector/device_rows.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS = 256, TRAINED = 8192, BLOCK = 262144 };

typedef struct filling {
    float *x;
    const float *anchors;
    int64_t d, first;
} filling;

static void fill(void *arg, int64_t begin, int64_t end, int worker) {
    const filling *f = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < f->d; j++) {
            km_philox4 p = km_philox(1, (uint64_t)j, (uint64_t)(f->first + i));
            double a, b;
            km_box_muller(p.v[0], p.v[1], &a, &b);
            f->x[i * f->d + j] = (float)a / sqrtf(1 + (float)j / 64) +
                                 (f->anchors ? f->anchors[(f->first + i) % CELLS * f->d + j] : 0);
        }
}

static km_index *make(km_ctx *ctx, int64_t n, int64_t d, double bytes, bool dense, float *x,
                      km_error *err) {
    float *anchors = km_alloc(sizeof *anchors * (size_t)(CELLS * d));
    filling f = {.x = anchors, .d = d, .first = -CELLS};
    if (!anchors) return NULL;
    km_threads_for(ctx->threads, CELLS, 16, fill, &f);
    for (int64_t i = 0; i < CELLS * d; i++) anchors[i] *= 0.7f;
    f = (filling){.x = x, .d = d, .first = 0};
    km_threads_for(ctx->threads, TRAINED, 256, fill, &f);
    km_coder_options o = {
        .dim = d, .bytes = bytes, .mode = dense ? KM_CODE_DENSE : KM_CODE_FAST, .rows = n};
    km_coder *c = km_coder_train(ctx->threads, x, TRAINED, &o, err);
    if (!c) return NULL;
    km_index *index =
        km_index_frame(ctx->threads, KM_METRIC_L2, KM_RERANK_NONE, d, anchors, CELLS, c, err);
    for (int64_t at = 0; index && at < n; at += BLOCK) {
        int64_t m = n - at < BLOCK ? n - at : BLOCK;
        f = (filling){.x = x, .anchors = index->anchors, .d = d, .first = at};
        km_threads_for(ctx->threads, m, 256, fill, &f);
        if (km_index_append(ctx, index, x, m, NULL, err) != KM_OK) return NULL;
    }
    return index;
}

int main(int argc, char **argv) {
    if (argc < 8)
        return fprintf(stderr,
                       "usage: bench_index DEVICE ROWS DIM BYTES fast|dense QUERIES K [CHECKED]\n"),
               2;
    int64_t n = atoll(argv[2]), d = atoll(argv[3]), q = atoll(argv[6]), k = atoll(argv[7]);
    int64_t checked = argc > 8 ? atoll(argv[8]) : 16;
    km_ctx *ctx = km_ctx_new(argv[1], 0);
    km_error err = {0};
    if (!ctx || n < 1 || d < 1 || q < 1 || k < 1)
        return fprintf(stderr, "bench_index: %s\n",
                       ctx ? "a number makes no sense" : km_last_error()),
               1;
    if (checked > q) checked = q;
    float *x = km_alloc(sizeof *x * (size_t)((BLOCK + q) * d)), *queries = x + BLOCK * d;
    uint64_t *ids = km_alloc(sizeof *ids * (size_t)(q * k)),
             *want = km_alloc(sizeof *want * (size_t)(q * k));
    float *dist = km_alloc(sizeof *dist * (size_t)(q * k));
    if (!x || !ids || !want || !dist) return fprintf(stderr, "bench_index: no memory\n"), 1;
    double begin = km_now();
    km_index *index = make(ctx, n, d, atof(argv[4]), !strcmp(argv[5], "dense"), x, &err);
    if (!index) return fprintf(stderr, "bench_index: %s\n", err.text), 1;
    double made = km_now() - begin, best = INFINITY;
    filling f = {.x = queries, .anchors = index->anchors, .d = d, .first = n};
    km_threads_for(ctx->threads, q, 16, fill, &f);
    begin = km_now();
    km_device_index *on = km_device_index_new(ctx, index, &err);
    if (!on) return fprintf(stderr, "bench_index: %s\n", err.text), 1;
    double opened = km_now() - begin;
    int repeats = ctx->device->host ? 1 : 6;
    for (int i = 0; i < repeats; i++) {
        begin = km_now();
        if (km_device_index_find(on, queries, q, k, ids, dist, &err) != KM_OK)
            return fprintf(stderr, "bench_index: %s\n", err.text), 1;
        if (km_now() - begin < best) best = km_now() - begin;
    }
    int64_t same = 0;
    if (km_index_find(index, queries, checked, k, NULL, ctx->threads, want, dist, &err) != KM_OK)
        return fprintf(stderr, "bench_index: %s\n", err.text), 1;
    for (int64_t i = 0; i < checked * k; i++)
        for (int64_t j = i / k * k; j < i / k * k + k; j++) same += want[i] == ids[j];
    int parts = km_device_index_parts(on);
    double bytes = (double)n * (double)(index->code_bytes + 8);
    printf(
        "{\"device\": \"%s\", \"rows\": %lld, \"dim\": %lld, \"bytes\": %zu, \"mode\": \"%s\", \"queries\": %lld, "
        "\"k\": %lld, \"parts\": %d, \"ms\": %.3f, \"qps\": %.0f, \"copied_gb_s\": %.2f, \"open_s\": %.2f, "
        "\"make_s\": %.2f, \"same\": %.4f}\n",
        km_ctx_device(ctx), (long long)n, (long long)d, index->code_bytes, argv[5], (long long)q,
        (long long)k, parts, best * 1e3, (double)q / best, parts ? bytes / best * 1e-9 : 0, opened,
        made, checked ? (double)same / (double)(checked * k) : 1);
    km_device_index_free(on);
    km_index_close(index);
    km_free(x);
    km_free(ids);
    km_free(want);
    km_free(dist);
    km_ctx_free(ctx);
    return 0;
}
