// The functions of one number and their gradients, in f32, to about 1e-6 relative (1e-5 at the far
// ends of gelu). No fast-math intrinsics: exp, log and tanh here are CUDA's 1 to 2 ulp ones, and a
// memory-bound kernel has time for them.
#ifndef KM_CUDA_MATH_CUH
#define KM_CUDA_MATH_CUH
#include "backend/cuda/kernels/common.cuh"

// 1 / (1 + exp(-x)), from the side that is small.
__device__ __forceinline__ float sigmoid(float x) {
    float t = expf(-fabsf(x));
    float r = 1.0f / (1.0f + t);
    return x >= 0 ? r : t * r;
}

__device__ __forceinline__ float relu(float x) { return nan_max(x, 0.0f); }

// gelu(x) = x/2 (1 + tanh(u)) = x sigmoid(2u), 2u = x (K + C x^2). Far below zero sigmoid is
// exp(2u), which turns an error of 2u into a relative one, so 2u is kept as a sum of two floats.
constexpr float GELU_K = 1.59576917f, GELU_K_LOW = -4.53406805e-08f;
constexpr float GELU_C = 0.0713548139f, GELU_C_LOW = 2.39883247e-09f;

// x within [-limit, limit]. Beyond a limit that is large enough an activation is 0 or x, and its
// slope 0 or 1, for infinities too.
__device__ __forceinline__ float clip(float x, float limit) {
    return nan_max(nan_min(x, limit), -limit);
}

__device__ __forceinline__ float gelu_gate(float x) { // |x| <= 20
    float w = x * x, w_low = fmaf(x, x, -w);
    float s = fmaf(GELU_C, w, GELU_K);
    float p = GELU_C * w, p_low = fmaf(GELU_C, w, -p);
    float s_low = p > GELU_K ? (p - s) + GELU_K : (GELU_K - s) + p; // the rounding of s
    s_low += p_low + fmaf(GELU_C, w_low, fmaf(GELU_C_LOW, w, GELU_K_LOW));
    float u = x * s, u_low = fmaf(x, s_low, fmaf(x, s, -u));
    float t = expf(-fabsf(u));
    t = fmaf(t, x >= 0 ? -u_low : u_low, t);
    float r = 1.0f / (1.0f + t);
    return x >= 0 ? r : t * r;
}

__device__ __forceinline__ float gelu(float x) { return x * gelu_gate(clip(x, 20.0f)); }

__device__ __forceinline__ float gelu_grad(float x) {
    x = clip(x, 20.0f);
    float s = gelu_gate(x), slope = fmaf(3 * GELU_C * x, x, GELU_K);
    return s + x * s * (1.0f - s) * slope;
}

// The normal distribution function, erfc(-x / sqrt 2) / 2: keeps its digits for negative x.
__device__ __forceinline__ float normal_cdf(float x) {
    constexpr float H = 0.707106769f, H_LOW = 1.21016175e-08f; // sqrt(1/2)
    float z = -x * H, z_low = fmaf(-x, H, -z) - x * H_LOW;
    float y = erfcf(z);
    // erfc'(z) / erfc(z) is about -2z where z is large, and that is where z_low matters.
    if (z > 1.0f && z < 12.0f) y = fmaf(y, -2.0f * z * z_low, y);
    return 0.5f * y;
}

__device__ __forceinline__ float gelu_erf(float x) { return x * normal_cdf(x); }

__device__ __forceinline__ float gelu_erf_grad(float x) {
    x = clip(x, 20.0f);
    float w = x * x, w_low = fmaf(x, x, -w);
    float density = expf(-0.5f * w);
    density = fmaf(density, -0.5f * w_low, density);
    return fmaf(x * 0.398942280401432678f, density, normal_cdf(x));
}

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

__device__ __forceinline__ float silu_grad(float x) {
    x = clip(x, 120.0f);
    float s = sigmoid(x);
    return s + x * s * (1.0f - s);
}

#endif
