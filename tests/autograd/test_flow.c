/* How gradients flow: added up over uses, slices, losses and steps; stopped by no_grad and detach;
 * summed back over broadcast axes; and clipped together. */
#include "support/engine.h"
#include <math.h>

static km_tensor *sum(km_ctx *ctx, km_tensor *t) { return km_sum(ctx, t, NULL, 0, false); }

static void gradients_accumulate_across_steps_until_cleared(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    assert_null(km_grad(p));
    for (int step = 1; step <= 3; step++) {
        assert_int_equal(km_backward(ctx, sum(ctx, km_mul(ctx, p, p))), KM_OK);
        km_step_end(ctx);
        assert_elements(ctx, km_grad(p), 6 * step, 10 * step);
    }
    km_zero_grad(ctx, &p, 1);
    assert_null(km_grad(p));
    km_backward(ctx, sum(ctx, p));
    assert_elements(ctx, km_grad(p), 1, 1);
    km_release(p);
}

static void a_gradient_has_the_parameters_shape_and_dtype(void **state) {
    km_ctx *ctx = *state;
    km_tensor *base = engine_range(ctx, KM_F16, KM_SHAPE(2, 3));
    km_tensor *p = engine_parameter(ctx, km_transpose(ctx, base, 0, 1)); /* strided */
    km_tensor *y = km_cast(ctx, p, KM_F32);
    km_backward(ctx, sum(ctx, km_mul(ctx, y, y)));
    assert_shape(km_grad(p), KM_SHAPE(3, 2));
    assert_int_equal(km_tensor_dtype(km_grad(p)), KM_F16);
    assert_elements(ctx, km_grad(p), 0, 6, 2, 8, 4, 10);
    km_release(p);
}

static void a_tensor_used_twice_gets_both_gradients(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *h = km_mul_scalar(ctx, p, 2);                       /* 2p, used three times */
    km_tensor *y = km_add(ctx, km_mul(ctx, h, h), km_neg(ctx, h)); /* 4p^2 - 2p */
    km_backward(ctx, sum(ctx, y));
    assert_elements(ctx, km_grad(p), 22, 38); /* 8p - 2 */
    km_release(p);
}

static void one_tensor_as_both_operands_is_fine(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2, 2), 1, 2, 3, 4));
    km_backward(ctx, sum(ctx, km_add(ctx, p, p)));
    assert_elements(ctx, km_grad(p), 2, 2, 2, 2);
    km_zero_grad(ctx, &p, 1);
    km_backward(ctx, sum(ctx, km_matmul(ctx, p, p))); /* rows of p^T + columns of p^T */
    assert_elements(ctx, km_grad(p), 3 + 4, 7 + 4, 3 + 6, 7 + 6);
    km_release(p);
}

static void slices_of_one_tensor_share_one_gradient(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, engine_range(ctx, KM_F32, KM_SHAPE(6)));
    km_tensor *even = km_slice(ctx, p, 0, 0, 6, 2), *last = km_narrow(ctx, p, 0, 3, 3);
    km_tensor *loss =
        km_add(ctx, sum(ctx, km_mul(ctx, even, even)),
               km_add(ctx, sum(ctx, km_mul_scalar(ctx, last, 10)), km_select(ctx, p, 0, -1)));
    km_backward(ctx, loss);
    assert_elements(ctx, km_grad(p), 0, 0, 4, 10, 8 + 10, 10 + 1);
    km_release(p);
}

static void slices_of_an_intermediate_share_one_gradient(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, engine_range(ctx, KM_F32, KM_SHAPE(2, 6)));
    km_tensor *h = km_mul_scalar(ctx, p, 3), *qkv[3];
    assert_int_equal(km_split(ctx, h, 1, 3, qkv), KM_OK);
    km_tensor *y = km_add(ctx, km_mul_scalar(ctx, qkv[0], 1), km_mul_scalar(ctx, qkv[2], 100));
    km_backward(ctx, sum(ctx, y));
    assert_elements(ctx, km_grad(p), 3, 3, 0, 0, 300, 300, 3, 3, 0, 0, 300, 300);
    km_release(p);
}

