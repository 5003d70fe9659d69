/* A real GPU's memory: nothing grows over hundreds of steps, graphs and contexts, in our own books
 * and in the driver's; and a GPU that is full is slower, or an error, not an end. Skipped where there is no
 * GPU. The driver counts other programs too, so a little is allowed to move there. */
#include "live_gpu.h"

#define SLACK ((size_t)16 << 20)

/* ---- Contexts that go with their test, even if it fails: others count what is left ---- */

static km_ctx *contexts[4];
static size_t ceiling; /* of what contexts may hold, as the device has it */

static km_ctx *opened(void) {
    int i = 0;
    while (contexts[i]) i++;
    assert_true(i < 3);
    contexts[i] = km_ctx_new(GPU, 1);
    assert_non_null(contexts[i]);
    return contexts[i];
}

static void closed(km_ctx *ctx) {
    for (int i = 0; i < 4; i++)
        if (contexts[i] == ctx) contexts[i] = NULL;
    km_ctx_free(ctx);
}

static int clear_away(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++)
        if (contexts[i]) closed(contexts[i]);
    ((km_cuda_dev *)km_cuda_device(0, NULL)->impl)->limit = ceiling;
    return 0;
}

#define LIVE(test) cmocka_unit_test_teardown(test, clear_away)

/* ---- What goes on for long ---- */

static void assert_free_bytes_near(size_t before) {
    size_t after = gpu_free_bytes();
    if (after + SLACK < before) /* more, and another program gave some back */
        fail_msg("the driver has %.1f MiB free, %.1f MiB before", (double)after / 0x1p20,
                 (double)before / 0x1p20);
}

static void hundreds_of_steps_hold_what_the_third_one_held(void **state) {
    (void)state;
    km_ctx *ctx = opened();
    net n = net_open(ctx, 64);
    km_stats warm = {0};
    size_t left = 0;
    for (int i = 0; i < 400; i++) {
        if (i == 3) {
            warm = km_ctx_stats(ctx);
            left = gpu_free_bytes();
        }
        net_feed(&n, i);
        net_step(ctx, &n);
        if (i % 100 == 0) assert_true(isfinite(km_item(ctx, n.loss)));
        km_step_end(ctx);
    }
    km_sync(ctx);
    assert_ok(ctx);
    km_stats end = km_ctx_stats(ctx);
    assert_int_equal(end.live_bytes, warm.live_bytes);
    assert_int_equal(end.held_bytes, warm.held_bytes);
    assert_int_equal(end.pool_misses, warm.pool_misses);
    assert_int_equal(end.fallbacks, 0);
    assert_free_bytes_near(left);
    net_close(&n);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
    km_trim(ctx);
    assert_int_equal(km_ctx_stats(ctx).held_bytes, 0);
    closed(ctx);
}

/* A context with a graph, some of it left for the context to clear away. */
static void one_life(int i) {
    km_ctx *ctx = opened();
    net n = net_open(ctx, 16 + i % 5);
    km_graph *g = NULL;
    for (int k = 0; k < 4; k++) {
        net_feed(&n, k);
        assert_int_equal(km_graph_run(ctx, &g, (uint64_t)(k / 3), net_step, &n), KM_OK);
    }
    km_to(ctx, n.x, "cpu");
    if (i % 3 == 0) km_ctx_fail(ctx, KM_ERR_RANGE, "ended by an error");
    km_graph_free(g);
    net_close(&n);
    closed(ctx);
}

static void hundreds_of_contexts_leave_nothing_behind(void **state) {
    (void)state;
    for (int i = 0; i < 10; i++) one_life(i); /* kernels and libraries are loaded for good */
    size_t left = gpu_free_bytes();
    int64_t heap = km_alloc_live();
    for (int i = 0; i < 150; i++) one_life(i);
    assert_int_equal(gpu_held_bytes(), 0);
    assert_int_equal(km_alloc_live(), heap);
    assert_free_bytes_near(left);
}

static void graphs_captured_over_and_over_give_their_memory_back(void **state) {
    (void)state;
    km_ctx *ctx = opened();
    net n = net_open(ctx, 40);
    size_t live = 0, left = 0;
    for (int i = 0; i < 60; i++) {
        km_graph *g = NULL;
        for (int k = 0; k < 3; k++) assert_int_equal(km_graph_run(ctx, &g, 1, net_step, &n), KM_OK);
        km_graph_free(g);
        if (i == 5) {
            live = km_ctx_stats(ctx).live_bytes;
            left = gpu_free_bytes();
        }
    }
    assert_int_equal(km_ctx_stats(ctx).live_bytes, live);
    assert_free_bytes_near(left);
    net_close(&n);
    closed(ctx);
}

/* ---- Blocks side by side ---- */

