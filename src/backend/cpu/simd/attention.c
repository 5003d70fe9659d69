/* Attention between the products: running maxima and sums, weights, and their gradients. */
#include "backend/cpu/attention.h"
#include "backend/cpu/simd/gemm_simd.h"
#include "backend/cpu/simd/vmath.h"

/* e^x for x <= 0, up to rounding. What is below the smallest normal number beside a weight of 1 is
 * zero: the processor is slow with subnormals, and a masked score is -inf. NaN stays. */
KM_INLINE vf weight(vf x) {
    vf least = v_set1(-87.0f), n, r = v_exp_reduce(v_max(least, x), &n);
    return v_select(v_lt(x, least), v_zero(), v_ldexp(v_expm1_core(r) + 1.0f, n));
}

/* ---- Forward ---- */

/* One vector of queries down the block. A lane that has seen no key yet keeps max = -inf; its
 * weights are exp(-inf - 0) = 0, never NaN. */
KM_INLINE void soften_lanes(float *s, int64_t keys, const int32_t *seen, const bool masked,
                            float *max, float *sum, float *acc, int64_t d) {
    vf none = v_set1(-INFINITY), old = v_load(max), m = old;
    vi sees = masked ? vi_load(seen) : vi_set1(0);
    if (masked) {
        int32_t most = 0;
        for (int i = 0; i < KM_VF; i++) most = seen[i] > most ? seen[i] : most;
        for (; keys > most; keys--) v_store(s + (keys - 1) * KM_NR, v_zero()); /* none sees it */
        for (int64_t j = 0; j < keys; j++) {
            vf x = v_select(vi_lt(vi_set1((int32_t)j), sees), v_load(s + j * KM_NR), none);
            v_store(s + j * KM_NR, x);
            m = v_max(m, x);
        }
    } else {
        vf m1 = none;
        int64_t j = 0;
        for (; j + 2 <= keys; j += 2) {
            m = v_max(m, v_load(s + j * KM_NR));
            m1 = v_max(m1, v_load(s + (j + 1) * KM_NR));
        }
        if (j < keys) m = v_max(m, v_load(s + j * KM_NR));
        m = v_max(m, m1);
    }
    vf base = v_select(v_eq(m, none), v_zero(), m), factor = weight(old - base);
    vf t0 = v_zero(), t1 = v_zero();
    int64_t j = 0;
    for (; j + 2 <= keys; j += 2) {
        vf p0 = weight(v_load(s + j * KM_NR) - base);
        vf p1 = weight(v_load(s + (j + 1) * KM_NR) - base);
        v_store(s + j * KM_NR, p0);
        v_store(s + (j + 1) * KM_NR, p1);
        t0 += p0;
        t1 += p1;
    }
    if (j < keys) {
        vf p0 = weight(v_load(s + j * KM_NR) - base);
        v_store(s + j * KM_NR, p0);
        t0 += p0;
    }
    v_store(max, m);
    v_store(sum, v_fma(v_load(sum), factor, t0 + t1));
    if (vm_any(v_ne(factor, v_set1(1.0f))))
        for (int64_t i = 0; i < d; i++) v_store(acc + i * KM_NR, v_load(acc + i * KM_NR) * factor);
}

static void soften(float *s, int64_t keys, const int32_t *seen, bool masked, int64_t vecs,
                   float *max, float *sum, float *acc, int64_t d) {
    for (int64_t v = 0; v < vecs * KM_VF; v += KM_VF) {
        if (masked)
            soften_lanes(s + v, keys, seen + v, true, max + v, sum + v, acc + v, d);
        else
            soften_lanes(s + v, keys, seen, false, max + v, sum + v, acc + v, d);
    }
}

static void settle(const float *max, const float *sum, int64_t n, float *lse, float *by) {
    for (int64_t i = 0; i < n; i += KM_VF) {
        int64_t take = row_min(n - i, KM_VF);
        vf s = v_load_n(sum + i, take);
        vf inverse = v_select(v_eq(s, v_zero()), v_zero(), 1.0f / s);
        v_store_n(lse + i, v_load_n(max + i, take) + v_log(s), take);
        v_store_n(by + i, inverse, take);
    }
}

