// km-arch: 90a
// Tiles of 256 tokens against weights of a few bits in registers.
#include "backend/cuda/kernels/quant/quant_regs.cuh"

#define REGS(TYPE, ...)                                                                            \
    REGS_KERNEL(regs_##TYPE, TYPE, 256, false)                                                     \
    REGS_KERNEL(regs_gated_##TYPE, TYPE, 256, true)
KM_QUANT_PLANES(REGS)