static void a_slice_and_the_whole_add_up(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, engine_range(ctx, KM_F32, KM_SHAPE(4)));
    for (int order = 0; order < 2; order++) {
        km_tensor *h = km_mul_scalar(ctx, p, 1);
        km_tensor *a = order ? h : km_slice(ctx, h, 0, 1, 3, 1);
        km_tensor *b = order ? km_slice(ctx, h, 0, 1, 3, 1) : h;
        km_backward(ctx, km_add(ctx, sum(ctx, a), sum(ctx, b)));
        assert_elements(ctx, km_grad(p), 1, 2, 2, 1);
        km_zero_grad(ctx, &p, 1);
        km_step_end(ctx);
    }
    km_release(p);
}

static void gradients_are_summed_over_broadcast_axes(void **state) {
    km_ctx *ctx = *state;
    km_tensor *row = engine_parameter(ctx, F32(ctx, KM_SHAPE(3), 1, 2, 3));
    km_tensor *column = engine_parameter(ctx, F32(ctx, KM_SHAPE(2, 1), 10, 20));
    km_tensor *scalar = engine_parameter(ctx, F32(ctx, KM_SCALAR, 5));
    km_tensor *y = km_mul(ctx, km_mul(ctx, row, column), scalar);
    assert_shape(y, KM_SHAPE(2, 3));
    km_backward(ctx, sum(ctx, y));
    assert_shape(km_grad(column), KM_SHAPE(2, 1));
    assert_elements(ctx, km_grad(row), 150, 150, 150);
    assert_elements(ctx, km_grad(column), 30, 30);
    assert_elements(ctx, km_grad(scalar), 180);
    km_zero_grad(ctx, (km_tensor *[]){row}, 1);
    km_backward(ctx, sum(ctx, km_broadcast(ctx, row, KM_SHAPE(4, 2, 3))));
    assert_elements(ctx, km_grad(row), 8, 8, 8);
    km_release(row);
    km_release(column);
    km_release(scalar);
}

static void views_hand_gradients_through(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, engine_range(ctx, KM_F32, KM_SHAPE(2, 3)));
    km_tensor *w = engine_range(ctx, KM_F32, KM_SHAPE(6));
    km_tensor *turned = km_reshape(ctx, km_transpose(ctx, p, 0, 1), KM_SHAPE(6)); /* copies */
    km_backward(ctx, sum(ctx, km_mul(ctx, turned, w)));
    assert_elements(ctx, km_grad(p), 0, 2, 4, 1, 3, 5);
    km_zero_grad(ctx, &p, 1);
    km_tensor *v = km_squeeze(ctx, km_unsqueeze(ctx, km_reshape(ctx, p, KM_SHAPE(3, 2)), 1), 1);
    km_backward(ctx, sum(ctx, km_mul(ctx, v, km_reshape(ctx, w, KM_SHAPE(3, 2)))));
    assert_elements(ctx, km_grad(p), 0, 1, 2, 3, 4, 5);
    km_release(p);
}

static void a_gradient_finds_its_way_back_between_devices(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2, 2), 1, 2, 3, 4));
    km_tensor *y = km_to(ctx, km_mul_scalar(ctx, p, 3), "cpu");
    km_tensor *z = km_to(ctx, km_mul(ctx, y, y), "ref");
    assert_true(km_requires_grad(z));
    assert_int_equal(km_backward(ctx, sum(ctx, km_add(ctx, z, p))), KM_OK);
    assert_string_equal(km_tensor_device(km_grad(p)), "ref");
    assert_elements(ctx, km_grad(p), 19, 37, 55, 73); /* 18p + 1 */
    km_tensor *far = km_to(ctx, p, "cpu");            /* a parameter itself */
    km_zero_grad(ctx, &p, 1);
    km_backward(ctx, sum(ctx, km_transpose(ctx, far, 0, 1)));
    assert_elements(ctx, km_grad(p), 1, 1, 1, 1);
    km_release(p);
}

