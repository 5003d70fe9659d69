/* Graphs: what a replay does, whose memory it uses, and how a capture may fail. */
#include "fake_cuda.h"

#include "backend/cuda/graph.h"

#define assert_says(text, part)                                                                    \
    do {                                                                                           \
        if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);               \
    } while (0)

static km_ctx *ctx;
static km_lane *lane;
static km_tensor *input, *result; /* kept: (100) f32 */

static int open_graph(void **state) {
    fake_open(state);
    ctx = km_ctx_new("cuda:0", 1);
    lane = ctx->lanes[0];
    input = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(100)));
    result = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(100)));
    km_step_end(ctx);
    return 0;
}

static int close_graph(void **state) {
    km_cuda_fault(NULL, -1, 0);
    km_release(input);
    km_release(result);
    km_ctx_free(ctx);
    return fake_close(state);
}
#define GRAPH(test) cmocka_unit_test_setup_teardown(test, open_graph, close_graph)

/* result = input, by way of two temporaries. */
static void copy_step(void) {
    km_assign(ctx, result, km_copy(ctx, km_copy(ctx, input)));
    km_step_end(ctx);
}

static km_cuda_graph *capture(void (*step)(void), km_cuda_graph *old) {
    if (km_cuda_graph_begin(lane) != KM_OK) return NULL;
    step();
    return km_cuda_graph_end(lane, old);
}

static void set_input(float v) {
    float all[100];
    for (int i = 0; i < 100; i++) all[i] = v;
    km_write(ctx, input, all, sizeof all);
}

static float first_result(void) {
    float all[100];
    km_read(ctx, result, all, sizeof all);
    return all[0];
}

static void a_replay_does_the_step_again_on_new_input(void **state) {
    set_input(1);
    copy_step();
    set_input(2);
    km_cuda_graph *g = capture(copy_step, NULL);
    assert_non_null(g);
    assert_int_equal(km_cuda_graph_nodes(g), 3);
    assert_true(first_result() == 1); /* captured, not run */
    for (int i = 3; i < 6; i++) {
        set_input((float)i);
        assert_int_equal(km_cuda_graph_launch(g), KM_OK);
        assert_true(first_result() == (float)i);
    }
    uint64_t kernels = km_ctx_stats(ctx).kernels;
    km_cuda_graph_launch(g);
    assert_int_equal(km_ctx_stats(ctx).kernels - kernels, 3);
    km_cuda_graph_free(g);
}

static void a_replay_leaves_memory_made_after_the_capture_alone(void **state) {
    copy_step();
    km_cuda_graph *g = capture(copy_step, NULL);
    km_tensor *t[6];
    float seven[100], back[100];
    for (int i = 0; i < 100; i++) seven[i] = 7;
    for (int i = 0; i < 6; i++) t[i] = km_from_data(ctx, KM_F32, KM_SHAPE(100), seven);
    set_input(1);
    km_cuda_graph_launch(g);
    for (int i = 0; i < 6; i++) {
        km_read(ctx, t[i], back, sizeof back);
        assert_memory_equal(back, seven, sizeof back);
    }
    km_step_end(ctx);
    km_cuda_graph_free(g);
}

static km_tensor *made;
static void keeping_step(void) {
    made = km_keep(ctx, km_copy(ctx, input));
    km_step_end(ctx);
}

static void memory_kept_in_a_capture_stays_the_graphs_after_its_release(void **state) {
    km_cuda_graph *g = capture(keeping_step, NULL);
    float seven[100], back[100];
    set_input(3);
    km_cuda_graph_launch(g);
    km_read(ctx, made, back, sizeof back);
    assert_true(back[0] == 3);
    km_release(made);
    km_step_end(ctx);
    for (int i = 0; i < 100; i++) seven[i] = 7;
    km_tensor *t = km_from_data(ctx, KM_F32, KM_SHAPE(100), seven);
    km_cuda_graph_launch(g);
    km_read(ctx, t, back, sizeof back);
    assert_true(back[0] == 7);
    km_step_end(ctx);
    km_cuda_graph_free(g);
}

static void memory_returns_to_the_pool_with_the_graph(void **state) {
    copy_step();
    km_step_end(ctx);
    size_t live = km_ctx_stats(ctx).live_bytes;
    for (int i = 0; i < 3; i++) {
        km_cuda_graph *g = capture(copy_step, NULL);
        assert_true(km_ctx_stats(ctx).live_bytes > live);
        km_cuda_graph_free(g);
        assert_int_equal(km_ctx_stats(ctx).live_bytes, live);
    }
    long blocks = fake.device_blocks;
    copy_step();
    assert_int_equal(fake.device_blocks, blocks);
}

static void random_step(void) {
    km_assign(ctx, result, km_uniform(ctx, KM_F32, KM_SHAPE(100), 0, 1));
    km_assign(ctx, result, km_uniform(ctx, KM_F32, KM_SHAPE(100), 0, 1));
    km_step_end(ctx);
}

