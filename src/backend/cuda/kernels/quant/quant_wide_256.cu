// km-arch: 90a
// Tiles of 256 tokens against weights of a few bits in registers: the types that most models have.
#include "backend/cuda/kernels/quant/regs_wide.cuh"

WIDE_PACKED(Q4_K, 256)
WIDE_PACKED(Q6_K, 256)
WIDE_PACKED(Q8_0, 256)
