/* Sort, top-k, running sums, one-hot and repetition, as a caller sees them. */
#include "support/engine.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static km_ctx *ctx;

static void has_floats(km_tensor *t, const float *want, int n) {
    float got[64];
    assert_non_null(t);
    assert_int_equal(km_read(ctx, t, got, sizeof *got * (size_t)n), KM_OK);
    for (int i = 0; i < n; i++)
        if (!(isnan(got[i]) && isnan(want[i]))) assert_float_equal(got[i], want[i], 0);
}

static void has_ids(km_tensor *t, const int64_t *want, int n) {
    int64_t got[64];
    assert_non_null(t);
    assert_int_equal(km_read(ctx, t, got, sizeof *got * (size_t)n), KM_OK);
    for (int i = 0; i < n; i++) assert_int_equal(got[i], want[i]);
}

static void sorting_is_stable_and_puts_nan_above_all_numbers(void **state) {
    (void)state;
    const float x[] = {3, NAN, -INFINITY, 3, -0.0f, 0, INFINITY, 1};
    km_tensor *t = km_from_data(ctx, KM_F32, KM_SHAPE(8), x), *index;
    has_floats(km_sort(ctx, t, 0, false, &index),
               (float[]){-INFINITY, -0.0f, 0, 1, 3, 3, INFINITY, NAN}, 8);
    has_ids(index, (int64_t[]){2, 4, 5, 7, 0, 3, 6, 1}, 8);
    has_floats(km_sort(ctx, t, -1, true, &index),
               (float[]){NAN, INFINITY, 3, 3, 1, -0.0f, 0, -INFINITY}, 8);
    has_ids(index, (int64_t[]){1, 6, 0, 3, 7, 4, 5, 2}, 8);
}

static void topk_takes_along_any_axis_and_from_either_end(void **state) {
    (void)state;
    const float x[] = {1, 9, 5, 7, 2, 6};
    km_tensor *t = km_from_data(ctx, KM_F32, KM_SHAPE(3, 2), x), *index;
    has_floats(km_topk(ctx, t, 2, 0, true, &index), (float[]){5, 9, 2, 7}, 4);
    has_ids(index, (int64_t[]){1, 0, 2, 1}, 4);
    has_floats(km_topk(ctx, t, 1, 1, false, NULL), (float[]){1, 5, 2}, 3);
    assert_int_equal(km_tensor_dim(km_topk(ctx, t, 0, 1, false, NULL), 1), 0);
    const int64_t big[] = {INT64_MAX, INT64_MIN, 0, INT64_MAX};
    km_tensor *b = km_from_data(ctx, KM_I64, KM_SHAPE(4), big);
    has_ids(km_topk(ctx, b, 3, 0, true, &index), (int64_t[]){INT64_MAX, INT64_MAX, 0}, 3);
    has_ids(index, (int64_t[]){0, 3, 2}, 3);
}

static void running_sums_wrap_integers_and_keep_floats_exact(void **state) {
    (void)state;
    const int8_t small[] = {100, 100, -1};
    int8_t got[3];
    assert_int_equal(km_read(ctx, km_cumsum(ctx, km_from_data(ctx, KM_I8, KM_SHAPE(3), small), 0),
                             got, sizeof got),
                     KM_OK);
    assert_int_equal(got[1], -56);
    assert_int_equal(got[2], -57);
    enum { N = 100000 };
    km_tensor *tenth = km_full(ctx, KM_F32, KM_SHAPE(N), 0.1);
    km_tensor *last = km_select(ctx, km_cumsum(ctx, tenth, 0), 0, N - 1);
    assert_float_equal(km_item(ctx, last), (double)N * 0.1f, 1e-3);
}

static void repetition_is_of_the_whole_or_of_each(void **state) {
    (void)state;
    const float x[] = {1, 2, 3, 4};
    km_tensor *t = km_from_data(ctx, KM_F32, KM_SHAPE(2, 2), x);
    has_floats(km_repeat(ctx, t, 1, 2), (float[]){1, 2, 1, 2, 3, 4, 3, 4}, 8);
    has_floats(km_repeat_each(ctx, t, 1, 2), (float[]){1, 1, 2, 2, 3, 3, 4, 4}, 8);
    has_floats(km_repeat(ctx, t, 0, 2), (float[]){1, 2, 3, 4, 1, 2, 3, 4}, 8);
    has_floats(km_repeat(ctx, km_transpose(ctx, t, 0, 1), 0, 1), (float[]){1, 3, 2, 4}, 4);
    assert_int_equal(km_tensor_count(km_repeat(ctx, t, 0, 0)), 0);
    km_tensor *deep = km_ones(ctx, KM_F32, KM_SHAPE(1, 2, 1, 2, 1)); /* no axis to spare */
    assert_int_equal(km_tensor_dim(km_repeat_each(ctx, deep, 3, 3), 3), 6);
}

