// Weights of a few bits unpacked into pairs of f16, 2^8 times, so that their scales stay in f16's normal
// range: what tensor cores multiply.
#ifndef KM_CUDA_UNPACK_F16_CUH
#define KM_CUDA_UNPACK_F16_CUH
#include "backend/cuda/kernels/quant/quant.cuh"

// Four weights, 2^8 times, as two pairs of f16.
template <bool SIGNED>
__device__ __forceinline__ void as_f16(uint32_t q, __half2 d, __half2 m, uint32_t &low,
                                       uint32_t &high) {
    const __half2 bias = __float2half2_rn(SIGNED ? 1152.0f : 1024.0f);
    if (SIGNED) q ^= 0x80808080u; // int8 as 0 to 255
    uint32_t u = __byte_perm(q, 0x64646464u, 0x4140), v = __byte_perm(q, 0x64646464u, 0x4342);
    __half2 a, b;
    memcpy(&a, &u, 4);
    memcpy(&b, &v, 4);
    a = __hfma2(__hsub2(a, bias), d, m);
    b = __hfma2(__hsub2(b, bias), d, m);
    memcpy(&low, &a, 4);
    memcpy(&high, &b, 4);
}

// A unit's weights, four at a time: word k of run r.
template <int TYPE> struct Unpacked {
    Runs w;
    __device__ __forceinline__ Unpacked(const Quant<TYPE> &raw) { raw.unpack(w); }
    __device__ __forceinline__ void four(int r, int k, uint32_t &low, uint32_t &high) const {
        as_f16<Quant<TYPE>::SIGNED>(w.q[r][k], __float2half2_rn(w.d[r] * 256),
                                    __float2half2_rn(-w.m[r] * 256), low, high);
    }
};

#endif
