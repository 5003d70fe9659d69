/* The CPU's losses and their gradients against the reference. */
#include "cpu_tensor.h"

#define IGNORE (-100)

/* Cross entropy alone, with dlogits, and its gradient. */
static void check_cross_entropy(km_tensor *logits, km_tensor *targets, int64_t ignore,
                                km_reduction reduction) {
    km_params p = {.n = {ignore, reduction}};
    km_shape rows = KM_SHAPE(logits->shape.dim[0]);
    km_tensor *loss = rt_new(KM_F32, KM_SCALAR), *lse = rt_new(KM_F32, rows);
    km_tensor *dlogits = rt_new(logits->dtype, logits->shape), *in[] = {logits, targets};
    ct_check("cross_entropy", KM_OP_CROSS_ENTROPY, &p, in, 2, (km_tensor *[]){loss, lse}, 2, 8,
             1e-6);
    ct_check("cross_entropy with dlogits", KM_OP_CROSS_ENTROPY, &p, in, 2,
             (km_tensor *[]){loss, lse, dlogits}, 3, 16, 5e-7);
    km_tensor *dloss = RT(KM_F32, KM_SCALAR, -1.5);
    ct_check("cross_entropy_grad", KM_OP_CROSS_ENTROPY_GRAD, &p,
             (km_tensor *[]){dloss, logits, targets, lse}, 4, &dlogits, 1, 16, 5e-7);
}

static void cross_entropy_agrees_with_the_reference(void **state) {
    CT_EACH_FLOAT(d) CT_EACH(int64_t, v, 1, 3, 7, 15, 17, 33, 100, 257, 1023) {
        CT_EACH(km_reduction, reduction, KM_MEAN, KM_SUM) {
            km_tensor *logits = ct_fill(d, KM_SHAPE(13, *v), 6, 0);
            km_tensor *targets = ct_indices(*v % 2 ? KM_I32 : KM_I64, KM_SHAPE(13), *v);
            km_ref_set_int(targets, (int64_t[]){4}, IGNORE);
            km_ref_set_int(targets, (int64_t[]){12}, IGNORE);
            check_cross_entropy(logits, targets, IGNORE, *reduction);
            rt_teardown(state);
        }
    }
}

static void an_ignored_class_may_be_a_valid_one(void **state) {
    km_tensor *logits = ct_fill(KM_F32, KM_SHAPE(20, 5), 2, 0);
    check_cross_entropy(logits, ct_indices(KM_I64, KM_SHAPE(20), 5), 3, KM_MEAN);
}

static void a_large_vocabulary_stays_accurate(void **state) {
    check_cross_entropy(ct_fill(KM_F32, KM_SHAPE(3, 50304), 3, 0),
                        ct_indices(KM_I32, KM_SHAPE(3), 50304), IGNORE, KM_MEAN);
    check_cross_entropy(ct_fill(KM_F32, KM_SHAPE(3, 50304), 1, 1000),
                        ct_indices(KM_I32, KM_SHAPE(3), 50304), IGNORE, KM_SUM);
}

static void the_mean_over_no_counted_row_is_nan(void **state) {
    km_tensor *targets = RT_INTS(KM_I64, IGNORE, IGNORE),
              *logits = ct_fill(KM_F32, KM_SHAPE(2, 3), 1, 0);
    km_tensor *loss = rt_new(KM_F32, KM_SCALAR), *lse = rt_new(KM_F32, KM_SHAPE(2));
    km_tensor *dlogits = rt_new(KM_F32, KM_SHAPE(2, 3));
    km_params p = {.n = {IGNORE, KM_MEAN}};
    assert_int_equal(ct_run(KM_OP_CROSS_ENTROPY, &p, (km_tensor *[]){logits, targets}, 2,
                            (km_tensor *[]){loss, lse, dlogits}, 3),
                     KM_OK);
    assert_true(isnan(km_ref_load(loss, 0)));
    for (int64_t i = 0; i < 6; i++) assert_true(km_ref_load(dlogits, i) == 0);
    check_cross_entropy(logits, targets, IGNORE, KM_SUM);
    check_cross_entropy(rt_new(KM_F32, KM_SHAPE(0, 3)), rt_new(KM_I32, KM_SHAPE(0)), IGNORE,
                        KM_MEAN);
    check_cross_entropy(rt_new(KM_F32, KM_SHAPE(0, 3)), rt_new(KM_I32, KM_SHAPE(0)), IGNORE,
                        KM_SUM);
}

static void odd_logits_behave_as_in_the_reference(void **state) {
    const double inf = INFINITY;
    const double rows[][5] = {
        {-inf, -inf, -inf, -inf, -inf},
        {0, -inf, 1, -inf, 2},
        {inf, 0, 1, 2, 3},
        {NAN, 0, 1, 2, 3},
        {inf, NAN, 0, 1, 2},
        {3e4, -3e4, 0, 1, 2},
    };
    for (int r = 0; r < 6; r++) {
        for (int64_t target = 0; target < 5; target++) {
            km_tensor *logits = rt_from(KM_F32, KM_SHAPE(1, 5), rows[r]);
            check_cross_entropy(logits, RT_INTS(KM_I32, target), IGNORE, KM_SUM);
        }
        rt_teardown(state);
    }
}

