// km-arch: 90a
// Tiles of 64 tokens against weights of a few bits in registers.
#include "backend/cuda/kernels/quant/quant_regs.cuh"

#define REGS(TYPE, ...)                                                                            \
    REGS_KERNEL(regs_##TYPE, TYPE, 64, false)                                                      \
    REGS_KERNEL(regs_gated_##TYPE, TYPE, 64, true)
KM_QUANT_PLANES(REGS)
