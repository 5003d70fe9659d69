/* Elementwise kernels against the reference: every op, every dtype it takes, in every layout that
 * is treated differently (dense, strided, broadcast either way, in place, streamed). */
#include "backend/cpu/simd/elementwise.h"
#include "cpu_tensor.h"

static const km_op unary_ops[] = {
    KM_OP_NEG,      KM_OP_ABS,  KM_OP_SQRT,  KM_OP_RSQRT,      KM_OP_EXP,       KM_OP_LOG,
    KM_OP_SIN,      KM_OP_COS,  KM_OP_TANH,  KM_OP_SIGMOID,    KM_OP_RELU,      KM_OP_GELU,
    KM_OP_GELU_ERF, KM_OP_SILU, KM_OP_CLAMP, KM_OP_ADD_SCALAR, KM_OP_MUL_SCALAR};
static const km_op binary_ops[] = {KM_OP_ADD, KM_OP_SUB,     KM_OP_MUL,    KM_OP_DIV,
                                   KM_OP_POW, KM_OP_MAXIMUM, KM_OP_MINIMUM};
static const km_op grad_ops[] = {KM_OP_ABS_GRAD,      KM_OP_SQRT_GRAD, KM_OP_RSQRT_GRAD,
                                 KM_OP_SIN_GRAD,      KM_OP_COS_GRAD,  KM_OP_TANH_GRAD,
                                 KM_OP_SIGMOID_GRAD,  KM_OP_RELU_GRAD, KM_OP_GELU_GRAD,
                                 KM_OP_GELU_ERF_GRAD, KM_OP_SILU_GRAD, KM_OP_CLAMP_GRAD};
static const km_op compare_ops[] = {KM_OP_EQ, KM_OP_NE, KM_OP_LT, KM_OP_LE, KM_OP_GT, KM_OP_GE};
#define EACH_OP(op, list) for (const km_op *op = list; op < list + sizeof list / sizeof *list; op++)

static const km_params numbers = {.f = {-0.4, 0.7}}; /* clamp's bounds, the scalar */
static const float numbers_f32[] = {-0.4f, 0.7f};

/* Square roots, logarithms and powers want a positive operand. */
static double offset_of(km_op op) {
    switch (op) {
    case KM_OP_SQRT:
    case KM_OP_RSQRT:
    case KM_OP_LOG:
    case KM_OP_POW:
    case KM_OP_SQRT_GRAD:
    case KM_OP_RSQRT_GRAD:
    case KM_OP_DIV: return 3.5;
    default: return 0;
    }
}

static void unary_ops_agree_with_the_reference_in_all_layouts(void **state) {
    (void)state;
    CT_EACH(km_shape, shape, KM_SHAPE(1), KM_SHAPE(37), KM_SHAPE(2500), KM_SHAPE(7, 19),
            KM_SHAPE(0, 4)) {
        CT_EACH_FLOAT(d) EACH_OP(op, unary_ops) {
            km_tensor *x = ct_fill(d, *shape, 3, offset_of(*op));
            for (int odd = 0; odd < 4; odd++) {
                km_tensor *in = rt_copy(x, d, odd & 1), *out = rt_make(d, *shape, odd & 2);
                ct_check(km_op_name(*op), *op, &numbers, &in, 1, &out, 1, 4, 1e-37);
                assert_true(rt_gaps_intact(out));
            }
            rt_teardown(NULL);
        }
    }
}

/* t seen with stride 0 along `axis`, or as it is for axis -1. */
static km_tensor *repeated(km_tensor *t, int axis) {
    if (axis >= 0) t->stride[axis] = 0;
    return t;
}

static void check_pair(km_op op, km_dtype d, km_shape shape, int repeat_a, int repeat_b, bool odd) {
    double scale = op == KM_OP_POW ? 1 : 3; /* 4.5^4.5 is a number in f16 too */
    km_tensor *a = repeated(rt_copy(ct_fill(d, shape, scale, offset_of(op)), d, odd), repeat_a);
    km_tensor *b = repeated(rt_copy(ct_fill(d, shape, scale, offset_of(op)), d, odd), repeat_b);
    km_tensor *out = rt_make(d, shape, odd);
    /* Slopes cross zero: an error there is one against the incoming gradient. */
    double abs = op == KM_OP_ABS_GRAD || op < KM_OP_ABS_GRAD ? 1e-37 : 1e-6;
    ct_check(km_op_name(op), op, &numbers, (km_tensor *[]){a, b}, 2, &out, 1, 6, abs);
    assert_true(rt_gaps_intact(out));
    rt_teardown(NULL);
}