static void check_pair(km_op op, km_op back, km_tensor *x, km_tensor *t, km_reduction reduction) {
    km_params p = {.n = {0, reduction}};
    km_tensor *loss = rt_new(KM_F32, KM_SCALAR), *dx = rt_new(x->dtype, x->shape);
    ct_check("loss", op, &p, (km_tensor *[]){x, t}, 2, &loss, 1, 8, 0);
    ct_check("gradient", back, &p, (km_tensor *[]){RT(KM_F32, KM_SCALAR, 0.75), x, t}, 3, &dx, 1, 8,
             1e-7);
}

static void pair_losses_agree_with_the_reference(void **state) {
    CT_EACH_FLOAT(d) CT_EACH(km_reduction, r, KM_MEAN, KM_SUM) {
        CT_EACH(int64_t, n, 1, 3, 7, 15, 17, 33, 100, 257, 1023, 40000) {
            km_tensor *x = ct_fill(d, KM_SHAPE(*n), 5, 0), *t = ct_fill(d, KM_SHAPE(*n), 0.5, 0.5);
            check_pair(KM_OP_MSE, KM_OP_MSE_GRAD, x, t, *r);
            check_pair(KM_OP_BCE, KM_OP_BCE_GRAD, x, t, *r);
            rt_teardown(state);
        }
    }
}

static void confident_predictions_keep_their_small_loss(void **state) {
    CT_EACH(double, x, 12, 20, 40, 80, 104, -20, -80, 0, -0.0) {
        km_tensor *logit = RT(KM_F32, KM_SHAPE(1), *x), *t = RT(KM_F32, KM_SHAPE(1), *x > 0);
        km_tensor *loss = rt_new(KM_F32, KM_SCALAR);
        ct_check("bce", KM_OP_BCE, NULL, (km_tensor *[]){logit, t}, 2, &loss, 1, 4, 2e-38);
    }
}

static void odd_numbers_behave_as_in_the_reference(void **state) {
    CT_EACH(double, odd, NAN, INFINITY, -INFINITY, 1e15, 0.5) {
        km_tensor *x = RT(KM_F32, KM_SHAPE(1), *odd), *t = RT(KM_F32, KM_SHAPE(1), 0.5);
        check_pair(KM_OP_BCE, KM_OP_BCE_GRAD, x, t, KM_SUM);
        check_pair(KM_OP_MSE, KM_OP_MSE_GRAD, x, t, KM_MEAN);
    }
}

static void a_loss_of_nothing_is_nan_or_zero(void **state) {
    km_tensor *x = rt_new(KM_F32, KM_SHAPE(0, 4)), *t = rt_new(KM_F32, KM_SHAPE(0, 4));
    check_pair(KM_OP_MSE, KM_OP_MSE_GRAD, x, t, KM_MEAN);
    check_pair(KM_OP_BCE, KM_OP_BCE_GRAD, x, t, KM_SUM);
}

static void threads_do_not_change_the_bits(void **state) {
    CT_EACH_FLOAT(d) {
        km_tensor *x = ct_fill(d, KM_SHAPE(700, 300), 2, 0),
                  *t = ct_fill(d, KM_SHAPE(700, 300), 1, 0);
        km_tensor *targets = ct_indices(KM_I32, KM_SHAPE(700), 300);
        km_tensor *out[] = {rt_new(KM_F32, KM_SCALAR), rt_new(KM_F32, KM_SHAPE(700)),
                            rt_new(d, KM_SHAPE(700, 300))};
        km_params p = {.n = {IGNORE, KM_MEAN}};
        ct_check_threads("cross_entropy", KM_OP_CROSS_ENTROPY, &p, (km_tensor *[]){x, targets}, 2,
                         out, 3);
        ct_check_threads("mse", KM_OP_MSE, &p, (km_tensor *[]){x, t}, 2, out, 1);
        ct_check_threads("bce", KM_OP_BCE, &p, (km_tensor *[]){x, t}, 2, out, 1);
        rt_teardown(state);
    }
}

static int tests(void) {
    const struct CMUnitTest list[] = {
        cmocka_unit_test_teardown(cross_entropy_agrees_with_the_reference, rt_teardown),
        cmocka_unit_test_teardown(an_ignored_class_may_be_a_valid_one, rt_teardown),
        cmocka_unit_test_teardown(a_large_vocabulary_stays_accurate, rt_teardown),
        cmocka_unit_test_teardown(the_mean_over_no_counted_row_is_nan, rt_teardown),
        cmocka_unit_test_teardown(odd_logits_behave_as_in_the_reference, rt_teardown),
        cmocka_unit_test_teardown(pair_losses_agree_with_the_reference, rt_teardown),
        cmocka_unit_test_teardown(confident_predictions_keep_their_small_loss, rt_teardown),
        cmocka_unit_test_teardown(odd_numbers_behave_as_in_the_reference, rt_teardown),
        cmocka_unit_test_teardown(a_loss_of_nothing_is_nan_or_zero, rt_teardown),
        cmocka_unit_test_teardown(threads_do_not_change_the_bits, rt_teardown),
    };
    return cmocka_run_group_tests(list, NULL, NULL);
}

int main(void) { return ct_each_isa(tests, km_cpu_register_loss); }
