/* Which rows of an index have one length, so that products can be told from squared distances. */
#include "base/alloc.h"
#include "vector/index.h"
#include <math.h>
#include <stdlib.h>

#define ONE_LENGTH (1 / 512.0) /* lengths that differ by less are one: far below what codes lose */
#define NEARLY_ALL 0.9

static double length_of(const float *x, int64_t dim) {
    double sum = 0;
    for (int64_t j = 0; j < dim; j++) sum += (double)x[j] * x[j];
    return sqrt(sum);
}

static bool is_one(double length, double all) { return fabs(length - all) <= ONE_LENGTH * all; }

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

float km_common_length(const float *rows, int64_t n, int64_t dim, km_error *err) {
    double *length = km_alloc(sizeof *length * (size_t)(n + 1));
    if (!length) {
        km_no_memory(err);
        return 0;
    }
    for (int64_t i = 0; i < n; i++) length[i] = length_of(rows + i * dim, dim);
    qsort(length, (size_t)n, sizeof *length, by_value);
    double middle = n ? length[n / 2] : 0;
    int64_t many = 0;
    for (int64_t i = 0; i < n; i++) many += middle > 0 && is_one(length[i], middle);
    km_free(length);
    return (double)many >= NEARLY_ALL * (double)n ? (float)middle : 0;
}

void km_index_note_lengths(const km_index *x, const float *rows, const int32_t *cell, int64_t n) {
    for (int64_t i = 0; i < n && x->length > 0; i++)
        if (!is_one(length_of(rows + i * x->dim, x->dim), x->length))
            atomic_store_explicit(&x->mixed[cell[i]], 1, memory_order_relaxed);
}

void km_index_mix(km_index *x, const km_index *other) {
    bool same = x->length == other->length;
    for (int64_t c = 0; c < x->cells; c++)
        if (!same || atomic_load_explicit(&other->mixed[c], memory_order_relaxed))
            atomic_store_explicit(&x->mixed[c], 1, memory_order_relaxed);
}

bool km_index_is_mixed(const km_index *x) {
    for (int64_t c = 0; c < x->cells; c++)
        if (atomic_load_explicit(&x->mixed[c], memory_order_relaxed)) return true;
    return false;
}

/* Who is far from the one length, as zero is, was of another. */
void km_restore_lengths(const km_index *x, float *rows, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float *row = rows + i * x->dim;
        double length = length_of(row, x->dim);
        if (!(length > 0.5 * x->length) || !(length < 1.1 * x->length)) continue;
        for (int64_t j = 0; j < x->dim; j++) row[j] *= (float)(x->length / length);
    }
}
