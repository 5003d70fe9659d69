/* A whole training step of a small transformer: once it is warm it asks the heap for nothing, and
 * whichever of its allocations fails, the step says so, leaves nothing behind, and the next one
 * gives the same loss as if nothing had happened. */
#include "support/engine.h"

enum { B = 2, T = 4, C = 8, H = 2, V = 11, PARAMETERS = 10 };

typedef struct model {
    km_tensor *table, *w_qkv, *b_qkv, *w_out, *norm, *norm_b, *w_up, *b_up, *w_down, *norm2;
    km_tensor *m[PARAMETERS], *v[PARAMETERS]; /* the optimiser's */
    bool scopes;
} model;

static km_tensor **parameters(model *m) { return &m->table; }

/* Every pointer is NULL or a parameter afterwards, whatever went wrong. */
static void build(km_ctx *ctx, model *m) {
    const km_shape shapes[PARAMETERS] = {
        KM_SHAPE(V, C), KM_SHAPE(3 * C, C), KM_SHAPE(3 * C), KM_SHAPE(C, C),     KM_SHAPE(C),
        KM_SHAPE(C),    KM_SHAPE(2 * C, C), KM_SHAPE(2 * C), KM_SHAPE(C, 2 * C), KM_SHAPE(C)};
    km_seed(ctx, 11);
    for (int i = 0; i < PARAMETERS; i++) {
        km_tensor **p = &parameters(m)[i];
        *p = km_keep(ctx, km_normal(ctx, KM_F32, shapes[i], 0, 0.5));
        if (*p) km_require_grad(ctx, *p, true);
        m->m[i] = km_keep(ctx, km_zeros(ctx, KM_F32, shapes[i]));
        m->v[i] = km_keep(ctx, km_zeros(ctx, KM_F32, shapes[i]));
    }
    km_step_end(ctx);
}

static void release(model *m) {
    for (int i = 0; i < PARAMETERS; i++) {
        km_release(parameters(m)[i]);
        km_release(m->m[i]);
        km_release(m->v[i]);
    }
}

static km_tensor *heads(km_ctx *ctx, km_tensor *t) { /* (B, T, C) -> (B, H, T, C/H) */
    return km_transpose(ctx, km_reshape(ctx, t, KM_SHAPE(B, T, H, C / H)), 1, 2);
}

static km_tensor *attend(km_ctx *ctx, model *m, km_tensor *x) {
    km_tensor *qkv[3];
    if (m->scopes) km_scope_begin(ctx);
    km_split(ctx, km_linear(ctx, x, m->w_qkv, m->b_qkv, KM_ACT_NONE), -1, 3, qkv);
    km_tensor *q = km_rope(ctx, heads(ctx, qkv[0]), NULL, KM_ROPE_HALVES, 10000, 0);
    km_tensor *k = km_rope(ctx, heads(ctx, qkv[1]), NULL, KM_ROPE_HALVES, 10000, 0);
    km_tensor *o = km_attention(ctx, q, k, heads(ctx, qkv[2]), true, 0);
    o = km_reshape(ctx, km_transpose(ctx, o, 1, 2), KM_SHAPE(B, T, C));
    o = km_linear(ctx, o, m->w_out, NULL, KM_ACT_NONE);
    return m->scopes ? km_scope_end(ctx, o) : o;
}

static km_tensor *forward(km_ctx *ctx, model *m) {
    static const int32_t ids[B * T] = {1, 5, 5, 2, 0, 10, 3, 1};
    static const int64_t next[B * T] = {5, 5, 2, 7, 10, 3, -1, 4};
    km_tensor *x = km_embedding(ctx, m->table, km_from_data(ctx, KM_I32, KM_SHAPE(B, T), ids));
    km_tensor *sum, *a = attend(ctx, m, x);
    km_tensor *y = km_add_layer_norm(ctx, a, x, m->norm, m->norm_b, 1e-5, &sum);
    if (m->scopes) km_scope_begin(ctx);
    km_tensor *h = km_linear(ctx, y, m->w_up, m->b_up, KM_ACT_GELU);
    h = km_linear(ctx, km_dropout(ctx, h, 0.1), m->w_down, NULL, KM_ACT_NONE);
    if (m->scopes) h = km_scope_end(ctx, h);
    y = km_rms_norm(ctx, km_add(ctx, sum, h), m->norm2, 1e-5);
    km_tensor *logits = km_linear(ctx, y, m->table, NULL, KM_ACT_NONE); /* tied to the embedding */
    km_tensor *targets = km_from_data(ctx, KM_I64, KM_SHAPE(B, T), next);
    return km_cross_entropy(ctx, logits, targets, -1, KM_MEAN);
}

