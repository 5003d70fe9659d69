// Losses. cross_entropy reads each row of logits once and, when the gradient is asked for as well,
// writes it once from the same registers: the floor is one read and one write of the logits. Row
// losses are added up by one block in a fixed order.
#include "backend/cuda/kernels/rows/row.cuh"

__device__ __forceinline__ int64_t target_of(const km_loss_args &p, int64_t row) {
    return p.wide ? ((const int64_t *)p.targets)[row] : ((const int32_t *)p.targets)[row];
}

// Rows whose target is ignored, or no class at all, count for nothing.
__device__ __forceinline__ bool counts(const km_loss_args &p, int64_t target) {
    return target != p.ignore && target >= 0 && target < p.n;
}

// Adds up over a block of 1024 threads; the result is right in thread 0.
__device__ __forceinline__ double block_sum(double v) {
    __shared__ double by_warp[32];
#pragma unroll
    for (int by = 16; by > 0; by /= 2) v += __shfl_down_sync(ALL_LANES, v, by);
    if (threadIdx.x % 32 == 0) by_warp[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / 32 ? by_warp[threadIdx.x] : 0;
    if (threadIdx.x < 32)
#pragma unroll
        for (int by = 16; by > 0; by /= 2) v += __shfl_down_sync(ALL_LANES, v, by);
    return v;
}

KM_KERNEL cross_entropy_count(const __grid_constant__ km_loss_args p) { // one block
    double n = 0;
    for (int64_t r = threadIdx.x; r < p.rows; r += blockDim.x) n += counts(p, target_of(p, r));
    n = block_sum(n);
    if (threadIdx.x == 0) *p.count = (float)n;
}

KM_KERNEL cross_entropy_finish(const __grid_constant__ km_loss_args p) { // one block
    double s = 0;
    for (int64_t r = threadIdx.x; r < p.rows; r += blockDim.x) s += p.row_loss[r];
    s = block_sum(s);
    if (threadIdx.x == 0) *p.loss = (float)(p.mean ? s / *p.count : s);
}

template <class T, int W, Team K> __device__ void cross_entropy(const km_loss_args &p) {
    Crew<K> crew;
    if (crew.row >= p.rows) return;
    Row<T, W, K> x(crew, p.n);
    x.load((const T *)p.x + crew.row * p.n);
    const T *row = (const T *)p.x + crew.row * p.n;
    int64_t wide_target = target_of(p, crew.row);
    bool live = counts(p, wide_target);
    int target = live ? (int)wide_target : 0;
    float at_target = crew.rank == 0 && live ? to_f32(row[target]) : 0, m = -INFINITY, s = 0;
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
    float lse = isfinite(m) ? m + logf(s) : m;
    if (crew.rank == 0) {
        p.lse[crew.row] = lse;
        p.row_loss[crew.row] = live ? lse - at_target : 0;
    }
    if (!p.dx) return;
    float scale = !live ? 0 : p.mean ? 1 / *p.count : 1, inverse = scale / s;
    Pack<T, W> *out = (Pack<T, W> *)((T *)p.dx + crew.row * p.n);
    x.each([&](const Pack<T, W> &v, int i) {
        Pack<T, W> d;
        unsigned there = (unsigned)(target - i * W); // below W: the target is in this pack
#pragma unroll
        for (int k = 0; k < W; k++) {
            float g = exp_fast(to_f32(v.v[k]) - m) * inverse;
            d.v[k] = from_f32<T>(live ? (there == (unsigned)k ? g - scale : g) : 0);
        }
        out[i] = d;
    });
}
KM_ROW_KERNEL(cross_entropy, cross_entropy, km_loss_args)

// dlogits from logits and lse: a block for each row, which is read once more.
template <class T, int W> __device__ void cross_entropy_grad(const km_loss_args &p) {
    for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        int64_t target = target_of(p, row);
        bool live = counts(p, target);
        float lse = p.lse_in[row], scale = live ? (p.dloss ? *p.dloss : 1) : 0;
        if (p.mean && live) scale /= *p.count;
        const Pack<T, W> *x = (const Pack<T, W> *)((const T *)p.x + row * p.n);
        Pack<T, W> *out = (Pack<T, W> *)((T *)p.dx + row * p.n);
        for (int i = threadIdx.x; i < p.n / W; i += blockDim.x) {
            Pack<T, W> v = x[i], d;
#pragma unroll
            for (int k = 0; k < W; k++) {
                float g = live ? expf(to_f32(v.v[k]) - lse) * scale : 0;
                d.v[k] = from_f32<T>((int64_t)i * W + k == target && live ? g - scale : g);
            }
            out[i] = d;
        }
    }
}

// ---- mse and bce_with_logits ----

template <class T> __device__ void pair_loss(const km_loss_args &p) { // one part per block
    double s = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.total;
         i += (int64_t)gridDim.x * blockDim.x) {
        float x = to_f32(((const T *)p.x)[i]), t = to_f32(((const T *)p.targets)[i]);
        s += p.bce ? fmaxf(x, 0) - x * t + log1pf(expf(-fabsf(x))) : (x - t) * (x - t);
    }
    s = block_sum(s);
    if (threadIdx.x == 0) p.row_loss[blockIdx.x] = (float)s;
}

KM_KERNEL pair_loss_finish(const __grid_constant__ km_loss_args p) { // one block
    double s = 0;
    for (int r = threadIdx.x; r < p.parts; r += blockDim.x) s += p.row_loss[r];
    s = block_sum(s);
    if (threadIdx.x == 0) *p.loss = (float)(p.mean ? s / (double)p.total : s);
}

template <class T> __device__ void pair_loss_grad(const km_loss_args &p) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.total) return;
    float x = to_f32(((const T *)p.x)[i]), t = to_f32(((const T *)p.targets)[i]);
    float scale = p.mean ? *p.dloss / (float)p.total : *p.dloss;
    float slope = p.bce ? 1 / (1 + expf(-x)) - t : 2 * (x - t);
    ((T *)p.dx)[i] = from_f32<T>(slope * scale);
}

#define OTHERS(T, t)                                                                               \
    KM_KERNEL cross_entropy_grad_##t(const __grid_constant__ km_loss_args p) {                     \
        cross_entropy_grad<T, WIDE<T>>(p);                                                         \
    }                                                                                              \
    KM_KERNEL cross_entropy_grad1_##t(const __grid_constant__ km_loss_args p) {                    \
        cross_entropy_grad<T, 1>(p);                                                               \
    }                                                                                              \
    KM_KERNEL pair_loss_##t(const __grid_constant__ km_loss_args p) { pair_loss<T>(p); }           \
    KM_KERNEL pair_loss_grad_##t(const __grid_constant__ km_loss_args p) { pair_loss_grad<T>(p); }
KM_EACH_FLOAT(OTHERS)
