/* km_check_grad: passes right gradients, points at wrong ones, and refuses what it cannot check. */
#include "support/engine.h"
#include <math.h>

static km_tensor *f64(km_ctx *ctx, km_shape shape, const double *data) {
    return engine_parameter(ctx, km_from_data(ctx, KM_F64, shape, data));
}
#define F64(ctx, shape, ...) f64(ctx, shape, (const double[]){__VA_ARGS__})

static km_tensor *product(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    return km_matmul(ctx, km_tanh(ctx, in[0]), in[1]);
}

static void right_gradients_pass(void **state) {
    km_ctx *ctx = *state;
    km_tensor *in[] = {F64(ctx, KM_SHAPE(2, 3), .1, -.2, .3, 1, .5, -1),
                       F64(ctx, KM_SHAPE(3, 2), 1, 2, 3, -1, -2, -3)};
    km_grad_report r;
    assert_int_equal(km_check_grad(ctx, product, NULL, in, 2, 1e-7, &r), KM_OK);
    assert_true(r.passed);
    assert_true(r.max_error < 1e-8);
    assert_true(r.max_error > 0);
    assert_null(km_grad(in[0])); /* and leave nothing behind */
    assert_elements(ctx, in[1], 1, 2, 3, -1, -2, -3);
    km_release(in[0]);
    km_release(in[1]);
}

static void inputs_of_a_hundred_thousand_do_not_lose_the_difference(void **state) {
    km_ctx *ctx = *state;
    km_tensor *in[] = {F64(ctx, KM_SHAPE(1, 3), .1, -.2, .3),
                       F64(ctx, KM_SHAPE(3, 1), 1e5, -3e5, 2e5)};
    km_grad_report r;
    km_check_grad(ctx, product, NULL, in, 2, 1e-7, &r);
    assert_true(r.passed);
    km_release(in[0]);
    km_release(in[1]);
}

/* y = a b, with a gradient for b that is wrong in its last element. */
static km_tensor *wrong_forward(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    return km_mul(ctx, in[0], in[1]);
}

static void wrong_backward(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *y, km_tensor *dy,
                           km_tensor **grads, void *user) {
    grads[0] = km_mul(ctx, dy, in[1]);
    grads[1] = km_mul(ctx, dy, in[0]);
    double *g = km_tensor_data(grads[1]);
    g[2] *= 1.01;
}

static km_tensor *wrong(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    static const km_custom_op op = {"wrong", wrong_forward, wrong_backward, NULL};
    return km_custom(ctx, &op, in, n);
}

static void a_wrong_gradient_is_pointed_at(void **state) {
    km_ctx *ctx = *state;
    km_tensor *in[] = {F64(ctx, KM_SHAPE(3), 1, 2, 3), F64(ctx, KM_SHAPE(3), 4, 5, 6)};
    km_grad_report r;
    assert_int_equal(km_check_grad(ctx, wrong, NULL, in, 2, 1e-6, &r), KM_OK);
    assert_false(r.passed);
    assert_int_equal(r.input, 1);
    assert_int_equal(r.element, 2);
    assert_true(engine_close_to(r.analytic, r.numeric * 1.01, 1e-6));
    assert_true(engine_close_to(r.max_error, 0.01 / 1.01, 1e-4));
    km_check_grad(ctx, wrong, NULL, in, 2, 0.02, &r);
    assert_true(r.passed); /* within what was asked for */
    km_release(in[0]);
    km_release(in[1]);
}

static km_tensor *forgets_an_input(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    return km_add(ctx, in[0], km_detach(ctx, in[1]));
}

static void a_missing_gradient_counts_as_zero(void **state) {
    km_ctx *ctx = *state;
    km_tensor *in[] = {F64(ctx, KM_SHAPE(2), 1, 2), F64(ctx, KM_SHAPE(2), 4, 5)};
    km_grad_report r;
    km_check_grad(ctx, forgets_an_input, NULL, in, 2, 1e-6, &r);
    assert_false(r.passed);
    assert_int_equal(r.input, 1);
    assert_true(r.analytic == 0);
    km_release(in[0]);
    km_release(in[1]);
}

static km_tensor *constant(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    return km_ones(ctx, KM_F64, KM_SHAPE(3));
}

static void a_function_that_uses_no_input_has_no_gradient(void **state) {
    km_ctx *ctx = *state;
    km_tensor *in[] = {F64(ctx, KM_SHAPE(2), 1, 2)};
    km_grad_report r;
    assert_int_equal(km_check_grad(ctx, constant, NULL, in, 1, 1e-6, &r), KM_OK);
    assert_true(r.passed);
    km_release(in[0]);
}

static km_tensor *nan_at_two(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    return km_sqrt(ctx, km_sub(ctx, in[0], km_full(ctx, KM_F64, KM_SCALAR, 2)));
}

static void nan_never_passes(void **state) {
    km_ctx *ctx = *state;
    km_tensor *in[] = {F64(ctx, KM_SHAPE(3), 5, 1, 7)};
    km_grad_report r;
    km_check_grad(ctx, nan_at_two, NULL, in, 1, 1e9, &r);
    assert_false(r.passed);
    assert_true(isinf(r.max_error));
    km_release(in[0]);
}

static km_tensor *with_dropout(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    return km_dropout(ctx, km_mul(ctx, in[0], in[0]), 0.5);
}

