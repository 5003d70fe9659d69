/* Trains a net with one hidden layer on XOR, which no net without one can learn. */
#include <kermes.h>
#include <stdio.h>

enum { HIDDEN = 8, STEPS = 2000 };

static const float inputs[] = {0, 0, 0, 1, 1, 0, 1, 1}; /* (4, 2) */
static const float wanted[] = {0, 1, 1, 0};             /* (4, 1) */

static km_tensor *parameter(km_ctx *ctx, km_tensor *value) {
    km_tensor *p = km_keep(ctx, value); /* stays when the step ends */
    km_require_grad(ctx, p, true);
    return p;
}

/* x (4, 2) -> logits (4, 1); p: two layers, weight and bias each */
static km_tensor *net(km_ctx *ctx, km_tensor *const *p, km_tensor *x) {
    km_tensor *h = km_tanh(ctx, km_linear(ctx, x, p[0], p[1], KM_ACT_NONE));
    return km_linear(ctx, h, p[2], p[3], KM_ACT_NONE);
}

int main(void) {
    km_ctx *ctx = km_ctx_new("auto", 0);
    if (!ctx) {
        fprintf(stderr, "%s\n", km_last_error());
        return 1;
    }
    km_seed(ctx, 1);
    km_tensor *p[] = {
        parameter(ctx, km_normal(ctx, KM_F32, KM_SHAPE(HIDDEN, 2), 0, 1)),
        parameter(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(HIDDEN))),
        parameter(ctx, km_normal(ctx, KM_F32, KM_SHAPE(1, HIDDEN), 0, 1)),
        parameter(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(1))),
    };
    for (int step = 1; step <= STEPS; step++) {
        km_tensor *x = km_from_data(ctx, KM_F32, KM_SHAPE(4, 2), inputs);
        km_tensor *y = km_from_data(ctx, KM_F32, KM_SHAPE(4, 1), wanted);
        km_tensor *loss = km_bce_with_logits(ctx, net(ctx, p, x), y, KM_MEAN);
        km_backward(ctx, loss);
        if (step == 1 || step % 500 == 0) printf("step %4d  loss %.4f\n", step, km_item(ctx, loss));
        km_no_grad_begin(ctx);
        for (int i = 0; i < 4; i++) /* p = p - 0.5 * gradient */
            km_assign(ctx, p[i], km_sub(ctx, p[i], km_mul_scalar(ctx, km_grad(p[i]), 0.5)));
        km_no_grad_end(ctx);
        km_zero_grad(ctx, p, 4);
        km_step_end(ctx);
    }

    km_tensor *x = km_from_data(ctx, KM_F32, KM_SHAPE(4, 2), inputs);
    float out[4] = {0};
    km_read(ctx, km_sigmoid(ctx, net(ctx, p, x)), out, sizeof out);
    int right = 0;
    for (int i = 0; i < 4; i++) {
        printf("%g xor %g = %.3f\n", inputs[2 * i], inputs[2 * i + 1], out[i]);
        right += (out[i] > 0.5f) == (wanted[i] > 0.5f);
    }
    if (km_ctx_status(ctx) != KM_OK) fprintf(stderr, "%s\n", km_ctx_error(ctx));
    int ok = km_ctx_status(ctx) == KM_OK && right == 4;
    for (int i = 0; i < 4; i++) km_release(p[i]);
    km_ctx_free(ctx);
    return ok ? 0 : 1;
}
