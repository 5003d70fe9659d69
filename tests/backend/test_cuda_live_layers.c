/* Layers over weights of a few bits on a real GPU: every type at widths that take each of the kernels
 * through several of its steps, for one row to many, alone and in a captured step, and the norm that a
 * layer makes on the way. Skipped where there is no GPU. */
#include "live_gpu.h"
#include "ops/infer.h"
#include "tensor/dtype.h"
#include "tensor/quant.h"
#include "tensor/tensor.h"

enum { OUT = 140 };

typedef struct layer {
    km_tensor *w, *up, *x, *delta, *norm; /* kept; delta and norm NULL: none */
    km_tensor *y, *gated;                 /* kept: where the step leaves its results */
    float *want, *want_gated;             /* (rows, OUT) */
    int64_t rows, k;
} layer;

static uint32_t state = 1;
static float uniform(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1;
}

/* Rounded weights: what is exactly there, as floats in *as. */
static km_tensor *weights(km_ctx *ctx, km_dtype d, int64_t k, float *as) {
    float *raw = malloc((size_t)(OUT * k) * sizeof *raw);
    unsigned char *blocks = malloc((size_t)km_dtype_bytes(d, OUT * k));
    for (int64_t i = 0; i < OUT * k; i++) raw[i] = uniform() + (i % 7 == 0 ? uniform() : 0);
    km_quantise(d, raw, NULL, OUT * k, blocks);
    km_dequantise(d, blocks, OUT * k, as);
    km_tensor *t = km_keep(ctx, km_from_data(ctx, d, KM_SHAPE(OUT, k), blocks));
    assert_int_equal(km_settle(ctx, t), KM_OK);
    free(raw);
    free(blocks);
    return t;
}

static layer made(km_ctx *ctx, km_dtype d, int64_t rows, int64_t k, bool norm) {
    layer l = {.rows = rows, .k = k};
    float *w = malloc((size_t)(OUT * k) * sizeof *w), *up = malloc((size_t)(OUT * k) * sizeof *up);
    float *x = malloc((size_t)(rows * k) * sizeof *x),
          *delta = calloc((size_t)(rows * k), sizeof *delta);
    float *scale = malloc((size_t)k * sizeof *scale);
    l.want = malloc((size_t)(rows * OUT) * sizeof *l.want);
    l.want_gated = malloc((size_t)(rows * OUT) * sizeof *l.want_gated);
    l.w = weights(ctx, d, k, w);
    l.up = weights(ctx, d, k, up);
    for (int64_t i = 0; i < rows * k; i++) x[i] = uniform() * (1 + (float)(i % 5));
    for (int64_t i = 0; norm && i < rows * k; i++) delta[i] = uniform();
    for (int64_t i = 0; i < k; i++) scale[i] = 1 + 0.5f * uniform();
    l.x = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(rows, k), x));
    if (norm) {
        l.delta = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(rows, k), delta));
        l.norm = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(k), scale));
    }
    l.y = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(rows, OUT)));
    l.gated = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(rows, OUT)));
    for (int64_t r = 0; r < rows; r++) {
        double square = 0;
        for (int64_t i = 0; i < k; i++) square += pow((double)x[r * k + i] + delta[r * k + i], 2);
        double rstd = 1 / sqrt(square / (double)k + 1e-5);
        for (int64_t n = 0; n < OUT; n++) {
            double a = 0, b = 0;
            for (int64_t i = 0; i < k; i++) {
                double v = (double)x[r * k + i] + delta[r * k + i];
                if (norm) v *= rstd * scale[i];
                a += v * w[n * k + i], b += v * up[n * k + i];
            }
            a /= 16, b /= 16; /* the step does so too, to stay within what silu can tell apart */
            l.want[r * OUT + n] = (float)a;
            l.want_gated[r * OUT + n] = (float)(16 * a / (1 + exp(-16 * a)) * 16 * b);
        }
    }
    km_step_end(ctx);
    free(w), free(up), free(x), free(delta), free(scale);
    return l;
}

