/* The processor's limit must be one: nothing that the same threads compute may be faster. Other
 * programs can only slow both down, so each figure is the best of a few. */
#include "backend/backend.h"
#include "backend/cpu/peak.h"
#include "base/clock.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static double most(km_threads *pool) {
    double best = 0;
    for (int i = 0; i < 3; i++) {
        double rate = km_cpu_peak(pool);
        if (rate > best) best = rate;
    }
    return best;
}

static double products(km_ctx *ctx, int64_t n) {
    double best = 0;
    km_tensor *a = km_normal(ctx, KM_F32, KM_SHAPE(n, n), 0, 1);
    for (int i = 0; i < 5; i++) {
        double start = km_now();
        km_matmul(ctx, a, a);
        double rate = 2.0 * (double)(n * n * n) / (km_now() - start);
        if (rate > best) best = rate;
    }
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    km_step_end(ctx);
    return best;
}

static void no_product_is_faster_than_the_limit(void **state) {
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        km_ctx *ctx = km_ctx_new("cpu", threads);
        assert_non_null(ctx);
        double before = most(ctx->threads), product = products(ctx, 320);
        double after = most(ctx->threads);
        double limit = before > after ? before : after;
        assert_true(product > 0);
        assert_true(product < 1.05 * limit);
        km_ctx_free(ctx);
    }
}

static void threads_beyond_the_cores_add_nothing(void **state) {
    (void)state;
    int cores = km_cpu_count();
    km_threads *fit = km_threads_new(cores), *many = km_threads_new(4 * cores);
    assert_non_null(fit);
    assert_non_null(many);
    assert_true(most(many) < 2 * most(fit));
    km_threads_free(fit);
    km_threads_free(many);
}

static void one_thread_has_a_limit_without_a_pool(void **state) {
    (void)state;
    assert_true(km_cpu_peak(NULL) > 1e8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_product_is_faster_than_the_limit),
        cmocka_unit_test(threads_beyond_the_cores_add_nothing),
        cmocka_unit_test(one_thread_has_a_limit_without_a_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
