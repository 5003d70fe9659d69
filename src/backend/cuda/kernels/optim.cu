// Optimiser steps over many tensors in one launch. Floor: p, g and the state read once, p and the
// state written once; 28 bytes an element for AdamW on f32.
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/optim_args.h"

// The tensor that a block works on: the last one that begins at or before it.
__device__ __forceinline__ const km_optim_tensor &tensor_of(const km_optim_args &a, int64_t block) {
    int low = 0, high = a.count - 1;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (a.t[mid].first <= block) low = mid;
        else high = mid - 1;
    }
    return a.t[low];
}

template <class T, bool ADAM> __device__ __forceinline__ void
update(const km_optim_args &a, const km_optim_tensor &t, float &p, float g, float &m, float &v) {
    if (ADAM) {
        float d = a.decoupled ? g : fmaf(a.decay, p, g);
        m = fmaf(a.beta1, m, (1 - a.beta1) * d);
        v = fmaf(a.beta2, v, (1 - a.beta2) * d * d);
        float step = m * a.scale1 / (sqrtf(v * a.scale2) + a.eps);
        p -= a.lr * (a.decoupled ? fmaf(a.decay, p, step) : step);
    } else {
        float d = fmaf(a.decay, p, g), step = d;
        if (t.m) {
            m = fmaf(a.momentum, m, d);
            step = a.nesterov ? fmaf(a.momentum, m, d) : m;
        }
        p -= a.lr * step;
    }
}

template <class T, bool ADAM> __device__ void optim(const km_optim_args &a) {
    const km_optim_tensor &t = tensor_of(a, blockIdx.x);
    int64_t first = (blockIdx.x - t.first) * KM_OPTIM_BLOCK;
    int64_t last = first + KM_OPTIM_BLOCK < t.n ? first + KM_OPTIM_BLOCK : t.n;
    struct alignas(4 * sizeof(T)) Four {
        T v[4];
    };
    bool aligned = ((uintptr_t)t.p | (uintptr_t)t.g | (uintptr_t)t.p_out) % sizeof(Four) == 0 &&
                   ((uintptr_t)t.m | (uintptr_t)t.v | (uintptr_t)t.m_out | (uintptr_t)t.v_out) % 16 == 0;
    for (int64_t i = first + threadIdx.x * 4; i < last; i += blockDim.x * 4) {
        int n = last - i < 4 ? (int)(last - i) : 4;
        bool whole = aligned && n == 4;
        Four p, g;
        float m[4] = {}, v[4] = {};
        if (whole) {
            p = *(const Four *)((const T *)t.p + i);
            g = *(const Four *)((const T *)t.g + i);
            if (t.m) *(float4 *)m = *(const float4 *)(t.m + i);
            if (ADAM) *(float4 *)v = *(const float4 *)(t.v + i);
        } else {
            for (int k = 0; k < n; k++) {
                p.v[k] = ((const T *)t.p)[i + k];
                g.v[k] = ((const T *)t.g)[i + k];
                if (t.m) m[k] = t.m[i + k];
                if (ADAM) v[k] = t.v[i + k];
            }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float w = to_f32(p.v[k]);
            update<T, ADAM>(a, t, w, to_f32(g.v[k]), m[k], v[k]);
            p.v[k] = from_f32<T>(w);
        }
        if (whole) {
            *(Four *)((T *)t.p_out + i) = p;
            if (t.m_out) *(float4 *)(t.m_out + i) = *(float4 *)m;
            if (ADAM) *(float4 *)(t.v_out + i) = *(float4 *)v;
        } else {
            for (int k = 0; k < n; k++) {
                ((T *)t.p_out)[i + k] = p.v[k];
                if (t.m_out) t.m_out[i + k] = m[k];
                if (ADAM) t.v_out[i + k] = v[k];
            }
        }
    }
}

#define OPTIM(T, t)                                                                                \
    KM_KERNEL sgd_##t(const __grid_constant__ km_optim_args a) { optim<T, false>(a); }             \
    KM_KERNEL adamw_##t(const __grid_constant__ km_optim_args a) { optim<T, true>(a); }
KM_EACH_FLOAT(OPTIM)
