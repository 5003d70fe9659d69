/* Vectors in bytes before many queries: which of them may be near. A product of codes is off by what
 * rounding took from either side, at most (Cauchy and Schwarz), so no row is passed over that is. */
#include "backend/cpu/simd/quant_vec.h"
#include <math.h>

/* Register tiles: two vectors of rows by so many queries. */
#if defined(KM_AVX512)
#define TOGETHER 12
#else
#define TOGETHER 4
#endif
#define TOP 127.0f

void KM_SIMD(km_near_row)(const float *x, int64_t n, int r, km_near_tile *tile);
void KM_SIMD(km_near_meet)(const km_near_query q[KM_NEAR_QUERIES], const km_near_tile *tile,
                           uint32_t left[KM_NEAR_QUERIES]);

void KM_SIMD(km_near_row)(const float *x, int64_t n, int r, km_near_tile *tile) {
    vf most = v_zero();
    int64_t j = 0;
    for (; j + KM_VF <= n; j += KM_VF) most = v_max(most, v_abs(v_load(x + j)));
    if (j < n) most = v_max(most, v_abs(v_load_n(x + j, n - j)));
    float top = v_reduce_max(most);
    vf up = v_set1(top > 0 ? TOP / top : 0), scale = v_set1(top / TOP);
    vf lost = v_zero(), size = v_zero();
    uint8_t *to = tile->code + 4 * r;
    for (j = 0; j < 4 * tile->steps; j += KM_VF) {
        vf v = j + KM_VF <= n ? v_load(x + j) : j < n ? v_load_n(x + j, n - j) : v_zero();
        vi code = v_to_int(v * up);
        vf back = vi_to_float(code) * scale;
        lost = v_fma(v - back, v - back, lost);
        size = v_fma(back, back, size);
        uint8_t byte[KM_VF];
        vi_store_bytes(byte, code + vi_set1(KM_WIDE_OFFSET));
        for (int i = 0; i < KM_VF && j + i < 4 * tile->steps; i += 4)
            memcpy(to + (j + i) * KM_NEAR_ROWS, byte + i, 4);
    }
    tile->scale[r] = top / TOP;
    tile->lost[r] = sqrtf(v_reduce_add(lost));
    tile->size[r] = sqrtf(v_reduce_add(size));
}

KM_INLINE uint32_t bits_of(vm m) {
#if defined(KM_AVX512)
    return m;
#elif defined(KM_AVX2)
    return (uint32_t)_mm256_movemask_ps((__m256)m);
#else
    uint32_t bits = 0;
    for (int i = 0; i < KM_VF; i++) bits |= (uint32_t)(m[i] != 0) << i;
    return bits;
#endif
}

/* Rows from `at` on, two vectors of them. */
KM_INLINE void meet(const km_near_query *q, const km_near_tile *t, int at, uint32_t *left) {
    vi sum[TOGETHER][2];
    KM_UNROLL
    for (int i = 0; i < TOGETHER; i++) sum[i][0] = sum[i][1] = vi_set1(0);
    const uint8_t *code = t->code + 4 * at;
    for (int64_t s = 0; s < t->steps; s++, code += 4 * KM_NEAR_ROWS) {
        vb a = vb_load(code), b = vb_load(code + 4 * KM_VF);
        KM_UNROLL
        for (int i = 0; i < TOGETHER; i++) {
            vb x = vb_four(q[i].code + 4 * s);
            sum[i][0] = vi_dot(sum[i][0], a, x, true);
            sum[i][1] = vi_dot(sum[i][1], b, x, true);
        }
    }
    KM_UNROLL
    for (int i = 0; i < TOGETHER; i++) KM_UNROLL
    for (int h = 0; h < 2; h++) {
        int r = at + h * KM_VF;
        vi own = sum[i][h] - vi_set1(KM_WIDE_OFFSET * q[i].sum);
        vf p = vi_to_float(own) * v_load(t->scale + r);
        vf more = v_fma(v_load(t->lost + r), v_set1(q[i].size), -v_load(t->rest + r));
        more = v_fma(v_load(t->size + r), v_set1(q[i].lost), more);
        vm near = v_ge(v_fma(p, v_set1(q[i].scale), more), v_set1(q[i].limit));
        left[i] |= bits_of(near) << r;
    }
}

void KM_SIMD(km_near_meet)(const km_near_query q[KM_NEAR_QUERIES], const km_near_tile *tile,
                           uint32_t left[KM_NEAR_QUERIES]) {
    for (int i = 0; i < KM_NEAR_QUERIES; i++) left[i] = 0;
    for (int i = 0; i < KM_NEAR_QUERIES; i += TOGETHER)
        for (int at = 0; at < KM_NEAR_ROWS; at += 2 * KM_VF) meet(q + i, tile, at, left + i);
}
