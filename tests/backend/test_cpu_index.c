/* The CPU's kernels that move data by index or by place: exactly the reference's results, since
 * nothing is computed, or its sums. */
#include "cpu_tensor.h"

static const km_dtype all_dtypes[] = {KM_F32, KM_F16, KM_BF16, KM_F64, KM_I32,
                                      KM_I64, KM_U8,  KM_I8,   KM_BOOL};

/* Numbers that every dtype holds exactly. */
static km_tensor *numbers(km_dtype d, km_shape s) {
    return ct_indices(d, s, d == KM_BOOL ? 2 : 100);
}

static void check_moves(const char *what, km_op op, const km_params *p, km_tensor *const *in,
                        int n_in, km_tensor *out) {
    km_tensor *want = rt_copy(out, out->dtype, false);
    assert_int_equal(rt_run(op, p, in, n_in, &want, 1), KM_OK);
    assert_int_equal(ct_run(op, p, in, n_in, &out, 1), KM_OK);
    ct_assert_same_bits(what, out, want);
}

static void embedding_copies_rows_of_any_dtype(void **state) {
    for (int d = 0; d < 9; d++) CT_EACH(int64_t, c, 1, 2, 3, 7, 100, 257) {
            km_tensor *in[] = {numbers(all_dtypes[d], KM_SHAPE(11, *c)),
                               ct_indices(d % 2 ? KM_I32 : KM_I64, KM_SHAPE(3, 5), 11)};
            check_moves("embedding", KM_OP_EMBEDDING, NULL, in, 2,
                        rt_new(all_dtypes[d], KM_SHAPE(3, 5, *c)));
            rt_teardown(state);
        }
}

static void index_select_takes_any_axis(void **state) {
    for (int d = 0; d < 9; d++) CT_EACH(int, axis, 0, 1, 2) {
            km_shape s = KM_SHAPE(4, 5, 3), o = s;
            o.dim[*axis] = 7;
            km_tensor *in[] = {numbers(all_dtypes[d], s),
                               ct_indices(KM_I32, KM_SHAPE(7), s.dim[*axis])};
            check_moves("index_select", KM_OP_INDEX_SELECT, &(km_params){.axis = *axis}, in, 2,
                        rt_new(all_dtypes[d], o));
            rt_teardown(state);
        }
}

static void gather_takes_any_axis(void **state) {
    for (int d = 0; d < 9; d++) CT_EACH(int, axis, 0, 1, 2) {
            km_shape s = KM_SHAPE(4, 5, 3), o = s;
            o.dim[*axis] = 6;
            km_tensor *in[] = {numbers(all_dtypes[d], s),
                               ct_indices(d % 2 ? KM_I32 : KM_I64, o, s.dim[*axis])};
            check_moves("gather", KM_OP_GATHER, &(km_params){.axis = *axis}, in, 2,
                        rt_new(all_dtypes[d], o));
            rt_teardown(state);
        }
    km_shape s = KM_SHAPE(300, 257), o = KM_SHAPE(300, 400);
    km_tensor *in[] = {numbers(KM_F32, s), ct_indices(KM_I64, o, 257)};
    check_moves("a large gather", KM_OP_GATHER, &(km_params){.axis = 1}, in, 2, rt_new(KM_F32, o));
}

static void an_index_may_be_smaller_than_x(void **state) {
    static const km_shape x[] = {{2, {4, 5}}, {3, {4, 5, 6}}, {3, {1, 5, 1}}, {4, {3, 2, 5, 4}}};
    static const km_shape index[] = {
        {2, {3, 2}}, {3, {2, 9, 3}}, {3, {1, 7, 1}}, {4, {2, 2, 3, 4}}};
    for (int i = 0; i < 4; i++)
        for (int axis = 0; axis < x[i].ndim; axis++)
            for (int d = 0; d < 9; d++) {
                km_shape s = index[i];
                if (axis != 1) s.dim[1] = x[i].dim[1] - 1; /* no axis but one is longer than x's */
                s.dim[axis] = 7;
                km_dtype t = all_dtypes[d];
                km_params p = {.axis = axis};
                km_tensor *ids = ct_indices(d % 2 ? KM_I32 : KM_I64, s, x[i].dim[axis]);
                km_tensor *in[] = {numbers(t, x[i]), ids, numbers(t, s)};
                check_moves("gather", KM_OP_GATHER, &p, in, 2, rt_new(t, s));
                check_moves("scatter", KM_OP_SCATTER, &p, in, 3, rt_new(t, x[i]));
                /* Whole numbers: every order of adding gives the same. */
                if (t != KM_BOOL)
                    check_moves("scatter_add", KM_OP_SCATTER_ADD, &p, in, 3, rt_new(t, x[i]));
                rt_teardown(state);
            }
}

