/* Every call on contexts and tensors with what it should not get: NULL, tensors of another context,
 * released ones, axes and sizes that are out of range. Each is an error that the context tells, or nothing;
 * afterwards the context works as before. */
#include "base/alloc.h"
#include "kermes.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static km_ctx *ctx, *other;
static km_tensor *fine, *ids, *foreign;

static void check(const char *call, const void *result, bool may_work) {
    if (result && !may_work) fail_msg("%s gave a result", call);
    if (km_ctx_status(ctx) == KM_OK && !may_work) fail_msg("%s told no error", call);
    if (km_ctx_status(ctx) != KM_OK && !*km_ctx_error(ctx)) fail_msg("%s: no text", call);
    km_ctx_clear_error(ctx);
}
#define BAD(call) check(#call, call, false)
#define BAD_STATUS(call) check(#call, (call) == KM_OK ? "" : NULL, false)

/* Ops of one tensor, with each kind of tensor that cannot be used. */
typedef km_tensor *(*unary_fn)(km_ctx *, km_tensor *);

static void ops_of_one_tensor_refuse_what_is_none(void **state) {
    (void)state;
    const unary_fn ops[] = {km_copy, km_contiguous, km_neg,      km_abs,  km_sqrt,   km_rsqrt,
                            km_exp,  km_log,        km_sin,      km_cos,  km_tanh,   km_sigmoid,
                            km_relu, km_gelu,       km_gelu_erf, km_silu, km_detach, km_nonzero};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        BAD(ops[i](ctx, NULL));
        BAD(ops[i](ctx, foreign));
        assert_null(ops[i](NULL, fine));
        km_tensor *gone = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(2)));
        km_step_end(ctx);
        km_release(gone);
        BAD(ops[i](ctx, gone));
    }
}

typedef km_tensor *(*binary_fn)(km_ctx *, km_tensor *, km_tensor *);

static void ops_of_two_tensors_refuse_what_is_none(void **state) {
    (void)state;
    const binary_fn ops[] = {
        km_add, km_sub, km_mul, km_div, km_pow, km_maximum, km_minimum,   km_eq,
        km_ne,  km_lt,  km_le,  km_gt,  km_ge,  km_matmul,  km_embedding, km_masked_select};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        BAD(ops[i](ctx, NULL, fine));
        BAD(ops[i](ctx, fine, NULL));
        BAD(ops[i](ctx, fine, foreign));
        BAD(ops[i](ctx, foreign, fine));
        assert_null(ops[i](NULL, fine, fine));
    }
}

static void shapes_and_views_out_of_range_are_errors(void **state) {
    (void)state;
    km_shape deep = {9, {1}}, negative = KM_SHAPE(-2), vast = KM_SHAPE(INT64_MAX, 4);
    km_tensor *parts[2];
    BAD(km_zeros(ctx, KM_F32, deep));
    BAD(km_zeros(ctx, KM_F32, negative));
    BAD(km_ones(ctx, KM_F32, vast));
    BAD(km_full(ctx, (km_dtype)99, KM_SHAPE(2), 1));
    BAD(km_arange(ctx, KM_F32, -1, 0, 1));
    BAD(km_arange(ctx, KM_F32, INT64_MAX, 0, 1));
    BAD(km_uniform(ctx, KM_F32, vast, 0, 1));
    BAD(km_normal(ctx, KM_I32, KM_SHAPE(2), 0, 1));
    BAD(km_from_data(ctx, KM_F32, KM_SHAPE(2), NULL));
    BAD(km_from_data(ctx, KM_F32, vast, "x"));
    BAD(km_cast(ctx, NULL, KM_F16));
    BAD(km_cast(ctx, foreign, KM_F32));
    BAD(km_cast(ctx, fine, (km_dtype)77));
    BAD(km_slice(ctx, fine, 0, 0, 1, 0));
    BAD(km_slice(ctx, NULL, 0, 0, 1, 1));
    BAD(km_narrow(ctx, fine, 0, 1, 5));
    BAD(km_narrow(ctx, fine, 0, INT64_MAX, INT64_MAX));
    BAD(km_narrow(ctx, NULL, 0, 0, 1));
    BAD(km_select(ctx, fine, 7, 0));
    BAD(km_select(ctx, fine, 0, 99));
    BAD(km_select(ctx, NULL, 0, 0));
    BAD(km_transpose(ctx, fine, 0, 5));
    BAD(km_transpose(ctx, NULL, 0, 1));
    BAD(km_permute(ctx, fine, NULL));
    BAD(km_permute(ctx, fine, (int[]){0, 0}));
    BAD(km_permute(ctx, NULL, (int[]){0, 1}));
    BAD(km_reshape(ctx, fine, KM_SHAPE(5)));
    BAD(km_reshape(ctx, fine, KM_SHAPE(-1, -1)));
    BAD(km_reshape(ctx, NULL, KM_SHAPE(5)));
    BAD(km_reshape(ctx, fine, deep));
    BAD(km_broadcast(ctx, fine, KM_SHAPE(7)));
    BAD(km_broadcast(ctx, NULL, KM_SHAPE(7)));
    BAD(km_unsqueeze(ctx, fine, 9));
    BAD(km_unsqueeze(ctx, NULL, 0));
    BAD(km_squeeze(ctx, fine, 0));
    BAD(km_squeeze(ctx, NULL, 0));
    BAD_STATUS(km_split(ctx, fine, 0, 2, NULL));
    BAD_STATUS(km_split(ctx, fine, 1, 2, parts));
    BAD_STATUS(km_split(ctx, fine, 0, 0, parts));
    BAD_STATUS(km_split(ctx, NULL, 0, 2, parts));
    BAD(km_to(ctx, fine, NULL));
    BAD(km_to(ctx, fine, "toaster"));
    BAD(km_to(ctx, NULL, "cpu"));
    BAD(km_keep(ctx, NULL));
    BAD(km_keep(ctx, foreign));
}

