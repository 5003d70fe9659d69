/* Kernels that fail on a GPU: the op goes to the CPU, is counted and said once, whichever launch it
 * was, held back or not; with fallback off the error sticks. A made-up driver runs the kernels. */
#include "fake_cuda.h"

#include "backend/backend.h"
#include <math.h>

static float value(int op, float a, float b, double f0, double f1) {
    return op == KM_OP_ADD    ? a + b
           : op == KM_OP_MUL  ? a * b
           : op == KM_OP_NEG  ? -a
           : op == KM_OP_RELU ? fmaxf(a, 0)
                              : NAN;
}

static void run_kernel(const fake_launch *w) { fake_run_ops(w, value); }

#define N 37

static km_ctx *ctx;
static char noted[2000];

static void note(void *user, km_log_level level, const char *line) {
    strncat(noted, line, sizeof noted - strlen(noted) - 2);
    strcat(noted, "\n");
}

static int open_ctx(void **state) {
    fake_open_with(state, run_kernel);
    ctx = km_ctx_new("cuda:0", 2);
    noted[0] = 0;
    km_set_log(note, NULL);
    return ctx ? 0 : -1;
}

static int close_ctx(void **state) {
    km_cuda_fault(NULL, -1, 0);
    km_set_log(NULL, NULL);
    km_ctx_free(ctx);
    return fake_close(state);
}
#define TEST(test) cmocka_unit_test_setup_teardown(test, open_ctx, close_ctx)

static km_tensor *some(float from) {
    float v[N];
    for (int i = 0; i < N; i++) v[i] = from + (float)i;
    return km_from_data(ctx, KM_F32, KM_SHAPE(N), v);
}

/* relu(a + b) * -a, a copy of what is between, and a fill: chains, single ops and plain launches. */
static bool right(void) {
    km_tensor *a = some(-20), *b = some(3), *sum = km_add(ctx, a, b);
    km_tensor *kept = km_copy(ctx, sum), *two = km_full(ctx, KM_F32, KM_SHAPE(N), 2);
    km_tensor *y = km_mul(ctx, km_relu(ctx, sum), km_neg(ctx, a));
    km_tensor *z = km_mul(ctx, y, two);
    float got[2][N];
    bool ok = km_read(ctx, z, got[0], sizeof got[0]) == KM_OK &&
              km_read(ctx, kept, got[1], sizeof got[1]) == KM_OK;
    for (int i = 0; i < N && ok; i++) {
        float x = -20 + (float)i, s = x + 3 + (float)i;
        ok = got[0][i] == fmaxf(s, 0) * -x * 2 && got[1][i] == s;
    }
    km_step_end(ctx);
    return ok;
}

static void any_launch_may_fail_and_the_answer_is_right(void **state) {
    static const km_cu_result codes[] = {KM_CU_INVALID_VALUE, KM_CU_OUT_OF_MEMORY};
    assert_true(right());
    assert_int_equal(km_ctx_stats(ctx).fallbacks, 0);
    for (int k = 0; k < 2; k++) {
        int nth = 0;
        for (; nth < 40; nth++) {
            km_stats before = km_ctx_stats(ctx);
            km_cuda_fault("launch", nth, codes[k]);
            bool ok = right(), reached = !km_cuda_fault_armed;
            km_cuda_fault(NULL, -1, 0);
            if (!ok) fail_msg("launch %d: %s", nth, km_ctx_error(ctx));
            km_stats after = km_ctx_stats(ctx);
            assert_int_equal(after.failed_kernels - before.failed_kernels, reached);
            assert_int_equal(after.fallbacks - before.fallbacks, reached);
            if (!reached) break;
        }
        assert_true(nth >= 4 && nth < 40);
    }
    const char *said = strstr(noted, "failed on cuda:0 (cuda:0: ");
    assert_non_null(said);
    assert_non_null(strstr(said, "; using cpu\n"));
    for (char *line = noted, *end; (end = strchr(line, '\n')); line = end + 1) { /* each once */
        *end = 0;
        assert_null(strstr(end + 1, line));
    }
}

