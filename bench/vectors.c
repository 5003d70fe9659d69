/* Vector codes, by themselves or in an index: how well and how fast they find neighbours.
 *
 *   vectors find BASE QUERIES DIM BYTES fast|dense ANCHORS OUT   f32 rows in files; ids (i32) out
 *   vectors speed ROWS DIM BYTES fast|dense                      synthetic rows, one query at a time
 *   vectors search INDEX QUERIES THREADS OUT                     a whole index; ids (u64) out
 *
 * Prints one JSON object. bench/peers/vectors.py puts FAISS beside it. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/threads.h"
#include "kermes.h"
#include "vector/anchors.h"
#include "vector/coder.h"
#include "vector/index.h"
#include "vector/scan.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define K 10

static void stop(const char *what) {
    fprintf(stderr, "vectors: %s\n", what);
    exit(1);
}

static void *room(size_t bytes) {
    void *p = km_alloc_aligned(bytes ? bytes : 1);
    if (!p) stop("out of memory");
    return p;
}

static float *load(const char *path, int64_t dim, int64_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) stop(path);
    long size = ftell(f);
    rewind(f);
    *n = size / (4 * dim);
    float *x = room((size_t)size);
    if (fread(x, 1, (size_t)size, f) != (size_t)size) stop(path);
    fclose(f);
    return x;
}

typedef struct hit {
    float dist;
    int32_t id;
} hit;

/* Keeps the nearest K, ties to the lower id. */
static void push(hit *best, int *count, float dist, int32_t id) {
    int at = *count;
    if (at == K) {
        hit w = best[K - 1];
        if (dist > w.dist || (dist == w.dist && id > w.id)) return;
        at = K - 1;
    } else {
        (*count)++;
    }
    while (at > 0 &&
           (best[at - 1].dist > dist || (best[at - 1].dist == dist && best[at - 1].id > id))) {
        best[at] = best[at - 1];
        at--;
    }
    best[at] = (hit){dist, id};
}

/* A list in steps, each with what the one before has left as the limit. */
static void scan_list(km_scan *s, const uint8_t *packed, int64_t n, size_t bytes, int64_t step,
                      const int32_t *ids, float *dist, hit *best, int *count) {
    for (int64_t i = 0; i < n; i += step) {
        int64_t m = n - i < step ? n - i : step;
        km_scan_codes(s, packed + (size_t)i * bytes, m, *count == K ? best[K - 1].dist : INFINITY,
                      dist);
        float worst = *count == K ? best[K - 1].dist : INFINITY;
        for (int64_t j = 0; j < m; j++) {
            if (dist[j] > worst) continue;
            push(best, count, dist[j], ids ? ids[i + j] : (int32_t)(i + j));
            worst = *count == K ? best[K - 1].dist : INFINITY;
        }
    }
}

static int64_t step_of(const km_coder *c) {
    int64_t b = km_coder_block_rows(c);
    return b > 1024 ? b : 1024 / b * b;
}