/* The loss of one step; at a rate of 0 the parameters stay where they are. It is not ended. */
static double step(km_ctx *ctx, model *m, double rate) {
    km_seed(ctx, 5); /* the same dropout each time */
    km_tensor *loss = forward(ctx, m);
    km_backward(ctx, loss);
    km_clip_grad_norm(ctx, parameters(m), PARAMETERS, 0.5);
    km_adamw how = {
        .size = sizeof(km_adamw), .lr = rate, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .step = 1};
    km_adamw_step(ctx, parameters(m), m->m, m->v, PARAMETERS, &how);
    return km_item(ctx, loss);
}

static void end_step(km_ctx *ctx, model *m) {
    km_zero_grad(ctx, parameters(m), PARAMETERS);
    km_step_end(ctx);
}

static void check_training(km_ctx *ctx, bool scopes) {
    model m = {.scopes = scopes};
    build(ctx, &m);
    double first = 0, loss = 0;
    uint64_t heap = 0, misses = 0;
    for (int i = 1; i <= 6; i++) {
        loss = step(ctx, &m, 0.02);
        end_step(ctx, &m);
        assert_ok(ctx);
        if (i == 1) first = loss;
        if (i == 2) {
            heap = km_alloc_count();
            misses = km_ctx_stats(ctx).pool_misses;
        }
    }
    assert_int_equal(km_alloc_count() - heap, 0);
    assert_int_equal(km_ctx_stats(ctx).pool_misses - misses, 0);
    assert_int_equal(km_ctx_stats(ctx).fallbacks, 0); /* each device has all that it takes */
    assert_true(loss < first * 0.9);                  /* and it learns */
    release(&m);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
}

static void a_warm_step_asks_the_heap_for_nothing(void **state) { check_training(*state, false); }

static void a_warm_step_with_scopes_asks_the_heap_for_nothing(void **state) {
    check_training(*state, true);
}

static void scopes_change_the_peak_and_not_the_loss(void **state) {
    km_ctx *ctx = *state;
    model m = {0};
    build(ctx, &m);
    double loss[2];
    size_t peak[2];
    for (int scopes = 0; scopes < 2; scopes++) {
        m.scopes = scopes;
        km_stats_reset_peak(ctx);
        loss[scopes] = step(ctx, &m, 0);
        peak[scopes] = km_ctx_stats(ctx).peak_bytes;
        end_step(ctx, &m);
    }
    assert_ok(ctx);
    assert_true(loss[0] == loss[1]);
    assert_true(peak[1] <= peak[0]);
    release(&m);
}

static void gradients_accumulated_over_two_steps_are_those_of_both(void **state) {
    km_ctx *ctx = *state;
    model m = {0};
    build(ctx, &m);
    float once[C * C], twice[C * C];
    km_seed(ctx, 5);
    km_backward(ctx, forward(ctx, &m));
    km_read(ctx, km_grad(m.w_out), once, sizeof once);
    km_step_end(ctx);
    km_seed(ctx, 5);
    km_backward(ctx, forward(ctx, &m));
    km_read(ctx, km_grad(m.w_out), twice, sizeof twice);
    assert_ok(ctx);
    for (int i = 0; i < C * C; i++) assert_true(engine_close_to(twice[i], 2 * once[i], 1e-6));
    release(&m);
}

