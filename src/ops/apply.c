/* The door every op goes through: arguments are checked against the op's row here and nowhere
 * else, so that kernels and gradient rules can trust what they get. */
#include "ops/op.h"
#include "tensor/profile.h"

km_status km_want_input(km_ctx *ctx, const char *name, int i, const km_tensor *t) {
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!t) return km_fail(ctx, KM_ERR_NULL, "%s: argument %d is NULL", name, i + 1);
    if (t->ctx != ctx)
        return km_fail(ctx, KM_ERR_STATE, "%s: argument %d belongs to another context", name,
                       i + 1);
    if (!t->storage || !t->storage->data)
        return km_fail(ctx, KM_ERR_STATE,
                       "%s: argument %d was freed (released, or made in a scope that has ended)",
                       name, i + 1);
    return KM_OK;
}

static km_status check_inputs(km_ctx *ctx, const km_op_row *row, km_tensor *const *in, int n_in) {
    const km_tensor *first = NULL;
    if (n_in < row->min_in || (row->max_in >= 0 && n_in > row->max_in))
        return km_fail(ctx, KM_ERR_NULL, "%s: %d inputs given, %d needed", row->name, n_in,
                       row->min_in);
    for (int i = 0; i < n_in; i++) {
        if (!in[i] && i >= row->min_in && row->max_in >= 0) continue; /* an optional one */
        if (km_want_input(ctx, row->name, i, in[i]) != KM_OK) return ctx->error.code;
        if (first && km_tensor_dev(first) != km_tensor_dev(in[i]))
            return km_fail(ctx, KM_ERR_DEVICE,
                           "%s: operands are on %s and %s; bring them together with km_to",
                           row->name, km_tensor_dev(first)->name, km_tensor_dev(in[i])->name);
        if (!first) first = in[i];
    }
    if (n_in > 0 && row->min_in > 0) return km_want_dtype(ctx, row->name, NULL, in[0], row->dtypes);
    return KM_OK;
}

/* Elementwise ops: all inputs broadcast together. */
static km_status infer_broadcast(km_ctx *ctx, const km_op_row *row, km_tensor *const *in, int n_in,
                                 km_outputs *out) {
    km_shape s = in[0]->shape;
    for (int i = 1; i < n_in; i++) {
        if (!km_shape_broadcast(s, in[i]->shape, &s)) {
            char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
            return km_fail(ctx, KM_ERR_SHAPE, "%s: shapes do not broadcast: %s and %s", row->name,
                           km_shape_text(a, in[0]->shape), km_shape_text(b, in[i]->shape));
        }
    }
    out->n = 1;
    out->dtype[0] = in[0]->dtype;
    out->shape[0] = s;
    return KM_OK;
}

static km_tensor *make_output(km_ctx *ctx, km_lane *lane, const char *name, const km_outputs *o,
                              int i) {
    if (!o->heads_inside[i]) return km_tensor_new(ctx, lane, name, o->dtype[i], o->shape[i]);
    km_shape s = o->shape[i], inside = {4, {s.dim[0], s.dim[2], s.dim[1], s.dim[3]}};
    km_tensor *t = km_tensor_new(ctx, lane, name, o->dtype[i], inside);
    if (!t) return NULL;
    int64_t step = t->stride[1];
    t->stride[1] = t->stride[2];
    t->stride[2] = step;
    t->shape = s;
    return t;
}

km_tensor *km_apply_on(km_ctx *ctx, km_device *device, km_op op, km_tensor *const *in, int n_in,
                       const km_params *p, km_tensor **out) {
    static const km_params none;
    km_tensor *made[KM_MAX_OUTPUTS] = {0};
    const km_op_row *row = km_op_get(op);
    if (out)
        for (int i = 0; i < KM_MAX_OUTPUTS; i++) out[i] = NULL;
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    if (!p) p = &none;
    km_outputs o = {0};
    if (check_inputs(ctx, row, in, n_in) != KM_OK) return NULL;
    if (row->flags & KM_OP_ELEMENTWISE && infer_broadcast(ctx, row, in, n_in, &o) != KM_OK)
        return NULL;
    if (row->infer && row->infer(ctx, row->name, in, n_in, p, &o) != KM_OK) return NULL;
    km_lane *lane = n_in > 0 && in[0] ? in[0]->storage->lane : km_ctx_lane(ctx, device);
    if (!lane) return NULL;
    km_profile_op(ctx, row->name);
    int mark = ctx->n_step;
    for (int i = 0; i < o.n; i++) {
        made[i] = make_output(ctx, lane, row->name, &o, i);
        if (!made[i]) goto fail;
    }
    if (km_run(ctx, op, in, n_in, p, made, o.n) != KM_OK) goto fail;
    if (row->grad && km_recording(ctx, in, n_in)) km_record(ctx, op, in, n_in, p, made, o.n, NULL);
    if (km_failed(ctx)) goto fail;
    if (out)
        for (int i = 0; i < o.n; i++) out[i] = made[i];
    return made[0];
fail:
    km_step_drop(ctx, mark, NULL, 0);
    return NULL;
}

km_tensor *km_apply(km_ctx *ctx, km_op op, km_tensor *const *in, int n_in, const km_params *p,
                    km_tensor **out) {
    return km_apply_on(ctx, km_ctx_is(ctx) ? ctx->device : NULL, op, in, n_in, p, out);
}

