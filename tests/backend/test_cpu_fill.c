/* Fills, random numbers, copies and casts against the reference. */
#include "backend/cpu/simd/random.h"
#include "base/rng.h"
#include "cpu_tensor.h"

static void full_and_arange_agree_with_the_reference_for_all_dtypes(void **state) {
    (void)state;
    for (km_dtype d = 0; d < KM_PLAIN_COUNT; d++) {
        CT_EACH(double, value, 0, 1, -3.7, 300.2, 1e20, NAN, -INFINITY) {
            CT_EACH(km_shape, shape, KM_SHAPE(1), KM_SHAPE(1001), KM_SHAPE(3, 7), KM_SHAPE(4, 0),
                    KM_SCALAR) {
                km_params p = {.f = {*value}};
                for (int odd = 0; odd < 2; odd++) {
                    km_tensor *out = rt_make(d, *shape, odd), *want = rt_new(d, *shape);
                    assert_int_equal(ct_run(KM_OP_FULL, &p, NULL, 0, &out, 1), KM_OK);
                    assert_int_equal(rt_run(KM_OP_FULL, &p, NULL, 0, &want, 1), KM_OK);
                    assert_true(rt_gaps_intact(out));
                    ct_assert_same_bits("full", rt_copy(out, d, false), want);
                }
            }
        }
        if (d == KM_BOOL) continue;
        CT_EACH(int64_t, n, 0, 1, 5000) {
            km_params p = {.f = {-7.25, 0.3}};
            km_tensor *out = rt_new(d, KM_SHAPE(*n)), *want = rt_new(d, KM_SHAPE(*n));
            assert_int_equal(ct_run(KM_OP_ARANGE, &p, NULL, 0, &out, 1), KM_OK);
            assert_int_equal(rt_run(KM_OP_ARANGE, &p, NULL, 0, &want, 1), KM_OK);
            ct_assert_same_bits("arange", out, want);
        }
        rt_teardown(NULL);
    }
}

static void random_fills_are_the_same_numbers_on_every_device(void **state) {
    (void)state;
    CT_EACH(int64_t, n, 0, 1, 2, 3, 63, 64, 65, 1023, 5000, 70001) {
        km_params p = {.f = {-2.5, 7}, .seed = 0x123456789abcdefu, .stream = 0xfedcba9876543210u};
        km_tensor *out = rt_new(KM_F32, KM_SHAPE(*n)), *want = rt_new(KM_F32, KM_SHAPE(*n));
        assert_int_equal(ct_run(KM_OP_UNIFORM, &p, NULL, 0, &out, 1), KM_OK);
        assert_int_equal(rt_run(KM_OP_UNIFORM, &p, NULL, 0, &want, 1), KM_OK);
        ct_assert_same_bits("uniform", out, want);
        CT_EACH_FLOAT(d) {
            km_tensor *some = rt_new(d, KM_SHAPE(*n));
            ct_check("uniform", KM_OP_UNIFORM, &p, NULL, 0, &some, 1, 1, 0);
            ct_check("normal", KM_OP_NORMAL, &p, NULL, 0, &some, 1, 8, 1e-5);
        }
    }
}

static void dropout_drops_the_same_elements_on_every_device(void **state) {
    (void)state;
    CT_EACH(double, rate, 0, 0.1, 0.5, 0.999) CT_EACH_FLOAT(d) {
        km_params p = {.f = {*rate}, .seed = 3, .stream = 4};
        km_tensor *x = ct_fill(d, KM_SHAPE(4321), 3, 0), *out = rt_new(d, KM_SHAPE(4321));
        ct_check("dropout", KM_OP_DROPOUT, &p, &x, 1, &out, 1, 1, 0);
    }
}

/* A block's number has 64 bits; lanes must carry into the upper half. */
static void random_numbers_carry_beyond_two_to_the_32_blocks(void **state) {
    (void)state;
    enum { N = 512 };
    float out[N];
    for (int back = 0; back < 100; back += 9) {
        uint64_t block = (3ull << 32) - (uint64_t)back;
        km_simd_random()->uniform(out, N, 11, 12, block, 0, 1);
        for (uint64_t i = 0; i < N; i++)
            assert_true(out[i] == km_u32_to_unit(km_philox(11, 12, block + i / 4).v[i % 4]));
    }
}

