/* Reference softmax and log-softmax along one axis, and their gradients. A line is the elements
 * that differ in that axis only: softmax looks at one line at a time. */
#include "backend/ref/ref.h"

/* The shape without the axis: its indices are the starts of the lines. */
static km_shape lines_of(km_shape s, int axis) {
    s.dim[axis] = 1;
    return s;
}

/* x -> out: exp(x - max) / sum, or x - max - log(sum), sum = sum exp(x - max).
 * A line of only -inf gives NaN: -inf - -inf. */
km_status km_ref_softmax(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    int axis = c->p->axis;
    int64_t n = x->shape.dim[axis], xs = x->stride[axis], os = out->stride[axis];
    if (n == 0) return KM_OK;
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, lines_of(x->shape, axis)) {
        int64_t x_pos = km_ref_pos(x, i), o_pos = km_ref_pos(out, i);
        double max = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++) max = km_ref_max(max, km_ref_load(x, x_pos + j * xs));
        for (int64_t j = 0; j < n; j++) sum += exp(km_ref_load(x, x_pos + j * xs) - max);
        for (int64_t j = 0; j < n; j++) {
            double v = km_ref_load(x, x_pos + j * xs) - max;
            km_ref_store(out, o_pos + j * os, c->op == KM_OP_SOFTMAX ? exp(v) / sum : v - log(sum));
        }
    }
    return KM_OK;
}

/* dy, y -> dx: y (dy - sum(dy y)) for softmax, dy - exp(y) sum(dy) for log-softmax */
km_status km_ref_softmax_grad(km_ctx *ctx, const km_call *c) {
    const km_tensor *dy = c->in[0], *y = c->in[1], *dx = c->out[0];
    bool is_log = c->op == KM_OP_LOG_SOFTMAX_GRAD;
    int axis = c->p->axis;
    int64_t n = y->shape.dim[axis];
    if (n == 0) return KM_OK;
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, lines_of(y->shape, axis)) {
        int64_t dy_pos = km_ref_pos(dy, i), y_pos = km_ref_pos(y, i), dx_pos = km_ref_pos(dx, i);
        double sum = 0;
        for (int64_t j = 0; j < n; j++) {
            double g = km_ref_load(dy, dy_pos + j * dy->stride[axis]);
            sum += is_log ? g : g * km_ref_load(y, y_pos + j * y->stride[axis]);
        }
        for (int64_t j = 0; j < n; j++) {
            double g = km_ref_load(dy, dy_pos + j * dy->stride[axis]);
            double v = km_ref_load(y, y_pos + j * y->stride[axis]);
            km_ref_store(dx, dx_pos + j * dx->stride[axis],
                         is_log ? g - exp(v) * sum : v * (g - sum));
        }
    }
    return KM_OK;
}
