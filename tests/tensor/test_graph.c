/* Steps as graphs, on a device that has none: the step runs every time and ends every time. On a GPU
 * the same calls capture and replay (tests/backend). */
#include "tensor/tensor.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct job {
    km_tensor *x, *y;
    int runs;
} job;

static void double_it(km_ctx *ctx, void *user) {
    job *j = user;
    km_assign(ctx, j->y, km_mul_scalar(ctx, j->x, 2));
    j->runs++;
}

static void fail_it(km_ctx *ctx, void *user) {
    (void)user;
    km_ctx_fail(ctx, KM_ERR_RANGE, "no good");
}

static void a_step_runs_every_time_where_there_are_no_graphs(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    job j = {.x = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(3))),
             .y = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(3)))};
    km_graph *g = NULL;
    km_step_end(ctx);
    for (int i = 1; i <= 4; i++) {
        float in[] = {(float)i, 2, 3}, out[3];
        uint64_t steps = km_ctx_stats(ctx).steps;
        km_write(ctx, j.x, in, sizeof in);
        assert_int_equal(km_graph_run(ctx, &g, 7, double_it, &j), KM_OK);
        assert_int_equal(km_ctx_stats(ctx).steps, steps + 1);
        assert_int_equal(km_read(ctx, j.y, out, sizeof out), KM_OK);
        assert_true(out[0] == 2.0f * (float)i && out[2] == 6.0f);
    }
    assert_int_equal(j.runs, 4);
    assert_false(km_graph_captured(g));
    km_graph_free(g);
    km_release(j.x);
    km_release(j.y);
    km_ctx_free(ctx);
}

static void a_failing_step_fails_the_run_and_the_next_one_works(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    job j = {.x = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(1))),
             .y = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(1)))};
    km_graph *g = NULL;
    assert_int_equal(km_graph_run(ctx, &g, 1, fail_it, NULL), KM_ERR_RANGE);
    assert_int_equal(km_graph_run(ctx, &g, 1, double_it, &j), KM_ERR_RANGE);
    assert_int_equal(j.runs, 0);
    km_ctx_clear_error(ctx);
    assert_int_equal(km_graph_run(ctx, &g, 1, double_it, &j), KM_OK);
    assert_true(km_item(ctx, j.y) == 2);
    km_graph_free(g);
    km_release(j.x);
    km_release(j.y);
    km_ctx_free(ctx);
}

static void a_graph_needs_a_place_a_step_and_its_own_context(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1), *other = km_ctx_new("cpu", 1);
    km_graph *g = NULL;
    assert_int_equal(km_graph_run(ctx, NULL, 1, fail_it, NULL), KM_ERR_NULL);
    km_ctx_clear_error(ctx);
    assert_int_equal(km_graph_run(ctx, &g, 1, NULL, NULL), KM_ERR_NULL);
    km_ctx_clear_error(ctx);
    assert_null(g);
    assert_int_equal(km_graph_run(ctx, &g, 1, fail_it, NULL), KM_ERR_RANGE);
    assert_int_equal(km_graph_run(other, &g, 1, fail_it, NULL), KM_ERR_STATE);
    km_graph_free(g);
    km_graph_free(NULL);
    km_ctx_free(other);
    km_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_runs_every_time_where_there_are_no_graphs),
        cmocka_unit_test(a_failing_step_fails_the_run_and_the_next_one_works),
        cmocka_unit_test(a_graph_needs_a_place_a_step_and_its_own_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
