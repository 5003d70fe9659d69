/* How lines of x along an axis and those of an index of the same rank lie beside each other, for
 * gather, scatter and scatter_add. index may be smaller than x along the other axes. Both are
 * contiguous; axes that continue each other in both are merged, so that most calls have one row
 * axis, and `cols` elements lie side by side in both wherever the axis is not the last. */
#ifndef KM_BACKEND_CPU_LINES_H
#define KM_BACKEND_CPU_LINES_H
#include "backend/cpu/split.h"

typedef struct km_axis_lines {
    int64_t n, m;           /* x's and the index's size along the axis */
    int64_t x_axis, i_axis; /* elements from one place along the axis to the next */
    int64_t cols;           /* lines side by side, from column to column one element apart */
    int64_t rows;           /* groups of such lines: the product of dim */
    int ndim;
    int64_t dim[KM_MAX_DIMS], x_step[KM_MAX_DIMS], i_step[KM_MAX_DIMS];
} km_axis_lines;

/* Where a row begins in x and in the index. */
typedef struct km_line_at {
    int64_t x, i, at[KM_MAX_DIMS];
} km_line_at;

static inline void km_axis_lines_put(km_axis_lines *l, int64_t dim, int64_t x_step,
                                     int64_t i_step) {
    int last = l->ndim - 1;
    if (dim == 1) return;
    if (last >= 0 && l->x_step[last] == x_step * dim && l->i_step[last] == i_step * dim) {
        l->dim[last] *= dim;
        l->x_step[last] = x_step;
        l->i_step[last] = i_step;
        return;
    }
    l->dim[l->ndim] = dim;
    l->x_step[l->ndim] = x_step;
    l->i_step[l->ndim++] = i_step;
}

static inline km_axis_lines km_axis_lines_make(const km_tensor *x, const km_tensor *index,
                                               int axis) {
    km_axis_lines l = {.n = x->shape.dim[axis], .m = index->shape.dim[axis], .cols = 1, .rows = 1};
    int64_t x_step[KM_MAX_DIMS], i_step[KM_MAX_DIMS];
    km_shape_strides(x->shape, x_step);
    km_shape_strides(index->shape, i_step);
    for (int a = 0; a < x->shape.ndim; a++)
        if (a != axis) km_axis_lines_put(&l, index->shape.dim[a], x_step[a], i_step[a]);
    l.x_axis = x_step[axis];
    l.i_axis = i_step[axis];
    int last = l.ndim - 1;
    /* Only what lies behind the axis is side by side: before it, steps are longer than one. */
    if (last >= 0 && l.x_step[last] == 1 && l.i_step[last] == 1 && l.x_axis >= l.dim[last]) {
        l.cols = l.dim[last];
        l.ndim--;
    }
    for (int a = 0; a < l.ndim; a++) l.rows *= l.dim[a];
    return l;
}

static inline km_line_at km_axis_lines_seek(const km_axis_lines *l, int64_t row) {
    km_line_at p = {0};
    for (int a = l->ndim - 1; a >= 0; a--) {
        p.at[a] = row % l->dim[a];
        row /= l->dim[a];
        p.x += p.at[a] * l->x_step[a];
        p.i += p.at[a] * l->i_step[a];
    }
    return p;
}

static inline void km_axis_lines_next(const km_axis_lines *l, km_line_at *p) {
    for (int a = l->ndim - 1; a >= 0; a--) {
        p->x += l->x_step[a];
        p->i += l->i_step[a];
        if (++p->at[a] < l->dim[a]) return;
        p->x -= l->dim[a] * l->x_step[a];
        p->i -= l->dim[a] * l->i_step[a];
        p->at[a] = 0;
    }
}

#endif
