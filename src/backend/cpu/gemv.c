/* Products of few rows: x (rows, k) against many weights, each read once. A product of few columns
 * is the same thing turned around: c^T = b^T a^T, with a as the weights. */
#include "backend/cpu/gemm_block.h"

#define STRETCH 2048 /* weights' outputs held at a time */

bool km_gemv_turned(const km_gemm *g) { return g->n < g->m; }

/* Up to so many rows reading the weights is most of the work. Sums of few products, and few of
 * them, are the packing GEMM's. */
bool km_gemv_suits(const km_gemm *g) {
    bool turned = km_gemv_turned(g);
    int64_t rows = turned ? g->n : g->m, outs = turned ? g->m : g->n;
    bool along_k = turned ? g->a.col == 1 : g->b.col != 1;
    if (rows == 1) return true;
    return along_k ? rows <= 16 && g->k >= 128 && outs >= 32 : rows <= 8 && outs >= 128;
}

size_t km_gemv_floats(const km_gemm *g, bool turned) {
    size_t rows = (size_t)(turned ? g->n : g->m);
    size_t floats = rows * (size_t)g->k + 2 * rows * STRETCH;
    return (floats + 15) & ~(size_t)15;
}

static float element(const void *p, km_dtype d, int64_t i) {
    if (d == KM_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return d == KM_F16 ? km_f16_to_f32(h) : km_bf16_to_f32(h);
}

/* x(r, p) as f32 rows of k: where it lies when it is so already, else a copy. */
static const float *rows_of(const km_mat *x, int64_t rows, int64_t k, const km_gemm_kernels *kern,
                            float *copy, int64_t *ldx) {
    *ldx = x->row;
    if (x->col == 1 && x->dtype == KM_F32) return x->data;
    *ldx = k;
    if (x->col == 1) {
        kern->widen(copy, k, x->data, x->dtype, x->row, rows, k);
    } else {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t p = 0; p < k; p++)
                copy[r * k + p] = element(x->data, x->dtype, r * x->row + p * x->col);
    }
    return copy;
}

static void *at(const void *p, km_dtype d, int64_t i) {
    return (char *)p + i * (int64_t)km_dtype_size(d);
}

/* Outputs j .. j + n - 1 of each row of y go to their places in c. */
static void put(const km_gemm *g, const km_gemm_kernels *kern, bool turned, const float *y,
                int64_t j, int64_t n, int64_t rows, float *t) {
    km_finish end = g->end;
    km_dtype d = end.dtype;
    if (!turned) {
        if (end.bias) end.bias = at(end.bias, d, j);
        kern->finish(&end, y, n, at(g->c, d, j), g->pre ? at(g->pre, d, j) : NULL, g->ldc, rows, n);
        return;
    }
    void *c = at(g->c, d, j * g->ldc), *pre = g->pre ? at(g->pre, d, j * g->ldc) : NULL;
    if (rows == 1 && g->ldc == 1 && !end.bias) {
        kern->finish(&end, y, n, c, pre, n, 1, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t r = 0; r < rows; r++) t[i * rows + r] = y[r * n + i];
    kern->finish(&end, t, rows, c, pre, g->ldc, n, rows);
}

void km_gemv_block(const km_gemm *g, const km_gemm_kernels *kern, bool turned, float *scratch) {
    /* w(j, p) and x(r, p) */
    km_mat b_t = {g->b.data, g->b.dtype, g->b.col, g->b.row};
    km_mat w = turned ? g->a : b_t, x = turned ? b_t : g->a;
    int64_t rows = turned ? g->n : g->m, outs = turned ? g->m : g->n, ldx;
    const float *xs = rows_of(&x, rows, g->k, kern, scratch, &ldx);
    float *y = scratch + rows * g->k, *t = y + rows * STRETCH;

    for (int64_t j = 0; j < outs; j += STRETCH) {
        int64_t n = outs - j < STRETCH ? outs - j : STRETCH;
        const void *wj = at(w.data, w.dtype, j * w.row);
        if (w.col == 1)
            kern->dots(wj, w.dtype, w.row, n, g->k, xs, ldx, rows, y, n);
        else
            kern->sums(wj, w.dtype, w.col, n, g->k, xs, ldx, rows, y, n);
        if (g->alpha != 1)
            for (int64_t i = 0; i < rows * n; i++) y[i] *= g->alpha;
        put(g, kern, turned, y, j, n, rows, t);
    }
}
