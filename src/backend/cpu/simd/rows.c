/* Softmax, log-softmax and their gradients over contiguous rows. A row is read from memory once:
 * by the time of the second pass it is cached, and so is the buffer where exponentials wait. */
#include "backend/cpu/rows.h"
#include "backend/cpu/simd/rows_columns.h"
#include "backend/cpu/simd/rows_sums.h"

KM_INLINE void softmax_rows(const km_rows_job *j, int slot) {
    bool stream = j->stream && row_can_stream(j->out, j->n, slot);
    float *e = j->buffer;
    for (int64_t r = 0; r < j->rows; r++) {
        const void *x = row_at(j->x, r * j->n, slot);
        void *out = row_at(j->out, r * j->n, slot);
        const void *next = row_next(j->x, r, j->rows, j->n, slot);
        float max = row_max(x, j->n, slot);
        vf scale = v_set1((float)(1 / row_sum_exp(x, next, j->n, max, e, slot)));
        int64_t i = 0;
        for (; i + KM_VF <= j->n; i += KM_VF) row_put(out, i, v_load(e + i) * scale, stream, slot);
        if (i < j->n) row_store_n(out, i, v_load_n(e + i, j->n - i) * scale, j->n - i, slot);
    }
    if (stream) v_stream_fence();
}

KM_INLINE void log_softmax_rows(const km_rows_job *j, int slot) {
    bool stream = j->stream && row_can_stream(j->out, j->n, slot);
    for (int64_t r = 0; r < j->rows; r++) {
        const void *x = row_at(j->x, r * j->n, slot);
        void *out = row_at(j->out, r * j->n, slot);
        const void *next = row_next(j->x, r, j->rows, j->n, slot);
        float m = row_max(x, j->n, slot);
        vf max = v_set1(m), lse = v_set1((float)log(row_sum_exp(x, next, j->n, m, NULL, slot)));
        int64_t i = 0;
        for (; i + KM_VF <= j->n; i += KM_VF)
            row_put(out, i, row_load(x, i, slot) - max - lse, stream, slot);
        if (i < j->n) {
            vf v = row_load_n(x, i, j->n - i, slot) - max - lse;
            row_store_n(out, i, v, j->n - i, slot);
        }
    }
    if (stream) v_stream_fence();
}

/* y * (dy - sum(dy * y)) */
KM_INLINE void softmax_grad_rows(const km_rows_job *j, int slot) {
    bool stream = j->stream && row_can_stream(j->out, j->n, slot);
    for (int64_t r = 0; r < j->rows; r++) {
        const void *dy = row_at(j->x, r * j->n, slot), *y = row_at(j->y, r * j->n, slot);
        void *out = row_at(j->out, r * j->n, slot);
        vf dot = v_set1((float)row_dot(dy, y, j->n, slot));
        int64_t i = 0;
        for (; i + KM_VF <= j->n; i += KM_VF)
            row_put(out, i, row_load(y, i, slot) * (row_load(dy, i, slot) - dot), stream, slot);
        if (i < j->n) {
            int64_t m = j->n - i;
            vf v = row_load_n(y, i, m, slot) * (row_load_n(dy, i, m, slot) - dot);
            row_store_n(out, i, v, m, slot);
        }
    }
    if (stream) v_stream_fence();
}

/* dy - exp(y) * sum(dy) */
KM_INLINE void log_softmax_grad_rows(const km_rows_job *j, int slot) {
    bool stream = j->stream && row_can_stream(j->out, j->n, slot);
    for (int64_t r = 0; r < j->rows; r++) {
        const void *dy = row_at(j->x, r * j->n, slot), *y = row_at(j->y, r * j->n, slot);
        void *out = row_at(j->out, r * j->n, slot);
        vf sum = v_set1((float)row_sum(dy, j->n, slot));
        int64_t i = 0;
        for (; i + KM_VF <= j->n; i += KM_VF) {
            vf v = v_fnma(v_exp(row_load(y, i, slot)), sum, row_load(dy, i, slot));
            row_put(out, i, v, stream, slot);
        }
        if (i < j->n) {
            int64_t m = j->n - i;
            vf v = v_fnma(v_exp(row_load_n(y, i, m, slot)), sum, row_load_n(dy, i, m, slot));
            row_store_n(out, i, v, m, slot);
        }
    }
    if (stream) v_stream_fence();
}

KM_PER_SLOT(softmax_rows, km_rows_job)
KM_PER_SLOT(log_softmax_rows, km_rows_job)
KM_PER_SLOT(softmax_grad_rows, km_rows_job)
KM_PER_SLOT(log_softmax_grad_rows, km_rows_job)
KM_PER_SLOT(softmax_columns, km_rows_job)
KM_PER_SLOT(log_softmax_columns, km_rows_job)
KM_PER_SLOT(softmax_grad_columns, km_rows_job)
KM_PER_SLOT(log_softmax_grad_columns, km_rows_job)

const km_rows_kernels KM_SIMD(km_simd_rows) = {
    .rows = {[KM_ROWS_SOFTMAX] = KM_SLOT_TABLE(softmax_rows),
             [KM_ROWS_LOG_SOFTMAX] = KM_SLOT_TABLE(log_softmax_rows),
             [KM_ROWS_SOFTMAX_GRAD] = KM_SLOT_TABLE(softmax_grad_rows),
             [KM_ROWS_LOG_SOFTMAX_GRAD] = KM_SLOT_TABLE(log_softmax_grad_rows)},
    .columns = {[KM_ROWS_SOFTMAX] = KM_SLOT_TABLE(softmax_columns),
                [KM_ROWS_LOG_SOFTMAX] = KM_SLOT_TABLE(log_softmax_columns),
                [KM_ROWS_SOFTMAX_GRAD] = KM_SLOT_TABLE(softmax_grad_columns),
                [KM_ROWS_LOG_SOFTMAX_GRAD] = KM_SLOT_TABLE(log_softmax_grad_columns)},
};
