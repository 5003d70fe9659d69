/* The same four functions down the columns of an (n, inner) matrix, a strip of columns at a time:
 * lanes are neighbouring columns, and maxima and sums are kept per column. The first pass takes a
 * few lines at a time and, where they raise a maximum, scales the sum so far down to it; so the
 * matrix is read twice in all, however long the columns. `op` is a constant where inlined. */
#ifndef KM_BACKEND_CPU_SIMD_ROWS_COLUMNS_H
#define KM_BACKEND_CPU_SIMD_ROWS_COLUMNS_H
#include "backend/cpu/rows.h"
#include "backend/cpu/simd/rows_sums.h"

#define KM_COLUMN_LINES 16

/* What is summed for the elements from `at` = k * inner + column on. */
KM_INLINE vf column_term(const km_rows_job *j, int64_t at, int64_t m, vf shift, int op, int slot) {
    vf x = row_load_n(j->x, at, m, slot);
    if (op == KM_ROWS_SOFTMAX_GRAD) return x * row_load_n(j->y, at, m, slot);
    if (op == KM_ROWS_LOG_SOFTMAX_GRAD) return x;
    return exp_below_0(x - shift);
}

/* Per column: the maximum, the sum so far, and what its rounding lost. */
typedef struct column_sums {
    float max[KM_ROWS_COLS], total[KM_ROWS_COLS], lost[KM_ROWS_COLS];
} column_sums;

/* Takes lines begin to end, m columns from `col` on, into the columns' maxima and sums. */
KM_INLINE void column_update(column_sums *s, const km_rows_job *j, int64_t begin, int64_t end,
                             int64_t col, int64_t m, int op, int slot) {
    vf sum = v_load(s->total + col), lost = v_load(s->lost + col);
    vf old = v_load(s->max + col), top = old, shift = v_zero();
    if (op == KM_ROWS_SOFTMAX || op == KM_ROWS_LOG_SOFTMAX) {
        vf low = v_set1(-INFINITY);
        for (int64_t k = begin; k < end; k++)
            top = v_max(row_load_n(j->x, k * j->inner + col, m, slot), top);
        shift = v_select(v_eq(top, low), v_zero(), top); /* all -inf so far: their terms are 0 */
        vf down = v_select(v_eq(old, top), v_set1(1.0f), exp_below_0(old - top));
        sum *= down;
        lost *= down;
        v_store(s->max + col, top);
    }
    vf part = v_zero();
    for (int64_t k = begin; k < end; k++)
        part += column_term(j, k * j->inner + col, m, shift, op, slot);
    vf lo, next = v_two_sum(sum, part, &lo);
    v_store(s->total + col, next);
    v_store(s->lost + col, lost + lo);
}

/* The whole sum; an infinite one has no use for what was lost. */
KM_INLINE vf column_total(const column_sums *s, int64_t col) {
    vf t = v_load(s->total + col);
    return t + v_keep(v_lt(v_abs(t), v_set1(INFINITY)), v_load(s->lost + col));
}

/* The result from the column's total: 1 / sum for softmax, log sum for log_softmax. */
KM_INLINE vf column_result(const km_rows_job *j, int64_t at, int64_t m, vf max, vf total, int op,
                           int slot) {
    vf x = row_load_n(j->x, at, m, slot);
    if (op == KM_ROWS_SOFTMAX) return exp_below_0(x - max) * total;
    if (op == KM_ROWS_LOG_SOFTMAX) return x - max - total;
    vf y = row_load_n(j->y, at, m, slot);
    if (op == KM_ROWS_SOFTMAX_GRAD) return y * (x - total);
    return v_fnma(v_exp(y), total, x);
}

KM_INLINE void columns(const km_rows_job *j, int op, int slot) {
    column_sums s;
    for (int64_t i = 0; i < j->cols; i += KM_VF) {
        v_store(s.max + i, v_set1(-INFINITY));
        v_store(s.total + i, v_zero());
        v_store(s.lost + i, v_zero());
    }
    for (int64_t k = 0; k < j->n; k += KM_COLUMN_LINES) {
        int64_t end = row_min(j->n, k + KM_COLUMN_LINES), i = 0;
        for (; i + KM_VF <= j->cols; i += KM_VF) column_update(&s, j, k, end, i, KM_VF, op, slot);
        if (i < j->cols) column_update(&s, j, k, end, i, j->cols - i, op, slot);
    }
    for (int64_t i = 0; i < j->cols; i += KM_VF) {
        vf t = column_total(&s, i);
        if (op == KM_ROWS_SOFTMAX) t = 1.0f / t;
        if (op == KM_ROWS_LOG_SOFTMAX) t = v_log(t);
        v_store(s.total + i, t);
    }
    for (int64_t k = 0; k < j->n; k++) {
        for (int64_t i = 0; i < j->cols; i += KM_VF) {
            int64_t m = row_min(j->cols - i, KM_VF), at = k * j->inner + i;
            vf v = column_result(j, at, m, v_load(s.max + i), v_load(s.total + i), op, slot);
            row_store_n(j->out, at, v, m, slot);
        }
    }
}

KM_INLINE void softmax_columns(const km_rows_job *j, int slot) {
    columns(j, KM_ROWS_SOFTMAX, slot);
}
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
