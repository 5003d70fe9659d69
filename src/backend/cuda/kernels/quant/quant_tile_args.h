/* The arguments of the kernels that multiply many rows with weights of a few bits. For C and CUDA. */
#ifndef KM_CUDA_QUANT_TILE_ARGS_H
#define KM_CUDA_QUANT_TILE_ARGS_H
#include "backend/cuda/kernels/quant/quant_args.h"

#define KM_TILE_SIDE 128
#define KM_TILE_THREADS 256
#define KM_TILE_SHARED (5 * 128 * 64 * 2)
#define KM_TILE_HOPPER_SHARED (7 * 128 * 64 * 2)
#define KM_TILE_FLOATS (128 * 128) /* of a tile, in partial */

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
#define KM_REGS_SPLITS 8 /* blocks of a cluster that share a tile, at most: 1, 2, 4 or 8 */

/* x (rows, k) as f16; of each row the factor that gives back x, 2^-8 of it. */
typedef struct km_round_args {
    const float *x;
    void *out;
    float *scale;
    int32_t k;
    int32_t rows;   /* of x; blocks beyond make rows of zeros */
    int32_t order;  /* 0: as x has it; 1, 2: in the order of quant_regs.cuh, runs apart */
    int32_t padded; /* rows of out, with an order */
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
    float *partial;     /* (tiles, splits, KM_TILE_FLOATS) where blocks share tiles */
    uint32_t *counters; /* one to a tile */
    int32_t m, n, k, act;
    int32_t padded; /* rows of x, with those that only fill tiles */
    int32_t early;  /* weights may be read before the kernel in front has ended */
    int32_t layers; /* with those of `more` */
} km_tile_args;

#endif