static int find(char **v) {
    int64_t dim = atoll(v[2]), n, nq, cells = atoll(v[5]);
    float *base = load(v[0], dim, &n), *queries = load(v[1], dim, &nq);
    km_threads *t = km_threads_new(0);
    km_ctx *ctx = km_ctx_new("cpu", 0);
    km_error err = {0};
    km_anchors a = {0};
    km_anchor_options how = {.count = cells, .seed = 1};
    double t0 = km_now();
    if (km_anchors_train(ctx, base, n, dim, &how, NULL, &a) != KM_OK) stop(km_ctx_error(ctx));
    cells = a.count;
    float *centre = room((size_t)(cells * dim) * 4), *dist = room((size_t)n * 4 + 65536);
    int32_t *id = room((size_t)n * 4), *order = room((size_t)n * 4);
    km_anchors_read(ctx, &a, centre);
    km_anchors_assign(ctx, &a, base, n, id, dist);
    float *r = room((size_t)(n * dim) * 4);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < dim; j++)
            r[i * dim + j] = base[i * dim + j] - centre[id[i] * dim + j];
    double t1 = km_now();
    km_coder_options o = {.dim = dim,
                          .bytes = atof(v[3]),
                          .seed = 1,
                          .rows = n,
                          .mode = v[4][0] == 'd' ? KM_CODE_DENSE : KM_CODE_FAST};
    km_coder *c = km_coder_train(t, r, n, &o, &err);
    if (!c) stop(err.text);
    size_t bytes = km_coder_bytes(c);
    double t2 = km_now();
    uint8_t *codes = room((size_t)n * bytes), *sorted = room((size_t)n * bytes);
    if (km_coder_encode(c, t, r, n, codes)) stop("out of memory");
    double t3 = km_now();
    int64_t *start = calloc((size_t)cells + 1, sizeof *start), at = 0;
    uint8_t *list = room((size_t)n * bytes);
    for (int64_t k = 0; k < cells; k++) {
        start[k] = at;
        for (int64_t i = 0; i < n; i++) {
            if (id[i] != k) continue;
            memcpy(list + (size_t)at * bytes, codes + (size_t)i * bytes, bytes);
            order[at++] = (int32_t)i;
        }
        km_coder_pack(c, list + (size_t)start[k] * bytes, at - start[k],
                      sorted + (size_t)start[k] * bytes);
    }
    start[cells] = at;
    int64_t turned = km_coder_turned(c);
    float *anchors = room((size_t)(cells * turned) * 4);
    for (int64_t k = 0; k < cells; k++) km_coder_turn(c, centre + k * dim, anchors + k * turned);
    km_scan *s = km_scan_new(c, &err);
    if (!s) stop(err.text);
    FILE *out = fopen(v[6], "wb");
    if (!out) stop(v[6]);
    double t4 = km_now();
    for (int64_t q = 0; q < nq; q++) {
        hit best[K];
        int count = 0;
        km_scan_query(s, queries + q * dim, KM_METRIC_L2);
        for (int64_t k = 0; k < cells; k++) {
            km_scan_cell(s, anchors + k * turned, 0);
            scan_list(s, sorted + (size_t)start[k] * bytes, start[k + 1] - start[k], bytes,
                      step_of(c), order + start[k], dist, best, &count);
        }
        for (int i = 0; i < K; i++) fwrite(&best[i].id, 4, 1, out);
    }
    double t5 = km_now(), energy = 0;
    fclose(out);
    for (int64_t i = 0; i < n * dim; i++) energy += (double)r[i] * r[i];
    printf(
        "{\"rows\": %lld, \"dim\": %lld, \"anchors\": %lld, \"code_bytes\": %zu, "
        "\"coder_bytes\": %zu, \"bytes_per_vector\": %.1f, \"turn\": \"%s\", \"residual\": %.6g, "
        "\"error\": %.6g, \"anchors_s\": %.2f, \"train_s\": %.2f, \"encode_s\": %.2f, "
        "\"query_ms\": %.3f}\n",
        (long long)n, (long long)dim, (long long)cells, bytes, km_coder_written(c),
        (double)bytes + ((double)km_coder_written(c) + (double)(cells * dim) * 2) / (double)n,
        km_coder_turned_by(c) == KM_TURN_PCA ? "pca" : "hadamard", energy / (double)n,
        km_coder_error(c), t1 - t0, t2 - t1, t3 - t2, (t5 - t4) / (double)nq * 1e3);
    return 0;
}

static void normal(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    float *x = arg;
    for (int64_t i = begin; i < end; i++) {
        km_philox4 p = km_philox(1, 0, (uint64_t)i);
        double a, b;
        km_box_muller(p.v[0], p.v[1], &a, &b);
        x[2 * i] = (float)a;
        x[2 * i + 1] = (float)b;
    }
}

