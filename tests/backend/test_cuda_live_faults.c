/* Things that go wrong on a real GPU: a name that is not there, an index out of range, a launch
 * that fails, and, last, a kernel that writes where it may not, after which the GPU is lost to this
 * process but the process and its CPU are not. Skipped where there is no GPU. */
#include "live_gpu.h"

#include "backend/cuda/kernels/args.h"
#include "backend/cuda/launch.h"

static void a_device_that_is_not_there_is_answered_with_the_list(void **state) {
    (void)state;
    assert_null(km_ctx_new("cuda:99", 1));
    assert_says(km_last_error(), "cuda:99: no such device; this machine has ");
    assert_says(km_last_error(), "(cuda:0 ");
    km_cuda_dev *dev = km_cuda_device(0, NULL)->impl;
    assert_says(km_last_error(), dev->model);
}

static void operands_on_different_devices_are_named(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new(GPU, 1);
    km_tensor *a = km_ones(ctx, KM_F32, KM_SHAPE(4)), *b = km_to(ctx, a, "cpu");
    assert_refused(ctx, km_add(ctx, a, b), KM_ERR_DEVICE,
                   "add: operands are on cuda:0 and cpu; bring them together with km_to");
    assert_elements(ctx, km_add(ctx, a, km_to(ctx, b, GPU)), 2, 2, 2, 2);
    km_ctx_free(ctx);
}

static void an_index_out_of_range_reads_zero_and_harms_nothing(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new(GPU, 1);
    km_tensor *table = km_ones(ctx, KM_F32, KM_SHAPE(5, 4));
    km_tensor *ids = I32(ctx, KM_SHAPE(4), 0, 4, 1000000000, -7);
    km_tensor *rows = km_sum(ctx, km_embedding(ctx, table, ids), (const int[]){1}, 1, false);
    assert_elements(ctx, rows, 4, 4, 0, 0);
    km_ctx_free(ctx);
}

static void a_launch_that_fails_names_the_kernel_and_the_next_one_works(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new(GPU, 1);
    km_ctx_set_fallback(ctx, false);
    net n = net_open(ctx, 24);
    for (int nth = 0; nth < 12; nth++) { /* each launch of a training step in turn */
        net_feed(&n, nth);
        km_cuda_fault("launch", nth, KM_CU_INVALID_VALUE);
        net_step(ctx, &n);
        km_step_end(ctx);
        if (km_cuda_fault_armed) break; /* fewer launches than that */
        assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
        assert_says(km_ctx_error(ctx), "cuda:0: ");
        assert_says(km_ctx_error(ctx), "CUDA_ERROR_INVALID_VALUE");
        km_ctx_clear_error(ctx);
        km_zero_grad(ctx, n.p, 4);
        net_step(ctx, &n);
        assert_true(isfinite(km_item(ctx, n.loss)));
        km_step_end(ctx);
        assert_ok(ctx);
    }
    km_cuda_fault(NULL, -1, 0);
    net_close(&n);
    km_ctx_free(ctx);
    assert_int_equal(gpu_held_bytes(), 0);
}

/* A loss without anything that changes from call to call. */
static double plain_loss(km_ctx *ctx, const net *n) {
    km_tensor *h = km_linear(ctx, n->x, n->p[0], n->p[1], KM_ACT_GELU);
    km_tensor *logits = km_linear(ctx, h, n->p[2], n->p[3], KM_ACT_NONE);
    return km_item(ctx, km_cross_entropy(ctx, logits, n->targets, -1, KM_MEAN));
}