static void ops_with_settings_refuse_bad_ones(void **state) {
    (void)state;
    const int far[] = {5}, twice[] = {0, 0};
    km_tensor *sum = NULL;
    BAD(km_add_scalar(ctx, NULL, 1));
    BAD(km_mul_scalar(ctx, foreign, 1));
    BAD(km_pow_scalar(ctx, ids, 2));
    BAD(km_clamp(ctx, NULL, 0, 1));
    BAD(km_where(ctx, NULL, fine, fine));
    BAD(km_where(ctx, fine, fine, fine));
    BAD(km_masked_fill(ctx, fine, NULL, 0));
    BAD(km_masked_scatter(ctx, fine, fine, fine));
    BAD(km_triu(ctx, ids, 0));
    BAD(km_tril(ctx, NULL, 0));
    BAD(km_dropout(ctx, fine, 2));
    BAD(km_dropout(ctx, NULL, 0.5));
    BAD(km_sum(ctx, NULL, NULL, 0, false));
    BAD(km_sum(ctx, fine, far, 1, false));
    BAD(km_sum(ctx, fine, twice, 2, false));
    BAD(km_sum(ctx, fine, NULL, 3, false));
    BAD(km_sum(ctx, fine, far, -1, false));
    BAD(km_mean(ctx, ids, NULL, 0, false));
    BAD(km_max(ctx, NULL, NULL, 0, false));
    BAD(km_var(ctx, NULL, NULL, 0, false, 1));
    BAD(km_logsumexp(ctx, NULL, NULL, 0, false));
    BAD(km_argmax(ctx, fine, 9, false));
    BAD(km_argmax(ctx, NULL, 0, false));
    BAD(km_linear(ctx, fine, NULL, NULL, KM_ACT_NONE));
    BAD(km_linear(ctx, fine, fine, ids, KM_ACT_NONE));
    BAD(km_linear(ctx, fine, fine, NULL, (km_act)9));
    BAD(km_mlp(ctx, fine, NULL, NULL, KM_ACT_GELU, fine, NULL));
    BAD(km_softmax(ctx, fine, 4));
    BAD(km_softmax(ctx, NULL, 0));
    BAD(km_log_softmax(ctx, NULL, 0));
    BAD(km_layer_norm(ctx, fine, NULL, NULL, 1e-5));
    BAD(km_layer_norm(ctx, NULL, fine, NULL, 1e-5));
    BAD(km_rms_norm(ctx, fine, NULL, 1e-5));
    BAD(km_add_layer_norm(ctx, fine, NULL, fine, NULL, 1e-5, &sum));
    BAD(km_add_rms_norm(ctx, NULL, fine, fine, 1e-5, NULL));
    BAD(km_gather(ctx, fine, 0, NULL));
    BAD(km_gather(ctx, NULL, 0, ids));
    BAD(km_scatter_add(ctx, fine, 0, ids, NULL));
    BAD(km_scatter(ctx, fine, 5, ids, fine));
    BAD(km_index_select(ctx, fine, 0, NULL));
    BAD(km_concat(ctx, NULL, 2, 0));
    BAD(km_concat(ctx, &fine, 0, 0));
    BAD(km_concat(ctx, (km_tensor *[]){fine, NULL}, 2, 0));
    BAD(km_concat(ctx, (km_tensor *[]){fine, foreign}, 2, 0));
    BAD(km_stack(ctx, (km_tensor *[]){NULL, fine}, 2, 0));
    BAD(km_stack(ctx, &fine, 1, 9));
    BAD(km_rope(ctx, fine, NULL, (km_rope_pairs)7, 10000, 0));
    BAD(km_rope(ctx, NULL, NULL, KM_ROPE_HALVES, 10000, 0));
    BAD(km_attention(ctx, fine, fine, NULL, true, 0));
    BAD(km_attention_qkv(ctx, fine, 0, 0, true, 0));
    BAD(km_attention_qkv(ctx, NULL, 1, 1, true, 0));
    BAD(km_cross_entropy(ctx, fine, NULL, KM_NO_IGNORE, KM_MEAN));
    BAD(km_cross_entropy(ctx, NULL, ids, KM_NO_IGNORE, KM_MEAN));
    BAD(km_cross_entropy(ctx, fine, ids, KM_NO_IGNORE, (km_reduction)8));
    BAD(km_linear_cross_entropy(ctx, fine, NULL, ids, 0, KM_NO_IGNORE, KM_MEAN));
    BAD(km_mse(ctx, fine, NULL, KM_MEAN));
    BAD(km_bce_with_logits(ctx, NULL, fine, KM_MEAN));
}

