/* The first step of attention's gradient: for every query, delta = sum over d of o * d_o, and its
 * lse in base 2, in the padded workspace that the dq and dkdv kernels read. Memory-bound: reads o
 * and d_o once, 2 * B*H*Tq*D elements. Eight lanes share a row. */
#include "backend/cuda/kernels/attention/attention_params.h"
#include "backend/cuda/kernels/mma.cuh"

/* The elements of a 16-byte vector as floats. */
KM_DEVICE void unpack(float (&f)[4], const float *p) {
    float4 v = *(const float4 *)p;
    f[0] = v.x, f[1] = v.y, f[2] = v.z, f[3] = v.w;
}
KM_DEVICE void unpack(float (&f)[8], const __nv_bfloat16 *p) {
    uint4 v = *(const uint4 *)p;
    const __nv_bfloat16 *e = (const __nv_bfloat16 *)&v;
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = __bfloat162float(e[i]);
}
KM_DEVICE void unpack(float (&f)[8], const __half *p) {
    uint4 v = *(const uint4 *)p;
    const __half *e = (const __half *)&v;
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = __half2float(e[i]);
}

KM_DEVICE float widen(float x) { return x; }
KM_DEVICE float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
KM_DEVICE float widen(__half x) { return __half2float(x); }

template <typename T> KM_DEVICE void attention_delta(const km_attention_args &p) {
    int row = blockIdx.x * KM_ATTENTION_DELTA_ROWS + threadIdx.x / 8, lane = threadIdx.x % 8;
    int h = blockIdx.y, b = blockIdx.z;
    bool valid = row < p.tq;
    float sum = 0;
    if (valid) {
        const T *o = (const T *)p.o.data + b * p.o.b + h * p.o.h + row * p.o.t;
        const T *d_o = (const T *)p.d_o.data + b * p.d_o.b + h * p.d_o.h + row * p.d_o.t;
        constexpr int V = 16 / sizeof(T);
        if (p.vec) {
            for (int i = lane * V; i < p.d; i += 8 * V) {
                float x[V], y[V];
                unpack(x, o + i);
                unpack(y, d_o + i);
#pragma unroll
                for (int e = 0; e < V; e++) sum += x[e] * y[e];
            }
        } else {
            for (int i = lane; i < p.d; i += 8) sum += widen(o[i]) * widen(d_o[i]);
        }
    }
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 4);
    if (lane == 0 && row < p.tq_pad) {
        float lse = -INFINITY;
        if (valid) lse = ((const float *)p.lse.data)[b * p.lse.b + h * p.lse.h + row * p.lse.t];
        int64_t at = ((int64_t)b * p.heads + h) * p.tq_pad + row;
        p.work[at] = lse == -INFINITY ? INFINITY : lse * 1.4426950408889634f;
        p.work[(int64_t)p.batch * p.heads * p.tq_pad + at] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(KM_ATTENTION_DELTA_THREADS)
    km_attention_delta_f32(const __grid_constant__ km_attention_args p) {
    attention_delta<float>(p);
}
extern "C" __global__ void __launch_bounds__(KM_ATTENTION_DELTA_THREADS)
    km_attention_delta_bf16(const __grid_constant__ km_attention_args p) {
    attention_delta<__nv_bfloat16>(p);
}
extern "C" __global__ void __launch_bounds__(KM_ATTENTION_DELTA_THREADS)
    km_attention_delta_f16(const __grid_constant__ km_attention_args p) {
    attention_delta<__half>(p);
}
