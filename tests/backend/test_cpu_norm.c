/* The CPU's norms and their gradients against the reference, also where f32 sums lose digits. */
#include "backend/cpu/norm.h"
#include "cpu_tensor.h"

#define EPS 1e-5

/* Forward plain and fused, then backward without and with dsum; layer norm or RMS norm. */
static void check_all(km_dtype d, km_shape shape, double scale, double offset, bool layer,
                      bool bias) {
    km_params p = {.f = {EPS}};
    km_shape rows = shape, width = KM_SHAPE(shape.dim[shape.ndim - 1]);
    rows.ndim--;
    double n = (double)width.dim[0], count = (double)km_shape_count(rows);
    km_tensor *x = ct_fill(d, shape, scale, offset), *r = ct_fill(d, shape, scale, 0);
    km_tensor *w = ct_fill(d, width, 0.5, 1), *b = layer && bias ? ct_fill(d, width, 1, 0) : NULL;
    km_tensor *y = rt_new(d, shape), *sum = rt_new(d, shape), *dx = rt_new(d, shape);
    km_tensor *mean = rt_new(KM_F32, rows), *rstd = rt_new(KM_F32, rows);
    km_tensor *dw = rt_new(d, width), *db = rt_new(d, width);
    km_tensor *dy = ct_fill(d, shape, 1, 0), *dsum = ct_fill(d, shape, 1, 0);
    /* A row of one element has rstd 1 / sqrt(eps), which magnifies the rounding of g. */
    double abs = 4e-6, sums = 1e-6 * (1 + count) * (n > 1 ? 1 : 20);
    if (layer) {
        ct_check("layer_norm", KM_OP_LAYER_NORM, &p, (km_tensor *[]){x, w, b}, 3,
                 (km_tensor *[]){y, mean, rstd}, 3, 16, abs);
        km_tensor *in[] = {dy, x, w, mean, rstd, NULL}, *out[] = {dx, dw, db};
        ct_check("layer_norm_grad", KM_OP_LAYER_NORM_GRAD, &p, in, 6, out, 3, 32, sums);
        in[5] = dsum;
        ct_check("layer_norm_grad with dsum", KM_OP_LAYER_NORM_GRAD, &p, in, 6, out, 3, 32, sums);
        ct_check("add_layer_norm", KM_OP_ADD_LAYER_NORM, &p, (km_tensor *[]){x, r, w, b}, 4,
                 (km_tensor *[]){y, sum, mean, rstd}, 4, 16, abs);
    } else {
        ct_check("rms_norm", KM_OP_RMS_NORM, &p, (km_tensor *[]){x, w}, 2, (km_tensor *[]){y, rstd},
                 2, 16, abs);
        km_tensor *in[] = {dy, x, w, rstd, NULL}, *out[] = {dx, dw};
        ct_check("rms_norm_grad", KM_OP_RMS_NORM_GRAD, &p, in, 5, out, 2, 32, sums);
        in[4] = dsum;
        ct_check("rms_norm_grad with dsum", KM_OP_RMS_NORM_GRAD, &p, in, 5, out, 2, 32, sums);
        ct_check("add_rms_norm", KM_OP_ADD_RMS_NORM, &p, (km_tensor *[]){x, r, w}, 3,
                 (km_tensor *[]){y, sum, rstd}, 3, 16, abs);
    }
}

static void norms_agree_with_the_reference_at_odd_sizes(void **state) {
    CT_EACH_FLOAT(d) CT_EACH(int64_t, n, 1, 3, 7, 15, 17, 33, 100, 257, 1023) {
        CT_EACH(int64_t, rows, 1, 6, 37) {
            check_all(d, KM_SHAPE(*rows, *n), 3, 0.5, true, *rows != 6);
            check_all(d, KM_SHAPE(*rows, *n), 3, 0.5, false, false);
            rt_teardown(state);
        }
    }
    check_all(KM_F32, KM_SHAPE(3, 2, 5, 33), 1, 0, true, true);
}

static void long_rows_stay_accurate(void **state) {
    check_all(KM_F32, KM_SHAPE(2, 50304), 3, 1, true, true);
    check_all(KM_F32, KM_SHAPE(2, 50304), 3, 1, false, false);
}

static void many_rows_are_summed_in_blocks(void **state) {
    check_all(KM_F32, KM_SHAPE(3000, 17), 1, 0, true, true);
    check_all(KM_BF16, KM_SHAPE(1500, 9), 1, 0, false, false);
}

/* The spread of a row is a ten-thousandth of its offset: a mean in plain f32 sums would be wrong by
 * as much as the spread. */
static void a_large_common_offset_costs_no_digits(void **state) {
    CT_EACH(int64_t, n, 7, 257, 4096, 50304) CT_EACH(double, offset, 1e4, -1e4, 1e6) {
        km_shape s = KM_SHAPE(3, *n), width = KM_SHAPE(*n);
        km_tensor *x = ct_fill(KM_F32, s, 1, *offset), *y = rt_new(KM_F32, s);
        km_tensor *w = ct_fill(KM_F32, width, 0, 1), *b = ct_fill(KM_F32, width, 0, 0);
        km_tensor *mean = rt_new(KM_F32, KM_SHAPE(3)), *rstd = rt_new(KM_F32, KM_SHAPE(3));
        ct_check("offset", KM_OP_LAYER_NORM, &(km_params){.f = {EPS}}, (km_tensor *[]){x, w, b}, 3,
                 (km_tensor *[]){y, mean, rstd}, 3, 8, 1e-6);
        rt_teardown(state);
    }
}

