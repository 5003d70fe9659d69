// km-arch: 90a
// One row of x against weights in blocks of 256.
#include "backend/cuda/kernels/quant/quant_bulk.cuh"

BULK(Q2_K)
BULK(Q3_K)
BULK_BOUND(Q4_K, WHOLE_BOUNDS)
BULK(Q5_K)
BULK(Q6_K)
BULK(IQ4_XS)
BULK_TWO(Q4_K, Q6_K)
BULK_TWO(Q5_K, Q6_K)
BULK_TWO(Q3_K, Q5_K)