static float soften_row(float *s, int64_t n, float *max, float *sum) {
    vf none = v_set1(-INFINITY), m = none, t = v_zero();
    float old = *max;
    int64_t j = 0;
    for (; j + KM_VF <= n; j += KM_VF) m = v_max(m, v_load(s + j));
    float top = v_reduce_max(m);
    for (; j < n; j++) top = s[j] > top ? s[j] : top;
    if (old > top) top = old;
    *max = top;
    vf base = v_set1(top == -INFINITY ? 0 : top);
    for (j = 0; j + KM_VF <= n; j += KM_VF) {
        vf p = weight(v_load(s + j) - base);
        v_store(s + j, p);
        t += p;
    }
    if (j < n) {
        vf p = v_keep(row_first(n - j), weight(v_load_n(s + j, n - j) - base));
        v_store_n(s + j, p, n - j);
        t += p;
    }
    float factor = weight(v_set1(old) - base)[0];
    *sum = *sum * factor + v_reduce_add(t);
    return factor;
}

static void turn_back(float *out, int64_t ldo, const float *acc, int64_t d, int64_t rows,
                      const float *by) {
    for (int64_t i = 0; i < rows; i += KM_VF) {
        int64_t lanes = row_min(rows - i, KM_VF);
        vf factor = v_load(by + i);
        for (int64_t j = 0; j < d; j += KM_VF) {
            int64_t take = row_min(d - j, KM_VF);
            vf r[KM_VF];
            for (int64_t p = 0; p < KM_VF; p++)
                r[p] = p < take ? v_load(acc + (j + p) * KM_NR + i) * factor : v_zero();
            v_turn(r);
            for (int64_t p = 0; p < lanes; p++) v_store_n(out + (i + p) * ldo + j, r[p], take);
        }
    }
}

/* ---- Backward ---- */

KM_INLINE void row_dots_slot(float *out, const void *a, int64_t lda, const void *b, int64_t ldb,
                             int64_t rows, int64_t d, int slot) {
    for (int64_t i = 0; i < rows; i++) {
        vf sum = v_zero();
        for (int64_t j = 0; j < d; j += KM_VF) {
            int64_t take = row_min(d - j, KM_VF);
            vf x = row_load_n(a, i * lda + j, take, slot);
            sum = v_fma(x, row_load_n(b, i * ldb + j, take, slot), sum);
        }
        out[i] = v_reduce_add(sum);
    }
}

static void row_dots(float *out, const void *a, int64_t lda, const void *b, int64_t ldb,
                     km_dtype dtype, int64_t rows, int64_t d) {
    switch (km_float_slot(dtype)) {
    case KM_SLOT_F32: row_dots_slot(out, a, lda, b, ldb, rows, d, KM_SLOT_F32); break;
    case KM_SLOT_F16: row_dots_slot(out, a, lda, b, ldb, rows, d, KM_SLOT_F16); break;
    default: row_dots_slot(out, a, lda, b, ldb, rows, d, KM_SLOT_BF16); break;
    }
}

static void grad_scores(float *s, float *dp, int64_t ld, int64_t rows, int64_t first, int64_t width,
                        const int64_t *seen, const float *lse, const float *delta) {
    for (int64_t i = 0; i < rows; i++) {
        float *si = s + i * ld, *di = dp + i * ld;
        vf base = v_set1(lse[i]), less = v_set1(delta[i]);
        int64_t sees = seen[i] - first, j = 0;
        if (sees > width) sees = width;
        for (; j + KM_VF <= sees; j += KM_VF) {
            vf p = weight(v_load(si + j) - base);
            v_store(si + j, p);
            v_store(di + j, p * (v_load(di + j) - less));
        }
        if (j < sees) {
            vm some = row_first(sees - j);
            vf p = v_keep(some, weight(v_load(si + j) - base));
            v_store(si + j, p);
            v_store(di + j, v_keep(some, p * (v_load(di + j) - less)));
            j += KM_VF;
        }
        for (; j < width; j += KM_VF) {
            v_store(si + j, v_zero());
            v_store(di + j, v_zero());
        }
    }
}

const km_attention_kernels KM_SIMD(km_attention_kernels) = {
    .soften = soften,
    .settle = settle,
    .soften_row = soften_row,
    .turn_back = turn_back,
    .row_dots = row_dots,
    .grad_scores = grad_scores,
};
