/* Ops composed of others, with a gradient rule of their own because that saves memory or copies:
 * attention over packed heads, whose three gradients are parts of one tensor, and the last layer of
 * a language model with its loss, which never holds all logits at once. */
#include "ops/families.h"
#include "ops/op.h"
#include <math.h>

/* ---- Attention over q, k and v side by side ---- */

/* One of the three in t (B, T, (H + 2 Hkv) D) as (B, heads, T, D); `first` counts heads. */
static km_tensor *heads_of(km_ctx *ctx, const km_tensor *t, int64_t first, int64_t heads,
                           int64_t d) {
    int64_t batch = t->shape.dim[0], len = t->shape.dim[1], wide = t->shape.dim[2];
    int64_t stride[KM_MAX_DIMS] = {len * wide, d, wide, 1};
    return km_tensor_view(ctx, t, KM_SHAPE(batch, heads, len, d), stride, t->offset + first * d);
}

/* p: n[0] heads, n[1] heads of k and v, n[2] their size. */
static void parts_of(km_ctx *ctx, const km_tensor *t, const km_params *p, km_tensor *part[3]) {
    part[0] = heads_of(ctx, t, 0, p->n[KM_N_HEADS], p->n[KM_N_HEAD_DIM]);
    part[1] = heads_of(ctx, t, p->n[KM_N_HEADS], p->n[KM_N_KV_HEADS], p->n[KM_N_HEAD_DIM]);
    part[2] = heads_of(ctx, t, p->n[KM_N_HEADS] + p->n[KM_N_KV_HEADS], p->n[KM_N_KV_HEADS],
                       p->n[KM_N_HEAD_DIM]);
}

static void grad_attention_qkv(km_ctx *ctx, km_node *n) {
    km_tensor *qkv = n->in[0], *part[3], *d[3];
    km_tensor *dy = km_to_contiguous(ctx, n->grad[0]);
    km_tensor *whole =
        km_tensor_new(ctx, qkv->storage->lane, "attention_qkv", qkv->dtype, qkv->shape);
    if (!dy || !whole) return;
    parts_of(ctx, qkv, &n->p, part);
    parts_of(ctx, whole, &n->p, d);
    km_tensor *back = heads_of(ctx, dy, 0, n->p.n[KM_N_HEADS], n->p.n[KM_N_HEAD_DIM]);
    km_tensor *o = heads_of(ctx, n->out[0], 0, n->p.n[KM_N_HEADS], n->p.n[KM_N_HEAD_DIM]);
    if (km_failed(ctx)) return;
    km_tensor *in[] = {back, part[0], part[1], part[2], o, n->out[1]};
    if (km_run(ctx, KM_OP_ATTENTION_GRAD, in, 6, &n->p, d, 3) == KM_OK)
        km_grad_add(ctx, qkv, whole);
}

km_tensor *km_attention_qkv(km_ctx *ctx, km_tensor *qkv, int heads, int kv_heads, bool causal,
                            double scale) {
    KM_CTX_CALL(ctx, NULL);
    static const char name[] = "attention_qkv";
    char text[KM_SHAPE_TEXT];
    if (km_want_input(ctx, name, 0, qkv) != KM_OK) return NULL;
    if (km_want_dtype(ctx, name, NULL, qkv, KM_FLOATS) != KM_OK) return NULL;
    int64_t all = (int64_t)heads + 2 * (int64_t)kv_heads;
    if (qkv->shape.ndim != 3 || heads < 1 || kv_heads < 1 || heads % kv_heads ||
        qkv->shape.dim[2] % all) {
        km_fail(ctx, KM_ERR_SHAPE, "%s: %s is not [B, T, (H + 2 Hkv) D] for %d and %d heads", name,
                km_shape_text(text, qkv->shape), heads, kv_heads);
        return NULL;
    }
    int64_t d = qkv->shape.dim[2] / all;
    km_params p = {.causal = causal,
                   .n = {[KM_N_HEADS] = heads, [KM_N_KV_HEADS] = kv_heads, [KM_N_HEAD_DIM] = d},
                   .f = {[KM_F_SCALE] = scale != 0 ? scale : 1 / sqrt(d > 0 ? (double)d : 1)}};
    qkv = km_contiguous(ctx, qkv);
    if (!qkv) return NULL;
    km_tensor *part[3], *out[KM_MAX_OUTPUTS];
    parts_of(ctx, qkv, &p, part);
    if (km_failed(ctx)) return NULL;
    /* The parts are off the tape, and o comes with its heads side by side as q has them. */
    if (!km_apply(ctx, KM_OP_ATTENTION, part, 3, &p, out)) return NULL;
    km_shape joined = KM_SHAPE(qkv->shape.dim[0], qkv->shape.dim[1], heads * d);
    int64_t stride[KM_MAX_DIMS];
    km_shape_strides(joined, stride);
    km_tensor *made[2] = {NULL, out[1]};
    if (out[0]->stride[1] < out[0]->stride[2] || heads == 1 || joined.dim[1] <= 1)
        made[0] = km_tensor_view(ctx, out[0], joined, stride, out[0]->offset);
    else
        made[0] = km_reshape(ctx, km_transpose(ctx, out[0], 1, 2), joined);
    if (made[0] && km_recording(ctx, &qkv, 1))
        km_record(ctx, KM_OP_ATTENTION_QKV, &qkv, 1, &p, made, 2, NULL);
    return km_failed(ctx) ? NULL : made[0];
}