static void binary_ops_agree_with_the_reference_in_all_layouts(void **state) {
    (void)state;
    CT_EACH_FLOAT(d) EACH_OP(op, binary_ops) {
        for (int a = -1; a < 2; a++)
            for (int b = -1; b < 2; b++) check_pair(*op, d, KM_SHAPE(9, 37), a, b, false);
        check_pair(*op, d, KM_SHAPE(2000), -1, -1, false);
        check_pair(*op, d, KM_SHAPE(2000), 0, -1, false);
        check_pair(*op, d, KM_SHAPE(2000), -1, 0, false);
        check_pair(*op, d, KM_SHAPE(3, 1100), -1, -1, true);
        check_pair(*op, d, KM_SHAPE(2, 3, 5), 1, 2, true);
    }
}

static void gradients_of_unary_ops_agree_with_the_reference(void **state) {
    (void)state;
    CT_EACH_FLOAT(d) EACH_OP(op, grad_ops) {
        check_pair(*op, d, KM_SHAPE(9, 37), -1, -1, false);
        check_pair(*op, d, KM_SHAPE(2000), 0, -1, false);
        check_pair(*op, d, KM_SHAPE(3, 1100), 1, -1, true);
    }
}

static void a_power_of_two_is_a_square_of_any_sign(void **state) {
    (void)state;
    km_tensor *x = ct_fill(KM_F32, KM_SHAPE(100), 5, 0), *out = rt_new(KM_F32, KM_SHAPE(100));
    km_tensor *two = repeated(RT(KM_F32, KM_SHAPE(1), 2), 0);
    two->shape = KM_SHAPE(100);
    assert_int_equal(ct_run(KM_OP_POW, NULL, (km_tensor *[]){x, two}, 2, &out, 1), KM_OK);
    const float *a = km_tensor_ptr(x), *y = km_tensor_ptr(out);
    for (int i = 0; i < 100; i++) assert_true(y[i] == a[i] * a[i]);
}

static void nan_wins_and_clamp_bounds_are_taken_as_doubles(void **state) {
    (void)state;
    km_tensor *a = RT(KM_F32, KM_SHAPE(4), NAN, 1, -0.0, 3),
              *b = RT(KM_F32, KM_SHAPE(4), 2, NAN, 0.0, 4);
    km_tensor *out = rt_new(KM_F32, KM_SHAPE(4));
    const float *y = km_tensor_ptr(out);
    for (km_op op = KM_OP_MAXIMUM; op <= KM_OP_MINIMUM; op++) {
        assert_int_equal(ct_run(op, NULL, (km_tensor *[]){a, b}, 2, &out, 1), KM_OK);
        assert_true(isnan(y[0]) && isnan(y[1]));
        assert_true(y[2] == 0 && signbit(y[2])); /* equal: the first */
        assert_true(y[3] == (op == KM_OP_MAXIMUM ? 4 : 3));
    }
    /* 0.3 rounds up to a float: that float is outside [.., 0.3] and, for -0.3, [-0.3, ..]. */
    km_tensor *x = RT(KM_F32, KM_SHAPE(4), 0.3, -0.3, 0.25, -0.25),
              *dy = RT(KM_F32, KM_SHAPE(4), 1, 1, 1, 1);
    km_params p = {.f = {-0.3, 0.3}};
    ct_check("clamp_grad", KM_OP_CLAMP_GRAD, &p, (km_tensor *[]){dy, x}, 2, &out, 1, 0, 0);
    assert_true(y[0] == 0 && y[1] == 0 && y[2] == 1);
}

static void comparisons_agree_with_the_reference(void **state) {
    (void)state;
    CT_EACH(km_dtype, d, KM_F32, KM_F16, KM_BF16, KM_I32, KM_I64, KM_U8, KM_I8, KM_BOOL) {
        EACH_OP(op, compare_ops) {
            for (int odd = 0; odd < 4; odd++) {
                km_shape shape = KM_SHAPE(5, 333);
                km_tensor *a = rt_copy(ct_indices(*d, shape, 3), *d, odd & 1);
                km_tensor *b = repeated(rt_copy(ct_indices(*d, shape, 3), *d, odd & 1), odd & 1);
                if (km_dtype_is_float(*d)) km_ref_store(a, a->offset, NAN);
                km_tensor *out = rt_make(KM_BOOL, shape, odd & 2);
                ct_check(km_op_name(*op), *op, NULL, (km_tensor *[]){a, b}, 2, &out, 1, 0, 0);
                assert_true(rt_gaps_intact(out));
                rt_teardown(NULL);
            }
        }
    }
}

