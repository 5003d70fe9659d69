/* Tensor parallelism: a rank's share of a model's tensors, how it is worked out from what a file holds, and cut out of
 * the tensors there. A cut by rows stays in place where it is one run of them; one by columns, or of
 * joined matrices, is put together anew, and never goes through a block. */
#ifndef KM_MODEL_CUT_H
#define KM_MODEL_CUT_H
#include "model/layout.h"
#include "model/share.h"

/* The share of one of `ranks` ranks, as even as can be where columns are cut between blocks; found
 * (layout->n) tells what blocks those are. More ranks than there are pieces to share are refused. */
km_status km_share_of(const km_config *c, const km_layout *l, const km_stored *found, int rank,
                      int ranks, km_share *out, km_error *err);

/* What of a tensor is a rank's: all of it, some runs of rows, or some columns of every row. */
typedef struct km_cut {
    km_shape shape; /* of what is left */
    int runs;       /* of rows; 0: all rows */
    int64_t first[3], rows[3];
    int64_t column; /* the first; shape.dim[1] of them */
    bool columns;   /* it is cut by columns */
    bool absent;    /* added by rank 0 alone: zeros here */
} km_cut;

km_cut km_share_cut(const km_config *c, const km_share *s, const km_layout_row *r); /* c: whole */
/* Where the rank's part lies in a tensor's data if it is in one piece; NULL if it is not. */
const void *km_cut_in_place(const km_cut *cut, km_dtype d, km_shape whole, const void *data);
size_t km_cut_bytes(const km_cut *cut, km_dtype d);
/* The rank's part, row by row, to km_cut_bytes at dst. A cut through a block is refused. */
km_status km_cut_copy(const km_cut *cut, km_dtype d, km_shape whole, const void *data, void *dst,
                      km_error *err);

#endif
