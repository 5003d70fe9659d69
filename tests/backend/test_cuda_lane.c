/* A context on a GPU: copies both ways, memory and its ceiling, and what is left after errors. */
#include "fake_cuda.h"

#include "backend/cuda/lane.h"
#include "base/alloc.h"

#define assert_says(text, part)                                                                    \
    do {                                                                                           \
        if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);               \
    } while (0)

static void bytes_come_back_as_they_went(void **state) {
    static const size_t sizes[] = {
        0, 1, 63, 64, 4096, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, (9 << 20) + 7};
    size_t most = 10 << 20;
    uint8_t *from = malloc(most), *to = malloc(most);
    for (size_t i = 0; i < most; i++) from[i] = (uint8_t)(i * 2654435761u >> 11);
    km_ctx *ctx = km_ctx_new("cuda:0", 2);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        km_tensor *t = km_from_data(ctx, KM_U8, KM_SHAPE((int64_t)sizes[i]), from + i);
        memset(to, 0, most);
        assert_int_equal(km_read(ctx, t, to, sizes[i]), KM_OK);
        assert_memory_equal(from + i, to, sizes[i]);
        km_step_end(ctx);
    }
    km_ctx_free(ctx);
    free(from);
    free(to);
}

static void small_uploads_share_the_staging_memory(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    km_tensor *t[500];
    int32_t v[3000], back[3000];
    for (int round = 0; round < 5; round++) { /* more than both halves hold */
        for (int i = 0; i < 500; i++) {
            for (int k = 0; k < 3000; k++) v[k] = round * 500 + i;
            t[i] = km_from_data(ctx, KM_I32, KM_SHAPE(3000), v);
        }
        for (int i = 0; i < 500; i += 37) {
            km_read(ctx, t[i], back, sizeof back);
            assert_int_equal(back[0], round * 500 + i);
            assert_int_equal(back[2999], round * 500 + i);
        }
        km_step_end(ctx);
    }
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    assert_int_equal(fake.host_blocks, 2);
    km_ctx_free(ctx);
}

static void memory_is_reused_and_given_back(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < 10; i++) km_zeros(ctx, KM_F32, KM_SHAPE(1000 + 100 * i));
        km_step_end(ctx);
    }
    assert_int_equal(km_ctx_stats(ctx).pool_misses, 10);
    assert_int_equal(fake.device_blocks, 1); /* all lie in one piece */
    km_cuda_dev *dev = ctx->device->impl;
    assert_int_equal(atomic_load(&dev->held), fake.device_bytes);
    km_trim(ctx);
    assert_int_equal(fake.device_blocks, 0);
    assert_int_equal(atomic_load(&dev->held), 0);
    km_ctx_free(ctx);
}

static void each_tensor_is_the_drivers_own_block_where_that_is_asked_for(void **state) {
    setenv("KERMES_GPU_CHUNKS", "0", 1);
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    unsetenv("KERMES_GPU_CHUNKS");
    for (int i = 0; i < 10; i++) km_zeros(ctx, KM_F32, KM_SHAPE(1000 + 100 * i));
    assert_int_equal(fake.device_blocks, 10);
    km_ctx_free(ctx);
}

static void what_a_context_leaves_behind_goes_back_with_it(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    km_cuda_dev *dev = ctx->device->impl;
    km_tensor *left = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(1000))); /* never released */
    km_tensor *kept = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(20 << 20 >> 2)));
    assert_true(fake.device_bytes >= 20 << 20);
    km_release(kept);
    km_ctx_free(ctx);
    assert_int_equal(fake.device_blocks, 0);
    assert_int_equal(atomic_load(&dev->held), 0);
    km_free(left); /* the host's record of it */
}