/* Runs an op on both devices with integer tensors, which must agree to the last bit. */
static void check_integers(km_op op, const km_params *p, km_tensor *const *in, int n_in, bool odd) {
    km_dtype d = in[0]->dtype;
    km_tensor *out = rt_make(d, in[0]->shape, odd), *want = rt_new(d, in[0]->shape);
    assert_int_equal(ct_run(op, p, in, n_in, &out, 1), KM_OK);
    assert_int_equal(rt_run(op, p, in, n_in, &want, 1), KM_OK);
    assert_true(rt_gaps_intact(out));
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, want->shape) assert_int_equal(km_ref_get_int(out, i), km_ref_get_int(want, i));
}

static void integer_arithmetic_wraps_like_the_reference(void **state) {
    (void)state;
    CT_EACH(km_dtype, d, KM_I32, KM_I64, KM_U8, KM_I8) {
        int64_t top = *d == KM_I64 ? INT64_MAX : *d == KM_I32 ? INT32_MAX : *d == KM_I8 ? 127 : 255;
        int64_t bottom = *d == KM_U8 ? 0 : -top - 1;
        km_tensor *a =
            rt_ints(*d, 10, (int64_t[]){top, top, bottom, bottom, 0, -1, 7, 100, bottom, 3});
        km_tensor *b = rt_ints(*d, 10, (int64_t[]){1, top, -1, bottom, 5, 0, -3, 100, 2, 0});
        CT_EACH(km_op, op, KM_OP_ADD, KM_OP_SUB, KM_OP_MUL, KM_OP_DIV, KM_OP_MAXIMUM,
                KM_OP_MINIMUM) {
            for (int odd = 0; odd < 2; odd++) {
                km_tensor *in[] = {rt_copy(a, *d, odd), rt_copy(b, *d, odd)};
                check_integers(*op, NULL, in, 2, odd);
            }
            km_tensor *fixed[] = {a, repeated(rt_copy(b, *d, false), 0)};
            check_integers(*op, NULL, fixed, 2, false);
        }
        CT_EACH(km_op, op, KM_OP_NEG, KM_OP_ABS, KM_OP_RELU, KM_OP_CLAMP, KM_OP_ADD_SCALAR,
                KM_OP_MUL_SCALAR) {
            km_params p = {.f = {-2.7, 90.2}};
            for (int odd = 0; odd < 2; odd++)
                check_integers(*op, &p, (km_tensor *[]){rt_copy(a, *d, odd)}, 1, odd);
        }
        rt_teardown(NULL);
    }
}

static void an_op_may_write_over_its_input(void **state) {
    (void)state;
    CT_EACH_FLOAT(d) for (int odd = 0; odd < 2; odd++) {
        km_shape shape = KM_SHAPE(3, 2000);
        km_tensor *a = rt_copy(ct_fill(d, shape, 2, 0), d, odd), *b = ct_fill(d, shape, 2, 0);
        km_tensor *apart = rt_new(d, shape), *same = rt_copy(a, d, odd);
        assert_int_equal(ct_run(KM_OP_SUB, NULL, (km_tensor *[]){a, b}, 2, &apart, 1), KM_OK);
        assert_int_equal(ct_run(KM_OP_SUB, NULL, (km_tensor *[]){same, b}, 2, &same, 1), KM_OK);
        ct_assert_same_bits("sub in place", rt_copy(same, d, false), apart);
        assert_int_equal(ct_run(KM_OP_MUL_SCALAR, &numbers, &a, 1, &apart, 1), KM_OK);
        assert_int_equal(ct_run(KM_OP_MUL_SCALAR, &numbers, &a, 1, &a, 1), KM_OK);
        ct_assert_same_bits("mul_scalar in place", rt_copy(a, d, false), apart);
    }
}

static void streamed_stores_give_the_same_values_from_any_address(void **state) {
    enum { N = 4 * 1024 * 3 + 77 };
    static float a[N], b[N], plain[N], streamed[N + 64];
    (void)state;
    for (int i = 0; i < N; i++) a[i] = (float)ct_random(), b[i] = (float)ct_random();
    for (int shift = 0; shift < 20; shift += 3) {
        CT_EACH(int64_t, n, 1, 5, 31, 4095, N - 100, N) {
            EACH_OP(op, binary_ops) {
                km_simd_binary()->both[*op](plain, a, b, *n, numbers_f32, false);
                km_simd_binary()->both[*op](streamed + shift, a, b, *n, numbers_f32, true);
                assert_memory_equal(plain, streamed + shift, (size_t)*n * sizeof *plain);
            }
            EACH_OP(op, unary_ops) {
                km_simd_unary()->row[*op](plain, a, *n, numbers_f32, false);
                km_simd_unary()->row[*op](streamed + shift, a, *n, numbers_f32, true);
                assert_memory_equal(plain, streamed + shift, (size_t)*n * sizeof *plain);
            }
        }
    }
}