static void the_last_of_equal_indices_stays(void **state) {
    km_tensor *x = rt_new(KM_I32, KM_SHAPE(3)), *ids = rt_new(KM_I32, KM_SHAPE(4));
    km_tensor *src = numbers(KM_I32, KM_SHAPE(4)), *out = rt_new(KM_I32, KM_SHAPE(3));
    for (int64_t i = 0; i < 4; i++) km_ref_set_int(ids, &i, 2 - i / 2);
    assert_int_equal(
        ct_run(KM_OP_SCATTER, &(km_params){0}, (km_tensor *[]){x, ids, src}, 3, &out, 1), KM_OK);
    for (int64_t i = 1; i < 3; i++) {
        int64_t from = i == 2 ? 1 : 3;
        assert_int_equal(km_ref_get_int(out, &i), km_ref_get_int(src, &from));
    }
}

/* A replayed step may meet indices that nobody has checked. */
static void indices_beyond_x_are_passed_over(void **state) {
    km_tensor *x = numbers(KM_F32, KM_SHAPE(3)), *ids = rt_new(KM_I64, KM_SHAPE(5));
    static const int64_t bad[] = {-1, 3, INT64_MAX, INT64_MIN, 1};
    for (int64_t i = 0; i < 5; i++) km_ref_set_int(ids, &i, bad[i]);
    km_tensor *in[] = {x, ids, numbers(KM_F32, KM_SHAPE(5))};
    check_moves("gather", KM_OP_GATHER, NULL, in, 2, rt_new(KM_F32, KM_SHAPE(5)));
    check_moves("scatter", KM_OP_SCATTER, NULL, in, 3, rt_new(KM_F32, KM_SHAPE(3)));
    check_moves("scatter_add", KM_OP_SCATTER_ADD, NULL, in, 3, rt_new(KM_F32, KM_SHAPE(3)));
}

static void masks_pick_elements_of_any_dtype(void **state) {
    for (int d = 0; d < 9; d++) CT_EACH(int64_t, n, 1, 7, 16384, 40001) {
            km_dtype t = all_dtypes[d];
            km_tensor *in[] = {numbers(t, KM_SHAPE(*n)), ct_indices(KM_BOOL, KM_SHAPE(*n), 2),
                               numbers(t, KM_SHAPE(*n / 2))};
            check_moves("masked_select", KM_OP_MASKED_SELECT, NULL, in, 2,
                        rt_new(t, KM_SHAPE(*n / 3)));
            check_moves("all", KM_OP_MASKED_SELECT, NULL, in, 2, rt_new(t, KM_SHAPE(*n)));
            check_moves("masked_scatter", KM_OP_MASKED_SCATTER, NULL, in, 3,
                        rt_new(t, KM_SHAPE(*n)));
            km_tensor *few = ct_indices(t, KM_SHAPE(1, *n, 1), 2);
            check_moves("nonzero", KM_OP_NONZERO, NULL, &few, 1, rt_new(KM_I64, KM_SHAPE(*n, 3)));
            rt_teardown(state);
        }
}

static void a_negative_zero_is_a_zero_and_nan_is_none(void **state) {
    CT_EACH_FLOAT(d) {
        km_tensor *x = rt_new(d, KM_SHAPE(4)), *out = rt_new(KM_I64, KM_SHAPE(2, 1));
        static const double v[] = {-0.0, NAN, 0, INFINITY};
        for (int64_t i = 0; i < 4; i++) km_ref_set(x, &i, v[i]);
        assert_int_equal(ct_run(KM_OP_NONZERO, NULL, &x, 1, &out, 1), KM_OK);
        assert_int_equal(km_ref_get_int(out, (int64_t[]){0, 0}), 1);
        assert_int_equal(km_ref_get_int(out, (int64_t[]){1, 0}), 3);
        rt_teardown(state);
    }
}