/* The gradient of a loss by itself is 1; of one that is used again it is not. */
static void a_loss_used_again_gets_both_gradients(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(1, 2), 0, 0));
    km_tensor *q = engine_parameter(ctx, F32(ctx, KM_SCALAR, 0));
    km_tensor *ce = km_cross_entropy(ctx, p, I32(ctx, KM_SHAPE(1), 0), -1, KM_MEAN);
    km_tensor *five = km_mul_scalar(ctx, km_mul_scalar(ctx, ce, 1), 5);
    km_tensor *both = km_add(ctx, km_add(ctx, ce, km_exp(ctx, q)), five);
    assert_int_equal(km_backward(ctx, both), KM_OK);
    assert_elements_near(ctx, km_grad(p), 1e-6, -3, 3); /* six times (-1/2, 1/2) */
    assert_elements(ctx, km_grad(q), 1);
    km_zero_grad(ctx, &p, 1);
    km_backward(ctx, km_cross_entropy(ctx, p, I32(ctx, KM_SHAPE(1), 0), -1, KM_MEAN));
    assert_elements_near(ctx, km_grad(p), 1e-6, -0.5, 0.5);
    km_release(p);
    km_release(q);
}

static void nothing_is_recorded_under_no_grad(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_no_grad_begin(ctx);
    km_no_grad_begin(ctx);
    km_no_grad_end(ctx);
    assert_false(km_requires_grad(km_exp(ctx, p)));
    assert_false(km_requires_grad(km_reshape(ctx, p, KM_SHAPE(2, 1))));
    assert_null(ctx->tape);
    km_no_grad_end(ctx);
    assert_true(km_requires_grad(km_exp(ctx, p)));
    assert_non_null(ctx->tape);
    km_release(p);
}

static void a_constant_needs_no_tape(void **state) {
    km_ctx *ctx = *state;
    km_tensor *kept = km_keep(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    assert_false(km_requires_grad(km_exp(ctx, kept)));
    km_require_grad(ctx, kept, true);
    assert_true(km_requires_grad(km_exp(ctx, kept)));
    km_require_grad(ctx, kept, false);
    assert_false(km_requires_grad(km_exp(ctx, kept)));
    km_release(kept);
}

static void detach_stops_the_gradient(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *square = km_mul(ctx, p, p), *fixed = km_detach(ctx, square);
    assert_false(km_requires_grad(fixed));
    km_backward(ctx, sum(ctx, km_mul(ctx, fixed, p))); /* as if p^2 were a constant */
    assert_elements(ctx, km_grad(p), 9, 25);
    km_release(p);
}

static void two_losses_share_a_parameter(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *a = sum(ctx, km_mul(ctx, p, p)), *b = sum(ctx, km_mul_scalar(ctx, p, 7));
    assert_int_equal(km_backward(ctx, a), KM_OK);
    assert_int_equal(km_backward(ctx, b), KM_OK);
    assert_elements(ctx, km_grad(p), 13, 17);
    km_release(p);
}

static void a_parameter_off_the_path_gets_no_gradient(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *q = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 1, 1));
    km_exp(ctx, q); /* recorded, and used by nobody */
    km_backward(ctx, sum(ctx, p));
    assert_non_null(km_grad(p));
    assert_null(km_grad(q));
    km_release(p);
    km_release(q);
}

static void where_and_masks_route_gradients(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(3), 1, 2, 3));
    km_tensor *q = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 2));
    km_tensor *larger = km_gt(ctx, p, q);
    km_backward(ctx, sum(ctx, km_where(ctx, larger, p, q)));
    assert_elements(ctx, km_grad(p), 0, 0, 1);
    assert_elements(ctx, km_grad(q), 2);
    km_zero_grad(ctx, &p, 1);
    km_backward(ctx, sum(ctx, km_masked_fill(ctx, p, larger, -9)));
    assert_elements(ctx, km_grad(p), 1, 1, 0);
    km_release(p);
    km_release(q);
}

