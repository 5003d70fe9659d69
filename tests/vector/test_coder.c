/* Coders: errors within theory, the same bytes for any number of threads, strings that stand alone,
 * and odd shapes. */
#include "base/alloc.h"
#include "normal_rows.h"
#include "support/sanitized.h"
#include "vector/coder.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static km_coder *train(km_threads *t, const float *x, int64_t n, int64_t dim, double bytes,
                       km_code_mode mode, km_code_turn turn) {
    km_coder_options o = {.dim = dim, .bytes = bytes, .mode = mode, .turn = turn, .seed = 3};
    km_error err = {0};
    km_coder *c = km_coder_train(t, x, n, &o, &err);
    assert_string_equal(err.text, "");
    assert_non_null(c);
    assert_true((double)km_coder_bytes(c) <= fmax(bytes, 1));
    return c;
}

/* Mean squared error over the mean square of x. */
static double part_lost(const km_coder *c, const float *x, int64_t n) {
    int64_t dim = km_coder_dim(c);
    uint8_t *codes = malloc((size_t)n * km_coder_bytes(c));
    float *back = malloc((size_t)(n * dim) * sizeof *back);
    double lost = 0, all = 0;
    assert_int_equal(km_coder_encode(c, NULL, x, n, codes), KM_OK);
    assert_int_equal(km_coder_decode(c, NULL, codes, n, back), KM_OK);
    for (int64_t i = 0; i < n * dim; i++) {
        lost += (x[i] - back[i]) * (x[i] - back[i]);
        all += x[i] * x[i];
    }
    free(codes), free(back);
    return lost / all;
}

/* Gaussian rows. One byte more than the axes' bits take holds the scale. */
static void errors_on_gaussian_rows_are_those_of_theory(void **state) {
    (void)state;
    enum { D = 128, N = 48 };
    static const struct {
        int bits;
        double lloyd_max, shannon;
    } table[] = {
        {1, 0.3634, 0.25}, {2, 0.1175, 0.0625}, {3, 0.03454, 0.015625}, {4, 0.009497, 0.00390625}};
    if (SANITIZED) skip(); /* nothing of it is about memory */
    float *x = normal_rows(1, N, D);
    for (int k = 0; k < 4; k++) {
        double bytes = table[k].bits * D / 8 + 1;
        km_coder *fast = train(NULL, x, N, D, bytes, KM_CODE_FAST, KM_TURN_HADAMARD);
        km_coder *dense = train(NULL, x, N, D, bytes, KM_CODE_DENSE, KM_TURN_HADAMARD);
        double f = part_lost(fast, x, N), d = part_lost(dense, x, N);
        assert_true(f > table[k].lloyd_max * 0.93 && f < table[k].lloyd_max * 1.07);
        assert_true(d > table[k].shannon * 0.95 && d < table[k].shannon * 1.25 + 1e-4);
        assert_true(d < f);
        km_coder_free(fast), km_coder_free(dense);
    }
    km_coder *eight = train(NULL, x, N, D, D + 1, KM_CODE_FAST, KM_TURN_HADAMARD);
    assert_true(part_lost(eight, x, N) < 1.5e-4); /* the scale's steps are the larger part */
    km_coder_free(eight);
    free(x);
}

static void principal_axes_win_where_axes_differ(void **state) {
    (void)state;
    enum { D = 32, N = SANITIZED ? 200 : 600 };
    float *x = normal_rows(2, N, D);
    for (int i = 0; i < N * D; i++) x[i] *= expf(-0.2f * (float)(i % D));
    for (int mode = KM_CODE_FAST; mode <= KM_CODE_DENSE; mode++) {
        km_coder *h = train(NULL, x, N, D, 9, (km_code_mode)mode, KM_TURN_HADAMARD);
        km_coder *a = train(NULL, x, N, D, 9, (km_code_mode)mode, KM_TURN_AUTO);
        assert_int_equal(km_coder_turned_by(a), KM_TURN_PCA);
        assert_true(part_lost(a, x, N / 10) < 0.6 * part_lost(h, x, N / 10));
        assert_true(km_coder_error(a) > 0);
        km_coder_free(h), km_coder_free(a);
    }
    free(x);
}

