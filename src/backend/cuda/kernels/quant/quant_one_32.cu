// One row of x against weights in blocks of 32.
#include "backend/cuda/kernels/quant/quant_one.cuh"

ONE(Q4_0)
ONE(Q4_1)
ONE(Q5_0)
ONE(Q5_1)
ONE(Q8_0)
ONE(IQ4_NL)
ONE(MXFP4)
