/* How fast a batch of queries finds its nearest coded rows on a device: the op scan_codes on random
 * codes. One JSON object.
 *
 *   bench_scan DEVICE ROWS DIM BITS QUERIES K [ip]
 *
 * `same` is the part of the answers to a few queries that the same search in f32, row by row, gives
 * too; limit_ms is what 2 * queries * rows * dim operations take at 790 TFLOP/s (the best product
 * measured on an H200), or what reading the codes takes at 4.24 TB/s where that is longer. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "ops/scan_codes.h"
#include "vector/levels.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELLS 1024
#define CHECKED 16

static float normal(uint64_t stream, int64_t i) {
    km_philox4 p = km_philox(1, stream, (uint64_t)i);
    double a, b;
    km_box_muller(p.v[0], p.v[1], &a, &b);
    return (float)a;
}

static km_tensor *give(km_ctx *ctx, km_dtype dtype, km_shape shape, void *data) {
    km_tensor *t = data ? km_keep(ctx, km_from_data(ctx, dtype, shape, data)) : NULL;
    km_free(data);
    return t;
}

static km_tensor *normals(km_ctx *ctx, uint64_t stream, int64_t n, int64_t d) {
    float *x = km_alloc(sizeof *x * (size_t)(n * d));
    for (int64_t i = 0; x && i < n * d; i++) x[i] = normal(stream, i);
    return give(ctx, KM_F32, KM_SHAPE(n, d), x);
}

/* Rows in 1024 cells, each of `bits` to a column. */
static km_coded random_rows(km_ctx *ctx, int64_t n, int64_t d, int bits) {
    int64_t stride = (d * bits + 31) / 32 * 4;
    uint64_t *codes = km_alloc((size_t)(n * stride + 8)), s = 1;
    uint8_t *scale = km_alloc((size_t)n + 1);
    int32_t *cell = km_alloc(sizeof *cell * (size_t)(n + 1));
    int32_t *place = km_alloc(sizeof *place * (size_t)(d + 1));
    float *amp = km_alloc(sizeof *amp * (size_t)d), *tables = km_calloc(KM_SCAN_TABLES * 256, 4);
    km_coded r = {.lost = 0};
    if (!codes || !scale || !cell || !place || !amp || !tables) return r;
    for (int64_t i = 0; i < (n * stride + 7) / 8; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        codes[i] = s ^ s >> 29;
    }
    for (int64_t i = 0; i < n; i++) {
        scale[i] = (uint8_t)(96 + i * 7 % 64);
        cell[i] = (int32_t)(i * CELLS / n);
    }
    for (int64_t j = 0; j <= d; j++) place[j] = (int32_t)(j * bits);
    for (int64_t j = 0; j < d; j++) amp[j] = 1;
    for (int b = 0; b <= 8; b++) km_levels(b, tables + b * 256);
    for (int i = 0; i < 256; i++) tables[9 * 256 + i] = expf((float)(i - 128) / 64) * 0.7f;
    r.codes = give(ctx, KM_U8, KM_SHAPE(n, stride), codes);
    r.scale = give(ctx, KM_U8, KM_SHAPE(n), scale);
    r.cell = give(ctx, KM_I32, KM_SHAPE(n), cell);
    r.place = give(ctx, KM_I32, KM_SHAPE(d + 1), place);
    r.amp = give(ctx, KM_F32, KM_SHAPE(d), amp);
    r.tables = give(ctx, KM_F32, KM_SHAPE(KM_SCAN_TABLES, 256), tables);
    r.centre = normals(ctx, 2, CELLS, d);
    return r;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double checked(km_ctx *ctx, km_tensor *query, const km_coded *rows, int64_t k,
                      bool product) {
    int64_t q = km_tensor_dim(query, 0) < CHECKED ? km_tensor_dim(query, 0) : CHECKED;
    km_tensor *few = km_copy(ctx, km_narrow(ctx, query, 0, 0, q)), *id, *dist;
    int32_t found[2][CHECKED * KM_SCAN_MOST];
    for (int exact = 0; exact < 2; exact++) {
        km_scan_codes_options o = {.product = product, .exact = exact};
        km_scan_coded(ctx, exact ? few : query, rows, k, &o, &id, &dist);
        km_tensor *part = km_copy(ctx, km_narrow(ctx, id, 0, 0, q));
        if (km_read(ctx, part, found[exact], sizeof(int32_t) * (size_t)(q * k)) != KM_OK) return -1;
    }
    int64_t same = 0;
    for (int64_t i = 0; i < q * k; i++)
        for (int64_t j = i / k * k; j < i / k * k + k; j++) same += found[0][i] == found[1][j];
    return (double)same / (double)(q * k);
}

int main(int argc, char **argv) {
    if (argc < 7)
        return fprintf(stderr, "usage: bench_scan DEVICE ROWS DIM BITS QUERIES K [ip]\n"), 2;
    int64_t n = atoll(argv[2]), d = atoll(argv[3]), q = atoll(argv[5]), k = atoll(argv[6]);
    int bits = atoi(argv[4]);
    bool product = argc > 7 && !strcmp(argv[7], "ip");
    km_ctx *ctx = km_ctx_new(argv[1], 0);
    if (!ctx || n < 1 || d < 1 || bits < 1 || bits > 8 || q < 1 || k < 1 || k > KM_SCAN_MOST)
        return fprintf(stderr, "bench_scan: %s\n",
                       ctx ? "a number makes no sense" : km_last_error()),
               1;
    km_coded rows = random_rows(ctx, n, d, bits);
    km_tensor *query = normals(ctx, 3, q, d), *id, *dist;
    enum { REPEATS = 11 };
    double took[REPEATS];
    for (int i = -2; i < REPEATS; i++) {
        km_scan_codes_options o = {.product = product};
        km_sync(ctx);
        double begin = km_now();
        km_scan_coded(ctx, query, &rows, k, &o, &id, &dist);
        km_sync(ctx);
        if (i >= 0) took[i] = km_now() - begin;
        km_step_end(ctx);
    }
    double same = checked(ctx, query, &rows, k, product);
    if (km_ctx_status(ctx) != KM_OK) return fprintf(stderr, "%s\n", km_ctx_error(ctx)), 1;
    qsort(took, REPEATS, sizeof *took, by_size);
    double flop = 2.0 * (double)q * (double)n * (double)d, bytes = (double)n * (double)d * bits / 8;
    double limit = fmax(flop / 790e12, bytes / 4.24e12), ms = took[REPEATS / 2] * 1e3;
    printf("{\"device\": \"%s\", \"rows\": %lld, \"dim\": %lld, \"bits\": %d, \"queries\": %lld, "
           "\"k\": %lld, \"metric\": \"%s\", \"ms\": %.4f, \"best_ms\": %.4f, \"tflops\": %.1f, "
           "\"limit_ms\": %.4f, \"times_limit\": %.2f, \"qps\": %.0f, \"same\": %.5f}\n",
           km_ctx_device(ctx), (long long)n, (long long)d, bits, (long long)q, (long long)k,
           product ? "ip" : "l2", ms, took[0] * 1e3, flop / ms * 1e-9, limit * 1e3,
           ms / (limit * 1e3), (double)q / ms * 1e3, same);
    km_tensor *all[] = {rows.codes, rows.scale,  rows.cell,   rows.place,
                        rows.amp,   rows.tables, rows.centre, query};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) km_release(all[i]);
    km_ctx_free(ctx);
    return same < 0;
}