static void rows_of_several_kinds_get_axes_of_their_own(void **state) {
    (void)state;
    enum { D = 24, N = SANITIZED ? 400 : 1500 };
    float *x = normal_rows(3, N, D);
    for (int i = 0; i < N; i++) /* each kind lives in six of the dimensions */
        for (int j = 0; j < D; j++) x[i * D + j] = j / 6 == i % 4 ? x[i * D + j] + 3 : 0;
    km_coder_options o = {
        .dim = D, .bytes = 8, .mode = KM_CODE_DENSE, .turn = KM_TURN_PCA, .seed = 1};
    km_coder *few = km_coder_train(NULL, x, N, &o, NULL);
    o.rows = 1; /* so few that only one class is worth its bytes */
    km_coder *one = km_coder_train(NULL, x, N, &o, NULL);
    assert_non_null(few);
    assert_non_null(one);
    assert_true(km_coder_written(few) > km_coder_written(one));
    assert_true(part_lost(few, x, N / 15) < 0.5 * part_lost(one, x, N / 15));
    km_coder_free(few), km_coder_free(one);
    free(x);
}

static void the_number_of_threads_changes_no_byte(void **state) {
    (void)state;
    enum { D = SANITIZED ? 24 : 48, N = SANITIZED ? 100 : 400 };
    float *x = normal_rows(4, N, D);
    for (int i = 0; i < N * D; i++) x[i] *= 1 + (float)(i % D);
    km_threads *three = km_threads_new(3);
    for (int mode = KM_CODE_FAST; mode <= KM_CODE_DENSE; mode++) {
        km_coder *a = train(NULL, x, N, D, 13, (km_code_mode)mode, KM_TURN_PCA);
        km_coder *b = train(three, x, N, D, 13, (km_code_mode)mode, KM_TURN_PCA);
        size_t size = km_coder_written(a), bytes = km_coder_bytes(a) * 64;
        assert_int_equal(size, km_coder_written(b));
        uint8_t *p = malloc(2 * size), *codes = malloc(2 * bytes);
        km_coder_write(a, p), km_coder_write(b, p + size);
        assert_memory_equal(p, p + size, size);
        km_coder_encode(a, NULL, x, 64, codes), km_coder_encode(b, three, x, 64, codes + bytes);
        assert_memory_equal(codes, codes + bytes, bytes);
        free(p), free(codes);
        km_coder_free(a), km_coder_free(b);
    }
    km_threads_free(three);
    free(x);
}

static void a_coder_read_back_codes_alike(void **state) {
    (void)state;
    enum { D = 40, N = 300 };
    float *x = normal_rows(5, N, D), out[2][8 * D];
    for (int kind = 0; kind < 4; kind++) {
        km_coder *a = train(NULL, x, N, D, 11, (km_code_mode)(kind % 2),
                            kind / 2 ? KM_TURN_PCA : KM_TURN_HADAMARD);
        size_t size = km_coder_written(a);
        uint8_t *p = malloc(size), codes[2][8 * 11];
        km_error err = {0};
        km_coder_write(a, p);
        km_coder *b = km_coder_read(p, size, &err);
        assert_non_null(b);
        km_coder_encode(a, NULL, x, 8, codes[0]), km_coder_encode(b, NULL, x, 8, codes[1]);
        assert_memory_equal(codes[0], codes[1], sizeof codes[0]);
        km_coder_decode(a, NULL, codes[0], 8, out[0]),
            km_coder_decode(b, NULL, codes[0], 8, out[1]);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        km_coder_free(a), km_coder_free(b), free(p);
    }
    free(x);
}

/* Whatever is cut off or changed is refused, or at least harms nothing. */
static void broken_strings_are_refused_or_harmless(void **state) {
    (void)state;
    enum { D = 12, N = 100 };
    float *x = normal_rows(6, N, D), out[4 * D];
    uint8_t codes[4 * 8];
    for (int mode = KM_CODE_FAST; mode <= KM_CODE_DENSE; mode++) {
        km_coder *c = train(NULL, x, N, D, 7, (km_code_mode)mode, KM_TURN_PCA);
        size_t size = km_coder_written(c);
        uint8_t *p = malloc(size + 1), *q;
        km_coder_write(c, p);
        p[size] = 0;
        km_error err = {0};
        assert_null(km_coder_read(p, size + 1, &err));
        assert_int_equal(err.code, KM_ERR_FORMAT);
        for (size_t cut = 0; cut < size; cut += cut < 100 ? 1 : 37) {
            q = malloc(cut ? cut
                           : 1); /* a block of its own, so that a sanitizer sees a step too far */
            memcpy(q, p, cut);
            assert_null(km_coder_read(q, cut, NULL));
            free(q);
        }
        for (size_t at = 0; at < size; at += SANITIZED ? 3 : 1) {
            p[at] ^= (uint8_t)(1u << at % 8);
            km_coder *bad = km_coder_read(p, size, NULL);
            if (bad && km_coder_bytes(bad) <= 8 && km_coder_dim(bad) == D) {
                memset(codes, 0x5a, sizeof codes);
                assert_int_equal(km_coder_decode(bad, NULL, codes, 4, out), KM_OK);
            }
            km_coder_free(bad);
            p[at] ^= (uint8_t)(1u << at % 8);
        }
        free(p);
        km_coder_free(c);
    }
    free(x);
}