static km_tensor *no_forward(km_ctx *c, km_tensor *const *in, int n, void *user) {
    (void)c, (void)in, (void)n, (void)user;
    return NULL;
}

static void data_gradients_and_optimisers_refuse_bad_input(void **state) {
    (void)state;
    float x[4] = {0};
    km_tensor *p = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(4))), *none = NULL;
    km_sgd sgd = km_sgd_defaults();
    km_adamw adam = km_adamw_defaults();
    BAD_STATUS(km_read(ctx, fine, x, 3));
    BAD_STATUS(km_read(ctx, p, NULL, 16));
    BAD_STATUS(km_read(ctx, NULL, x, 16));
    BAD_STATUS(km_read(ctx, foreign, x, 16));
    BAD_STATUS(km_write(ctx, p, NULL, 16));
    BAD_STATUS(km_write(ctx, p, x, 15));
    BAD_STATUS(km_write(ctx, NULL, x, 16));
    BAD_STATUS(km_assign(ctx, p, NULL));
    BAD_STATUS(km_assign(ctx, NULL, p));
    BAD_STATUS(km_assign(ctx, p, fine));
    assert_true(km_item(ctx, fine) == 0);
    BAD_STATUS(km_ctx_status(ctx));
    assert_false(km_requires_grad(NULL));
    BAD_STATUS(km_require_grad(ctx, NULL, true));
    BAD_STATUS(km_backward(ctx, NULL));
    BAD_STATUS(km_backward(ctx, fine));
    BAD_STATUS(km_sgd_step(ctx, &p, NULL, 1, NULL));
    sgd.size = 0;
    BAD_STATUS(km_sgd_step(ctx, &p, NULL, 1, &sgd));
    sgd = km_sgd_defaults();
    sgd.momentum = 0.9;
    BAD_STATUS(km_sgd_step(ctx, &p, NULL, 1, &sgd));
    BAD_STATUS(km_sgd_step(ctx, NULL, NULL, 1, &sgd));
    BAD_STATUS(km_adamw_step(ctx, &p, NULL, NULL, 1, &adam));
    adam.size = sizeof adam + 1;
    BAD_STATUS(km_adamw_step(ctx, &p, &p, &p, 1, &adam));
    adam = km_adamw_defaults();
    adam.step = 0;
    BAD_STATUS(km_adamw_step(ctx, &p, &p, &p, 1, &adam));
    BAD(km_custom(ctx, NULL, &fine, 1));
    BAD(km_custom(ctx, &(km_custom_op){.name = "x"}, &fine, 1));
    BAD(km_custom(ctx, &(km_custom_op){.name = "x", .forward = no_forward}, &fine, 1));
    BAD(km_custom(ctx, &(km_custom_op){.name = "x", .forward = no_forward}, &none, 1));
    BAD_STATUS(km_check_grad(ctx, NULL, NULL, &p, 1, 1e-6, &(km_grad_report){0}));
    BAD_STATUS(km_graph_run(ctx, NULL, 0, NULL, NULL));
    km_release(p);
    km_zero_grad(ctx, NULL, 0);
    km_zero_grad(ctx, &none, 1);
    km_zero_grad(ctx, NULL, 3);
    km_ctx_clear_error(ctx);
    km_clip_grad_norm(ctx, NULL, 3, 1);
    km_ctx_clear_error(ctx);
    assert_null(km_grad(NULL));
    km_release(NULL);
    km_graph_free(NULL);
    assert_false(km_graph_captured(NULL));
}