static void the_ceiling_is_a_fraction_of_the_device_for_all_contexts(void **state) {
    setenv("KERMES_GPU_MEMORY_FRACTION", "0.5", 1); /* 32 of 64 MiB */
    km_ctx *a = km_ctx_new("cuda:0", 1), *b = km_ctx_new("cuda:0", 1);
    unsetenv("KERMES_GPU_MEMORY_FRACTION");
    km_ctx_set_fallback(b, false);
    assert_non_null(km_zeros(a, KM_U8, KM_SHAPE(20 << 20)));
    assert_null(km_zeros(b, KM_U8, KM_SHAPE(16 << 20)));
    assert_int_equal(km_ctx_status(b), KM_ERR_MEMORY);
    assert_says(km_ctx_error(b), "out of memory on cuda:0");
    km_ctx_clear_error(b);
    km_step_end(a);
    km_trim(a);
    assert_non_null(km_zeros(b, KM_U8, KM_SHAPE(16 << 20)));
    assert_int_equal(km_ctx_status(b), KM_OK);
    km_ctx_free(a);
    km_ctx_free(b);
}

static void a_full_device_is_an_error_that_leaves_the_context_usable(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    km_ctx_set_fallback(ctx, false); /* test_cuda_fallback.c has it otherwise */
    fake.memory = 8 << 20;           /* another program took the rest */
    assert_null(km_zeros(ctx, KM_F32, KM_SHAPE(3 << 20)));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_MEMORY);
    assert_says(km_ctx_error(ctx), "full: out of memory on cuda:0: [3145728] of f32");
    km_ctx_clear_error(ctx);
    assert_non_null(km_zeros(ctx, KM_F32, KM_SHAPE(1 << 20)));
    km_step_end(ctx);
    assert_non_null(km_zeros(ctx, KM_F32, KM_SHAPE(1000))); /* takes cached memory's place */
    assert_non_null(km_zeros(ctx, KM_F32, KM_SHAPE((1 << 20) + (1 << 18))));
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    km_ctx_free(ctx);
}

/* ---- Faults ---- */

/* A little of everything; true when all of it worked and came out right. */
static bool use_everything(void) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    float in[300], out[300] = {0};
    if (!ctx) return false;
    for (int i = 0; i < 300; i++) in[i] = (float)i;
    km_tensor *x = km_from_data(ctx, KM_F32, KM_SHAPE(300), in);
    km_tensor *y = km_copy(ctx, x);
    km_zeros(ctx, KM_F32, KM_SHAPE(100));
    km_read(ctx, y, out, sizeof out);
    km_sync(ctx);
    bool ok = km_ctx_status(ctx) == KM_OK;
    if (ok)
        assert_memory_equal(in, out, sizeof in);
    else
        assert_true(km_ctx_error(ctx)[0] != 0);
    km_ctx_free(ctx);
    return ok;
}

static void any_driver_call_may_fail_once_and_nothing_leaks(void **state) {
    static const km_cu_result codes[] = {KM_CU_INVALID_VALUE, KM_CU_OUT_OF_MEMORY};
    for (int k = 0; k < 2; k++) {
        bool worked = false;
        int nth = 0;
        for (; nth < 200 && !worked; nth++) {
            km_cuda_fault("*", nth, codes[k]);
            worked = use_everything() && km_cuda_fault_armed; /* the fault was never reached */
            km_cuda_fault(NULL, -1, 0);
            assert_true(use_everything());
            assert_int_equal(fake.streams + fake.events + fake.device_blocks + fake.host_blocks, 0);
        }
        assert_true(worked);
        assert_true(nth > 15);
    }
}

static void any_heap_allocation_may_fail_and_nothing_leaks(void **state) {
    assert_true(use_everything());
    int64_t live = km_alloc_live();
    for (int nth = 0; nth < 60; nth++) {
        km_alloc_fail_nth(nth);
        use_everything();
        km_alloc_fail_nth(-1);
        assert_int_equal(km_alloc_live(), live);
        assert_int_equal(fake.streams + fake.events + fake.device_blocks + fake.host_blocks, 0);
    }
    assert_true(use_everything());
}

static void a_kernel_that_is_not_there_is_named(void **state) {
    static km_cuda_kernel none = {.module = "fill", .name = "no_such_kernel"};
    static km_cuda_kernel no_file = {.module = "nothing", .name = "x"};
    static km_cuda_kernel large = {.module = "fill", .name = "large"};
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    int arg = 0;
    void *params[] = {&arg};
    assert_int_equal(km_cuda_launch(ctx->lanes[0], &none, KM_DIM(1), KM_DIM(1), 0, params),
                     KM_ERR_GPU);
    assert_string_equal(km_ctx_error(ctx), "cuda:0: no kernel no_such_kernel in fill.cu");
    km_ctx_clear_error(ctx);
    km_cuda_launch(ctx->lanes[0], &no_file, KM_DIM(1), KM_DIM(1), 0, params);
    assert_says(km_ctx_error(ctx), "the kernels nothing.cu are not in this build (sm_90a)");
    km_ctx_clear_error(ctx);
    km_cuda_launch(ctx->lanes[0], &large, KM_DIM(1), KM_DIM(1), 300 << 10, params);
    assert_says(km_ctx_error(ctx), "cuda:0: large: some error");
    km_ctx_free(ctx);
}

