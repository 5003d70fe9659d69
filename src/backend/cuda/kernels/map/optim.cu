// Optimiser steps over many tensors in one launch. Floor: g and the state read once, p and the state
// written once; p is read only where no f32 weight stands behind it. 28 bytes an element for AdamW
// on f32, and on bf16 with f32 weights.
#include "backend/control.h"
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/map/optim_args.h"
#include "kermes.h"

// The tensor that a block works on: the last one that begins at or before it.
template <class T> __device__ __forceinline__ const T &tensor_of(const T *t, int count, int block) {
    int low = 0, high = count - 1;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (t[mid].first <= block)
            low = mid;
        else
            high = mid - 1;
    }
    return t[low];
}

// ---- The step ----

struct Rates {
    float lr, decay, scale1, scale2, multiplier;
    bool skip;
};

__device__ __forceinline__ Rates rates_of(const km_optim_args &a, int index) {
    if (!a.control) return {a.lr, a.decay, a.scale1, a.scale2, 1, false};
    const float *c = a.control;
    Rates r = {c[KM_CONTROL_LR],     a.decay,
               c[KM_CONTROL_SCALE1], c[KM_CONTROL_SCALE2],
               c[KM_CONTROL_GRAD],   c[KM_CONTROL_SKIP] != 0};
    if (index >= 0) {
        r.lr *= c[KM_CONTROL_TENSORS + 2 * index];
        r.decay = c[KM_CONTROL_TENSORS + 2 * index + 1];
    }
    return r;
}

template <bool ADAM>
__device__ __forceinline__ void update(const km_optim_args &a, const Rates &r, bool moving,
                                       float &p, float g, float &m, float &v) {
    g *= r.multiplier;
    if (ADAM) {
        float d = a.decoupled ? g : fmaf(r.decay, p, g);
        m = fmaf(a.beta1, m, (1 - a.beta1) * d);
        v = fmaf(a.beta2, v, (1 - a.beta2) * d * d);
        float step = m * r.scale1 / (sqrtf(v * r.scale2) + a.eps);
        p -= r.lr * (a.decoupled ? fmaf(r.decay, p, step) : step);
    } else {
        float d = fmaf(r.decay, p, g), step = d;
        if (moving) {
            m = fmaf(a.momentum, m, d);
            step = a.nesterov ? fmaf(a.momentum, m, d) : m;
        }
        p -= r.lr * step;
    }
}

template <class T> struct alignas(4 * sizeof(T)) Four { T v[4]; };

// Up to four elements from i on, by one access where they are aligned.
template <class T>
__device__ __forceinline__ Four<T> load4(const void *x, int64_t i, int n, bool whole) {
    Four<T> r = {};
    if (whole) return *(const Four<T> *)((const T *)x + i);
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k < n) r.v[k] = ((const T *)x)[i + k];
    return r;
}

template <class T>
__device__ __forceinline__ void store4(void *x, int64_t i, int n, bool whole, const Four<T> &r) {
    if (whole) {
        *(Four<T> *)((T *)x + i) = r;
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k < n) ((T *)x)[i + k] = r.v[k];
}

// A skipped step: nothing to do in place, a copy otherwise.
template <class T> __device__ void leave(const void *from, void *to, int64_t first, int64_t last) {
    if (!from || from == to) return;
    for (int64_t i = first + threadIdx.x; i < last; i += blockDim.x)
        ((T *)to)[i] = ((const T *)from)[i];
}

template <class T, class G, bool ADAM>
__device__ __forceinline__ void optim(const km_optim_args &a) {
    wait_for_previous();
    const km_optim_tensor &t = tensor_of(a.t, a.count, blockIdx.x);
    const Rates rates = rates_of(a, t.index);
    int64_t first = (int64_t)(blockIdx.x - t.first) * KM_OPTIM_BLOCK;
    int64_t last = first + KM_OPTIM_BLOCK < t.n ? first + KM_OPTIM_BLOCK : t.n;
    if (rates.skip) {
        leave<T>(t.p, t.p_out, first, last);
        leave<float>(t.m, t.m_out, first, last);
        leave<float>(t.v, t.v_out, first, last);
        leave<float>(t.w, t.w_out, first, last);
        return;
    }
    bool aligned = ((uintptr_t)t.p | (uintptr_t)t.p_out) % sizeof(Four<T>) == 0 &&
                   (uintptr_t)t.g % sizeof(Four<G>) == 0 &&
                   ((uintptr_t)t.m | (uintptr_t)t.v | (uintptr_t)t.w | (uintptr_t)t.m_out |
                    (uintptr_t)t.v_out | (uintptr_t)t.w_out) %
                           16 ==
                       0;
    for (int64_t i = first + threadIdx.x * 4; i < last; i += blockDim.x * 4) {
        int n = last - i < 4 ? (int)(last - i) : 4;
        bool whole = aligned && n == 4;
        Four<G> g = load4<G>(t.g, i, n, whole);
        Four<float> m = {}, v = {}, w;
        if (t.m) m = load4<float>(t.m, i, n, whole);
        if (ADAM) v = load4<float>(t.v, i, n, whole);
        if (t.w) {
            w = load4<float>(t.w, i, n, whole);
        } else {
            Four<T> p = load4<T>(t.p, i, n, whole);
#pragma unroll
            for (int k = 0; k < 4; k++) w.v[k] = to_f32(p.v[k]);
        }
        Four<T> p;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            update<ADAM>(a, rates, t.m != nullptr, w.v[k], to_f32(g.v[k]), m.v[k], v.v[k]);
            p.v[k] = from_f32<T>(w.v[k]);
        }
        store4<T>(t.p_out, i, n, whole, p);
        if (t.m) store4<float>(t.m_out, i, n, whole, m);
        if (ADAM) store4<float>(t.v_out, i, n, whole, v);
        if (t.w) store4<float>(t.w_out, i, n, whole, w);
    }
}