/* ---- The last layer and its loss ---- */

#define CHUNK_BYTES ((int64_t)1 << 30) /* of logits at a time on a GPU */
#define HOST_CHUNK_BYTES ((int64_t)64 << 20)

typedef struct head_call {
    km_tensor *x, *w, *targets, *bias; /* bias: 0 for a class, -inf for padding; NULL without it */
    km_tensor *total, *dx, *dw;        /* the gradients: NULL where none is wanted */
    double alpha;                      /* factor of the gradients */
    int64_t ignore;
} head_call;

static km_tensor *rows_of(km_ctx *ctx, const km_tensor *t, int64_t first, int64_t count) {
    km_shape s = t->shape;
    s.dim[0] = count;
    return km_tensor_view(ctx, t, s, t->stride, t->offset + first * t->stride[0]);
}

/* The loss of some rows is added to total; their gradients are made while the logits are there. */
static void head_rows(km_ctx *ctx, const head_call *h, int64_t first, int64_t count) {
    int mark = ctx->n_step;
    bool back = h->dx || h->dw;
    km_tensor *x = rows_of(ctx, h->x, first, count), *t = rows_of(ctx, h->targets, first, count);
    km_tensor *lin[] = {x, h->w, h->bias}, *out[KM_MAX_OUTPUTS] = {0};
    km_tensor *logits = km_apply(ctx, KM_OP_LINEAR, lin, h->bias ? 3 : 2, NULL, NULL);
    km_params p = {
        .n = {[KM_N_IGNORE] = h->ignore, [KM_N_REDUCTION] = KM_SUM, [KM_N_WITH_GRADIENT] = back}};
    km_apply(ctx, KM_OP_CROSS_ENTROPY, (km_tensor *[]){logits, t}, 2, &p, out);
    if (out[0]) km_apply_into(ctx, KM_OP_ADD, (km_tensor *[]){h->total, out[0]}, 2, NULL, h->total);
    km_tensor *d = out[2];
    if (h->dx && d) {
        km_tensor *part = rows_of(ctx, h->dx, first, count);
        km_params one = {.f = {[KM_F_ALPHA] = h->alpha}};
        if (part) km_run(ctx, KM_OP_MATMUL, (km_tensor *[]){d, h->w}, 2, &one, &part, 1);
    }
    if (h->dw && d) {
        km_tensor *turned = km_transpose(ctx, d, 0, 1), *dw = h->dw;
        km_params more = {.f = {[KM_F_ALPHA] = h->alpha, [KM_F_BETA] = first > 0}};
        if (turned) km_run(ctx, KM_OP_MATMUL, (km_tensor *[]){turned, x}, 2, &more, &dw, 1);
    }
    km_step_drop(ctx, mark, NULL, 0);
}

/* -inf where a row of w is no class: it then has no probability, and no gradient. */
static km_tensor *padding_bias(km_ctx *ctx, const km_tensor *w, int64_t classes) {
    km_tensor *bias = km_fill_on(ctx, km_tensor_dev(w), w->dtype, KM_SHAPE(w->shape.dim[0]), 0);
    if (!bias) return NULL;
    km_tensor *rest = rows_of(ctx, bias, classes, w->shape.dim[0] - classes);
    km_params p = {.f = {[KM_F_VALUE] = -INFINITY}, .dtype = w->dtype};
    if (!rest || km_run(ctx, KM_OP_FULL, NULL, 0, &p, &rest, 1) != KM_OK) return NULL;
    return bias;
}