static void kernels_that_wait_are_started_early_on_chips_that_can(void **state) {
    km_ctx *hopper = km_ctx_new("cuda:0", 1), *ada = km_ctx_new("cuda:1", 1);
    km_zeros(hopper, KM_F32, KM_SHAPE(5));
    assert_int_equal(fake.early, 1);
    km_zeros(ada, KM_F32, KM_SHAPE(5));
    assert_int_equal(fake.early, 1);
    assert_int_equal(fake.launches, 2);
    km_ctx_free(hopper);
    km_ctx_free(ada);
}

static void a_lost_gpu_says_so_from_then_on_and_the_cpu_still_works(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1), *other = km_ctx_new("cuda:0", 1);
    km_tensor *kept = km_keep(other, km_zeros(other, KM_F32, KM_SHAPE(10)));
    float out[10];
    km_cuda_fault("stream_sync", 0, KM_CU_ILLEGAL_ADDRESS);
    km_zeros(ctx, KM_F32, KM_SHAPE(10));
    km_sync(ctx);
    assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
    assert_string_equal(km_ctx_error(ctx), "cuda:0: waiting for the GPU: an illegal memory access "
                                           "was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)");
    km_ctx_clear_error(ctx);
    assert_null(km_ones(ctx, KM_F32, KM_SHAPE(1000)));
    assert_says(km_ctx_error(ctx), "cuda:0 was lost by an earlier error");
    /* So it is for every context there is, and for new ones. */
    assert_int_equal(km_read(other, kept, out, sizeof out), KM_ERR_GPU);
    assert_says(km_ctx_error(other), "an illegal memory access");
    assert_null(km_ctx_new("cuda:0", 1));
    assert_says(km_last_error(), "was lost");
    km_ctx *cpu = km_ctx_new("cpu", 1), *second = km_ctx_new("cuda:1", 1);
    assert_true(km_item(cpu, km_sum(cpu, km_ones(cpu, KM_F32, KM_SHAPE(7)), NULL, 0, false)) == 7);
    assert_non_null(second);
    km_release(kept);
    km_ctx_free(cpu);
    km_ctx_free(second);
    km_ctx_free(other);
    km_ctx_free(ctx);
}

static void a_fault_can_be_asked_for_by_the_environment(void **state) {
    setenv("KERMES_FAULT_GPU", "launch:1:719", 1);
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    unsetenv("KERMES_FAULT_GPU");
    assert_non_null(km_zeros(ctx, KM_F32, KM_SHAPE(5)));
    assert_null(km_zeros(ctx, KM_F32, KM_SHAPE(5)));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
    assert_says(km_ctx_error(ctx), "cuda:0: fill_bytes: ");
    km_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FAKE(bytes_come_back_as_they_went),
        FAKE(small_uploads_share_the_staging_memory),
        FAKE(memory_is_reused_and_given_back),
        FAKE(each_tensor_is_the_drivers_own_block_where_that_is_asked_for),
        FAKE(what_a_context_leaves_behind_goes_back_with_it),
        FAKE(the_ceiling_is_a_fraction_of_the_device_for_all_contexts),
        FAKE(a_full_device_is_an_error_that_leaves_the_context_usable),
        FAKE(any_driver_call_may_fail_once_and_nothing_leaks),
        FAKE(any_heap_allocation_may_fail_and_nothing_leaks),
        FAKE(a_kernel_that_is_not_there_is_named),
        FAKE(kernels_that_wait_are_started_early_on_chips_that_can),
        FAKE(a_lost_gpu_says_so_from_then_on_and_the_cpu_still_works),
        FAKE(a_fault_can_be_asked_for_by_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