static void step(km_ctx *ctx, void *user) {
    layer *l = user;
    km_tensor *y = NULL, *x = l->x, *sum;
    km_no_grad_begin(ctx);
    if (l->norm) x = km_add_rms_norm(ctx, l->delta, l->x, l->norm, 1e-5, &sum);
    km_linears(ctx, x, &l->w, NULL, 1, &y);
    km_assign(ctx, l->y, km_mul_scalar(ctx, y, 1.0 / 16));
    if (l->norm) x = km_add_rms_norm(ctx, l->delta, l->x, l->norm, 1e-5, &sum);
    km_assign(ctx, l->gated, km_gated(ctx, x, l->w, l->up, KM_ACT_SILU));
    km_no_grad_end(ctx);
}

/* The distance from what is wanted, against its size. */
static double apart(km_ctx *ctx, const km_tensor *t, const float *want, int64_t n) {
    float *got = malloc((size_t)n * sizeof *got);
    double diff = 0, size = 0;
    assert_int_equal(km_read(ctx, t, got, (size_t)n * sizeof *got), KM_OK);
    for (int64_t i = 0; i < n; i++)
        diff += pow((double)got[i] - want[i], 2), size += pow((double)want[i], 2);
    free(got);
    return isfinite(diff) ? sqrt(diff / size) : INFINITY;
}

static void done(layer *l) {
    km_tensor *all[] = {l->w, l->up, l->x, l->delta, l->norm, l->y, l->gated};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) km_release(all[i]);
    free(l->want);
    free(l->want_gated);
}

static void check(km_ctx *ctx, km_dtype d, int64_t rows, int64_t k, bool norm) {
    layer l = made(ctx, d, rows, k, norm);
    km_graph *graph = NULL;
    for (int run = 0; run < 4; run++) { /* as it is, captured, replayed twice */
        if (run == 0)
            step(ctx, &l), km_step_end(ctx);
        else
            assert_int_equal(km_graph_run(ctx, &graph, 1, step, &l), KM_OK);
        assert_ok(ctx);
        double a = apart(ctx, l.y, l.want, rows * OUT),
               b = apart(ctx, l.gated, l.want_gated, rows * OUT);
        /* int8 with a scale to 32 elements for a row alone, else f16 */
        double may = rows == 1 ? 0.012 : 0.002;
        if (a > may || b > 2 * may)
            fail_msg("%s (%lld, %lld)%s, run %d: %.4f, gated %.4f", km_dtype_name(d),
                     (long long)rows, (long long)k, norm ? " with a norm" : "", run, a, b);
    }
    km_graph_free(graph);
    done(&l);
    km_step_end(ctx);
}

static void every_type_at_every_width_gives_what_its_weights_say(void **unused) {
    static const int64_t widths[] = {256, 512, 576, 1024, 1536, 2048, 2304, 4096};
    static const int64_t rows[] = {1, 2, 16, 17, 64, 130, 260};
    (void)unused;
    km_ctx *ctx = km_ctx_new(GPU, 1);
    for (km_dtype d = KM_PLAIN_COUNT; d < KM_DTYPE_COUNT; d = (km_dtype)(d + 1))
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            if (km_dtype_bytes(d, 256) % 2 || widths[w] % km_dtype_block(d)) continue;
            check(ctx, d, 1, widths[w], w % 2 == 1);
            if (rows[1 + w % 6] * widths[w] < 150000) /* the reference is slow */
                check(ctx, d, rows[1 + w % 6], widths[w], w % 3 == 0);
        }
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t w = 1; w < sizeof widths / sizeof *widths; w += 2)
            if (rows[r] * widths[w] < 300000) check(ctx, KM_Q4_K, rows[r], widths[w], r % 2 == 0);
    km_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_at_every_width_gives_what_its_weights_say),
    };
    if (km_cuda_device_count() == 0) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
