/* Weights of a few bits on the GPU: how they lie there, and the arguments of the kernels that use
 * them. For C and CUDA.
 *
 * In a file, the fields of a block stand together: 18, 34 or 210 bytes that no 16-byte load fits.
 * Here each field has a plane of its own: first field 0 of all blocks of the tensor, then field 1
 * of all of them, and so on, in as many bytes as before. */
#ifndef KM_CUDA_QUANT_ARGS_H
#define KM_CUDA_QUANT_ARGS_H
#include <stdint.h>

/* X(dtype, elements of a block, then each plane's place and length in the file's block): quants
 * first. */
#define KM_QUANT_PLANES(X)                                                                         \
    X(Q4_0, 32, {2, 16}, {0, 2})                                                                   \
    X(Q4_1, 32, {4, 16}, {0, 4})                                                                   \
    X(Q5_0, 32, {6, 16}, {2, 4}, {0, 2})                                                           \
    X(Q5_1, 32, {8, 16}, {4, 4}, {0, 4})                                                           \
    X(Q8_0, 32, {2, 32}, {0, 2})                                                                   \
    X(Q2_K, 256, {16, 64}, {0, 16}, {80, 4})                                                       \
    X(Q3_K, 256, {32, 64}, {0, 32}, {96, 12}, {108, 2})                                            \
    X(Q4_K, 256, {16, 128}, {0, 16})                                                               \
    X(Q5_K, 256, {48, 128}, {16, 32}, {0, 16})                                                     \
    X(Q6_K, 256, {0, 128}, {128, 64}, {192, 16}, {208, 2})                                         \
    X(IQ4_NL, 32, {2, 16}, {0, 2})                                                                 \
    X(IQ4_XS, 256, {8, 128}, {0, 8})                                                               \
    X(MXFP4, 32, {1, 16}, {0, 1})

enum {
#define KM_QUANT_ENUM(name, ...) KM_QUANT_##name,
    KM_QUANT_PLANES(KM_QUANT_ENUM)
#undef KM_QUANT_ENUM
    KM_QUANT_TYPES
};

#define KM_QUANT_FIELDS 4
#define KM_QUANT_ALIGN 16 /* blocks of a tensor: a multiple of this, so that every plane is aligned */

/* From the file's layout to planes, or back. */
typedef struct km_planes_args {
    const uint8_t *from;
    uint8_t *to;
    int64_t blocks;           /* of the tensor */
    int64_t padded;           /* blocks that the planes have room for */
    int32_t bytes;            /* of a block */
    int32_t fields;
    uint8_t place[KM_QUANT_FIELDS], length[KM_QUANT_FIELDS];
    int32_t back;
} km_planes_args;

/* A matrix (n, k) in planes. */
typedef struct km_quant_matrix {
    const uint8_t *planes;    /* of the whole tensor */
    int64_t padded;           /* blocks in a plane */
    int64_t first;            /* block with which the matrix begins */
} km_quant_matrix;

#define KM_QUANT_UNIT 64      /* weights that a thread takes at a time */
#define KM_FEW_THREADS 512
/* Slots of a thread's ring, of so many 16-byte pieces each: 96 KiB to a block, or a little more. */
#define KM_FEW_DEEP(pieces) ((pieces) <= 2 ? 6 : (pieces) <= 3 ? 4 : (pieces) <= 4 ? 3 : 2)
#define KM_PLAIN_PIECES 2  /* of 8 weights, in a slot of plain_few.cu's ring */
#define KM_PLAIN_DEEP(gated) ((gated) ? 3 : 6)
/* x of one row in shared memory: int8, sums, scales. */
#define KM_FEW_X_BYTES(k) (((k) + (k) / 4 + ((k) + 127) / 128 * 4 + 15) & ~15)
#define KM_FEW_PARTS 3        /* layers over one x */
#define KM_FEW_AT_ONCE 8      /* rows of x */

/* One layer of a call. */
typedef struct km_quant_part {
    km_quant_matrix w, up;    /* up: of a gated layer */
    const float *bias;
    float *out;               /* (m, n) */
    int32_t n;
    int32_t first;            /* blocks of the grid before this one's */
    int32_t second;           /* of the two types that the kernel knows, the second */
} km_quant_part;

typedef struct km_quant_few_args {
    const float *x;           /* (m, k) */
    km_quant_part part[KM_FEW_PARTS];
    int32_t parts, m, k, act;
    int32_t lanes;            /* that share a row of weights: 8, 16 or 32 */
    int32_t last;             /* blocks of the grid */
    int32_t early;            /* bytes of each matrix that a block calls into L2 before x is there */
    /* With norm_w, x is the rms_norm of delta + residual?: made here, and left where others may
     * look for it, with the sum and 1 / rms. */
    const float *delta, *residual, *norm_w;
    float *sum, *y, *rstd;
    float eps;
} km_quant_few_args;

/* Rows as floats: row ids[i] (or i) of a matrix, k elements each. */
typedef struct km_quant_rows_args {
    km_quant_matrix w;
    const void *ids;          /* i32, or i64 when wide; NULL: all rows in order */
    void *out;
    int64_t rows;             /* of the matrix */
    int64_t count;            /* of out */
    int32_t k, wide, dtype;   /* dtype: 0 f32, 1 f16, 2 bf16 */
} km_quant_rows_args;

#endif