static void concat_takes_parts_with_any_strides(void **state) {
    for (int d = 0; d < 9; d++)
        for (int axis = 0; axis < 3; axis++)
            for (int odd = 0; odd < 2; odd++) {
                km_shape s = KM_SHAPE(3, 4, 5), total = s;
                km_tensor *in[3];
                total.dim[axis] = 0;
                CT_EACH(int64_t, k, 0, 1, 2) {
                    s.dim[axis] = *k * 3; /* the first part is empty */
                    total.dim[axis] += s.dim[axis];
                    in[*k] = rt_copy(numbers(all_dtypes[d], s), all_dtypes[d], odd && *k != 1);
                }
                check_moves("concat", KM_OP_CONCAT, &(km_params){.axis = axis}, in, 3,
                            rt_new(all_dtypes[d], total));
                rt_teardown(state);
            }
    km_tensor *in[] = {numbers(KM_F32, KM_SHAPE(100000)), numbers(KM_F32, KM_SHAPE(70001))};
    check_moves("a long concat", KM_OP_CONCAT, NULL, in, 2, rt_new(KM_F32, KM_SHAPE(170001)));
}

static void empty_tensors_are_fine(void **state) {
    km_params p = {0};
    check_moves("embedding", KM_OP_EMBEDDING, NULL,
                (km_tensor *[]){numbers(KM_F32, KM_SHAPE(3, 4)), rt_new(KM_I32, KM_SHAPE(0))}, 2,
                rt_new(KM_F32, KM_SHAPE(0, 4)));
    check_moves("embedding", KM_OP_EMBEDDING, NULL,
                (km_tensor *[]){rt_new(KM_F32, KM_SHAPE(3, 0)), ct_indices(KM_I32, KM_SHAPE(2), 3)},
                2, rt_new(KM_F32, KM_SHAPE(2, 0)));
    check_moves("gather", KM_OP_GATHER, &p,
                (km_tensor *[]){numbers(KM_F32, KM_SHAPE(3, 4)), rt_new(KM_I32, KM_SHAPE(0, 4))}, 2,
                rt_new(KM_F32, KM_SHAPE(0, 4)));
    km_tensor *x = numbers(KM_F32, KM_SHAPE(3, 4)), *none = rt_new(KM_F32, KM_SHAPE(0, 4));
    check_moves("scatter_add", KM_OP_SCATTER_ADD, &p,
                (km_tensor *[]){x, rt_new(KM_I32, KM_SHAPE(0, 4)), none}, 3,
                rt_new(KM_F32, KM_SHAPE(3, 4)));
    check_moves("embedding_grad", KM_OP_EMBEDDING_GRAD, NULL,
                (km_tensor *[]){none, rt_new(KM_I32, KM_SHAPE(0))}, 2,
                rt_new(KM_F32, KM_SHAPE(5, 4)));
}

static void embedding_grad_sums_in_order(void **state) {
    CT_EACH_FLOAT(d) CT_EACH(int64_t, c, 1, 17, 300) CT_EACH(int64_t, v, 1, 5, 400) {
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            km_params p = {.accumulate = accumulate};
            km_tensor *in[] = {ct_fill(d, KM_SHAPE(7, 13, *c), 1, 0),
                               ct_indices(*c % 2 ? KM_I32 : KM_I64, KM_SHAPE(7, 13), *v)};
            km_tensor *out = ct_fill(d, KM_SHAPE(*v, *c), 1, 0);
            ct_check("embedding_grad", KM_OP_EMBEDDING_GRAD, &p, in, 2, &out, 1, 8, 2e-6);
            rt_teardown(state);
        }
    }
}

static void a_common_id_does_not_lose_digits(void **state) {
    int64_t n = 100000;
    km_tensor *dy = ct_fill(KM_F32, KM_SHAPE(n, 1), 0, 0.1), *out = rt_new(KM_F32, KM_SHAPE(2, 1));
    km_tensor *in[] = {dy, ct_indices(KM_I32, KM_SHAPE(n), 1)};
    ct_check("embedding_grad", KM_OP_EMBEDDING_GRAD, NULL, in, 2, &out, 1, 30, 0);
}

static void scatter_add_takes_any_axis(void **state) {
    CT_EACH_FLOAT(d) CT_EACH(int, axis, 0, 1, 2) CT_EACH(int64_t, inner, 1, 3, 300) {
        km_shape s = KM_SHAPE(4, 5, *inner), i = s;
        i.dim[*axis] = 9;
        km_tensor *in[] = {ct_fill(d, s, 1, 0),
                           ct_indices(*inner % 2 ? KM_I32 : KM_I64, i, s.dim[*axis]),
                           ct_fill(d, i, 1, 0)};
        km_tensor *out = rt_new(d, s);
        ct_check("scatter_add", KM_OP_SCATTER_ADD, &(km_params){.axis = *axis}, in, 3, &out, 1, 8,
                 1e-6);
        rt_teardown(state);
    }
    /* So many sums that a 16-bit block of columns is narrowed. */
    km_tensor *in[] = {ct_fill(KM_BF16, KM_SHAPE(3000, 130), 1, 0),
                       ct_indices(KM_I32, KM_SHAPE(50, 130), 3000),
                       ct_fill(KM_BF16, KM_SHAPE(50, 130), 1, 0)};
    km_tensor *out = rt_new(KM_BF16, KM_SHAPE(3000, 130));
    ct_check("tall", KM_OP_SCATTER_ADD, &(km_params){.axis = 0}, in, 3, &out, 1, 8, 1e-6);
}

