/* Optimiser steps in place: the formulas of the papers, many tensors at once, and what is refused. */
#include "tensor/tensor.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 5, SIZE = 67 };

typedef struct model {
    km_ctx *ctx;
    km_tensor *p[TENSORS], *m[TENSORS], *v[TENSORS];
} model;

static float start(int t, int i) { return (float)sin(t * 31 + i); }

static model make(const char *device) {
    model x = {.ctx = km_ctx_new(device, 2)};
    for (int t = 0; t < TENSORS; t++) {
        float w[SIZE];
        for (int i = 0; i < SIZE; i++) w[i] = start(t, i);
        x.p[t] = km_keep(x.ctx, km_from_data(x.ctx, KM_F32, KM_SHAPE(SIZE), w));
        x.m[t] = km_keep(x.ctx, km_zeros(x.ctx, KM_F32, KM_SHAPE(SIZE)));
        x.v[t] = km_keep(x.ctx, km_zeros(x.ctx, KM_F32, KM_SHAPE(SIZE)));
        km_require_grad(x.ctx, x.p[t], true);
    }
    return x;
}

/* loss = sum of w^2 / 2 over all tensors but the last: the gradient is w itself. */
static void give_gradients(model *x) {
    km_tensor *loss = NULL;
    km_zero_grad(x->ctx, x->p, TENSORS);
    for (int t = 0; t < TENSORS - 1; t++) {
        km_tensor *s = km_sum(x->ctx, km_mul(x->ctx, x->p[t], x->p[t]), NULL, 0, false);
        loss = loss ? km_add(x->ctx, loss, s) : s;
    }
    km_backward(x->ctx, km_mul_scalar(x->ctx, loss, 0.5));
}

static void destroy(model *x) {
    for (int t = 0; t < TENSORS; t++) {
        km_release(x->p[t]);
        km_release(x->m[t]);
        km_release(x->v[t]);
    }
    km_ctx_free(x->ctx);
}

static void adamw_on(const char *device) {
    model x = make(device);
    double p[TENSORS][SIZE], m[TENSORS][SIZE] = {{0}}, v[TENSORS][SIZE] = {{0}};
    for (int t = 0; t < TENSORS; t++)
        for (int i = 0; i < SIZE; i++) p[t][i] = (double)start(t, i);
    for (int step = 1; step <= 4; step++) {
        km_adamw how = {.size = sizeof(km_adamw),
                        .lr = 0.05,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .step = step};
        give_gradients(&x);
        assert_int_equal(km_adamw_step(x.ctx, x.p, x.m, x.v, TENSORS, &how), KM_OK);
        km_step_end(x.ctx);
        for (int t = 0; t < TENSORS - 1; t++)
            for (int i = 0; i < SIZE; i++) {
                double g = p[t][i];
                m[t][i] = 0.9 * m[t][i] + 0.1 * g;
                v[t][i] = 0.95 * v[t][i] + 0.05 * g * g;
                double mh = m[t][i] / (1 - pow(0.9, step)), vh = v[t][i] / (1 - pow(0.95, step));
                p[t][i] -= 0.05 * (mh / (sqrt(vh) + 1e-8) + 0.1 * p[t][i]);
            }
    }
    for (int t = 0; t < TENSORS; t++) {
        float got[SIZE];
        km_read(x.ctx, x.p[t], got, sizeof got);
        for (int i = 0; i < SIZE; i++) assert_true(fabs((double)got[i] - p[t][i]) < 2e-5);
    }
    destroy(&x);
}

static void adamw_follows_the_paper(void **state) {
    (void)state;
    adamw_on("ref");
    adamw_on("cpu");
}

static void sgd_with_and_without_momentum_follows_its_formula(void **state) {
    (void)state;
    for (int form = 0; form < 3; form++) {
        model x = make("cpu");
        double momentum = form ? 0.9 : 0, p = (double)start(1, 3), m = 0;
        for (int step = 0; step < 3; step++) {
            km_sgd how = {.size = sizeof(km_sgd),
                          .lr = 0.1,
                          .momentum = momentum,
                          .weight_decay = 0.5,
                          .nesterov = form == 2};
            give_gradients(&x);
            assert_int_equal(km_sgd_step(x.ctx, x.p, form ? x.m : NULL, TENSORS, &how), KM_OK);
            km_step_end(x.ctx);
            double d = p + 0.5 * p;
            m = momentum * m + d;
            p -= 0.1 * (form == 2 ? d + momentum * m : m);
        }
        float got[SIZE];
        km_read(x.ctx, x.p[1], got, sizeof got);
        assert_true(fabs((double)got[3] - p) < 1e-5);
        destroy(&x);
    }
}

