/* cross_entropy makes its gradient in the forward pass on fast devices; it must be the one that the
 * reference's plain rule gives, alone and under a factor. */
#include "tensor/tensor.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { ROWS = 9, CLASSES = 37 };

static void gradient_on(const char *device, double factor, double *loss, float *grad) {
    km_ctx *ctx = km_ctx_new(device, 2);
    float x[ROWS * CLASSES];
    int32_t targets[ROWS];
    for (int i = 0; i < ROWS * CLASSES; i++) x[i] = (float)sin(i * 0.7) * 3;
    for (int i = 0; i < ROWS; i++) targets[i] = i == 4 ? -1 : i * 4;
    km_tensor *w = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(ROWS, CLASSES), x));
    km_require_grad(ctx, w, true);
    km_tensor *t = km_from_data(ctx, KM_I32, KM_SHAPE(ROWS), targets);
    km_tensor *l = km_cross_entropy(ctx, km_mul_scalar(ctx, w, 0.5), t, -1, KM_MEAN);
    if (factor != 1) l = km_mul_scalar(ctx, l, factor);
    *loss = km_item(ctx, l);
    km_backward(ctx, l);
    assert_string_equal(km_ctx_error(ctx), "");
    km_read(ctx, km_grad(w), grad, sizeof(float) * ROWS * CLASSES);
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    km_release(w);
    km_ctx_free(ctx);
}

static void the_fused_gradient_is_the_reference_gradient(void **state) {
    (void)state;
    const double factors[] = {1, -2.5};
    for (int k = 0; k < 2; k++) {
        double want, got;
        float dref[ROWS * CLASSES], dcpu[ROWS * CLASSES];
        gradient_on("ref", factors[k], &want, dref);
        gradient_on("cpu", factors[k], &got, dcpu);
        assert_true(fabs(want - got) < 1e-5);
        for (int i = 0; i < ROWS * CLASSES; i++) assert_true(fabsf(dref[i] - dcpu[i]) < 1e-6f);
        for (int c = 0; c < CLASSES; c++) assert_true(dcpu[4 * CLASSES + c] == 0); /* ignored */
        assert_true(fabsf(dref[0]) > 1e-3f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fused_gradient_is_the_reference_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
