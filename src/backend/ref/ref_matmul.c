/* Reference products: the textbook sum, one output element at a time. */
#include "backend/ref/ref.h"

/* a (batch..., m, k), b (batch..., k, n) -> out (batch..., m, n) = alpha a b + beta out */
km_status km_ref_matmul(km_ctx *ctx, const km_call *c) {
    const km_tensor *a = c->in[0], *b = c->in[1], *out = c->out[0];
    int row = out->shape.ndim - 2, col = out->shape.ndim - 1;
    int64_t k = a->shape.dim[col];
    double alpha = c->p->f[KM_F_ALPHA], beta = c->p->f[KM_F_BETA];
    int64_t i[KM_MAX_DIMS]; /* of out: batch..., m, n */
    KM_REF_EACH(i, out->shape) {
        int64_t a_pos = km_ref_pos(a, i) - i[col] * a->stride[col]; /* batch..., m, 0 */
        int64_t b_pos = km_ref_pos(b, i) - i[row] * b->stride[row]; /* batch..., 0, n */
        double sum = 0;
        for (int64_t j = 0; j < k; j++)
            sum += km_ref_load(a, a_pos + j * a->stride[col]) *
                   km_ref_load(b, b_pos + j * b->stride[row]);
        sum *= alpha;
        if (beta != 0) sum += beta * km_ref_get(out, i);
        km_ref_set(out, i, sum);
    }
    return KM_OK;
}

/* x (rows, in), w (out, in), b? (out) -> y (rows, out) = act(x w^T + b), pre? (rows, out) */
km_status km_ref_linear(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *w = c->in[1], *b = km_ref_in(c, 2);
    const km_tensor *y = c->out[0], *pre = km_ref_out(c, 1);
    int64_t n_in = km_ref_width(x), n_out = km_ref_width(y), rows = km_ref_rows(y);
    for (int64_t r = 0; r < rows; r++) {
        int64_t x_row = km_ref_row(x, r), y_row = km_ref_row(y, r);
        for (int64_t o = 0; o < n_out; o++) {
            int64_t w_row = km_ref_row(w, o);
            double sum = 0;
            for (int64_t j = 0; j < n_in; j++)
                sum += km_ref_load(x, x_row + j * km_ref_step(x)) *
                       km_ref_load(w, w_row + j * km_ref_step(w));
            if (b) sum += km_ref_load(b, km_ref_nth(b, o));
            if (pre) km_ref_store(pre, km_ref_row(pre, r) + o * km_ref_step(pre), sum);
            km_ref_store(y, y_row + o * km_ref_step(y), km_ref_activation(c->p->act, sum));
        }
    }
    return KM_OK;
}