static void a_launch_that_fails_is_made_up_for_by_the_cpu(void **state) {
    (void)state;
    static const km_cu_result codes[] = {KM_CU_INVALID_VALUE, KM_CU_OUT_OF_MEMORY};
    km_ctx *ctx = km_ctx_new(GPU, 2);
    net n = net_open(ctx, 24);
    net_feed(&n, 1);
    double want = plain_loss(ctx, &n);
    km_step_end(ctx);
    for (int k = 0; k < 2; k++)
        for (int nth = 0; nth < 6; nth++) {
            uint64_t before = km_ctx_stats(ctx).failed_kernels;
            km_cuda_fault("launch", nth, codes[k]);
            double got = plain_loss(ctx, &n);
            bool reached = !km_cuda_fault_armed;
            km_cuda_fault(NULL, -1, 0);
            assert_ok(ctx);
            assert_true(fabs(got - want) <= 1e-4 * fabs(want));
            assert_int_equal(km_ctx_stats(ctx).failed_kernels - before, reached);
            km_step_end(ctx);
        }
    net_close(&n);
    km_ctx_free(ctx);
}

static void a_copy_that_fails_is_told_and_the_next_one_works(void **state) {
    (void)state;
    static const char *const calls[] = {"copy_in", "copy_out", "event_record", "mem_alloc"};
    float v[8] = {1, 2, 3, 4, 5, 6, 7, 8}, back[8];
    for (int i = 0; i < 4; i++) {
        km_ctx *ctx = km_ctx_new(GPU, 1);
        km_cuda_fault(calls[i], 0, KM_CU_INVALID_VALUE);
        km_tensor *t = km_from_data(ctx, KM_F32, KM_SHAPE(8), v);
        km_read(ctx, t, back, sizeof back);
        assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
        assert_false(km_cuda_fault_armed);
        km_ctx_clear_error(ctx);
        t = km_from_data(ctx, KM_F32, KM_SHAPE(8), v);
        assert_int_equal(km_read(ctx, t, back, sizeof back), KM_OK);
        assert_memory_equal(v, back, sizeof v);
        km_ctx_free(ctx);
    }
}

/* The last test: from here on the driver gives this process no more work on the GPU. */
static void a_kernel_that_goes_astray_loses_the_gpu_and_nothing_else(void **state) {
    (void)state;
    static km_cuda_kernel fill = {.module = "fill", .name = "fill_bytes"};
    km_ctx *ctx = km_ctx_new(GPU, 1), *other = km_ctx_new(GPU, 1);
    km_tensor *kept = km_keep(other, km_ones(other, KM_F32, KM_SHAPE(10)));
    km_fill_args args = {.out = (void *)(uintptr_t)0x10, .bytes = 4096};
    float v[10];
    km_cuda_launch1(ctx->lanes[0], &fill, KM_DIM(1), KM_DIM(256), 0, &args);
    assert_ok(ctx); /* the launch itself is fine */
    km_sync(ctx);
    assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
    assert_says(km_ctx_error(ctx), "cuda:0: ");
    assert_says(km_ctx_error(ctx), "illegal");
    km_ctx_clear_error(ctx);
    assert_null(km_ones(ctx, KM_F32, KM_SHAPE(1000)));
    assert_says(km_ctx_error(ctx), "cuda:0 was lost by an earlier error");
    assert_int_equal(km_read(other, kept, v, sizeof v), KM_ERR_GPU);
    assert_null(km_ctx_new(GPU, 1));
    assert_says(km_last_error(), "was lost");
    km_ctx *cpu = km_ctx_new("cpu", 2);
    assert_true(km_item(cpu, km_sum(cpu, km_ones(cpu, KM_F32, KM_SHAPE(7)), NULL, 0, false)) == 7);
    assert_ok(cpu);
    km_release(kept);
    km_ctx_free(cpu);
    km_ctx_free(other);
    km_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_is_not_there_is_answered_with_the_list),
        cmocka_unit_test(operands_on_different_devices_are_named),
        cmocka_unit_test(an_index_out_of_range_reads_zero_and_harms_nothing),
        cmocka_unit_test(a_launch_that_fails_names_the_kernel_and_the_next_one_works),
        cmocka_unit_test(a_launch_that_fails_is_made_up_for_by_the_cpu),
        cmocka_unit_test(a_copy_that_fails_is_told_and_the_next_one_works),
        cmocka_unit_test(a_kernel_that_goes_astray_loses_the_gpu_and_nothing_else),
    };
    if (km_cuda_device_count() == 0) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
