/* Products with the two thin matrices of an adapter; see low_rank.h. Four rows of a matrix share each
 * load of x or y, and each element's sum is made in the same order however rows are grouped. */
#include "backend/cpu/low_rank.h"
#include "backend/cpu/simd/simd.h"

static void dots(const float *a, const float *x, int64_t n, int64_t ranks, float *out) {
    int64_t r = 0;
    for (; r + 4 <= ranks; r += 4) {
        const float *a0 = a + r * n, *a1 = a0 + n, *a2 = a1 + n, *a3 = a2 + n;
        vf s0 = v_zero(), s1 = v_zero(), s2 = v_zero(), s3 = v_zero();
        int64_t i = 0;
        for (; i + KM_VF <= n; i += KM_VF) {
            vf v = v_load(x + i);
            s0 = v_fma(v_load(a0 + i), v, s0);
            s1 = v_fma(v_load(a1 + i), v, s1);
            s2 = v_fma(v_load(a2 + i), v, s2);
            s3 = v_fma(v_load(a3 + i), v, s3);
        }
        if (i < n) {
            vf v = v_load_n(x + i, n - i);
            s0 = v_fma(v_load_n(a0 + i, n - i), v, s0);
            s1 = v_fma(v_load_n(a1 + i, n - i), v, s1);
            s2 = v_fma(v_load_n(a2 + i, n - i), v, s2);
            s3 = v_fma(v_load_n(a3 + i, n - i), v, s3);
        }
        out[r] = v_reduce_add(s0);
        out[r + 1] = v_reduce_add(s1);
        out[r + 2] = v_reduce_add(s2);
        out[r + 3] = v_reduce_add(s3);
    }
    for (; r < ranks; r++) {
        const float *a0 = a + r * n;
        vf s = v_zero();
        int64_t i = 0;
        for (; i + KM_VF <= n; i += KM_VF) s = v_fma(v_load(a0 + i), v_load(x + i), s);
        if (i < n) s = v_fma(v_load_n(a0 + i, n - i), v_load_n(x + i, n - i), s);
        out[r] = v_reduce_add(s);
    }
}

/* k (1 to 4) terms, whose factors and rows are given. */
KM_INLINE void add_terms(float *y, const float *f, const float *const *b, int64_t n, int k) {
    vf w[4];
    for (int t = 0; t < k; t++) w[t] = v_set1(f[t]);
    int64_t i = 0;
    for (; i + KM_VF <= n; i += KM_VF) {
        vf v = v_load(y + i);
        for (int t = 0; t < k; t++) v = v_fma(w[t], v_load(b[t] + i), v);
        v_store(y + i, v);
    }
    if (i == n) return;
    vf v = v_load_n(y + i, n - i);
    for (int t = 0; t < k; t++) v = v_fma(w[t], v_load_n(b[t] + i, n - i), v);
    v_store_n(y + i, v, n - i);
}

static void add(float *y, const float *low, const float *b, int64_t stride, int64_t n,
                int64_t ranks) {
    const float *at[4] = {b, b, b, b};
    float f[4] = {0};
    int k = 0;
    for (int64_t r = 0; r < ranks; r++) {
        if (low[r] == 0) continue;
        f[k] = low[r];
        at[k++] = b + r * stride;
        if (k < 4) continue;
        add_terms(y, f, at, n, 4);
        k = 0;
    }
    for (int t = 0; t < k; t++) add_terms(y, f + t, at + t, n, 1);
}

const km_low_rank_table KM_SIMD(km_simd_low_rank) = {.dots = dots, .add = add};
