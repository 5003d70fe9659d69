/* Inner loops of reductions. Each sum runs in four vectors side by side, joined pairwise. */
#include "backend/cpu/simd/reduce.h"
#include "backend/cpu/simd/vmath.h"

#define AHEAD 512 /* floats: how far ahead of a row's loop its elements are fetched */

/* n < KM_VF elements, the other lanes holding `pad`. */
KM_INLINE vf load_padded(const float *p, int64_t n, vf pad) {
#ifdef KM_AVX512
    return (vf)_mm512_mask_loadu_ps((__m512)pad, v_tail_mask(n), p);
#else
    vi lane;
    for (int i = 0; i < KM_VF; i++) lane[i] = i;
    return v_select(vi_lt(lane, vi_set1((int32_t)n)), v_load_n(p, n), pad);
#endif
}

/* ---- Along a row ---- */

/* s = the sum of `term`, an expression of the vector x, over all n elements; pad contributes 0. */
#define ROW_SUM(s, p, n, pad, term)                                                                \
    do {                                                                                           \
        vf s0 = v_zero(), s1 = s0, s2 = s0, s3 = s0;                                               \
        int64_t i = 0;                                                                             \
        for (; i + 4 * KM_VF <= (n); i += 4 * KM_VF) {                                             \
            for (int f = 0; f < 4 * KM_VF; f += 16) KM_FETCH((p) + i + f + AHEAD);                 \
            vf x = v_load((p) + i);                                                                \
            s0 += term;                                                                            \
            x = v_load((p) + i + KM_VF);                                                           \
            s1 += term;                                                                            \
            x = v_load((p) + i + 2 * KM_VF);                                                       \
            s2 += term;                                                                            \
            x = v_load((p) + i + 3 * KM_VF);                                                       \
            s3 += term;                                                                            \
        }                                                                                          \
        for (; i + KM_VF <= (n); i += KM_VF) {                                                     \
            vf x = v_load((p) + i);                                                                \
            s0 += term;                                                                            \
        }                                                                                          \
        if (i < (n)) {                                                                             \
            vf x = load_padded((p) + i, (n)-i, pad);                                               \
            s1 += term;                                                                            \
        }                                                                                          \
        (s) = v_reduce_add((s0 + s1) + (s2 + s3));                                                 \
    } while (0)

static km_block row_sum(const float *p, int64_t n) {
    km_block r = {0};
    ROW_SUM(r.a, p, n, v_zero(), x);
    return r;
}

static km_block row_sumsq(const float *p, int64_t n) {
    km_block r = {0};
    ROW_SUM(r.a, p, n, v_zero(), x * x);
    return r;
}

static km_block row_var(const float *p, int64_t n) {
    km_block r = row_sum(p, n);
    r.a /= (float)n;
    vf mean = v_set1(r.a), small = v_zero();
    int64_t i = 0;
    vf s0 = v_zero(), s1 = s0, d0 = s0, d1 = s0;
    for (; i + 2 * KM_VF <= n; i += 2 * KM_VF) {
        vf x = v_load(p + i) - mean, y = v_load(p + i + KM_VF) - mean;
        d0 += x;
        d1 += y;
        s0 = v_fma(x, x, s0);
        s1 = v_fma(y, y, s1);
    }
    for (; i < n; i += KM_VF) {
        small = (n - i < KM_VF ? load_padded(p + i, n - i, mean) : v_load(p + i)) - mean;
        d0 += small;
        s0 = v_fma(small, small, s0);
    }
    r.b = v_reduce_add(s0 + s1);
    r.c = v_reduce_add(d0 + d1);
    return r;
}

static km_block row_max(const float *p, int64_t n) {
    vf low = v_set1(-INFINITY), m0 = low, m1 = low, m2 = low, m3 = low;
    int64_t i = 0;
    for (; i + 4 * KM_VF <= n; i += 4 * KM_VF) {
        for (int f = 0; f < 4 * KM_VF; f += 16) KM_FETCH(p + i + f + AHEAD);
        m0 = v_max_nan(m0, v_load(p + i));
        m1 = v_max_nan(m1, v_load(p + i + KM_VF));
        m2 = v_max_nan(m2, v_load(p + i + 2 * KM_VF));
        m3 = v_max_nan(m3, v_load(p + i + 3 * KM_VF));
    }
    for (; i + KM_VF <= n; i += KM_VF) m0 = v_max_nan(m0, v_load(p + i));
    if (i < n) m1 = v_max_nan(m1, load_padded(p + i, n - i, low));
    vf m = v_max_nan(v_max_nan(m0, m1), v_max_nan(m2, m3));
    return (km_block){.a = v_reduce_max_nan(m)};
}

static km_block row_logsumexp(const float *p, int64_t n) {
    km_block r = row_max(p, n);
    if (!isfinite(r.a)) return r;
    vf m = v_set1(r.a);
    ROW_SUM(r.b, p, n, v_set1(-INFINITY), v_exp(x - m));
    return r;
}

static km_block row_argmax(const float *p, int64_t n) {
    km_block r = row_max(p, n);
    bool nan = isnan(r.a);
    vf m = v_set1(r.a);
    int64_t i = 0;
    for (; i + KM_VF <= n; i += KM_VF) {
        vf x = v_load(p + i);
        if (vm_any(nan ? v_isnan(x) : v_eq(x, m))) break;
    }
    while (i < n - 1 && !(nan ? isnan(p[i]) : p[i] == r.a)) i++;
    r.b = (float)i;
    return r;
}

