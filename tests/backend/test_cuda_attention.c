/* Attention on a GPU, through the public API, against the reference: every family of kernels (by
 * dtype, head size and strides), lengths around their tiles, grouped heads, and the same bits from
 * run to run. Skipped where there is no GPU. */
#include "backend/backend.h"
#include "support/engine.h"
#include <math.h>
#include <stdlib.h>

typedef struct shape {
    int64_t B, H, Hkv, Tq, Tk, D;
    bool causal;
    bool packed; /* q, k, v are slices of one (B, T, 3, H, D) tensor; else (B, T, H, D) each */
    double scale;
} shape;

typedef struct result { /* f32, row-major */
    int64_t n, n_grad;
    float *o, *grad; /* grad: of q, k and v in turn, as their parameters lie in memory */
} result;

static km_tensor *random_tensor(km_ctx *ctx, km_dtype dtype, km_shape sh, uint32_t seed) {
    int64_t n = km_shape_count(sh);
    float *v = malloc((size_t)(n ? n : 1) * sizeof *v);
    for (int64_t i = 0; i < n; i++) {
        float sum = 0; /* of four uniform numbers: near enough to normal */
        for (int k = 0; k < 4; k++) {
            seed = seed * 1664525u + 1013904223u;
            sum += (float)(seed >> 8) * 0x1p-24f - 0.5f;
        }
        v[i] = sum * 1.7f;
    }
    km_tensor *t = km_cast(ctx, km_from_data(ctx, KM_F32, sh, v), dtype);
    free(v);
    return t;
}

static float *read_f32(km_ctx *ctx, km_tensor *t, int64_t *n) {
    km_tensor *f = km_contiguous(ctx, km_cast(ctx, t, KM_F32));
    *n = km_shape_count(km_tensor_shape(t));
    float *v = malloc((size_t)(*n ? *n : 1) * sizeof *v);
    assert_int_equal(km_read(ctx, f, v, (size_t)*n * sizeof *v), KM_OK);
    return v;
}

/* o = attention(q, k, v), then the gradients of sum(o * w). */
static result run(const char *device, km_dtype dtype, const shape *s) {
    static const int heads_first[] = {0, 2, 1, 3};
    km_ctx *ctx = km_ctx_new(device, 2);
    assert_non_null(ctx);
    km_tensor *parameter[3] = {NULL}, *in[3];
    for (int i = 0; i < (s->packed ? 1 : 3); i++) {
        int64_t h = i ? s->Hkv : s->H, t = i ? s->Tk : s->Tq;
        km_shape sh = s->packed ? KM_SHAPE(s->B, s->Tq, 3, s->H, s->D) : KM_SHAPE(s->B, t, h, s->D);
        parameter[i] = engine_parameter(ctx, random_tensor(ctx, dtype, sh, 7u + (uint32_t)i));
    }
    for (int i = 0; i < 3; i++) {
        km_tensor *t = s->packed ? km_select(ctx, parameter[0], 2, i) : parameter[i];
        in[i] = km_permute(ctx, t, heads_first);
    }
    uint64_t before = km_ctx_stats(ctx).fallbacks;
    km_tensor *o = km_attention(ctx, in[0], in[1], in[2], s->causal, s->scale);
    assert_int_equal(km_ctx_stats(ctx).fallbacks, before);
    km_tensor *w = random_tensor(ctx, dtype, KM_SHAPE(s->B, s->H, s->Tq, s->D), 99);
    assert_int_equal(km_backward(ctx, km_sum(ctx, km_mul(ctx, o, w), NULL, 0, false)), KM_OK);

    result r = {0};
    r.o = read_f32(ctx, o, &r.n);
    for (int i = 0; i < 3 && parameter[i]; i++) {
        int64_t n;
        float *g = read_f32(ctx, km_grad(parameter[i]), &n);
        r.grad = realloc(r.grad, (size_t)(r.n_grad + n + 1) * sizeof *r.grad);
        memcpy(r.grad + r.n_grad, g, (size_t)n * sizeof *g);
        r.n_grad += n;
        free(g);
    }
    assert_ok(ctx);
    for (int i = 0; i < 3; i++)
        if (parameter[i]) km_release(parameter[i]);
    km_ctx_free(ctx);
    return r;
}