static void a_kernel_that_always_fails_goes_to_the_cpu_each_time(void **state) {
    for (int i = 0; i < 3; i++) {
        km_tensor *t = km_full(ctx, KM_F32, KM_SHAPE(N), i);
        km_cuda_fault("launch", 0, KM_CU_INVALID_VALUE);
        km_tensor *y = km_copy(ctx, km_add_scalar(ctx, t, 1));
        float v[N];
        assert_int_equal(km_read(ctx, y, v, sizeof v), KM_OK);
        assert_true(v[0] == (float)i + 1 && v[N - 1] == (float)i + 1);
        assert_string_equal(km_tensor_device(y), "cuda:0");
    }
    assert_int_equal(km_ctx_stats(ctx).failed_kernels, 3);
}

static void with_fallback_off_the_error_sticks_and_says_why(void **state) {
    km_ctx_set_fallback(ctx, false);
    assert_true(right());
    km_cuda_fault("launch", 0, KM_CU_INVALID_VALUE);
    assert_null(km_full(ctx, KM_F32, KM_SHAPE(N), 2));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
    assert_non_null(strstr(km_ctx_error(ctx), "cuda:0: fill_bytes: "));
    km_ctx_clear_error(ctx);
    assert_int_equal(km_ctx_stats(ctx).failed_kernels, 0);
    /* A kernel that is missing is the same rule. */
    km_tensor *d = km_full(ctx, KM_F64, KM_SHAPE(2), 1);
    assert_null(km_exp(ctx, d));
    assert_string_equal(km_ctx_error(ctx), "exp: no kernel for f64 on cuda:0, and fallback is off");
    km_ctx_clear_error(ctx);
    km_ctx_set_fallback(ctx, true);
    assert_non_null(km_exp(ctx, d));
}

static void the_environment_turns_it_off(void **state) {
    setenv("KERMES_FALLBACK", "0", 1);
    km_ctx *other = km_ctx_new("cpu", 1);
    unsetenv("KERMES_FALLBACK");
    assert_null(km_exp(other, km_full(other, KM_F64, KM_SHAPE(2), 1)));
    assert_non_null(strstr(km_ctx_error(other), "fallback is off"));
    km_ctx_free(other);
}

static void a_gpu_that_is_lost_is_an_error_all_the_same(void **state) {
    km_tensor *t = km_full(ctx, KM_F32, KM_SHAPE(N), 2);
    km_cuda_fault("launch", 0, KM_CU_ILLEGAL_ADDRESS);
    km_copy(ctx, t);
    km_sync(ctx);
    assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
    assert_int_equal(km_ctx_stats(ctx).failed_kernels, 0);
}

/* What is on it is gone, so that no op can go elsewhere; but each says so, and why, as a new context on
 * it does, and the CPU of the same process goes on. */
static void every_op_after_a_loss_says_that_the_gpu_was_lost_and_why(void **state) {
    km_tensor *t = km_keep(ctx, some(1));
    float v[N];
    km_step_end(ctx);
    km_cuda_fault("launch", 0, KM_CU_ILLEGAL_ADDRESS);
    km_copy(ctx, t);
    km_sync(ctx);
    for (int i = 0; i < 4; i++) {
        km_ctx_clear_error(ctx);
        if (i == 0) assert_null(km_copy(ctx, t));
        if (i == 1) assert_null(km_full(ctx, KM_F32, KM_SHAPE(N), 2));
        if (i == 2) assert_int_not_equal(km_read(ctx, t, v, sizeof v), KM_OK);
        if (i == 3) assert_null(some(3));
        assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
        if (!strstr(km_ctx_error(ctx), "was lost by an earlier error") ||
            !strstr(km_ctx_error(ctx), "illegal memory access"))
            fail_msg("%d: %s", i, km_ctx_error(ctx));
    }
    assert_null(km_ctx_new("cuda:0", 1));
    assert_non_null(strstr(km_last_error(), "was lost by an earlier error"));
    km_ctx *cpu = km_ctx_new("cpu", 1);
    assert_int_equal(km_read(cpu, km_full(cpu, KM_F32, KM_SHAPE(N), 2), v, sizeof v), KM_OK);
    assert_true(v[N - 1] == 2);
    km_ctx_free(cpu);
    km_release(t);
}

