/* Shaders of the Vulkan backend by themselves, with every way to cut them: what layers.c chooses from.
 * Launches are captured and replayed, over more weights than a cache holds; times are of one launch with
 * the barrier before it. One JSON object a line.
 *
 * usage: bench_vulkan_shaders [vulkan:N] [substring] */
#include "backend/vulkan/launch.h"
#include "base/clock.h"
#include "kermes.h"
#include "ops/op.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static km_ctx *ctx;
static const char *only = "";

static km_tensor *noise(km_dtype d, int64_t rows, int64_t columns) {
    size_t bytes = (size_t)km_dtype_bytes(d, rows * columns);
    unsigned char *data = malloc(bytes);
    unsigned state = 12345;
    for (size_t i = 0; data && i < bytes; i++)
        data[i] = (unsigned char)((state = state * 1103515245u + 12345u) >> 16 & 0x1f);
    km_tensor *t = km_keep(ctx, km_from_data(ctx, d, KM_SHAPE(rows, columns), data));
    free(data);
    km_settle(ctx, t);
    km_step_end(ctx);
    return t;
}

/* ---- Layers over few rows ---- */

typedef struct layer_push { /* as in layers.c */
    uint64_t x, w, u, bias, y;
    uint32_t rows, n, k;
    uint32_t x_row, row_bytes;
    uint32_t act, up_bytes;
} layer_push;

typedef struct stream_run {
    layer_push push;
    uint32_t spec[7];
    const char *module;
    int copies;
    uint64_t step; /* bytes from one copy of the weights to the next */
} stream_run;

static void stream_step(km_ctx *c, void *user) {
    const stream_run *r = user;
    km_lane *lane = c->lanes[0];
    for (int i = 0; i < r->copies; i++) {
        layer_push p = r->push;
        uint32_t each = r->spec[6];
        p.w += r->step * (uint64_t)i;
        if (p.u) p.u += r->step * (uint64_t)i;
        km_vulkan_launch(lane, r->module, r->spec, 7, &p, sizeof p,
                         KM_GROUPS((p.n + each - 1) / each), 1000);
    }
}

static double best_of(void (*step)(km_ctx *, void *), void *user, int launches) {
    km_graph *graph = NULL;
    double best = 1e9;
    for (int round = 0; round < 5; round++) {
        int reps = round < 2 ? 1 : 4;
        km_sync(ctx);
        double t = km_now();
        for (int i = 0; i < reps; i++) km_graph_run(ctx, &graph, 1, step, user);
        km_sync(ctx);
        t = (km_now() - t) / reps / launches;
        if (round > 1 && t < best) best = t;
    }
    km_graph_free(graph);
    if (km_ctx_status(ctx) != KM_OK) {
        fprintf(stderr, "%s\n", km_ctx_error(ctx));
        exit(1);
    }
    return best;
}

static void streams(const char *name, km_dtype d, int64_t n, int64_t k, bool gated, uint32_t rows) {
    static const uint32_t cuts[][2] = {{128, 4}, {128, 8}, {256, 8}, {256, 16}, {512, 16}};
    char title[128];
    snprintf(title, sizeof title, "stream %s %s", name, km_dtype_name(d));
    if (!strstr(title, only)) return;
    uint64_t bytes = (uint64_t)km_dtype_bytes(d, n * k);
    int copies = (int)(2000000000ull / (bytes * (gated ? 2 : 1)));
    if (copies > 24) copies = 24;
    km_tensor *w = noise(d, n * copies, k), *u = gated ? noise(d, n * copies, k) : NULL;
    km_tensor *x = km_keep(ctx, km_normal(ctx, KM_F32, KM_SHAPE(rows, k), 0, 1));
    km_tensor *y = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(rows, n)));
    km_settle(ctx, x);
    km_settle(ctx, y);
    km_step_end(ctx);
    double best = 1;
    printf("{\"name\": \"%s\", \"us\": {", title);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        uint32_t room = (uint32_t)(k + 4095) / 4096 * 4096, row = (uint32_t)km_dtype_bytes(d, k);
        stream_run r = {.push = {.x = km_vulkan_at(x),
                                 .w = km_vulkan_at(w),
                                 .u = km_vulkan_at(u),
                                 .y = km_vulkan_at(y),
                                 .rows = rows,
                                 .n = (uint32_t)n,
                                 .k = (uint32_t)k,
                                 .x_row = (uint32_t)k,
                                 .row_bytes = row,
                                 .act = gated ? 4 : 0,
                                 .up_bytes = gated ? row : 0},
                        .spec = {KM_F32, (uint32_t)d, gated, gated ? (uint32_t)d : 0, room,
                                 cuts[i][0], cuts[i][1]},
                        .module = rows > 1 ? "layer_stream_4" : "layer_stream",
                        .copies = copies,
                        .step = bytes};
        double t = best_of(stream_step, &r, copies);
        printf("%s\"%ux%u\": %.2f", i ? ", " : "", cuts[i][0], cuts[i][1], t * 1e6);
        if (t < best) best = t;
        fflush(stdout);
    }
    printf("}, \"TB_per_s\": %.3f}\n", (double)bytes * (gated ? 2 : 1) / best / 1e12);
    km_release(w);
    km_release(u);
    km_release(x);
    km_release(y);
    km_step_end(ctx);
}

/* ---- Products of f16 matrices by cooperative matrices ---- */

typedef struct matrix_push { /* as in layers.c */
    uint64_t x, w, scales, bias, y;
    uint32_t rows, n, k;
    uint32_t y_row, act, width;
} matrix_push;

