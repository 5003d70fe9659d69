/* Walking several strided tensors together. km_iter merges axes that lie the same way in all
 * operands and drops those of size one, so that most calls end up as one long contiguous run. */
#ifndef KM_BACKEND_ITER_H
#define KM_BACKEND_ITER_H
#include "tensor/tensor.h"

#define KM_ITER_MAX 4

typedef struct km_iter {
    int n;                                    /* operands */
    int ndim;                                 /* after merging; at least 1 */
    int64_t dim[KM_MAX_DIMS];                 /* the last is the inner run */
    int64_t stride[KM_ITER_MAX][KM_MAX_DIMS]; /* in elements */
    char *base[KM_ITER_MAX];
    size_t size[KM_ITER_MAX]; /* bytes of an element */
    int64_t rows;             /* product of all but the last dim; 0 if empty */
} km_iter;

/* All tensors must have the same shape (broadcast strides are 0). */
void km_iter_init(km_iter *it, int n, const km_tensor *const *t);
/* Pointers to the start of inner run `row`, one per operand. */
void km_iter_row(const km_iter *it, int64_t row, char *ptr[KM_ITER_MAX]);

#endif
