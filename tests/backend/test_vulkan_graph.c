/* Steps recorded once and replayed on a Vulkan device: what is captured does what the step's own code
 * does, on new data; steps that cannot be captured run as they are; and a replay costs the host less. */
#include "live_vulkan.h"
#include "backend/vulkan/dev.h"
#include "tensor/tensor.h"
#include <math.h>
#include <time.h>

typedef struct chain {
    km_tensor *x, *w, *y;
    int runs, length; /* how often it was built; ops in it */
    bool random;
} chain;

enum { ROWS = 5, COLUMNS = 257, COUNT = ROWS * COLUMNS };

static void chain_step(km_ctx *ctx, void *user) {
    chain *f = user;
    f->runs++;
    km_tensor *x = f->x;
    for (int i = 0; i < f->length; i++) x = km_rms_norm(ctx, km_add(ctx, x, f->x), f->w, 1e-5);
    if (f->random) x = km_dropout(ctx, x, 0.5);
    km_assign(ctx, f->y, km_softmax(ctx, x, -1));
}

static chain chain_open(km_ctx *ctx, int length) {
    return (chain){.x = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(ROWS, COLUMNS))),
                   .w = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(COLUMNS))),
                   .y = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(ROWS, COLUMNS))),
                   .length = length};
}

static void chain_close(chain *f) {
    km_release(f->x);
    km_release(f->w);
    km_release(f->y);
}

static void feed(km_ctx *ctx, chain *f, int i) {
    static float x[COUNT];
    for (int k = 0; k < COUNT; k++) x[k] = cosf((float)(k + i));
    km_write(ctx, f->x, x, sizeof x);
}

static void a_replay_does_what_the_step_does_and_leaves_other_work_alone(void **state) {
    static float y[COUNT], want[COUNT], mine[COUNT];
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    chain f = chain_open(ctx, 3);
    km_graph *g = NULL;
    for (int i = 0; i < 6; i++) {
        feed(ctx, &f, i);
        /* Made before the replay, read after it: must not lie in the graph's memory. */
        km_tensor *twice = km_keep(ctx, km_mul_scalar(ctx, f.x, 2));
        chain_step(ctx, &f);
        f.runs--;
        km_read(ctx, f.y, want, sizeof want);
        assert_int_equal(km_graph_run(ctx, &g, 7, chain_step, &f), KM_OK);
        assert_int_equal(km_graph_captured(g), i > 0);
        km_read(ctx, f.y, y, sizeof y);
        km_read(ctx, twice, mine, sizeof mine);
        assert_string_equal(km_ctx_error(ctx), "");
        assert_memory_equal(y, want, sizeof y);
        for (int k = 0; k < COUNT; k += 101) assert_true(mine[k] == 2 * cosf((float)(k + i)));
        km_release(twice);
    }
    assert_int_equal(f.runs, 2); /* once as it is, once to be captured */
    assert_int_equal(km_ctx_stats(ctx).fallbacks, 0);
    km_graph_free(g);
    chain_close(&f);
    km_ctx_free(ctx);
}

static void count_up(km_ctx *ctx, void *user) {
    km_tensor **both = user;
    km_assign(ctx, both[0], km_add(ctx, both[0], both[1]));
}

/* Replays on their way while the next are handed in; and a graph that is freed behind them. */
static void replays_need_not_be_waited_for(void **state) {
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    km_tensor *sum = km_keep(ctx, km_zeros(ctx, KM_I32, KM_SHAPE(3)));
    km_tensor *one = km_keep(ctx, km_full(ctx, KM_I32, KM_SHAPE(3), 1));
    km_graph *g = NULL;
    km_tensor *both[] = {sum, one};
    int32_t got[3];
    for (int i = 0; i < 40; i++) assert_int_equal(km_graph_run(ctx, &g, 1, count_up, both), KM_OK);
    km_graph_free(g);
    km_tensor *after = km_add(ctx, sum, one);
    km_read(ctx, after, got, sizeof got);
    assert_string_equal(km_ctx_error(ctx), "");
    for (int i = 0; i < 3; i++) assert_int_equal(got[i], 41);
    km_release(sum);
    km_release(one);
    km_ctx_free(ctx);
}