km_status km_apply_into(km_ctx *ctx, km_op op, km_tensor *const *in, int n_in, const km_params *p,
                        km_tensor *out) {
    static const km_params none;
    const km_op_row *row = km_op_get(op);
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!out) return km_fail(ctx, KM_ERR_NULL, "%s: no output", row->name);
    if (check_inputs(ctx, row, in, n_in) != KM_OK) return ctx->error.code;
    if (km_want_input(ctx, row->name, n_in, out) != KM_OK) return ctx->error.code;
    out->storage->version++;
    km_profile_op(ctx, row->name);
    return km_run(ctx, op, in, n_in, p ? p : &none, &out, 1);
}

km_tensor *km_apply1(km_ctx *ctx, km_op op, km_tensor *a, const km_params *p) {
    return km_apply(ctx, op, &a, 1, p, NULL);
}

km_tensor *km_apply2(km_ctx *ctx, km_op op, km_tensor *a, km_tensor *b, const km_params *p) {
    km_tensor *in[] = {a, b};
    return km_apply(ctx, op, in, 2, p, NULL);
}

/* ---- Checks for shape rules ---- */

static void dtype_list(char *buf, size_t size, uint32_t dtypes) {
    size_t at = 0;
    buf[0] = 0;
    for (int d = 0; d < KM_DTYPE_COUNT && at + 8 < size; d++) {
        if (!((dtypes >> d) & 1u)) continue;
        for (const char *s = at ? ", " : ""; *s; s++) buf[at++] = *s;
        for (const char *s = km_dtype_name((km_dtype)d); *s; s++) buf[at++] = *s;
        buf[at] = 0;
    }
}

km_status km_want_dtype(km_ctx *ctx, const char *name, const char *arg, const km_tensor *t,
                        uint32_t dtypes) {
    if ((dtypes >> t->dtype) & 1u) return KM_OK;
    char list[80];
    dtype_list(list, sizeof list, dtypes);
    return km_fail(ctx, KM_ERR_DTYPE, "%s: %s%sdtype %s is not possible here; it takes %s", name,
                   arg ? arg : "", arg ? " of " : "", km_dtype_name(t->dtype), list);
}

km_status km_want_same_dtype(km_ctx *ctx, const char *name, const km_tensor *a,
                             const km_tensor *b) {
    if (a->dtype == b->dtype) return KM_OK;
    return km_fail(ctx, KM_ERR_DTYPE, "%s: dtypes differ: %s and %s; use km_cast", name,
                   km_dtype_name(a->dtype), km_dtype_name(b->dtype));
}

km_status km_want_shape(km_ctx *ctx, const char *name, const char *arg, const km_tensor *t,
                        km_shape shape) {
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
    if (km_shape_equal(t->shape, shape)) return KM_OK;
    return km_fail(ctx, KM_ERR_SHAPE, "%s: %s is %s, not %s", name, arg, km_shape_text(a, t->shape),
                   km_shape_text(b, shape));
}

km_status km_want_axis(km_ctx *ctx, const char *name, int axis, km_shape shape, int *out) {
    char text[KM_SHAPE_TEXT];
    int a = km_axis(axis, shape.ndim);
    if (a < 0)
        return km_fail(ctx, KM_ERR_RANGE, "%s: no axis %d in %s", name, axis,
                       km_shape_text(text, shape));
    *out = a;
    return KM_OK;
}

/* Whether all of a contiguous index lies in [0, limit): without branches, so that it costs no more
 * than reading it. */
static bool all_below(const km_tensor *index, int64_t limit) {
    int64_t n = km_shape_count(index->shape);
    bool bad = limit <= 0 && n > 0;
    if (index->dtype == KM_I32) {
        const int32_t *v = km_tensor_ptr(index);
        uint32_t most = limit > INT32_MAX ? INT32_MAX : (uint32_t)(limit - 1);
        for (int64_t i = 0; i < n; i++) bad |= (uint32_t)v[i] > most;
    } else {
        const int64_t *v = km_tensor_ptr(index);
        for (int64_t i = 0; i < n; i++) bad |= (uint64_t)v[i] >= (uint64_t)limit;
    }
    return !bad;
}

km_status km_want_indices(km_ctx *ctx, const char *name, const km_tensor *index, int64_t limit,
                          int64_t allowed, bool has_allowed) {
    if (km_want_dtype(ctx, name, "index", index, KM_INDICES) != KM_OK) return ctx->error.code;
    if (!km_tensor_dev(index)->host) return KM_OK;
    if (km_is_contiguous(index) && all_below(index, limit)) return KM_OK;
    int64_t n = km_shape_count(index->shape), at[KM_MAX_DIMS] = {0};
    const char *base = km_tensor_ptr(index);
    int64_t where = 0;
    int last = index->shape.ndim - 1;
    for (int64_t i = 0; i < n; i++) {
        int64_t v = index->dtype == KM_I32 ? ((const int32_t *)base)[where]
                                           : ((const int64_t *)base)[where];
        if ((v < 0 || v >= limit) && !(has_allowed && v == allowed))
            return km_fail(ctx, KM_ERR_RANGE, "%s: index %lld at position %lld is not in [0, %lld)",
                           name, (long long)v, (long long)i, (long long)limit);
        for (int d = last; d >= 0; d--) { /* the next element, through the strides */
            where += index->stride[d];
            if (++at[d] < index->shape.dim[d]) break;
            where -= index->stride[d] * at[d];
            at[d] = 0;
        }
    }
    return KM_OK;
}