static void normal_numbers_have_the_moments_they_should(void **state) {
    (void)state;
    enum { N = 200000 };
    km_tensor *out = rt_new(KM_F32, KM_SHAPE(N));
    km_params p = {.f = {3, 2}, .seed = 1};
    assert_int_equal(ct_run(KM_OP_NORMAL, &p, NULL, 0, &out, 1), KM_OK);
    const float *v = km_tensor_ptr(out);
    double sum = 0, squares = 0, fourth = 0;
    for (int i = 0; i < N; i++) {
        double z = ((double)v[i] - 3) / 2;
        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
    }
    assert_true(fabs(sum / N) < 0.01);
    assert_true(fabs(squares / N - 1) < 0.02);
    assert_true(fabs(fourth / N - 3) < 0.15);
}

/* Elements that test every rule of a cast. */
static km_tensor *samples(km_dtype d) {
    static const double reals[] = {
        0,        -0.0,       1,         -1,           0.5,          -0.5,          1.9999,
        -2.5,     127,        128,       -128,         -129,         255,           256,
        65504,    65520,      70000,     2147483647.0, 2147483648.0, -2147483649.0, 1e10,
        -1e10,    9.3e18,     1e38,      -1e39,        1e-8,         6e-8,          1e-40,
        INFINITY, -INFINITY,  NAN,       2049,         2051,         257,           259,
        0.1,      1.00390625, 1.01171875};
    static const int64_t wholes[] = {0,
                                     1,
                                     -1,
                                     127,
                                     128,
                                     -128,
                                     255,
                                     256,
                                     257,
                                     2049,
                                     2051,
                                     65519,
                                     65520,
                                     16777217,
                                     16777219,
                                     INT32_MAX,
                                     INT32_MIN,
                                     INT64_MAX,
                                     INT64_MIN,
                                     (1ll << 53) + 1,
                                     (1ll << 24) + 1,
                                     (257ll << 40) + 1};
    if (km_dtype_is_float(d))
        return rt_from(d, KM_SHAPE((int64_t)(sizeof reals / sizeof *reals)), reals);
    return rt_ints(d, sizeof wholes / sizeof *wholes, wholes);
}

static void casts_follow_the_reference_between_all_dtypes(void **state) {
    (void)state;
    for (km_dtype from = 0; from < KM_PLAIN_COUNT; from++) {
        for (km_dtype to = 0; to < KM_PLAIN_COUNT; to++) {
            for (int odd = 0; odd < 4; odd++) {
                km_tensor *x = rt_copy(samples(from), from, odd & 1);
                km_tensor *out = rt_make(to, x->shape, odd & 2), *want = rt_new(to, x->shape);
                assert_int_equal(ct_run(KM_OP_CAST, NULL, &x, 1, &out, 1), KM_OK);
                assert_int_equal(rt_run(KM_OP_CAST, NULL, &x, 1, &want, 1), KM_OK);
                assert_true(rt_gaps_intact(out));
                int64_t i[KM_MAX_DIMS];
                KM_REF_EACH(i, x->shape) {
                    double g = km_ref_get(out, i), w = km_ref_get(want, i);
                    bool same = isnan(w) ? isnan(g) : g == w && !signbit(g) == !signbit(w);
                    if (!same)
                        fail_msg("%s to %s: %.17g gives %.17g, not %.17g", km_dtype_name(from),
                                 km_dtype_name(to), km_ref_get(x, i), g, w);
                }
                rt_teardown(NULL);
            }
        }
    }
}

