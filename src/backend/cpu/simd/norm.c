/* Layer norm and RMS norm, one row at a time while it is in the first cache: its sum, then the
 * sums of what is left after a first guess of the mean, then the result. The second pass repairs
 * the first one's rounding, so that a large offset common to the row costs no digits. */
#include "backend/cpu/norm.h"
#include "backend/cpu/simd/norm_grad.h"
#include "backend/cpu/simd/rows_sums.h"

/* Below this a variance may have lost digits to underflow in f32. */
#define TINY 1e-30

/* How a row is normed: h = (x - shift) * rstd - late, y = h * w + b. The mean is shift plus a
 * remainder too small to be subtracted in f32, which late makes up for. */
typedef struct row_norm {
    float shift, rstd, late;
    double mean;
} row_norm;

/* Sums of d = x - shift and of d^2, over a block at a time. The row that comes next is fetched
 * meanwhile. */
KM_INLINE void centred_sums(const void *x, const void *next, int64_t n, float shift, double *sum,
                            double *squares, int slot) {
    vf sub = v_set1(shift);
    *sum = *squares = 0;
    for (int64_t begin = 0; begin < n; begin += KM_SUM_BLOCK) {
        int64_t end = row_min(n, begin + KM_SUM_BLOCK), i = begin;
        vf s0 = v_zero(), s1 = s0, s2 = s0, s3 = s0, q0 = s0, q1 = s0, q2 = s0, q3 = s0;
        for (; i + 4 * KM_VF <= end; i += 4 * KM_VF) {
            row_prefetch2(next, i, slot);
            row_prefetch2(next, i + 2 * KM_VF, slot);
            vf a = row_load(x, i, slot) - sub, b = row_load(x, i + KM_VF, slot) - sub;
            vf c = row_load(x, i + 2 * KM_VF, slot) - sub,
               d = row_load(x, i + 3 * KM_VF, slot) - sub;
            s0 += a;
            s1 += b;
            s2 += c;
            s3 += d;
            q0 = v_fma(a, a, q0);
            q1 = v_fma(b, b, q1);
            q2 = v_fma(c, c, q2);
            q3 = v_fma(d, d, q3);
        }
        for (; i < end; i += KM_VF) {
            int64_t m = row_min(end - i, KM_VF);
            vf a = v_keep(row_first(m), row_load_n(x, i, m, slot) - sub);
            s0 += a;
            q0 = v_fma(a, a, q0);
        }
        *sum += v_reduce_add((s0 + s1) + (s2 + s3));
        *squares += v_reduce_add((q0 + q1) + (q2 + q3));
    }
}

/* False when the row's numbers do not fit the f32 sums. */
KM_INLINE bool layer_norm_stats(row_norm *s, const void *x, const void *next, int64_t n, double eps,
                                int slot) {
    double sum, squares, count = (double)n;
    s->shift = (float)(row_sum(x, n, slot) / count);
    centred_sums(x, next, n, s->shift, &sum, &squares, slot);
    double rest = sum / count, var = squares / count - rest * rest + eps;
    double rstd = 1 / sqrt(var);
    s->rstd = (float)rstd;
    s->late = (float)(rest * rstd);
    s->mean = s->shift + rest;
    return var > TINY && var < INFINITY;
}

KM_INLINE bool rms_norm_stats(row_norm *s, const void *x, int64_t n, double eps, int slot) {
    double squares = row_dot(x, x, n, slot) / (double)n + eps;
    *s = (row_norm){.rstd = (float)(1 / sqrt(squares))};
    return squares > TINY && squares < INFINITY;
}

KM_INLINE vf norm_lanes(vf x, vf w, vf b, vf shift, vf rstd, vf late, bool centre, bool bias) {
    vf h = centre ? v_fma(x - shift, rstd, -late) : x * rstd;
    return bias ? v_fma(h, w, b) : h * w;
}

