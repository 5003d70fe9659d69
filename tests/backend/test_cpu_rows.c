/* The CPU's softmax family against the reference, and its promises about bits and edges. */
#include "backend/cpu/rows.h"
#include "cpu_tensor.h"

static const km_op forward_ops[] = {KM_OP_SOFTMAX, KM_OP_LOG_SOFTMAX};

/* Softmax or log-softmax of x along axis, then its gradient for a random dy. */
static void check_both(km_op op, km_tensor *x, int axis) {
    km_op back = op == KM_OP_SOFTMAX ? KM_OP_SOFTMAX_GRAD : KM_OP_LOG_SOFTMAX_GRAD;
    km_params p = {.axis = axis};
    km_tensor *y = rt_new(x->dtype, x->shape), *dx = rt_new(x->dtype, x->shape);
    km_tensor *dy = ct_fill(x->dtype, x->shape, 1, 0);
    double n = (double)x->shape.dim[axis];
    ct_check("forward", op, &p, &x, 1, &y, 1, 8, op == KM_OP_SOFTMAX ? 1e-37 : 2e-6);
    ct_check("gradient", back, &p, (km_tensor *[]){dy, y}, 2, &dx, 1, 16, 1e-7 * (1 + sqrt(n)));
}

static void rows_agree_with_the_reference_at_odd_sizes(void **state) {
    CT_EACH_FLOAT(d) CT_EACH(km_op, op, KM_OP_SOFTMAX, KM_OP_LOG_SOFTMAX) {
        CT_EACH(int64_t, n, 1, 3, 7, 15, 17, 33, 100, 257, 1023) {
            check_both(*op, ct_fill(d, KM_SHAPE(5, *n), 8, 0), 1);
            rt_teardown(state);
        }
    }
}

static void inner_axes_agree_with_the_reference(void **state) {
    CT_EACH_FLOAT(d) CT_EACH(km_op, op, KM_OP_SOFTMAX, KM_OP_LOG_SOFTMAX) {
        CT_EACH(int64_t, inner, 2, 3, 7, 8, 9, 16, 33, 130, 300) CT_EACH(int64_t, n, 1, 5, 100) {
            check_both(*op, ct_fill(d, KM_SHAPE(2, *n, *inner), 8, 0), 1);
            rt_teardown(state);
        }
    }
    check_both(KM_OP_SOFTMAX, ct_fill(KM_F32, KM_SHAPE(4, 3, 2, 5), 8, 0), 0);
    check_both(KM_OP_SOFTMAX, ct_fill(KM_F32, KM_SHAPE(7), 8, 0), 0);
}

static void long_rows_and_columns_stay_accurate(void **state) {
    check_both(KM_OP_SOFTMAX, ct_fill(KM_F32, KM_SHAPE(3, 50304), 4, 0), 1);
    check_both(KM_OP_LOG_SOFTMAX, ct_fill(KM_F32, KM_SHAPE(3, 50304), 4, 0), 1);
    check_both(KM_OP_SOFTMAX, ct_fill(KM_F32, KM_SHAPE(1, 50304, 9), 0.01, 0), 1);
    check_both(KM_OP_LOG_SOFTMAX, ct_fill(KM_F32, KM_SHAPE(1, 50304, 2), 0.01, 0), 1);
    km_tensor *rising = ct_fill(KM_F32, KM_SHAPE(1, 50304, 9), 0.01, 0); /* a late maximum */
    for (int64_t i = 0; i < 9; i++) km_ref_set(rising, (int64_t[]){0, 50303, i}, 8);
    check_both(KM_OP_SOFTMAX, rising, 1);
}

static void extremes_behave_as_in_the_reference(void **state) {
    const double inf = INFINITY;
    const double rows[][5] = {
        {-inf, -inf, -inf, -inf, -inf},
        {0, -inf, 1, -inf, 2},
        {inf, 0, 1, 2, 3},
        {NAN, 0, 1, 2, 3},
        {30000, -30000, 0, 1, 2},
        {-60000, -60001, -60002, 0, 1},
        {1e-30, -1e-30, 0, 0, 0},
        {NAN, -inf, -inf, 0, inf},
    };
    CT_EACH_FLOAT(d) for (int k = 0; k < 2; k++) {
        km_shape shape = KM_SHAPE(8, 5);
        km_tensor *x = rt_from(d, shape, &rows[0][0]), *y = rt_new(d, shape);
        ct_check("rows", forward_ops[k], &(km_params){.axis = 1}, &x, 1, &y, 1, 8, 1e-37);
        km_tensor *wide = rt_new(d, KM_SHAPE(5, 8)), *wy = rt_new(d, KM_SHAPE(5, 8));
        for (int64_t i = 0; i < 40; i++)
            km_ref_set(wide, (int64_t[]){i % 5, i / 5}, rows[i / 5][i % 5]);
        ct_check("columns", forward_ops[k], &(km_params){.axis = 0}, &wide, 1, &wy, 1, 8, 1e-37);
        rt_teardown(state);
    }
}

