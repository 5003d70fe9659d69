/* Views: another shape, stride and offset over the same data. Their gradients are views as well,
 * except a slice's, which is added into its part of the whole tensor's gradient. */
#include "ops/families.h"
#include "ops/op.h"

static bool usable(km_ctx *ctx, const char *name, const km_tensor *t) {
    return km_want_input(ctx, name, 0, t) == KM_OK;
}

/* Makes the view and records it. */
static km_tensor *view(km_ctx *ctx, km_op op, km_tensor *t, km_shape shape, const int64_t *stride,
                       int64_t offset, const km_params *p) {
    if (km_dtype_is_block(t->dtype) && shape.ndim > 0 &&
        (stride[shape.ndim - 1] != 1 || shape.dim[shape.ndim - 1] % km_dtype_block(t->dtype) ||
         offset % km_dtype_block(t->dtype))) {
        km_fail(ctx, KM_ERR_DTYPE, "%s: rows of %s cannot be taken apart", km_op_name(op),
                km_dtype_name(t->dtype));
        return NULL;
    }
    km_tensor *v = km_tensor_view(ctx, t, shape, stride, offset);
    if (v && km_recording(ctx, &t, 1)) km_record(ctx, op, &t, 1, p, &v, 1, NULL);
    return km_failed(ctx) ? NULL : v;
}

/* ---- Gradients ---- */

static void grad_slice(km_ctx *ctx, km_node *n) {
    if (!km_needs(n, 0)) return;
    km_tensor *whole = km_grad_buffer(ctx, n->in[0]);
    if (!whole) return;
    const km_params *p = &n->p; /* axis, n: start, step */
    int64_t stride[KM_MAX_DIMS], start = p->n[KM_N_SLICE_START], step = p->n[KM_N_SLICE_STEP];
    km_tensor *dy = n->grad[0];
    if (step < 0) { /* what is written to lies forwards */
        start += step * (n->out[0]->shape.dim[p->axis] - 1);
        step = -step;
        dy = km_slice(ctx, dy, p->axis, -1, KM_END, -1);
    }
    for (int i = 0; i < whole->shape.ndim; i++) stride[i] = whole->stride[i];
    int64_t offset = whole->offset + start * stride[p->axis];
    stride[p->axis] *= step;
    km_tensor *part = km_tensor_view(ctx, whole, n->out[0]->shape, stride, offset);
    if (!part || !dy) return;
    km_tensor *in[] = {part, dy};
    km_apply_into(ctx, KM_OP_ADD, in, 2, NULL, part);
}

static void grad_permute(km_ctx *ctx, km_node *n) {
    int back[KM_MAX_DIMS];
    for (int i = 0; i < n->in[0]->shape.ndim; i++) back[n->p.shape.dim[i]] = i;
    km_grad_add(ctx, n->in[0], km_permute(ctx, n->grad[0], back));
}

static void grad_reshape(km_ctx *ctx, km_node *n) {
    km_grad_add(ctx, n->in[0], km_reshape(ctx, n->grad[0], n->in[0]->shape));
}

static void grad_broadcast(km_ctx *ctx, km_node *n) { /* km_grad_add sums it down */
    km_grad_add(ctx, n->in[0], n->grad[0]);
}

void km_rows_views(km_op_row *t) {
    km_op_row row = {.min_in = 1, .max_in = 1, .dtypes = KM_ANY, .flags = KM_OP_VIEW};
    t[KM_OP_SLICE] = t[KM_OP_PERMUTE] = t[KM_OP_RESHAPE] = t[KM_OP_BROADCAST] = row;
    t[KM_OP_SLICE].grad = grad_slice;
    t[KM_OP_SLICE].formula = "x[start:stop:step] along an axis";
    t[KM_OP_PERMUTE].grad = grad_permute;
    t[KM_OP_PERMUTE].formula = "axes in another order";
    t[KM_OP_RESHAPE].grad = grad_reshape;
    t[KM_OP_RESHAPE].formula = "the same elements in another shape";
    t[KM_OP_BROADCAST].grad = grad_broadcast;
    t[KM_OP_BROADCAST].formula = "axes of size 1 repeated";
}

/* ---- Public ---- */