static km_tensor *in, *out;

static void step(km_ctx *c, void *user) {
    km_assign(c, out, km_mul(c, km_add(c, in, in), km_full(c, KM_F32, KM_SHAPE(N), 2)));
}

/* A launch of the capture, and the graph's own. */
static void a_step_that_is_captured_falls_back_too(void **state) {
    static const char *const calls[] = {"launch", "graph_launch"};
    in = km_keep(ctx, some(1));
    out = km_keep(ctx, some(0));
    km_step_end(ctx);
    for (int k = 0; k < 2; k++)
        for (int run = 0; run < 5; run++) {
            static km_graph *g;
            uint64_t before = km_ctx_stats(ctx).failed_kernels;
            float v[N];
            km_cuda_fault(calls[k], 0, KM_CU_INVALID_VALUE);
            km_graph_run(ctx, &g, (uint64_t)k + 1, step, NULL);
            bool reached = !km_cuda_fault_armed;
            km_cuda_fault(NULL, -1, 0);
            assert_int_equal(km_read(ctx, out, v, sizeof v), KM_OK);
            assert_true(v[0] == 4 && v[2] == 12);
            assert_int_equal(km_ctx_stats(ctx).failed_kernels > before, reached);
            km_assign(ctx, out, in);
            if (k == 1 && run == 4) {
                km_graph_free(g);
                g = NULL;
            }
        }
    km_release(in);
    km_release(out);
}

/* ---- No room on the device ---- */

static void fill_device(void) { fake.memory = fake.device_bytes; }
static void free_device(void) { fake.memory = (size_t)64 << 20; }

static void what_finds_no_room_lies_in_the_hosts_memory_and_is_right(void **state) {
    fill_device();
    for (int i = 0; i < 3; i++) assert_true(right());
    km_stats s = km_ctx_stats(ctx);
    assert_true(s.spills >= 15 && s.spilled_bytes > 0);
    assert_int_equal(s.held_bytes, 0);
    assert_int_equal(s.fallbacks, 0); /* the device works on it */
    char *said = strstr(noted, "cuda:0 has no room for ");
    assert_non_null(said);
    assert_non_null(strstr(said, ": it lies in the host's memory"));
    assert_null(strstr(said + 20, "has no room for")); /* once */
    free_device();
    km_trim(ctx);
    assert_int_equal(km_ctx_stats(ctx).spilled_bytes, 0);
    assert_true(right());
    assert_int_equal(km_ctx_stats(ctx).spills, s.spills);
    assert_true(km_ctx_stats(ctx).held_bytes > 0);
}

static void a_loop_without_room_asks_the_driver_for_nothing_once_it_is_warm(void **state) {
    assert_true(right());
    fill_device();
    km_tensor *more[8];
    for (int i = 0; i < 8; i++)
        more[i] = km_keep(ctx, some((float)i)); /* cached blocks are taken */
    assert_true(right());
    long blocks = fake.host_blocks;
    uint64_t misses = km_ctx_stats(ctx).pool_misses;
    for (int i = 0; i < 20; i++) assert_true(right());
    assert_int_equal(fake.host_blocks, blocks);
    assert_int_equal(km_ctx_stats(ctx).pool_misses, misses);
    for (int i = 0; i < 8; i++) km_release(more[i]);
}