typedef struct matrix_run {
    matrix_push push;
    const char *module;
    uint32_t bm, bn;
    int copies;
    uint64_t step;
} matrix_run;

static void matrix_step(km_ctx *c, void *user) {
    const matrix_run *r = user;
    uint32_t spec[] = {KM_F32, 0};
    for (int i = 0; i < r->copies; i++) {
        matrix_push p = r->push;
        p.w += r->step * (uint64_t)i;
        km_vulkan_launch(c->lanes[0], r->module, spec, 2, &p, sizeof p,
                         KM_GROUPS((p.rows + r->bm - 1) / r->bm, (p.n + r->bn - 1) / r->bn), 1000);
    }
}

static void matrices(int64_t rows, int64_t n, int64_t k) {
    static const struct {
        const char *module;
        uint32_t bm, bn;
    } tiles[] = {{"layer_matrix", 128, 128}, {"layer_matrix_small", 64, 128}};
    char title[128];
    snprintf(title, sizeof title, "matrix %dx%dx%d", (int)rows, (int)n, (int)k);
    if (!strstr(title, only)) return;
    if (!km_vulkan_dev_of(ctx->lanes[0])->matrices) return;
    int copies = 4;
    km_no_grad_begin(ctx);
    km_tensor *w =
        km_keep(ctx, km_cast(ctx, km_normal(ctx, KM_F32, KM_SHAPE(n * copies, k), 0, 1), KM_F16));
    km_tensor *x =
        km_keep(ctx, km_cast(ctx, km_normal(ctx, KM_F32, KM_SHAPE(rows, k), 0, 1), KM_F16));
    km_tensor *y = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(rows, n)));
    km_tensor *s = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(rows)));
    km_no_grad_end(ctx);
    km_tensor *all[] = {w, x, y, s};
    for (int i = 0; i < 4; i++) km_settle(ctx, all[i]);
    km_step_end(ctx);
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        matrix_run r = {.push = {.x = km_vulkan_at(x),
                                 .w = km_vulkan_at(w),
                                 .scales = km_vulkan_at(s),
                                 .y = km_vulkan_at(y),
                                 .rows = (uint32_t)rows,
                                 .n = (uint32_t)n,
                                 .k = (uint32_t)k,
                                 .y_row = (uint32_t)n,
                                 .width = (uint32_t)n},
                        .module = tiles[i].module,
                        .bm = tiles[i].bm,
                        .bn = tiles[i].bn,
                        .copies = copies,
                        .step = (uint64_t)(n * k) * 2};
        double t = best_of(matrix_step, &r, copies);
        printf("{\"name\": \"%s\", \"tile\": \"%s %ux%u\", \"us\": %.2f, \"TFLOP_per_s\": %.1f}\n",
               title, tiles[i].module, tiles[i].bm, tiles[i].bn, t * 1e6,
               2.0 * (double)rows * (double)n * (double)k / t / 1e12);
        fflush(stdout);
    }
    for (int i = 0; i < 4; i++) km_release(all[i]);
    km_step_end(ctx);
}

/* ---- What a launch costs ---- */

static km_tensor *small[2];
static int beside;
static void empty_step(km_ctx *c, void *user) {
    (void)user;
    struct {
        uint64_t a, b, o, walk;
        uint32_t n;
        float f0, f1, low;
    } p = {km_vulkan_at(small[0]), 0, km_vulkan_at(small[1]), 0, 2048, 1, 1, 0};
    uint32_t spec[] = {14, KM_F32, 1, 0};
    for (int i = 0; i < 1000; i++) {
        if (beside) km_vulkan_beside(c->lanes[0]);
        km_vulkan_launch(c->lanes[0], "map", spec, 4, &p, sizeof p, KM_GROUPS(16), 1000);
    }
}

int main(int argc, char **argv) {
    const char *device = argc > 1 ? argv[1] : "vulkan:0";
    if (argc > 2) only = argv[2];
    ctx = km_ctx_new(device, 0);
    if (!ctx) {
        fprintf(stderr, "%s\n", km_last_error());
        return 1;
    }
    for (int i = 0; i < 2; i++) {
        small[i] = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(2048)));
        km_settle(ctx, small[i]);
    }
    km_step_end(ctx);
    for (beside = 0; beside < 2; beside++)
        printf("{\"name\": \"launch of 2048 elements%s\", \"us\": %.2f}\n",
               beside ? ", no barrier" : "", best_of(empty_step, NULL, 1000) * 1e6);
    matrices(512, 2048, 2048);
    matrices(512, 2048, 11008);
    matrices(512, 22016, 2048);
    matrices(2048, 4096, 4096);
    for (int d = 0; d < 2; d++) {
        km_dtype type = d ? KM_Q6_K : KM_Q4_K;
        streams("2048x2048", type, 2048, 2048, false, 1);
        streams("2048x11008", type, 2048, 11008, false, 1);
        if (!d) streams("gated 11008x2048", type, 11008, 2048, true, 1);
        if (d) streams("151936x2048", type, 151936, 2048, false, 1);
    }
    streams("4 rows 2048x2048", KM_Q4_K, 2048, 2048, false, 4);
    for (km_dtype t = KM_PLAIN_COUNT; t < KM_DTYPE_COUNT; t = (km_dtype)(t + 1))
        if (t != KM_Q4_K && t != KM_Q6_K) streams("4096x4096", t, 4096, 4096, false, 1);
    for (int i = 0; i < 2; i++) km_release(small[i]);
    km_ctx_free(ctx);
    return 0;
}
