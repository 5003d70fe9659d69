/* Weights of a few bits on the GPU: how they lie there, and the arguments of the kernels that use
 * them. For C and CUDA.
 *
 * In a file, the fields of a block stand together: 18, 34 or 210 bytes that no 16-byte load fits.
 * Here every field has a plane of its own: field 0 of all groups of the tensor, then field 1 of all
 * of them, and so on, in as many bytes as before. A group is a block of 256 elements or two blocks
 * of 32; fields are cut so that threads that take neighbouring units of 64 elements load
 * neighbouring bytes. */
#ifndef KM_CUDA_QUANT_ARGS_H
#define KM_CUDA_QUANT_ARGS_H
#include <stdint.h>

/* X(dtype, blocks of a group, elements of it, then of each field: its place in the group as files
 * have it, its length, and for one that is gathered from several places how far apart they are and
 * how many). */
#define KM_QUANT_PLANES(X)                                                                         \
    X(Q4_0, 2, 64, {2, 16, 0, 1}, {20, 16, 0, 1}, {0, 2, 18, 2})                                   \
    X(Q4_1, 2, 64, {4, 16, 0, 1}, {24, 16, 0, 1}, {0, 4, 20, 2})                                   \
    X(Q5_0, 2, 64, {6, 16, 0, 1}, {28, 16, 0, 1}, {2, 4, 22, 2}, {0, 2, 22, 2})                    \
    X(Q5_1, 2, 64, {8, 16, 0, 1}, {32, 16, 0, 1}, {4, 4, 24, 2}, {0, 4, 24, 2})                    \
    X(Q8_0, 2, 64, {2, 16, 0, 1}, {18, 16, 0, 1}, {36, 16, 0, 1}, {52, 16, 0, 1}, {0, 2, 34, 2})   \
    X(Q2_K, 1, 256, {16, 64, 0, 1}, {0, 16, 0, 1}, {80, 4, 0, 1})                                  \
    X(Q3_K, 1, 256, {32, 64, 0, 1}, {0, 32, 0, 1}, {96, 12, 0, 1}, {108, 2, 0, 1})                 \
    X(Q4_K, 1, 256, {16, 16, 32, 4}, {32, 16, 32, 4}, {0, 16, 0, 1})                               \
    X(Q5_K, 1, 256, {48, 16, 32, 4}, {64, 16, 32, 4}, {16, 32, 0, 1}, {0, 16, 0, 1})               \
    X(Q6_K, 1, 256, {0, 128, 0, 1}, {128, 64, 0, 1}, {192, 16, 0, 1}, {208, 2, 0, 1})              \
    X(IQ4_NL, 2, 64, {2, 16, 0, 1}, {20, 16, 0, 1}, {0, 2, 18, 2})                                 \
    X(IQ4_XS, 1, 256, {8, 16, 32, 4}, {24, 16, 32, 4}, {0, 8, 0, 1})                               \
    X(MXFP4, 2, 64, {1, 16, 0, 1}, {18, 16, 0, 1}, {0, 1, 17, 2})

enum {
#define KM_QUANT_ENUM(name, ...) KM_QUANT_##name,
    KM_QUANT_PLANES(KM_QUANT_ENUM)
#undef KM_QUANT_ENUM
        KM_QUANT_TYPES
};

#define KM_QUANT_FIELDS 5
#define KM_QUANT_ALIGN                                                                             \
    16 /* groups of a tensor: a multiple of this, so that every plane is aligned */

typedef struct km_quant_field {
    uint8_t place, length, stride, count;
} km_quant_field;

/* From the file's layout to planes, or back. */
typedef struct km_planes_args {
    const uint8_t *from;
    uint8_t *to;
    int64_t groups; /* of the tensor */
    int64_t padded; /* groups that the planes have room for */
    int64_t end;    /* bytes of the file's layout: the last group may be there in part, and
                               * the rest of it is zeros in the planes */
    int32_t bytes;  /* of a group */
    km_quant_field field[KM_QUANT_FIELDS]; /* length 0: no more */
    int32_t back;
} km_planes_args;

/* A matrix (n, k) in planes. */
typedef struct km_quant_matrix {
    const uint8_t *planes; /* of the whole tensor */
    int64_t padded;        /* groups in a plane */
    int64_t first;         /* group with which the matrix begins */
} km_quant_matrix;