static void random_ops_move_on_as_they_would_without_a_graph(void **state) {
    km_seed(ctx, 5);
    random_step(); /* streams 0 and 1; the fake kernel writes its stream's number */
    assert_true(first_result() == 1);
    km_cuda_graph *g = capture(random_step, NULL);
    for (int i = 1; i < 4; i++) {
        km_cuda_graph_launch(g);
        assert_true(first_result() == (float)(2 * i + 1));
    }
    random_step();
    assert_true(first_result() == 9);
    km_cuda_graph_launch(g);
    assert_true(first_result() == 11);
    km_seed(ctx, 5);
    km_cuda_graph_launch(g);
    assert_true(first_result() == 1);
    km_cuda_graph_free(g);
}

static void a_second_capture_updates_the_first(void **state) {
    copy_step();
    km_cuda_graph *g = capture(copy_step, NULL);
    g = capture(copy_step, g);
    assert_non_null(g);
    assert_int_equal(fake.updates, 1);
    assert_int_equal(fake.execs, 1);
    g = capture(random_step, g); /* another form: made anew */
    assert_non_null(g);
    assert_int_equal(fake.execs, 1);
    set_input(4);
    km_cuda_graph_launch(g);
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    km_cuda_graph_free(g);
}

static void uploading_step(void) {
    float v[100] = {0};
    km_write(ctx, input, v, sizeof v);
    km_step_end(ctx);
}
static void reading_step(void) {
    km_item(ctx, result);
    float v[100];
    km_ctx_clear_error(ctx);
    km_read(ctx, result, v, sizeof v);
    km_step_end(ctx);
}

static void host_data_cannot_cross_in_a_capture(void **state) {
    copy_step();
    assert_null(capture(uploading_step, NULL));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_STATE);
    assert_says(km_ctx_error(ctx), "an upload while a graph is captured");
    km_ctx_clear_error(ctx);
    assert_null(capture(reading_step, NULL));
    assert_says(km_ctx_error(ctx), "a download while a graph is captured");
    km_ctx_clear_error(ctx);
    set_input(2);
    copy_step();
    assert_true(first_result() == 2);
}

static void begin_and_end_must_pair(void **state) {
    assert_null(km_cuda_graph_end(lane, NULL));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_STATE);
    km_ctx_clear_error(ctx);
    km_cuda_graph_begin(lane);
    assert_int_equal(km_cuda_graph_begin(lane), KM_ERR_STATE);
    km_ctx_clear_error(ctx);
    km_cuda_graph *g = km_cuda_graph_end(lane, NULL); /* an empty one */
    assert_non_null(g);
    km_cuda_graph_begin(lane);
    assert_int_equal(km_cuda_graph_launch(g), KM_ERR_STATE);
    km_ctx_clear_error(ctx);
    km_cuda_graph_free(km_cuda_graph_end(lane, g));
}

static void any_call_of_a_capture_may_fail_and_work_goes_on(void **state) {
    copy_step();
    static const char *const calls[] = {"capture_begin", "launch", "capture_end", "graph_make"};
    for (int i = 0; i < 4; i++) {
        km_cuda_fault(calls[i], 0, KM_CU_INVALID_VALUE);
        assert_null(capture(copy_step, NULL));
        assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
        km_ctx_clear_error(ctx);
        km_step_end(ctx);
        assert_int_equal(fake.graphs + fake.execs, 0);
        set_input((float)i);
        copy_step();
        assert_true(first_result() == (float)i);
    }
    km_cuda_graph *g = capture(copy_step, NULL);
    km_cuda_fault("graph_launch", 0, KM_CU_INVALID_VALUE);
    assert_int_equal(km_cuda_graph_launch(g), KM_ERR_GPU);
    km_ctx_clear_error(ctx);
    assert_int_equal(km_cuda_graph_launch(g), KM_OK);
    km_cuda_graph_free(g);
}

static void a_graph_left_behind_goes_with_its_context(void **state) {
    copy_step();
    assert_non_null(capture(copy_step, NULL));
    km_cuda_graph_begin(lane); /* and even an open capture */
    copy_step();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        GRAPH(a_replay_does_the_step_again_on_new_input),
        GRAPH(a_replay_leaves_memory_made_after_the_capture_alone),
        GRAPH(memory_kept_in_a_capture_stays_the_graphs_after_its_release),
        GRAPH(memory_returns_to_the_pool_with_the_graph),
        GRAPH(random_ops_move_on_as_they_would_without_a_graph),
        GRAPH(a_second_capture_updates_the_first),
        GRAPH(host_data_cannot_cross_in_a_capture),
        GRAPH(begin_and_end_must_pair),
        GRAPH(any_call_of_a_capture_may_fail_and_work_goes_on),
        GRAPH(a_graph_left_behind_goes_with_its_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
