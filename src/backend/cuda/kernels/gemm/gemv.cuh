// What the kernels for a few vectors against one matrix share: 16 bytes of weights as floats, and the
// way of a sum to memory.
#ifndef KM_CUDA_GEMV_CUH
#define KM_CUDA_GEMV_CUH
#include "backend/cuda/kernels/gemm/gemm_common.cuh"

// 16 bytes as floats.
template <class T> __device__ __forceinline__ void unpack(uint4 v, float (&f)[16 / sizeof(T)]) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) f[i] = __uint_as_float(word[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            T pair[2];
            memcpy(pair, &word[i], 4);
            f[2 * i] = to_f32(pair[0]);
            f[2 * i + 1] = to_f32(pair[1]);
        }
    }
}

template <class T>
__device__ __forceinline__ void gemv_finish(const km_gemv_args &g, int64_t base, int vector,
                                            int row, float v) {
    int64_t at = base + vector * g.out_vector + row * g.out_row;
    T *out = (T *)g.out + at;
    v *= g.alpha;
    if (g.beta != 0) v = fmaf(g.beta, to_f32(*out), v);
    if (g.bias) v += to_f32(((const T *)g.bias)[row]);
    if (g.pre) ((T *)g.pre)[at] = from_f32<T>(v);
    float last[1] = {v};
    gemm_act<T>(g.act, last);
    *out = from_f32<T>(last[0]);
}

#endif
