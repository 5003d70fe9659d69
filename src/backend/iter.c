/* Merging the axes of several tensors that are walked together. */
#include "backend/iter.h"

/* Whether axis `outer` continues axis `inner` in every operand: one long axis lies there. */
static bool mergeable(const km_iter *it, int outer, const int64_t stride[KM_ITER_MAX],
                      int64_t dim) {
    for (int k = 0; k < it->n; k++)
        if (it->stride[k][outer] != stride[k] * dim) return false;
    return true;
}

void km_iter_init(km_iter *it, int n, const km_tensor *const *t) {
    const km_shape *s = &t[0]->shape;
    bool empty = false;
    memset(it, 0, sizeof *it);
    it->n = n;
    for (int k = 0; k < n; k++) {
        it->size[k] = km_dtype_size(t[k]->dtype);
        it->base[k] = t[k]->storage->data ? km_tensor_ptr(t[k]) : NULL;
    }
    for (int a = 0; a < s->ndim; a++) {
        int64_t stride[KM_ITER_MAX];
        if (s->dim[a] == 0) empty = true;
        if (s->dim[a] == 1) continue;
        for (int k = 0; k < n; k++) stride[k] = t[k]->stride[a];
        int last = it->ndim - 1;
        if (last < 0 || !mergeable(it, last, stride, s->dim[a])) {
            it->dim[++last] = 1;
            it->ndim++;
        }
        it->dim[last] *= s->dim[a];
        for (int k = 0; k < n; k++) it->stride[k][last] = stride[k];
    }
    if (it->ndim == 0) { /* one element: a run of one, whose stride nobody takes */
        it->ndim = 1;
        it->dim[0] = 1;
        for (int k = 0; k < n; k++) it->stride[k][0] = 1;
    }
    it->rows = empty ? 0 : 1;
    for (int a = 0; a < it->ndim - 1; a++) it->rows *= it->dim[a];
}

void km_iter_row(const km_iter *it, int64_t row, char *ptr[KM_ITER_MAX]) {
    for (int k = 0; k < it->n; k++) ptr[k] = it->base[k];
    for (int a = it->ndim - 2; a >= 0; a--) {
        int64_t i = row % it->dim[a];
        row /= it->dim[a];
        for (int k = 0; k < it->n; k++) ptr[k] += i * it->stride[k][a] * (int64_t)it->size[k];
    }
}
