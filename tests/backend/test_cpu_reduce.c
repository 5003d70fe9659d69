/* Reductions against the reference: every op, over every set of axes, in layouts that run along
 * rows and down columns; the accuracy of long sums; the same bits on any number of threads. */
#include "cpu_tensor.h"

static const km_op ops[] = {KM_OP_SUM,       KM_OP_MEAN, KM_OP_MAX,
                            KM_OP_LOGSUMEXP, KM_OP_VAR,  KM_OP_SUMSQ};
#define EACH_OP(op) for (const km_op *op = ops; op < ops + sizeof ops / sizeof *ops; op++)

static km_shape reduced_shape(km_shape s, uint32_t axes, bool keepdim) {
    km_shape r = {0, {0}};
    for (int a = 0; a < s.ndim; a++) {
        bool gone = (axes >> a) & 1u;
        if (!gone || keepdim) r.dim[r.ndim++] = gone ? 1 : s.dim[a];
    }
    return r;
}

static void check(km_op op, km_tensor *x, uint32_t axes, bool keepdim) {
    km_params p = {.axes = axes, .keepdim = keepdim, .n = {op == KM_OP_VAR}};
    km_dtype d = op == KM_OP_ARGMAX ? KM_I64 : op == KM_OP_SUMSQ ? KM_F32 : x->dtype;
    km_tensor *out = rt_new(d, reduced_shape(x->shape, axes, keepdim));
    ct_check(km_op_name(op), op, &p, &x, 1, &out, 1, 8, 2e-5);
}

static void reductions_agree_with_the_reference_over_all_sets_of_axes(void **state) {
    (void)state;
    CT_EACH(km_shape, shape, KM_SHAPE(3, 4, 5, 2, 3), KM_SHAPE(50, 70), KM_SHAPE(2, 1, 33)) {
        CT_EACH_FLOAT(d) for (int odd = 0; odd < 2; odd++) {
            km_tensor *x = rt_copy(ct_fill(d, *shape, 2, 0.5), d, odd);
            for (uint32_t axes = 0; axes < 1u << shape->ndim; axes++) {
                EACH_OP(op) check(*op, x, axes, axes & 1);
            }
            for (int a = 0; a < shape->ndim; a++) check(KM_OP_ARGMAX, x, 1u << a, a & 1);
            rt_teardown(NULL);
        }
    }
}

static void long_rows_and_tall_columns_are_cut_into_chunks(void **state) {
    (void)state;
    CT_EACH(km_shape, shape, KM_SHAPE(40003), KM_SHAPE(2, 33001), KM_SHAPE(17001, 2),
            KM_SHAPE(31, 1300), KM_SHAPE(2, 1000, 39), KM_SHAPE(16, 2, 1111)) {
        CT_EACH(km_dtype, d, KM_F32, KM_BF16) {
            if (*d == KM_BF16 && shape->ndim < 3) continue; /* the reference takes its time */
            km_tensor *x = ct_fill(*d, *shape, 1, 0.25);
            for (int a = 0; a < shape->ndim; a++) {
                EACH_OP(op) check(*op, x, 1u << a, false);
                check(KM_OP_ARGMAX, x, 1u << a, false);
            }
            EACH_OP(op) check(*op, x, (1u << shape->ndim) - 1, false);
            EACH_OP(op) check(*op, x, 1u | 1u << (shape->ndim - 1), true);
            rt_teardown(NULL);
        }
    }
}

static void repeated_elements_count_as_often_as_they_appear(void **state) {
    (void)state;
    for (int axis = 0; axis < 3; axis++) {
        km_tensor *x = ct_fill(KM_F32, KM_SHAPE(6, 7, 8), 1, 0);
        x->stride[axis] = 0;
        for (uint32_t axes = 1; axes < 8; axes++) EACH_OP(op) check(*op, x, axes, false);
    }
}