#define OPTIM(T, t, G, suffix)                                                                     \
    KM_KERNEL sgd##suffix##_##t(const __grid_constant__ km_optim_args a) {                         \
        optim<T, G, false>(a);                                                                     \
    }                                                                                              \
    KM_KERNEL adamw##suffix##_##t(const __grid_constant__ km_optim_args a) { optim<T, G, true>(a); }
#define OPTIM_SAME(T, t) OPTIM(T, t, T, )
#define OPTIM_WIDE(T, t) OPTIM(T, t, float, _wide)
KM_EACH_FLOAT(OPTIM_SAME)
KM_EACH_FLOAT(OPTIM_WIDE)

// ---- Before the step ----

// A block's sum, the same bits every run; threads in full warps, up to 1024. Valid in thread 0.
template <class S> __device__ __forceinline__ S block_sum_of(S v) {
    __shared__ S part[32];
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(ALL_LANES, v, lane);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : S(0);
    if (threadIdx.x < 32)
#pragma unroll
        for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(ALL_LANES, v, lane);
    return v;
}

template <class T> __device__ float chunk_sumsq(const T *x, int64_t n) {
    constexpr int N = Vec<T>::N;
    float sum[4] = {};
    int64_t done = 0;
    if ((uintptr_t)x % 16 == 0) {
        done = n / N * N;
        for (int64_t i = threadIdx.x * N; i < done; i += blockDim.x * N) {
            Vec<T> v = load_vec(x + i);
#pragma unroll
            for (int k = 0; k < N; k++) {
                float f = to_f32(v.v[k]);
                sum[k % 4] = fmaf(f, f, sum[k % 4]);
            }
        }
    }
    for (int64_t i = done + threadIdx.x; i < n; i += blockDim.x) {
        float f = to_f32(x[i]);
        sum[0] = fmaf(f, f, sum[0]);
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Floor: every element read once, 16 bytes at a time.
KM_KERNEL sumsq_chunks(const __grid_constant__ km_sumsq_args a) {
    wait_for_previous();
    const km_sumsq_tensor &t = tensor_of(a.t, a.count, blockIdx.x);
    int64_t first = (int64_t)(blockIdx.x - t.first) * KM_SUMSQ_CHUNK, n = t.n - first;
    if (n > KM_SUMSQ_CHUNK) n = KM_SUMSQ_CHUNK;
    float sum = t.dtype == KM_F32   ? chunk_sumsq((const float *)t.x + first, n)
                : t.dtype == KM_F16 ? chunk_sumsq((const f16 *)t.x + first, n)
                                    : chunk_sumsq((const bf16 *)t.x + first, n);
    sum = block_sum_of(sum);
    if (threadIdx.x == 0) a.out[blockIdx.x] = sum;
}

// One block: the last stage of the norm in f64, then a handful of numbers by one thread.
KM_KERNEL optim_control(const __grid_constant__ km_control_args a) {
    wait_for_previous();
    double total = 0;
    for (int64_t i = threadIdx.x; i < a.n_sums; i += blockDim.x) total += (double)a.sums[i];
    total = block_sum_of(total);
    for (int64_t i = KM_CONTROL_TENSORS + threadIdx.x; i < a.n; i += blockDim.x)
        if (a.out != a.old) a.out[i] = a.old[i];
    if (threadIdx.x != 0) return;

    float loss = a.old[KM_CONTROL_LOSS], good = a.old[KM_CONTROL_GOOD];
    double multiplier = (double)a.knobs[KM_KNOB_GRAD] / (double)loss;
    double norm = sqrt(total) * multiplier;
    bool skip = !isfinite((float)norm);
    if (a.most > 0 && norm > a.most) multiplier *= a.most / norm;
    float steps = a.old[KM_CONTROL_STEPS] + (skip ? 0 : 1);
    float skips = a.old[KM_CONTROL_SKIPS] + (skip ? 1 : 0);
    double t = steps > 1 ? (double)steps : 1;
    good = skip ? 0 : good + 1;
    if (a.growth > 0 && skip) loss = fmaxf(loss / 2, KM_LOSS_SCALE_MIN);
    if (a.growth > 0 && good >= (float)a.growth) {
        loss = fminf(loss * 2, KM_LOSS_SCALE_MAX);
        good = 0;
    }
    for (int i = KM_CONTROL_GOOD + 1; i < KM_CONTROL_TENSORS; i++) a.out[i] = 0;
    a.out[KM_CONTROL_LR] = a.knobs[KM_KNOB_LR];
    a.out[KM_CONTROL_SCALE1] = (float)(1 / (1 - pow(a.beta1, t)));
    a.out[KM_CONTROL_SCALE2] = (float)(1 / (1 - pow(a.beta2, t)));
    a.out[KM_CONTROL_GRAD] = skip ? 0 : (float)multiplier;
    a.out[KM_CONTROL_SKIP] = skip;
    a.out[KM_CONTROL_NORM] = (float)norm;
    a.out[KM_CONTROL_STEPS] = steps;
    a.out[KM_CONTROL_SKIPS] = skips;
    a.out[KM_CONTROL_LOSS] = loss;
    a.out[KM_CONTROL_GOOD] = good;
}
