/* Cross entropy, squared error and binary cross entropy. A row of logits is read from memory once:
 * its exponentials wait in a cached buffer until their sum is known. */
#include "backend/cpu/loss.h"
#include "backend/cpu/simd/rows_sums.h"

/* ---- Cross entropy ---- */

KM_INLINE void zero_row(void *p, int64_t n, int slot) {
    memset(p, 0, (size_t)n * (slot == KM_SLOT_F32 ? 4 : 2));
}

/* (exp(x - lse) - [target]) * scale */
KM_INLINE void grad_from_lse(void *out, const void *x, int64_t v, double lse, int64_t target,
                             double scale, bool stream, int slot) {
    vf sub = v_set1((float)lse), mul = v_set1((float)scale);
    int64_t i = 0;
    for (; i + KM_VF <= v; i += KM_VF)
        row_put(out, i, v_exp(row_load(x, i, slot) - sub) * mul, stream, slot);
    if (i < v) row_store_n(out, i, v_exp(row_load_n(x, i, v - i, slot) - sub) * mul, v - i, slot);
    row_set(out, target, (float)(expm1(row_get(x, target, slot) - lse) * scale), slot);
}

/* exp(x - max) is in e, and sums to sum. */
KM_INLINE void grad_from_terms(void *out, float *e, int64_t v, double sum, double at_target,
                               int64_t target, double scale, bool stream, int slot) {
    e[target] = (float)(at_target * sum);
    vf mul = v_set1((float)(scale / sum));
    int64_t i = 0;
    for (; i + KM_VF <= v; i += KM_VF) row_put(out, i, v_load(e + i) * mul, stream, slot);
    if (i < v) row_store_n(out, i, v_load_n(e + i, v - i) * mul, v - i, slot);
}

/* log sum exp of a row with an infinite maximum, or none: the maximum, unless there is a NaN. */
static __attribute__((noinline)) double odd_lse(const void *x, int64_t v, float max, int slot) {
    for (int64_t i = 0; i < v; i++)
        if (isnan(row_get(x, i, slot))) return NAN;
    return max;
}

KM_INLINE void cross_entropy(const km_cross_entropy_job *j, int slot) {
    bool stream = j->stream && row_can_stream(j->dlogits, j->v, slot);
    for (int64_t r = 0; r < j->rows; r++) {
        const void *x = row_at(j->logits, r * j->v, slot);
        void *out = j->dlogits ? row_at(j->dlogits, r * j->v, slot) : NULL;
        int64_t target = km_index_at(j->targets, j->wide, r);
        bool counts = target != j->ignore && target >= 0 && target < j->v;
        const void *next = row_next(j->logits, r, j->rows, j->v, slot);
        float max = row_max(x, j->v, slot);
        double sum = out && counts ? row_sum_exp(x, next, j->v, max, j->buffer, slot)
                                   : row_sum_exp(x, next, j->v, max, NULL, slot);
        bool odd = isinf(max);
        double lse = odd ? odd_lse(x, j->v, max, slot) : max + log(sum);
        j->lse[r] = (float)lse;
        j->losses[r] = 0;
        if (counts) {
            double log_p = row_get(x, target, slot) - lse;
            j->losses[r] = -log_p;
            if (out && odd)
                grad_from_lse(out, x, j->v, lse, target, j->scale, stream, slot);
            else if (out)
                grad_from_terms(out, j->buffer, j->v, sum, expm1(log_p), target, j->scale, stream,
                                slot);
        } else if (out) {
            zero_row(out, j->v, slot);
        }
    }
    if (stream) v_stream_fence();
}

KM_INLINE void cross_entropy_grad(const km_cross_entropy_job *j, int slot) {
    bool stream = j->stream && row_can_stream(j->dlogits, j->v, slot);
    for (int64_t r = 0; r < j->rows; r++) {
        const void *x = row_at(j->logits, r * j->v, slot);
        void *out = row_at(j->dlogits, r * j->v, slot);
        int64_t target = km_index_at(j->targets, j->wide, r);
        if (target != j->ignore && target >= 0 && target < j->v)
            grad_from_lse(out, x, j->v, j->lse[r], target, j->scale, stream, slot);
        else
            zero_row(out, j->v, slot);
    }
    if (stream) v_stream_fence();
}

/* ---- Losses of two tensors ---- */

KM_INLINE vf mse_term(vf x, vf t) { return (x - t) * (x - t); }

