/* Picking and placing by index. */
#include "ops/families.h"
#include "ops/op.h"

static km_status same(km_outputs *out, km_dtype dtype, km_shape shape) {
    *out = (km_outputs){.n = 1, .dtype = {dtype}, .shape = {shape}};
    return KM_OK;
}

static km_status infer_embedding(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                 const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    km_shape s = in[1]->shape;
    if (in[0]->shape.ndim != 2)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: the table must be [rows, width], not %s", name,
                       km_shape_text(text, in[0]->shape));
    if (s.ndim == KM_MAX_DIMS)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: ids %s leave no axis for the rows", name,
                       km_shape_text(text, s));
    if (km_want_indices(ctx, name, in[1], in[0]->shape.dim[0], 0, false) != KM_OK)
        return ctx->error.code;
    s.dim[s.ndim++] = in[0]->shape.dim[1];
    return same(out, in[0]->dtype, s);
}

static km_status infer_embedding_grad(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                      const km_params *p, km_outputs *out) {
    km_shape s = in[1]->shape;
    if (km_want_indices(ctx, name, in[1], p->n[KM_N_TABLE_ROWS], 0, false) != KM_OK)
        return ctx->error.code;
    s.dim[s.ndim++] = km_tensor_dim(in[0], -1);
    if (km_want_shape(ctx, name, "dy", in[0], s) != KM_OK) return ctx->error.code;
    return same(out, in[0]->dtype, KM_SHAPE(p->n[KM_N_TABLE_ROWS], km_tensor_dim(in[0], -1)));
}

/* index has x's rank and no more than its size along the other axes. */
static km_status check_along(km_ctx *ctx, const char *name, const km_tensor *x,
                             const km_tensor *index, int axis) {
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
    bool fits = x->shape.ndim == index->shape.ndim && x->shape.ndim > 0;
    for (int i = 0; fits && i < x->shape.ndim; i++)
        fits = i == axis || index->shape.dim[i] <= x->shape.dim[i];
    if (!fits)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: index %s does not fit %s along axis %d", name,
                       km_shape_text(a, index->shape), km_shape_text(b, x->shape), axis);
    return km_want_indices(ctx, name, index, x->shape.dim[axis], 0, false);
}

static km_status infer_gather(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    if (check_along(ctx, name, in[0], in[1], p->axis) != KM_OK) return ctx->error.code;
    return same(out, in[0]->dtype, in[1]->shape);
}

static km_status infer_scatter_add(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                   const km_params *p, km_outputs *out) {
    if (check_along(ctx, name, in[0], in[1], p->axis) != KM_OK) return ctx->error.code;
    if (km_want_same_dtype(ctx, name, in[0], in[2]) != KM_OK) return ctx->error.code;
    if (km_want_shape(ctx, name, "src", in[2], in[1]->shape) != KM_OK) return ctx->error.code;
    return same(out, in[0]->dtype, in[0]->shape);
}

static km_status infer_index_select(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                    const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    km_shape s = in[0]->shape;
    if (s.ndim == 0 || in[1]->shape.ndim != 1)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: the index must be a list, not %s", name,
                       km_shape_text(text, in[1]->shape));
    if (km_want_indices(ctx, name, in[1], s.dim[p->axis], 0, false) != KM_OK)
        return ctx->error.code;
    s.dim[p->axis] = in[1]->shape.dim[0];
    return same(out, in[0]->dtype, s);
}

static km_status infer_concat(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
    km_shape s = in[0]->shape;
    for (int i = 1; i < n_in; i++) {
        km_shape part = in[i]->shape;
        if (km_want_same_dtype(ctx, name, in[0], in[i]) != KM_OK) return ctx->error.code;
        bool fits = part.ndim == s.ndim && s.ndim > 0;
        for (int d = 0; fits && d < s.ndim; d++) fits = d == p->axis || part.dim[d] == s.dim[d];
        if (!fits)
            return km_fail(ctx, KM_ERR_SHAPE, "%s: %s and %s do not join along axis %d", name,
                           km_shape_text(a, in[0]->shape), km_shape_text(b, part), p->axis);
        if (__builtin_add_overflow(s.dim[p->axis], part.dim[p->axis], &s.dim[p->axis]))
            return km_fail(ctx, KM_ERR_SHAPE, "%s: the parts are too large together", name);
    }
    return same(out, in[0]->dtype, s);
}

