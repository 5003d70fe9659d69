/* Inner loops that turn 16-bit floats to f32 and back, copy, fill and transpose. Any length.
 * stream: store past the caches; fence afterwards. */
#ifndef KM_BACKEND_CPU_SIMD_CONVERT_H
#define KM_BACKEND_CPU_SIMD_CONVERT_H
#include "backend/cpu/cpu.h"

typedef struct km_convert_rows {
    void (*from_f16)(float *out, const uint16_t *x, int64_t n, bool stream);
    void (*from_bf16)(float *out, const uint16_t *x, int64_t n, bool stream);
    void (*to_f16)(uint16_t *out, const float *x, int64_t n, bool stream);
    void (*to_bf16)(uint16_t *out, const float *x, int64_t n, bool stream);
    void (*copy)(float *out, const float *x, int64_t n, bool stream); /* four-byte elements */
    void (*fill)(float *out, float value, int64_t n, bool stream);
    /* out[r * so + c] = x[c * sx + r] for r < down, c < wide; four-byte elements */
    void (*transpose)(float *out, int64_t so, const float *x, int64_t sx, int64_t down,
                      int64_t wide, bool stream);
} km_convert_rows;

KM_SIMD_TABLE(km_convert_rows, km_simd_convert)

#endif
