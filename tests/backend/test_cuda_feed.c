/* Weights that stay in the host's memory: each use finds the right bytes on the device, most of them
 * sent for ahead of time, and faults leave a context that goes on. */
#include "fake_cuda.h"

#include "backend/cuda/feed.h"
#include "backend/cuda/lane.h"
#include "base/alloc.h"

enum { WEIGHTS = 12, MOST = 5000 };

static uint8_t weight[WEIGHTS][MOST];

static size_t bytes_of(int i) { return (size_t)(MOST - 300 * (i * 7 % WEIGHTS)); }

static void fill(void) {
    for (int i = 0; i < WEIGHTS; i++)
        for (int k = 0; k < MOST; k++) weight[i][k] = (uint8_t)(i * 31 + k * 7 + k / 256);
}

static const void *got(km_ctx *ctx, int i) {
    return km_cuda_feed_get(ctx->lanes[0], weight[i], bytes_of(i));
}

static void right(km_ctx *ctx, int i) {
    const void *p = got(ctx, i);
    assert_non_null(p);
    assert_ptr_not_equal(p, weight[i]);
    assert_memory_equal(p, weight[i], bytes_of(i));
}

static void a_step_after_the_first_finds_weights_on_their_way(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 2);
    uint64_t ahead, late;
    fill();
    for (int step = 0; step < 4; step++)
        for (int i = 0; i < WEIGHTS; i++) right(ctx, i);
    km_cuda_feed_counts(ctx->lanes[0], &ahead, &late);
    assert_int_equal(late, WEIGHTS + 1); /* the first step, and the first of the second */
    assert_int_equal(ahead, 3 * WEIGHTS - 1);
    km_ctx_free(ctx);
}

static void three_weights_of_one_call_stay_while_others_are_sent_for(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    fill();
    for (int step = 0; step < 5; step++)
        for (int i = 0; i < WEIGHTS; i += 3) {
            const void *p[3] = {got(ctx, i), got(ctx, i + 1), got(ctx, i + 2)};
            for (int k = 0; k < 3; k++) assert_memory_equal(p[k], weight[i + k], bytes_of(i + k));
        }
    km_ctx_free(ctx);
}

static void another_order_is_slower_and_not_wrong(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    uint32_t seed = 7;
    fill();
    for (int n = 0; n < 500; n++) {
        seed = seed * 1664525u + 1013904223u;
        right(ctx, (int)(seed >> 20) % WEIGHTS);
    }
    km_ctx_free(ctx);
}

static void new_weights_at_an_old_address_are_new(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    fill();
    for (int i = 0; i < WEIGHTS; i++) right(ctx, i);
    for (int i = 0; i < WEIGHTS; i++)
        for (int k = 0; k < MOST; k++) weight[i][k] ^= 0x5a;
    assert_int_equal(km_cuda_feed_lend(ctx->lanes[0]), KM_OK); /* as km_wrap calls it */
    for (int step = 0; step < 2; step++)
        for (int i = 0; i < WEIGHTS; i++) right(ctx, i);
    km_ctx_free(ctx);
}

static void give_nothing_back(void *owner) { (void)owner; }

static void a_tensor_over_the_hosts_memory_is_not_captured(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    fill();
    assert_false(ctx->uncaptured);
    km_tensor *t = km_wrap(ctx, "w", KM_F16, KM_SHAPE(4, 64), weight[0], give_nothing_back, NULL);
    assert_non_null(t);
    assert_true(ctx->uncaptured);
    assert_memory_equal(km_cuda_bytes_of(ctx->lanes[0], t), weight[0], 4 * 64 * 2);
    km_cuda_queue_of(ctx->lanes[0])->capturing = (struct km_cuda_graph *)(void *)ctx;
    assert_null(km_cuda_bytes_of(ctx->lanes[0], t));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_STATE);
    km_cuda_queue_of(ctx->lanes[0])->capturing = NULL;
    km_ctx_clear_error(ctx);
    km_release(t);
    km_ctx_free(ctx);
}

static void a_fault_is_an_error_and_the_next_use_is_right(void **state) {
    static const char *const calls[] = {"host_alloc",   "mem_alloc",   "copy_in",
                                        "event_record", "stream_wait", "event_sync"};
    fill();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int nth = 0; nth < 3; nth++) {
            km_ctx *ctx = km_ctx_new("cuda:0", 1);
            for (int k = 0; k < 3; k++) right(ctx, k);
            km_cuda_fault(calls[i], nth, KM_CU_OUT_OF_MEMORY);
            bool failed = false;
            for (int k = 3; k < WEIGHTS && !failed; k++) failed = !got(ctx, k);
            km_cuda_fault(NULL, -1, 0);
            if (failed) assert_int_equal(km_ctx_status(ctx), KM_ERR_MEMORY);
            km_ctx_clear_error(ctx);
            for (int k = 0; k < WEIGHTS; k++) right(ctx, k);
            km_ctx_free(ctx);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FAKE(a_step_after_the_first_finds_weights_on_their_way),
        FAKE(three_weights_of_one_call_stay_while_others_are_sent_for),
        FAKE(another_order_is_slower_and_not_wrong),
        FAKE(new_weights_at_an_old_address_are_new),
        FAKE(a_tensor_over_the_hosts_memory_is_not_captured),
        FAKE(a_fault_is_an_error_and_the_next_use_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
