/* What Kermes uses of cuBLASLt's binary interface (versions 11 to 13), in our own words, so that
 * the host side builds where no CUDA toolkit is. Every function returns 0 or a status number. */
#ifndef KM_BACKEND_CUDA_CUBLAS_API_H
#define KM_BACKEND_CUDA_CUBLAS_API_H
#include "backend/cuda/cuda_api.h"

typedef struct km_lt_context *km_lt_handle;
typedef struct km_lt_desc_handle *km_lt_desc;     /* of a product */
typedef struct km_lt_layout_handle *km_lt_layout; /* of a matrix */
typedef struct km_lt_wish_handle *km_lt_wish;     /* what an algorithm may need */

typedef struct km_lt_algo {
    uint64_t data[8];
} km_lt_algo;

typedef struct km_lt_found {
    km_lt_algo algo;
    size_t workspace; /* bytes it needs */
    int state;        /* 0 when usable */
    float waves;
    int reserved[4];
} km_lt_found;

enum { /* statuses we tell apart */
       KM_LT_OK = 0,
       KM_LT_INVALID = 7,
       KM_LT_ARCH = 8,
       KM_LT_UNSUPPORTED = 15
};
enum { KM_LT_F32 = 0, KM_LT_F64 = 1, KM_LT_F16 = 2, KM_LT_BF16 = 14 };            /* elements */
enum { KM_LT_COMPUTE_F32 = 68, KM_LT_COMPUTE_F64 = 70, KM_LT_COMPUTE_TF32 = 77 }; /* sums */
enum {                   /* attributes of a product */
       KM_LT_TURN_A = 3, /* int32: 0 as it is, 1 turned */
       KM_LT_TURN_B = 4,
       KM_LT_EPILOGUE = 7, /* uint32 */
       KM_LT_BIAS = 8,     /* pointer */
       KM_LT_AUX = 11,     /* pointer: gelu's input goes there */
       KM_LT_AUX_LD = 12   /* int64 */
};
enum { KM_LT_BATCH = 5 /* int32 */, KM_LT_BATCH_STRIDE = 6 /* int64 */ }; /* of a layout */
enum {                                                                    /* of a wish */
       KM_LT_MAX_WORKSPACE = 1,                                           /* uint64 */
       KM_LT_REDUCTIONS = 3, /* uint32: ways to add the parts of a split sum */
       KM_LT_ALIGN_A = 5,    /* uint32, as the next three */
       KM_LT_ALIGN_B = 6,
       KM_LT_ALIGN_C = 7,
       KM_LT_ALIGN_D = 8
};
enum { KM_LT_REDUCE_F32 = 2, KM_LT_REDUCE_ANY = 7 };
enum { /* epilogues, as bits */
       KM_LT_PLAIN = 1,
       KM_LT_RELU = 2,
       KM_LT_ADD_BIAS = 4,
       KM_LT_GELU = 32,      /* the tanh form */
       KM_LT_GELU_GRAD = 64, /* times the slope of gelu at what was kept */
       KM_LT_KEEP = 128      /* with gelu: store its input */
};

/* X(our name, the library's symbol, parameters) */
#define KM_LT_NEEDED(X)                                                                            \
    X(create, "cublasLtCreate", (km_lt_handle * handle))                                           \
    X(destroy, "cublasLtDestroy", (km_lt_handle handle))                                           \
    X(desc_create, "cublasLtMatmulDescCreate", (km_lt_desc * desc, int compute, int scale))        \
    X(desc_destroy, "cublasLtMatmulDescDestroy", (km_lt_desc desc))                                \
    X(desc_set, "cublasLtMatmulDescSetAttribute",                                                  \
      (km_lt_desc desc, int attr, const void *value, size_t size))                                 \
    X(layout_create, "cublasLtMatrixLayoutCreate",                                                 \
      (km_lt_layout * layout, int type, uint64_t rows, uint64_t cols, int64_t ld))                 \
    X(layout_destroy, "cublasLtMatrixLayoutDestroy", (km_lt_layout layout))                        \
    X(layout_set, "cublasLtMatrixLayoutSetAttribute",                                              \
      (km_lt_layout layout, int attr, const void *value, size_t size))                             \
    X(wish_create, "cublasLtMatmulPreferenceCreate", (km_lt_wish * wish))                          \
    X(wish_destroy, "cublasLtMatmulPreferenceDestroy", (km_lt_wish wish))                          \
    X(wish_set, "cublasLtMatmulPreferenceSetAttribute",                                            \
      (km_lt_wish wish, int attr, const void *value, size_t size))                                 \
    X(find, "cublasLtMatmulAlgoGetHeuristic",                                                      \
      (km_lt_handle handle, km_lt_desc desc, km_lt_layout a, km_lt_layout b, km_lt_layout c,       \
       km_lt_layout d, km_lt_wish wish, int asked, km_lt_found *found, int *count))                \
    X(matmul, "cublasLtMatmul",                                                                    \
      (km_lt_handle handle, km_lt_desc desc, const void *alpha, const void *a, km_lt_layout la,    \
       const void *b, km_lt_layout lb, const void *beta, const void *c, km_lt_layout lc, void *d,  \
       km_lt_layout ld, const km_lt_algo *algo, void *workspace, size_t workspace_size,            \
       km_cu_stream stream))

typedef struct km_lt_api {
#define KM_LT_FIELD(name, symbol, params) int(*name) params;
    KM_LT_NEEDED(KM_LT_FIELD)
#undef KM_LT_FIELD
} km_lt_api;

#endif
