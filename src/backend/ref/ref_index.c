/* Reference kernels that read or write where indices or masks say: embedding, gather, scatter_add,
 * scatter, index_select, masked_select, masked_scatter, nonzero, and concat. The host has checked
 * the indices; one out of range here reads as 0 and writes nothing. */
#include "backend/ref/ref.h"

static bool in_range(int64_t index, int64_t limit) { return index >= 0 && index < limit; }

/* table (v, c), ids (...) -> out (..., c) */
km_status km_ref_embedding(km_ctx *ctx, const km_call *c) {
    const km_tensor *table = c->in[0], *ids = c->in[1], *out = c->out[0];
    int64_t rows = km_ref_rows(out), width = km_ref_width(out);
    for (int64_t r = 0; r < rows; r++) {
        int64_t id = km_ref_load_int(ids, km_ref_nth(ids, r));
        bool ok = in_range(id, table->shape.dim[0]);
        for (int64_t j = 0; j < width; j++) {
            int64_t to = km_ref_row(out, r) + j * km_ref_step(out);
            if (ok)
                km_ref_move(out, to, table, km_ref_row(table, id) + j * km_ref_step(table));
            else
                km_ref_store_int(out, to, 0);
        }
    }
    return KM_OK;
}

/* dy (..., c), ids (...) -> dtable (v, c): each table row is the sum of the rows of dy that it
 * was copied to (plus what it held, when accumulating), in ascending order. */
km_status km_ref_embedding_grad(km_ctx *ctx, const km_call *c) {
    const km_tensor *dy = c->in[0], *ids = c->in[1], *dtable = c->out[0];
    int64_t n = km_ref_rows(dy), v = dtable->shape.dim[0], width = dtable->shape.dim[1];
    if (v == 0 || width == 0) return KM_OK;

    /* For each id a list of the places it stands at: first[id], then next[place], -1 at the end. */
    int64_t *first = km_ctx_scratch(ctx, (size_t)(v + n) * sizeof *first);
    if (!first) return KM_ERR_MEMORY;
    int64_t *next = first + v;
    for (int64_t id = 0; id < v; id++) first[id] = -1;
    for (int64_t r = n - 1; r >= 0; r--) {
        int64_t id = km_ref_load_int(ids, km_ref_nth(ids, r));
        if (!in_range(id, v)) continue;
        next[r] = first[id];
        first[id] = r;
    }

    for (int64_t id = 0; id < v; id++) {
        for (int64_t j = 0; j < width; j++) {
            int64_t to = km_ref_row(dtable, id) + j * km_ref_step(dtable);
            double sum = c->p->accumulate ? km_ref_load(dtable, to) : 0;
            for (int64_t r = first[id]; r >= 0; r = next[r])
                sum += km_ref_load(dy, km_ref_row(dy, r) + j * km_ref_step(dy));
            km_ref_store(dtable, to, sum);
        }
    }
    return KM_OK;
}

/* x, index -> out like index: out[i][j] = x[i][index[i][j]] for axis 1 */
km_status km_ref_gather(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *index = c->in[1], *out = c->out[0];
    int axis = c->p->axis;
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, out->shape) {
        int64_t id = km_ref_get_int(index, i), to = km_ref_pos(out, i);
        if (in_range(id, x->shape.dim[axis]))
            km_ref_move(out, to, x, km_ref_pos(x, i) + (id - i[axis]) * x->stride[axis]);
        else
            km_ref_store_int(out, to, 0);
    }
    return KM_OK;
}

/* x, index, src -> out like x: out[i][index[i][j]] += src[i][j] for axis 1, out starting as x.
 * index may be smaller than x. One line along the axis at a time, summed in scratch memory, so
 * that each output is rounded once. */