/* Every 16-bit float to f32 and back, and every rounding between two of them. */
static void sixteen_bit_floats_convert_exactly_and_round_to_even(void **state) {
    (void)state;
    CT_EACH(km_dtype, d, KM_F16, KM_BF16) {
        km_tensor *all = rt_new(*d, KM_SHAPE(65536)), *wide = rt_new(KM_F32, KM_SHAPE(65536));
        km_tensor *back = rt_new(*d, KM_SHAPE(65536));
        uint16_t *h = km_tensor_ptr(all), *b = km_tensor_ptr(back);
        float *f = km_tensor_ptr(wide);
        for (int i = 0; i < 65536; i++) h[i] = (uint16_t)i;
        assert_int_equal(ct_run(KM_OP_CAST, NULL, &all, 1, &wide, 1), KM_OK);
        assert_int_equal(ct_run(KM_OP_CAST, NULL, &wide, 1, &back, 1), KM_OK);
        for (int i = 0; i < 65536; i++) {
            float want = *d == KM_F16 ? km_f16_to_f32(h[i]) : km_bf16_to_f32(h[i]);
            assert_true(isnan(want) ? isnan(f[i]) : f[i] == want && b[i] == h[i]);
        }
        for (uint32_t low = 0; low < 5; low++) { /* below, at and above the middle of two */
            static const uint32_t f16_bits[] = {0x0fff, 0x1000, 0x1001, 0x1fff, 1};
            static const uint32_t bf16_bits[] = {0x7fff, 0x8000, 0x8001, 0xffff, 1};
            for (int i = 0; i < 65536; i++) {
                uint32_t top = (uint32_t)i << 16 | (uint32_t)(i & 7) << 13;
                f[i] = km_bits_f32(*d == KM_F16 ? top | f16_bits[low]
                                                : (uint32_t)i << 16 | bf16_bits[low]);
            }
            assert_int_equal(ct_run(KM_OP_CAST, NULL, &wide, 1, &back, 1), KM_OK);
            for (int i = 0; i < 65536; i++) {
                uint16_t want = *d == KM_F16 ? km_f32_to_f16(f[i]) : km_f32_to_bf16(f[i]);
                if (isnan(f[i]))
                    assert_true(isnan(*d == KM_F16 ? km_f16_to_f32(b[i]) : km_bf16_to_f32(b[i])));
                else
                    assert_int_equal(b[i], want);
            }
        }
    }
}

static void copies_move_any_layout_and_any_size_of_element(void **state) {
    static const int orders[][4] = {{0, 1, 2, 3}, {0, 1, 3, 2}, {3, 2, 1, 0},
                                    {0, 2, 1, 3}, {1, 0, 3, 2}, {2, 3, 0, 1}};
    (void)state;
    CT_EACH(km_dtype, d, KM_U8, KM_F16, KM_F32, KM_I64) {
        for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
            km_tensor *x = ct_indices(*d, KM_SHAPE(3, 41, 2, 37), 100), view = *x;
            for (int a = 0; a < 4; a++) {
                view.shape.dim[a] = x->shape.dim[orders[k][a]];
                view.stride[a] = x->stride[orders[k][a]];
            }
            for (int odd = 0; odd < 2; odd++) {
                km_tensor *in = &view, *out = rt_make(*d, view.shape, odd);
                ct_check("copy", KM_OP_COPY, NULL, &in, 1, &out, 1, 0, 0);
                assert_true(rt_gaps_intact(out));
            }
            rt_teardown(NULL);
        }
    }
}

static int tests(void) {
#define TEST(name) cmocka_unit_test_teardown(name, rt_teardown)
    const struct CMUnitTest list[] = {
        TEST(full_and_arange_agree_with_the_reference_for_all_dtypes),
        TEST(random_fills_are_the_same_numbers_on_every_device),
        TEST(dropout_drops_the_same_elements_on_every_device),
        TEST(random_numbers_carry_beyond_two_to_the_32_blocks),
        TEST(normal_numbers_have_the_moments_they_should),
        TEST(casts_follow_the_reference_between_all_dtypes),
        TEST(sixteen_bit_floats_convert_exactly_and_round_to_even),
        TEST(copies_move_any_layout_and_any_size_of_element),
    };
    return cmocka_run_group_tests(list, NULL, NULL);
}

static void add_kernels(km_kernel *k) {
    km_cpu_register_fill(k);
    km_cpu_register_copy(k);
}

int main(void) { return ct_each_isa(tests, add_kernels); }