/* Only the sum, only y, or both outputs of the fused residual norm are used. */
static void unused_outputs_of_a_fused_norm_count_for_nothing(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = engine_parameter(ctx, F32(ctx, KM_SHAPE(2, 3), 1, 2, 4, -1, 0, 3));
    km_tensor *r = engine_parameter(ctx, F32(ctx, KM_SHAPE(2, 3), 0, 1, 0, 2, 2, -1));
    km_tensor *w = engine_parameter(ctx, F32(ctx, KM_SHAPE(3), 1, 2, 3));
    km_tensor *b = engine_parameter(ctx, F32(ctx, KM_SHAPE(3), 0, 1, 0));
    km_tensor *all[] = {x, r, w, b}, *weights = engine_range(ctx, KM_F32, KM_SHAPE(2, 3));
    km_tensor *c = km_keep(ctx, weights), *s;
    float alone[6], fused[6];

    km_add_layer_norm(ctx, x, r, w, b, 1e-5, &s); /* only the sum */
    km_backward(ctx, sum(ctx, km_mul(ctx, s, c)));
    assert_elements(ctx, km_grad(x), 0, 1, 2, 3, 4, 5);
    assert_elements(ctx, km_grad(r), 0, 1, 2, 3, 4, 5);
    assert_null(km_grad(w));
    assert_null(km_grad(b));
    km_zero_grad(ctx, all, 4);
    km_step_end(ctx);

    km_tensor *y = km_layer_norm(ctx, km_add(ctx, x, r), w, b, 1e-5);
    km_backward(ctx, sum(ctx, km_mul(ctx, y, c)));
    km_read(ctx, km_grad(x), alone, sizeof alone);
    km_zero_grad(ctx, all, 4);
    km_step_end(ctx);

    y = km_add_layer_norm(ctx, x, r, w, b, 1e-5, NULL); /* only y */
    km_backward(ctx, sum(ctx, km_mul(ctx, y, c)));
    km_read(ctx, km_grad(x), fused, sizeof fused);
    for (int i = 0; i < 6; i++) assert_true(fabs(alone[i] - fused[i]) < 1e-5);
    assert_non_null(km_grad(b));
    km_zero_grad(ctx, all, 4);
    km_step_end(ctx);

    for (int rms = 0; rms < 2; rms++) { /* both */
        y = rms ? km_add_rms_norm(ctx, x, r, w, 1e-5, &s)
                : km_add_layer_norm(ctx, x, r, w, b, 1e-5, &s);
        km_backward(ctx, sum(ctx, km_mul(ctx, km_add(ctx, y, s), c)));
        km_read(ctx, km_grad(r), fused, sizeof fused);
        km_zero_grad(ctx, all, 4);
        km_step_end(ctx);
        s = km_add(ctx, x, r);
        y = rms ? km_rms_norm(ctx, s, w, 1e-5) : km_layer_norm(ctx, s, w, b, 1e-5);
        km_backward(ctx, sum(ctx, km_mul(ctx, km_add(ctx, y, s), c)));
        km_read(ctx, km_grad(r), alone, sizeof alone);
        km_zero_grad(ctx, all, 4);
        km_step_end(ctx);
        for (int i = 0; i < 6; i++) assert_true(fabs(alone[i] - fused[i]) < 1e-4);
    }
    assert_ok(ctx);
    for (int i = 0; i < 4; i++) km_release(all[i]);
    km_release(c);
}

static void a_kept_gradient_is_not_changed_by_the_next_backward(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_backward(ctx, sum(ctx, p));
    km_tensor *first = km_keep(ctx, km_grad(p));
    km_step_end(ctx);
    km_backward(ctx, sum(ctx, p));
    assert_elements(ctx, first, 1, 1);
    assert_elements(ctx, km_grad(p), 2, 2);
    km_release(first);
    km_release(p);
}

static void a_gradient_shares_no_memory_with_the_step(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *q = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 1, 1));
    km_backward(ctx, sum(ctx, km_add(ctx, p, q))); /* one dy goes to both */
    assert_ptr_not_equal(km_tensor_data(km_grad(p)), km_tensor_data(km_grad(q)));
    km_assign(ctx, km_grad(p), km_zeros(ctx, KM_F32, KM_SHAPE(2)));
    assert_elements(ctx, km_grad(q), 1, 1);
    km_release(p);
    km_release(q);
}

static void empty_parameters_have_empty_gradients(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(0, 3)));
    km_tensor *w = engine_parameter(ctx, F32(ctx, KM_SHAPE(3, 2), 1, 2, 3, 4, 5, 6));
    km_backward(ctx, sum(ctx, km_matmul(ctx, p, w)));
    assert_shape(km_grad(p), KM_SHAPE(0, 3));
    assert_elements(ctx, km_grad(w), 0, 0, 0, 0, 0, 0);
    km_release(p);
    km_release(w);
}

