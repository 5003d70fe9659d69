/* Order along an axis: sort and top-k (one op), running sums, one-hot rows, and repetition, which is
 * views of other ops alone. */
#include "ops/families.h"

static km_status infer_sort(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                            const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    km_shape s = in[0]->shape;
    if (p->n[KM_N_TOP_K] < 0 || p->n[KM_N_TOP_K] > s.dim[p->axis])
        return km_fail(ctx, KM_ERR_RANGE, "%s: %lld of %s along axis %d", name,
                       (long long)p->n[KM_N_TOP_K], km_shape_text(text, s), p->axis);
    s.dim[p->axis] = p->n[KM_N_TOP_K];
    *out = (km_outputs){.n = 2, .dtype = {in[0]->dtype, KM_I64}, .shape = {s, s}};
    return KM_OK;
}

static km_status infer_cumsum(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    *out = (km_outputs){.n = 1, .dtype = {in[0]->dtype}, .shape = {in[0]->shape}};
    return KM_OK;
}

static km_status infer_one_hot(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                               const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    km_shape s = in[0]->shape;
    if (s.ndim == KM_MAX_DIMS)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: ids %s leave no axis for the classes", name,
                       km_shape_text(text, s));
    if (p->n[KM_N_CLASSES] < 0)
        return km_fail(ctx, KM_ERR_RANGE, "%s: %lld classes", name, (long long)p->n[KM_N_CLASSES]);
    if (km_want_indices(ctx, name, in[0], p->n[KM_N_CLASSES], 0, false) != KM_OK)
        return ctx->error.code;
    s.dim[s.ndim++] = p->n[KM_N_CLASSES];
    *out = (km_outputs){.n = 1, .dtype = {p->dtype}, .shape = {s}};
    return KM_OK;
}

/* What was moved to the front gets its gradient back where it came from. */
static void grad_sort(km_ctx *ctx, km_node *n) {
    km_tensor *x = n->in[0];
    if (!n->grad[0]) return;
    km_tensor *zero = km_fill_on(ctx, km_tensor_dev(x), x->dtype, x->shape, 0);
    km_grad_add(ctx, x, km_scatter_add(ctx, zero, n->p.axis, n->out[1], n->grad[0]));
}

/* An element is part of all sums from its own on. */
static void grad_cumsum(km_ctx *ctx, km_node *n) {
    km_params p = {.axis = n->p.axis, .n = {[KM_N_FROM_END] = !n->p.n[KM_N_FROM_END]}};
    km_grad_add(ctx, n->in[0], km_apply1(ctx, KM_OP_CUMSUM, n->grad[0], &p));
}

void km_rows_order(km_op_row *t) {
    t[KM_OP_SORT] = (km_op_row){.formula = "the first k of x in order, and where they were",
                                .min_in = 1,
                                .max_in = 1,
                                .dtypes = KM_ANY,
                                .infer = infer_sort,
                                .grad = grad_sort,
                                .save_out = 2};
    t[KM_OP_CUMSUM] = (km_op_row){.formula = "y[i] = x[0] + ... + x[i]",
                                  .min_in = 1,
                                  .max_in = 1,
                                  .dtypes = KM_NUMBERS,
                                  .infer = infer_cumsum,
                                  .grad = grad_cumsum,
                                  .tol = KM_TOL_SUM};
    t[KM_OP_ONE_HOT] = (km_op_row){.formula = "y[i][j] = ids[i] == j",
                                   .min_in = 1,
                                   .max_in = 1,
                                   .dtypes = KM_BIT(KM_I32) | KM_BIT(KM_I64),
                                   .infer = infer_one_hot};
}

/* ---- Public ---- */