/* How many rows count, as a number on the device. */
static km_tensor *counted(km_ctx *ctx, km_tensor *targets, int64_t ignore, km_dtype d) {
    km_device *dev = km_tensor_dev(targets);
    km_tensor *out = km_fill_on(ctx, dev, targets->dtype, KM_SCALAR, (double)ignore);
    km_tensor *live = km_cast(ctx, km_ne(ctx, targets, out), d);
    return km_sum(ctx, live, NULL, 0, false);
}

static km_tensor *scaled(km_ctx *ctx, km_tensor *d, km_tensor *by) {
    if (!by) return d;
    if (d->dtype == by->dtype) return km_mul(ctx, d, by);
    return km_cast(ctx, km_mul(ctx, km_cast(ctx, d, by->dtype), by), d->dtype);
}

static void grad_linear_cross_entropy(km_ctx *ctx, km_node *n) {
    km_tensor *by = n->grad[0]->is_one ? NULL : n->grad[0];
    if (n->p.n[KM_N_FACTOR_AT])
        by = by ? km_mul(ctx, by, n->out[n->p.n[KM_N_FACTOR_AT]]) : n->out[n->p.n[KM_N_FACTOR_AT]];
    for (int i = 0; i < 2 && !km_failed(ctx); i++)
        if (n->p.n[i]) km_grad_add(ctx, n->in[i], scaled(ctx, n->out[n->p.n[i]], by));
}

static km_status check_head(km_ctx *ctx, const char *name, const km_tensor *x, const km_tensor *w,
                            const km_tensor *t, int64_t classes) {
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
    if (km_want_input(ctx, name, 0, x) != KM_OK || km_want_input(ctx, name, 1, w) != KM_OK ||
        km_want_input(ctx, name, 2, t) != KM_OK)
        return ctx->error.code;
    if (km_want_dtype(ctx, name, NULL, x, KM_FLOATS) != KM_OK ||
        km_want_same_dtype(ctx, name, x, w) != KM_OK ||
        km_want_dtype(ctx, name, "targets", t, KM_INDICES) != KM_OK)
        return ctx->error.code;
    if (km_tensor_dev(x) != km_tensor_dev(w) || km_tensor_dev(x) != km_tensor_dev(t))
        return km_fail(ctx, KM_ERR_DEVICE,
                       "%s: operands are on %s, %s and %s; bring them together "
                       "with km_to",
                       name, km_tensor_dev(x)->name, km_tensor_dev(w)->name,
                       km_tensor_dev(t)->name);
    km_shape rows = x->shape;
    rows.ndim = rows.ndim > 0 ? rows.ndim - 1 : 0;
    if (x->shape.ndim < 1 || w->shape.ndim != 2 || w->shape.dim[1] != km_tensor_dim(x, -1) ||
        w->shape.dim[0] < 1)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: x %s and w %s are not [..., C] and [V, C]", name,
                       km_shape_text(a, x->shape), km_shape_text(b, w->shape));
    if (!km_shape_equal(rows, t->shape))
        return km_fail(ctx, KM_ERR_SHAPE, "%s: x %s needs one target a row, not %s", name,
                       km_shape_text(a, x->shape), km_shape_text(b, t->shape));
    if (classes < 1 || classes > w->shape.dim[0])
        return km_fail(ctx, KM_ERR_RANGE, "%s: %lld classes in w %s", name, (long long)classes,
                       km_shape_text(b, w->shape));
    return KM_OK;
}

/* Rows at a time: as many as the logits' share of memory allows, in multiples of 128. */
static int64_t chunk_rows(const km_tensor *w, int64_t rows) {
    int64_t share = km_tensor_dev(w)->host ? HOST_CHUNK_BYTES : CHUNK_BYTES;
    int64_t fit = share / (w->shape.dim[0] * (int64_t)km_dtype_size(w->dtype)) / 128 * 128;
    if (fit < 128) fit = 128;
    int64_t chunks =
        (rows + fit - 1) / fit; /* of equal size, so that the last is not a small one */
    int64_t each = chunks > 1 ? ((rows + chunks - 1) / chunks + 127) / 128 * 128 : rows;
    return each > 0 ? each : 1;
}