static void extremes_behave_as_in_the_reference(void **state) {
    static const double rows[][9] = {
        {0, 0, 0, 0, 0, 0, 0, 0, 0},
        {5, 5, 5, 5, 5, 5, 5, 5, 5},
        {0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1},
        {3e38, -3e38, 3e38, 1, 2, 3, 4, 5, 6},
        {3e38, 3e38, 3e38, 3e38, 3e38, 3e38, 3e38, 3e38, 2e38},
        {1e-30, 2e-30, 3e-30, -1e-30, 0, 0, 0, 0, 0},
        {NAN, 1, 2, 3, 4, 5, 6, 7, 8},
        {INFINITY, 1, 2, 3, 4, 5, 6, 7, 8},
    };
    km_shape s = KM_SHAPE(8, 9), r = KM_SHAPE(8);
    CT_EACH(double, eps, 1e-5, 0) CT_EACH(km_dtype, d, KM_F32, KM_BF16) {
        km_tensor *x = rt_from(*d, s, &rows[0][0]), *w = ct_fill(*d, KM_SHAPE(9), 0.5, 1);
        km_tensor *y = rt_new(*d, s), *mean = rt_new(KM_F32, r), *rstd = rt_new(KM_F32, r);
        km_params p = {.f = {*eps}};
        if (*eps > 0) /* a constant row without eps is 0/0 or rounding noise, by either way */
            ct_check("layer_norm", KM_OP_LAYER_NORM, &p, (km_tensor *[]){x, w, NULL}, 3,
                     (km_tensor *[]){y, mean, rstd}, 3, 8, 1e-6);
        ct_check("rms_norm", KM_OP_RMS_NORM, &p, (km_tensor *[]){x, w}, 2, (km_tensor *[]){y, rstd},
                 2, 8, 1e-6);
        rt_teardown(state);
    }
}

static void no_rows_give_zero_gradients(void **state) {
    CT_EACH_FLOAT(d) {
        check_all(d, KM_SHAPE(0, 5), 1, 0, true, true);
        check_all(d, KM_SHAPE(0, 5), 1, 0, false, false);
    }
    km_tensor *x = rt_new(KM_F32, KM_SHAPE(3, 0)), *w = rt_new(KM_F32, KM_SHAPE(0));
    km_tensor *y = rt_new(KM_F32, KM_SHAPE(3, 0)), *rstd = rt_new(KM_F32, KM_SHAPE(3));
    assert_int_equal(
        ct_run(KM_OP_RMS_NORM, NULL, (km_tensor *[]){x, w}, 2, (km_tensor *[]){y, rstd}, 2),
        KM_ERR_UNSUPPORTED);
}

static void threads_do_not_change_the_bits(void **state) {
    km_shape s = KM_SHAPE(900, 385), width = KM_SHAPE(385), rows = KM_SHAPE(900);
    CT_EACH_FLOAT(d) {
        km_tensor *x = ct_fill(d, s, 1, 0), *dy = ct_fill(d, s, 1, 0), *w = ct_fill(d, width, 1, 0);
        km_tensor *mean = ct_fill(KM_F32, rows, 1, 0), *rstd = ct_fill(KM_F32, rows, 1, 2);
        km_tensor *out[] = {rt_new(d, s), rt_new(d, width), rt_new(d, width)};
        km_params p = {.f = {EPS}};
        ct_check_threads("layer_norm_grad", KM_OP_LAYER_NORM_GRAD, &p,
                         (km_tensor *[]){dy, x, w, mean, rstd, NULL}, 6, out, 3);
        ct_check_threads("rms_norm_grad", KM_OP_RMS_NORM_GRAD, &p,
                         (km_tensor *[]){dy, x, w, rstd, dy}, 5, out, 2);
        ct_check_threads("layer_norm", KM_OP_LAYER_NORM, &p, (km_tensor *[]){x, w, w}, 3,
                         (km_tensor *[]){out[0], mean, rstd}, 3);
        rt_teardown(state);
    }
}

static void writing_past_the_caches_changes_nothing(void **state) {
    enum { N = 192, ROWS = 3 };
    _Alignas(64) static float x[ROWS * N], w[N], plain[ROWS * N], streamed[ROWS * N];
    for (int i = 0; i < ROWS * N; i++) x[i] = (float)ct_random();
    for (int i = 0; i < N; i++) w[i] = (float)ct_random();
    for (int slot = 0; slot < KM_SLOTS; slot++) {
        km_norm_job job = {.y = plain, .x = x, .w = w, .b = w, .rows = ROWS, .n = N, .eps = EPS};
        km_simd_norm()->layer_norm[slot](&job);
        job.y = streamed;
        job.stream = true;
        km_simd_norm()->layer_norm[slot](&job);
        assert_memory_equal(plain, streamed, sizeof plain / (slot ? 2 : 1));
    }
}

static int tests(void) {
    const struct CMUnitTest list[] = {
        cmocka_unit_test_teardown(norms_agree_with_the_reference_at_odd_sizes, rt_teardown),
        cmocka_unit_test_teardown(long_rows_stay_accurate, rt_teardown),
        cmocka_unit_test_teardown(many_rows_are_summed_in_blocks, rt_teardown),
        cmocka_unit_test_teardown(a_large_common_offset_costs_no_digits, rt_teardown),
        cmocka_unit_test_teardown(extremes_behave_as_in_the_reference, rt_teardown),
        cmocka_unit_test_teardown(no_rows_give_zero_gradients, rt_teardown),
        cmocka_unit_test_teardown(threads_do_not_change_the_bits, rt_teardown),
        cmocka_unit_test_teardown(writing_past_the_caches_changes_nothing, rt_teardown),
    };
    return cmocka_run_group_tests(list, NULL, NULL);
}

int main(void) { return ct_each_isa(tests, km_cpu_register_norm); }
