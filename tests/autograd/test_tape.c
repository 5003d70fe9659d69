/* The tape: whatever happens to tensors between their use and the backward pass - released,
 * changed, freed, cleared - gives the right gradient or an error, and loses no memory. */
#include "support/engine.h"

static km_tensor *sum(km_ctx *ctx, km_tensor *t) { return km_sum(ctx, t, NULL, 0, false); }

static void a_parameter_released_before_backward_still_serves_the_others(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *q = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 7, 11));
    km_step_end(ctx);
    km_tensor *loss = sum(ctx, km_mul(ctx, p, q));
    km_release(p);
    km_full(ctx, KM_F32, KM_SHAPE(2), -1); /* would overwrite freed memory */
    assert_int_equal(km_backward(ctx, loss), KM_OK);
    assert_elements(ctx, km_grad(q), 3, 5);
    km_step_end(ctx);
    km_release(q);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
}

static void a_parameter_may_be_released_without_any_backward(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    sum(ctx, km_mul(ctx, p, p));
    km_release(p);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
}

static void a_parameter_may_be_released_with_its_gradient_after_backward(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_backward(ctx, sum(ctx, km_mul(ctx, p, p)));
    km_tensor *kept = km_keep(ctx, km_grad(p));
    km_release(p);
    km_step_end(ctx);
    assert_elements(ctx, kept, 6, 10);
    km_release(kept);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
}

static void a_constant_released_before_backward_still_serves(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *c = km_keep(ctx, F32(ctx, KM_SHAPE(2), 7, 11));
    km_step_end(ctx);
    km_tensor *loss = sum(ctx, km_mul(ctx, p, c));
    km_release(c);
    assert_int_equal(km_backward(ctx, loss), KM_OK);
    assert_elements(ctx, km_grad(p), 7, 11);
    km_release(p);
}

static void a_gradient_used_on_the_tape_may_be_cleared_before_backward(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_backward(ctx, sum(ctx, km_mul(ctx, p, p)));
    km_step_end(ctx);
    km_tensor *loss = sum(ctx, km_mul(ctx, p, km_grad(p))); /* p * (6, 10) */
    km_zero_grad(ctx, &p, 1);
    assert_int_equal(km_backward(ctx, loss), KM_OK);
    assert_elements(ctx, km_grad(p), 6, 10);
    km_step_end(ctx);
    km_release(p);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
}

static void a_gradient_used_on_the_tape_is_what_it_was_then(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_backward(ctx, sum(ctx, km_mul(ctx, p, p)));
    km_step_end(ctx);
    km_tensor *loss = sum(ctx, km_mul(ctx, p, km_grad(p)));
    assert_int_equal(km_backward(ctx, sum(ctx, p)), KM_OK); /* the gradient is now (7, 11) */
    assert_elements(ctx, km_grad(p), 7, 11);
    assert_int_equal(km_backward(ctx, loss), KM_OK);
    assert_elements(ctx, km_grad(p), 13, 21);
    km_step_end(ctx);
    assert_elements(ctx, km_grad(p), 13, 21);
    km_release(p);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
}

static void an_input_changed_after_use_is_an_error(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *loss = sum(ctx, km_mul(ctx, p, p));
    km_assign(ctx, p, km_zeros(ctx, KM_F32, KM_SHAPE(2)));
    assert_int_equal(km_backward(ctx, loss), KM_ERR_STATE);
    assert_failed(ctx, KM_ERR_STATE, "backward: input 1 of mul was changed after mul used it");
    km_step_end(ctx);
    km_tensor *x = F32(ctx, KM_SHAPE(2), 1, 1);
    loss = sum(ctx, km_mul(ctx, p, x));
    km_write(ctx, x, (float[]){4, 4}, 8);
    km_backward(ctx, loss);
    assert_failed(ctx, KM_ERR_STATE, "backward: input 2 of mul was changed after mul used it");
    km_release(p);
}

static void an_input_whose_data_is_not_needed_may_change(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *loss = sum(ctx, km_add(ctx, p, p));
    km_assign(ctx, p, km_zeros(ctx, KM_F32, KM_SHAPE(2)));
    assert_int_equal(km_backward(ctx, loss), KM_OK);
    assert_elements(ctx, km_grad(p), 2, 2);
    km_release(p);
}

static void an_output_changed_before_backward_is_an_error(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *y = km_exp(ctx, p), *loss = sum(ctx, y);
    km_assign(ctx, km_detach(ctx, y), km_zeros(ctx, KM_F32, KM_SHAPE(2)));
    assert_int_equal(km_backward(ctx, loss), KM_ERR_STATE);
    assert_failed(ctx, KM_ERR_STATE, "backward: the output of exp was changed after exp made it");
    km_release(p);
}

static void an_intermediate_cannot_be_assigned_or_written(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *y = km_exp(ctx, p);
    assert_int_equal(km_assign(ctx, y, p), KM_ERR_STATE);
    assert_failed(ctx, KM_ERR_STATE, "assign: an intermediate of the tape cannot be changed");
    assert_int_equal(km_write(ctx, y, (float[]){1, 2}, 8), KM_ERR_STATE);
    assert_failed(ctx, KM_ERR_STATE, "write: an intermediate of the tape cannot be changed");
    km_release(p);
}