static km_status want_mask(km_ctx *ctx, const char *name, const km_tensor *x,
                           const km_tensor *mask) {
    if (km_want_dtype(ctx, name, "mask", mask, KM_BIT(KM_BOOL)) != KM_OK) return ctx->error.code;
    return km_want_shape(ctx, name, "mask", mask, x->shape);
}

static km_status infer_masked_select(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                     const km_params *p, km_outputs *out) {
    if (want_mask(ctx, name, in[0], in[1]) != KM_OK) return ctx->error.code;
    return same(out, in[0]->dtype, KM_SHAPE(p->n[KM_N_ROOM]));
}

static km_status infer_masked_scatter(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                      const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    if (want_mask(ctx, name, in[0], in[1]) != KM_OK) return ctx->error.code;
    if (km_want_same_dtype(ctx, name, in[0], in[2]) != KM_OK) return ctx->error.code;
    if (in[2]->shape.ndim != 1)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: src must be a list, not %s", name,
                       km_shape_text(text, in[2]->shape));
    return same(out, in[0]->dtype, in[0]->shape);
}

static km_status infer_nonzero(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                               const km_params *p, km_outputs *out) {
    return same(out, KM_I64, KM_SHAPE(p->n[KM_N_ROOM], in[0]->shape.ndim));
}

/* ---- Gradients ---- */

/* Added to the gradient the table has already (a tied head's, say), where it has one: only the rows
 * in use are then touched. */
static void grad_embedding(km_ctx *ctx, km_node *n) {
    km_tensor *table = n->in[0], *in[] = {n->grad[0], n->in[1]};
    km_params p = {.n = {[KM_N_TABLE_ROWS] = table->shape.dim[0]}};
    if (!km_needs(n, 0)) return;
    if (!km_grad_held(table)) {
        km_grad_add(ctx, table, km_apply(ctx, KM_OP_EMBEDDING_GRAD, in, 2, &p, NULL));
        return;
    }
    km_tensor *sum = km_grad_buffer(ctx, table);
    p.accumulate = true;
    if (sum) km_apply_into(ctx, KM_OP_EMBEDDING_GRAD, in, 2, &p, sum);
}

/* Zeros like x with dy added where it was picked from. */
static km_tensor *scatter_back(km_ctx *ctx, km_node *n, km_tensor *index) {
    km_tensor *x = n->in[0];
    km_tensor *zero = km_fill_on(ctx, km_tensor_dev(x), x->dtype, x->shape, 0);
    return km_scatter_add(ctx, zero, n->p.axis, index, n->grad[0]);
}

static void grad_gather(km_ctx *ctx, km_node *n) {
    km_grad_add(ctx, n->in[0], scatter_back(ctx, n, n->in[1]));
}

static void grad_scatter_add(km_ctx *ctx, km_node *n) {
    km_grad_add(ctx, n->in[0], n->grad[0]);
    if (km_needs(n, 2)) km_grad_add(ctx, n->in[2], km_gather(ctx, n->grad[0], n->p.axis, n->in[1]));
}

/* What was written over passes nothing on to x; of several that were written to one place, only the
 * last, which stayed, gets that place's gradient. */
static void grad_scatter(km_ctx *ctx, km_node *n) {
    km_tensor *index = n->in[1], *dy = n->grad[0];
    km_device *dev = km_tensor_dev(index);
    int axis = n->p.axis;
    km_tensor *zero = km_fill_on(ctx, dev, dy->dtype, KM_SCALAR, 0);
    if (!zero) return;
    km_tensor *zeros = km_broadcast(ctx, zero, index->shape);
    if (km_needs(n, 0)) km_grad_add(ctx, n->in[0], km_scatter(ctx, dy, axis, index, zeros));
    if (!km_needs(n, 2)) return;
    int64_t count = km_shape_count(index->shape);
    km_params p = {.dtype = KM_I64, .shape = KM_SHAPE(count), .f = {[KM_F_STEP] = 1}};
    km_tensor *own = km_apply_on(ctx, dev, KM_OP_ARANGE, NULL, 0, &p, NULL);
    own = own ? km_reshape(ctx, own, index->shape) : NULL;
    km_tensor *none = km_fill_on(ctx, dev, KM_I64, dy->shape, -1);
    km_tensor *stayed = km_gather(ctx, km_scatter(ctx, none, axis, index, own), axis, index);
    km_grad_add(ctx, n->in[2],
                km_where(ctx, km_eq(ctx, stayed, own), km_gather(ctx, dy, axis, index), zero));
}

