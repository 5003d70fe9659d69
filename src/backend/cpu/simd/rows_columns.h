/* The same four functions down the columns of an (n, inner) matrix, a block of columns at a time:
 * lanes are neighbouring columns, and sums are kept per column. `op` is a constant where inlined. */
#ifndef KM_BACKEND_CPU_SIMD_ROWS_COLUMNS_H
#define KM_BACKEND_CPU_SIMD_ROWS_COLUMNS_H
#include "backend/cpu/rows.h"
#include "backend/cpu/simd/rows_sums.h"

#define KM_COLUMN_CHAIN 64 /* additions in one chain before it meets the total */

/* What is summed for element `at` = k * inner + column. */
KM_INLINE vf column_term(const km_rows_job *j, int64_t at, int64_t m, vf max, int op, int slot) {
    vf x = row_load_n(j->x, at, m, slot);
    if (op == KM_ROWS_SOFTMAX_GRAD) return x * row_load_n(j->y, at, m, slot);
    if (op == KM_ROWS_LOG_SOFTMAX_GRAD) return x;
    return v_exp(x - max);
}

/* The result from the total: 1 / sum for softmax, log sum for log_softmax. */
KM_INLINE vf column_result(const km_rows_job *j, int64_t at, int64_t m, vf max, vf total, vf e,
                           int op, int slot) {
    if (op == KM_ROWS_SOFTMAX) return e * total;
    vf x = row_load_n(j->x, at, m, slot);
    if (op == KM_ROWS_LOG_SOFTMAX) return x - max - total;
    vf y = row_load_n(j->y, at, m, slot);
    if (op == KM_ROWS_SOFTMAX_GRAD) return y * (x - total);
    return v_fnma(v_exp(y), total, x);
}

KM_INLINE void column_maxima(const km_rows_job *j, float *max, int slot) {
    for (int64_t i = 0; i < j->cols; i += KM_VF) v_store(max + i, v_set1(-INFINITY));
    for (int64_t k = 0; k < j->n; k++) {
        for (int64_t i = 0; i < j->cols; i += KM_VF) {
            vf x = row_load_n(j->x, k * j->inner + i, row_min(j->cols - i, KM_VF), slot);
            v_store(max + i, v_max(x, v_load(max + i)));
        }
    }
}

KM_INLINE void columns(const km_rows_job *j, int op, int slot) {
    float max[KM_ROWS_COLS] = {0}, total[KM_ROWS_COLS] = {0}, part[KM_ROWS_COLS];
    int64_t width = km_ceil_div(j->cols, KM_VF) * KM_VF; /* of a line of the buffer */
    bool forward = op == KM_ROWS_SOFTMAX || op == KM_ROWS_LOG_SOFTMAX;
    if (forward) column_maxima(j, max, slot);

    for (int64_t begin = 0; begin < j->n; begin += KM_COLUMN_CHAIN) {
        int64_t end = row_min(j->n, begin + KM_COLUMN_CHAIN);
        memset(part, 0, sizeof part);
        for (int64_t k = begin; k < end; k++) {
            for (int64_t i = 0; i < j->cols; i += KM_VF) {
                int64_t m = row_min(j->cols - i, KM_VF);
                vf term = column_term(j, k * j->inner + i, m, v_load(max + i), op, slot);
                if (op == KM_ROWS_SOFTMAX) v_store(j->buffer + k * width + i, term);
                v_store(part + i, v_load(part + i) + term);
            }
        }
        for (int64_t i = 0; i < j->cols; i += KM_VF)
            v_store(total + i, v_load(total + i) + v_load(part + i));
    }

    for (int64_t i = 0; forward && i < j->cols; i += KM_VF) {
        vf t = v_load(total + i);
        v_store(total + i, op == KM_ROWS_SOFTMAX ? 1.0f / t : v_log(t));
    }
    for (int64_t k = 0; k < j->n; k++) {
        for (int64_t i = 0; i < j->cols; i += KM_VF) {
            int64_t m = row_min(j->cols - i, KM_VF), at = k * j->inner + i;
            vf e = op == KM_ROWS_SOFTMAX ? v_load(j->buffer + k * width + i) : v_zero();
            vf v = column_result(j, at, m, v_load(max + i), v_load(total + i), e, op, slot);
            row_store_n(j->out, at, v, m, slot);
        }
    }
}

KM_INLINE void softmax_columns(const km_rows_job *j, int slot) { columns(j, KM_ROWS_SOFTMAX, slot); }
KM_INLINE void log_softmax_columns(const km_rows_job *j, int slot) {
    columns(j, KM_ROWS_LOG_SOFTMAX, slot);
}
KM_INLINE void softmax_grad_columns(const km_rows_job *j, int slot) {
    columns(j, KM_ROWS_SOFTMAX_GRAD, slot);
}
KM_INLINE void log_softmax_grad_columns(const km_rows_job *j, int slot) {
    columns(j, KM_ROWS_LOG_SOFTMAX_GRAD, slot);
}

#endif
