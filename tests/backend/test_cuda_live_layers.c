/* Layers over weights of a few bits on a real GPU: every type at widths that take each of the
 * kernels through several of its steps, for one row to many, alone and in a captured step, the norm
 * that a layer makes on the way, and matrices so tall that rings of weights are filled again and
 * again. Skipped where there is no GPU. */
#include "live_gpu.h"
#include "ops/infer.h"
#include "tensor/dtype.h"
#include "tensor/quant.h"
#include "tensor/tensor.h"

enum { OUT = 140 }; /* rows of weights that differ */

typedef struct layer {
    km_tensor *w, *up, *x, *delta, *norm; /* kept; delta and norm NULL: none */
    km_tensor *y, *gated;                 /* kept: where the step leaves its results */
    float *want, *want_gated;             /* (rows, out) */
    int64_t rows, out, k;
} layer;

static uint32_t state = 1;
static float uniform(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1;
}

/* Which of the OUT rows stands at `row` of a tall matrix: those around it are others. */
static int64_t source(int64_t row) { return (row + row / OUT * 13) % OUT; }

/* Rounded weights (out, k): what is exactly there, as floats in *as (OUT, k). */
static km_tensor *weights(km_ctx *ctx, km_dtype d, int64_t out, int64_t k, float *as) {
    size_t row = (size_t)km_dtype_bytes(d, k);
    float *raw = malloc((size_t)(OUT * k) * sizeof *raw);
    unsigned char *some = malloc(OUT * row), *blocks = malloc((size_t)out * row);
    for (int64_t i = 0; i < OUT * k; i++) raw[i] = uniform() + (i % 7 == 0 ? uniform() : 0);
    if (d == KM_BF16) { /* the upper halves of floats */
        for (int64_t i = 0; i < OUT * k; i++) {
            memcpy(some + 2 * i, (char *)&raw[i] + 2, 2);
            memset((char *)&as[i], 0, 2);
            memcpy((char *)&as[i] + 2, some + 2 * i, 2);
        }
    } else {
        km_quantise(d, raw, NULL, OUT * k, some);
        km_dequantise(d, some, OUT * k, as);
    }
    for (int64_t i = 0; i < out; i++)
        memcpy(blocks + (size_t)i * row, some + (size_t)source(i) * row, row);
    km_tensor *t = km_keep(ctx, km_from_data(ctx, d, KM_SHAPE(out, k), blocks));
    assert_int_equal(km_settle(ctx, t), KM_OK);
    free(raw);
    free(some);
    free(blocks);
    return t;
}

static layer made(km_ctx *ctx, km_dtype d, int64_t rows, int64_t out, int64_t k, bool norm) {
    layer l = {.rows = rows, .out = out, .k = k};
    float *w = malloc((size_t)(OUT * k) * sizeof *w), *up = malloc((size_t)(OUT * k) * sizeof *up);
    float *x = malloc((size_t)(rows * k) * sizeof *x),
          *delta = calloc((size_t)(rows * k), sizeof *delta);
    float *scale = malloc((size_t)k * sizeof *scale);
    l.want = malloc((size_t)(rows * out) * sizeof *l.want);
    l.want_gated = malloc((size_t)(rows * out) * sizeof *l.want_gated);
    l.w = weights(ctx, d, out, k, w);
    l.up = weights(ctx, d, out, k, up);
    for (int64_t i = 0; i < rows * k; i++) x[i] = uniform() * (1 + (float)(i % 5));
    for (int64_t i = 0; norm && i < rows * k; i++) delta[i] = uniform();
    for (int64_t i = 0; i < k; i++) scale[i] = 1 + 0.5f * uniform();
    l.x = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(rows, k), x));
    if (norm) {
        l.delta = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(rows, k), delta));
        l.norm = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(k), scale));
    }
    l.y = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(rows, out)));
    l.gated = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(rows, out)));
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
            l.want[r * out + n] = (float)a;
            l.want_gated[r * out + n] = (float)(16 * a / (1 + exp(-16 * a)) * 16 * b);
        }
        for (int64_t n = OUT; n < out; n++) {
            l.want[r * out + n] = l.want[r * out + source(n)];
            l.want_gated[r * out + n] = l.want_gated[r * out + source(n)];
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

/* The distance from what is wanted, against its size; in *most, that of the element furthest off,
 * against the size of one: a single wrong row would be lost in the sum over a tall matrix. */
static double apart(km_ctx *ctx, const km_tensor *t, const float *want, int64_t n, double *most) {
    float *got = malloc((size_t)n * sizeof *got);
    double diff = 0, size = 0, far = 0;
    assert_int_equal(km_read(ctx, t, got, (size_t)n * sizeof *got), KM_OK);
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        diff += d * d, size += pow((double)want[i], 2);
        if (d > far) far = d;
    }
    free(got);
    *most = far / sqrt(size / (double)n);
    return isfinite(diff) ? sqrt(diff / size) : INFINITY;
}

