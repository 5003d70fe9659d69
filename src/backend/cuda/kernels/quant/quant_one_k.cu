// One row of x against weights in blocks of 256.
#include "backend/cuda/kernels/quant/quant_one.cuh"

ONE(Q2_K)
ONE(Q3_K)
ONE(Q4_K)
ONE(Q5_K)
ONE(Q6_K)
ONE(IQ4_XS)
ONE_TWO(Q4_K, Q6_K)
ONE_TWO(Q5_K, Q6_K)
ONE_TWO(Q3_K, Q5_K)