static void an_operand_that_is_moved_there_finds_room_too(void **state) {
    km_ctx *cpu = km_ctx_new("cpu", 1);
    float v[N], w[N];
    km_read(cpu, km_uniform(cpu, KM_F32, KM_SHAPE(N), 0, 1), v, sizeof v);
    fill_device();
    km_tensor *t = km_from_data(ctx, KM_F32, KM_SHAPE(N), v);
    km_tensor *back = km_to(ctx, km_to(ctx, km_add(ctx, t, t), "cpu"), "cuda:0");
    assert_string_equal(km_tensor_device(back), "cuda:0");
    assert_int_equal(km_read(ctx, back, w, sizeof w), KM_OK);
    for (int i = 0; i < N; i++) assert_true(w[i] == v[i] + v[i]);
    km_ctx_free(cpu);
}

static void without_fallback_or_room_on_the_host_it_is_an_error(void **state) {
    fill_device();
    km_ctx_set_fallback(ctx, false);
    assert_null(some(1));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_MEMORY);
    assert_non_null(strstr(km_ctx_error(ctx), "out of memory on cuda:0"));
    km_ctx_clear_error(ctx);
    km_ctx_set_fallback(ctx, true);
    km_cuda_fault("host_alloc", 0, KM_CU_OUT_OF_MEMORY);
    assert_null(km_full(ctx, KM_F32, KM_SHAPE(N), 1));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_MEMORY);
    km_ctx_clear_error(ctx);
    ctx->must_fit = true; /* as weights and caches, which have a placing of their own */
    assert_null(some(1));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_MEMORY);
    km_ctx_clear_error(ctx);
    ctx->must_fit = false;
    assert_int_equal(km_ctx_stats(ctx).spills, 0);
    assert_true(right());
}

/* Its blocks stay the graph's, wherever they lie, and go back with it. */
static void a_captured_step_without_room_is_replayed_rightly(void **state) {
    km_ctx_free(ctx);
    setenv("KERMES_GPU_CHUNKS", "0", 1); /* no room between what is there */
    ctx = km_ctx_new("cuda:0", 2);
    unsetenv("KERMES_GPU_CHUNKS");
    in = km_keep(ctx, some(1));
    out = km_keep(ctx, some(0));
    km_step_end(ctx);
    km_trim(ctx);
    km_graph *g = NULL;
    assert_int_equal(km_graph_run(ctx, &g, 1, step, NULL), KM_OK);
    km_step_end(ctx);
    km_trim(ctx);
    fill_device();
    float v[N];
    for (int run = 0; run < 6; run++) {
        km_write(ctx, out, (float[N]){0}, sizeof(float) * N);
        if (km_graph_run(ctx, &g, 1, step, NULL) != KM_OK) fail_msg("%s", km_ctx_error(ctx));
        assert_true(right()); /* with blocks of its own */
        assert_int_equal(km_read(ctx, out, v, sizeof v), KM_OK);
        assert_true(v[0] == 4 && v[2] == 12);
    }
    assert_true(km_graph_captured(g));
    assert_true(km_ctx_stats(ctx).spills > 0);
    km_graph_free(g);
    km_release(in);
    km_release(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_finds_no_room_lies_in_the_hosts_memory_and_is_right),
        TEST(a_loop_without_room_asks_the_driver_for_nothing_once_it_is_warm),
        TEST(an_operand_that_is_moved_there_finds_room_too),
        TEST(without_fallback_or_room_on_the_host_it_is_an_error),
        TEST(a_captured_step_without_room_is_replayed_rightly),
        TEST(any_launch_may_fail_and_the_answer_is_right),
        TEST(a_kernel_that_always_fails_goes_to_the_cpu_each_time),
        TEST(with_fallback_off_the_error_sticks_and_says_why),
        TEST(the_environment_turns_it_off),
        TEST(a_step_that_is_captured_falls_back_too),
        TEST(a_gpu_that_is_lost_is_an_error_all_the_same),
        TEST(every_op_after_a_loss_says_that_the_gpu_was_lost_and_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