km_tensor *km_slice(km_ctx *ctx, km_tensor *t, int axis, int64_t start, int64_t stop,
                    int64_t step) {
    KM_CTX_CALL(ctx, NULL);
    km_params p = {0};
    if (!usable(ctx, "slice", t)) return NULL;
    if (km_want_axis(ctx, "slice", axis, t->shape, &p.axis) != KM_OK) return NULL;
    int64_t size = t->shape.dim[p.axis];
    int64_t from = start < 0 ? start + size : start, to = stop < 0 ? stop + size : stop;
    bool back = step < 0; /* then `to` may be the place before the first, -1 */
    if (stop == KM_END) to = back ? -1 : size;
    bool fits = back ? from < size && to >= -1 && to <= from
                     : step > 0 && from >= 0 && from <= size && to >= from && to <= size;
    if (!fits) {
        km_fail(ctx, KM_ERR_RANGE, "slice: %lld:%lld:%lld does not lie in axis %d of size %lld",
                (long long)start, (long long)stop, (long long)step, p.axis, (long long)size);
        return NULL;
    }
    km_shape s = t->shape;
    /* In unsigned numbers: a step of INT64_MIN has no other sign. */
    uint64_t span = back ? (uint64_t)(from - to) : (uint64_t)(to - from);
    uint64_t each = back ? 0 - (uint64_t)step : (uint64_t)step;
    s.dim[p.axis] = (int64_t)(span / each + (span % each != 0));
    if (s.dim[p.axis] == 0) from = 0;
    int64_t stride[KM_MAX_DIMS];
    for (int i = 0; i < s.ndim; i++) stride[i] = t->stride[i];
    int64_t offset = t->offset + from * stride[p.axis];
    /* One element needs no stride, and a huge step must not overflow it. */
    if (s.dim[p.axis] > 1) stride[p.axis] *= step;
    p.n[KM_N_SLICE_START] = from;
    p.n[KM_N_SLICE_STEP] = s.dim[p.axis] > 1 ? step : 1; /* < 0 only where it matters */
    return view(ctx, KM_OP_SLICE, t, s, stride, offset, &p);
}

km_tensor *km_narrow(km_ctx *ctx, km_tensor *t, int axis, int64_t start, int64_t count) {
    KM_CTX_CALL(ctx, NULL);
    if (!usable(ctx, "narrow", t)) return NULL;
    int a;
    if (km_want_axis(ctx, "narrow", axis, t->shape, &a) != KM_OK) return NULL;
    int64_t size = t->shape.dim[a];
    if (start < 0 || count < 0 || start > size || count > size - start) {
        km_fail(ctx, KM_ERR_RANGE,
                "narrow: %lld elements from %lld do not lie in axis %d of size %lld",
                (long long)count, (long long)start, a, (long long)size);
        return NULL;
    }
    return km_slice(ctx, t, a, start, start + count, 1);
}

km_tensor *km_select(km_ctx *ctx, km_tensor *t, int axis, int64_t index) {
    KM_CTX_CALL(ctx, NULL);
    if (!usable(ctx, "select", t)) return NULL;
    int a;
    if (km_want_axis(ctx, "select", axis, t->shape, &a) != KM_OK) return NULL;
    int64_t size = t->shape.dim[a], at = index < 0 ? index + size : index;
    if (at < 0 || at >= size) {
        km_fail(ctx, KM_ERR_RANGE, "select: no index %lld in axis %d of size %lld",
                (long long)index, a, (long long)size);
        return NULL;
    }
    return km_squeeze(ctx, km_slice(ctx, t, a, at, at + 1, 1), a);
}

km_tensor *km_permute(km_ctx *ctx, km_tensor *t, const int *axes) {
    KM_CTX_CALL(ctx, NULL);
    if (!usable(ctx, "permute", t)) return NULL;
    km_params p = {.shape = {t->shape.ndim, {0}}}; /* which axis each new one was */
    km_shape s = t->shape;
    int64_t stride[KM_MAX_DIMS];
    uint32_t seen = 0;
    for (int i = 0; i < s.ndim; i++) {
        int a = axes ? km_axis(axes[i], s.ndim) : -1;
        if (a < 0 || (seen >> a) & 1u) {
            char text[KM_SHAPE_TEXT];
            km_fail(ctx, KM_ERR_RANGE, "permute: the axes are no permutation of those of %s",
                    km_shape_text(text, t->shape));
            return NULL;
        }
        seen |= 1u << a;
        s.dim[i] = t->shape.dim[a];
        stride[i] = t->stride[a];
        p.shape.dim[i] = a;
    }
    return view(ctx, KM_OP_PERMUTE, t, s, stride, t->offset, &p);
}