#define KM_QUANT_UNIT 64 /* weights that a thread takes at a time */
#define KM_FEW_THREADS 512
/* x of one row in shared memory: int8, or twice that of fine x, sums, scales. */
#define KM_FEW_X_BYTES(k, fine) (((fine) ? 2 * (k) : (k)) + (k) / 4 + (k) / 4)
#define KM_FEW_PARTS 3   /* layers over one x */
#define KM_FEW_AT_ONCE 8 /* rows of x */
/* One row of x: bytes that a thread takes of the weights at a time, by type, and how many such places
 * the ring of a block has: so many that two blocks share a multiprocessor of a wide chip (one with
 * 160 KiB of shared memory or more), and that a block has room on others. */
#define KM_ONE_X_BYTES(k, apart, fine)                                                             \
    (((k) + 2047) / 2048 * (((apart) ? 3072 : 2560) + ((fine) ? 2048 : 0)))
#define KM_X_MOST 127        /* x of the largest size in its 32, */
#define KM_X_MOST_FINE 32512 /* and with 16 bits: 256 times that, so that no lower half carries */
#define KM_QUANT_ITEMS(X)                                                                          \
    X(Q4_0, 36)                                                                                    \
    X(Q4_1, 40)                                                                                    \
    X(Q5_0, 44)                                                                                    \
    X(Q5_1, 48)                                                                                    \
    X(Q8_0, 68)                                                                                    \
    X(Q2_K, 28)                                                                                    \
    X(Q3_K, 48) X(Q4_K, 48) X(Q5_K, 80) X(Q6_K, 60) X(IQ4_NL, 36) X(IQ4_XS, 40) X(MXFP4, 36)
#define KM_PLAIN_PIECES 2 /* of 16 bytes, for 16-bit weights */
#define KM_ONE_RING(item, wide) ((wide) && (item) != 16 * KM_PLAIN_PIECES ? 96 << 10 : 64 << 10)
#define KM_ONE_FIT(item, wide) (KM_ONE_RING(item, wide) / ((item)*KM_FEW_THREADS))
#define KM_ONE_PLACES(item, wide) (KM_ONE_FIT(item, wide) < 2 ? 2 : KM_ONE_FIT(item, wide))

/* The same by the copy engine (quant_bulk.cuh): after x come a float for each warp, what warps tell
 * each other, and the barriers of all rings, then the rings. A warp takes two rows at a time where a
 * step of them, so many bytes, is not too long. Of few rows that are long, two warps take half each. */
#define KM_BULK_THREADS 256
#define KM_BULK_LONG_THREADS 512
#define KM_BULK_SUMS (64 + KM_BULK_LONG_THREADS / 64 * 32)
#define KM_BULK_STAGES 16 /* at most, of a warp */
#define KM_BULK_BARS (KM_BULK_LONG_THREADS / 32 * KM_BULK_STAGES * 8)
#define KM_BULK_ROWS(step) ((step) <= 3400 ? 2 : 1)

/* One layer of a call. */
typedef struct km_quant_part {
    km_quant_matrix w, up; /* up: of a gated layer */
    const float *bias;
    float *out; /* (m, n) */
    int32_t n;
    int32_t first;      /* blocks of the grid before this one's */
    int32_t each, more; /* rows of a block; the first `more` have one more */
    int32_t second;     /* of the two types that the kernel knows, the second */
} km_quant_part;

typedef struct km_quant_few_args {
    const float *x; /* (m, k) */
    km_quant_part part[KM_FEW_PARTS];
    int32_t parts, m, k, act;
    int32_t lane_bits; /* lanes that share a row of weights: 2^3, 2^4 or 2^5 */
    int32_t early;     /* before x is there: bytes of each matrix that a block calls into L2, or
                               * stages that a warp asks for (quant_bulk.cuh) */
    int32_t stages;    /* of a warp's ring (quant_bulk.cuh) */
    int32_t late;      /* the next kernel is let in when x is staged, not before */
    /* With norm_w, x is the rms_norm of delta + residual?: made here, and left where others may
     * look for it, with the sum and 1 / rms. */
    const float *delta, *residual, *norm_w;
    float *sum, *y, *rstd;
    float eps;
} km_quant_few_args;

/* Rows as floats: row ids[i] (or i) of a matrix, k elements each. */
typedef struct km_quant_rows_args {
    km_quant_matrix w;
    const void *ids; /* i32, or i64 when wide; NULL: all rows in order */
    void *out;
    int64_t rows;           /* of the matrix */
    int64_t count;          /* of out */
    int32_t k, wide, dtype; /* dtype: 0 f32, 1 f16, 2 bf16 */
} km_quant_rows_args;

#endif
