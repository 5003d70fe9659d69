// km-arch: 90a
// One row of x against weights in blocks of 32.
#include "backend/cuda/kernels/quant/quant_bulk.cuh"

BULK(Q4_0)
BULK(Q4_1)
BULK(Q5_0)
BULK(Q5_1)
BULK(Q8_0)
BULK(IQ4_NL)
BULK(MXFP4)
