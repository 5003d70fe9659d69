// km-arch: 90a
// Tiles of 128 or 256 tokens against weights of 16 bits.
#include "backend/cuda/kernels/quant/regs_wide.cuh"

WIDE_PLAIN(bf16, BF16, 128)
WIDE_PLAIN(bf16, BF16, 256)
