// quant_few_32.cu with x rounded to 8 bits.
#define KM_FINE false
#include "backend/cuda/kernels/quant/quant_few_32.cu"
