/* Ops of the user's own: right ones fit in like any other; wrong ones fail with their name. */
#include "support/engine.h"

static km_tensor *sum(km_ctx *ctx, km_tensor *t) { return km_sum(ctx, t, NULL, 0, false); }

/* y = a^2 b, its gradients 2 a b dy and a^2 dy. *user counts the calls of backward. */
static km_tensor *square_times(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    return km_mul(ctx, km_mul(ctx, in[0], in[0]), in[1]);
}

static void square_times_back(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *y, km_tensor *dy,
                              km_tensor **grads, void *user) {
    if (user) ++*(int *)user;
    assert_int_equal(n, 2);
    assert_shape(y, km_tensor_shape(in[0]));
    grads[0] = km_mul(ctx, dy, km_mul_scalar(ctx, km_mul(ctx, in[0], in[1]), 2));
    grads[1] = km_mul(ctx, dy, km_mul(ctx, in[0], in[0]));
}

static void a_custom_op_takes_part_in_the_backward_pass(void **state) {
    km_ctx *ctx = *state;
    int calls = 0;
    km_custom_op op = {"square_times", square_times, square_times_back, &calls};
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 3, 5));
    km_tensor *b = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 10, 100));
    km_tensor *in[] = {km_mul_scalar(ctx, a, 1), b};
    km_tensor *y = km_custom(ctx, &op, in, 2);
    assert_elements(ctx, y, 90, 2500);
    assert_true(km_requires_grad(y));
    km_backward(ctx, sum(ctx, km_mul_scalar(ctx, y, 2)));
    assert_elements(ctx, km_grad(a), 120, 2000);
    assert_elements(ctx, km_grad(b), 18, 50);
    assert_int_equal(calls, 1);
    km_release(a);
    km_release(b);
}

static void its_description_need_not_outlive_the_call(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 3));
    km_tensor *y;
    {
        km_custom_op op = {"square_times", square_times, square_times_back, NULL};
        y = km_custom(ctx, &op, (km_tensor *[]){a, a}, 2);
        memset(&op, 0xff, sizeof op);
    }
    km_backward(ctx, y);
    assert_elements(ctx, km_grad(a), 27);
    km_release(a);
}

static void without_parameters_its_backward_is_not_asked(void **state) {
    km_ctx *ctx = *state;
    km_custom_op op = {"square_times", square_times, square_times_back, NULL};
    km_tensor *a = F32(ctx, KM_SHAPE(1), 3);
    assert_false(km_requires_grad(km_custom(ctx, &op, (km_tensor *[]){a, a}, 2)));
    km_tensor *p = engine_parameter(ctx, a);
    op.backward = NULL; /* or has none: the gradient ends here */
    assert_false(km_requires_grad(km_custom(ctx, &op, (km_tensor *[]){p, p}, 2)));
    op.backward = square_times_back;
    km_no_grad_begin(ctx);
    assert_false(km_requires_grad(km_custom(ctx, &op, (km_tensor *[]){p, p}, 2)));
    km_no_grad_end(ctx);
    assert_ok(ctx);
    km_release(p);
}

static void only_first_back(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *y, km_tensor *dy,
                            km_tensor **grads, void *user) {
    grads[0] = dy;
}

static void an_input_may_get_no_gradient(void **state) {
    km_ctx *ctx = *state;
    km_custom_op op = {"first", square_times, only_first_back, NULL};
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 3));
    km_tensor *b = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 4));
    km_backward(ctx, km_custom(ctx, &op, (km_tensor *[]){a, b}, 2));
    assert_elements(ctx, km_grad(a), 1);
    assert_null(km_grad(b));
    km_release(a);
    km_release(b);
}

static void wrong_shape_back(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *y, km_tensor *dy,
                             km_tensor **grads, void *user) {
    grads[1] = km_zeros(ctx, KM_F32, KM_SHAPE(3, 1));
}

static void a_gradient_of_the_wrong_shape_is_named(void **state) {
    km_ctx *ctx = *state;
    km_custom_op op = {"skewed", square_times, wrong_shape_back, NULL};
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 3));
    assert_int_equal(km_backward(ctx, km_custom(ctx, &op, (km_tensor *[]){a, a}, 2)), KM_ERR_SHAPE);
    assert_failed(ctx, KM_ERR_SHAPE, "skewed: the gradient of input 2 is [3, 1], not [1]");
    km_step_end(ctx);
    assert_null(km_grad(a));
    km_release(a);
}

static void kept_back(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *y, km_tensor *dy,
                      km_tensor **grads, void *user) {
    grads[0] = user; /* a kept tensor */
}

