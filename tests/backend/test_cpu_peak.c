/* The processor's limit can be measured, with a pool and without. That nothing is faster is for
 * bench/cpu_peak.c to show: a test times nothing. */
#include "backend/backend.h"
#include "backend/cpu/peak.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void a_limit_is_measured_with_a_pool_and_without(void **state) {
    (void)state;
    km_threads *pool = km_threads_new(2);
    assert_non_null(pool);
    assert_true(km_cpu_peak(NULL) > 0);
    assert_true(km_cpu_peak(pool) > 0);
    km_threads_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_limit_is_measured_with_a_pool_and_without),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
