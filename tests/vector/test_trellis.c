/* Trellis codes: what is read is what was chosen, and how near they come to Shannon's bound. */
#include "normal_rows.h"
#include "vector/trellis.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const km_trellis *tables;

/* Codes n rows of `axes` numbers at the rates given, checks what is read from the codes, and returns
 * the mean squared error. */
static double code_rows(int64_t n, int64_t axes, const uint8_t *rates, float amp, int64_t first) {
    int64_t bits = 0;
    for (int64_t i = 0; i < axes; i++) bits += rates[i];
    size_t bytes = (size_t)(first + bits + 7) / 8;
    float *x = normal_rows(11, n, axes), *value = malloc((size_t)axes * sizeof *value);
    float *amps = malloc((size_t)axes * sizeof *amps);
    int32_t *at = malloc((size_t)axes * sizeof *at);
    uint8_t *code = malloc(bytes);
    void *space = malloc(km_trellis_space(axes));
    double error = 0;
    for (int64_t i = 0; i < axes; i++) amps[i] = amp;
    km_trellis_windows(axes, rates, bits, at);
    for (int64_t r = 0; r < n; r++) {
        memset(code, 0, bytes);
        km_trellis_encode(tables, axes, x + r * axes, amps, rates, bits, code, first, value, space);
        for (int64_t i = 0; i < axes; i++) {
            uint32_t window = 0;
            for (int b = 0; b < KM_TRELLIS_LENGTH; b++) {
                int64_t place = first + (at[i] + b) % bits;
                window |= (uint32_t)(code[place >> 3] >> (place & 7) & 1) << b;
            }
            assert_true(tables->window[rates[i]][window] == value[i]);
            double e = x[r * axes + i] - amp * value[i];
            error += e * e;
        }
        for (int64_t b = 0; b < first; b++) assert_int_equal(code[b >> 3] >> (b & 7) & 1, 0);
    }
    free(x), free(value), free(amps), free(at), free(code), free(space);
    return error / (double)(n * axes);
}

/* Lloyd and Max's levels for 1 to 4 bits, and Shannon's bound 4^-bits. */
static void errors_lie_between_shannons_bound_and_lloyd_max(void **state) {
    (void)state;
    static const double levels[] = {1, 0.3634, 0.1175, 0.03454, 0.009497};
    static const double far[] = {0, 1.12, 1.17, 1.20, 1.25}; /* of the bound, at most */
    uint8_t rates[128];
    for (int k = 1; k <= 4; k++) {
        memset(rates, k, sizeof rates);
        double bound = pow(4, -k), error = code_rows(12, 128, rates, (float)sqrt(1 - bound), 8);
        assert_true(error > bound * 0.97 && error < bound * far[k]);
        assert_true(error < 0.85 * levels[k]);
    }
}

static void rates_between_whole_bits_work_too(void **state) {
    (void)state;
    uint8_t rates[128];
    for (int i = 0; i < 128; i++) rates[i] = i % 2 == 0;
    double error = code_rows(12, 128, rates, (float)sqrt(0.5), 8);
    assert_true(error > 0.5 * 0.95 && error < 0.5 * 1.12);
    for (int i = 0; i < 128; i++) rates[i] = (uint8_t)(1 + i % 2);
    error = code_rows(12, 128, rates, (float)sqrt(1 - 0.125), 13);
    assert_true(error > 0.125 * 0.95 && error < 0.125 * 1.25);
}

static void rings_as_short_as_the_window_and_high_rates_work(void **state) {
    (void)state;
    static const uint8_t twelve[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, two[2] = {4, 8};
    assert_true(code_rows(20, 12, twelve, 0.87f, 8) < 0.8);
    code_rows(20, 2, two, 1, 3);
    uint8_t high[24];
    for (int k = 5; k <= KM_TRELLIS_RATE; k++) {
        memset(high, k, sizeof high);
        assert_true(code_rows(8, 24, high, 1, 8) < pow(4, -k) * 2.6);
    }
}

int main(void) {
    tables = km_trellis_tables();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_lie_between_shannons_bound_and_lloyd_max),
        cmocka_unit_test(rates_between_whole_bits_work_too),
        cmocka_unit_test(rings_as_short_as_the_window_and_high_rates_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