static void one_hot_rows_come_in_every_dtype(void **state) {
    (void)state;
    const int32_t ids[] = {2, 0};
    km_tensor *t = km_from_data(ctx, KM_I32, KM_SHAPE(2), ids);
    for (int d = KM_F32; d <= KM_BOOL; d++) {
        if (d == KM_F64) continue;
        km_tensor *hot = km_one_hot(ctx, t, 3, (km_dtype)d);
        has_floats(km_cast(ctx, hot, KM_F32), (float[]){0, 0, 1, 1, 0, 0}, 6);
    }
}

static void gradients_go_back_to_where_values_came_from(void **state) {
    (void)state;
    const float x[] = {1, 9, 5, 7};
    km_tensor *p = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(4), x)), *index;
    km_require_grad(ctx, p, true);
    km_tensor *top = km_topk(ctx, p, 2, 0, true, &index);
    const float weight[] = {10, 20};
    km_tensor *w = km_from_data(ctx, KM_F32, KM_SHAPE(2), weight);
    km_backward(ctx, km_sum(ctx, km_mul(ctx, top, w), NULL, 0, false));
    has_floats(km_grad(p), (float[]){0, 10, 0, 20}, 4);
    km_zero_grad(ctx, &p, 1);
    km_backward(ctx, km_sum(ctx, km_cumsum(ctx, p, 0), NULL, 0, false));
    has_floats(km_grad(p), (float[]){4, 3, 2, 1}, 4);
    km_zero_grad(ctx, &p, 1);
    km_backward(ctx, km_sum(ctx, km_repeat(ctx, p, 0, 3), NULL, 0, false));
    has_floats(km_grad(p), (float[]){3, 3, 3, 3}, 4);
    km_release(p);
}

static void failed(km_tensor *t, km_status code) {
    assert_null(t);
    assert_int_equal(km_ctx_status(ctx), code);
    km_ctx_clear_error(ctx);
}

static void bad_arguments_are_errors(void **state) {
    (void)state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(2, 3)), *index = t;
    const int32_t far[] = {3};
    failed(km_sort(ctx, NULL, 0, false, NULL), KM_ERR_NULL);
    failed(km_sort(ctx, t, 2, false, &index), KM_ERR_RANGE);
    assert_null(index);
    failed(km_sort(ctx, km_zeros(ctx, KM_F32, KM_SCALAR), 0, false, NULL), KM_ERR_RANGE);
    failed(km_topk(ctx, t, 4, 1, true, NULL), KM_ERR_RANGE);
    failed(km_topk(ctx, t, -1, 1, true, NULL), KM_ERR_RANGE);
    failed(km_topk(ctx, t, KM_END, 1, true, NULL), KM_ERR_RANGE);
    failed(km_cumsum(ctx, NULL, 0), KM_ERR_NULL);
    failed(km_cumsum(ctx, km_zeros(ctx, KM_BOOL, KM_SHAPE(2)), 0), KM_ERR_DTYPE);
    failed(km_one_hot(ctx, NULL, 3, KM_F32), KM_ERR_NULL);
    failed(km_one_hot(ctx, t, 3, KM_F32), KM_ERR_DTYPE);
    failed(km_one_hot(ctx, km_from_data(ctx, KM_I32, KM_SHAPE(1), far), 3, KM_F32), KM_ERR_RANGE);
    failed(km_one_hot(ctx, km_from_data(ctx, KM_I32, KM_SHAPE(1), far), -3, KM_F32), KM_ERR_RANGE);
    failed(km_one_hot(ctx, km_from_data(ctx, KM_I32, KM_SHAPE(1), far), 5, KM_Q4_0), KM_ERR_DTYPE);
    failed(km_repeat(ctx, t, 0, -1), KM_ERR_RANGE);
    failed(km_repeat(ctx, t, 0, INT64_MAX), KM_ERR_RANGE);
    failed(km_repeat(ctx, t, 0, INT64_MAX / 4), KM_ERR_SHAPE);
    failed(km_repeat_each(ctx, t, 7, 2), KM_ERR_RANGE);
}

static int open_context(void **state) {
    (void)state;
    return !(ctx = km_ctx_new("cpu", 2));
}

static int close_context(void **state) {
    (void)state;
    km_ctx_free(ctx);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sorting_is_stable_and_puts_nan_above_all_numbers),
        cmocka_unit_test(topk_takes_along_any_axis_and_from_either_end),
        cmocka_unit_test(running_sums_wrap_integers_and_keep_floats_exact),
        cmocka_unit_test(repetition_is_of_the_whole_or_of_each),
        cmocka_unit_test(one_hot_rows_come_in_every_dtype),
        cmocka_unit_test(gradients_go_back_to_where_values_came_from),
        cmocka_unit_test(bad_arguments_are_errors),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
