/* Reductions of one row, shared by softmax, norms and losses. Each runs in four vectors at once
 * over blocks, so that no chain of additions is long; the blocks' sums meet in a double. */
#ifndef KM_BACKEND_CPU_SIMD_ROWS_SUMS_H
#define KM_BACKEND_CPU_SIMD_ROWS_SUMS_H
#include "backend/cpu/simd/rowio.h"
#include "backend/cpu/simd/vmath.h"

#define KM_SUM_BLOCK 2048

/* The largest element, -inf for none; a NaN may be lost. */
KM_INLINE float row_max(const void *x, int64_t n, int slot) {
    vf m0 = v_set1(-INFINITY), m1 = m0, m2 = m0, m3 = m0;
    int64_t i = 0;
    for (; i + 4 * KM_VF <= n; i += 4 * KM_VF) {
        m0 = v_max(row_load(x, i, slot), m0);
        m1 = v_max(row_load(x, i + KM_VF, slot), m1);
        m2 = v_max(row_load(x, i + 2 * KM_VF, slot), m2);
        m3 = v_max(row_load(x, i + 3 * KM_VF, slot), m3);
    }
    for (; i < n; i += KM_VF) {
        int64_t m = row_min(n - i, KM_VF);
        vf v = row_load_n(x, i, m, slot);
        m0 = v_max(v_select(row_first(m), v, v_set1(-INFINITY)), m0);
    }
    return v_reduce_max(v_max(v_max(m0, m1), v_max(m2, m3)));
}

/* e^x for x <= 0, as they all are once the maximum is taken off. Cheaper than v_exp, for what is
 * below the smallest normal number becomes 0. */
KM_INLINE vf exp_below_0(vf x) {
#ifdef KM_AVX512
    return v_exp(x); /* has an instruction for the last step */
#else
    vf magic = v_set1(12582912.0f); /* 1.5 * 2^23: n is in the last bits of the sum */
    vf t = v_fma(x, v_set1(1.44269504f), magic), n = t - magic;
    vf r = v_fnma(n, v_set1(KM_LN2_LO), v_fnma(n, v_set1(KM_LN2_HI), x));
    vf power = (vf)(((vu)t << 23) + (127u << 23));
    vf y = v_fma(power, v_expm1_core(r), power);
    return v_select(v_lt(x, v_set1(-87.3f)), v_zero(), y); /* NaN stays */
#endif
}

/* Sum of exp(x - shift), shift being the largest x; with e, the terms are stored there too. The
 * row that comes next is fetched meanwhile. */
KM_INLINE double row_sum_exp(const void *x, const void *next, int64_t n, float shift, float *e,
                             int slot) {
    vf sub = v_set1(shift);
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += KM_SUM_BLOCK) {
        int64_t end = row_min(n, begin + KM_SUM_BLOCK), i = begin;
        vf s0 = v_zero(), s1 = s0;
        for (; i + 2 * KM_VF <= end; i += 2 * KM_VF) {
            row_prefetch2(next, i, slot);
            vf a = exp_below_0(row_load(x, i, slot) - sub);
            vf b = exp_below_0(row_load(x, i + KM_VF, slot) - sub);
            if (e) v_store(e + i, a), v_store(e + i + KM_VF, b);
            s0 += a;
            s1 += b;
        }
        for (; i < end; i += KM_VF) {
            int64_t m = row_min(end - i, KM_VF);
            vf a = exp_below_0(row_load_n(x, i, m, slot) - sub);
            if (e) v_store_n(e + i, a, m);
            s0 += v_keep(row_first(m), a);
        }
        total += v_reduce_add(s0 + s1);
    }
    return total;
}

KM_INLINE double row_sum(const void *x, int64_t n, int slot) {
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += KM_SUM_BLOCK) {
        int64_t end = row_min(n, begin + KM_SUM_BLOCK), i = begin;
        vf s0 = v_zero(), s1 = s0, s2 = s0, s3 = s0;
        for (; i + 4 * KM_VF <= end; i += 4 * KM_VF) {
            s0 += row_load(x, i, slot);
            s1 += row_load(x, i + KM_VF, slot);
            s2 += row_load(x, i + 2 * KM_VF, slot);
            s3 += row_load(x, i + 3 * KM_VF, slot);
        }
        for (; i < end; i += KM_VF) s0 += row_load_n(x, i, row_min(end - i, KM_VF), slot);
        total += v_reduce_add((s0 + s1) + (s2 + s3));
    }
    return total;
}

/* Sum of a * b */
KM_INLINE double row_dot(const void *a, const void *b, int64_t n, int slot) {
    double total = 0;
    for (int64_t begin = 0; begin < n; begin += KM_SUM_BLOCK) {
        int64_t end = row_min(n, begin + KM_SUM_BLOCK), i = begin;
        vf s0 = v_zero(), s1 = s0, s2 = s0, s3 = s0;
        for (; i + 4 * KM_VF <= end; i += 4 * KM_VF) {
            s0 = v_fma(row_load(a, i, slot), row_load(b, i, slot), s0);
            s1 = v_fma(row_load(a, i + KM_VF, slot), row_load(b, i + KM_VF, slot), s1);
            s2 = v_fma(row_load(a, i + 2 * KM_VF, slot), row_load(b, i + 2 * KM_VF, slot), s2);
            s3 = v_fma(row_load(a, i + 3 * KM_VF, slot), row_load(b, i + 3 * KM_VF, slot), s3);
        }
        for (; i < end; i += KM_VF) {
            int64_t m = row_min(end - i, KM_VF);
            s0 = v_fma(row_load_n(a, i, m, slot), row_load_n(b, i, m, slot), s0);
        }
        total += v_reduce_add((s0 + s1) + (s2 + s3));
    }
    return total;
}

#endif
