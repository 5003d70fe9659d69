/* Maintenance of anchors: those that do little are merged with their neighbours or dropped, and their
 * places go to cells that gain most from being split. */
#ifndef KM_VECTOR_MAINTAIN_H
#define KM_VECTOR_MAINTAIN_H
#include "tensor/tensor.h"

typedef struct km_maintenance {
    const float *sample; /* (rows, d): what cells are judged by */
    int64_t rows, d;
    double total;       /* vectors that the sample stands for */
    float *centre;      /* (k, d), changed in place */
    const float *count; /* (k): vectors in each cell */
    int64_t k;          /* anchors; fewer afterwards when some are of no use */
    uint64_t seed;
    double merge_below; /* of a mean cell's energy: a merge that costs less is made; 0: 1e-9 */
    double split_above; /* times the cost of the merge that pays for it; 0: 1.1 */
    int64_t merged, split, reseeded; /* added to */
    bool changed;
} km_maintenance;

km_status km_maintain(km_ctx *ctx, km_maintenance *m);

#endif
