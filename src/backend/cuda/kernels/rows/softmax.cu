// Softmax and log-softmax over rows, and their gradients. Floor: one read and one write of the row
// (backward: two reads), against which an exp per element is hidden.
#include "backend/cuda/kernels/rows/row.cuh"

template <class T, int W, Team K> __device__ void softmax(const km_softmax_args &p) {
    Crew<K> crew;
    if (crew.row >= p.rows) return;
    Row<T, W, K> x(crew, p.n);
    x.load((const T *)p.x + crew.row * p.n);
    float m = -INFINITY, s = 0;
    x.each([&](const Pack<T, W> &v, int) {
#pragma unroll
        for (int k = 0; k < W; k++) m = fmaxf(m, to_f32(v.v[k]));
    });
    m = crew.max(m);
    x.each([&](const Pack<T, W> &v, int) {
#pragma unroll
        for (int k = 0; k < W; k++) s += exp_fast(to_f32(v.v[k]) - m);
    });
    s = crew.sum(s);
    float scale = p.log ? logf(s) : 1 / s;
    Pack<T, W> *out = (Pack<T, W> *)((T *)p.out + crew.row * p.n);
    x.each([&](const Pack<T, W> &v, int i) {
        Pack<T, W> y;
#pragma unroll
        for (int k = 0; k < W; k++) {
            float d = to_f32(v.v[k]) - m;
            y.v[k] = from_f32<T>(p.log ? d - scale : exp_fast(d) * scale);
        }
        out[i] = y;
    });
}
KM_ROW_KERNEL(softmax, softmax, km_softmax_args)

// y (dy - sum(dy y)), or dy - exp(y) sum(dy).
template <class T, int W, Team K> __device__ void softmax_grad(const km_softmax_args &p) {
    Crew<K> crew;
    if (crew.row >= p.rows) return;
    Row<T, W, K> y(crew, p.n);
    Row<T, W, K> dy(crew, p.n);
    y.load((const T *)p.x + crew.row * p.n);
    dy.load((const T *)p.dy + crew.row * p.n);
    float s = 0;
    dy.each_with(y, [&](const Pack<T, W> &d, const Pack<T, W> &v, int) {
#pragma unroll
        for (int k = 0; k < W; k++) s += to_f32(d.v[k]) * (p.log ? 1.0f : to_f32(v.v[k]));
    });
    s = crew.sum(s);
    Pack<T, W> *out = (Pack<T, W> *)((T *)p.out + crew.row * p.n);
    dy.each_with(y, [&](const Pack<T, W> &d, const Pack<T, W> &v, int i) {
        Pack<T, W> r;
#pragma unroll
        for (int k = 0; k < W; k++) {
            float yk = to_f32(v.v[k]), dk = to_f32(d.v[k]);
            r.v[k] = from_f32<T>(p.log ? dk - expf(yk) * s : yk * (dk - s));
        }
        out[i] = r;
    });
}
KM_ROW_KERNEL(softmax_grad, softmax_grad, km_softmax_args)

// ---- Along an axis that is not the last: a thread for each column, which lie side by side ----

template <class T> __device__ void softmax_columns(const km_softmax_args &p) {
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= p.rows * p.inner) return;
    int64_t first = c / p.inner * p.n * p.inner + c % p.inner;
    const T *x = (const T *)p.x + first;
    T *out = (T *)p.out + first;
    float m = -INFINITY, s = 0;
    for (int i = 0; i < p.n; i++) m = fmaxf(m, to_f32(x[i * p.inner]));
    for (int i = 0; i < p.n; i++) s += expf(to_f32(x[i * p.inner]) - m);
    float scale = p.log ? logf(s) : 1 / s;
    for (int i = 0; i < p.n; i++) {
        float d = to_f32(x[i * p.inner]) - m;
        out[i * p.inner] = from_f32<T>(p.log ? d - scale : expf(d) * scale);
    }
}

template <class T> __device__ void softmax_grad_columns(const km_softmax_args &p) {
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= p.rows * p.inner) return;
    int64_t first = c / p.inner * p.n * p.inner + c % p.inner;
    const T *y = (const T *)p.x + first, *dy = (const T *)p.dy + first;
    T *out = (T *)p.out + first;
    float s = 0;
    for (int i = 0; i < p.n; i++)
        s += to_f32(dy[i * p.inner]) * (p.log ? 1.0f : to_f32(y[i * p.inner]));
    for (int i = 0; i < p.n; i++) {
        float yk = to_f32(y[i * p.inner]), dk = to_f32(dy[i * p.inner]);
        out[i * p.inner] = from_f32<T>(p.log ? dk - expf(yk) * s : yk * (dk - s));
    }
}

#define COLUMNS(T, t, name)                                                                        \
    KM_KERNEL name##_##t(const __grid_constant__ km_softmax_args p) { name<T>(p); }
KM_EACH_FLOAT(COLUMNS, softmax_columns)
KM_EACH_FLOAT(COLUMNS, softmax_grad_columns)
