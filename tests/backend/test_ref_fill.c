/* The reference backend's fills, random numbers, copies and casts: the ops whose results no other
 * library shares bit for bit, so what they must give is stated here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "backend/ref_tensor.h"
#include "base/rng.h"

static km_tensor *fill(km_op op, km_dtype dtype, km_shape shape, bool odd, km_params p) {
    km_tensor *out = rt_make(dtype, shape, odd);
    assert_int_equal(rt_run(op, &p, NULL, 0, &out, 1), KM_OK);
    assert_true(rt_gaps_intact(out));
    return out;
}

static km_tensor *cast(const km_tensor *x, km_dtype dtype) {
    km_tensor *in = rt_copy(x, x->dtype, true), *out = rt_make(dtype, x->shape, true);
    assert_int_equal(rt_run(KM_OP_CAST, NULL, &in, 1, &out, 1), KM_OK);
    assert_true(rt_gaps_intact(out));
    return out;
}

static double nth(const km_tensor *t, int64_t n) { return km_ref_load(t, km_ref_nth(t, n)); }
static int64_t nth_int(const km_tensor *t, int64_t n) {
    return km_ref_load_int(t, km_ref_nth(t, n));
}

/* ---- Fills ---- */

static void full_writes_the_value_in_every_dtype(void **state) {
    for (int d = 0; d < KM_PLAIN_COUNT; d++) {
        km_tensor *t = fill(KM_OP_FULL, (km_dtype)d, KM_SHAPE(2, 3), true, (km_params){.f = {3}});
        for (int n = 0; n < 6; n++) assert_true(nth(t, n) == (d == KM_BOOL ? 1 : 3));
    }
}

static void arange_counts_from_start_by_step(void **state) {
    km_params p = {.f = {2, -0.5}};
    km_tensor *t = fill(KM_OP_ARANGE, KM_F32, KM_SHAPE(5), true, p);
    for (int n = 0; n < 5; n++) assert_true(nth(t, n) == 2 - 0.5 * n);
    t = fill(KM_OP_ARANGE, KM_I64, KM_SHAPE(4), false, (km_params){.f = {-3, 2}});
    for (int n = 0; n < 4; n++) assert_int_equal(nth_int(t, n), -3 + 2 * n);
}

/* ---- Random numbers ---- */

static void uniform_takes_word_i_of_the_philox_sequence(void **state) {
    km_params p = {.f = {-2, 6}, .seed = 42, .stream = 7};
    km_tensor *t = fill(KM_OP_UNIFORM, KM_F64, KM_SHAPE(3, 5), true, p);
    for (int n = 0; n < 15; n++) {
        double unit = (double)(km_philox(42, 7, (uint64_t)n / 4).v[n % 4] >> 8) / 16777216.0;
        assert_true(nth(t, n) == -2 + 8 * unit);
    }
}

static void normal_takes_words_in_pairs(void **state) {
    km_params p = {.f = {10, 2}, .seed = 1, .stream = 3};
    km_tensor *t = fill(KM_OP_NORMAL, KM_F64, KM_SHAPE(7), true, p);
    for (int n = 0; n < 7; n++) {
        km_philox4 block = km_philox(1, 3, (uint64_t)n / 4);
        double z[4];
        km_box_muller(block.v[0], block.v[1], &z[0], &z[1]);
        km_box_muller(block.v[2], block.v[3], &z[2], &z[3]);
        assert_true(nth(t, n) == 10 + 2 * z[n % 4]);
    }
}

static void random_numbers_have_the_moments_asked_for(void **state) {
    enum { N = 20000 };
    km_params p = {.f = {-1, 3}, .seed = 5};
    km_tensor *u = fill(KM_OP_UNIFORM, KM_F32, KM_SHAPE(N), false, p);
    km_tensor *z = fill(KM_OP_NORMAL, KM_F32, KM_SHAPE(N), false, p); /* mean -1, sd 3 */
    double mean_u = 0, mean_z = 0, var_z = 0;
    for (int n = 0; n < N; n++) {
        assert_true(nth(u, n) >= -1 && nth(u, n) < 3);
        mean_u += nth(u, n) / N;
        mean_z += nth(z, n) / N;
        var_z += (nth(z, n) + 1) * (nth(z, n) + 1) / N;
    }
    assert_true(fabs(mean_u - 1) < 0.05);
    assert_true(fabs(mean_z + 1) < 0.1);
    assert_true(fabs(var_z - 9) < 0.4);
}

