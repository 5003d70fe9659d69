/* The table of this instruction set's kernels for weights in blocks. */
#include "backend/cpu/quant_kernels.h"
#include "backend/cpu/simd/quant_vec.h"

void KM_SIMD(km_quant_encode)(const float *x, int64_t n, km_quant_x *out, km_quant_low *low);
void KM_SIMD(km_quant_encode_words)(const float *x, int64_t n, int64_t rows, void *out);
void KM_SIMD(km_quant_unpack_words)(km_dtype d, const uint8_t *w, int64_t bytes, int64_t n,
                                    int first, int outs, km_quant_word_panel *panel);
void KM_SIMD(km_quant_tile_words)(const km_quant_word_panel *panel, const void *x, int64_t ldx,
                                  int64_t rows, int64_t n, bool add, float *y, int64_t ldy);
void KM_SIMD(km_quant_few)(km_dtype d, const uint8_t *w, const uint8_t *end, int64_t bytes,
                           int64_t n, int64_t outs, const km_quant_rows *x, float *y, int64_t ldy);
void KM_SIMD(km_quant_take_apart)(km_dtype d, const uint8_t *w, const uint8_t *end, int64_t bytes,
                                  int64_t n, int64_t outs, km_quant_apart *p);
void KM_SIMD(km_quant_meet)(km_dtype d, const km_quant_apart *p, int64_t n, int64_t outs,
                            const km_quant_rows *x, const uint8_t *next, int64_t bytes, float *y,
                            int64_t ldy);
void KM_SIMD(km_quant_few_floats)(km_dtype d, const void *w, int64_t n, int64_t outs,
                                  const float *x, int64_t ldx, int64_t rows, float *y, int64_t ldy);
void KM_SIMD(km_quant_unpack)(km_dtype d, const uint8_t *w, int64_t bytes, int64_t n, int first,
                              int outs, km_quant_panel *panel);
void KM_SIMD(km_quant_tile)(km_dtype d, const km_quant_panel *panel, const km_quant_rows *x,
                            bool add, float *y, int64_t ldy);
void KM_SIMD(km_near_row)(const float *x, int64_t n, int r, km_near_tile *tile);
void KM_SIMD(km_near_meet)(const km_near_query q[KM_NEAR_QUERIES], const km_near_tile *tile,
                           uint32_t left[KM_NEAR_QUERIES]);

extern const km_quant_kernels KM_SIMD(km_quant_kernels);

const km_quant_kernels KM_SIMD(km_quant_kernels) = {
#if defined(KM_AVX512)
    .floats = KM_ISA_AVX512,
#elif defined(KM_AVX2)
    .floats = KM_ISA_AVX2,
#else
    .floats = KM_ISA_BASE,
#endif
    .encode = KM_SIMD(km_quant_encode),
    .few = KM_SIMD(km_quant_few),
    .take_apart = KM_SIMD(km_quant_take_apart),
    .meet = KM_SIMD(km_quant_meet),
    .few_floats = KM_SIMD(km_quant_few_floats),
    .unpack = KM_SIMD(km_quant_unpack),
    .tile = KM_SIMD(km_quant_tile),
    .near_offset = KM_WIDE_OFFSET,
    .near_row = KM_SIMD(km_near_row),
    .near_tile = KM_SIMD(km_near_meet),
#ifndef __ARM_FEATURE_DOTPROD
    .word_rows = KM_WORD_ROWS,
    .word_bytes = sizeof(km_word_tile),
    .encode_words = KM_SIMD(km_quant_encode_words),
    .unpack_words = KM_SIMD(km_quant_unpack_words),
    .tile_words = KM_SIMD(km_quant_tile_words),
#endif
};
