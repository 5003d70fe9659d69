// A few rows of x against weights in blocks of 256.
#include "backend/cuda/kernels/quant/quant_few.cuh"

FEW(Q2_K)
FEW(Q3_K)
FEW(Q4_K)
FEW(Q5_K)
FEW(Q6_K)
FEW(IQ4_XS)
FEW_TWO(Q4_K, Q6_K)
FEW_TWO(Q5_K, Q6_K)
FEW_TWO(Q3_K, Q5_K)