km_status km_ref_scatter_add(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *index = c->in[1], *src = c->in[2], *out = c->out[0];
    int axis = c->p->axis;
    int64_t n = x->shape.dim[axis], m = index->shape.dim[axis];
    bool real = km_dtype_is_float(x->dtype);
    km_shape lines = x->shape;
    lines.dim[axis] = 1;
    if (n == 0) return KM_OK;
    union {
        double real;
        uint64_t whole;
    } *sum = km_ctx_scratch(ctx, (size_t)n * sizeof *sum);
    if (!sum) return KM_ERR_MEMORY;

    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, lines) {
        int64_t x_pos = km_ref_pos(x, i), o_pos = km_ref_pos(out, i);
        for (int64_t j = 0; j < n; j++) {
            if (real)
                sum[j].real = km_ref_load(x, x_pos + j * x->stride[axis]);
            else
                sum[j].whole = (uint64_t)km_ref_load_int(x, x_pos + j * x->stride[axis]);
        }
        bool indexed = true; /* does the line lie within index? */
        for (int a = 0; a < lines.ndim; a++)
            if (a != axis && i[a] >= index->shape.dim[a]) indexed = false;
        for (int64_t j = 0; indexed && j < m; j++) {
            int64_t id = km_ref_load_int(index, km_ref_pos(index, i) + j * index->stride[axis]);
            int64_t from = km_ref_pos(src, i) + j * src->stride[axis];
            if (!in_range(id, n)) continue;
            if (real)
                sum[id].real += km_ref_load(src, from);
            else
                sum[id].whole += (uint64_t)km_ref_load_int(src, from);
        }
        for (int64_t j = 0; j < n; j++) {
            if (real)
                km_ref_store(out, o_pos + j * out->stride[axis], sum[j].real);
            else
                km_ref_store_int(out, o_pos + j * out->stride[axis], (int64_t)sum[j].whole);
        }
    }
    return KM_OK;
}

/* x, index (n) -> out like x with n along axis */
km_status km_ref_index_select(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *index = c->in[1], *out = c->out[0];
    int axis = c->p->axis;
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, out->shape) {
        int64_t id = km_ref_load_int(index, km_ref_nth(index, i[axis])), to = km_ref_pos(out, i);
        if (in_range(id, x->shape.dim[axis]))
            km_ref_move(out, to, x, km_ref_pos(x, i) + (id - i[axis]) * x->stride[axis]);
        else
            km_ref_store_int(out, to, 0);
    }
    return KM_OK;
}

/* parts -> out, one after the other along axis */
km_status km_ref_concat(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0];
    int axis = c->p->axis;
    int64_t start = 0;
    for (int k = 0; k < c->n_in; k++) {
        const km_tensor *part = c->in[k];
        int64_t i[KM_MAX_DIMS];
        KM_REF_EACH(i, part->shape)
        km_ref_move(out, km_ref_pos(out, i) + start * out->stride[axis], part, km_ref_pos(part, i));
        start += part->shape.dim[axis];
    }
    return KM_OK;
}

/* x, index, src -> out like x: out[i][index[i][j]] = src[i][j] for axis 1, in the order of j. */
km_status km_ref_scatter(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *index = c->in[1], *src = c->in[2], *out = c->out[0];
    int axis = c->p->axis;
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, x->shape) km_ref_move(out, km_ref_pos(out, i), x, km_ref_pos(x, i));
    KM_REF_EACH(i, index->shape) {
        int64_t id = km_ref_get_int(index, i);
        if (in_range(id, x->shape.dim[axis]))
            km_ref_move(out, km_ref_pos(out, i) + (id - i[axis]) * out->stride[axis], src,
                        km_ref_pos(src, i));
    }
    return KM_OK;
}

/* ---- Masks ---- */

/* x, mask -> out (n): the elements that mask picks, then zeros */
km_status km_ref_masked_select(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *mask = c->in[1], *out = c->out[0];
    int64_t i[KM_MAX_DIMS], at = 0, n = out->shape.dim[0];
    KM_REF_EACH(i, x->shape)
    if (km_ref_get_int(mask, i) && at < n)
        km_ref_move(out, km_ref_nth(out, at++), x, km_ref_pos(x, i));
    for (; at < n; at++) km_ref_store_int(out, km_ref_nth(out, at), 0);
    return KM_OK;
}

/* x, mask, src (n) -> out like x: the next element of src wherever mask picks one */
km_status km_ref_masked_scatter(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *mask = c->in[1], *src = c->in[2], *out = c->out[0];
    int64_t i[KM_MAX_DIMS], at = 0, n = src->shape.dim[0];
    KM_REF_EACH(i, x->shape) {
        if (km_ref_get_int(mask, i) && at < n)
            km_ref_move(out, km_ref_pos(out, i), src, km_ref_nth(src, at++));
        else
            km_ref_move(out, km_ref_pos(out, i), x, km_ref_pos(x, i));
    }
    return KM_OK;
}

/* x -> out (n, rank): the index of every element that is not 0, then zeros */
km_status km_ref_nonzero(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    int rank = x->shape.ndim;
    int64_t i[KM_MAX_DIMS], at = 0, n = out->shape.dim[0];
    KM_REF_EACH(i, x->shape) {
        if (km_ref_get(x, i) == 0 || at == n) continue;
        for (int a = 0; a < rank; a++) km_ref_store_int(out, km_ref_nth(out, at * rank + a), i[a]);
        at++;
    }
    for (int64_t k = at * rank; k < n * rank; k++) km_ref_store_int(out, km_ref_nth(out, k), 0);
    return KM_OK;
}