static int speed(char **v) {
    int64_t n = atoll(v[0]), dim = atoll(v[1]), block = 50000;
    km_threads *t = km_threads_new(0);
    km_error err = {0};
    float *x = room((size_t)((block + 64) * dim) * 4);
    km_threads_for(t, (block + 64) * dim / 2, 4096, normal, x);
    km_coder_options o = {.dim = dim,
                          .bytes = atof(v[2]),
                          .seed = 1,
                          .mode = v[3][0] == 'd' ? KM_CODE_DENSE : KM_CODE_FAST,
                          .turn = KM_TURN_HADAMARD};
    km_coder *c = km_coder_train(t, x, block, &o, &err);
    if (!c) stop(err.text);
    size_t bytes = km_coder_bytes(c);
    uint8_t *codes = room((size_t)n * bytes), *packed = room((size_t)n * bytes);
    int64_t coded = n < 2 * block ? n : 2 * block; /* the others repeat them */
    for (int64_t i = 0; i < coded; i += block) {
        for (int64_t j = 0; i && j < block * dim; j++) x[j] = -x[j];
        km_coder_encode(c, t, x, coded - i < block ? coded - i : block, codes + (size_t)i * bytes);
    }
    for (int64_t i = coded; i < n; i++)
        memcpy(codes + (size_t)i * bytes, codes + (size_t)(i % coded) * bytes, bytes);
    km_coder_pack(c, codes, n, packed);
    km_scan *s = km_scan_new(c, &err);
    float *dist = room((size_t)n * 4);
    double best_s = 1e9, sum = 0;
    for (int q = 0; q < 24; q++) {
        hit best[K];
        int count = 0;
        double t0 = km_now();
        km_scan_query(s, x + (block + q) * dim, KM_METRIC_L2);
        scan_list(s, packed, n, bytes, step_of(c), NULL, dist, best, &count);
        double e = km_now() - t0;
        sum += e;
        if (e < best_s) best_s = e;
    }
    printf("{\"rows\": %lld, \"dim\": %lld, \"code_bytes\": %zu, \"query_ms\": %.3f, "
           "\"mean_ms\": %.3f}\n",
           (long long)n, (long long)dim, bytes, best_s * 1e3, sum / 24 * 1e3);
    return 0;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One query at a time, and all of them together; the best and the median of the former, the best of
 * five of the latter. */
static int search(char **v) {
    km_error err = {0};
    km_index *x = km_index_load(v[0], &err);
    if (!x) stop(err.text);
    int threads = atoi(v[2]);
    km_threads *t = threads > 1 ? km_threads_new(threads) : NULL;
    int64_t n;
    float *q = load(v[1], x->dim, &n), *dist = room((size_t)(n * K) * 4);
    uint64_t *ids = room((size_t)(n * K) * 8);
    double *took = room((size_t)n * sizeof *took), all = 1e9;
    for (int run = 0; run < 6; run++) {
        double t0 = km_now();
        if (km_index_find(x, q, n, K, NULL, t, ids, dist, &err) != KM_OK) stop(err.text);
        double e = km_now() - t0;
        if (run && e < all) all = e; /* the first reads the file */
    }
    for (int64_t i = 0; i < n; i++) {
        double t0 = km_now();
        km_index_find(x, q + i * x->dim, 1, K, NULL, t, ids + i * K, dist, &err);
        took[i] = km_now() - t0;
    }
    qsort(took, (size_t)n, sizeof *took, by_size);
    FILE *out = fopen(v[3], "wb");
    if (!out || fwrite(ids, 8, (size_t)(n * K), out) != (size_t)(n * K) || fclose(out)) stop(v[3]);
    printf("{\"threads\": %d, \"batch\": %lld, \"query_ms\": %.3f, \"median_ms\": %.3f, "
           "\"batch_ms\": %.3f}\n",
           threads, (long long)n, took[0] * 1e3, took[n / 2] * 1e3, all / (double)n * 1e3);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 9 && !strcmp(argv[1], "find")) return find(argv + 2);
    if (argc == 6 && !strcmp(argv[1], "speed")) return speed(argv + 2);
    if (argc == 6 && !strcmp(argv[1], "search")) return search(argv + 2);
    stop("find BASE QUERIES DIM BYTES fast|dense ANCHORS OUT, speed ROWS DIM BYTES fast|dense, "
         "or search INDEX QUERIES THREADS OUT");
}