static void done(layer *l) {
    km_tensor *all[] = {l->w, l->up, l->x, l->delta, l->norm, l->y, l->gated};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) km_release(all[i]);
    free(l->want);
    free(l->want_gated);
}

static void check_tall(km_ctx *ctx, km_dtype d, int64_t rows, int64_t out, int64_t k, bool norm) {
    layer l = made(ctx, d, rows, out, k, norm);
    km_graph *graph = NULL;
    for (int run = 0; run < 4; run++) { /* as it is, captured, replayed twice */
        if (run == 0)
            step(ctx, &l), km_step_end(ctx);
        else
            assert_int_equal(km_graph_run(ctx, &graph, 1, step, &l), KM_OK);
        assert_ok(ctx);
        double far, far_gated, a = apart(ctx, l.y, l.want, rows * out, &far),
                               b = apart(ctx, l.gated, l.want_gated, rows * out, &far_gated);
        /* 16 bits, or 8, with a scale to 32 elements for a row alone, else f16 */
        double may = rows > 1 ? 0.002 : km_ctx_activations(ctx) == 8 ? 0.012 : 0.0001;
        bool one_is_off = out > OUT && (far > 8 * may || far_gated > 24 * may);
        if (a > may || b > 2 * may || one_is_off)
            fail_msg("%s (%lld, %lld) to %lld%s, run %d: %.6f, gated %.6f; at most %.6f, %.6f",
                     km_dtype_name(d), (long long)rows, (long long)k, (long long)out,
                     norm ? " with a norm" : "", run, a, b, far, far_gated);
    }
    km_graph_free(graph);
    done(&l);
    km_step_end(ctx);
}

static void check(km_ctx *ctx, km_dtype d, int64_t rows, int64_t k, bool norm) {
    check_tall(ctx, d, rows, OUT, k, norm);
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

/* Of one row of x, a warp then has several sets of rows, and not every warp equally many. */
static void every_row_of_a_tall_matrix_is_right(void **unused) {
    static const km_dtype types[] = {KM_Q4_K, KM_Q6_K, KM_Q8_0};
    (void)unused;
    km_ctx *ctx = km_ctx_new(GPU, 1);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        check_tall(ctx, types[i], 1, 12000, 2048, i % 2 == 0);
        check_tall(ctx, types[i], 1, 9001, 4096, i % 2 == 1);
        check_tall(ctx, types[i], 1, 5283, 2304, false);
    }
    check_tall(ctx, KM_Q4_K, 1, 2500, 11008, false);
    check_tall(ctx, KM_Q6_K, 1, 2500, 11008, true);
    km_ctx_free(ctx);
}

/* More tiles than multiprocessors: blocks that stay take several, and the last of them in part. */
static void every_row_of_many_over_a_tall_matrix_is_right(void **unused) {
    static const km_dtype types[] = {KM_Q4_K, KM_Q6_K, KM_Q8_0, KM_BF16};
    (void)unused;
    km_ctx *ctx = km_ctx_new(GPU, 1);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        check_tall(ctx, types[i], 9, 9001, 512, i % 2 == 0);
        check_tall(ctx, types[i], 300, 9001, 512, i % 2 == 1);
        check_tall(ctx, types[i], 70, 9003, 768, false);
    }
    check_tall(ctx, KM_BF16, 600, 2500, 512, false);
    km_ctx_free(ctx);
}

static void one_row_of_8_bits_is_within_their_rounding(void **unused) {
    static const int64_t widths[] = {512, 576, 2048, 4096};
    (void)unused;
    km_ctx *ctx = km_ctx_new(GPU, 1);
    assert_int_equal(km_ctx_set_activations(ctx, 8), KM_OK);
    for (km_dtype d = KM_PLAIN_COUNT; d < KM_DTYPE_COUNT; d = (km_dtype)(d + 1))
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            if (widths[w] % km_dtype_block(d) == 0) check(ctx, d, 1, widths[w], w % 2 == 1);
    check_tall(ctx, KM_Q4_K, 1, 2500, 11008, false);
    km_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_at_every_width_gives_what_its_weights_say),
        cmocka_unit_test(every_row_of_a_tall_matrix_is_right),
        cmocka_unit_test(every_row_of_many_over_a_tall_matrix_is_right),
        cmocka_unit_test(one_row_of_8_bits_is_within_their_rounding),
    };
    if (km_cuda_device_count() == 0) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
