/* Many rows of x by blocks that stay (regs_wide.cuh). For C and CUDA. */
#ifndef KM_CUDA_QUANT_WIDE_ARGS_H
#define KM_CUDA_QUANT_WIDE_ARGS_H
#include "backend/cuda/kernels/quant/quant_tile_args.h"

/* Tiles of 128 or 256 tokens: threads of a block, with a warpgroup that asks; stages of its ring, with
 * weights of 16 bits in them; and the ring of those of a few bits. */
#define KM_WIDE_THREADS (KM_REGS_THREADS + 128)
#define KM_WIDE_STAGES(tokens) ((tokens) > 128 ? 4 : 6)
#define KM_WIDE_SHARED(tokens, step, ring)                                                         \
    (1024 + KM_WIDE_STAGES(tokens) * ((step) + (tokens)*128) + (ring))
#define KM_WIDE_RING(item) (KM_REGS_PLACES(item) * 2 * (item)*KM_REGS_THREADS)

#endif
