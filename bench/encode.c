/* How fast vectors become codes on a device, the way `kermes compress` does it block by block: rows from
 * the host's memory to cells and codes in it. One JSON object.
 *
 *   bench_encode DEVICE ROWS DIM BYTES fast|dense [CELLS]
 *
 * The rows are normal numbers whose deviation falls over the columns, so that axes get different bits; the
 * coder is trained on some of them, anchors are some of them. `encode_ms` is encoding alone, of residuals
 * that are on the device (on the CPU: in its memory). */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tensor/tensor.h"
#include "vector/device_coder.h"
#include "vector/index.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRAINED = 8192, BLOCK = 32768 };

static void fill(float *x, int64_t n, int64_t d) {
    for (int64_t i = 0; i < n * d; i += 2) {
        km_philox4 p = km_philox(1, 2, (uint64_t)i);
        double a, b;
        km_box_muller(p.v[0], p.v[1], &a, &b);
        x[i] = (float)(a / sqrt(1 + (double)(i % d) / 64));
        if (i + 1 < n * d) x[i + 1] = (float)(b / sqrt(1 + (double)((i + 1) % d) / 64));
    }
}

/* Rows as residuals, all at once: the best of a few times, in seconds. */
static double encode_alone(km_ctx *ctx, const km_coder *c, const float *rows, int64_t n,
                           uint8_t *codes) {
    int64_t dim = km_coder_dim(c);
    km_error err = {0};
    double best = INFINITY;
    if (ctx->device->host) {
        double begin = km_now();
        return km_coder_encode(c, ctx->threads, rows, n, codes) == KM_OK ? km_now() - begin : NAN;
    }
    km_device_coder *d = km_device_coder_new(ctx, c, &err);
    km_tensor *x = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(n, dim), rows));
    km_tensor *square = km_keep(ctx, km_sum(ctx, km_mul(ctx, x, x), (const int[]){1}, 1, false));
    km_step_end(ctx);
    for (int i = 0; d && i < 4; i++) {
        km_sync(ctx);
        double begin = km_now();
        if (km_device_coder_run(d, x, square, codes) != KM_OK) best = NAN;
        if (km_now() - begin < best) best = km_now() - begin;
        km_step_end(ctx);
    }
    km_release(x);
    km_release(square);
    km_device_coder_free(d);
    return best;
}

int main(int argc, char **argv) {
    if (argc < 6)
        return fprintf(stderr, "usage: bench_encode DEVICE ROWS DIM BYTES fast|dense [CELLS]\n"), 2;
    int64_t n = atoll(argv[2]), d = atoll(argv[3]), cells = argc > 6 ? atoll(argv[6]) : 256;
    int64_t block = n < BLOCK ? n : BLOCK;
    bool dense = !strcmp(argv[5], "dense");
    km_ctx *ctx = km_ctx_new(argv[1], 0);
    km_error err = {0};
    if (!ctx || n < 1 || d < 1 || cells < 1)
        return fprintf(stderr, "bench_encode: %s\n",
                       ctx ? "a number makes no sense" : km_last_error()),
               1;
    int64_t made = n < TRAINED     ? TRAINED
                   : n < 4 * BLOCK ? n
                                   : 4 * BLOCK; /* the same rows again and again */
    float *x = km_alloc(sizeof *x * (size_t)(made * d)),
          *anchors = km_alloc(sizeof *x * (size_t)(cells * d));
    uint8_t *codes = km_alloc((size_t)block * (size_t)(d + 64));
    if (!x || !anchors || !codes || cells > made)
        return fprintf(stderr, "bench_encode: no memory\n"), 1;
    fill(x, made, d);
    for (int64_t i = 0; i < cells * d; i++) anchors[i] = 0.3f * x[i];
    km_coder_options o = {
        .dim = d, .bytes = atof(argv[4]), .mode = dense ? KM_CODE_DENSE : KM_CODE_FAST, .rows = n};
    km_coder *c = km_coder_train(ctx->threads, x, TRAINED, &o, &err);
    km_index *index =
        c ? km_index_frame(ctx->threads, KM_METRIC_L2, KM_RERANK_NONE, d, anchors, cells, c, &err)
          : NULL;
    km_index_encoder *e = index ? km_index_encoder_new(ctx, index, block, &err) : NULL;
    if (!e) return fprintf(stderr, "bench_encode: %s\n", err.text), 1;
    double alone = encode_alone(ctx, c, x, block, codes), took = 0;
    km_status s = KM_OK;
    km_encoded got;
    for (int64_t at = -block; s == KM_OK && at < n; at += block) { /* the first one is to warm up */
        int64_t m = at < 0 || n - at > block ? block : n - at,
                from = at < 0 ? 0 : at % (made - made % block);
        double begin = km_now();
        s = km_index_encoder_run(e, x + (from + m <= made ? from : 0) * d, m, false, &got, &err);
        if (at >= 0) took += km_now() - begin;
    }
    if (s != KM_OK || !isfinite(alone)) return fprintf(stderr, "bench_encode: %s\n", err.text), 1;
    printf(
        "{\"device\": \"%s\", \"rows\": %lld, \"dim\": %lld, \"bytes\": %zu, \"mode\": \"%s\", \"cells\": %lld, "
        "\"seconds\": %.4f, \"rows_per_s\": %.0f, \"encode_ms\": %.3f, \"encode_rows_per_s\": %.0f}\n",
        km_ctx_device(ctx), (long long)n, (long long)d, km_coder_bytes(c), dense ? "dense" : "fast",
        (long long)cells, took, (double)n / took, alone * 1e3, (double)block / alone);
    km_index_encoder_free(e);
    km_index_close(index);
    km_free(x);
    km_free(codes);
    km_ctx_free(ctx);
    return 0;
}
