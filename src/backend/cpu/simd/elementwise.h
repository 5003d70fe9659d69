/* Inner loops of elementwise ops: f32, contiguous, any length. Other dtypes and strides are
 * brought into this form block by block (backend/cpu/stage.h). out may be an input. */
#ifndef KM_BACKEND_CPU_SIMD_ELEMENTWISE_H
#define KM_BACKEND_CPU_SIMD_ELEMENTWISE_H
#include "backend/cpu/cpu.h"

/* f: the op's numbers (clamp's bounds, the scalar). stream: store past the caches; fence afterwards. */
typedef void (*km_unary_row)(float *out, const float *x, int64_t n, const float *f, bool stream);
typedef void (*km_binary_row)(float *out, const float *a, const float *b, int64_t n, const float *f,
                              bool stream);
typedef void (*km_compare_row)(uint8_t *out, const float *a, const float *b, int64_t n);

typedef struct km_unary_rows {
    km_unary_row row[KM_OP_COUNT]; /* NULL where op is no unary op */
} km_unary_rows;

typedef struct km_binary_rows {
    km_binary_row both[KM_OP_COUNT];    /* a[i], b[i]; gradients of unary ops too */
    km_binary_row fixed_b[KM_OP_COUNT]; /* a[i], b[0]; binary ops only, likewise the next */
    km_binary_row fixed_a[KM_OP_COUNT]; /* a[0], b[i] */
    km_compare_row compare[KM_OP_COUNT];
} km_binary_rows;

KM_SIMD_TABLE(km_unary_rows, km_simd_unary)
KM_SIMD_TABLE(km_binary_rows, km_simd_binary)

#endif