km_tensor *km_linear_cross_entropy(km_ctx *ctx, km_tensor *x, km_tensor *w, km_tensor *targets,
                                   int64_t classes, int64_t ignore_index, km_reduction reduction) {
    KM_CTX_CALL(ctx, NULL);
    static const char name[] = "linear_cross_entropy";
    if (km_failed(ctx)) return NULL;
    if (w && classes == 0) classes = km_tensor_dim(w, 0);
    if (check_head(ctx, name, x, w, targets, classes) != KM_OK) return NULL;
    int64_t width = km_tensor_dim(x, -1), rows = km_shape_count(targets->shape);
    x = km_contiguous(ctx, km_reshape(ctx, x, KM_SHAPE(rows, width)));
    w = km_contiguous(ctx, w);
    targets = km_contiguous(ctx, km_reshape(ctx, targets, KM_SHAPE(rows)));
    if (!x || !w || !targets) return NULL;
    if (km_want_indices(ctx, name, targets, classes, ignore_index, true) != KM_OK) return NULL;

    km_tensor *in[] = {x, w, targets}, *made[KM_MAX_OUTPUTS] = {0};
    bool record = km_recording(ctx, in, 2), mean = reduction == KM_MEAN;
    km_dtype d = x->dtype, wide = d == KM_F64 ? KM_F64 : KM_F32;
    km_device *dev = km_tensor_dev(x);
    /* f16 keeps its gradients at the size they have before the mean: after it they are too small. */
    bool late = d == KM_F16 && mean;
    head_call h = {.x = x,
                   .w = w,
                   .targets = targets,
                   .ignore = ignore_index,
                   .alpha = mean && !late && rows ? 1 / (double)rows : 1};
    km_params p = {0};
    int n = 1;
    ctx->no_grad++;
    h.total = km_fill_on(ctx, dev, wide, KM_SCALAR, 0);
    if (classes < w->shape.dim[0]) h.bias = padding_bias(ctx, w, classes);
    if (record && x->requires_grad) {
        made[n] = h.dx = rows ? km_tensor_new(ctx, x->storage->lane, name, d, x->shape)
                              : km_fill_on(ctx, dev, d, x->shape, 0);
        p.n[KM_N_DX_AT] = n++;
    }
    if (record && w->requires_grad) {
        made[n] = h.dw = rows ? km_tensor_new(ctx, w->storage->lane, name, d, w->shape)
                              : km_fill_on(ctx, dev, d, w->shape, 0);
        p.n[KM_N_DW_AT] = n++;
    }
    int64_t step = chunk_rows(w, rows);
    for (int64_t at = 0; at < rows && !km_failed(ctx); at += step)
        head_rows(ctx, &h, at, rows - at < step ? rows - at : step);
    made[0] = h.total;
    if (mean && ignore_index == KM_NO_IGNORE) {
        made[0] = km_mul_scalar(ctx, h.total, 1 / (double)rows);
        if (late && record) {
            made[n] = km_fill_on(ctx, dev, wide, KM_SCALAR, rows ? 1 / (double)rows : 0);
            p.n[KM_N_FACTOR_AT] = n++;
        }
    } else if (mean) { /* the rows that count are known to the device alone */
        km_tensor *count = counted(ctx, targets, ignore_index, wide);
        made[0] = km_div(ctx, h.total, count);
        if (record) {
            km_tensor *was = km_fill_on(ctx, dev, wide, KM_SCALAR, late ? 1 : (double)rows);
            made[n] = km_div(ctx, was, count);
            p.n[KM_N_FACTOR_AT] = n++;
        }
    }
    ctx->no_grad--;
    if (km_failed(ctx)) return NULL;
    if (record) km_record(ctx, KM_OP_LINEAR_CROSS_ENTROPY, in, 3, &p, made, n, NULL);
    return km_failed(ctx) ? NULL : made[0];
}

/* ---- Rows ---- */

void km_rows_fused(km_op_row *t) {
    t[KM_OP_ATTENTION_QKV] = (km_op_row){.formula = "attention of q, k, v side by side",
                                         .min_in = 1,
                                         .max_in = 1,
                                         .dtypes = KM_FLOATS,
                                         .flags = KM_OP_VIEW,
                                         .grad = grad_attention_qkv,
                                         .save_in = 1,
                                         .save_out = 3};
    t[KM_OP_LINEAR_CROSS_ENTROPY] = (km_op_row){.formula = "-ln softmax(x w^T)[target]",
                                                .min_in = 3,
                                                .max_in = 3,
                                                .dtypes = KM_FLOATS,
                                                .flags = KM_OP_VIEW,
                                                .grad = grad_linear_cross_entropy,
                                                .save_out = 14};
}
