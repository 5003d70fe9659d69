/* Inner loops of vector quantisation: the smallest of many columns for each row, lane by lane, and
 * distances by their definition. */
#include "backend/cpu/nearest.h"
#include "backend/cpu/simd/simd.h"
#include <math.h>

static void begin(km_nearest_row *r, int64_t rows) {
    for (int64_t i = 0; i < rows; i++)
        for (int l = 0; l < KM_NEAREST_LANES; l++) {
            r[i].best[l] = r[i].second[l] = INFINITY;
            r[i].id[l] = 0;
        }
}

static void meet(km_nearest_row *r, int64_t rows, const float *x, int64_t ldx, const float *bias,
                 int64_t cols, int32_t first) {
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vi id0 = vi_load(lanes) + vi_set1(first);
    for (int64_t i = 0; i < rows; i++, x += ldx) {
        vf best = v_load(r[i].best), second = v_load(r[i].second);
        vi id = vi_load(r[i].id), at = id0;
        for (int64_t j = 0; j < cols; j += KM_VF, at += vi_set1(KM_VF)) {
            vf v = v_load(x + j) + v_load(bias + j);
            vm less = v_lt(v, best);
            second = v_min(v_max(v, best), second); /* NaN leaves second as it is */
            id = vi_select(less, at, id);
            best = v_select(less, v, best);
        }
        v_store(r[i].best, best);
        v_store(r[i].second, second);
        vi_store(r[i].id, id);
    }
}

static float distance(const float *x, const float *c, int64_t d) {
    vf s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t j = 0;
    for (; j + 4 * KM_VF <= d; j += 4 * KM_VF)
        for (int u = 0; u < 4; u++) {
            vf diff = v_load(x + j + u * KM_VF) - v_load(c + j + u * KM_VF);
            s[u] = v_fma(diff, diff, s[u]);
        }
    for (; j < d; j += KM_VF) {
        int64_t n = d - j < KM_VF ? d - j : KM_VF;
        vf diff = v_load_n(x + j, n) - v_load_n(c + j, n);
        s[0] = v_fma(diff, diff, s[0]);
    }
    return v_reduce_add((s[0] + s[1]) + (s[2] + s[3]));
}

static float square(const float *x, int64_t d) {
    vf s = v_zero();
    for (int64_t j = 0; j < d; j += KM_VF) {
        vf v = v_load_n(x + j, d - j < KM_VF ? d - j : KM_VF);
        s = v_fma(v, v, s);
    }
    return v_reduce_add(s);
}

static void add(float *sum, const float *x, float w, int64_t d) {
    int64_t j = 0;
    vf wv = v_set1(w);
    for (; j + KM_VF <= d; j += KM_VF) v_store(sum + j, v_fma(wv, v_load(x + j), v_load(sum + j)));
    if (j < d)
        v_store_n(sum + j, v_fma(wv, v_load_n(x + j, d - j), v_load_n(sum + j, d - j)), d - j);
}

const km_nearest_kernels KM_SIMD(km_simd_nearest) = {
    .begin = begin, .meet = meet, .distance = distance, .square = square, .add = add};
