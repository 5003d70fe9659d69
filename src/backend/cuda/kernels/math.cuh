// The functions of one number and their gradients, in f32, to a few ulp: 1e-6 relative, 5e-6 where
// gelu is all but zero. exp, log and tanh are CUDA's accurate ones; the approximate instructions
// used here are good to 1 or 2 ulp over the range they meet.
#ifndef KM_CUDA_MATH_CUH
#define KM_CUDA_MATH_CUH
#include "backend/cuda/kernels/common.cuh"

// sigmoid(x) = 1 / (1 + exp(-x)) from the side that is small: with t = exp(-|x|) and r = 1 / (1 + t)
// it is r or t r, and its slope is t r r, without a difference of nearly equal numbers.
struct Sigmoid {
    float t, r;
    bool right; // x >= 0
    __device__ __forceinline__ float value() const { return right ? r : t * r; }
    __device__ __forceinline__ float slope() const { return t * r * r; }
};

__device__ __forceinline__ Sigmoid sigmoid_of(float t, bool right) {
    return {t, quick_rcp(1.0f + t), right};
}
__device__ __forceinline__ Sigmoid sigmoid_at(float x) {
    return sigmoid_of(expf(-fabsf(x)), x >= 0);
}
__device__ __forceinline__ float sigmoid(float x) { return sigmoid_at(x).value(); }

// x^s. A square is a product; else s is told to f32, which moves the result by less than its own
// rounding does.
__device__ __forceinline__ float pow_scalar(float x, double s) {
    return s == 2 ? x * x : powf(x, (float)s);
}

__device__ __forceinline__ float relu(float x) { return nan_max(x, 0.0f); }

// |x|, at most `limit`. Beyond a limit that is large enough an activation is 0 or x and its slope 0
// or 1, for infinities too.
__device__ __forceinline__ float clipped_abs(float x, float limit) {
    return nan_min(fabsf(x), limit);
}
__device__ __forceinline__ float clip(float x, float limit) {
    return copysignf(clipped_abs(x, limit), x);
}

// gelu(x) = x/2 (1 + tanh(u)) = x sigmoid(2u). With e = 2u / ln 2 = x (K + C x^2) sigmoid's small
// side is 2^-|e|, which turns an error of e into a relative one: e is kept as a sum of two floats,
// save where the result has 16 bits.
constexpr float GELU_K = 2.30220819f, GELU_K_LOW = 1.29484024e-08f;
constexpr float GELU_C = 0.102943242f, GELU_C_LOW = -2.01619854e-09f;

template <bool BITS16 = false> __device__ __forceinline__ Sigmoid gelu_gate(float x) {
    float a = clipped_abs(x, 20.0f), w = a * a, s = fmaf(GELU_C, w, GELU_K), e = a * s;
    float t = quick_exp2(-e);
    if (!BITS16) {
        float w_low = fmaf(a, a, -w);
        float s_low = fmaf(GELU_C, w_low, fmaf(GELU_C_LOW, w, GELU_K_LOW));
        float e_low = fmaf(a, s_low, fmaf(a, s, -e));
        t = fmaf(t, -0.693147181f * e_low, t);
    }
    return sigmoid_of(t, x >= 0);
}

template <bool BITS16 = false> __device__ __forceinline__ float gelu(float x) {
    return x * gelu_gate<BITS16>(x).value();
}

template <bool BITS16 = false> __device__ __forceinline__ float gelu_grad(float x) {
    constexpr float K = 1.59576917f, C3 = 0.214064449f; // 2u' = K + 3 C x^2, in plain units
    Sigmoid gate = gelu_gate<BITS16>(x);
    x = clip(x, 20.0f);
    return fmaf(x * gate.slope(), fmaf(C3 * x, x, K), gate.value());
}

// The normal distribution's tail below -|x| is exp(-x^2 / 2) R(|x|), with R smooth: a polynomial in
// (|x| - 3) / (|x| + 3), fitted to 1.1e-8 (1.1e-5 for 16 bits). The tail keeps its digits however
// small it is.
struct NormalTail {
    float bell, tail; // exp(-x^2 / 2), and the distribution function at -|x|
};

template <bool BITS16 = false> __device__ __forceinline__ NormalTail normal_tail(float x) {
    constexpr float H = 0.721347511f, H_LOW = 9.62981517e-09f; // 1 / (2 ln 2)
    float a = clipped_abs(x, 15.0f), w = a * a, e = w * H;
    float t = fmaf(-6.0f, quick_rcp(a + 3.0f), 1.0f), bell = quick_exp2(-e), r;
    if (BITS16) {
        r = fmaf(-0.000661958358f, t, 0.00257197185f);
        r = fmaf(r, t, 0.00595351169f);
        r = fmaf(r, t, -0.0460996367f);
        r = fmaf(r, t, 0.123248816f);
        r = fmaf(r, t, -0.206413046f);
        r = fmaf(r, t, 0.121513732f);
    } else {
        float w_low = fmaf(a, a, -w);
        float e_low = fmaf(w_low, H, fmaf(w, H_LOW, fmaf(w, H, -e)));
        bell = fmaf(bell, -0.693147181f * e_low, bell);
        r = fmaf(5.25819232e-05f, t, 0.00011440555f);
        r = fmaf(r, t, -0.000338452897f);
        r = fmaf(r, t, -0.000982730184f);
        r = fmaf(r, t, 0.00290417834f);
        r = fmaf(r, t, 0.00613178499f);
        r = fmaf(r, t, -0.0462132283f);
        r = fmaf(r, t, 0.123225056f);
        r = fmaf(r, t, -0.20640263f);
        r = fmaf(r, t, 0.121513948f);
    }
    return {bell, bell * r};
}

template <bool BITS16 = false> __device__ __forceinline__ float gelu_erf(float x) {
    float tail = normal_tail<BITS16>(x).tail;
    return x * (x >= 0 ? 1.0f - tail : tail);
}

template <bool BITS16 = false> __device__ __forceinline__ float gelu_erf_grad(float x) {
    NormalTail n = normal_tail<BITS16>(x);
    float cdf = x >= 0 ? 1.0f - n.tail : n.tail;
    return fmaf(clip(x, 15.0f) * 0.398942280f, n.bell, cdf);
}

// ln x. The instruction's logarithm has an absolute error near 1, too large for f32 results only.
template <bool BITS16> __device__ __forceinline__ float log_of(float x) {
    return BITS16 ? 0.693147181f * quick_log2(x) : logf(x);
}

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

__device__ __forceinline__ float silu_grad(float x) {
    x = clip(x, 120.0f);
    Sigmoid gate = sigmoid_at(x);
    return fmaf(x, gate.slope(), gate.value());
}

#endif
