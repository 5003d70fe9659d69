/* The inner loops of vector codes (simd/codes_*.c): turning rows, the trellis' steps, and scans. */
#ifndef KM_BACKEND_CPU_CODES_H
#define KM_BACKEND_CPU_CODES_H
#include "backend/cpu/cpu.h"

#define KM_TRELLIS_LENGTH 12                       /* bits of the window */
#define KM_TRELLIS_STATES (1 << KM_TRELLIS_LENGTH)
#define KM_TRELLIS_RATE 8                          /* most bits of one step */
#define KM_TURN_ROWS 8                             /* rows that meet an axis together */

/* A row of trellis codes as the scan reads it. Axis i's window begins at bit `at[i]` of the code,
 * behind which its first bits are repeated, and its value stands in `values` from `table[i]` on. */
typedef struct km_trellis_plan {
    int64_t axes;         /* a multiple of 16: the last ones have weight 0 */
    const int32_t *at, *table;
    const float *amp;     /* (axes) what a value is multiplied by */
    const float *values;
} km_trellis_plan;

/* A row of levels likewise: groups of eight axes, each with bits[g] planes at bytes at[g]. */
typedef struct km_level_plan {
    int64_t groups;         /* even: the last may have no bits */
    const uint8_t *bits;
    const int32_t (*at)[8];
    const float *amp;       /* (8 groups, rounded up to 16) */
    const float *values;    /* levels of b bits from b << 8 on */
} km_level_plan;

typedef struct km_stage_bound {
    const float *scales;
    float base, square, along, low, step;
} km_stage_bound;

typedef struct km_code_kernels {
    /* out[i * ldo + j] = <x_i, axis_j>: x (KM_TURN_ROWS, dim), axis (axes, dim). Each product is the
     * same number whatever stands in the other rows. */
    void (*turn)(const float *x, const float *axis, int64_t axes, int64_t dim, float *out,
                 int64_t ldo);
    float (*dot)(const float *x, const float *y, int64_t n);
    /* sum += w[0] x[0] + ... + w[3] x[3] */
    void (*add4)(float *sum, const float *const x[4], const float w[4], int64_t n);
    /* One step of Viterbi's search at `rate` bits. From cost (states) to next (states), the way
     * taken in back (states >> rate); with rate 0 cost itself goes on. */
    void (*step)(int rate, const float *values, float x, float amp, float *cost, float *next,
                 uint8_t *back);
    /* dot = sum p[i] value[i], norm = sum (amp[i] value[i])^2 over a padded code */
    void (*trellis)(const km_trellis_plan *plan, const uint8_t *code, const float *p, float *dot,
                    float *norm);
    void (*levels)(const km_level_plan *plan, const uint8_t *code, const float *p, float *dot,
                   float *norm);
    /* sums[32 b + i] = the sum over nibbles j of lut[16 j + nibble j of row i of block b]; see
     * vector/stage.h. `nibbles` is even; behind lut stand 64 bytes of 0. */
    void (*stage)(const uint8_t *blocks, int64_t count, const uint8_t *lut, int64_t nibbles,
                  uint32_t *sums);
    /* The rows i < n that may be near: least = base + s (s square + along (low + step sums[i])), with
     * s = scales[codes[i]], is at most `limit`. Their numbers go to `left` (n, rounded up to 16), dist
     * of the others becomes infinite. Returns how many are left. */
    int64_t (*pick)(const km_stage_bound *b, const uint32_t *sums, const uint8_t *codes, int64_t n,
                    float limit, float *dist, int32_t *left);
} km_code_kernels;

/* simd/codes_stage.c */
#define KM_CODE_STAGE(suffix)                                                                      \
    void km_code_levels_##suffix(const km_level_plan *plan, const uint8_t *code, const float *p,   \
                                 float *dot, float *norm);                                         \
    void km_code_stage_##suffix(const uint8_t *blocks, int64_t count, const uint8_t *lut,          \
                                int64_t nibbles, uint32_t *sums);                                  \
    int64_t km_code_pick_##suffix(const km_stage_bound *b, const uint32_t *sums,                   \
                                  const uint8_t *codes, int64_t n, float limit, float *dist,       \
                                  int32_t *left);
KM_CODE_STAGE(base)
KM_CODE_STAGE(avx2)
KM_CODE_STAGE(avx512)
#undef KM_CODE_STAGE

KM_SIMD_TABLE(km_code_kernels, km_simd_codes)

#endif
