/* Reference sort, running sums and one-hot rows. A line is the elements that differ in one axis. */
#include "backend/ref/ref.h"
#include "base/alloc.h"

static km_shape lines_of(km_shape s, int axis) {
    s.dim[axis] = 1;
    return s;
}

/* Whether x[a] comes after x[b] in rising order: NaN is larger than all numbers. */
static bool after(const km_tensor *x, int64_t a, int64_t b) {
    if (!km_dtype_is_float(x->dtype)) return km_ref_load_int(x, a) > km_ref_load_int(x, b);
    double va = km_ref_load(x, a), vb = km_ref_load(x, b);
    return isnan(va) ? !isnan(vb) : va > vb;
}

/* Merge sort of the places 0 .. n-1 of a line; equals keep their order in both directions. */
static void sort_line(const km_tensor *x, int64_t at, int64_t step, int64_t n, bool descending,
                      int64_t *place, int64_t *spare) {
    for (int64_t i = 0; i < n; i++) place[i] = i;
    for (int64_t run = 1; run < n; run *= 2) {
        for (int64_t lo = 0; lo < n; lo += 2 * run) {
            int64_t mid = lo + run < n ? lo + run : n, end = mid + run < n ? mid + run : n;
            int64_t i = lo, j = mid;
            for (int64_t k = lo; k < end; k++) {
                bool second = i == mid;
                if (i < mid && j < end) {
                    int64_t a = at + place[i] * step, b = at + place[j] * step;
                    second = descending ? after(x, b, a) : after(x, a, b);
                }
                spare[k] = second ? place[j++] : place[i++];
            }
        }
        for (int64_t i = 0; i < n; i++) place[i] = spare[i];
    }
}

/* x; axis, n[0] k, n[1] descending -> the first k of each line in order, and their places */
km_status km_ref_sort(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0], *index = c->out[1];
    int axis = c->p->axis;
    int64_t n = x->shape.dim[axis], k = c->p->n[KM_N_TOP_K], xs = x->stride[axis];
    if (n == 0 || k == 0) return KM_OK;
    int64_t *place = km_alloc(2 * (size_t)n * sizeof *place);
    if (!place) return km_fail(ctx, KM_ERR_MEMORY, "sort: out of memory");
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, lines_of(x->shape, axis)) {
        int64_t at = km_ref_pos(x, i), o = km_ref_pos(out, i), d = km_ref_pos(index, i);
        sort_line(x, at, xs, n, c->p->n[KM_N_FALLING], place, place + n);
        for (int64_t j = 0; j < k; j++) {
            km_ref_move(out, o + j * out->stride[axis], x, at + place[j] * xs);
            km_ref_store_int(index, d + j * index->stride[axis], place[j]);
        }
    }
    km_free(place);
    return KM_OK;
}

/* x; axis, n[0] 1: from the end -> sums of all elements up to each */
km_status km_ref_cumsum(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    int axis = c->p->axis;
    int64_t n = x->shape.dim[axis];
    bool real = km_dtype_is_float(x->dtype);
    if (n == 0) return KM_OK;
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, lines_of(x->shape, axis)) {
        int64_t at = km_ref_pos(x, i), o = km_ref_pos(out, i);
        double sum = 0;
        uint64_t whole = 0; /* wraps */
        for (int64_t k = 0; k < n; k++) {
            int64_t j = c->p->n[KM_N_FROM_END] ? n - 1 - k : k;
            if (real)
                km_ref_store(out, o + j * out->stride[axis],
                             sum += km_ref_load(x, at + j * x->stride[axis]));
            else
                km_ref_store_int(
                    out, o + j * out->stride[axis],
                    (int64_t)(whole += (uint64_t)km_ref_load_int(x, at + j * x->stride[axis])));
        }
    }
    return KM_OK;
}

/* ids -> out (..., n[0]): 1 at the id, 0 elsewhere */
km_status km_ref_one_hot(km_ctx *ctx, const km_call *c) {
    const km_tensor *ids = c->in[0], *out = c->out[0];
    int64_t rows = km_shape_count(ids->shape), n = c->p->n[KM_N_CLASSES];
    for (int64_t r = 0; r < rows; r++) {
        int64_t id = km_ref_load_int(ids, km_ref_nth(ids, r));
        for (int64_t j = 0; j < n; j++) km_ref_store_int(out, out->offset + r * n + j, id == j);
    }
    return KM_OK;
}
