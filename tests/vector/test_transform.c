/* Transforms: the Hadamard rotation and eigenvectors. */
#include "normal_rows.h"
#include "vector/transform.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void the_rotation_keeps_lengths_and_can_be_undone(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 2, 3, 8, 100, 128, 384, 784, 4096};
    for (size_t k = 0; k < sizeof dims / sizeof *dims; k++) {
        int64_t d = dims[k];
        float *x = normal_rows(k, 1, d), *y = normal_rows(k, 1, d);
        float *signs = malloc((size_t)km_hadamard_signs(d) * sizeof *signs);
        km_hadamard_seed(5, d, signs);
        km_hadamard(signs, d, y);
        double before = 0, after = 0;
        for (int64_t i = 0; i < d; i++) before += x[i] * x[i], after += y[i] * y[i];
        assert_true(fabs(after / before - 1) < 1e-4);
        km_hadamard_back(signs, d, y);
        for (int64_t i = 0; i < d; i++) assert_true(fabsf(x[i] - y[i]) < 1e-4f);
        free(x), free(y), free(signs);
    }
}

static void one_coordinate_is_spread_over_all(void **state) {
    (void)state;
    enum { D = 384 };
    float x[D] = {0}, *signs = malloc((size_t)km_hadamard_signs(D) * sizeof *signs);
    x[17] = 1;
    km_hadamard_seed(1, D, signs);
    km_hadamard(signs, D, x);
    double fourth = 0;
    for (int i = 0; i < D; i++) {
        assert_true(fabsf(x[i]) < 0.35f);
        fourth += pow(x[i], 4) * D;
    }
    assert_true(fourth < 6); /* 3 for a Gaussian, D for a single coordinate */
    free(signs);
}

static void other_seeds_are_other_rotations(void **state) {
    (void)state;
    enum { D = 64 };
    float a[2 * 3 * D], b[2 * 3 * D];
    assert_int_equal(km_hadamard_signs(D), 2 * 3 * D);
    km_hadamard_seed(1, D, a);
    km_hadamard_seed(2, D, b);
    assert_memory_not_equal(a, b, sizeof a);
    km_hadamard_seed(1, D, b);
    assert_memory_equal(a, b, sizeof a);
}

/* a = V' diag(value) V with V orthonormal */
static void check_eigen(int n, const double *a) {
    double *v = malloc(sizeof *v * (size_t)(n * n)),
           *value = malloc(sizeof *value * (size_t)(3 * n));
    memcpy(v, a, sizeof *v * (size_t)(n * n));
    assert_true(km_eigen(n, v, value, value + n));
    double top = fabs(value[0]) + fabs(value[n - 1]) + 1e-30;
    for (int i = 0; i < n; i++) {
        assert_true(i == 0 || value[i] <= value[i - 1]);
        for (int j = 0; j < n; j++) {
            double same = 0, back = 0;
            for (int k = 0; k < n; k++) {
                same += v[i * n + k] * v[j * n + k];
                back += v[k * n + i] * value[k] * v[k * n + j];
            }
            assert_true(fabs(same - (i == j)) < 1e-10);
            assert_true(fabs(back - a[i * n + j]) < 1e-10 * top);
        }
    }
    free(v), free(value);
}

static void eigenvectors_rebuild_the_matrix(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 3, 5, 16, 61};
    for (int k = 0; k < 6; k++) {
        int n = sizes[k];
        float *x = normal_rows((uint64_t)k, n, n);
        double a[61 * 61];
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) a[i * n + j] = x[i * n + j] + (double)x[j * n + i];
        check_eigen(n, a);
        free(x);
    }
}

static void matrices_of_low_rank_settle(void **state) {
    (void)state;
    enum { N = 40 };
    double zero[N * N] = {0}, one[N * N] = {0}, tiny[N * N] = {0};
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < 7; j++) one[i * N + j] = i < 7 ? (i + 1) * (j + 1) : 0;
        tiny[i * N + i] = i < 3 ? 1e-300 * i : 0;
    }
    check_eigen(N, zero);
    check_eigen(N, one);
    check_eigen(N, tiny);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rotation_keeps_lengths_and_can_be_undone),
        cmocka_unit_test(one_coordinate_is_spread_over_all),
        cmocka_unit_test(other_seeds_are_other_rotations),
        cmocka_unit_test(eigenvectors_rebuild_the_matrix),
        cmocka_unit_test(matrices_of_low_rank_settle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
