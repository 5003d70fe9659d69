/* Layers over weights of a few bits that no fast kernel takes: rows that are no whole units, gated
 * pairs of two types, x of 16 bits. Kernels are played in plain C, so that what comes out is right
 * only if the host side described each step right. */
#define FAKE_MORE_MODULES                                                                          \
    {"quant_planes", "quant_planes", 12}, {"quant_rows", "quant_rows", 10},                        \
        {"binary", "binary", 6}, {                                                                 \
        "index", "index", 5                                                                        \
    }
#include "fake_gemm.h"

#include "backend/cuda/kernels/quant/quant_args.h"
#include "backend/cuda/kernels/rows/row_args.h"
#include "ops/infer.h"
#include "ops/op.h"
#include "tensor/quant.h"
#include "tensor/tensor.h"

/* ---- Kernels ---- */

typedef struct layout {
    const char *name;
    km_dtype dtype;
    int blocks, elements;
    km_quant_field field[KM_QUANT_FIELDS];
} layout;

#define LAYOUT(name_, blocks_, elements_, ...)                                                     \
    {"quant_rows_" #name_, KM_##name_, blocks_, elements_, {__VA_ARGS__}},
static const layout layouts[] = {KM_QUANT_PLANES(LAYOUT)};

static void planes(const km_planes_args *a) {
    for (int64_t g = 0; g < a->groups; g++) {
        int64_t plane = 0;
        for (int f = 0; f < KM_QUANT_FIELDS && a->field[f].length; f++) {
            const km_quant_field *d = &a->field[f];
            for (int n = 0; n < d->count; n++)
                for (int i = 0; i < d->length; i++) {
                    int64_t here = g * a->bytes + d->place + n * d->stride + i;
                    int64_t at = plane + (g * d->count + n) * d->length + i;
                    if (a->back)
                        a->to[here] = a->from[at];
                    else
                        a->to[at] = here < a->end ? a->from[here] : 0;
                }
            plane += a->padded * d->length * d->count;
        }
    }
}

/* The groups of the rows back in the layout of files, and unpacked from there. */
static void rows(const layout *l, const km_quant_rows_args *a) {
    size_t bytes = (size_t)l->blocks * km_dtype_size(l->dtype);
    int64_t each = a->k / l->elements;
    assert_int_equal(a->k % l->elements, 0);
    assert_int_equal(a->dtype, 0);
    uint8_t *group = malloc(bytes);
    for (int64_t i = 0; i < a->count * each; i++) {
        int64_t g = a->w.first + i, plane = 0;
        assert_null(a->ids);
        for (int f = 0; f < KM_QUANT_FIELDS && l->field[f].length; f++) {
            const km_quant_field *d = &l->field[f];
            for (int n = 0; n < d->count; n++)
                memcpy(group + d->place + n * d->stride,
                       a->w.planes + plane + (g * d->count + n) * d->length, d->length);
            plane += a->w.padded * d->length * d->count;
        }
        km_dequantise(l->dtype, group, l->elements, (float *)a->out + i * l->elements);
    }
    free(group);
}

static bool played(const char *name, void **params) {
    if (strcmp(name, "quant_planes") == 0) return planes(params[0]), true;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (strcmp(name, layouts[i].name) == 0) return rows(&layouts[i], params[0]), true;
    if (strncmp(name, "cast_", 5) == 0 && strcmp(name, "cast_walk") != 0) {
        const km_cast_args *a = params[0];
        km_dtype from = strncmp(name + 5, "f32", 3) == 0   ? KM_F32
                        : strncmp(name + 5, "f16", 3) == 0 ? KM_F16
                                                           : KM_BF16;
        km_dtype to = fake_dtype(name + 8); /* behind the first */
        for (int64_t i = 0; i < a->n; i++) fake_put(a->out, to, i, fake_at(a->x, from, i));
        return true;
    }
    if (strncmp(name, "binary_mul_", 11) == 0) {
        const km_map_args *a = params[0];
        km_dtype d = fake_dtype(name);
        for (int64_t i = 0; i < a->n; i++)
            fake_put(a->out, d, i, fake_at(a->a, d, i) * fake_at(a->b, d, i));
        return true;
    }
    if (strncmp(name, "take_rows_", 10) == 0) {
        const km_index_args *a = params[0];
        for (int64_t i = 0; i < a->items; i++)
            memcpy((char *)a->out + i * a->bytes,
                   (const char *)a->x + ((const int32_t *)a->index)[i] * a->bytes,
                   (size_t)a->bytes);
        return true;
    }
    return false;
}

static km_cu_result launch(km_cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                           unsigned by, unsigned bz, unsigned shared, km_cu_stream stream,
                           void **params, void **extra) {
    if (played((const char *)(uintptr_t)f, params)) return KM_CU_OK;
    return fake_gemm_launch(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

static km_cu_result launch_ex(const km_cu_launch_config *c, km_cu_function f, void **params,
                              void **extra) {
    if (played((const char *)(uintptr_t)f, params)) return KM_CU_OK;
    return fake_gemm_launch_ex(c, f, params, extra);
}

static void *symbol(const char *name) {
    void *p = NULL;
    km_cu_result (*plain)(km_cu_function, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, unsigned, km_cu_stream, void **, void **) = launch;
    km_cu_result (*ex)(const km_cu_launch_config *, km_cu_function, void **, void **) = launch_ex;
    if (strcmp(name, "cuLaunchKernel") == 0) return memcpy(&p, &plain, sizeof p), p;
    if (strcmp(name, "cuLaunchKernelEx") == 0) return memcpy(&p, &ex, sizeof p), p;
    return fake_gemm_symbol(name);
}

static int open_fake(void **state) {
    fake_open(state);
    km_cuda_use_symbols(symbol);
    return 0;
}

/* ---- Layers ---- */

static uint32_t seed = 1;
static float uniform(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / 8388608.0f - 1;
}

/* A matrix of some dtype on the device; *as receives its elements. */
static km_tensor *weights(km_ctx *ctx, km_dtype d, int64_t n, int64_t k, bool settled, float *as) {
    void *data = malloc((size_t)km_dtype_bytes(d, n * k) + 1);
    for (int64_t i = 0; i < n * k; i++) as[i] = uniform();
    if (km_dtype_is_block(d)) {
        km_quantise(d, as, NULL, n * k, data);
        km_dequantise(d, data, n * k, as);
    } else {
        for (int64_t i = 0; i < n * k; i++) {
            fake_put(data, d, i, as[i]);
            as[i] = (float)fake_at(data, d, i);
        }
    }
    km_tensor *t = km_keep(ctx, km_from_data(ctx, d, KM_SHAPE(n, k), data));
    if (settled) assert_int_equal(km_settle(ctx, t), KM_OK);
    free(data);
    return t;
}

static void near(km_ctx *ctx, km_tensor *t, const double *want, const char *what) {
    int64_t n = km_tensor_count(t);
    float *got = malloc((size_t)(n + 1) * sizeof *got);
    double off = 0, size = 1e-9;
    km_tensor *wide = t->dtype == KM_F32 ? t : km_cast(ctx, t, KM_F32);
    if (km_ctx_status(ctx) != KM_OK) fail_msg("%s: %s", what, km_ctx_error(ctx));
    assert_int_equal(km_read(ctx, wide, got, (size_t)n * sizeof *got), KM_OK);
    for (int64_t i = 0; i < n; i++) off += pow(got[i] - want[i], 2), size += pow(want[i], 2);
    double apart = sqrt(off / size), may = t->dtype == KM_F32 ? 1e-5 : 0.01;
    free(got);
    if (!(apart < may)) fail_msg("%s: %g apart", what, apart);
}

static double dot(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

enum { MOST = 64 * 512 };
static float w1[MOST], w2[MOST], x1[MOST];
static double want[MOST];

static void check_linears(km_ctx *ctx, km_dtype d, int64_t m, int64_t n, int64_t k, bool settled,
                          km_dtype dtype) {
    float bias[512];
    km_tensor *x = weights(ctx, dtype, m, k, false, x1);
    km_tensor *w[2] = {weights(ctx, d, n, k, settled, w1), weights(ctx, KM_F16, 3, k, false, w2)};
    km_tensor *b[2] = {weights(ctx, dtype, 1, n, false, bias), NULL}, *y[2];
    km_tensor *row = km_reshape(ctx, b[0], KM_SHAPE(n)), *bs[2] = {row, NULL};
    char what[100];
    snprintf(what, sizeof what, "%s (%d, %d, %d)%s of %s", km_dtype_name(d), (int)m, (int)n, (int)k,
             settled ? " settled" : "", km_dtype_name(dtype));
    km_no_grad_begin(ctx);
    assert_int_equal(km_linears(ctx, x, w, bs, 2, y), KM_OK);
    for (int64_t i = 0; i < m * n; i++)
        want[i] = dot(x1 + i / n * k, w1 + i % n * k, k) + bias[i % n];
    near(ctx, y[0], want, what);
    for (int64_t i = 0; i < m * 3; i++) want[i] = dot(x1 + i / 3 * k, w2 + i % 3 * k, k);
    near(ctx, y[1], want, what);
    km_no_grad_end(ctx);
    km_release(x), km_release(w[0]), km_release(w[1]), km_release(b[0]);
    km_step_end(ctx);
}

static void rows_of_any_length_are_multiplied(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        km_dtype d = layouts[i].dtype;
        if (km_dtype_block(d) > 32) continue;
        check_linears(ctx, d, 1, 7, 96, false, KM_F32); /* 21 blocks: half a group at the end */
        check_linears(ctx, d, 5, 64, 32, true, KM_F32); /* in planes for good */
        check_linears(ctx, d, 2, 6, 160, true, KM_F32);
    }
    check_linears(ctx, KM_F16, 3, 9, 35, false, KM_F32);
    check_linears(ctx, KM_BF16, 1, 4, 60, false, KM_F32);
    assert_int_equal(km_ctx_stats(ctx).fallbacks, 0);
    km_ctx_free(ctx);
}

static void x_of_16_bits_is_taken(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        check_linears(ctx, layouts[i].dtype, 2, 5, 256, i % 2, i % 3 ? KM_BF16 : KM_F16);
    check_linears(ctx, KM_F16, 2, 8, 64, false, KM_F16); /* and weights like it, as they are */
    assert_int_equal(km_ctx_stats(ctx).fallbacks, 0);
    km_ctx_free(ctx);
}

static void pairs_of_two_types_are_gated(void **state) {
    static const km_dtype pairs[][2] = {
        {KM_Q4_K, KM_Q6_K}, {KM_Q6_K, KM_Q8_0}, {KM_Q3_K, KM_Q2_K}, {KM_F16, KM_Q5_0}};
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    (void)state;
    for (int i = 0; i < 5; i++) { /* the last: one matrix of both halves, rows of 96 */
        int64_t m = 3, n = 10, k = i < 4 ? 256 : 96;
        km_tensor *x = weights(ctx, KM_F32, m, k, false, x1);
        km_tensor *g = weights(ctx, i < 4 ? pairs[i][0] : KM_Q8_0, i < 4 ? n : 2 * n, k, i % 2, w1);
        km_tensor *u = i < 4 ? weights(ctx, pairs[i][1], n, k, i % 2 == 0, w2) : NULL;
        const float *up = i < 4 ? w2 : w1 + n * k;
        km_no_grad_begin(ctx);
        km_tensor *y = km_gated(ctx, x, g, u, KM_ACT_SILU);
        for (int64_t e = 0; e < m * n; e++) {
            double a = dot(x1 + e / n * k, w1 + e % n * k, k);
            want[e] = a / (1 + exp(-a)) * dot(x1 + e / n * k, up + e % n * k, k);
        }
        near(ctx, y, want, i < 4 ? km_dtype_name(pairs[i][0]) : "joined");
        km_no_grad_end(ctx);
        km_release(x), km_release(g), km_release(u);
        km_step_end(ctx);
    }
    assert_int_equal(km_ctx_stats(ctx).fallbacks, 0);
    km_ctx_free(ctx);
}

static void tables_of_odd_rows_are_looked_up_in(void **state) {
    static const int32_t ids[] = {4, 0, 12, 12, 7};
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        km_dtype d = layouts[i].dtype;
        if (km_dtype_block(d) > 32) continue;
        km_tensor *t = weights(ctx, d, 13, 96, false, w1);
        km_tensor *y = km_embedding(ctx, t, km_from_data(ctx, KM_I32, KM_SHAPE(5), ids));
        for (int e = 0; e < 5 * 96; e++) want[e] = w1[ids[e / 96] * 96 + e % 96];
        near(ctx, y, want, km_dtype_name(d));
        km_release(t);
        km_step_end(ctx);
    }
    assert_int_equal(km_ctx_stats(ctx).fallbacks, 0);
    km_ctx_free(ctx);
}

int main(void) {
#define ODD(test) cmocka_unit_test_setup_teardown(test, open_fake, fake_close)
    const struct CMUnitTest tests[] = {
        ODD(rows_of_any_length_are_multiplied),
        ODD(x_of_16_bits_is_taken),
        ODD(pairs_of_two_types_are_gated),
        ODD(tables_of_odd_rows_are_looked_up_in),
    };
    setenv("KERMES_CUBLAS", "none", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