static void results_do_not_depend_on_the_number_of_threads(void **state) {
    (void)state;
    CT_EACH(km_shape, shape, KM_SHAPE(300001), KM_SHAPE(2, 100000), KM_SHAPE(100000, 5),
            KM_SHAPE(700, 900)) {
        km_tensor *x = ct_fill(KM_F32, *shape, 1, 0);
        for (uint32_t axes = 1; axes < 1u << shape->ndim; axes++) {
            km_params p = {.axes = axes};
            km_tensor *out = rt_new(KM_F32, reduced_shape(*shape, axes, false));
            EACH_OP(op) ct_check_threads(km_op_name(*op), *op, &p, &x, 1, &out, 1);
        }
        rt_teardown(NULL);
    }
}

/* The values, summed one by one in f32, would be off in the third digit. */
static void a_sum_of_millions_keeps_its_digits(void **state) {
    (void)state;
    enum { N = 3000000 };
    km_tensor *x = rt_new(KM_F32, KM_SHAPE(N)), *out = rt_new(KM_F32, KM_SCALAR);
    float *v = km_tensor_ptr(x);
    double sum = 0;
    for (int i = 0; i < N; i++) sum += (double)(v[i] = 0.1f + (float)(i % 7) * 0.01f);
    km_params p = {.axes = 1};
    const float *got = km_tensor_ptr(out);
    assert_int_equal(ct_run(KM_OP_SUM, &p, &x, 1, &out, 1), KM_OK);
    assert_true(fabs((double)*got - sum) <= 2e-7 * sum);
    x->shape = KM_SHAPE(N, 1), x->stride[0] = 1, x->stride[1] = 1;
    assert_int_equal(ct_run(KM_OP_MEAN, &p, &x, 1, &out, 1), KM_OK);
    assert_true(fabs((double)*got - sum / N) <= 2e-7 * sum / N);
}

static void variance_of_small_changes_on_a_large_value_is_right(void **state) {
    (void)state;
    CT_EACH(km_shape, shape, KM_SHAPE(40000, 3), KM_SHAPE(3, 40000)) {
        km_tensor *x = rt_new(KM_F32, *shape), *out = rt_new(KM_F32, KM_SHAPE(3));
        int tall = shape->dim[0] > 3;
        int64_t i[KM_MAX_DIMS];
        KM_REF_EACH(i, *shape) km_ref_set(x, i, 10000 + (double)((i[0] + i[1]) % 2));
        km_params p = {.axes = tall ? 1 : 2, .n = {1}};
        assert_int_equal(ct_run(KM_OP_VAR, &p, &x, 1, &out, 1), KM_OK);
        const float *v = km_tensor_ptr(out);
        for (int k = 0; k < 3; k++) assert_true(fabs((double)v[k] - 0.25 * 40000 / 39999) < 1e-6);
    }
}

static void infinities_and_nan_come_through(void **state) {
    (void)state;
    static const double rows[][4] = {{1, 2, INFINITY, 3},
                                     {-INFINITY, -INFINITY, -INFINITY, -INFINITY},
                                     {NAN, 1, 2, 3},
                                     {1, INFINITY, NAN, 4},
                                     {-INFINITY, 0, 1, -INFINITY},
                                     {2, NAN, 5, NAN},
                                     {7, 7, 7, 7},
                                     {-0.0, 0.0, -0.0, 0.0}};
    km_tensor *x = rt_from(KM_F32, KM_SHAPE(8, 4), &rows[0][0]);
    km_tensor *turned = rt_copy(x, KM_F32, true); /* its first axis is the dense one */
    CT_EACH(km_op, op, KM_OP_MAX, KM_OP_SUM, KM_OP_LOGSUMEXP, KM_OP_ARGMAX, KM_OP_MEAN) {
        check(*op, x, 2, false);
        check(*op, turned, 2, false);
        check(*op, x, 1, false);
        check(*op, turned, 1, false);
    }
}

