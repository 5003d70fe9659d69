/* Nearest centres and sums of cells on the GPU: what both sides know. */
#ifndef KM_CUDA_NEAREST_ARGS_H
#define KM_CUDA_NEAREST_ARGS_H
#include <stdint.h>

/* x and the centres are rounded to f16 in tiles, [block of rows][64 columns][row][column], swizzled as
 * tensor cores read them, zeros past the edges. */
#define KM_NEAREST_ROWS 128    /* of x in a tile */
#define KM_NEAREST_CENTRES 256 /* centres in a tile */
#define KM_NEAREST_DEPTH 64    /* columns of a tile */
#define KM_NEAREST_SAMPLE 2048 /* rows that say where the data lie */
#define KM_NEAREST_TOGETHER 8  /* rows that a full search takes at once */
#define KM_NEAREST_THREADS 384 /* of the Hopper kernel: one warpgroup copies, two multiply */

/* Stages of the ring, where x stays in shared memory (few columns) and where it does not. */
#define KM_NEAREST_RESIDENT 4 /* tiles along a row that may stay, twice over */
#define KM_NEAREST_STAGES(slices) ((slices) <= 2 ? 5 : (slices) <= 4 ? 3 : 4)
#define KM_NEAREST_SHARED(slices)                                                                  \
    (1024 + KM_NEAREST_STAGES(slices) * 32768 + 512 +                                              \
     ((slices) <= KM_NEAREST_RESIDENT ? 2 * (slices) : KM_NEAREST_STAGES(slices)) * 16384)

/* What is known of the data as a whole. */
typedef struct km_nearest_info {
    uint32_t reach; /* the largest |x - mean| of the sample, as bits */
    uint32_t pad[15];
} km_nearest_info;

typedef struct km_nearest_args {
    const void *x;       /* (n, d) */
    const float *centre; /* (k, d) */
    int32_t *id;         /* (n) */
    float *dist;         /* (n) */
    /* notes on x */
    void *x_tiles;
    float *x_norm; /* (blocks * 128): |x'|^2, infinite where f16 overflows */
    float *mean;   /* (slices * 64) */
    km_nearest_info *info;
    /* of this call */
    void *c_tiles;
    float *c_norm, *c_size;  /* (tiles * 256): |c'|^2, huge past the last; |c'| */
    int32_t *pair;           /* (n, 2): rows with two candidates, and the second one */
    int32_t *full;           /* (n): rows that must meet all centres */
    unsigned long long *key; /* (n): distance and centre found by a full search */
    uint32_t *counts;        /* 4: pairs, full, and two unused */
    float slack;             /* error of a product, as a part of |x'| |c'| */
    float root;              /* sqrt(d) */
    int64_t n;
    int32_t d, k, slices, row_blocks, centre_tiles, aligned;
} km_nearest_args;

/* One pass over rows that become tiles. */
typedef struct km_nearest_round_args {
    const void *from; /* (n, d) */
    const float *mean;
    const km_nearest_info *info;
    void *tiles;
    float *norm, *size; /* size may be NULL */
    uint32_t *counts;   /* set to zero, or NULL */
    float past;         /* norm of rows past the last */
    int64_t n, padded;
    int32_t d, slices, tile_rows, aligned;
} km_nearest_round_args;

/* Sums of cells. Rows are sorted by cell, stably, in tiles; a warp of a tile counts for itself. */
#define KM_CELLS_WARPS 8
#define KM_CELLS_MOST 4096 /* cells whose counters fit into shared memory, for each warp */
#define KM_CELLS_CHUNK 512 /* rows of a cell that one block adds up */

typedef struct km_cells_args {
    const void *x; /* (n, d) */
    const int32_t *id;
    const float *weight, *dist; /* or NULL */
    float *sum, *mass, *count, *spread;
    uint32_t *tile_count; /* (tiles, k): how many, then where they go within the cell */
    uint32_t *start;      /* (k + 1) */
    uint32_t *chunk;      /* (k + 1): blocks before this cell */
    uint32_t *total;      /* (k) */
    uint32_t *order;      /* (n): rows sorted by cell */
    float *part;          /* (chunks, d + 4): sums of chunks of cells that have several */
    uint32_t *done;       /* (k): chunks finished; zero between calls */
    int64_t n;
    int32_t d, k, tiles, tile_rows, columns, groups, slabs, chunks, aligned;
} km_cells_args;

#endif