enum { TENSORS = 240 };

static km_tensor *filled(km_ctx *ctx, int64_t bytes, int i) {
    km_tensor *t = km_keep(ctx, km_full(ctx, KM_U8, KM_SHAPE(bytes), 1 + i % 250));
    km_step_end(ctx);
    assert_non_null(t);
    return t;
}

static void assert_filled(km_ctx *ctx, km_tensor *t, int64_t bytes, int i) {
    uint8_t ends[2] = {0};
    km_read(ctx, km_narrow(ctx, t, 0, 0, 1), ends, 1);
    km_read(ctx, km_narrow(ctx, t, 0, bytes - 1, 1), ends + 1, 1);
    assert_int_equal(ends[0], 1 + i % 250);
    assert_int_equal(ends[1], 1 + i % 250);
    km_step_end(ctx);
}

static void announced_tensors_take_hardly_more_than_their_bytes(void **state) {
    (void)state;
    static const int64_t size[] = {2359296, 294912, 12681216, 430080, 18493440, 8192};
    static const int64_t other[] = {3000000, 100000, 9000000, 700, 60000000, 2 << 20};
    km_ctx *ctx = opened();
    static km_tensor *t[TENSORS];
    int64_t bytes[TENSORS], sum = 0;
    km_tensor *warm = filled(ctx, 1000, 7); /* the kernels are there, and what copies need */
    assert_filled(ctx, warm, 1000, 7);
    km_release(warm);
    km_step_end(ctx);
    km_trim(ctx);
    assert_int_equal(gpu_held_bytes(), 0);
    size_t left = gpu_free_bytes();
    for (int i = 0; i < TENSORS; i++) km_mempool_expect(&ctx->lanes[0]->pool, (size_t)size[i % 6]);
    for (int i = 0; i < TENSORS; i++) {
        t[i] = filled(ctx, bytes[i] = size[i % 6], i);
        sum += bytes[i];
    }
    km_mempool_expect(&ctx->lanes[0]->pool, 0);
    km_trim(ctx);
    double held = (double)gpu_held_bytes(), taken = (double)left - (double)gpu_free_bytes();
    if (held > 1.01 * (double)sum || taken > held + (double)SLACK)
        fail_msg("%.1f MB of tensors are in blocks of %.1f MB, and the driver has %.1f MB less",
                 (double)sum / 1e6, held / 1e6, taken / 1e6);
    for (int i = 0; i < TENSORS; i += 3) { /* holes, which others fill */
        km_release(t[i]);
        km_step_end(ctx);
        if (i % 4 == 0) km_trim(ctx);
        t[i] = filled(ctx, bytes[i] = other[i / 3 % 6], i);
    }
    for (int i = 0; i < TENSORS; i++) assert_filled(ctx, t[i], bytes[i], i);
    for (int i = 0; i < TENSORS; i++) km_release(t[i]);
    km_step_end(ctx);
    km_trim(ctx);
    assert_int_equal(gpu_held_bytes(), 0);
    assert_free_bytes_near(left);
    assert_ok(ctx);
    closed(ctx);
}

/* ---- A GPU that is full ---- */

static void more_than_the_ceiling_is_an_error_and_the_context_goes_on(void **state) {
    (void)state;
    km_ctx *ctx = opened();
    km_ctx_set_fallback(ctx, false);
    km_cuda_dev *dev = ctx->device->impl;
    assert_null(km_zeros(ctx, KM_U8, KM_SHAPE((int64_t)dev->memory)));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_MEMORY);
    assert_says(km_ctx_error(ctx), "full: out of memory on cuda:0");
    km_ctx_clear_error(ctx);
    km_tensor *t = km_full(ctx, KM_F32, KM_SHAPE(1000), 3);
    assert_true(km_item(ctx, km_sum(ctx, t, NULL, 0, false)) == 3000);
    assert_ok(ctx);
    closed(ctx);
}

