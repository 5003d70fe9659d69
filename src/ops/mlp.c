/* Two linear layers with an activation between them. As one op, the gradient goes through the
 * activation on the way out of the second layer's product, with the first layer's bias gradient
 * along: two passes over the hidden values less than by the layers one after the other. */
#include "ops/families.h"

enum { X, W1, B1, W2, B2 }; /* inputs; outputs are y, pre, hidden */

static void grad_mlp(km_ctx *ctx, km_node *n) {
    km_tensor *dy = n->grad[0], *pre = n->out[1], *hidden = n->out[2], *d[KM_MAX_OUTPUTS];
    bool first = km_needs(n, X) || km_needs(n, W1) || km_needs(n, B1), bias = km_needs(n, B1);
    km_linear_backward(ctx, dy, hidden, n->in[W2], n->in[B2], false);
    if (!first) return;
    km_tensor *dpre;
    if (n->p.act == KM_ACT_RELU) {
        km_apply(ctx, KM_OP_LINEAR_DX, (km_tensor *[]){dy, n->in[W2]}, 2, NULL, d);
        dpre = km_apply2(ctx, KM_OP_RELU_GRAD, d[0], hidden, NULL);
        if (bias) km_grad_add(ctx, n->in[B1], km_sum(ctx, dpre, (int[]){0}, 1, false));
    } else {
        km_params p = {.act = n->p.act, .n = {[KM_N_BOTH] = bias}};
        dpre = km_apply(ctx, KM_OP_LINEAR_DX, (km_tensor *[]){dy, n->in[W2], pre}, 3, &p, d);
        if (bias) km_grad_add(ctx, n->in[B1], d[1]);
    }
    if (dpre) km_linear_backward(ctx, dpre, n->in[X], n->in[W1], NULL, true);
}

static void saves_mlp(km_node *n) { /* relu's slope is in its output */
    if (n->p.act == KM_ACT_NONE || n->p.act == KM_ACT_RELU) n->save_out = 4;
}

void km_rows_mlp(km_op_row *t) {
    t[KM_OP_MLP] = (km_op_row){.formula = "act(x w1^T + b1) w2^T + b2",
                               .min_in = 5,
                               .max_in = 5,
                               .dtypes = KM_FLOATS,
                               .flags = KM_OP_VIEW,
                               .grad = grad_mlp,
                               .save_in = 1u << X | 1u << W1 | 1u << W2,
                               .save_out = 6,
                               .saves = saves_mlp};
}

km_tensor *km_mlp(km_ctx *ctx, km_tensor *x, km_tensor *w1, km_tensor *b1, km_act act,
                  km_tensor *w2, km_tensor *b2) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    if (km_want_input(ctx, "mlp", 0, x) != KM_OK || km_want_input(ctx, "mlp", 1, w1) != KM_OK ||
        km_want_input(ctx, "mlp", 4, w2) != KM_OK)
        return NULL;
    km_tensor *in[] = {x, w1, b1, w2, b2}, *out[KM_MAX_OUTPUTS] = {0};
    bool record = km_recording(ctx, in, 5);
    if (!record || x->shape.ndim < 1 || w1->shape.ndim != 2 || w2->shape.ndim != 2)
        return km_linear(ctx, km_linear(ctx, x, w1, b1, act), w2, b2, KM_ACT_NONE);
    km_shape shape = x->shape;
    int64_t rows = 1, inner = shape.dim[shape.ndim - 1];
    for (int i = 0; i < shape.ndim - 1; i++) rows *= shape.dim[i];
    shape.dim[shape.ndim - 1] = w2->shape.dim[0];
    in[X] = km_contiguous(ctx, km_reshape(ctx, x, KM_SHAPE(rows, inner)));
    in[W1] = km_contiguous(ctx, w1);
    in[W2] = km_contiguous(ctx, w2);
    if (!in[X] || !in[W1] || !in[W2]) return NULL;
    ctx->no_grad++; /* the parts; n[0] asks the first for what its activation was given */
    km_params p = {.act = act, .n = {[KM_N_BOTH] = act > KM_ACT_RELU}};
    km_tensor *lin[] = {in[X], in[W1], b1};
    km_apply(ctx, KM_OP_LINEAR, lin, b1 ? 3 : 2, &p, out);
    km_tensor *hidden = out[0], *pre = out[1] ? out[1] : out[0];
    km_tensor *end[] = {hidden, in[W2], b2};
    km_tensor *y = km_apply(ctx, KM_OP_LINEAR, end, b2 ? 3 : 2, NULL, NULL);
    ctx->no_grad--;
    if (!y) return NULL;
    km_record(ctx, KM_OP_MLP, in, 5, &p, (km_tensor *[]){y, pre, hidden}, 3, NULL);
    return km_failed(ctx) ? NULL : km_reshape(ctx, y, shape);
}