/* log(1 + e) for 0 <= e <= 1: 2 atanh(s), s = e / (2 + e) <= 1/3, by its series. Keeps the digits
 * of a small e. */
KM_INLINE vf log1p_unit(vf e) {
    vf s = e / (e + 2.0f), z = s * s;
    vf p = v_fma(v_set1(2.0f / 15), z, v_set1(2.0f / 13));
    p = v_fma(p, z, v_set1(2.0f / 11));
    p = v_fma(p, z, v_set1(2.0f / 9));
    p = v_fma(p, z, v_set1(2.0f / 7));
    p = v_fma(p, z, v_set1(2.0f / 5));
    p = v_fma(p, z, v_set1(2.0f / 3));
    return v_fma(p, z, v_set1(2.0f)) * s;
}

/* -t log s(x) - (1 - t) log(1 - s(x)), in the form that never overflows */
KM_INLINE vf bce_term(vf x, vf t) {
    return v_fnma(x, t, v_max(v_zero(), x)) + log1p_unit(exp_below_0(-v_abs(x)));
}

KM_INLINE void pair_sum(const km_pair_job *j, vf (*term)(vf, vf), int slot) {
    double total = 0;
    for (int64_t begin = 0; begin < j->n; begin += KM_SUM_BLOCK) {
        int64_t end = row_min(j->n, begin + KM_SUM_BLOCK), i = begin;
        vf s0 = v_zero(), s1 = s0;
        for (; i + 2 * KM_VF <= end; i += 2 * KM_VF) {
            s0 += term(row_load(j->x, i, slot), row_load(j->target, i, slot));
            s1 += term(row_load(j->x, i + KM_VF, slot), row_load(j->target, i + KM_VF, slot));
        }
        for (; i < end; i += KM_VF) {
            int64_t m = row_min(end - i, KM_VF);
            vf t = term(row_load_n(j->x, i, m, slot), row_load_n(j->target, i, m, slot));
            s0 += v_keep(row_first(m), t);
        }
        total += v_reduce_add(s0 + s1);
    }
    *j->sum = total;
}

KM_INLINE vf mse_deriv(vf x, vf t) { return 2.0f * (x - t); }
KM_INLINE vf bce_deriv(vf x, vf t) { return v_sigmoid(x) - t; }

KM_INLINE void pair_grad(const km_pair_job *j, vf (*deriv)(vf, vf), int slot) {
    bool stream = j->stream && row_can_stream(j->dx, KM_VF, slot);
    vf scale = v_set1((float)j->scale);
    int64_t i = 0;
    for (; i + KM_VF <= j->n; i += KM_VF) {
        vf d = deriv(row_load(j->x, i, slot), row_load(j->target, i, slot));
        row_put(j->dx, i, d * scale, stream, slot);
    }
    if (i < j->n) {
        int64_t m = j->n - i;
        vf d = deriv(row_load_n(j->x, i, m, slot), row_load_n(j->target, i, m, slot));
        row_store_n(j->dx, i, d * scale, m, slot);
    }
    if (stream) v_stream_fence();
}

KM_INLINE void mse(const km_pair_job *j, int slot) { pair_sum(j, mse_term, slot); }
KM_INLINE void bce(const km_pair_job *j, int slot) { pair_sum(j, bce_term, slot); }
KM_INLINE void mse_grad(const km_pair_job *j, int slot) { pair_grad(j, mse_deriv, slot); }
KM_INLINE void bce_grad(const km_pair_job *j, int slot) { pair_grad(j, bce_deriv, slot); }

KM_PER_SLOT(cross_entropy, km_cross_entropy_job)
KM_PER_SLOT(cross_entropy_grad, km_cross_entropy_job)
KM_PER_SLOT(mse, km_pair_job)
KM_PER_SLOT(bce, km_pair_job)
KM_PER_SLOT(mse_grad, km_pair_job)
KM_PER_SLOT(bce_grad, km_pair_job)

const km_loss KM_SIMD(km_simd_loss) = {
    .cross_entropy = KM_SLOT_TABLE(cross_entropy),
    .cross_entropy_grad = KM_SLOT_TABLE(cross_entropy_grad),
    .mse = KM_SLOT_TABLE(mse),
    .bce = KM_SLOT_TABLE(bce),
    .mse_grad = KM_SLOT_TABLE(mse_grad),
    .bce_grad = KM_SLOT_TABLE(bce_grad),
};
