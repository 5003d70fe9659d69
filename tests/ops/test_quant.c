/* Weights of a few bits as the public calls see them: casts there and back, layers, gradients through
 * them, and what they refuse. Bit-exactness against ggml is tests/tensor/test_quant.c's. */
#include "tensor/tensor.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static double far_apart(km_ctx *ctx, km_tensor *a, km_tensor *b) {
    km_tensor *d = km_sub(ctx, a, b);
    double far = km_item(ctx, km_sum(ctx, km_mul(ctx, d, d), NULL, 0, false));
    return sqrt(far / km_item(ctx, km_sum(ctx, km_mul(ctx, a, a), NULL, 0, false)));
}

static void casts_there_and_back_lose_what_the_bits_allow(void **state) {
    (void)state;
    static const struct {
        km_dtype d;
        double most;
    } types[] = {{KM_Q4_0, 0.1},   {KM_Q4_1, 0.09},  {KM_Q5_0, 0.05},   {KM_Q5_1, 0.045},
                 {KM_Q8_0, 0.008}, {KM_Q2_K, 0.3},   {KM_Q3_K, 0.2},    {KM_Q4_K, 0.09},
                 {KM_Q5_K, 0.045}, {KM_Q6_K, 0.025}, {KM_IQ4_NL, 0.09}, {KM_IQ4_XS, 0.09},
                 {KM_MXFP4, 0.13}};
    km_ctx *ctx = km_ctx_new("cpu", 2);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        km_tensor *x = km_normal(ctx, KM_F32, KM_SHAPE(8, 512), 0, 0.02);
        km_tensor *q = km_cast(ctx, x, types[i].d), *y = km_cast(ctx, q, KM_F32);
        assert_string_equal(km_ctx_error(ctx), "");
        assert_int_equal(km_tensor_dtype(q), types[i].d);
        double far = far_apart(ctx, x, y);
        if (!(far > 0 && far < types[i].most)) fail_msg("%s: %g", km_dtype_name(types[i].d), far);
        km_step_end(ctx);
    }
    km_ctx_free(ctx);
}

static void a_quantised_layer_is_the_layer_of_what_its_weights_stand_for(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 2);
    km_tensor *x = km_keep(ctx, km_normal(ctx, KM_F32, KM_SHAPE(2, 5, 256), 0, 1));
    km_require_grad(ctx, x, true);
    for (int d = KM_Q4_0; d < KM_DTYPE_COUNT; d++) {
        km_tensor *w = km_cast(ctx, km_normal(ctx, KM_F32, KM_SHAPE(48, 256), 0, 0.1), (km_dtype)d);
        km_tensor *plain = km_cast(ctx, w, KM_F32), *y[2], *g[2];
        for (int k = 0; k < 2; k++) {
            y[k] = km_linear(ctx, x, k ? w : plain, NULL, KM_ACT_SILU);
            km_backward(ctx, km_sum(ctx, km_mul(ctx, y[k], y[k]), NULL, 0, false));
            assert_string_equal(km_ctx_error(ctx), "");
            g[k] = km_copy(ctx, km_grad(x));
            km_zero_grad(ctx, &x, 1);
        }
        assert_true(far_apart(ctx, y[0], y[1]) < 0.01);
        assert_true(far_apart(ctx, g[0], g[1]) < 0.01);
        km_tensor *ids = km_from_data(ctx, KM_I32, KM_SHAPE(3), (int32_t[]){0, 47, 5});
        assert_true(far_apart(ctx, km_embedding(ctx, plain, ids), km_embedding(ctx, w, ids)) == 0);
        km_step_end(ctx);
    }
    km_release(x);
    km_ctx_free(ctx);
}

static void rows_can_be_taken_and_nothing_finer(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    km_tensor *x = km_keep(ctx, km_normal(ctx, KM_F32, KM_SHAPE(6, 64), 0, 1));
    km_tensor *q = km_keep(ctx, km_cast(ctx, x, KM_Q8_0));
    km_tensor *rows = km_cast(ctx, km_narrow(ctx, q, 0, 2, 3), KM_F32);
    assert_true(far_apart(ctx, km_narrow(ctx, x, 0, 2, 3), rows) < 0.01);
    assert_null(km_transpose(ctx, q, 0, 1));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_DTYPE);
    km_ctx_clear_error(ctx);
    assert_null(km_narrow(ctx, q, 1, 8, 32));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_DTYPE);
    km_ctx_clear_error(ctx);
    assert_null(km_zeros(ctx, KM_Q8_0, KM_SHAPE(2, 33)));
    assert_true(km_ctx_status(ctx) != KM_OK);
    km_ctx_clear_error(ctx);
    assert_null(km_add(ctx, q, q));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_DTYPE);
    km_ctx_clear_error(ctx);
    assert_null(km_cast(ctx, q, KM_F64));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_DTYPE);
    km_release(x);
    km_release(q);
    km_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_there_and_back_lose_what_the_bits_allow),
        cmocka_unit_test(a_quantised_layer_is_the_layer_of_what_its_weights_stand_for),
        cmocka_unit_test(rows_can_be_taken_and_nothing_finer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
