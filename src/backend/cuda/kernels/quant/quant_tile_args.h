/* The arguments of the kernels that multiply many rows with weights of a few bits. For C and CUDA. */
#ifndef KM_CUDA_QUANT_TILE_ARGS_H
#define KM_CUDA_QUANT_TILE_ARGS_H
#include "backend/cuda/kernels/gemm/tensor_map.h"
#include "backend/cuda/kernels/quant/quant_args.h"

#define KM_TILE_SIDE 128
#define KM_TILE_THREADS 256
#define KM_TILE_SHARED (5 * 128 * 64 * 2)

/* Products with weights in registers (quant_regs.cuh): rows of weights of a block, its threads (two
 * warpgroups), super-steps of weights and steps of x under way, blocks to a
 * multiprocessor; all by the tokens of a tile. */
#define KM_REGS_ROWS 128
#define KM_REGS_THREADS 256
#define KM_REGS_DEPTH 256 /* elements of a super-step: four steps of 64 */
#define KM_REGS_PLACES(item) ((item) > 48 ? 2 : 3)
#define KM_REGS_STAGES 4
#define KM_REGS_BLOCKS(tokens) ((tokens) > 64 ? 1 : 2)
#define KM_REGS_SHARED(tokens, item)                                                               \
    (1024 + KM_REGS_STAGES * (tokens)*128 + KM_REGS_PLACES(item) * 2 * (item)*KM_REGS_THREADS)
#define KM_REGS_SPLITS 8 /* blocks of a cluster that share a tile, at most */

/* The same of 16-bit weights (plain_regs.cu): a stage has a step of weights, 128 rows, and one of x. */
#define KM_PLAIN_W_STEP (KM_REGS_ROWS * 128)
#define KM_PLAIN_STAGES(tokens) ((tokens) > 128 ? 4 : (tokens) > 64 ? 6 : (tokens) > 16 ? 4 : 6)
#define KM_PLAIN_BLOCKS(tokens) ((tokens) > 64 ? 1 : 2)
#define KM_PLAIN_REGS_SHARED(tokens)                                                               \
    (1024 + KM_PLAIN_STAGES(tokens) * (KM_PLAIN_W_STEP + (tokens)*128))

/* x (rows, k) as f16; of each row the factor that gives back x, 2^-8 of it. Orders: as x has it; in that of
 * quant_regs.cuh, for types whose runs stand side by side, or apart; of plain_regs.cu; and of
 * quant_mma.cuh, side by side or apart. */
enum {
    KM_ROUND_PLAIN,
    KM_ROUND_REGS,
    KM_ROUND_REGS_APART,
    KM_ROUND_STEPS,
    KM_ROUND_MMA,
    KM_ROUND_MMA_APART
};
#define KM_ROUND_THREADS 256
#define KM_ROUND_KEEP (160 << 10) /* bytes of a row that stay in shared memory */
typedef struct km_round_args {
    const float *x;
    void *out, *apart; /* apart: the second of an order's two ways, too, when it is not NULL */
    float *scale;
    int32_t k;
    int32_t rows; /* of x; blocks beyond make rows of zeros */
    int32_t order;
    int32_t padded; /* rows of out, with an order */
    int32_t keep;   /* the row has room in shared memory */
    /* With norm_w, x is the rms_norm of itself + residual?: made here, and left in y, with the sum and
     * 1 / rms. */
    const float *residual, *norm_w;
    float *sum, *y, *rstd;
    float eps;
} km_round_args;

/* Another layer over the same x, of the same type (quant_regs.cuh). */
typedef struct km_tile_more {
    km_quant_matrix w;
    const float *bias;
    float *out;
    int32_t n;
    int32_t first; /* its first tile of rows */
} km_tile_more;

typedef struct km_tile_args {
    const void *x;         /* (m, k) f16 */
    const float *scale;    /* (m) */
    km_quant_matrix w, up; /* up: of a gated layer; planes: the elements, for plain weights */
    const float *bias;
    float *out; /* (m, n) */
    km_tile_more more[KM_FEW_PARTS - 1];
    int32_t m, n, k, act;
    int32_t padded; /* rows of x, with those that only fill tiles */
    int32_t early;  /* weights may be read before the kernel in front has ended */
    int32_t layers; /* with those of `more` */
} km_tile_args;

/* Few rows of x by tensor cores (quant_mma.cuh), 8, 16 or 32, in eights: threads of a block, super-steps of
 * weights under way, bytes of a super-step of x, floats of a tile's sums for one token, and super-steps
 * of x that a block may have. */
#define KM_MMA_FEW_THREADS 256
#define KM_MMA_FEW_PLACES(eights, item) ((eights) > 1 || (item) > 48 ? 2 : 3)
#define KM_MMA_FEW_X 4096
#define KM_MMA_FEW_SUMS 20
#define KM_MMA_FEW_SUPERS 64
#define KM_MMA_FEW_SHARED(eights, item, supers)                                                    \
    ((eights)*KM_MMA_FEW_X * (supers) +                                                            \
     KM_MMA_FEW_PLACES(eights, item) * 2 * (item)*KM_MMA_FEW_THREADS +                             \
     KM_MMA_FEW_THREADS / 32 * 8 * (eights)*KM_MMA_FEW_SUMS * 4)

typedef struct km_mma_few_args {
    const void *x[2];   /* (super-steps, eights, 8, 32) of 16 bytes; the second: runs apart */
    const float *scale; /* (m) */
    km_quant_part part[KM_FEW_PARTS];
    int32_t parts, m, k, act;
    int32_t tiles;  /* of a block, 1, 2, 4 or 8; its warps share them along k */
    int32_t groups; /* of tiles; blocks with nobody beside them along k may take several */
    int32_t supers; /* that a block has of x, at most */
    int32_t early;  /* weights may be read before the kernel in front has ended */
} km_mma_few_args;

/* What the copy engine knows of 16-bit weights: of each layer, or of the two matrices of a gated one. */
typedef struct km_plain_maps {
    km_tensor_map w[KM_FEW_PARTS];
} km_plain_maps;

#endif