static void forget(result *r) {
    free(r->o);
    free(r->grad);
}

/* The largest difference, relative to the largest element; NaN counts as infinite. */
static double distance(const float *a, const float *b, int64_t n) {
    double most = 0.1, off = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs(b[i]));
        double d = fabs((double)a[i] - b[i]);
        off = d <= off ? off : isnan(d) ? INFINITY : d;
    }
    return off / most;
}

static void check(km_dtype dtype, const shape *s) {
    double allowed = dtype == KM_F32 ? 2e-5 : dtype == KM_F16 ? 3e-3 : 2e-2;
    result got = run("cuda:0", dtype, s), want = run("ref", dtype, s);
    double o = distance(got.o, want.o, want.n), grad = distance(got.grad, want.grad, want.n_grad);
    if (!(o <= allowed) || !(grad <= allowed))
        fail_msg("%s B%d H%d/%d T%d/%d D%d%s%s: off by %.2g and %.2g", km_dtype_name(dtype),
                 (int)s->B, (int)s->H, (int)s->Hkv, (int)s->Tq, (int)s->Tk, (int)s->D,
                 s->causal ? " causal" : "", s->packed ? " packed" : "", o, grad);
    forget(&got);
    forget(&want);
}

static void tensor_core_heads_agree_with_the_reference(void **state) {
    (void)state;
    static const int64_t sizes[] = {64, 80, 96, 128};
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++) {
            km_dtype dtype = half ? KM_F16 : KM_BF16;
            check(dtype, &(shape){2, 2, 2, 130, 130, sizes[i], true, true, 0});
            check(dtype, &(shape){1, 4, 2, 65, 200, sizes[i], true, false, 0});
            check(dtype, &(shape){1, 2, 1, 200, 65, sizes[i], false, false, 0.2});
        }
}

static void other_heads_and_scales_agree_with_the_reference(void **state) {
    (void)state;
    check(KM_F32, &(shape){1, 2, 2, 70, 70, 64, true, true, 0});
    check(KM_F32, &(shape){1, 2, 1, 33, 70, 128, true, false, 0});
    check(KM_F32, &(shape){1, 1, 1, 20, 40, 256, false, false, 0});
    check(KM_BF16, &(shape){1, 2, 1, 40, 70, 72, true, false, 0});
    check(KM_F16, &(shape){1, 2, 1, 40, 70, 33, true, true, 0.1});
    check(KM_BF16, &(shape){1, 2, 1, 40, 70, 64, true, false, -0.1});
}

static void queries_that_see_no_key_give_zeros(void **state) {
    (void)state;
    shape s = {1, 2, 2, 150, 20, 64, true, false, 0}; /* the first 130 queries see nothing */
    check(KM_BF16, &s);
    result r = run("cuda:0", KM_BF16, &s);
    for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < 130 * 64; i++) assert_true(r.o[h * 150 * 64 + i] == 0);
    forget(&r);
}

static void every_run_gives_the_same_bits(void **state) {
    (void)state;
    static const int64_t sizes[] = {64, 80, 128};
    for (int i = 0; i < 3; i++) {
        shape s = {2, 4, 2, 300, 300, sizes[i], true, false, 0};
        result a = run("cuda:0", KM_BF16, &s), b = run("cuda:0", KM_BF16, &s);
        assert_memory_equal(a.o, b.o, (size_t)a.n * sizeof *a.o);
        assert_memory_equal(a.grad, b.grad, (size_t)a.n_grad * sizeof *a.grad);
        forget(&a);
        forget(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_core_heads_agree_with_the_reference),
        cmocka_unit_test(other_heads_and_scales_agree_with_the_reference),
        cmocka_unit_test(queries_that_see_no_key_give_zeros),
        cmocka_unit_test(every_run_gives_the_same_bits)};
    if (km_cuda_device_count() == 0) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
