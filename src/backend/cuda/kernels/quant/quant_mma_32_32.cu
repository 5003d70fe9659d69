// Up to 32 rows of x against weights in blocks of 32.
#include "backend/cuda/kernels/quant/quant_mma.cuh"

MMA_32(4)
