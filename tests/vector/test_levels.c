/* Levels for normal numbers against the tables of Max (1960), and what their leading bits tell. */
#include "vector/levels.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void errors_are_those_that_max_has_published(void **state) {
    (void)state;
    static const double want[] = {1.0, 0.3634, 0.1175, 0.03454, 0.009497, 0.002505};
    float levels[256];
    for (int b = 0; b <= 5; b++) assert_true(fabs(km_levels(b, levels) / want[b] - 1) < 2e-3);
    km_levels(2, levels);
    assert_true(fabsf(levels[2] - 0.4528f) < 1e-3f && fabsf(levels[3] - 1.510f) < 1e-3f);
    assert_true(km_levels(8, levels) < 4.6e-5);
}

static void levels_are_sorted_and_mirror_each_other(void **state) {
    (void)state;
    float levels[256];
    for (int b = 1; b <= KM_LEVEL_BITS; b++) {
        int n = 1 << b;
        km_levels(b, levels);
        for (int i = 0; i < n; i++) {
            assert_true(i == 0 || levels[i] > levels[i - 1]);
            assert_true(levels[i] == -levels[n - 1 - i]);
        }
    }
}

static void a_number_goes_to_the_nearest_level(void **state) {
    (void)state;
    float levels[256];
    for (int b = 1; b <= KM_LEVEL_BITS; b++) {
        km_levels(b, levels);
        for (float x = -5; x < 5; x += 0.0137f) {
            int got = km_level_of(b, levels, x), best = 0;
            for (int i = 1; i < 1 << b; i++)
                if (fabsf(levels[i] - x) < fabsf(levels[best] - x)) best = i;
            assert_true(fabsf(fabsf(levels[got] - x) - fabsf(levels[best] - x)) < 1e-6f);
        }
    }
}

static void more_leading_bits_tell_more(void **state) {
    (void)state;
    float levels[256], weight[8];
    double along, square, before = 0;
    km_levels(4, levels);
    for (int lead = 1; lead <= 4; lead++) {
        km_level_planes(4, levels, lead, weight, &along, &square);
        assert_true(along > before);
        assert_true(fabs(along - square) < 1e-6); /* the best estimate: its error is across it */
        before = along;
    }
    km_level_planes(4, levels, 1, weight, &along, &square);
    assert_true(fabs(weight[0] - 0.7979) < 2e-3); /* E |x| */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_those_that_max_has_published),
        cmocka_unit_test(levels_are_sorted_and_mirror_each_other),
        cmocka_unit_test(a_number_goes_to_the_nearest_level),
        cmocka_unit_test(more_leading_bits_tell_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
