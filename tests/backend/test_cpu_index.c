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

static void an_index_smaller_than_x_goes_to_the_reference(void **state) {
    km_tensor *x = numbers(KM_F32, KM_SHAPE(4, 5)), *id = ct_indices(KM_I32, KM_SHAPE(3, 2), 5);
    km_tensor *out = rt_new(KM_F32, KM_SHAPE(3, 2)), *like_x = rt_new(KM_F32, KM_SHAPE(4, 5));
    km_params p = {.axis = 1};
    assert_int_equal(ct_run(KM_OP_GATHER, &p, (km_tensor *[]){x, id}, 2, &out, 1),
                     KM_ERR_UNSUPPORTED);
    assert_int_equal(ct_run(KM_OP_SCATTER_ADD, &p, (km_tensor *[]){x, id, out}, 3, &like_x, 1),
                     KM_ERR_UNSUPPORTED);
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

static void integers_are_not_added_here(void **state) {
    km_tensor *x = numbers(KM_I32, KM_SHAPE(4)), *id = ct_indices(KM_I32, KM_SHAPE(2), 4);
    km_tensor *src = numbers(KM_I32, KM_SHAPE(2)), *out = rt_new(KM_I32, KM_SHAPE(4));
    assert_int_equal(ct_run(KM_OP_SCATTER_ADD, NULL, (km_tensor *[]){x, id, src}, 3, &out, 1),
                     KM_ERR_UNSUPPORTED);
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
        rt_teardown(state);
    }
}

static int tests(void) {
    const struct CMUnitTest list[] = {
        cmocka_unit_test_teardown(embedding_copies_rows_of_any_dtype, rt_teardown),
        cmocka_unit_test_teardown(index_select_takes_any_axis, rt_teardown),
        cmocka_unit_test_teardown(gather_takes_any_axis, rt_teardown),
        cmocka_unit_test_teardown(an_index_smaller_than_x_goes_to_the_reference, rt_teardown),
        cmocka_unit_test_teardown(concat_takes_parts_with_any_strides, rt_teardown),
        cmocka_unit_test_teardown(empty_tensors_are_fine, rt_teardown),
        cmocka_unit_test_teardown(embedding_grad_sums_in_order, rt_teardown),
        cmocka_unit_test_teardown(a_common_id_does_not_lose_digits, rt_teardown),
        cmocka_unit_test_teardown(scatter_add_takes_any_axis, rt_teardown),
        cmocka_unit_test_teardown(integers_are_not_added_here, rt_teardown),
        cmocka_unit_test_teardown(threads_do_not_change_the_bits, rt_teardown),
    };
    return cmocka_run_group_tests(list, NULL, NULL);
}

int main(void) { return ct_each_isa(tests, km_cpu_register_index); }
