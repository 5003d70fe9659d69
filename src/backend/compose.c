/* Fused calls put together from the same device's simpler kernels. The first step of each call is
 * its product: a device that declines it has done nothing, so the whole call can go elsewhere. */
#include "backend/compose.h"

static km_status run(km_ctx *ctx, km_op op, km_tensor *const *in, int n_in, const km_params *p,
                     km_tensor *out) {
    km_kernel k = km_tensor_dev(out)->backend->kernel[op];
    km_call c = {.op = op, .n_in = n_in, .n_out = 1, .in = in, .out = &out, .p = p};
    return k ? k(ctx, &c) : KM_ERR_UNSUPPORTED;
}

/* As a step after the first: a kernel that is missing now is an error. */
static km_status then(km_ctx *ctx, km_op op, km_tensor *const *in, int n_in, const km_params *p,
                      km_tensor *out) {
    km_status s = run(ctx, op, in, n_in, p, out);
    return s == KM_ERR_UNSUPPORTED ? km_fail(ctx, s, "%s: no kernel for %s", km_op_name(op),
                                             km_dtype_name(in[0]->dtype))
                                   : s;
}

km_status km_compose_column_sums(km_ctx *ctx, km_tensor *x, km_tensor *out) {
    km_params p = {.axes = 1};
    return then(ctx, KM_OP_SUM, &x, 1, &p, out);
}

km_op km_act_grad(km_act act) {
    static const km_op grad[] = {[KM_ACT_RELU] = KM_OP_RELU_GRAD,
                                 [KM_ACT_GELU] = KM_OP_GELU_GRAD,
                                 [KM_ACT_GELU_ERF] = KM_OP_GELU_ERF_GRAD,
                                 [KM_ACT_SILU] = KM_OP_SILU_GRAD};
    return grad[act];
}

km_status km_compose_linear_dx(km_ctx *ctx, const km_call *c) {
    km_tensor *pre = c->n_in > 2 ? c->in[2] : NULL, *dx = c->out[0], *product = dx;
    if (c->p->act == KM_ACT_NONE) pre = NULL;
    if (pre) product = km_tensor_new(ctx, dx->storage->lane, "linear_dx", dx->dtype, dx->shape);
    if (!product) return ctx->error.code;
    km_params one = {.f = {[KM_F_ALPHA] = 1}}, none = {0};
    km_status s = run(ctx, KM_OP_MATMUL, c->in, 2, &one, product);
    if (s == KM_OK && pre)
        s = then(ctx, km_act_grad(c->p->act), (km_tensor *[]){product, pre}, 2, &none, dx);
    return s == KM_OK && c->n_out > 1 ? km_compose_column_sums(ctx, dx, c->out[1]) : s;
}

km_status km_compose_linear_dw(km_ctx *ctx, const km_call *c) {
    km_tensor turned = *c->in[0], *in[] = {&turned, c->in[1]};
    turned.shape.dim[0] = c->in[0]->shape.dim[1];
    turned.shape.dim[1] = c->in[0]->shape.dim[0];
    turned.stride[0] = c->in[0]->stride[1];
    turned.stride[1] = c->in[0]->stride[0];
    km_params one = {.f = {[KM_F_ALPHA] = 1}};
    km_status s = run(ctx, KM_OP_MATMUL, in, 2, &one, c->out[0]);
    return s == KM_OK && c->n_out > 1 ? km_compose_column_sums(ctx, c->in[0], c->out[1]) : s;
}