static void where_and_masked_fill_move_any_dtype_bit_for_bit(void **state) {
    (void)state;
    for (km_dtype d = 0; d < KM_PLAIN_COUNT; d++) {
        for (int odd = 0; odd < 8; odd++) {
            km_shape shape = KM_SHAPE(4, 300);
            km_tensor *a = rt_copy(ct_indices(d, shape, 2), d, odd & 1),
                      *b = ct_indices(d, shape, 2);
            km_tensor *cond = rt_copy(ct_indices(KM_BOOL, shape, 2), KM_BOOL, odd & 2);
            km_tensor *out = rt_make(d, shape, odd & 4);
            if (odd == 3) repeated(a, 1), repeated(cond, 0);
            ct_check("where", KM_OP_WHERE, NULL, (km_tensor *[]){cond, a, b}, 3, &out, 1, 0, 0);
            km_params p = {.f = {d == KM_F32 || d == KM_F16 ? -INFINITY : 1}};
            ct_check("masked_fill", KM_OP_MASKED_FILL, &p, (km_tensor *[]){a, cond}, 2, &out, 1, 0,
                     0);
            assert_true(rt_gaps_intact(out));
            rt_teardown(NULL);
        }
    }
}

static void triangles_keep_their_side_of_any_diagonal(void **state) {
    (void)state;
    CT_EACH(km_shape, shape, KM_SHAPE(5, 5), KM_SHAPE(2, 3, 7), KM_SHAPE(7, 2), KM_SHAPE(2, 0, 3),
            KM_SHAPE(3, 0)) {
        CT_EACH(km_dtype, d, KM_F32, KM_F16, KM_I64, KM_BOOL) {
            CT_EACH(int64_t, diagonal, 0, 1, -1, 3, -4, 100, -100, INT64_MAX, INT64_MIN) {
                km_params p = {.n = {*diagonal}};
                if (*diagonal == INT64_MAX || *diagonal == INT64_MIN)
                    p.n[0] /= 2; /* j - i must fit */
                km_tensor *x = ct_indices(*d, *shape, 2), *out = rt_new(*d, *shape);
                ct_check("triu", KM_OP_TRIU, &p, &x, 1, &out, 1, 0, 0);
                ct_check("tril", KM_OP_TRIL, &p, &x, 1, &out, 1, 0, 0);
            }
        }
    }
}

static void what_there_is_no_fast_way_for_is_declined(void **state) {
    (void)state;
    km_tensor *x = ct_fill(KM_F64, KM_SHAPE(4), 1, 0), *out = rt_new(KM_F64, KM_SHAPE(4));
    km_tensor *in[] = {x, x}, *flags = rt_new(KM_BOOL, KM_SHAPE(4));
    assert_int_equal(ct_run(KM_OP_EXP, NULL, in, 1, &out, 1), KM_ERR_UNSUPPORTED);
    assert_int_equal(ct_run(KM_OP_ADD, NULL, in, 2, &out, 1), KM_ERR_UNSUPPORTED);
    assert_int_equal(ct_run(KM_OP_LT, NULL, in, 2, &flags, 1), KM_ERR_UNSUPPORTED);
    assert_int_equal(rt_ctx.error.code, KM_OK);
}

static int tests(void) {
#define TEST(name) cmocka_unit_test_teardown(name, rt_teardown)
    const struct CMUnitTest list[] = {
        TEST(unary_ops_agree_with_the_reference_in_all_layouts),
        TEST(binary_ops_agree_with_the_reference_in_all_layouts),
        TEST(gradients_of_unary_ops_agree_with_the_reference),
        TEST(a_power_of_two_is_a_square_of_any_sign),
        TEST(nan_wins_and_clamp_bounds_are_taken_as_doubles),
        TEST(comparisons_agree_with_the_reference),
        TEST(integer_arithmetic_wraps_like_the_reference),
        TEST(an_op_may_write_over_its_input),
        TEST(streamed_stores_give_the_same_values_from_any_address),
        TEST(where_and_masked_fill_move_any_dtype_bit_for_bit),
        TEST(triangles_keep_their_side_of_any_diagonal),
        TEST(what_there_is_no_fast_way_for_is_declined),
    };
    return cmocka_run_group_tests(list, NULL, NULL);
}

int main(void) { return ct_each_isa(tests, km_cpu_register_elementwise); }
