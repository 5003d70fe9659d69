/* Plain C for what the benchmarks measure. */
#include "cli/bench/naive.h"
#include <math.h>

void km_naive_matmul(int64_t n, int64_t rows, const float *a, const float *b, float *c) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
}

static void attention_row(int64_t d, int64_t i, const float *q, const float *k, const float *v,
                          float *o, float *scores) {
    float scale = 1 / sqrtf((float)d), largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= i; j++) {
        float dot = 0;
        for (int64_t e = 0; e < d; e++) dot += q[i * d + e] * k[j * d + e];
        scores[j] = dot * scale;
        if (scores[j] > largest) largest = scores[j];
    }
    for (int64_t j = 0; j <= i; j++) {
        scores[j] = expf(scores[j] - largest);
        sum += scores[j];
    }
    for (int64_t e = 0; e < d; e++) o[i * d + e] = 0;
    for (int64_t j = 0; j <= i; j++)
        for (int64_t e = 0; e < d; e++) o[i * d + e] += scores[j] / sum * v[j * d + e];
}

void km_naive_attention(int64_t heads, int64_t t, int64_t d, const float *q, const float *k,
                        const float *v, float *o, float *scores) {
    for (int64_t h = 0; h < heads; h++) {
        int64_t at = h * t * d;
        for (int64_t i = 0; i < t; i++) attention_row(d, i, q + at, k + at, v + at, o + at, scores);
    }
}

/* ---- Elementwise ---- */

#define ELEMENTWISE(name, formula)                                                                 \
    void km_naive_##name(const km_naive_args *a) {                                                 \
        int64_t n = a->rows * a->cols;                                                             \
        const float *xs = a->x, *ys = a->y;                                                        \
        float *out = a->out;                                                                       \
        for (int64_t i = 0; i < n; i++) {                                                          \
            float x = xs[i], y = ys[i];                                                            \
            (void)x, (void)y;                                                                      \
            out[i] = formula;                                                                      \
        }                                                                                          \
    }

ELEMENTWISE(add, x + y)
ELEMENTWISE(sub, x - y)
ELEMENTWISE(mul, x *y)
ELEMENTWISE(div, x / y)
ELEMENTWISE(pow, powf(y, x))
ELEMENTWISE(relu, x > 0 ? x : 0)
ELEMENTWISE(exp, expf(x))
ELEMENTWISE(log, logf(y))
ELEMENTWISE(sqrt, sqrtf(y))
ELEMENTWISE(tanh, tanhf(x))
ELEMENTWISE(sigmoid, 1 / (1 + expf(-x)))
ELEMENTWISE(gelu, 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))))
ELEMENTWISE(silu, x / (1 + expf(-x)))

/* ---- Rows ---- */

static float row_max(const float *x, int64_t n) {
    float m = x[0];
    for (int64_t j = 1; j < n; j++)
        if (x[j] > m) m = x[j];
    return m;
}

void km_naive_softmax(const km_naive_args *a) {
    int64_t n = a->cols;
    for (int64_t i = 0; i < a->rows; i++) {
        const float *x = a->x + i * n;
        float *y = a->out + i * n, m = row_max(x, n), sum = 0;
        for (int64_t j = 0; j < n; j++) {
            y[j] = expf(x[j] - m);
            sum += y[j];
        }
        for (int64_t j = 0; j < n; j++) y[j] /= sum;
    }
}

void km_naive_log_softmax(const km_naive_args *a) {
    int64_t n = a->cols;
    for (int64_t i = 0; i < a->rows; i++) {
        const float *x = a->x + i * n;
        float *y = a->out + i * n, m = row_max(x, n), sum = 0;
        for (int64_t j = 0; j < n; j++) sum += expf(x[j] - m);
        float lse = m + logf(sum);
        for (int64_t j = 0; j < n; j++) y[j] = x[j] - lse;
    }
}

void km_naive_layer_norm(const km_naive_args *a) {
    int64_t n = a->cols;
    for (int64_t i = 0; i < a->rows; i++) {
        const float *x = a->x + i * n;
        float *y = a->out + i * n, mean = 0, var = 0;
        for (int64_t j = 0; j < n; j++) mean += x[j];
        mean /= (float)n;
        for (int64_t j = 0; j < n; j++) var += (x[j] - mean) * (x[j] - mean);
        float rstd = 1 / sqrtf(var / (float)n + 1e-5f);
        for (int64_t j = 0; j < n; j++) y[j] = (x[j] - mean) * rstd * a->w[j] + a->b[j];
    }
}

void km_naive_rms_norm(const km_naive_args *a) {
    int64_t n = a->cols;
    for (int64_t i = 0; i < a->rows; i++) {
        const float *x = a->x + i * n;
        float *y = a->out + i * n, sum = 0;
        for (int64_t j = 0; j < n; j++) sum += x[j] * x[j];
        float rstd = 1 / sqrtf(sum / (float)n + 1e-5f);
        for (int64_t j = 0; j < n; j++) y[j] = x[j] * rstd * a->w[j];
    }
}

void km_naive_cross_entropy(const km_naive_args *a) {
    int64_t n = a->cols;
    float loss = 0;
    for (int64_t i = 0; i < a->rows; i++) {
        const float *x = a->x + i * n;
        float m = row_max(x, n), sum = 0;
        for (int64_t j = 0; j < n; j++) sum += expf(x[j] - m);
        loss += m + logf(sum) - x[a->targets[i]];
    }
    a->out[0] = loss / (float)a->rows;
}

/* ---- Reductions ---- */

void km_naive_sum(const km_naive_args *a) {
    float sum = 0;
    for (int64_t i = 0; i < a->rows * a->cols; i++) sum += a->x[i];
    a->out[0] = sum;
}

void km_naive_sum_rows(const km_naive_args *a) {
    for (int64_t i = 0; i < a->rows; i++) {
        float sum = 0;
        for (int64_t j = 0; j < a->cols; j++) sum += a->x[i * a->cols + j];
        a->out[i] = sum;
    }
}

void km_naive_sum_columns(const km_naive_args *a) {
    for (int64_t j = 0; j < a->cols; j++) a->out[j] = 0;
    for (int64_t i = 0; i < a->rows; i++)
        for (int64_t j = 0; j < a->cols; j++) a->out[j] += a->x[i * a->cols + j];
}

void km_naive_max(const km_naive_args *a) { a->out[0] = row_max(a->x, a->rows * a->cols); }

void km_naive_argmax(const km_naive_args *a) {
    for (int64_t i = 0; i < a->rows; i++) {
        int64_t best = 0;
        for (int64_t j = 1; j < a->cols; j++)
            if (a->x[i * a->cols + j] > a->x[i * a->cols + best]) best = j;
        a->out[i] = (float)best;
    }
}

void km_naive_var(const km_naive_args *a) {
    int64_t n = a->rows * a->cols;
    float mean = 0, var = 0;
    for (int64_t i = 0; i < n; i++) mean += a->x[i];
    mean /= (float)n;
    for (int64_t i = 0; i < n; i++) var += (a->x[i] - mean) * (a->x[i] - mean);
    a->out[0] = var / (float)(n - 1);
}