/* ---- Down columns ---- */

#define COLUMNS const float *const *rows, int n_rows, int64_t cols, float *a, float *b, float *c

KM_INLINE vf load_m(const float *p, int64_t m) {
    return __builtin_constant_p(m) && m == KM_VF ? v_load(p) : v_load_n(p, m);
}
KM_INLINE void store_m(float *p, vf v, int64_t m) {
    if (__builtin_constant_p(m) && m == KM_VF)
        v_store(p, v);
    else
        v_store_n(p, v, m);
}

/* Does `step` for every vector of columns: j the first of them, m how many. */
#define EACH_VECTOR(step)                                                                          \
    do {                                                                                           \
        int64_t j = 0;                                                                             \
        for (; j + KM_VF <= cols; j += KM_VF) {                                                    \
            const int64_t m = KM_VF;                                                               \
            step;                                                                                  \
        }                                                                                          \
        if (j < cols) {                                                                            \
            const int64_t m = cols - j;                                                            \
            step;                                                                                  \
        }                                                                                          \
    } while (0)

/* Rows from r on, up to four of them, added pairwise. */
#define FOUR_ROWS(term)                                                                            \
    ({                                                                                             \
        vf x = load_m(rows[r] + j, m), t = term;                                                   \
        if (r + 3 < n_rows) {                                                                      \
            x = load_m(rows[r + 1] + j, m);                                                        \
            vf t1 = term;                                                                          \
            x = load_m(rows[r + 2] + j, m);                                                        \
            vf t2 = term;                                                                          \
            x = load_m(rows[r + 3] + j, m);                                                        \
            t = (t + t1) + (t2 + term);                                                            \
        } else {                                                                                   \
            for (int k = r + 1; k < n_rows; k++) {                                                 \
                x = load_m(rows[k] + j, m);                                                        \
                t += term;                                                                         \
            }                                                                                      \
        }                                                                                          \
        t;                                                                                         \
    })

/* sum[j] = the sum of `term`, an expression of the vector x of a row's columns j on (m of them). */
#define COLUMN_SUM(sum, term)                                                                      \
    for (int r = 0; r < n_rows; r += 4)                                                            \
    EACH_VECTOR({                                                                                  \
        vf part = FOUR_ROWS(term);                                                                 \
        store_m((sum) + j, r ? load_m((sum) + j, m) + part : part, m);                             \
    })

static void columns_sum(COLUMNS) {
    (void)b, (void)c;
    COLUMN_SUM(a, x);
}

static void columns_sumsq(COLUMNS) {
    (void)b, (void)c;
    COLUMN_SUM(a, x * x);
}

static void columns_var(COLUMNS) {
    columns_sum(rows, n_rows, cols, a, b, c);
    for (int64_t j = 0; j < cols; j++) a[j] /= (float)n_rows;
    COLUMN_SUM(b, (x - load_m(a + j, m)) * (x - load_m(a + j, m)));
    COLUMN_SUM(c, x - load_m(a + j, m));
}

KM_INLINE void max_step(float *a, const float *row, bool first, int64_t m) {
    vf x = load_m(row, m);
    store_m(a, first ? x : v_max_nan(load_m(a, m), x), m);
}

static void columns_max(COLUMNS) {
    (void)b, (void)c;
    for (int r = 0; r < n_rows; r++) EACH_VECTOR(max_step(a + j, rows[r] + j, r == 0, m));
}

static void columns_logsumexp(COLUMNS) {
    columns_max(rows, n_rows, cols, a, b, c);
    /* An infinite or NaN maximum makes terms that mean nothing; its sum is 0 by agreement. */
    COLUMN_SUM(b, v_exp(x - load_m(a + j, m)));
    for (int64_t j = 0; j < cols; j++)
        if (!isfinite(a[j])) b[j] = 0;
}

KM_INLINE void argmax_step(float *a, float *b, const float *row, int r, int64_t m) {
    vf x = load_m(row, m), index = v_set1((float)r);
    if (r > 0) {
        vf best = load_m(a, m), at = load_m(b, m);
        vm better = vm_or(v_gt(x, best), vm_and(v_isnan(x), vm_not(v_isnan(best))));
        x = v_select(better, x, best);
        index = v_select(better, index, at);
    }
    store_m(a, x, m);
    store_m(b, index, m);
}

static void columns_argmax(COLUMNS) {
    (void)c;
    for (int r = 0; r < n_rows; r++) EACH_VECTOR(argmax_step(a + j, b + j, rows[r] + j, r, m));
}

#define TABLE(kind)                                                                                \
    {                                                                                              \
        [KM_OP_SUM] = kind##_sum, [KM_OP_MEAN] = kind##_sum, [KM_OP_SUMSQ] = kind##_sumsq,         \
        [KM_OP_VAR] = kind##_var, [KM_OP_MAX] = kind##_max, [KM_OP_ARGMAX] = kind##_argmax,        \
        [KM_OP_LOGSUMEXP] = kind##_logsumexp,                                                      \
    }

const km_reduce_rows KM_SIMD(km_simd_reduce) = {.row = TABLE(row), .columns = TABLE(columns)};
