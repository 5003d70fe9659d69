/* Plain C for what the benchmarks measure: one thread, the loops as a textbook writes them, left
 * to the compiler. What a speed-up is a speed-up over. */
#ifndef KM_CLI_BENCH_NAIVE_H
#define KM_CLI_BENCH_NAIVE_H
#include <stdint.h>

/* The first `rows` rows of c (n, n) = a (n, n) b (n, n) */
void km_naive_matmul(int64_t n, int64_t rows, const float *a, const float *b, float *c);
/* q, k, v, o (heads, t, d), causal, one row of scores at a time in `scores` (t) */
void km_naive_attention(int64_t heads, int64_t t, int64_t d, const float *q, const float *k,
                        const float *v, float *o, float *scores);

/* One op on x, y (rows, cols), w, b (cols), targets (rows); the result goes to out. */
typedef struct km_naive_args {
    int64_t rows, cols;
    const float *x, *y, *w, *b;
    const int32_t *targets;
    float *out;
} km_naive_args;
typedef void (*km_naive_fn)(const km_naive_args *a);

#define KM_NAIVE_LIST(X)                                                                           \
    X(add)                                                                                         \
    X(sub)                                                                                         \
    X(mul)                                                                                         \
    X(div)                                                                                         \
    X(pow)                                                                                         \
    X(relu)                                                                                        \
    X(exp)                                                                                         \
    X(log)                                                                                         \
    X(sqrt)                                                                                        \
    X(tanh)                                                                                        \
    X(sigmoid)                                                                                     \
    X(gelu)                                                                                        \
    X(silu)                                                                                        \
    X(softmax)                                                                                     \
    X(log_softmax)                                                                                 \
    X(layer_norm)                                                                                  \
    X(rms_norm) X(cross_entropy) X(sum) X(sum_rows) X(sum_columns) X(max) X(argmax) X(var)
#define KM_NAIVE_DECLARE(name) void km_naive_##name(const km_naive_args *a);
KM_NAIVE_LIST(KM_NAIVE_DECLARE)
#undef KM_NAIVE_DECLARE

#endif