static void a_gpu_filled_to_the_ceiling_works_again_when_something_is_let_go(void **state) {
    (void)state;
    km_ctx *ctx = opened();
    km_cuda_dev *dev = ctx->device->impl;
    int64_t chunk = (int64_t)1 << 30;
    dev->limit = (size_t)4 << 30; /* as if the GPU were small: 4 GiB for all */
    km_ctx *small = opened();
    km_ctx_set_fallback(ctx, false);
    km_ctx_set_fallback(small, false);
    int made = 0;
    while (made < 10 && km_zeros(small, KM_U8, KM_SHAPE(chunk))) made++;
    assert_in_range(made, 2, 4);
    assert_int_equal(km_ctx_status(small), KM_ERR_MEMORY);
    km_ctx_clear_error(small);
    assert_null(km_zeros(ctx, KM_U8, KM_SHAPE(3 * chunk))); /* another context finds it full, too */
    km_ctx_clear_error(ctx);
    km_step_end(small); /* cached blocks of another size give way to a larger request */
    km_tensor *t = km_zeros(small, KM_U8, KM_SHAPE(3 * chunk));
    assert_non_null(t);
    uint8_t last[3] = {1, 1, 1}, zeros[3] = {0};
    assert_int_equal(km_read(small, km_narrow(small, t, 0, 3 * chunk - 3, 3), last, 3), KM_OK);
    assert_memory_equal(last, zeros, 3);
    closed(small);
    dev->limit = ceiling;
    net n = net_open(ctx, 32);
    net_feed(&n, 0);
    net_step(ctx, &n);
    assert_true(isfinite(km_item(ctx, n.loss)));
    assert_ok(ctx);
    net_close(&n);
    closed(ctx);
    assert_int_equal(gpu_held_bytes(), 0);
}

static void the_drivers_own_refusal_is_the_same_error(void **state) {
    (void)state;
    km_cuda_dev *dev = km_cuda_device(0, NULL)->impl;
    dev->limit = 4 * dev->memory; /* nothing in the way of the driver's answer */
    km_ctx *ctx = opened();
    km_ctx_set_fallback(ctx, false);
    assert_null(km_zeros(ctx, KM_U8, KM_SHAPE(2 * (int64_t)dev->memory)));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_MEMORY);
    assert_says(km_ctx_error(ctx), "out of memory on cuda:0");
    km_ctx_clear_error(ctx);
    km_tensor *t = km_ones(ctx, KM_F32, KM_SHAPE(77));
    assert_true(km_item(ctx, km_sum(ctx, t, NULL, 0, false)) == 77);
    assert_ok(ctx);
    closed(ctx);
}

/* Three steps as they are, captured and replayed; the losses. */
static void train(km_ctx *ctx, float loss[6]) {
    net n = net_open(ctx, 48);
    km_graph *g = NULL;
    for (int i = 0; i < 6; i++) {
        net_feed(&n, i);
        assert_int_equal(km_graph_run(ctx, &g, 1, net_step, &n), KM_OK);
        assert_int_equal(km_read(ctx, n.loss, &loss[i], sizeof loss[i]), KM_OK);
    }
    assert_true(km_graph_captured(g));
    km_graph_free(g);
    net_close(&n);
    assert_ok(ctx);
}

static void what_finds_no_room_lies_in_the_hosts_memory_and_gives_the_same_bits(void **state) {
    (void)state;
    float there[6], here[6];
    km_ctx *ctx = opened();
    train(ctx, there);
    closed(ctx);
    ((km_cuda_dev *)km_cuda_device(0, NULL)->impl)->limit = 4096;
    ctx = opened();
    train(ctx, here);
    km_stats s = km_ctx_stats(ctx);
    assert_true(s.spills > 0 && s.spilled_bytes > 0 && s.held_bytes <= 4096);
    assert_memory_equal(there, here, sizeof there);
    /* products that take the larger kernels, and cuBLASLt */
    km_seed(ctx, 5);
    for (int64_t n = 1; n <= 1024; n *= 32) {
        km_tensor *a = km_normal(ctx, KM_F32, KM_SHAPE(n, 1024), 0, 1);
        km_tensor *b = km_normal(ctx, KM_F32, KM_SHAPE(1024, 768), 0, 1);
        km_tensor *far = km_to(ctx, km_matmul(ctx, a, b), "cpu");
        km_tensor *near = km_matmul(ctx, km_to(ctx, a, "cpu"), km_to(ctx, b, "cpu"));
        km_tensor *apart = km_abs(ctx, km_sub(ctx, far, near));
        assert_true(km_item(ctx, km_max(ctx, apart, NULL, 0, false)) < 1e-3);
        km_step_end(ctx);
    }
    assert_ok(ctx);
    closed(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        LIVE(hundreds_of_steps_hold_what_the_third_one_held),
        LIVE(hundreds_of_contexts_leave_nothing_behind),
        LIVE(graphs_captured_over_and_over_give_their_memory_back),
        LIVE(announced_tensors_take_hardly_more_than_their_bytes),
        LIVE(more_than_the_ceiling_is_an_error_and_the_context_goes_on),
        LIVE(a_gpu_filled_to_the_ceiling_works_again_when_something_is_let_go),
        LIVE(the_drivers_own_refusal_is_the_same_error),
        LIVE(what_finds_no_room_lies_in_the_hosts_memory_and_gives_the_same_bits),
    };
    if (km_cuda_device_count() == 0) return 77;
    ceiling = ((km_cuda_dev *)km_cuda_device(0, NULL)->impl)->limit;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
