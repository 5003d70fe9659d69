/* What an index does that is searched and changed at the same time: rows a second that some threads add,
 * alone and beside threads that search without a pause, and the longest that one call took. One JSON object.
 *
 *   bench_live_index [ROWS DIM BATCH SECONDS ADDERS SEARCHERS THREADS METRIC BYTES MODE KEPT]
 *
 * 100,000 rows of 128 dimensions, 10 rows a call, 3 s each part, 2 threads that add and 8 that search for the 10
 * nearest of one query; THREADS is for a search (1; 0: all cores). METRIC 0 is L2, 1 inner product, 2 cosine;
 * BYTES of a code, 32; MODE 0 fast, 1 dense; KEPT vectors beside the codes, 0 none, 1 f16, 2 int8. After
 * ten calls a thread that adds deletes one of the first rows. */
#include "base/rng.h"
#include "base/clock.h"
#include "kermes.h"
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct part {
    km_index *x;
    const float *rows;
    int64_t n, dim, batch;
    int threads;
    _Atomic int *stop;
    uint64_t oldest;      /* the next of the first rows to be deleted */
    _Atomic int64_t done; /* rows added, or queries asked */
    int64_t calls;
    double longest, longest_delete; /* seconds */
    bool failed;
} part;

static void fill(float *x, int64_t n, int64_t d, uint64_t seed) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < d; j++) {
            km_philox4 p = km_philox(seed, (uint64_t)j, (uint64_t)i);
            double a, b;
            km_box_muller(p.v[0], p.v[1], &a, &b);
            x[i * d + j] = (float)a / sqrtf(1 + (float)j / 16) + (float)(i * 7 % 64 == j % 64);
        }
}

static void note(double begin, double *longest) {
    double t = km_now() - begin;
    if (t > *longest) *longest = t;
}

static void *add(void *arg) {
    part *p = arg;
    km_ctx *ctx = km_ctx_new("cpu", 0);
    p->failed = !ctx;
    while (!p->failed && !atomic_load(p->stop)) {
        int64_t at = p->done % (p->n - p->batch);
        double begin = km_now();
        p->failed |= km_index_add(ctx, p->x, p->rows + at * p->dim, p->batch, NULL) != KM_OK;
        note(begin, &p->longest);
        p->done += p->batch;
        if (++p->calls % 10 == 0) {
            begin = km_now();
            p->failed |= km_index_delete(p->x, &p->oldest, 1) != KM_OK;
            p->oldest++;
            note(begin, &p->longest_delete);
        }
    }
    if (p->failed) fprintf(stderr, "bench_live_index: %s\n", km_last_error());
    km_ctx_free(ctx);
    return NULL;
}

static void *search(void *arg) {
    part *p = arg;
    uint64_t ids[10];
    float dist[10];
    while (!p->failed && !atomic_load(p->stop)) {
        const float *q = p->rows + p->done * 31 % p->n * p->dim;
        double begin = km_now();
        p->failed |= km_index_search(p->x, q, 1, 10, NULL, p->threads, ids, dist) != KM_OK;
        note(begin, &p->longest);
        p->done++;
    }
    return NULL;
}

typedef struct outcome {
    double added, asked, longest_add, longest_delete, longest_search; /* a second; milliseconds */
} outcome;

static outcome run(part base, int adders, int searchers, double seconds) {
    static uint64_t stretch; /* of ids that a thread deletes */
    _Atomic int stop = 0;
    part *p = calloc((size_t)(adders + searchers), sizeof *p);
    pthread_t *t = calloc((size_t)(adders + searchers), sizeof *t);
    outcome o = {0};
    base.stop = &stop;
    for (int i = 0; i < adders + searchers; i++) {
        p[i] = base;
        if (i < adders) p[i].oldest = stretch++ * (uint64_t)(base.n / 8);
        pthread_create(&t[i], NULL, i < adders ? add : search, &p[i]);
    }
    double begin = km_now();
    struct timespec nap = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&nap, NULL);
    double took = km_now() - begin;
    int64_t added = 0, asked = 0;
    for (int i = 0; i < adders + searchers; i++) *(i < adders ? &added : &asked) += p[i].done;
    atomic_store(&stop, 1);
    for (int i = 0; i < adders + searchers; i++) {
        pthread_join(t[i], NULL);
        if (p[i].failed) exit(1);
        double *longest = i < adders ? &o.longest_add : &o.longest_search;
        if (p[i].longest * 1e3 > *longest) *longest = p[i].longest * 1e3;
        if (p[i].longest_delete * 1e3 > o.longest_delete)
            o.longest_delete = p[i].longest_delete * 1e3;
    }
    o.added = (double)added / took;
    o.asked = (double)asked / took;
    free(p);
    free(t);
    return o;
}

int main(int argc, char **argv) {
    double v[] = {100000, 128, 10, 3, 2, 8, 1, KM_METRIC_L2, 32, KM_INDEX_FAST, KM_VECTORS_NONE};
    for (int i = 1; i < argc && i <= 11; i++) v[i - 1] = atof(argv[i]);
    int64_t n = (int64_t)v[0], d = (int64_t)v[1];
    float *rows = malloc(sizeof *rows * (size_t)(n * d));
    km_ctx *ctx = km_ctx_new("cpu", 0);
    if (!rows || !ctx) return 1;
    fill(rows, n, d, 1);
    km_index_options o = {.size = sizeof o,
                          .metric = (km_metric)v[7],
                          .bytes = v[8],
                          .mode = (km_index_mode)v[9],
                          .rerank = (km_index_vectors)v[10]};
    km_index *x = km_index_build(ctx, rows, n, d, NULL, &o);
    if (!x) return fprintf(stderr, "bench_live_index: %s\n", km_last_error()), 1;
    part base = {
        .x = x, .rows = rows, .n = n, .dim = d, .batch = (int64_t)v[2], .threads = (int)v[6]};
    outcome quiet = run(base, 0, (int)v[5], v[3] / 3), alone = run(base, (int)v[4], 0, v[3]);
    outcome beside = run(base, (int)v[4], (int)v[5], v[3]);
    printf(
        "{\"rows\": %lld, \"dim\": %lld, \"metric\": %g, \"bytes\": %g, \"mode\": %g, \"vectors\": %g, \"batch\": %g, \"adders\": %g, \"searchers\": %g, \"search_threads\": %g, "
        "\"cores\": %d, \"adds_alone\": %.0f, \"adds_beside\": %.0f, \"kept\": %.3f, "
        "\"longest_add_alone_ms\": %.1f, \"longest_add_ms\": %.1f, \"longest_delete_ms\": %.1f, "
        "\"searches_alone\": %.0f, \"searches_beside\": %.0f, \"longest_search_alone_ms\": %.1f, "
        "\"longest_search_ms\": %.1f}\n",
        (long long)n, (long long)d, v[7], v[8], v[9], v[10], v[2], v[4], v[5], v[6],
        km_ctx_threads(ctx), alone.added, beside.added, beside.added / alone.added,
        alone.longest_add, beside.longest_add, beside.longest_delete, quiet.asked, beside.asked,
        quiet.longest_search, beside.longest_search);
    km_index_close(x);
    km_ctx_free(ctx);
    free(rows);
    return 0;
}