static void nothing_at_all_is_survived(void **state) {
    (void)state;
    assert_null(km_ctx_new(NULL, 0));
    assert_null(km_ctx_new("toaster", 0));
    assert_null(km_ctx_new("cpu", -1));
    km_ctx_free(NULL);
    assert_int_equal(km_ctx_status(NULL), KM_ERR_NULL);
    assert_true(*km_ctx_error(NULL) != 0);
    km_ctx_clear_error(NULL);
    km_seed(NULL, 1);
    km_sync(NULL);
    km_step_end(NULL);
    km_scope_begin(NULL);
    assert_null(km_scope_end(NULL, NULL));
    km_trim(NULL);
    km_stats_reset_peak(NULL);
    assert_int_equal(km_ctx_stats(NULL).steps, 0);
    assert_int_equal(km_profile_begin(NULL), KM_ERR_NULL);
    size_t n;
    assert_null(km_profile_end(NULL, &n));
    km_ctx_allow_tf32(NULL, true);
    km_ctx_set_fallback(NULL, true);
    assert_int_equal(km_ctx_set_activations(NULL, 8), KM_ERR_NULL);
    BAD_STATUS(km_ctx_set_activations(ctx, 5));
    assert_int_equal(km_tensor_ndim(NULL), 0);
    assert_int_equal(km_tensor_count(NULL), 0);
    assert_int_equal(km_tensor_dim(fine, 17), 0);
    assert_string_equal(km_tensor_device(NULL), "");
    assert_null(km_tensor_data(NULL));
    assert_null(km_tensor_device_data(NULL));
    assert_null(km_ctx_stream(NULL));
    km_no_grad_begin(NULL);
    km_no_grad_end(NULL);
    assert_non_null(km_status_name((km_status)99));
    assert_non_null(km_status_text((km_status)-1));
    assert_int_equal(km_dtype_size((km_dtype)99), 0);
    km_string_free(NULL);
    BAD(km_scope_end(ctx, fine)); /* without a begin */
}

static void the_context_still_works(void **state) {
    (void)state;
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    km_tensor *s = km_sum(ctx, km_ones(ctx, KM_F32, KM_SHAPE(3, 3)), NULL, 0, false);
    assert_float_equal(km_item(ctx, s), 9, 0);
}

static int open_all(void **state) {
    (void)state;
    ctx = km_ctx_new("cpu", 1);
    other = km_ctx_new("cpu", 1);
    const int32_t list[] = {0, 1};
    fine = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(2, 3)));
    ids = km_keep(ctx, km_from_data(ctx, KM_I32, KM_SHAPE(2), list));
    foreign = km_keep(other, km_ones(other, KM_F32, KM_SHAPE(2, 3)));
    return !foreign;
}

static int close_all(void **state) {
    (void)state;
    km_release(fine);
    km_release(ids);
    km_release(foreign);
    km_ctx_free(ctx);
    km_ctx_free(other);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_of_one_tensor_refuse_what_is_none),
        cmocka_unit_test(ops_of_two_tensors_refuse_what_is_none),
        cmocka_unit_test(shapes_and_views_out_of_range_are_errors),
        cmocka_unit_test(ops_with_settings_refuse_bad_ones),
        cmocka_unit_test(data_gradients_and_optimisers_refuse_bad_input),
        cmocka_unit_test(nothing_at_all_is_survived),
        cmocka_unit_test(the_context_still_works),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
