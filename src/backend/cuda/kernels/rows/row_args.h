/* The arguments of the kernels that work on rows: softmax, norms, losses, indexing, rotary
 * positions. Each takes one struct by value. For C and CUDA; pointers are device addresses. */
#ifndef KM_CUDA_ROW_ARGS_H
#define KM_CUDA_ROW_ARGS_H
#include <stdint.h>

/* How many threads share a row, and what each holds of it (row.cuh). */
#define KM_WARP_PACKS 4
#define KM_BLOCK_PACKS 4
#define KM_CLUSTER_PACKS 8
#define KM_WARP_ROWS 4       /* rows to a block, where a warp takes one */
#define KM_FINISH_COLUMNS 16 /* of norm_grad_finish: columns to a block, groups of parts */
#define KM_FINISH_GROUPS 32
#define KM_CLUSTER_MOST 8 /* blocks to a cluster, 2, 4 or 8 of them */

typedef struct km_softmax_args {
    const void *x, *dy; /* backward: x is y */
    void *out;
    int64_t rows, inner; /* inner: stride of the row's elements, where it is not 1 */
    int32_t n, log;
} km_softmax_args;

typedef struct km_norm_args {
    const void *x, *residual, *w, *b; /* residual and b may be NULL */
    void *y, *sum;                    /* sum: x + residual */
    float *mean, *rstd;               /* (rows); mean NULL for rms_norm */
    int64_t rows;
    int32_t n;
    float eps;
} km_norm_args;

typedef struct km_norm_grad_args {
    const void *dy, *x, *w, *dsum; /* dsum may be NULL */
    const float *mean, *rstd;      /* mean NULL for rms_norm */
    void *dx, *dw, *db;            /* db NULL for rms_norm */
    float *partial;                /* (parts, 2, n): dw and db of each part of the rows */
    int64_t rows;
    int32_t n, parts;
} km_norm_grad_args;

typedef struct km_loss_args {
    const void *x, *targets;     /* x (rows, n); targets i32 or i64, or x's shape and dtype */
    const float *lse_in, *dloss; /* backward; dloss NULL stands for 1 */
    float *loss, *lse;           /* loss: one number; lse (rows) */
    float *row_loss;             /* (rows), or (parts) for mse and bce */
    float *count;                /* rows that count, one number */
    void *dx;
    int64_t rows, ignore, total;  /* total: elements of mse and bce */
    int32_t n, wide, mean, parts; /* wide: targets are i64 */
    int32_t bce;
} km_loss_args;

typedef struct km_index_args {
    const void *x, *src, *index;
    void *out;
    int64_t outer, axis, inner;  /* x as (outer, axis, inner); lines of index likewise */
    int64_t items, limit;        /* indices; each is below limit */
    int64_t rows, bytes;         /* of the table, and of one of its rows */
    int64_t dim[5], x_stride[5]; /* gather, scatter_add: index's axes, x's strides along them */
    int64_t x_axis;              /* x's stride along the axis */
    int32_t ndim, axis_at;
    int32_t wide, accumulate; /* wide: indices are i64 */
} km_index_args;

/* What a mask picks: masked_select, masked_scatter, nonzero. */
#define KM_COMPACT_TILE 4096 /* elements to a block */
#define KM_COMPACT_THREADS 256
typedef struct km_compact_args {
    const void *x, *flags; /* elements to move; what picks them, not 0 */
    void *out;
    int64_t *first;    /* (tiles + 1): results of the tiles before */
    int64_t n, limit;  /* elements; results there is room for, or elements of src */
    uint64_t relevant; /* bits of a flag that make it other than 0 */
    int64_t dim[5];    /* nonzero: the axes of flags */
    int32_t ndim, tiles;
} km_compact_args;

/* The embedding's gradient. Ids are sorted with their positions, eight bits at a time. */
#define KM_SORT_TILE 2048 /* ids to a block of 256 threads */
#define KM_HEAVY 64       /* a row of the table used more often is a whole block's work */
typedef struct km_embedding_grad_args {
    const void *index, *dy;         /* ids i32 or i64 */
    void *out;                      /* the table's gradient (rows, inner) */
    const uint32_t *key_in, *at_in; /* of one pass; NULL: the ids themselves */
    uint32_t *key, *at;             /* sorted: ids (rows for a bad one), their positions */
    uint32_t *digits;               /* (256, tiles): how many, then where they go */
    uint32_t *start;                /* (rows + 1): where each row's positions begin */
    uint32_t *heavy;                /* how many rows are, and which */
    int64_t items, rows, inner;
    int32_t tiles, shift, wide, accumulate;
} km_embedding_grad_args;

typedef struct km_rope_args {
    const void *x, *positions;
    void *out;
    int64_t batch; /* x is (batch, T, d) */
    int32_t t, d, dims, adjacent, inverse, wide;
    double log2_base;
} km_rope_args;

#endif