km_tensor *km_transpose(km_ctx *ctx, km_tensor *t, int axis0, int axis1) {
    KM_CTX_CALL(ctx, NULL);
    int axes[KM_MAX_DIMS] = {0, 1, 2, 3, 4}, a, b;
    if (!usable(ctx, "transpose", t)) return NULL;
    if (km_want_axis(ctx, "transpose", axis0, t->shape, &a) != KM_OK) return NULL;
    if (km_want_axis(ctx, "transpose", axis1, t->shape, &b) != KM_OK) return NULL;
    axes[a] = b;
    axes[b] = a;
    return km_permute(ctx, t, axes);
}

/* Strides for the new shape over the old data, when there are any: axes of the old shape that lie
 * one behind the other are merged first, and each new run of axes must split one merged axis. */
static bool reshape_strides(const km_tensor *t, km_shape to, int64_t stride[KM_MAX_DIMS]) {
    int64_t dim[KM_MAX_DIMS], step[KM_MAX_DIMS];
    int n = 0;
    for (int i = 0; i < t->shape.ndim; i++) {
        if (t->shape.dim[i] == 1) continue;
        if (n && step[n - 1] == t->stride[i] * t->shape.dim[i]) {
            dim[n - 1] *= t->shape.dim[i];
            step[n - 1] = t->stride[i];
        } else {
            dim[n] = t->shape.dim[i];
            step[n++] = t->stride[i];
        }
    }
    int at = n - 1;
    int64_t left = at >= 0 ? dim[at] : 1, s = at >= 0 ? step[at] : 1;
    for (int i = to.ndim; i-- > 0;) {
        stride[i] = s;
        if (to.dim[i] == 1) continue;
        if (left == 1 && at > 0) {
            left = dim[--at];
            s = stride[i] = step[at];
        }
        if (left % to.dim[i]) return false;
        left /= to.dim[i];
        s *= to.dim[i];
    }
    return left == 1 && at <= 0;
}

km_tensor *km_reshape(km_ctx *ctx, km_tensor *t, km_shape shape) {
    KM_CTX_CALL(ctx, NULL);
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
    if (!usable(ctx, "reshape", t)) return NULL;
    int64_t count = km_shape_count(t->shape), known = 1;
    int open = -1;
    bool bad = shape.ndim < 0 || shape.ndim > KM_MAX_DIMS;
    for (int i = 0; !bad && i < shape.ndim; i++) {
        if (shape.dim[i] == -1 && open < 0)
            open = i;
        else
            bad = shape.dim[i] < 0 || __builtin_mul_overflow(known, shape.dim[i], &known);
    }
    km_shape asked = shape;
    if (!bad && open >= 0) {
        bad = known == 0 || count % known;
        if (!bad) shape.dim[open] = count / known;
    } else if (!bad) {
        bad = known != count;
    }
    if (bad) {
        km_fail(ctx, KM_ERR_SHAPE, "reshape: %s has %lld elements and cannot become %s",
                km_shape_text(a, t->shape), (long long)count, km_shape_text(b, asked));
        return NULL;
    }
    if (km_shape_check(ctx, "reshape", t->dtype, shape) != KM_OK) return NULL;
    if (km_shape_equal(shape, t->shape)) return t;
    int64_t stride[KM_MAX_DIMS];
    if (count == 0 || km_is_contiguous(t))
        km_shape_strides(shape, stride);
    else if (!reshape_strides(t, shape, stride)) {
        t = km_copy(ctx, t);
        if (!t) return NULL;
        km_shape_strides(shape, stride);
    }
    return view(ctx, KM_OP_RESHAPE, t, shape, stride, t->offset, &(km_params){0});
}