static void dropout_keeps_elements_whose_number_reaches_p(void **state) {
    enum { N = 1000 };
    km_tensor *x = fill(KM_OP_ARANGE, KM_F64, KM_SHAPE(N), true, (km_params){.f = {1, 1}});
    km_tensor *y = rt_make(KM_F64, KM_SHAPE(N), true);
    km_params p = {.f = {0.25}, .seed = 9, .stream = 2};
    assert_int_equal(rt_run(KM_OP_DROPOUT, &p, &x, 1, &y, 1), KM_OK);
    int kept = 0;
    for (int n = 0; n < N; n++) {
        bool lives = (km_philox(9, 2, (uint64_t)n / 4).v[n % 4] >> 8) >= 0.25 * 16777216;
        assert_true(nth(y, n) == (lives ? (n + 1) * (1 / 0.75) : 0));
        kept += lives;
    }
    assert_in_range(kept, 700, 800);
}

static void dropout_removes_infinities_and_nan_too(void **state) {
    km_tensor *x = RT(KM_F32, KM_SHAPE(4), INFINITY, -INFINITY, NAN, 1);
    km_tensor *y = rt_new(KM_F32, KM_SHAPE(4));
    assert_int_equal(rt_run(KM_OP_DROPOUT, &(km_params){.f = {1}}, &x, 1, &y, 1), KM_OK);
    for (int n = 0; n < 4; n++) assert_true(nth(y, n) == 0);
}

/* ---- Casts ---- */

