/* The inner loops of vector codes (simd/codes_*.c): turning rows, the trellis' steps, and scans. */
#ifndef KM_BACKEND_CPU_CODES_H
#define KM_BACKEND_CPU_CODES_H
#include "backend/cpu/cpu.h"
#include "backend/trellis.h"

#define KM_TURN_ROWS 8       /* rows that meet an axis together */
#define KM_TRELLIS_QUERIES 8 /* queries that meet a code together */

/* A row of trellis codes as the scan reads it. Axis i's window begins at bit `at[i]` of the code,
 * behind which its first bits are repeated, and its value stands in `values` from `table[i]` on. */
typedef struct km_trellis_plan {
    int64_t axes; /* a multiple of 16: the last ones have weight 0 */
    const int32_t *at, *table;
    const float *amp; /* (axes) what a value is multiplied by */
    const float *values;
} km_trellis_plan;

/* A row of levels likewise: groups of eight axes, each with bits[g] planes at bytes at[g]. */
typedef struct km_level_plan {
    int64_t groups; /* even: the last may have no bits */
    const uint8_t *bits;
    const int32_t (*at)[8];
    const float *amp;    /* (8 groups, rounded up to 16) */
    const float *values; /* levels of b bits from b << 8 on */
} km_level_plan;

/* A query before blocks of rows' leading planes (vector/stage.h), in two parts: few of them decide
 * about most rows. With s = scales[code] and the tables' sums of a row's nibbles,
 *   bound 1 = base + s (s square + along (low[0] + step[0] sum[0]))
 *   bound 2 = base + s (s square + along (low[1] + again sum[0] + step[1] sum[1])) */
typedef struct km_stage_query {
    const float *scales;
    const uint8_t *lut; /* (nibbles of both parts, 16), at most KM_STAGE_TOP; 64 bytes 0 behind */
    int64_t nibbles[2]; /* even; the second may be 0, and then there is no bound 2 */
    int64_t size;       /* bytes of a block */
    float base, square, along, low[2], step[2], again;
} km_stage_query;

#define KM_STAGE_TOP 63 /* four of them fit in a byte */

typedef struct km_stage_rows {
    const uint8_t *codes;  /* (n) of their scales */
    const uint8_t *blocks; /* of 32 rows each */
    int64_t n;
    uint8_t least, most; /* of the codes, or beyond them */
} km_stage_rows;

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
    /* dot[j] = sum p[j][i] value[i], norm = sum (amp[i] value[i])^2 over a padded code, for n of
     * 1 to KM_TRELLIS_QUERIES. A product is the same number whatever stands beside it. */
    void (*trellis)(const km_trellis_plan *plan, const uint8_t *code, int n, const float *const *p,
                    float *dot, float *norm);
    void (*levels)(const km_level_plan *plan, const uint8_t *code, const float *p, float *dot,
                   float *norm);
    /* p = (q - a) amp over n axes, n a multiple of 16; a may be NULL. Returns |p|^2. */
    float (*offset)(const float *q, const float *a, const float *amp, int64_t n, float *p);
    float (*gap)(const float *x, const float *y, int64_t n); /* |x - y|^2 */
    /* lut (2 planes, 16): what each nibble adds to sum_j weight[j] <+-1, p of plane j's group>, in
     * steps above its least. *least is the sum of these. quad (2 groups) is room. */
    void (*tables)(int64_t planes, const int32_t (*plane)[2], const float *weight, int64_t groups,
                   const float *p, float *quad, uint8_t *lut, float *least, float *step);
    /* Rows i < n whose bounds are both at most `limit`: their numbers go to `left`, the larger bound
     * to `bound`, each (n, rounded up to 32). Returns how many. */
    int64_t (*near)(const km_stage_query *q, const km_stage_rows *rows, float limit, int32_t *left,
                    float *bound);
    /* One block from n <= 32 rows' leading planes, each beginning `stride` bytes after the one
     * before; the places behind them are filled with any of them. */
    void (*lay)(const uint8_t *rows, int64_t stride, int64_t n, int64_t planes, uint8_t *block);
    float (*spread)(const float *p, const float *error, int64_t n); /* sum of p^2 error */
} km_code_kernels;

/* simd/codes_stage.c */
#define KM_CODE_STAGE(suffix)                                                                      \
    void km_code_levels_##suffix(const km_level_plan *plan, const uint8_t *code, const float *p,   \
                                 float *dot, float *norm);                                         \
    void km_code_tables_##suffix(int64_t planes, const int32_t(*plane)[2], const float *weight,    \
                                 int64_t groups, const float *p, float *quad, uint8_t *lut,        \
                                 float *least, float *step);                                       \
    int64_t km_code_near_##suffix(const km_stage_query *q, const km_stage_rows *rows, float limit, \
                                  int32_t *left, float *bound);                                    \
    void km_code_lay_##suffix(const uint8_t *rows, int64_t stride, int64_t n, int64_t planes,      \
                              uint8_t *block);
KM_CODE_STAGE(base)
KM_CODE_STAGE(avx2)
KM_CODE_STAGE(avx512)
#undef KM_CODE_STAGE

KM_SIMD_TABLE(km_code_kernels, km_simd_codes)

#endif
