/* The tensor types of ggml, as GGUF files store them: elements come in blocks of fixed size along
 * the fastest dimension. What is in a block is no concern here. */
#ifndef KM_FORMAT_GGML_TYPES_H
#define KM_FORMAT_GGML_TYPES_H
#include "kermes.h"

/* X(name, number in the file, elements in a block, bytes of a block, the dtype that Kermes computes
 * with, KM_DTYPE_COUNT: none) */
#define KM_GGML_LIST(X)                                                                            \
    X(F32, 0, 1, 4, KM_F32)                                                                        \
    X(F16, 1, 1, 2, KM_F16)                                                                        \
    X(Q4_0, 2, 32, 18, KM_Q4_0)                                                                    \
    X(Q4_1, 3, 32, 20, KM_Q4_1)                                                                    \
    X(Q5_0, 6, 32, 22, KM_Q5_0)                                                                    \
    X(Q5_1, 7, 32, 24, KM_Q5_1)                                                                    \
    X(Q8_0, 8, 32, 34, KM_Q8_0)                                                                    \
    X(Q8_1, 9, 32, 36, KM_DTYPE_COUNT)                                                             \
    X(Q2_K, 10, 256, 84, KM_Q2_K)                                                                  \
    X(Q3_K, 11, 256, 110, KM_Q3_K)                                                                 \
    X(Q4_K, 12, 256, 144, KM_Q4_K)                                                                 \
    X(Q5_K, 13, 256, 176, KM_Q5_K)                                                                 \
    X(Q6_K, 14, 256, 210, KM_Q6_K)                                                                 \
    X(Q8_K, 15, 256, 292, KM_DTYPE_COUNT)                                                          \
    X(IQ2_XXS, 16, 256, 66, KM_DTYPE_COUNT)                                                        \
    X(IQ2_XS, 17, 256, 74, KM_DTYPE_COUNT)                                                         \
    X(IQ3_XXS, 18, 256, 98, KM_DTYPE_COUNT)                                                        \
    X(IQ1_S, 19, 256, 50, KM_DTYPE_COUNT)                                                          \
    X(IQ4_NL, 20, 32, 18, KM_IQ4_NL)                                                               \
    X(IQ3_S, 21, 256, 110, KM_DTYPE_COUNT)                                                         \
    X(IQ2_S, 22, 256, 82, KM_DTYPE_COUNT)                                                          \
    X(IQ4_XS, 23, 256, 136, KM_IQ4_XS)                                                             \
    X(I8, 24, 1, 1, KM_I8)                                                                         \
    X(I16, 25, 1, 2, KM_DTYPE_COUNT)                                                               \
    X(I32, 26, 1, 4, KM_I32)                                                                       \
    X(I64, 27, 1, 8, KM_I64)                                                                       \
    X(F64, 28, 1, 8, KM_F64)                                                                       \
    X(IQ1_M, 29, 256, 56, KM_DTYPE_COUNT)                                                          \
    X(BF16, 30, 1, 2, KM_BF16)                                                                     \
    X(TQ1_0, 34, 256, 54, KM_DTYPE_COUNT)                                                          \
    X(TQ2_0, 35, 256, 66, KM_DTYPE_COUNT)                                                          \
    X(MXFP4, 39, 32, 17, KM_MXFP4)                                                                 \
    X(NVFP4, 40, 64, 36, KM_DTYPE_COUNT)                                                           \
    X(Q1_0, 41, 128, 18, KM_DTYPE_COUNT)

typedef enum km_ggml_type {
#define KM_GGML_ENUM(name, number, block, bytes, dtype) KM_GGML_##name = number,
    KM_GGML_LIST(KM_GGML_ENUM)
#undef KM_GGML_ENUM
} km_ggml_type;

typedef struct km_ggml_info {
    const char *name; /* "Q4_K" */
    km_ggml_type type;
    int block, bytes; /* elements and bytes of a block */
    km_dtype dtype;   /* KM_DTYPE_COUNT: Kermes cannot compute with it */
} km_ggml_info;

const km_ggml_info *km_ggml_info_of(uint32_t type);        /* NULL: no such type */
bool km_ggml_of_dtype(km_dtype dtype, km_ggml_type *type); /* false: GGUF cannot hold it */

/* The bytes of a tensor of that shape; false when its rows are no whole blocks or on overflow. */
bool km_ggml_bytes(const km_ggml_info *info, km_shape shape, size_t *bytes);

#endif