static void a_second_backward_is_an_error(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *loss = sum(ctx, km_mul(ctx, p, p));
    km_backward(ctx, loss);
    assert_int_equal(km_backward(ctx, loss), KM_ERR_STATE);
    assert_failed(ctx, KM_ERR_STATE, "backward: already done for this loss");
    assert_elements(ctx, km_grad(p), 6, 10);
    km_release(p);
}

static void two_losses_over_one_intermediate_are_an_error(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *shared = km_mul(ctx, p, p);
    km_tensor *a = sum(ctx, shared), *b = sum(ctx, km_exp(ctx, shared));
    assert_int_equal(km_backward(ctx, b), KM_OK);
    assert_int_equal(km_backward(ctx, a), KM_ERR_STATE);
    assert_failed(ctx, KM_ERR_STATE, "backward: mul was already back-propagated in this step");
    km_step_end(ctx);
    km_release(p);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
}

static void a_loss_must_be_one_number_that_depends_on_a_parameter(void **state) {
    km_ctx *ctx = *state, *other = km_ctx_new("ref", 1);
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_backward(ctx, NULL);
    assert_failed(ctx, KM_ERR_NULL, "backward: no loss");
    km_backward(ctx, km_exp(ctx, p));
    assert_failed(ctx, KM_ERR_SHAPE, "backward: the loss must have one element, not [2]");
    km_backward(ctx, km_ones(ctx, KM_F32, KM_SCALAR));
    assert_failed(ctx, KM_ERR_STATE, "backward: the loss does not depend on any parameter");
    km_backward(ctx, km_detach(ctx, sum(ctx, p)));
    assert_failed(ctx, KM_ERR_STATE, "backward: the loss does not depend on any parameter");
    km_backward(other, sum(ctx, p));
    assert_failed(other, KM_ERR_STATE, "backward: the loss belongs to another context");
    km_scope_begin(ctx);
    km_tensor *gone = sum(ctx, p);
    km_scope_end(ctx, NULL);
    km_backward(ctx, gone);
    assert_failed(ctx, KM_ERR_STATE, "backward: the loss was freed when its scope ended");
    km_release(p);
    km_ctx_free(other);
}

static void only_kept_float_tensors_become_parameters(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(2));
    assert_int_equal(km_require_grad(ctx, t, true), KM_ERR_STATE);
    assert_failed(ctx, KM_ERR_STATE, "require_grad: only a kept tensor can be a parameter");
    km_require_grad(ctx, NULL, true);
    assert_failed(ctx, KM_ERR_NULL, "require_grad: no tensor");
    km_tensor *k = km_keep(ctx, km_zeros(ctx, KM_I32, KM_SHAPE(2)));
    km_require_grad(ctx, k, true);
    assert_failed(ctx, KM_ERR_DTYPE, "require_grad: i32 has no gradient");
    assert_int_equal(km_require_grad(ctx, k, false), KM_OK);
    km_release(k);
}

static void no_grad_must_be_paired(void **state) {
    km_ctx *ctx = *state;
    km_no_grad_end(ctx);
    assert_failed(ctx, KM_ERR_STATE, "no_grad: ended without a begin");
}

static void a_released_parameter_gets_no_gradient_and_leaks_none(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *q = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 1, 2));
    km_tensor *loss = sum(ctx, km_add(ctx, km_exp(ctx, p), km_slice(ctx, q, 0, 0, 2, 1)));
    km_release(p);
    assert_int_equal(km_backward(ctx, loss), KM_OK);
    assert_null(km_grad(p));
    assert_elements(ctx, km_grad(q), 1, 1);
    km_release(q);
} /* the teardown looks for what was left on the heap */

static void a_failed_backward_is_forgotten_with_the_step(void **state) {
    km_ctx *ctx = *state;
    km_tensor *p = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *x = F32(ctx, KM_SHAPE(2), 1, 1);
    km_tensor *loss = sum(ctx, km_exp(ctx, km_mul(ctx, p, x)));
    km_write(ctx, x, (float[]){4, 4}, 8);
    km_backward(ctx, loss); /* fails at mul, with gradients on their way */
    km_ctx_clear_error(ctx);
    km_step_end(ctx);
    assert_null(km_grad(p));
    km_backward(ctx, sum(ctx, km_mul(ctx, p, p)));
    assert_elements(ctx, km_grad(p), 6, 10);
    km_step_end(ctx);
    km_release(p);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(a_parameter_released_before_backward_still_serves_the_others),
        ON("ref", a_parameter_may_be_released_without_any_backward),
        ON("ref", a_parameter_may_be_released_with_its_gradient_after_backward),
        ON("ref", a_constant_released_before_backward_still_serves),
        ON("ref", a_gradient_used_on_the_tape_may_be_cleared_before_backward),
        ON("ref", a_gradient_used_on_the_tape_is_what_it_was_then),
        ON("ref", an_input_changed_after_use_is_an_error),
        ON("ref", an_input_whose_data_is_not_needed_may_change),
        ON("ref", an_output_changed_before_backward_is_an_error),
        ON("ref", an_intermediate_cannot_be_assigned_or_written),
        ON("ref", a_second_backward_is_an_error),
        ON("ref", two_losses_over_one_intermediate_are_an_error),
        ON("ref", a_loss_must_be_one_number_that_depends_on_a_parameter),
        ON("ref", only_kept_float_tensors_become_parameters),
        ON("ref", no_grad_must_be_paired),
        ON("ref", a_released_parameter_gets_no_gradient_and_leaks_none),
        ON("ref", a_failed_backward_is_forgotten_with_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
