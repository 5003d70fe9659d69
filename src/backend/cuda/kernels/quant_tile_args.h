/* The arguments of the kernels that multiply many rows with weights of a few bits. For C and CUDA. */
#ifndef KM_CUDA_QUANT_TILE_ARGS_H
#define KM_CUDA_QUANT_TILE_ARGS_H
#include "backend/cuda/kernels/quant_args.h"

#define KM_TILE_SIDE 128
#define KM_TILE_THREADS 256
#define KM_TILE_SHARED (5 * 128 * 64 * 2)
#define KM_TILE_HOPPER_SHARED (7 * 128 * 64 * 2)
#define KM_TILE_FLOATS (128 * 128) /* of a tile, in partial */

/* x (rows, k) as f16; of each row the factor that gives back x, 2^-8 of it. */
typedef struct km_round_args {
    const float *x;
    void *out;
    float *scale;
    int32_t k;
} km_round_args;

typedef struct km_tile_args {
    const void *x;            /* (m, k) f16 */
    const float *scale;       /* (m) */
    km_quant_matrix w, up;    /* up: of a gated layer; planes: the elements, for plain weights */
    const float *bias;
    float *out;               /* (m, n) */
    float *partial;           /* (tiles, splits, KM_TILE_FLOATS) where blocks share tiles */
    uint32_t *counters;       /* one to a tile */
    int32_t m, n, k, act;
} km_tile_args;

#endif