km_tensor *km_unsqueeze(km_ctx *ctx, km_tensor *t, int axis) {
    KM_CTX_CALL(ctx, NULL);
    if (!usable(ctx, "unsqueeze", t)) return NULL;
    km_shape s = t->shape;
    int a = km_axis(axis, s.ndim + 1);
    if (a < 0 || s.ndim == KM_MAX_DIMS) {
        char text[KM_SHAPE_TEXT];
        km_fail(ctx, KM_ERR_RANGE, "unsqueeze: no place for an axis at %d in %s", axis,
                km_shape_text(text, s));
        return NULL;
    }
    int64_t stride[KM_MAX_DIMS];
    for (int i = 0; i < s.ndim; i++) stride[i < a ? i : i + 1] = t->stride[i];
    for (int i = s.ndim; i > a; i--) s.dim[i] = s.dim[i - 1];
    s.dim[a] = 1;
    s.ndim++;
    stride[a] = a + 1 < s.ndim ? s.dim[a + 1] * stride[a + 1] : 1;
    return view(ctx, KM_OP_RESHAPE, t, s, stride, t->offset, &(km_params){0});
}

km_tensor *km_squeeze(km_ctx *ctx, km_tensor *t, int axis) {
    KM_CTX_CALL(ctx, NULL);
    if (!usable(ctx, "squeeze", t)) return NULL;
    km_shape s = t->shape;
    int a;
    if (km_want_axis(ctx, "squeeze", axis, s, &a) != KM_OK) return NULL;
    if (s.dim[a] != 1) {
        char text[KM_SHAPE_TEXT];
        km_fail(ctx, KM_ERR_SHAPE, "squeeze: axis %d of %s is not of size 1", a,
                km_shape_text(text, s));
        return NULL;
    }
    int64_t stride[KM_MAX_DIMS];
    s.ndim = 0;
    for (int i = 0; i < t->shape.ndim; i++) {
        if (i == a) continue;
        s.dim[s.ndim] = t->shape.dim[i];
        stride[s.ndim++] = t->stride[i];
    }
    return view(ctx, KM_OP_RESHAPE, t, s, stride, t->offset, &(km_params){0});
}

km_tensor *km_broadcast(km_ctx *ctx, km_tensor *t, km_shape shape) {
    KM_CTX_CALL(ctx, NULL);
    int64_t stride[KM_MAX_DIMS];
    if (!usable(ctx, "broadcast", t)) return NULL;
    if (km_shape_check(ctx, "broadcast", t->dtype, shape) != KM_OK) return NULL;
    if (!km_broadcast_strides(t, shape, stride)) {
        char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
        km_fail(ctx, KM_ERR_SHAPE, "broadcast: %s does not become %s", km_shape_text(a, t->shape),
                km_shape_text(b, shape));
        return NULL;
    }
    if (km_shape_equal(shape, t->shape)) return t;
    return view(ctx, KM_OP_BROADCAST, t, shape, stride, t->offset, &(km_params){0});
}

km_status km_split(km_ctx *ctx, km_tensor *t, int axis, int n, km_tensor **parts) {
    if (parts)
        for (int i = 0; i < n; i++) parts[i] = NULL;
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (!usable(ctx, "split", t)) return km_ctx_status(ctx);
    int a;
    if (km_want_axis(ctx, "split", axis, t->shape, &a) != KM_OK) return ctx->error.code;
    int64_t size = t->shape.dim[a];
    if (!parts) return km_fail(ctx, KM_ERR_NULL, "split: no place for the parts");
    if (n < 1 || size % n)
        return km_fail(ctx, KM_ERR_RANGE, "split: axis %d of size %lld does not cut into %d parts",
                       a, (long long)size, n);
    for (int i = 0; i < n; i++) parts[i] = km_narrow(ctx, t, a, i * (size / n), size / n);
    return km_ctx_status(ctx);
}

km_tensor *km_detach(km_ctx *ctx, km_tensor *t) {
    KM_CTX_CALL(ctx, NULL);
    if (!usable(ctx, "detach", t)) return NULL;
    return km_tensor_view(ctx, t, t->shape, t->stride, t->offset);
}