/* ---- Clipping ---- */

static void clipping_scales_all_gradients_by_one_factor(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p[] = {engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 0, 0)),
                      engine_parameter(ctx, km_zeros(ctx, KM_F64, KM_SHAPE(1))),
                      engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 0)), NULL};
    km_tensor *a = km_mul(ctx, p[0], F32(ctx, KM_SHAPE(2), 3, 4));
    km_backward(ctx, sum(ctx, a));
    km_backward(ctx, km_mul_scalar(ctx, sum(ctx, p[1]), 12)); /* the norm is 13; p[2] has none */
    assert_true(km_clip_grad_norm(ctx, p, 4, 100) == 13);     /* below: nothing happens */
    assert_elements(ctx, km_grad(p[0]), 3, 4);
    assert_true(km_clip_grad_norm(ctx, p, 4, 6.5) == 13);
    assert_elements(ctx, km_grad(p[0]), 1.5, 2);
    assert_elements(ctx, km_grad(p[1]), 6);
    assert_true(fabs(km_clip_grad_norm(ctx, p, 4, 1e9) - 6.5) < 1e-6);
    for (int i = 0; i < 3; i++) km_release(p[i]);
}

static void clipping_leaves_infinite_gradients_for_the_caller_to_see(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 0, 0));
    km_backward(ctx, sum(ctx, km_mul(ctx, p, F32(ctx, KM_SHAPE(2), INFINITY, 1))));
    assert_true(isinf(km_clip_grad_norm(ctx, &p, 1, 1)));
    assert_elements(ctx, km_grad(p), INFINITY, 1);
    km_release(p);
}

static void clipping_without_gradients_is_zero(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 0, 0));
    assert_true(km_clip_grad_norm(ctx, &p, 1, 1) == 0);
    assert_true(km_clip_grad_norm(ctx, &p, 0, 1) == 0);
    assert_ok(ctx);
    km_release(p);
}

static void clipping_to_nothing_is_refused(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = NULL;
    assert_true(km_clip_grad_norm(ctx, &p, 1, 0) == 0);
    assert_failed(ctx, KM_ERR_RANGE, "clip_grad_norm: the largest norm must be positive");
    assert_true(km_clip_grad_norm(ctx, &p, 1, NAN) == 0);
    assert_failed(ctx, KM_ERR_RANGE, "clip_grad_norm: the largest norm must be positive");
    assert_true(km_clip_grad_norm(ctx, NULL, 1, 1) == 0);
    assert_failed(ctx, KM_ERR_NULL, "clip_grad_norm: no parameters");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(gradients_accumulate_across_steps_until_cleared),
        ON_EACH(a_gradient_has_the_parameters_shape_and_dtype),
        ON_EACH(a_tensor_used_twice_gets_both_gradients),
        ON_EACH(one_tensor_as_both_operands_is_fine),
        ON_EACH(slices_of_one_tensor_share_one_gradient),
        ON_EACH(slices_of_an_intermediate_share_one_gradient),
        ON_EACH(a_slice_and_the_whole_add_up),
        ON_EACH(gradients_are_summed_over_broadcast_axes),
        ON_EACH(views_hand_gradients_through),
        ON("ref", a_gradient_finds_its_way_back_between_devices),
        ON_EACH(a_loss_used_again_gets_both_gradients),
        ON("ref", nothing_is_recorded_under_no_grad),
        ON("ref", a_constant_needs_no_tape),
        ON_EACH(detach_stops_the_gradient),
        ON("ref", two_losses_share_a_parameter),
        ON("ref", a_parameter_off_the_path_gets_no_gradient),
        ON_EACH(where_and_masks_route_gradients),
        ON_EACH(unused_outputs_of_a_fused_norm_count_for_nothing),
        ON("ref", a_kept_gradient_is_not_changed_by_the_next_backward),
        ON("ref", a_gradient_shares_no_memory_with_the_step),
        ON_EACH(empty_parameters_have_empty_gradients),
        ON_EACH(clipping_scales_all_gradients_by_one_factor),
        ON("ref", clipping_leaves_infinite_gradients_for_the_caller_to_see),
        ON("ref", clipping_without_gradients_is_zero),
        ON("ref", clipping_to_nothing_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