static void integers_wrap_around(void **state) {
    CT_EACH(km_dtype, d, KM_U8, KM_I8, KM_I32, KM_I64) {
        km_tensor *in[] = {numbers(*d, KM_SHAPE(4)), ct_indices(KM_I32, KM_SHAPE(200), 4),
                           numbers(*d, KM_SHAPE(200))};
        check_moves("scatter_add", KM_OP_SCATTER_ADD, NULL, in, 3, rt_new(*d, KM_SHAPE(4)));
        rt_teardown(state);
    }
}

static void threads_do_not_change_the_bits(void **state) {
    CT_EACH_FLOAT(d) {
        km_tensor *dy = ct_fill(d, KM_SHAPE(2000, 300), 1, 0), *out = rt_new(d, KM_SHAPE(500, 300));
        km_tensor *in[] = {dy, ct_indices(KM_I32, KM_SHAPE(2000), 40)};
        ct_check_threads("embedding_grad", KM_OP_EMBEDDING_GRAD, NULL, in, 2, &out, 1);
        km_tensor *x = ct_fill(d, KM_SHAPE(500, 300), 1, 0),
                  *src = ct_fill(d, KM_SHAPE(500, 99), 1, 0);
        km_tensor *in3[] = {x, ct_indices(KM_I64, KM_SHAPE(500, 99), 300), src};
        ct_check_threads("scatter_add", KM_OP_SCATTER_ADD, &(km_params){.axis = 1}, in3, 3, &out,
                         1);
        /* One line only: its places are shared out. */
        km_tensor *line = rt_new(d, KM_SHAPE(40000)), *from = ct_fill(d, KM_SHAPE(90000), 1, 0);
        km_tensor *ids = ct_indices(KM_I32, KM_SHAPE(90000), 40000);
        km_tensor *in4[] = {ct_fill(d, KM_SHAPE(40000), 1, 0), ids, from};
        ct_check_threads("a line", KM_OP_SCATTER_ADD, NULL, in4, 3, &line, 1);
        ct_check_threads("a line", KM_OP_SCATTER, NULL, in4, 3, &line, 1);
        rt_teardown(state);
    }
}

static int tests(void) {
    const struct CMUnitTest list[] = {
        cmocka_unit_test_teardown(embedding_copies_rows_of_any_dtype, rt_teardown),
        cmocka_unit_test_teardown(index_select_takes_any_axis, rt_teardown),
        cmocka_unit_test_teardown(gather_takes_any_axis, rt_teardown),
        cmocka_unit_test_teardown(concat_takes_parts_with_any_strides, rt_teardown),
        cmocka_unit_test_teardown(empty_tensors_are_fine, rt_teardown),
        cmocka_unit_test_teardown(embedding_grad_sums_in_order, rt_teardown),
        cmocka_unit_test_teardown(a_common_id_does_not_lose_digits, rt_teardown),
        cmocka_unit_test_teardown(scatter_add_takes_any_axis, rt_teardown),
        cmocka_unit_test_teardown(integers_wrap_around, rt_teardown),
        cmocka_unit_test_teardown(threads_do_not_change_the_bits, rt_teardown),
        cmocka_unit_test_teardown(an_index_may_be_smaller_than_x, rt_teardown),
        cmocka_unit_test_teardown(the_last_of_equal_indices_stays, rt_teardown),
        cmocka_unit_test_teardown(indices_beyond_x_are_passed_over, rt_teardown),
        cmocka_unit_test_teardown(masks_pick_elements_of_any_dtype, rt_teardown),
        cmocka_unit_test_teardown(a_negative_zero_is_a_zero_and_nan_is_none, rt_teardown),
    };
    return cmocka_run_group_tests(list, NULL, NULL);
}

int main(void) { return ct_each_isa(tests, km_cpu_register_index); }