/* Updates far below the parameter's resolution add up in the f32 weights behind it. */
static void master_weights_keep_what_half_precision_would_lose(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    km_tensor *p = km_keep(ctx, km_ones(ctx, KM_BF16, KM_SHAPE(3)));
    km_tensor *w = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(3)));
    km_require_grad(ctx, p, true);
    float got[3];
    uint16_t half[3];
    for (int step = 0; step < 100; step++) {
        km_sgd how = {.size = sizeof(km_sgd), .lr = 1e-4, .master = &w};
        km_backward(ctx, km_sum(ctx, p, NULL, 0, false));
        assert_int_equal(km_sgd_step(ctx, &p, NULL, 1, &how), KM_OK);
        km_zero_grad(ctx, &p, 1);
        km_step_end(ctx);
    }
    km_read(ctx, w, got, sizeof got);
    km_read(ctx, p, half, sizeof half);
    assert_true(fabs((double)got[1] - 0.99) < 1e-5);
    assert_int_equal(half[1], km_f32_to_bf16(got[1]));
    km_tensor *wrong = km_keep(ctx, km_ones(ctx, KM_BF16, KM_SHAPE(3)));
    km_sgd how = {.size = sizeof(km_sgd), .lr = 1e-4, .master = &wrong};
    km_backward(ctx, km_sum(ctx, p, NULL, 0, false));
    assert_int_equal(km_sgd_step(ctx, &p, NULL, 1, &how), KM_ERR_DTYPE);
    km_release(p);
    km_release(w);
    km_release(wrong);
    km_ctx_free(ctx);
}

static void a_parameter_without_a_gradient_stays_as_it_is(void **state) {
    (void)state;
    model x = make("cpu");
    km_adamw how = {.size = sizeof(km_adamw),
                    .lr = 0.1,
                    .beta1 = 0.9,
                    .beta2 = 0.99,
                    .eps = 1e-8,
                    .weight_decay = 1,
                    .step = 1};
    float got[SIZE];
    give_gradients(&x);
    km_adamw_step(x.ctx, x.p, x.m, x.v, TENSORS, &how);
    km_read(x.ctx, x.p[TENSORS - 1], got, sizeof got);
    for (int i = 0; i < SIZE; i++) assert_true(got[i] == start(TENSORS - 1, i));
    destroy(&x);
}

static void missing_or_misshapen_state_is_refused(void **state) {
    (void)state;
    model x = make("cpu");
    km_adamw how = {
        .size = sizeof(km_adamw), .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .step = 1};
    give_gradients(&x);
    assert_int_equal(km_adamw_step(x.ctx, x.p, NULL, x.v, TENSORS, &how), KM_ERR_NULL);
    km_ctx_clear_error(x.ctx);
    km_tensor *good = x.m[1];
    x.m[1] = km_keep(x.ctx, km_zeros(x.ctx, KM_F32, KM_SHAPE(SIZE + 1)));
    assert_int_equal(km_adamw_step(x.ctx, x.p, x.m, x.v, TENSORS, &how), KM_ERR_SHAPE);
    assert_non_null(strstr(km_ctx_error(x.ctx), "[68]"));
    km_ctx_clear_error(x.ctx);
    km_release(x.m[1]);
    x.m[1] = good;
    how.step = 0;
    assert_int_equal(km_adamw_step(x.ctx, x.p, x.m, x.v, TENSORS, &how), KM_ERR_RANGE);
    km_ctx_clear_error(x.ctx);
    km_sgd sgd = {.size = sizeof(km_sgd), .lr = 1, .momentum = 0.9};
    assert_int_equal(km_sgd_step(x.ctx, x.p, NULL, TENSORS, &sgd), KM_ERR_NULL);
    km_ctx_clear_error(x.ctx);
    how.step = 1;
    assert_int_equal(km_adamw_step(x.ctx, x.p, x.m, x.v, TENSORS, &how), KM_OK);
    destroy(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_follows_the_paper),
        cmocka_unit_test(sgd_with_and_without_momentum_follows_its_formula),
        cmocka_unit_test(master_weights_keep_what_half_precision_would_lose),
        cmocka_unit_test(a_parameter_without_a_gradient_stays_as_it_is),
        cmocka_unit_test(missing_or_misshapen_state_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