static void long_steps_are_several_submissions(void **state) {
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    chain f = chain_open(ctx, 12);
    km_graph *g = NULL;
    feed(ctx, &f, 1);
    assert_int_equal(km_graph_run(ctx, &g, 1, chain_step, &f), KM_OK);
    km_vulkan_queue *q = km_vulkan_queue_of(ctx->lanes[0]);
    assert_int_equal(ctx->lanes[0]->device->ops->sync(ctx->lanes[0]), KM_OK);
    double rate = q->rate;
    q->rate = 1; /* a very slow device: 40 operations to a submission */
    uint64_t before = q->submissions;
    assert_int_equal(km_graph_run(ctx, &g, 1, chain_step, &f), KM_OK);
    assert_true(q->submissions > before + 12);
    q->rate = rate;
    static float y[COUNT];
    km_read(ctx, f.y, y, sizeof y);
    double sum = 0;
    for (int i = 0; i < COUNT; i++) sum += y[i];
    assert_true(fabs(sum - ROWS) < 1e-3);
    km_graph_free(g);
    chain_close(&f);
    km_ctx_free(ctx);
}

static void steps_that_draw_random_numbers_are_not_replayed(void **state) {
    static float last[COUNT], y[COUNT];
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    chain f = chain_open(ctx, 1);
    km_graph *g = NULL;
    f.random = true;
    feed(ctx, &f, 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(km_graph_run(ctx, &g, 1, chain_step, &f), KM_OK);
        assert_false(km_graph_captured(g));
        km_read(ctx, f.y, y, sizeof y);
        if (i > 0) assert_memory_not_equal(y, last, sizeof y);
        memcpy(last, y, sizeof y);
    }
    assert_string_equal(km_ctx_error(ctx), "");
    km_graph_free(g);
    chain_close(&f);
    km_ctx_free(ctx);
}

static void reads_back(km_ctx *ctx, void *user) {
    chain_step(ctx, user);
    km_item(ctx, km_sum(ctx, ((chain *)user)->y, NULL, 0, false));
}

static void a_step_that_reads_back_is_told_and_the_context_goes_on(void **state) {
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    chain f = chain_open(ctx, 1);
    km_graph *g = NULL;
    feed(ctx, &f, 0);
    assert_int_equal(km_graph_run(ctx, &g, 1, reads_back, &f), KM_OK);
    assert_int_equal(km_graph_run(ctx, &g, 1, reads_back, &f), KM_ERR_STATE);
    assert_says(km_ctx_error(ctx), "while a graph is captured");
    km_ctx_clear_error(ctx);
    for (int i = 0; i < 3; i++) assert_int_equal(km_graph_run(ctx, &g, 2, chain_step, &f), KM_OK);
    assert_true(fabs(km_item(ctx, km_sum(ctx, f.y, NULL, 0, false)) - ROWS) < 1e-3);
    /* A context that is closed takes its graphs along. */
    km_graph *lost = NULL;
    for (int i = 0; i < 2; i++) km_graph_run(ctx, &lost, 3, chain_step, &f);
    km_graph_free(g);
    km_graph_free(lost);
    chain_close(&f);
    km_ctx_free(ctx);
}

static double thread_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Microseconds of this thread to hand in a step of some 400 ops, as a decoding step of 30 layers has. */
static double cost(km_ctx *ctx, chain *f, km_graph **g) {
    enum { STEPS = 6 };
    double sum = 0;
    for (int i = 0; i < STEPS; i++) {
        double begin = thread_us();
        if (g)
            km_graph_run(ctx, g, 1, chain_step, f);
        else
            chain_step(ctx, f), km_step_end(ctx);
        km_vulkan_flush(ctx->lanes[0]);
        if (i > 1) sum += thread_us() - begin;
        ctx->lanes[0]->device->ops->sync(ctx->lanes[0]);
    }
    assert_string_equal(km_ctx_error(ctx), "");
    return sum / (STEPS - 2);
}

static void a_replay_costs_the_host_less(void **state) {
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    chain f = chain_open(ctx, 200);
    km_graph *g = NULL;
    feed(ctx, &f, 0);
    double built = cost(ctx, &f, NULL), replayed = cost(ctx, &f, &g);
    printf("a step of 402 ops: %.0f us of the host's time, replayed %.0f us\n", built, replayed);
    assert_true(replayed < built / 2);
    km_graph_free(g);
    chain_close(&f);
    km_ctx_free(ctx);
}

int main(void) {
    if (vulkan_missing()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replay_does_what_the_step_does_and_leaves_other_work_alone),
        cmocka_unit_test(replays_need_not_be_waited_for),
        cmocka_unit_test(long_steps_are_several_submissions),
        cmocka_unit_test(steps_that_draw_random_numbers_are_not_replayed),
        cmocka_unit_test(a_step_that_reads_back_is_told_and_the_context_goes_on),
        cmocka_unit_test(a_replay_costs_the_host_less)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    vulkan_clean();
    return failed;
}