static void grad_masked_select(km_ctx *ctx, km_node *n) {
    km_tensor *x = n->in[0], *zero = km_fill_on(ctx, km_tensor_dev(x), x->dtype, x->shape, 0);
    km_grad_add(ctx, x,
                km_apply(ctx, KM_OP_MASKED_SCATTER, (km_tensor *[]){zero, n->in[1], n->grad[0]}, 3,
                         NULL, NULL));
}

static void grad_masked_scatter(km_ctx *ctx, km_node *n) {
    km_tensor *mask = n->in[1], *dy = n->grad[0];
    if (km_needs(n, 0)) km_grad_add(ctx, n->in[0], km_masked_fill(ctx, dy, mask, 0));
    if (!km_needs(n, 2)) return;
    km_params p = {.n = {[KM_N_ROOM] = n->in[2]->shape.dim[0]}};
    km_grad_add(ctx, n->in[2], km_apply2(ctx, KM_OP_MASKED_SELECT, dy, mask, &p));
}

static void grad_index_select(km_ctx *ctx, km_node *n) {
    km_shape line = n->out[0]->shape; /* the list along `axis`, repeated over the rest */
    for (int i = 0; i < line.ndim; i++)
        if (i != n->p.axis) line.dim[i] = 1;
    km_tensor *index = km_broadcast(ctx, km_reshape(ctx, n->in[1], line), n->out[0]->shape);
    km_grad_add(ctx, n->in[0], scatter_back(ctx, n, index));
}

static void grad_concat(km_ctx *ctx, km_node *n) {
    int64_t at = 0;
    for (int i = 0; i < n->n_in; i++) {
        int64_t size = n->in[i]->shape.dim[n->p.axis];
        if (km_needs(n, i))
            km_grad_add(ctx, n->in[i], km_narrow(ctx, n->grad[0], n->p.axis, at, size));
        at += size;
    }
}

#define INDEX(OP, text, inputs, kinds, rule_infer, rule, in)                                       \
    t[KM_OP_##OP] = (km_op_row) {                                                                  \
        .formula = text, .min_in = inputs, .max_in = inputs, .dtypes = kinds, .infer = rule_infer, \
        .grad = rule, .save_in = in                                                                \
    }

void km_rows_index(km_op_row *t) {
    INDEX(EMBEDDING, "y[i] = table[ids[i]]", 2, KM_ANY, infer_embedding, grad_embedding, 2);
    INDEX(EMBEDDING_GRAD, "dtable[ids[i]] += dy[i]", 2, KM_FLOATS, infer_embedding_grad, NULL, 0);
    INDEX(GATHER, "y[i][j] = x[i][index[i][j]]", 2, KM_ANY, infer_gather, grad_gather, 2);
    INDEX(SCATTER_ADD, "y = x; y[i][index[i][j]] += src[i][j]", 3, KM_NUMBERS, infer_scatter_add,
          grad_scatter_add, 2);
    INDEX(INDEX_SELECT, "y[i] = x[index[i]]", 2, KM_ANY, infer_index_select, grad_index_select, 2);
    INDEX(SCATTER, "y = x; y[i][index[i][j]] = src[i][j]", 3, KM_ANY, infer_scatter_add,
          grad_scatter, 2);
    INDEX(MASKED_SELECT, "those x[i] whose mask[i] is true", 2, KM_ANY, infer_masked_select,
          grad_masked_select, 2);
    INDEX(MASKED_SCATTER, "y = x; the ith place that mask picks = src[i]", 3, KM_ANY,
          infer_masked_scatter, grad_masked_scatter, 2);
    INDEX(NONZERO, "those i whose x[i] is not 0", 1, KM_ANY, infer_nonzero, NULL, 0);
    INDEX(CONCAT, "parts one after another", 1, KM_ANY, infer_concat, grad_concat, 0);
    t[KM_OP_CONCAT].max_in = -1;
    t[KM_OP_CONCAT].flags = KM_OP_STRIDED;
    t[KM_OP_EMBEDDING_GRAD].tol = t[KM_OP_SCATTER_ADD].tol = KM_TOL_SUM;
}

/* ---- Public ---- */