static km_tensor *sorted(km_ctx *ctx, const char *name, km_tensor *x, int64_t k, int axis,
                         bool descending, km_tensor **index) {
    km_tensor *out[KM_MAX_OUTPUTS] = {0};
    km_params p = {.n = {[KM_N_TOP_K] = k, [KM_N_FALLING] = descending}};
    if (index) *index = NULL;
    KM_CTX_CALL(ctx, NULL);
    if (km_want_input(ctx, name, 0, x) != KM_OK ||
        km_want_axis(ctx, name, axis, x->shape, &p.axis) != KM_OK)
        return NULL;
    if (k == KM_END) p.n[KM_N_TOP_K] = x->shape.dim[p.axis];
    km_tensor *values = km_apply(ctx, KM_OP_SORT, &x, 1, &p, out);
    if (index && values) *index = out[1];
    return values;
}

km_tensor *km_sort(km_ctx *ctx, km_tensor *x, int axis, bool descending, km_tensor **index) {
    return sorted(ctx, "sort", x, KM_END, axis, descending, index);
}

km_tensor *km_topk(km_ctx *ctx, km_tensor *x, int64_t k, int axis, bool largest,
                   km_tensor **index) {
    if (k == KM_END) k = -1; /* no word for "all" here: out of range like other negative ones */
    return sorted(ctx, "topk", x, k, axis, largest, index);
}

km_tensor *km_cumsum(km_ctx *ctx, km_tensor *x, int axis) {
    KM_CTX_CALL(ctx, NULL);
    km_params p = {0};
    if (km_want_input(ctx, "cumsum", 0, x) != KM_OK ||
        km_want_axis(ctx, "cumsum", axis, x->shape, &p.axis) != KM_OK)
        return NULL;
    return km_apply1(ctx, KM_OP_CUMSUM, x, &p);
}

km_tensor *km_one_hot(km_ctx *ctx, km_tensor *ids, int64_t classes, km_dtype dtype) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    if ((unsigned)dtype >= KM_PLAIN_COUNT) {
        km_fail(ctx, KM_ERR_DTYPE, "one_hot: no rows of %s",
                (unsigned)dtype < KM_DTYPE_COUNT ? km_dtype_name(dtype) : "an unknown dtype");
        return NULL;
    }
    return km_apply1(ctx, KM_OP_ONE_HOT, ids,
                     &(km_params){.n = {[KM_N_CLASSES] = classes}, .dtype = dtype});
}

/* As (outer, n, inner), with an axis of `times` before or behind n that strides of 0 make. */
static km_tensor *repeated(km_ctx *ctx, const char *name, km_tensor *x, int axis, int64_t times,
                           bool each) {
    int a;
    char text[KM_SHAPE_TEXT];
    KM_CTX_CALL(ctx, NULL);
    if (km_want_input(ctx, name, 0, x) != KM_OK ||
        km_want_axis(ctx, name, axis, x->shape, &a) != KM_OK)
        return NULL;
    km_shape to = x->shape;
    if (times < 0 || __builtin_mul_overflow(to.dim[a], times, &to.dim[a])) {
        km_fail(ctx, KM_ERR_RANGE, "%s: %s cannot be repeated %lld times", name,
                km_shape_text(text, x->shape), (long long)times);
        return NULL;
    }
    if (km_shape_check(ctx, name, x->dtype, to) != KM_OK) return NULL;
    int64_t outer = 1, n = x->shape.dim[a], inner = 1;
    for (int i = 0; i < a; i++) outer *= x->shape.dim[i];
    for (int i = a + 1; i < x->shape.ndim; i++) inner *= x->shape.dim[i];
    km_shape one = each ? KM_SHAPE(outer, n, 1, inner) : KM_SHAPE(outer, 1, n, inner);
    km_shape many = each ? KM_SHAPE(outer, n, times, inner) : KM_SHAPE(outer, times, n, inner);
    return km_reshape(ctx, km_broadcast(ctx, km_reshape(ctx, x, one), many), to);
}

km_tensor *km_repeat(km_ctx *ctx, km_tensor *x, int axis, int64_t times) {
    return repeated(ctx, "repeat", x, axis, times, false);
}

km_tensor *km_repeat_each(km_ctx *ctx, km_tensor *x, int axis, int64_t times) {
    return repeated(ctx, "repeat_each", x, axis, times, true);
}