static void odd_shapes_work(void **state) {
    (void)state;
    static const struct {
        int64_t n, dim;
        double bytes;
    } shapes[] = {{1, 1, 1},
                  {1, 1, 2},
                  {5, 1, 9},
                  {3, 2, 4},
                  {2, 7, 3},
                  {40, 3, 3.9},
                  {1, 33, 5},
                  {9, 33, 80},
                  {SANITIZED ? 1 : 20, 4096, 65},
                  {SANITIZED ? 1 : 2, 4096, 300},
                  {SANITIZED ? 40 : 300, 17, 6}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        int64_t n = shapes[k].n, dim = shapes[k].dim;
        float *x = normal_rows(k, n, dim);
        for (int mode = 0; mode < 2; mode++) {
            km_coder *c = train(NULL, x, n, dim, shapes[k].bytes, (km_code_mode)mode, KM_TURN_AUTO);
            double lost = part_lost(c, x, n);
            assert_true(lost >= 0 && lost <= 1.02);
            km_coder_free(c);
        }
        free(x);
    }
}

static void zeros_and_duplicates_code_exactly_alike(void **state) {
    (void)state;
    enum { D = 20, N = 64 };
    float *x = calloc(N * D, sizeof *x), *y = normal_rows(8, N, D), out[3 * D];
    uint8_t codes[N * 8];
    km_coder *zero = train(NULL, x, N, D, 8, KM_CODE_DENSE, KM_TURN_AUTO);
    assert_true(part_lost(zero, y, 1) <= 1.02); /* and rows it has never seen the like of */
    for (int mode = 0; mode < 2; mode++) {
        km_coder *c = train(NULL, y, N, D, 8, (km_code_mode)mode, KM_TURN_PCA);
        memcpy(x, y, D * sizeof *x);
        memcpy(x + 37 * D, y, D * sizeof *x);
        km_coder_encode(c, NULL, x, N, codes);
        assert_memory_equal(codes, codes + 37 * 8, 8);
        km_coder_decode(c, NULL, codes, 3, out);
        for (int i = D; i < 3 * D; i++) assert_true(out[i] == 0);
        km_coder_free(c);
    }
    km_coder_free(zero);
    free(x), free(y);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    float x[4] = {1, 2, 3, 4};
    km_error err = {0};
    km_coder_options o = {.dim = 0, .bytes = 4};
    assert_null(km_coder_train(NULL, x, 1, &o, &err));
    assert_int_equal(err.code, KM_ERR_RANGE);
    o = (km_coder_options){.dim = 4, .bytes = 0.5};
    assert_null(km_coder_train(NULL, x, 1, &o, NULL));
    o = (km_coder_options){.dim = 4, .bytes = 4};
    assert_null(km_coder_train(NULL, x, 0, &o, NULL));
}

static void out_of_memory_anywhere_leaks_nothing(void **state) {
    (void)state;
    enum { D = 16, N = 64 };
    float *x = normal_rows(9, N, D);
    int64_t live = km_alloc_live();
    for (int mode = 0; mode < 2; mode++) {
        km_coder *c = NULL;
        for (int64_t nth = 0; !c; nth += SANITIZED ? 5 : 1) {
            km_error err = {0};
            km_coder_options o = {.dim = D, .bytes = 6, .mode = (km_code_mode)mode, .seed = 1};
            km_alloc_fail_nth(nth);
            c = km_coder_train(NULL, x, N, &o, &err);
            km_alloc_fail_nth(-1);
            assert_true(c || err.code == KM_ERR_MEMORY);
            assert_true(c || km_alloc_live() == live);
            assert_true(nth < 500);
        }
        km_coder_free(c);
        assert_int_equal(km_alloc_live(), live);
    }
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_on_gaussian_rows_are_those_of_theory),
        cmocka_unit_test(principal_axes_win_where_axes_differ),
        cmocka_unit_test(rows_of_several_kinds_get_axes_of_their_own),
        cmocka_unit_test(the_number_of_threads_changes_no_byte),
        cmocka_unit_test(a_coder_read_back_codes_alike),
        cmocka_unit_test(broken_strings_are_refused_or_harmless),
        cmocka_unit_test(odd_shapes_work),
        cmocka_unit_test(zeros_and_duplicates_code_exactly_alike),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(out_of_memory_anywhere_leaks_nothing),
    };
    const struct CMUnitTest shared[] = {cmocka_unit_test(the_number_of_threads_changes_no_byte)};
    return THREADS_SANITIZED ? cmocka_run_group_tests(shared, NULL, NULL)
                             : cmocka_run_group_tests(tests, NULL, NULL);
}