/* The bits of the loss, and how many allocations making the model and running a step takes. */
static double undisturbed(const char *device, bool scopes, int64_t *allocations) {
    km_ctx *ctx = km_ctx_new(device, 2);
    model m = {.scopes = scopes};
    uint64_t before = km_alloc_count();
    build(ctx, &m);
    double loss = step(ctx, &m, 0);
    end_step(ctx, &m);
    *allocations = (int64_t)(km_alloc_count() - before);
    assert_ok(ctx);
    release(&m);
    km_ctx_free(ctx);
    return loss;
}

static void check_every_failure(const char *device, bool scopes) {
    int64_t live = km_alloc_live(), allocations, failures = 0;
    double right = undisturbed(device, scopes, &allocations);
    assert_true(allocations > 30);
    for (int64_t n = 0; n <= allocations; n++) {
        km_ctx *ctx = km_ctx_new(device, 2);
        model m = {.scopes = scopes};
        km_alloc_fail_nth(n);
        build(ctx, &m);
        double loss = step(ctx, &m, 0);
        km_alloc_fail_nth(-1);
        if (km_ctx_status(ctx) == KM_OK) {
            assert_true(loss == right);
        } else {
            failures++;
            assert_int_equal(km_ctx_status(ctx), KM_ERR_MEMORY);
            assert_non_null(strstr(km_ctx_error(ctx), "out of memory"));
        }
        km_ctx_clear_error(ctx);
        end_step(ctx, &m);
        assert_int_equal(ctx->no_grad, 0);
        bool whole = true;
        for (int i = 0; i < PARAMETERS; i++)
            whole &= km_requires_grad(parameters(&m)[i]) && m.m[i] && m.v[i];
        if (!whole) {
            release(&m);
            build(ctx, &m);
        }
        assert_true(step(ctx, &m, 0) == right);
        assert_ok(ctx);
        release(&m);
        km_step_end(ctx);
        assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
        km_ctx_free(ctx);
        assert_int_equal(km_alloc_live(), live);
    }
    assert_true(failures > 10); /* the others were made good by a second try */
}

static void any_failed_allocation_is_survived_on_ref(void **state) {
    check_every_failure("ref", false);
}

static void any_failed_allocation_is_survived_on_cpu(void **state) {
    check_every_failure("cpu", false);
}

static void any_failed_allocation_is_survived_with_scopes(void **state) {
    check_every_failure("cpu", true);
}

/* A pool with a ceiling: the step fails for real, not by injection, wherever the ceiling is hit. */
static void any_ceiling_of_memory_is_survived(void **state) {
    km_ctx *ctx = *state;
    model m = {0};
    build(ctx, &m);
    double right = step(ctx, &m, 0);
    end_step(ctx, &m);
    size_t peak = km_ctx_stats(ctx).peak_bytes;
    km_mempool *pool = &ctx->lanes[0]->pool;
    int failures = 0, successes = 0;
    for (pool->limit = pool->live; pool->limit < peak + peak / 8; pool->limit += 999) {
        km_trim(ctx);
        double loss = step(ctx, &m, 0);
        assert_true(pool->held <= pool->limit);
        if (km_ctx_status(ctx) == KM_OK) {
            successes++;
            assert_true(loss == right);
        } else {
            failures++;
            assert_int_equal(km_ctx_status(ctx), KM_ERR_MEMORY);
            assert_non_null(strstr(km_ctx_error(ctx), "out of memory on"));
        }
        km_ctx_clear_error(ctx);
        end_step(ctx, &m);
    }
    assert_true(failures > 0 && successes > 0);
    release(&m);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(a_warm_step_asks_the_heap_for_nothing),
        ON_EACH(a_warm_step_with_scopes_asks_the_heap_for_nothing),
        ON_EACH(scopes_change_the_peak_and_not_the_loss),
        ON_EACH(gradients_accumulated_over_two_steps_are_those_of_both),
        cmocka_unit_test(any_failed_allocation_is_survived_on_ref),
        cmocka_unit_test(any_failed_allocation_is_survived_on_cpu),
        cmocka_unit_test(any_failed_allocation_is_survived_with_scopes),
        ON_EACH(any_ceiling_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