static void a_kept_tensor_given_as_gradient_stays_the_users(void **state) {
    km_ctx *ctx = *state;
    km_tensor *mine = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 30, 40));
    km_custom_op op = {"kept", square_times, kept_back, mine};
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(2), 1, 2));
    km_step_end(ctx);
    km_backward(ctx, sum(ctx, km_custom(ctx, &op, (km_tensor *[]){a, a}, 2)));
    km_step_end(ctx);
    assert_true(km_clip_grad_norm(ctx, &a, 1, 5) == 50);
    assert_elements(ctx, km_grad(a), 3, 4);
    assert_elements(ctx, mine, 30, 40);
    km_release(a);
    assert_elements(ctx, mine, 30, 40);
    km_release(mine);
}

static void foreign_back(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *y, km_tensor *dy,
                         km_tensor **grads, void *user) {
    grads[0] = user;
}

static void a_gradient_from_elsewhere_is_refused(void **state) {
    km_ctx *ctx = *state, *other = km_ctx_new("ref", 1);
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 3));
    km_custom_op op = {"foreign", square_times, foreign_back, F32(other, KM_SHAPE(1), 1)};
    km_backward(ctx, km_custom(ctx, &op, (km_tensor *[]){a, a}, 2));
    assert_failed(ctx, KM_ERR_STATE, "foreign: the gradient of input 1 belongs to another context");
    km_step_end(ctx);
    km_scope_begin(ctx);
    op.user = F32(ctx, KM_SHAPE(1), 1);
    km_scope_end(ctx, NULL);
    km_backward(ctx, km_custom(ctx, &op, (km_tensor *[]){a, a}, 2));
    assert_failed(
        ctx, KM_ERR_STATE,
        "foreign: the gradient of input 1 was freed (released, or made in a scope that has ended)");
    km_release(a);
    km_ctx_free(other);
}

static void failing_back(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *y, km_tensor *dy,
                         km_tensor **grads, void *user) {
    km_ctx_fail(ctx, KM_ERR_RANGE, "picky: I do not like this gradient");
}

static km_tensor *failing(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    km_ctx_fail(ctx, KM_ERR_RANGE, "picky: I do not like %s", "this input");
    return in[0];
}

static km_tensor *nothing(km_ctx *ctx, km_tensor *const *in, int n, void *user) { return NULL; }

static void errors_of_its_functions_are_the_contexts(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 3)), *in[] = {a, a};
    assert_refused(ctx, km_custom(ctx, &(km_custom_op){"picky", failing, NULL, NULL}, in, 2),
                   KM_ERR_RANGE, "picky: I do not like this input");
    assert_refused(ctx, km_custom(ctx, &(km_custom_op){"nothing", nothing, NULL, NULL}, in, 2),
                   KM_ERR_NULL, "nothing: forward returned no tensor");
    km_custom_op op = {"picky", square_times, failing_back, NULL};
    assert_int_equal(km_backward(ctx, km_custom(ctx, &op, in, 2)), KM_ERR_RANGE);
    assert_failed(ctx, KM_ERR_RANGE, "picky: I do not like this gradient");
    km_step_end(ctx);
    assert_int_equal(ctx->no_grad, 0);
    km_release(a);
}

static void missing_pieces_are_refused(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = F32(ctx, KM_SHAPE(1), 3), *in[] = {a, NULL};
    km_custom_op op = {"square_times", square_times, NULL, NULL};
    const char *text = "custom: an op needs a name and a forward function";
    assert_refused(ctx, km_custom(ctx, NULL, in, 1), KM_ERR_NULL, text);
    assert_refused(ctx, km_custom(ctx, &(km_custom_op){"x", NULL, NULL, NULL}, in, 1), KM_ERR_NULL,
                   text);
    assert_refused(ctx, km_custom(ctx, &(km_custom_op){NULL, nothing, NULL, NULL}, in, 1),
                   KM_ERR_NULL, text);
    assert_refused(ctx, km_custom(ctx, &op, NULL, 2), KM_ERR_NULL, "square_times: no inputs given");
    assert_refused(ctx, km_custom(ctx, &op, in, -1), KM_ERR_NULL, "square_times: no inputs given");
    assert_refused(ctx, km_custom(ctx, &op, in, 2), KM_ERR_NULL,
                   "square_times: argument 2 is NULL");
}

/* ---- What forward may return ---- */

static km_tensor *hand_through(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    return user ? user : in[0];
}

static void pass_back(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *y, km_tensor *dy,
                      km_tensor **grads, void *user) {
    grads[0] = km_mul_scalar(ctx, dy, 3);
}

static void forward_may_return_its_input(void **state) {
    km_ctx *ctx = *state;
    km_custom_op op = {"through", hand_through, pass_back, NULL};
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 7));
    km_tensor *y = km_custom(ctx, &op, &a, 1);
    assert_ptr_not_equal(y, a);
    km_backward(ctx, y);
    assert_elements(ctx, km_grad(a), 3);
    km_release(a);
}

static void an_input_handed_through_is_not_changed_itself(void **state) {
    km_ctx *ctx = *state;
    km_custom_op op = {"through", hand_through, pass_back, NULL};
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 7));
    km_tensor *constant = F32(ctx, KM_SHAPE(1), 3);
    km_tensor *y = km_custom(ctx, &op, (km_tensor *[]){constant, a}, 2);
    assert_true(km_requires_grad(y));
    assert_false(km_requires_grad(constant));
    km_release(a);
}

