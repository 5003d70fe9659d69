/* Steps as graphs on the host: run, captured, replayed, and run as they are where they cannot be
 * captured. On a GPU the same calls are tested in tests/backend. */
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

static void a_step_runs_twice_and_is_replayed_from_then_on(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    job j = {.x = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(3))),
             .y = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(3)))};
    km_graph *g = NULL;
    km_step_end(ctx);
    for (int i = 1; i <= 4; i++) {
        float in[] = {(float)i, 2, 3}, out[3];
        km_write(ctx, j.x, in, sizeof in);
        assert_int_equal(km_graph_run(ctx, &g, 7, double_it, &j), KM_OK);
        assert_int_equal(km_read(ctx, j.y, out, sizeof out), KM_OK);
        assert_true(out[0] == 2.0f * (float)i && out[2] == 6.0f);
    }
    assert_int_equal(j.runs, 2);
    assert_true(km_graph_captured(g));
    km_graph_free(g);
    km_release(j.x);
    km_release(j.y);
    km_ctx_free(ctx);
}

/* ---- What a replay must not disturb, and what cannot be replayed ---- */

typedef struct chain {
    km_tensor *x, *w, *y, *kept;
    int runs;
    bool reads;
} chain;

static void softmax_of_product(km_ctx *ctx, void *user) {
    chain *c = user;
    km_tensor *h = km_matmul(ctx, c->x, c->w);
    if (c->reads) (void)km_item(ctx, km_sum(ctx, h, NULL, 0, false));
    h = km_softmax(ctx, km_add(ctx, h, km_transpose(ctx, h, 0, 1)), 1);
    km_assign(ctx, c->y, h);
    km_release(c->kept);
    c->kept = km_keep(ctx, km_mul_scalar(ctx, h, 3));
    c->runs++;
}

static km_tensor *kept_normal(km_ctx *ctx, int64_t n) {
    return km_keep(ctx, km_normal(ctx, KM_F32, KM_SHAPE(n, n), 0, 1));
}

static void a_replay_gives_what_the_step_gives_amid_other_work(void **state) {
    (void)state;
    enum { N = 33 };
    km_ctx *ctx = km_ctx_new("cpu", 2);
    chain c = {.x = kept_normal(ctx, N), .w = kept_normal(ctx, N), .y = kept_normal(ctx, N)};
    chain plain = c;
    plain.y = kept_normal(ctx, N);
    km_graph *g = NULL;
    km_step_end(ctx);
    for (int i = 0; i < 5; i++) {
        static float in[N * N], want[N * N], got[N * N], thrice[N * N];
        for (int k = 0; k < N * N; k++) in[k] = (float)((k * 7 + i * 13) % 31) / 31;
        km_write(ctx, c.x, in, sizeof in);
        softmax_of_product(ctx, &plain); /* the same shapes, through the same pool */
        km_step_end(ctx);
        assert_int_equal(km_graph_run(ctx, &g, 1, softmax_of_product, &c), KM_OK);
        for (int k = 0; k < 3; k++) km_add_scalar(ctx, km_mul(ctx, plain.y, plain.y), 1e9);
        km_step_end(ctx);
        assert_int_equal(km_read(ctx, plain.y, want, sizeof want), KM_OK);
        assert_int_equal(km_read(ctx, c.y, got, sizeof got), KM_OK);
        assert_int_equal(km_read(ctx, c.kept, thrice, sizeof thrice), KM_OK);
        assert_memory_equal(got, want, sizeof want);
        for (int k = 0; k < N * N; k++) assert_true(thrice[k] == 3 * want[k]);
    }
    assert_int_equal(c.runs, 2);
    km_graph_free(g);
    km_tensor *all[] = {c.x, c.w, c.y, c.kept, plain.y, plain.kept};
    for (int i = 0; i < 6; i++) km_release(all[i]);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0); /* all blocks are back in the pool */
    km_ctx_free(ctx);
}

static void a_step_that_reads_its_results_runs_every_time(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    chain c = {.x = kept_normal(ctx, 4),
               .w = kept_normal(ctx, 4),
               .y = kept_normal(ctx, 4),
               .reads = true};
    km_graph *g = NULL;
    km_step_end(ctx);
    for (int i = 0; i < 4; i++)
        assert_int_equal(km_graph_run(ctx, &g, 1, softmax_of_product, &c), KM_OK);
    assert_int_equal(c.runs, 4);
    assert_false(km_graph_captured(g));
    c.reads = false; /* another step, under another key */
    for (int i = 0; i < 4; i++)
        assert_int_equal(km_graph_run(ctx, &g, 2, softmax_of_product, &c), KM_OK);
    assert_int_equal(c.runs, 6);
    assert_true(km_graph_captured(g));
    km_graph_free(g);
    km_tensor *all[] = {c.x, c.w, c.y, c.kept};
    for (int i = 0; i < 4; i++) km_release(all[i]);
    km_ctx_free(ctx);
}

static void train_it(km_ctx *ctx, void *user) {
    chain *c = user;
    km_backward(ctx, km_sum(ctx, km_mul(ctx, c->w, c->w), NULL, 0, false));
    c->runs++;
}

static void a_step_with_a_tape_runs_every_time(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    chain c = {.w = kept_normal(ctx, 4)};
    km_graph *g = NULL;
    km_require_grad(ctx, c.w, true);
    km_step_end(ctx);
    for (int i = 0; i < 4; i++) assert_int_equal(km_graph_run(ctx, &g, 1, train_it, &c), KM_OK);
    assert_int_equal(c.runs, 4);
    assert_false(km_graph_captured(g));
    km_graph_free(g);
    km_release(c.w);
    km_ctx_free(ctx);
}

static void drop_some(km_ctx *ctx, void *user) {
    chain *c = user;
    km_assign(ctx, c->y, km_dropout(ctx, c->x, 0.5));
}

static void replays_draw_new_random_numbers_as_runs_do(void **state) {
    (void)state;
    enum { N = 16 };
    float got[2][4][N * N];
    for (int graphed = 0; graphed < 2; graphed++) {
        km_ctx *ctx = km_ctx_new("cpu", 1);
        chain c = {.x = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(N, N))),
                   .y = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(N, N)))};
        km_graph *g = NULL;
        km_seed(ctx, 5);
        for (int i = 0; i < 4; i++) {
            if (graphed)
                assert_int_equal(km_graph_run(ctx, &g, 1, drop_some, &c), KM_OK);
            else
                drop_some(ctx, &c);
            assert_int_equal(km_read(ctx, c.y, got[graphed][i], sizeof got[graphed][i]), KM_OK);
        }
        km_graph_free(g);
        km_release(c.x);
        km_release(c.y);
        km_ctx_free(ctx);
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    assert_memory_not_equal(got[0][2], got[0][3], sizeof got[0][2]);
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
        cmocka_unit_test(a_step_runs_twice_and_is_replayed_from_then_on),
        cmocka_unit_test(a_replay_gives_what_the_step_gives_amid_other_work),
        cmocka_unit_test(a_step_that_reads_its_results_runs_every_time),
        cmocka_unit_test(a_step_with_a_tape_runs_every_time),
        cmocka_unit_test(replays_draw_new_random_numbers_as_runs_do),
        cmocka_unit_test(a_failing_step_fails_the_run_and_the_next_one_works),
        cmocka_unit_test(a_graph_needs_a_place_a_step_and_its_own_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