static void empty_tensors_are_fine(void **state) {
    CT_EACH_FLOAT(d) CT_EACH(km_op, op, KM_OP_SOFTMAX, KM_OP_LOG_SOFTMAX) {
        check_both(*op, rt_new(d, KM_SHAPE(0, 5)), 1);
        check_both(*op, rt_new(d, KM_SHAPE(5, 0)), 1);
        check_both(*op, rt_new(d, KM_SHAPE(3, 0, 2)), 1);
        check_both(*op, rt_new(d, KM_SHAPE(3, 4, 0)), 1);
    }
}

static void threads_do_not_change_the_bits(void **state) {
    CT_EACH(km_op, op, KM_OP_SOFTMAX, KM_OP_LOG_SOFTMAX, KM_OP_SOFTMAX_GRAD,
            KM_OP_LOG_SOFTMAX_GRAD) {
        CT_EACH(int, axis, 0, 1, 2) {
            km_shape s = KM_SHAPE(40, 30, 257);
            km_tensor *in[] = {ct_fill(KM_F32, s, 2, 0), ct_fill(KM_F32, s, 1, 0)};
            km_tensor *out = rt_new(KM_F32, s);
            ct_check_threads("rows", *op, &(km_params){.axis = *axis}, in,
                             *op == KM_OP_SOFTMAX || *op == KM_OP_LOG_SOFTMAX ? 1 : 2, &out, 1);
            rt_teardown(state);
        }
    }
}

static void writing_past_the_caches_changes_nothing(void **state) {
    enum { N = 192, ROWS = 3 };
    _Alignas(64) static float x[ROWS * N], y[ROWS * N], plain[ROWS * N], streamed[ROWS * N];
    static float buffer[N];
    for (int i = 0; i < ROWS * N; i++) {
        x[i] = (float)ct_random();
        y[i] = (float)ct_random();
    }
    for (int op = 0; op < KM_ROWS_OPS; op++) {
        for (int slot = 0; slot < KM_SLOTS; slot++) {
            km_rows_job job = {
                .out = plain, .x = x, .y = y, .rows = ROWS, .n = N, .buffer = buffer};
            km_simd_rows()->rows[op][slot](&job);
            job.out = streamed;
            job.stream = true;
            km_simd_rows()->rows[op][slot](&job);
            assert_memory_equal(plain, streamed, sizeof plain / (slot ? 2 : 1));
        }
    }
}

static void other_dtypes_are_declined(void **state) {
    km_tensor *x = ct_fill(KM_F64, KM_SHAPE(2, 3), 1, 0), *y = rt_new(KM_F64, KM_SHAPE(2, 3));
    assert_int_equal(ct_run(KM_OP_SOFTMAX, &(km_params){.axis = 1}, &x, 1, &y, 1),
                     KM_ERR_UNSUPPORTED);
}

static int tests(void) {
    const struct CMUnitTest list[] = {
        cmocka_unit_test_teardown(rows_agree_with_the_reference_at_odd_sizes, rt_teardown),
        cmocka_unit_test_teardown(inner_axes_agree_with_the_reference, rt_teardown),
        cmocka_unit_test_teardown(long_rows_and_columns_stay_accurate, rt_teardown),
        cmocka_unit_test_teardown(extremes_behave_as_in_the_reference, rt_teardown),
        cmocka_unit_test_teardown(empty_tensors_are_fine, rt_teardown),
        cmocka_unit_test_teardown(threads_do_not_change_the_bits, rt_teardown),
        cmocka_unit_test_teardown(writing_past_the_caches_changes_nothing, rt_teardown),
        cmocka_unit_test_teardown(other_dtypes_are_declined, rt_teardown),
    };
    return cmocka_run_group_tests(list, NULL, NULL);
}

int main(void) { return ct_each_isa(tests, km_cpu_register_rows); }