static void turned_back(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *y, km_tensor *dy,
                        km_tensor **grads, void *user) {
    grads[0] = km_transpose(ctx, engine_range(ctx, KM_F32, KM_SHAPE(3, 2)), 0, 1);
}

static void a_strided_gradient_is_kept_in_order(void **state) {
    km_ctx *ctx = *state;
    km_custom_op op = {"turned", hand_through, turned_back, NULL};
    km_tensor *a = engine_parameter(ctx, km_ones(ctx, KM_F32, KM_SHAPE(2, 3)));
    km_backward(ctx, sum(ctx, km_custom(ctx, &op, &a, 1)));
    assert_true(km_tensor_is_contiguous(km_grad(a)));
    assert_elements(ctx, km_grad(a), 0, 2, 4, 1, 3, 5);
    km_release(a);
}

static void forward_may_return_a_kept_tensor(void **state) {
    km_ctx *ctx = *state;
    km_tensor *constant = km_keep(ctx, F32(ctx, KM_SHAPE(1), 5));
    km_custom_op op = {"constant", hand_through, pass_back, constant};
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 7));
    for (int step = 1; step <= 2; step++) { /* it must not be tied to the first step's tape */
        km_tensor *y = km_custom(ctx, &op, &a, 1);
        assert_elements(ctx, y, 5);
        assert_false(km_requires_grad(constant));
        assert_int_equal(km_backward(ctx, y), KM_OK);
        assert_elements(ctx, km_grad(a), 3 * step);
        km_step_end(ctx);
    }
    km_release(a);
    km_release(constant);
}

static void forward_may_return_another_ops_result(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 7));
    km_tensor *square = km_mul(ctx, a, a); /* has a place on the tape already */
    km_custom_op op = {"cached", hand_through, pass_back, square};
    km_tensor *y = km_custom(ctx, &op, &a, 1);
    km_backward(ctx, km_add(ctx, y, square));
    assert_elements(ctx, km_grad(a), 3 + 14);
    km_release(a);
}

static void a_useless_return_value_is_refused(void **state) {
    km_ctx *ctx = *state, *other = km_ctx_new("ref", 1);
    km_tensor *a = engine_parameter(ctx, F32(ctx, KM_SHAPE(1), 7));
    km_custom_op op = {"foreign", hand_through, pass_back, F32(other, KM_SHAPE(1), 5)};
    assert_refused(ctx, km_custom(ctx, &op, &a, 1), KM_ERR_STATE,
                   "foreign: the result of forward belongs to another context");
    km_scope_begin(ctx);
    op.user = F32(ctx, KM_SHAPE(1), 5);
    km_scope_end(ctx, NULL);
    assert_refused(
        ctx, km_custom(ctx, &op, &a, 1), KM_ERR_STATE,
        "foreign: the result of forward was freed (released, or made in a scope that has "
        "ended)");
    km_release(a);
    km_ctx_free(other);
}

static void forty_inputs_are_saved_for_the_gradient(void **state) {
    km_ctx *ctx = *state;
    km_tensor *in[40];
    for (int i = 0; i < 40; i++)
        in[i] = engine_parameter(ctx, km_full(ctx, KM_F32, KM_SHAPE(1), i));
    km_custom_op op = {"through", hand_through, pass_back, NULL};
    km_tensor *y = km_custom(ctx, &op, in, 40);
    km_assign(ctx, in[37], in[1]);
    km_backward(ctx, y);
    assert_failed(ctx, KM_ERR_STATE,
                  "backward: input 38 of through was changed after through used it");
    km_step_end(ctx);
    assert_int_equal(km_backward(ctx, km_custom(ctx, &op, in, 40)), KM_OK);
    assert_elements(ctx, km_grad(in[0]), 3);
    for (int i = 0; i < 40; i++) km_release(in[i]);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(a_custom_op_takes_part_in_the_backward_pass),
        ON("ref", its_description_need_not_outlive_the_call),
        ON("ref", without_parameters_its_backward_is_not_asked),
        ON("ref", an_input_may_get_no_gradient),
        ON("ref", a_gradient_of_the_wrong_shape_is_named),
        ON("ref", a_kept_tensor_given_as_gradient_stays_the_users),
        ON("ref", a_gradient_from_elsewhere_is_refused),
        ON("ref", errors_of_its_functions_are_the_contexts),
        ON("ref", missing_pieces_are_refused),
        ON("ref", forward_may_return_its_input),
        ON("ref", an_input_handed_through_is_not_changed_itself),
        ON("ref", a_strided_gradient_is_kept_in_order),
        ON("ref", forward_may_return_a_kept_tensor),
        ON("ref", forward_may_return_another_ops_result),
        ON("ref", a_useless_return_value_is_refused),
        ON("ref", forty_inputs_are_saved_for_the_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
