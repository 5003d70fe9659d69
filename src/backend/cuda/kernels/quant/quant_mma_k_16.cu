// Up to 16 rows of x against weights in blocks of 256.
#include "backend/cuda/kernels/quant/quant_mma.cuh"

MMA_K(2)
