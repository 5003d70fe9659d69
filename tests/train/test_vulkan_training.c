/* Runs on a Vulkan device, with no op sent to another: their losses are the CPU's at every step, but for
 * what rounding makes of them. */
#include "scratch.h"
#include "support/sanitized.h"
#include "tensor/tensor.h"
#include <math.h>

enum { MOST = 64 };
static km_error err;

typedef struct curve {
    double loss[MOST], norm[MOST], val;
    int n;
} curve;

static void on_event(void *user, km_train_event e, const km_train_status *s, const char *text) {
    curve *c = user;
    (void)text;
    if (e != KM_TRAIN_LOG || c->n == MOST) return;
    c->loss[c->n] = s->train_loss;
    c->norm[c->n++] = s->norm;
}

static curve run(km_train_settings s, const char *device) {
    curve c = {0};
    km_train_hooks hooks = {.size = sizeof hooks, .event = on_event, .user = &c};
    km_train_result result = {.size = sizeof result};
    s.device = device;
    s.log_every = 1;
    s.eval_every = 0;
    s.save_every = 0;
    setenv("KERMES_FALLBACK", strcmp(device, "cpu") ? "0" : "1", 1); /* 0: an error */
    assert_done(km_train_run(&s, &hooks, &result, &err));
    unsetenv("KERMES_FALLBACK");
    c.val = result.status.val_loss;
    return c;
}

/* near: of losses, which are about 3. */
static void matches_the_cpu(km_train_settings s, double near) {
    curve cpu = run(s, "cpu");
    s.out = scratch("vulkan");
    curve gpu = run(s, "vulkan:0");
    assert_int_equal(cpu.n, s.steps);
    assert_int_equal(gpu.n, s.steps);
    assert_true(cpu.loss[cpu.n - 1] < cpu.loss[0] - 0.2); /* it does learn */
    for (int i = 0; i < cpu.n; i++) {
        if (!(fabs(cpu.loss[i] - gpu.loss[i]) < near))
            fail_msg("step %d: %.6f on the CPU, %.6f here", i + 1, cpu.loss[i], gpu.loss[i]);
        if (!(fabs(cpu.norm[i] - gpu.norm[i]) < 5 * near * cpu.norm[i]))
            fail_msg("step %d: norm %.6f on the CPU, %.6f here", i + 1, cpu.norm[i], gpu.norm[i]);
    }
    assert_true(fabs(cpu.val - gpu.val) < near);
}

static void gpt2_learns_as_on_the_cpu(void **state) {
    (void)state;
    km_train_settings s = scratch_run("cpu", 16 << 10, &err);
    s.steps = 20;
    s.dropout = 0.1;
    s.accumulate = 2;
    matches_the_cpu(s, 1e-4);
}

static void llama_learns_as_on_the_cpu(void **state) {
    (void)state;
    km_train_settings s = scratch_run("cpu", 16 << 10, &err);
    s.model = "llama-tiny";
    s.kv_heads = 1;
    s.steps = 20;
    s.optimizer = "sgd";
    s.lr = 0.1;
    matches_the_cpu(s, 1e-4);
}

static void gpt2_of_sixteen_bits_learns_as_on_the_cpu(void **state) {
    (void)state;
    km_train_settings s = scratch_run("cpu", 16 << 10, &err);
    s.steps = 20;
    s.dtype = "f16";
    matches_the_cpu(s, 5e-3);
}

static void llama_of_sixteen_bits_learns_as_on_the_cpu(void **state) {
    (void)state;
    km_train_settings s = scratch_run("cpu", 16 << 10, &err);
    s.model = "llama-tiny";
    s.steps = 12;
    s.dtype = "f16";
    matches_the_cpu(s, 5e-3);
}

static int remove_folder(void **state) {
    (void)state;
    return km_folder_remove(scratch_dir), 0;
}
#define RUN(test) cmocka_unit_test_setup_teardown(test, scratch_open, remove_folder)

int main(void) {
    if (THREADS_SANITIZED) { /* drivers have threads that it knows nothing of */
        printf("skipped: not under the thread sanitizer\n");
        return 77;
    }
    char cache[] = "/tmp/kermes-test-XXXXXX";
    assert_non_null(mkdtemp(cache)); /* of pipelines */
    setenv("XDG_CACHE_HOME", cache, 1);
    km_ctx *ctx = km_ctx_new("vulkan:0", 1);
    if (!ctx) {
        printf("skipped: %s\n", km_last_error());
        return 77;
    }
    km_ctx_free(ctx);
    /* Not SCRATCH: what the device has compiled stays with it. */
    const struct CMUnitTest tests[] = {RUN(gpt2_learns_as_on_the_cpu),
                                       RUN(llama_learns_as_on_the_cpu),
                                       RUN(gpt2_of_sixteen_bits_learns_as_on_the_cpu),
                                       RUN(llama_of_sixteen_bits_learns_as_on_the_cpu)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    km_folder_remove(cache);
    return failed;
}
