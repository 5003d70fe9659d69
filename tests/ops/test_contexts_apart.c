/* Contexts in several threads at once: each serves its own, they share tables and devices made on
 * first use, and none changes another's results. Run under ThreadSanitizer too. */
#include "support/engine.h"
#include <pthread.h>

enum { THREADS = 4, STEPS = 5 };

typedef struct worker {
    const char *device;
    float w[6];
    double loss;
    km_status status;
} worker;

/* A few steps of a small net, with everything that is made on first use: the op table, the
 * device's kernels, notes about fallbacks. No assertions here: cmocka knows one thread. */
static void *train(void *arg) {
    worker *me = arg;
    km_ctx *ctx = km_ctx_new(me->device, 2);
    if (!ctx) return NULL;
    km_seed(ctx, 3);
    km_tensor *w = km_keep(ctx, km_normal(ctx, KM_F32, KM_SHAPE(2, 3), 0, 1));
    km_require_grad(ctx, w, true);
    for (int i = 0; i < STEPS; i++) {
        km_tensor *x = km_uniform(ctx, KM_F32, KM_SHAPE(64, 3), -1, 1);
        km_tensor *y = km_linear(ctx, x, w, NULL, KM_ACT_GELU);
        km_tensor *wide = km_cast(ctx, km_cast(ctx, y, KM_F64), KM_F32); /* falls back on cpu */
        km_tensor *loss =
            km_mse(ctx, km_dropout(ctx, wide, 0.1), km_narrow(ctx, x, 1, 0, 2), KM_MEAN);
        km_backward(ctx, loss);
        km_clip_grad_norm(ctx, &w, 1, 1);
        km_no_grad_begin(ctx);
        km_assign(ctx, w, km_sub(ctx, w, km_grad(w)));
        km_no_grad_end(ctx);
        km_zero_grad(ctx, &w, 1);
        me->loss = km_item(ctx, loss);
        km_step_end(ctx);
    }
    km_read(ctx, w, me->w, sizeof me->w);
    me->status = km_ctx_status(ctx);
    km_release(w);
    km_ctx_free(ctx);
    return arg;
}

static void contexts_in_several_threads_do_not_meet(void **state) {
    worker workers[THREADS], alone[2] = {{.device = "cpu"}, {.device = "ref"}};
    pthread_t threads[THREADS];
    int64_t live = km_alloc_live();
    for (int i = 0; i < THREADS; i++) { /* first all at once, so that they race for first use */
        workers[i] = (worker){.device = i % 2 ? "ref" : "cpu", .status = KM_ERR_STATE};
        assert_int_equal(pthread_create(&threads[i], NULL, train, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, &workers[i]);
    }
    for (int i = 0; i < 2; i++) assert_non_null(train(&alone[i]));
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(workers[i].status, KM_OK);
        assert_memory_equal(workers[i].w, alone[i % 2].w, sizeof workers[i].w);
        assert_true(workers[i].loss == alone[i % 2].loss);
    }
    assert_int_equal(km_alloc_live(), live);
}

static void *fail_here(void *arg) {
    if (km_ctx_new("nowhere", 1)) return NULL;
    return strstr(km_last_error(), "nowhere") ? arg : NULL;
}

static void the_last_error_is_each_threads_own(void **state) {
    pthread_t t;
    void *result;
    assert_null(km_ctx_new("elsewhere", 1));
    pthread_create(&t, NULL, fail_here, state);
    pthread_join(t, &result);
    assert_ptr_equal(result, state);
    assert_non_null(strstr(km_last_error(), "elsewhere"));
}

/* One context may move from thread to thread, as long as it serves one at a time. */
static void *double_it(void *arg) {
    km_tensor **t = arg;
    *t = km_add((*t)->ctx, *t, *t);
    return NULL;
}

static void a_context_may_be_handed_to_another_thread(void **state) {
    km_ctx *ctx = *state;
    km_tensor *t = km_ones(ctx, KM_F32, KM_SHAPE(100000));
    for (int i = 0; i < 5; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, double_it, &t);
        pthread_join(thread, NULL);
        t = km_add(ctx, t, t);
    }
    assert_true(engine_element(ctx, t, 99999) == 1024);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contexts_in_several_threads_do_not_meet),
        cmocka_unit_test(the_last_error_is_each_threads_own),
        ON_EACH(a_context_may_be_handed_to_another_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
