/* Schedules: rates computed by hand at the places where something changes. */
#include "nn/optim.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void near(double got, double want) { assert_true(fabs(got - want) < 1e-12); }

static void every_schedule_warms_up_in_a_straight_line(void **state) {
    (void)state;
    for (int kind = KM_SCHEDULE_CONSTANT; kind <= KM_SCHEDULE_WSD; kind++) {
        km_schedule s = {
            .kind = (km_schedule_kind)kind, .lr = 1, .warmup = 4, .decay = 3, .steps = 20};
        near(km_schedule_lr(&s, 0), 0.25);
        near(km_schedule_lr(&s, 1), 0.5);
        near(km_schedule_lr(&s, 3), 1);
        near(km_schedule_lr(&s, 4), 1);
    }
}

static void a_constant_rate_stays(void **state) {
    (void)state;
    km_schedule s = {.lr = 3e-4, .steps = 10};
    near(km_schedule_lr(&s, 0), 3e-4);
    near(km_schedule_lr(&s, 9), 3e-4);
    near(km_schedule_lr(&s, 1000), 3e-4);
}

static void a_linear_rate_ends_at_its_lowest(void **state) {
    (void)state;
    km_schedule s = {.kind = KM_SCHEDULE_LINEAR, .lr = 1, .min_lr = 0.2, .warmup = 1, .steps = 6};
    near(km_schedule_lr(&s, 1), 1);
    near(km_schedule_lr(&s, 3), 0.6);
    near(km_schedule_lr(&s, 5), 0.2);
    near(km_schedule_lr(&s, 50), 0.2);
}

static void a_cosine_passes_its_middle_half_way(void **state) {
    (void)state;
    km_schedule s = {.kind = KM_SCHEDULE_COSINE, .lr = 1, .min_lr = 0.1, .warmup = 2, .steps = 7};
    near(km_schedule_lr(&s, 2), 1);
    near(km_schedule_lr(&s, 3), 0.1 + 0.45 * (1 + sqrt(0.5)));
    near(km_schedule_lr(&s, 4), 0.55);
    near(km_schedule_lr(&s, 6), 0.1);
    near(km_schedule_lr(&s, 7), 0.1);
}

static void wsd_holds_and_then_falls(void **state) {
    (void)state;
    km_schedule s = {
        .kind = KM_SCHEDULE_WSD, .lr = 2, .min_lr = 0, .warmup = 2, .decay = 4, .steps = 12};
    near(km_schedule_lr(&s, 2), 2);
    near(km_schedule_lr(&s, 7), 2);
    near(km_schedule_lr(&s, 8), 1.5);
    near(km_schedule_lr(&s, 9), 1);
    near(km_schedule_lr(&s, 11), 0);
}

static void impossible_schedules_are_refused(void **state) {
    (void)state;
    const km_schedule bad[] = {
        {.lr = 0, .steps = 10},
        {.lr = NAN, .steps = 10},
        {.lr = 1, .min_lr = 2, .steps = 10},
        {.lr = 1, .steps = 0},
        {.lr = 1, .steps = 10, .warmup = 11},
        {.lr = 1, .steps = 10, .warmup = -1},
        {.kind = KM_SCHEDULE_WSD, .lr = 1, .steps = 10, .warmup = 6, .decay = 5}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        km_error err = {0};
        assert_int_equal(km_schedule_check(&bad[i], &err), KM_ERR_RANGE);
        assert_true(err.text[0]);
    }
    km_schedule one = {.kind = KM_SCHEDULE_COSINE, .lr = 1, .steps = 1};
    assert_int_equal(km_schedule_check(&one, NULL), KM_OK);
    near(km_schedule_lr(&one, 0), 1);
}

static void schedules_have_names(void **state) {
    (void)state;
    km_schedule_kind kind;
    assert_true(km_schedule_named("wsd", &kind));
    assert_int_equal(kind, KM_SCHEDULE_WSD);
    assert_false(km_schedule_named("sine", &kind));
    assert_false(km_schedule_named(NULL, &kind));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_warms_up_in_a_straight_line),
        cmocka_unit_test(a_constant_rate_stays),
        cmocka_unit_test(a_linear_rate_ends_at_its_lowest),
        cmocka_unit_test(a_cosine_passes_its_middle_half_way),
        cmocka_unit_test(wsd_holds_and_then_falls),
        cmocka_unit_test(impossible_schedules_are_refused),
        cmocka_unit_test(schedules_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
