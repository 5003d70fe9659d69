/* Philox against the known answers published with Random123, and the shape of the numbers
 * made from its words. */
#include "base/rng.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void check(uint64_t seed, uint64_t stream, uint64_t counter, const uint32_t *want) {
    km_philox4 got = km_philox(seed, stream, counter);
    for (int i = 0; i < 4; i++) assert_int_equal(got.v[i], want[i]);
}

static void it_gives_the_published_known_answers(void **state) {
    static const uint32_t zeros[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    static const uint32_t ones[] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    static const uint32_t pi[] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    check(0, 0, 0, zeros);
    check(UINT64_MAX, UINT64_MAX, UINT64_MAX, ones);
    /* key a4093822 299f31d0, counter 243f6a88 85a308d3 13198a2e 03707344, low words first */
    check(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, pi);
}

static void seeds_streams_and_counters_all_matter(void **state) {
    uint32_t base = km_philox(1, 2, 3).v[0];
    assert_int_not_equal(base, km_philox(2, 2, 3).v[0]);
    assert_int_not_equal(base, km_philox(1, 3, 3).v[0]);
    assert_int_not_equal(base, km_philox(1, 2, 4).v[0]);
    assert_int_not_equal(base, km_philox(1 + (1ull << 32), 2, 3).v[0]);
    assert_int_not_equal(base, km_philox(1, 2 + (1ull << 32), 3).v[0]);
    assert_int_not_equal(base, km_philox(1, 2, 3 + (1ull << 32)).v[0]);
}

static void unit_numbers_never_reach_one(void **state) {
    assert_true(km_u32_to_unit(0) == 0.0f);
    assert_true(km_u32_to_unit(UINT32_MAX) < 1.0f);
    assert_true(km_u32_to_unit(0x80000000u) == 0.5f);
}

static void uniform_numbers_are_spread_evenly(void **state) {
    enum { BLOCKS = 25000, BINS = 10 };
    double sum = 0;
    int bins[BINS] = {0};
    for (uint64_t i = 0; i < BLOCKS; i++) {
        km_philox4 b = km_philox(42, 0, i);
        for (int j = 0; j < 4; j++) {
            float u = km_u32_to_unit(b.v[j]);
            sum += u;
            bins[(int)(u * BINS)]++;
        }
    }
    double n = 4.0 * BLOCKS, chi2 = 0;
    assert_true(fabs(sum / n - 0.5) < 0.004); /* over four standard errors */
    for (int i = 0; i < BINS; i++) chi2 += pow(bins[i] - n / BINS, 2) / (n / BINS);
    assert_true(chi2 < 27.9); /* 0.1% of chi-squared with 9 degrees of freedom */
}

static void normal_numbers_have_the_moments_of_a_normal(void **state) {
    enum { BLOCKS = 25000 };
    double m1 = 0, m2 = 0, m4 = 0, cross = 0;
    for (uint64_t i = 0; i < BLOCKS; i++) {
        km_philox4 b = km_philox(7, 9, i);
        for (int j = 0; j < 4; j += 2) {
            double x, y;
            km_box_muller(b.v[j], b.v[j + 1], &x, &y);
            m1 += x + y;
            m2 += x * x + y * y;
            m4 += x * x * x * x + y * y * y * y;
            cross += x * y;
        }
    }
    double n = 4.0 * BLOCKS;
    assert_true(fabs(m1 / n) < 0.015);
    assert_true(fabs(m2 / n - 1) < 0.02);
    assert_true(fabs(m4 / n - 3) < 0.15);
    assert_true(fabs(cross / (n / 2)) < 0.02);
}

static void the_extreme_words_give_finite_normals(void **state) {
    static const uint32_t edges[] = {0, 1, 255, 256, 0x7fffffff, 0xffffff00, UINT32_MAX};
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < 7; j++) {
            double x, y;
            km_box_muller(edges[i], edges[j], &x, &y);
            assert_true(isfinite(x) && isfinite(y));
            assert_true(fabs(x) < 6 && fabs(y) < 6);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_gives_the_published_known_answers),
        cmocka_unit_test(seeds_streams_and_counters_all_matter),
        cmocka_unit_test(unit_numbers_never_reach_one),
        cmocka_unit_test(uniform_numbers_are_spread_evenly),
        cmocka_unit_test(normal_numbers_have_the_moments_of_a_normal),
        cmocka_unit_test(the_extreme_words_give_finite_normals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
