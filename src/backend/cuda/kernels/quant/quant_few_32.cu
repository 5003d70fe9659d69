// A few rows of x against weights in blocks of 32.
#include "backend/cuda/kernels/quant/quant_few.cuh"

FEW(Q4_0)
FEW(Q4_1)
FEW(Q5_0)
FEW(Q5_1)
FEW(Q8_0)
FEW(IQ4_NL)
FEW(MXFP4)