static bool axis_params(km_ctx *ctx, km_op op, km_tensor *x, int axis, km_params *p) {
    if (km_failed(ctx)) return false;
    return !x || km_want_axis(ctx, km_op_name(op), axis, x->shape, &p->axis) == KM_OK;
}

km_tensor *km_embedding(km_ctx *ctx, km_tensor *table, km_tensor *ids) {
    KM_CTX_CALL(ctx, NULL);
    if (table && km_dtype_is_block(table->dtype)) return km_quant_embedding(ctx, table, ids);
    return km_apply2(ctx, KM_OP_EMBEDDING, table, ids, NULL);
}

km_tensor *km_gather(km_ctx *ctx, km_tensor *x, int axis, km_tensor *index) {
    KM_CTX_CALL(ctx, NULL);
    km_params p = {0};
    return axis_params(ctx, KM_OP_GATHER, x, axis, &p) ? km_apply2(ctx, KM_OP_GATHER, x, index, &p)
                                                       : NULL;
}

km_tensor *km_scatter_add(km_ctx *ctx, km_tensor *x, int axis, km_tensor *index, km_tensor *src) {
    KM_CTX_CALL(ctx, NULL);
    km_params p = {0};
    if (!axis_params(ctx, KM_OP_SCATTER_ADD, x, axis, &p)) return NULL;
    return km_apply(ctx, KM_OP_SCATTER_ADD, (km_tensor *[]){x, index, src}, 3, &p, NULL);
}

km_tensor *km_scatter(km_ctx *ctx, km_tensor *x, int axis, km_tensor *index, km_tensor *src) {
    KM_CTX_CALL(ctx, NULL);
    km_params p = {0};
    if (!axis_params(ctx, KM_OP_SCATTER, x, axis, &p)) return NULL;
    return km_apply(ctx, KM_OP_SCATTER, (km_tensor *[]){x, index, src}, 3, &p, NULL);
}

/* How many elements of a bool tensor are true; -1 when the context failed. On the host they are
 * looked at where they are, on a GPU they are summed there and one number is read. */
static int64_t count_true(km_ctx *ctx, km_tensor *mask) {
    int64_t count = 0;
    int mark = ctx->n_step;
    ctx->no_grad++;
    if (km_tensor_dev(mask)->host) {
        km_tensor *flat = km_to_contiguous(ctx, mask);
        int64_t n = flat ? km_shape_count(flat->shape) : 0;
        const uint8_t *m = n ? km_tensor_ptr(flat) : NULL;
        uint8_t first; /* read as a caller would, so that a step being captured is not replayed */
        if (n &&
            flat->storage->lane->device->ops->download(flat->storage->lane, &first, m, 1) == KM_OK)
            for (int64_t i = 0; i < n; i++) count += m[i] != 0;
    } else {
        km_tensor *sum = km_sum(ctx, km_cast(ctx, mask, KM_I64), NULL, 0, false);
        if (sum) km_read(ctx, sum, &count, sizeof count);
    }
    ctx->no_grad--;
    km_step_drop(ctx, mark, NULL, 0);
    return km_failed(ctx) ? -1 : count;
}

km_tensor *km_masked_select(km_ctx *ctx, km_tensor *x, km_tensor *mask) {
    KM_CTX_CALL(ctx, NULL);
    const char *name = "masked_select";
    km_shape s;
    if (km_want_input(ctx, name, 0, x) != KM_OK || km_want_input(ctx, name, 1, mask) != KM_OK ||
        km_want_dtype(ctx, name, "mask", mask, KM_BIT(KM_BOOL)) != KM_OK)
        return NULL;
    if (!km_shape_broadcast(x->shape, mask->shape, &s)) {
        char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
        km_fail(ctx, KM_ERR_SHAPE, "%s: shapes do not broadcast: %s and %s", name,
                km_shape_text(a, x->shape), km_shape_text(b, mask->shape));
        return NULL;
    }
    mask = km_broadcast(ctx, mask, s);
    x = km_broadcast(ctx, x, s);
    int64_t count = mask && x ? count_true(ctx, mask) : -1;
    return count < 0 ? NULL
                     : km_apply2(ctx, KM_OP_MASKED_SELECT, x, mask,
                                 &(km_params){.n = {[KM_N_ROOM] = count}});
}

