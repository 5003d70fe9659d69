/* The arguments of the elementwise, fill, copy and reduction kernels: each takes one struct by
 * value, and both sides include this. For C and CUDA. Pointers are device addresses. */
#ifndef KM_CUDA_ARGS_H
#define KM_CUDA_ARGS_H
#include "backend/cuda/kernels/walk.h"

/* ---- Elementwise, everything contiguous and 16-byte aligned ---- */

typedef struct km_map_args {
    const void *a, *b; /* b: the second operand, where there is one */
    void *out;
    int64_t n;
    double f0, f1; /* the op's numbers: bounds of a clamp, a scalar */
} km_map_args;

#define KM_MAP_THREADS 256 /* at most; each handles one 16-byte vector of every operand */

/* ---- Elementwise through strides ---- */

typedef struct km_walk_args {
    const void *a, *b, *c;
    void *out;
    double f0, f1;
    int64_t i0, i1; /* the numbers of an op on integers */
    int32_t op;     /* a km_op; comparisons: the outcomes that are true; casts: dtype from */
    int32_t dtype;  /* a km_dtype, where the kernel serves several; casts: dtype to */
    km_walk walk;   /* operands in the order out, a, b, c */
} km_walk_args;

/* Comparisons: outcomes as bits. Unordered (NaN) is none of the first three. */
enum { KM_IS_LESS = 1, KM_IS_EQUAL = 2, KM_IS_GREATER = 4, KM_IS_UNORDERED = 8 };

/* ---- Random numbers and fills ---- */

typedef struct km_random_args {
    const void *x; /* dropout's input, contiguous */
    void *out;
    int64_t n;
    uint64_t seed, stream;
    const uint64_t *draws; /* two words to add to stream and seed, or NULL (graph.h) */
    double f0, f1;         /* lo and hi, mean and deviation, or dropout's scale */
    uint32_t threshold;    /* dropout: an element lives if its 24 random bits reach this */
    int32_t aligned;       /* x and out lie at multiples of four elements */
} km_random_args;

typedef struct km_fill_args { /* contiguous, 16-byte aligned */
    void *out;
    int64_t bytes;
    uint64_t pattern[2]; /* 16 bytes of repeated elements */
} km_fill_args;

typedef struct km_arange_args {
    void *out;
    int64_t n;
    double start, step;
    int32_t dtype;
} km_arange_args;

/* ---- Copies ---- */

typedef struct km_cast_args { /* contiguous and aligned */
    const void *x;
    void *out;
    int64_t n; /* elements, or bytes of a copy */
} km_cast_args;

/* Swaps two axes by tiles: x has stride 1 along `rows`, out along `cols`; the rest is batch. */
typedef struct km_transpose_args {
    const void *x;
    void *out;
    uint32_t rows, cols;
    int64_t x_col, out_row; /* x's stride along cols, out's along rows */
    km_divisor tiles_c, tiles_r, batch1, batch2;
    int64_t x_batch[3], out_batch[3]; /* strides of the up to three batch axes, inner first */
} km_transpose_args;

#define KM_TILE 64 /* elements along each side of a transposed tile */

/* ---- Reductions ---- */

/* x as kept axes (one output for each of their elements) times reduced axes.
 *   block    `parts` blocks share an output; the last of them to finish puts the parts together
 *   warp     a warp, or a part of one, for each output
 *   columns  x as (outer, n, inner), n reduced; blocks of KM_COLUMN_LANES x KM_COLUMN_ROWS threads,
 *            each thread a vector of columns, `parts` blocks for each group of columns */
typedef struct km_reduce_args {
    const void *x;
    void *out;
    void *partial;      /* (outputs, parts) or (outer, parts, inner) states, where parts > 1 */
    uint32_t *counters; /* one for each output or group of columns; zero before and after */
    int64_t n;          /* elements that go into one output */
    int64_t outputs;
    float divisor; /* mean: n; var: n - correction, at least 0; otherwise 1 */
    int32_t parts;
    int32_t vectors;       /* block, warp: reduced elements are contiguous, 16-byte aligned */
    int32_t lanes;         /* warp: of a warp for one output; 4, 8, 16 or 32 */
    int32_t op, dtype;     /* of the kernel that serves all integers */
    int64_t inner, row;    /* columns: x's stride along n is `row` */
    km_walk kept, reduced; /* offsets in x, one operand each; columns: kept is outer */
} km_reduce_args;

#define KM_COLUMN_LANES 32
#define KM_COLUMN_ROWS 8
#define KM_REDUCE_STATE 12 /* bytes of a partial result, at most */

#endif
