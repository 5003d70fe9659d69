/* An op of one's own, with its gradient, checked by finite differences: softsign(x) = x / (1 + |x|)
 * and its derivative 1 / (1 + |x|)^2. A wrong gradient beside it shows that the check can fail. */
#include <kermes.h>
#include <stdio.h>

/* 1 + |x| */
static km_tensor *one_plus_abs(km_ctx *ctx, km_tensor *x) {
    return km_add_scalar(ctx, km_abs(ctx, x), 1);
}

static km_tensor *softsign_forward(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    (void)n, (void)user;
    return km_div(ctx, in[0], one_plus_abs(ctx, in[0]));
}

static void softsign_backward(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *out,
                              km_tensor *grad_out, km_tensor **grads, void *user) {
    (void)n, (void)out, (void)user;
    km_tensor *d = one_plus_abs(ctx, in[0]);
    grads[0] = km_div(ctx, grad_out, km_mul(ctx, d, d));
}

/* Forgets the square. */
static void wrong_backward(km_ctx *ctx, km_tensor *const *in, int n, km_tensor *out,
                           km_tensor *grad_out, km_tensor **grads, void *user) {
    (void)n, (void)out, (void)user;
    grads[0] = km_div(ctx, grad_out, one_plus_abs(ctx, in[0]));
}

static const km_custom_op softsign = {"softsign", softsign_forward, softsign_backward, NULL};
static const km_custom_op wrong = {"wrong_softsign", softsign_forward, wrong_backward, NULL};

/* What is checked: the op inside a larger expression. */
static km_tensor *expression(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    return km_mul(ctx, km_custom(ctx, user, in, n), in[0]);
}

static int passes(km_ctx *ctx, km_tensor *x, const km_custom_op *op) {
    km_grad_report report;
    if (km_check_grad(ctx, expression, (void *)op, &x, 1, 1e-6, &report) != KM_OK) {
        fprintf(stderr, "%s\n", km_ctx_error(ctx));
        return -1;
    }
    printf("%-15s largest error %.1e at element %lld (%.6f by the op, %.6f by differences): %s\n",
           op->name, report.max_error, (long long)report.element, report.analytic, report.numeric,
           report.passed ? "passed" : "failed");
    return report.passed;
}

int main(void) {
    km_ctx *ctx = km_ctx_new("ref", 1); /* gradients are checked in f64, on the reference */
    if (!ctx) {
        fprintf(stderr, "%s\n", km_last_error());
        return 1;
    }
    km_tensor *x = km_keep(ctx, km_normal(ctx, KM_F64, KM_SHAPE(3, 5), 0, 2));
    km_require_grad(ctx, x, true);
    int right = passes(ctx, x, &softsign), caught = !passes(ctx, x, &wrong);
    km_release(x);
    km_ctx_free(ctx);
    return right == 1 && caught ? 0 : 1;
}