km_tensor *km_masked_scatter(km_ctx *ctx, km_tensor *x, km_tensor *mask, km_tensor *src) {
    KM_CTX_CALL(ctx, NULL);
    const char *name = "masked_scatter";
    if (km_want_input(ctx, name, 0, x) != KM_OK || km_want_input(ctx, name, 1, mask) != KM_OK ||
        km_want_input(ctx, name, 2, src) != KM_OK ||
        km_want_dtype(ctx, name, "mask", mask, KM_BIT(KM_BOOL)) != KM_OK)
        return NULL;
    mask = km_broadcast(ctx, mask, x->shape);
    int64_t count = mask ? count_true(ctx, mask) : -1;
    if (count < 0) return NULL;
    if (count != km_shape_count(src->shape)) {
        km_fail(ctx, KM_ERR_SHAPE, "%s: the mask picks %lld places, src has %lld elements", name,
                (long long)count, (long long)km_shape_count(src->shape));
        return NULL;
    }
    return km_apply(ctx, KM_OP_MASKED_SCATTER, (km_tensor *[]){x, mask, src}, 3, NULL, NULL);
}

km_tensor *km_nonzero(km_ctx *ctx, km_tensor *x) {
    KM_CTX_CALL(ctx, NULL);
    if (km_want_input(ctx, "nonzero", 0, x) != KM_OK ||
        km_want_dtype(ctx, "nonzero", NULL, x, KM_ANY) != KM_OK)
        return NULL;
    km_tensor *set = x;
    if (x->dtype != KM_BOOL)
        set = km_ne(ctx, x, km_fill_on(ctx, km_tensor_dev(x), x->dtype, KM_SCALAR, 0));
    int64_t count = set ? count_true(ctx, set) : -1;
    return count < 0 ? NULL
                     : km_apply1(ctx, KM_OP_NONZERO, x, &(km_params){.n = {[KM_N_ROOM] = count}});
}

km_tensor *km_index_select(km_ctx *ctx, km_tensor *x, int axis, km_tensor *index) {
    KM_CTX_CALL(ctx, NULL);
    km_params p = {0};
    return axis_params(ctx, KM_OP_INDEX_SELECT, x, axis, &p)
               ? km_apply2(ctx, KM_OP_INDEX_SELECT, x, index, &p)
               : NULL;
}

static bool parts_there(km_ctx *ctx, const char *name, km_tensor *const *parts, int n) {
    if (km_failed(ctx)) return false;
    if (parts && n > 0 && parts[0]) return true;
    km_fail(ctx, KM_ERR_NULL, "%s: no parts given", name);
    return false;
}

km_tensor *km_concat(km_ctx *ctx, km_tensor *const *parts, int n, int axis) {
    KM_CTX_CALL(ctx, NULL);
    km_params p = {0};
    if (!parts_there(ctx, "concat", parts, n)) return NULL;
    if (!axis_params(ctx, KM_OP_CONCAT, parts[0], axis, &p)) return NULL;
    return km_apply(ctx, KM_OP_CONCAT, parts, n, &p, NULL);
}

km_tensor *km_stack(km_ctx *ctx, km_tensor *const *parts, int n, int axis) {
    KM_CTX_CALL(ctx, NULL);
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
    if (!parts_there(ctx, "stack", parts, n)) return NULL;
    for (int i = 0; i < n; i++) { /* told with the caller's shapes, not those of the views below */
        if (km_want_input(ctx, "stack", i, parts[i]) != KM_OK) return NULL;
        if (km_shape_equal(parts[i]->shape, parts[0]->shape)) continue;
        km_fail(ctx, KM_ERR_SHAPE, "stack: %s and %s are not of one shape",
                km_shape_text(a, parts[0]->shape), km_shape_text(b, parts[i]->shape));
        return NULL;
    }
    int rank = parts[0]->shape.ndim;
    if (rank == KM_MAX_DIMS || km_axis(axis, rank + 1) < 0) {
        km_fail(ctx, KM_ERR_RANGE, "stack: no place for an axis at %d in %s", axis,
                km_shape_text(a, parts[0]->shape));
        return NULL;
    }
    km_tensor **with_axis = km_arena_alloc(&ctx->arena, sizeof *with_axis * (size_t)n);
    if (!with_axis) {
        km_fail(ctx, KM_ERR_MEMORY, "stack: out of memory");
        return NULL;
    }
    for (int i = 0; i < n; i++) with_axis[i] = km_unsqueeze(ctx, parts[i], axis);
    return km_concat(ctx, with_axis, n, axis);
}