KM_INLINE void write_row(void *y, const void *x, const float *w, const float *b, int64_t n,
                         const row_norm *s, bool centre, bool bias, bool stream, int slot) {
    vf shift = v_set1(s->shift), rstd = v_set1(s->rstd), late = v_set1(s->late);
    int64_t i = 0;
    for (; i + KM_VF <= n; i += KM_VF) {
        vf v = norm_lanes(row_load(x, i, slot), v_load(w + i), bias ? v_load(b + i) : v_zero(),
                          shift, rstd, late, centre, bias);
        row_put(y, i, v, stream, slot);
    }
    if (i < n) {
        int64_t m = n - i;
        vf v = norm_lanes(row_load_n(x, i, m, slot), v_load_n(w + i, m),
                          bias ? v_load_n(b + i, m) : v_zero(), shift, rstd, late, centre, bias);
        row_store_n(y, i, v, m, slot);
    }
}

/* The same in double, for rows whose squares leave the range of f32. */
static __attribute__((noinline)) void wide_row(const km_norm_job *j, void *y, const void *x,
                                               row_norm *s, bool centre, int slot) {
    double mean = 0, squares = 0, n = (double)j->n;
    for (int64_t i = 0; centre && i < j->n; i++) mean += row_get(x, i, slot);
    mean /= n;
    for (int64_t i = 0; i < j->n; i++) {
        double d = row_get(x, i, slot) - mean;
        squares += d * d;
    }
    double rstd = 1 / sqrt(squares / n + j->eps);
    for (int64_t i = 0; i < j->n; i++) {
        double v = (row_get(x, i, slot) - mean) * rstd * j->w[i] + (j->b ? j->b[i] : 0.0f);
        row_set(y, i, (float)v, slot);
    }
    *s = (row_norm){.mean = mean, .rstd = (float)rstd};
}

KM_INLINE void add_row(void *sum, const void *x, const void *residual, int64_t n, int slot) {
    int64_t i = 0;
    for (; i + KM_VF <= n; i += KM_VF)
        row_store(sum, i, row_load(x, i, slot) + row_load(residual, i, slot), slot);
    if (i < n) {
        vf v = row_load_n(x, i, n - i, slot) + row_load_n(residual, i, n - i, slot);
        row_store_n(sum, i, v, n - i, slot);
    }
}

KM_INLINE void norm_rows(const km_norm_job *j, bool centre, int slot) {
    bool stream = j->stream && row_can_stream(j->y, j->n, slot);
    for (int64_t r = 0; r < j->rows; r++) {
        const void *x = row_at(j->x, r * j->n, slot);
        const void *next = row_next(j->x, r, j->rows, j->n, slot);
        void *y = row_at(j->y, r * j->n, slot);
        if (j->sum) {
            void *sum = row_at(j->sum, r * j->n, slot);
            add_row(sum, x, row_at(j->residual, r * j->n, slot), j->n, slot);
            x = sum;
        }
        row_norm s;
        bool fits = centre ? layer_norm_stats(&s, x, next, j->n, j->eps, slot)
                           : rms_norm_stats(&s, x, j->n, j->eps, slot);
        if (!fits)
            wide_row(j, y, x, &s, centre, slot);
        else if (j->b)
            write_row(y, x, j->w, j->b, j->n, &s, centre, true, stream, slot);
        else
            write_row(y, x, j->w, NULL, j->n, &s, centre, false, stream, slot);
        if (j->mean) j->mean[r] = (float)s.mean;
        if (j->rstd) j->rstd[r] = s.rstd;
    }
    if (stream) v_stream_fence();
}

KM_INLINE void layer_norm(const km_norm_job *j, int slot) { norm_rows(j, true, slot); }
KM_INLINE void rms_norm(const km_norm_job *j, int slot) { norm_rows(j, false, slot); }

KM_PER_SLOT(layer_norm, km_norm_job)
KM_PER_SLOT(rms_norm, km_norm_job)
KM_PER_SLOT(layer_norm_grad, km_norm_grad_job)
KM_PER_SLOT(rms_norm_grad, km_norm_grad_job)

const km_norm KM_SIMD(km_simd_norm) = {
    .layer_norm = KM_SLOT_TABLE(layer_norm),
    .rms_norm = KM_SLOT_TABLE(rms_norm),
    .layer_norm_grad = KM_SLOT_TABLE(layer_norm_grad),
    .rms_norm_grad = KM_SLOT_TABLE(rms_norm_grad),
};