static void float_to_integer_truncates_and_saturates(void **state) {
    km_tensor *x = RT(KM_F64, KM_SHAPE(8), 2.9, -2.9, 300, -300, 1e30, -1e30, NAN, -0.5);
    const struct {
        km_dtype dtype;
        int64_t want[8];
    } rows[] = {
        {KM_I8, {2, -2, 127, -128, 127, -128, 0, 0}},
        {KM_U8, {2, 0, 255, 0, 255, 0, 0, 0}},
        {KM_I32, {2, -2, 300, -300, INT32_MAX, INT32_MIN, 0, 0}},
        {KM_I64, {2, -2, 300, -300, INT64_MAX, INT64_MIN, 0, 0}},
        {KM_BOOL, {1, 1, 1, 1, 1, 1, 1, 1}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        km_tensor *y = cast(x, rows[r].dtype);
        for (int n = 0; n < 8; n++) assert_true(nth_int(y, n) == rows[r].want[n]);
    }
    km_tensor *edge = cast(RT(KM_F64, KM_SHAPE(2), 0x1p63, 0x1.fffffffffffffp62), KM_I64);
    assert_true(nth_int(edge, 0) == INT64_MAX);
    assert_true(nth_int(edge, 1) == INT64_MAX - 1023);
    assert_int_equal(nth_int(cast(RT(KM_F32, KM_SHAPE(2), 0, -0.0), KM_BOOL), 1), 0);
}

static void integer_to_integer_wraps(void **state) {
    km_tensor *x = RT_INTS(KM_I64, 300, -1, (INT64_C(1) << 32) + 5, INT64_MIN);
    const int64_t as_u8[] = {44, 255, 5, 0}, as_i32[] = {300, -1, 5, 0};
    for (int n = 0; n < 4; n++) {
        assert_int_equal(nth_int(cast(x, KM_U8), n), as_u8[n]);
        assert_int_equal(nth_int(cast(x, KM_I32), n), as_i32[n]);
        assert_int_equal(nth_int(cast(x, KM_BOOL), n), 1);
    }
}

/* 2^62 + 2^38 is half way between two f32s, so the lowest bit decides; a detour through double
 * would lose it. Likewise for bf16 at 2^54. */
static void large_integers_round_once(void **state) {
    int64_t big = INT64_C(1) << 62, half = INT64_C(1) << 38;
    km_tensor *y = cast(RT_INTS(KM_I64, big + half + 1, big + half, -(big + half + 1)), KM_F32);
    assert_true(nth(y, 0) == (double)(big + 2 * half));
    assert_true(nth(y, 1) == (double)big);
    assert_true(nth(y, 2) == -(double)(big + 2 * half));
    big = INT64_C(1) << 54, half = INT64_C(1) << 46;
    y = cast(RT_INTS(KM_I64, big + half + 1, big + half, big + half - 1), KM_BF16);
    assert_true(nth(y, 0) == (double)(big + 2 * half));
    assert_true(nth(y, 1) == (double)big);
    assert_true(nth(y, 2) == (double)big);
}

/* Between every two neighbouring 16-bit floats: the middle goes to the even one, a hair to either
 * side goes to the nearer. The hair is far too thin for f32. */
static void doubles_round_once_to_16_bits(void **state) {
    const km_dtype dtypes[] = {KM_F16, KM_BF16};
    for (int d = 0; d < 2; d++) {
        km_tensor *t = rt_new(dtypes[d], KM_SCALAR);
        uint16_t *bits = t->storage->data, infinity = d == 0 ? 0x7c00 : 0x7f80;
        for (uint16_t lower = 0; lower + 1 < infinity; lower++) {
            uint16_t upper = lower + 1;
            *bits = lower;
            double lo = km_ref_load(t, 0);
            *bits = upper;
            double middle = lo + (km_ref_load(t, 0) - lo) / 2, hair = middle * 0x1p-50;
            km_ref_store(t, 0, middle);
            assert_int_equal(*bits, lower % 2 ? upper : lower);
            km_ref_store(t, 0, middle - hair);
            assert_int_equal(*bits, lower);
            km_ref_store(t, 0, -(middle + hair));
            assert_int_equal(*bits, upper | 0x8000);
        }
        km_ref_store(t, 0, 1e300);
        assert_int_equal(*bits, infinity);
        km_ref_store(t, 0, -1e-300);
        assert_int_equal(*bits, 0x8000);
    }
}

static void every_16_bit_float_survives_a_round_trip(void **state) {
    const km_dtype dtypes[] = {KM_F16, KM_BF16};
    for (int d = 0; d < 2; d++) {
        km_tensor *t = rt_new(dtypes[d], KM_SCALAR);
        uint16_t *bits = t->storage->data;
        for (uint32_t h = 0; h < 65536; h++) {
            *bits = (uint16_t)h;
            double v = km_ref_load(t, 0);
            km_ref_store(t, 0, v);
            if (isnan(v))
                assert_true(isnan(km_ref_load(t, 0)));
            else
                assert_int_equal(*bits, h);
        }
    }
}

static void copy_keeps_every_bit(void **state) {
    km_tensor *x = rt_new(KM_F16, KM_SHAPE(2, 2)), *y = rt_make(KM_F16, KM_SHAPE(2, 2), true);
    const uint16_t bits[] = {0x7c01, 0xfe55, 0x8000, 0x0001}; /* a signalling NaN among them */
    memcpy(x->storage->data, bits, sizeof bits);
    assert_int_equal(rt_run(KM_OP_COPY, NULL, &x, 1, &y, 1), KM_OK);
    for (int n = 0; n < 4; n++)
        assert_memory_equal(km_ref_ptr(y, km_ref_nth(y, n)), &bits[n], sizeof bits[n]);
}

int main(void) {
#define TEST(name) cmocka_unit_test_teardown(name, rt_teardown)
    const struct CMUnitTest tests[] = {
        TEST(full_writes_the_value_in_every_dtype),
        TEST(arange_counts_from_start_by_step),
        TEST(uniform_takes_word_i_of_the_philox_sequence),
        TEST(normal_takes_words_in_pairs),
        TEST(random_numbers_have_the_moments_asked_for),
        TEST(dropout_keeps_elements_whose_number_reaches_p),
        TEST(dropout_removes_infinities_and_nan_too),
        TEST(float_to_integer_truncates_and_saturates),
        TEST(integer_to_integer_wraps),
        TEST(large_integers_round_once),
        TEST(doubles_round_once_to_16_bits),
        TEST(every_16_bit_float_survives_a_round_trip),
        TEST(copy_keeps_every_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
