// Rotary positions: pairs of the last axis turned by position * base^(-2i/dims). Floor: one read and
// one write. A thread takes one pair at one position and walks over the batch, so that the angle,
// in double because positions are large and differences matter, is computed once for all heads.
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/rows/row_args.h"

template <class T> __device__ void rope(const km_rope_args &p) {
    int half = p.dims / 2, pairs = half + (p.d - p.dims); // what is not turned is copied
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (int64_t)p.t * pairs) return;
    int t = (int)(i / pairs), pair = (int)(i % pairs);
    int64_t step = (int64_t)p.t * p.d;
    const T *x = (const T *)p.x + (int64_t)t * p.d;
    T *out = (T *)p.out + (int64_t)t * p.d;
    if (pair >= half) {
        int at = p.dims + pair - half;
        for (int64_t b = blockIdx.y; b < p.batch; b += gridDim.y)
            out[b * step + at] = x[b * step + at];
        return;
    }
    int64_t position = !p.positions ? t
                       : p.wide     ? ((const int64_t *)p.positions)[t]
                                    : ((const int32_t *)p.positions)[t];
    double angle = (double)position * exp2(-2.0 * pair / p.dims * p.log2_base);
    const double turn = 6.283185307179586;
    float s, c, rest = (float)(angle - turn * rint(angle / turn));
    sincosf(rest, &s, &c);
    if (p.inverse) s = -s;
    int a = p.adjacent ? 2 * pair : pair, b = p.adjacent ? a + 1 : a + half;
    for (int64_t k = blockIdx.y; k < p.batch; k += gridDim.y) {
        float u = to_f32(x[k * step + a]), v = to_f32(x[k * step + b]);
        out[k * step + a] = from_f32<T>(u * c - v * s);
        out[k * step + b] = from_f32<T>(u * s + v * c);
    }
}

#define ROPE(T, t)                                                                                 \
    KM_KERNEL rope_##t(const __grid_constant__ km_rope_args p) { rope<T>(p); }
KM_EACH_FLOAT(ROPE)