static void argmax_finds_the_first_of_equals_at_any_place(void **state) {
    (void)state;
    enum { N = 9000 };
    km_tensor *x = rt_new(KM_F32, KM_SHAPE(N)), *out = rt_new(KM_I64, KM_SCALAR);
    float *v = km_tensor_ptr(x);
    const int64_t *at = km_tensor_ptr(out);
    km_params p = {.axes = 1};
    memset(v, 0, N * sizeof *v);
    CT_EACH(int, first, 0, 1, 15, 16, 17, 1023, 4095, 4096, 4097, 8191, N - 1) {
        v[*first] = 1;
        v[N - 1] = 1;
        assert_int_equal(ct_run(KM_OP_ARGMAX, &p, &x, 1, &out, 1), KM_OK);
        assert_int_equal(*at, *first);
        v[*first] = 0;
    }
}

static void a_reduction_over_nothing_gives_the_neutral_element(void **state) {
    (void)state;
    km_tensor *x = rt_new(KM_F32, KM_SHAPE(3, 0)), *none = rt_new(KM_F32, KM_SHAPE(0, 3));
    EACH_OP(op) {
        check(*op, x, 2, false);
        check(*op, none, 1, true);
        check(*op, none, 2, false); /* no results at all */
        check(*op, x, 3, false);
    }
    km_tensor *whole = rt_new(KM_I32, KM_SHAPE(3, 0));
    check(KM_OP_SUM, whole, 2, false);
}

static void integers_are_reduced_exactly_and_wrap(void **state) {
    (void)state;
    CT_EACH(km_dtype, d, KM_I32, KM_I64, KM_U8, KM_I8) for (int odd = 0; odd < 2; odd++) {
        km_shape shape = KM_SHAPE(5, 6, 70);
        km_tensor *x = rt_make(*d, shape, odd);
        int64_t i[KM_MAX_DIMS];
        KM_REF_EACH(i, shape) km_ref_set_int(x, i, (int64_t)(ct_random() * 0x1p62));
        for (uint32_t axes = 1; axes < 8; axes++) {
            CT_EACH(km_op, op, KM_OP_SUM, KM_OP_MAX, KM_OP_ARGMAX) {
                if (*op == KM_OP_ARGMAX && (axes & (axes - 1))) continue;
                km_params p = {.axes = axes};
                km_dtype to = *op == KM_OP_ARGMAX ? KM_I64 : *d;
                km_tensor *out = rt_new(to, reduced_shape(shape, axes, false));
                km_tensor *want = rt_new(to, out->shape);
                assert_int_equal(ct_run(*op, &p, &x, 1, &out, 1), KM_OK);
                assert_int_equal(rt_run(*op, &p, &x, 1, &want, 1), KM_OK);
                ct_assert_same_bits(km_op_name(*op), out, want);
            }
        }
        rt_teardown(NULL);
    }
}

static void doubles_are_left_to_the_reference(void **state) {
    (void)state;
    km_tensor *x = ct_fill(KM_F64, KM_SHAPE(4), 1, 0), *out = rt_new(KM_F64, KM_SCALAR);
    km_params p = {.axes = 1};
    assert_int_equal(ct_run(KM_OP_SUM, &p, &x, 1, &out, 1), KM_ERR_UNSUPPORTED);
}

static int tests(void) {
#define TEST(name) cmocka_unit_test_teardown(name, rt_teardown)
    const struct CMUnitTest list[] = {
        TEST(reductions_agree_with_the_reference_over_all_sets_of_axes),
        TEST(long_rows_and_tall_columns_are_cut_into_chunks),
        TEST(repeated_elements_count_as_often_as_they_appear),
        TEST(results_do_not_depend_on_the_number_of_threads),
        TEST(a_sum_of_millions_keeps_its_digits),
        TEST(variance_of_small_changes_on_a_large_value_is_right),
        TEST(infinities_and_nan_come_through),
        TEST(argmax_finds_the_first_of_equals_at_any_place),
        TEST(a_reduction_over_nothing_gives_the_neutral_element),
        TEST(integers_are_reduced_exactly_and_wrap),
        TEST(doubles_are_left_to_the_reference),
    };
    return cmocka_run_group_tests(list, NULL, NULL);
}

int main(void) { return ct_each_isa(tests, km_cpu_register_reduce); }