static void random_ops_draw_the_same_numbers_each_time(void **state) {
    km_ctx *ctx = *state;
    km_tensor *in[] = {F64(ctx, KM_SHAPE(8), 1, 2, 3, 4, 5, 6, 7, 8)};
    km_grad_report r;
    km_seed(ctx, 7);
    km_check_grad(ctx, with_dropout, NULL, in, 1, 1e-6, &r);
    assert_true(r.passed);
    km_release(in[0]);
}

static km_tensor *to_f32(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    return km_cast(ctx, in[0], KM_F32);
}

static km_tensor *nothing(km_ctx *ctx, km_tensor *const *in, int n, void *user) { return NULL; }

static km_tensor *failing(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    return km_matmul(ctx, in[0], in[0]);
}

static void a_function_it_cannot_check_is_an_error(void **state) {
    km_ctx *ctx = *state;
    km_tensor *in[] = {F64(ctx, KM_SHAPE(2, 3), 1, 2, 3, 4, 5, 6)};
    km_grad_report r;
    assert_int_equal(km_check_grad(ctx, to_f32, NULL, in, 1, 1e-6, &r), KM_ERR_DTYPE);
    assert_failed(ctx, KM_ERR_DTYPE,
                  "check_grad: the function must give f64 in host memory, not f32");
    assert_false(r.passed);
    assert_int_equal(km_check_grad(ctx, nothing, NULL, in, 1, 1e-6, &r), KM_ERR_NULL);
    assert_failed(ctx, KM_ERR_NULL, "check_grad: the function returned no tensor");
    assert_false(r.passed);
    assert_int_equal(km_check_grad(ctx, failing, NULL, in, 1, 1e-6, &r), KM_ERR_SHAPE);
    assert_failed(ctx, KM_ERR_SHAPE, "matmul: inner dimensions differ: [2, 3] x [2, 3]");
    assert_false(r.passed);
    assert_int_equal(ctx->no_grad, 0);
    assert_int_equal(ctx->n_scopes, 0);
    km_release(in[0]);
}

static void unfit_inputs_are_refused(void **state) {
    km_ctx *ctx = *state;
    km_tensor *good = F64(ctx, KM_SHAPE(2, 2), 1, 2, 3, 4);
    km_tensor *bad[] = {NULL, km_zeros(ctx, KM_F64, KM_SHAPE(2)),
                        km_keep(ctx, km_zeros(ctx, KM_F64, KM_SHAPE(2))),
                        engine_parameter(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(2))),
                        engine_parameter(ctx, km_transpose(ctx, good, 0, 1))};
    km_grad_report r;
    for (int i = 0; i < 5; i++) {
        km_tensor *in[] = {good, bad[i]};
        assert_int_equal(km_check_grad(ctx, product, NULL, in, 2, 1, &r), KM_ERR_STATE);
        assert_failed(ctx, KM_ERR_STATE,
                      "check_grad: input 2 must be a kept, contiguous f64 tensor "
                      "in host memory that requires a gradient");
        km_release(bad[i]);
    }
    assert_int_equal(km_check_grad(ctx, NULL, NULL, &good, 1, 1, &r), KM_ERR_NULL);
    assert_failed(ctx, KM_ERR_NULL, "check_grad: a function, inputs and a report are needed");
    assert_int_equal(km_check_grad(ctx, product, NULL, &good, 1, 1, NULL), KM_ERR_NULL);
    km_ctx_clear_error(ctx);
    assert_int_equal(km_check_grad(ctx, product, NULL, NULL, 1, 1, &r), KM_ERR_NULL);
    km_ctx_clear_error(ctx);
    km_release(good);
}

static void empty_inputs_pass(void **state) {
    km_ctx *ctx = *state;
    km_tensor *in[] = {engine_parameter(ctx, km_zeros(ctx, KM_F64, KM_SHAPE(0, 3))),
                       F64(ctx, KM_SHAPE(3, 1), 1, 2, 3)};
    km_grad_report r;
    assert_int_equal(km_check_grad(ctx, product, NULL, in, 2, 1e-6, &r), KM_OK);
    assert_true(r.passed);
    km_release(in[0]);
    km_release(in[1]);
}

static void the_memory_it_needs_does_not_grow_with_the_elements(void **state) {
    km_ctx *ctx = *state;
    km_tensor *in[] = {engine_parameter(ctx, km_uniform(ctx, KM_F64, KM_SHAPE(8, 8), -1, 1)),
                       engine_parameter(ctx, km_uniform(ctx, KM_F64, KM_SHAPE(8, 8), -1, 1))};
    km_step_end(ctx);
    km_grad_report r;
    km_check_grad(ctx, product, NULL, in, 2, 1e-6, &r);
    assert_true(r.passed);
    assert_true(km_ctx_stats(ctx).peak_bytes < 20 * 8 * 64);
    km_release(in[0]);
    km_release(in[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(right_gradients_pass),
        ON("ref", inputs_of_a_hundred_thousand_do_not_lose_the_difference),
        ON_EACH(a_wrong_gradient_is_pointed_at),
        ON("ref", a_missing_gradient_counts_as_zero),
        ON("ref", a_function_that_uses_no_input_has_no_gradient),
        ON("ref", nan_never_passes),
        ON("ref", random_ops_draw_the_same_numbers_each_time),
        ON("ref", a_function_it_cannot_check_is_an_error),
        ON("ref", unfit_inputs_are_refused),
        ON("ref", empty_inputs_pass),
        ON("ref", the_memory_it_needs_does_not_grow_with_the_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
