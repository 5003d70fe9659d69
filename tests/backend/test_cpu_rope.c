/* The CPU's rotary positions against the reference, whose angles are computed one by one. */
#include "cpu_tensor.h"

static void check(km_dtype d, km_shape s, km_tensor *positions, int64_t dims, km_rope_pairs pairs,
                  bool inverse, double base) {
    km_params p = {.n = {dims, pairs, inverse}, .f = {base}};
    km_tensor *x = ct_fill(d, s, 1, 0), *y = rt_new(d, s);
    ct_check("rope", KM_OP_ROPE, &p, (km_tensor *[]){x, positions}, 2, &y, 1, 4, 3e-7);
}

static void both_layouts_agree_with_the_reference(void **state) {
    CT_EACH_FLOAT(d) CT_EACH(km_rope_pairs, pairs, KM_ROPE_HALVES, KM_ROPE_ADJACENT) {
        CT_EACH(int64_t, half, 1, 3, 7, 16, 17, 32, 50, 64)
        for (int inverse = 0; inverse < 2; inverse++) {
            check(d, KM_SHAPE(2, 3, 5, 2 * *half), NULL, 2 * *half, *pairs, inverse, 10000);
            check(d, KM_SHAPE(3, 1, 2 * *half + 5), NULL, 2 * *half, *pairs, inverse, 10000);
            rt_teardown(state);
        }
    }
}

static void part_or_none_of_the_dims_may_be_rotated(void **state) {
    CT_EACH_FLOAT(d) CT_EACH(km_rope_pairs, pairs, KM_ROPE_HALVES, KM_ROPE_ADJACENT) {
        CT_EACH(int64_t, dims, 0, 2, 10, 40) {
            check(d, KM_SHAPE(4, 9, 41), NULL, *dims, *pairs, false, 10000);
            rt_teardown(state);
        }
    }
}

static void positions_may_jump_and_be_large(void **state) {
    CT_EACH(km_dtype, index, KM_I32, KM_I64) {
        km_tensor *positions = RT_INTS(*index, 7, 8, 9, 3, 131071, 131072, 1000000, 0, -5, -4);
        check(KM_F32, KM_SHAPE(3, 10, 64), positions, 64, KM_ROPE_HALVES, false, 10000);
        check(KM_F32, KM_SHAPE(3, 10, 64), positions, 64, KM_ROPE_ADJACENT, true, 500000);
    }
}

/* Consecutive positions are made from one another, in blocks: the last of each must be as good. */
static void long_runs_stay_accurate(void **state) {
    check(KM_F32, KM_SHAPE(1, 3000, 16), NULL, 16, KM_ROPE_HALVES, false, 10000);
    km_tensor *far = rt_new(KM_I64, KM_SHAPE(300));
    for (int64_t i = 0; i < 300; i++) km_ref_set_int(far, &i, 2000000 + i);
    check(KM_F32, KM_SHAPE(2, 300, 32), far, 32, KM_ROPE_ADJACENT, false, 10000);
}

static void the_inverse_undoes_the_rotation(void **state) {
    CT_EACH(km_rope_pairs, pairs, KM_ROPE_HALVES, KM_ROPE_ADJACENT) {
        km_shape s = KM_SHAPE(2, 50, 24);
        km_tensor *x = ct_fill(KM_F32, s, 1, 0), *y = rt_new(KM_F32, s), *back = rt_new(KM_F32, s);
        km_params p = {.n = {24, *pairs, 0}, .f = {10000}};
        assert_int_equal(ct_run(KM_OP_ROPE, &p, (km_tensor *[]){x, NULL}, 2, &y, 1), KM_OK);
        p.n[2] = 1;
        assert_int_equal(ct_run(KM_OP_ROPE, &p, (km_tensor *[]){y, NULL}, 2, &back, 1), KM_OK);
        ct_assert_close("round trip", back, x, 4, 3e-7);
    }
}

static void empty_tensors_are_fine(void **state) {
    check(KM_F32, KM_SHAPE(2, 0, 8), NULL, 8, KM_ROPE_HALVES, false, 10000);
    check(KM_F32, KM_SHAPE(0, 3, 8), NULL, 8, KM_ROPE_HALVES, false, 10000);
    check(KM_F32, KM_SHAPE(2, 3, 0), NULL, 0, KM_ROPE_HALVES, false, 10000);
}

static void threads_do_not_change_the_bits(void **state) {
    CT_EACH_FLOAT(d) CT_EACH(km_rope_pairs, pairs, KM_ROPE_HALVES, KM_ROPE_ADJACENT) {
        km_shape s = KM_SHAPE(3, 40, 70, 32);
        km_tensor *x = ct_fill(d, s, 1, 0), *y = rt_new(d, s);
        km_params p = {.n = {32, *pairs, 0}, .f = {10000}};
        ct_check_threads("rope", KM_OP_ROPE, &p, (km_tensor *[]){x, NULL}, 2, &y, 1);
        rt_teardown(state);
    }
}

static int tests(void) {
    const struct CMUnitTest list[] = {
        cmocka_unit_test_teardown(both_layouts_agree_with_the_reference, rt_teardown),
        cmocka_unit_test_teardown(part_or_none_of_the_dims_may_be_rotated, rt_teardown),
        cmocka_unit_test_teardown(positions_may_jump_and_be_large, rt_teardown),
        cmocka_unit_test_teardown(long_runs_stay_accurate, rt_teardown),
        cmocka_unit_test_teardown(the_inverse_undoes_the_rotation, rt_teardown),
        cmocka_unit_test_teardown(empty_tensors_are_fine, rt_teardown),
        cmocka_unit_test_teardown(threads_do_not_change_the_bits, rt_teardown),
    };
    return cmocka_run_group_tests(list, NULL, NULL);
}

int main(void) { return ct_each_isa(tests, km_cpu_register_rope); }
