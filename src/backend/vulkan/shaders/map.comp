#version 450
#extension GL_GOOGLE_include_directive : require
// Elementwise ops of floats, some of i32: one, two operands and gradients of unary ops. A thread makes a word of the
// result: one element of f32, two of 16 bits.
#include "common.glsl"
#include "math.glsl"
#include "walk.glsl"

layout(constant_id = 0) const uint OP = 0;
layout(constant_id = 1) const uint KIND = 0;
layout(constant_id = 2) const bool FLAT = true;
layout(constant_id = 3) const bool TWO = false;

layout(push_constant) uniform Push {
    uvec2 a, b, o, walk;
    uint n;
    float f0, f1, f0_low;
};

// What x and a scalar of f64 (in two parts) add or multiply to, rounded about once.
float add_two(float x) {
    precise float s = x + f0;
    precise float v = s - x;
    precise float err = (x - (s - v)) + (f0 - v);
    return is_inf(s) ? s : s + (err + f0_low);
}

float slope_at_infinity(float x) { return x > 0 ? 1 : 0; }
float gelu_slope(float x) {
    if (is_inf(x)) return slope_at_infinity(x);
    float s = k_gelu_gate(x);
    float d = s * (1 - s);
    return d == 0 ? s : s + x * d * (1.5957691216 * (1 + 0.134145 * x * x));
}
float gelu_erf_slope(float x) {
    if (is_inf(x)) return slope_at_infinity(x);
    return k_normal_cdf(x) + x * 0.39894228 * k_exp(-0.5 * x * x);
}
float silu_slope(float x) {
    if (is_inf(x)) return slope_at_infinity(x);
    float s = k_sigmoid(x);
    return s + x * s * (1 - s);
}

float apply(float x, float y) {
    switch (OP) {
    case 0: return -x;
    case 1: return abs(x);
    case 2: return sqrt(x);
    case 3: return 1 / sqrt(x);
    case 4: return k_exp(x);
    case 5: return k_log(x);
    case 6: return k_tanh(x);
    case 7: return k_sigmoid(x);
    case 8: return max_nan(x, 0);
    case 9: return x * k_gelu_gate(x);
    case 10: return x * k_normal_cdf(x);
    case 11: return x * k_sigmoid(x);
    case 12: return min_nan(max_nan(x, f0), f1);
    case 13: return add_two(x);
    case 14: return x * f0;
    case 20: return x + y;
    case 21: return x - y;
    case 22: return x * y;
    case 23: return x / y;
    case 24: return max_nan(x, y);
    case 25: return min_nan(x, y);
    case 30: return is_nan(x) ? x : x * (y > 0 ? 1 : y < 0 ? -1 : 0);
    case 31: return x / (2 * y);
    case 32: return -0.5 * x * y * y * y;
    case 33: return x * (1 - y * y);
    case 34: return x * y * (1 - y);
    case 35: return y > 0 ? x : 0;
    case 36: return x * gelu_slope(y);
    case 37: return x * gelu_erf_slope(y);
    case 38: return x * silu_slope(y);
    case 39: return y >= f0 && y <= f1 ? x : 0;
    default: return nan();
    }
}

float element(uint i) {
    uint ia = i, ib = i;
    if (!FLAT) {
        ia = walk_offset(Words(walk), 1, i);
        if (TWO) ib = walk_offset(Words(walk), 2, i);
    }
    return apply(load_float(KIND, a, ia), TWO ? load_float(KIND, b, ib) : 0);
}

// Whole numbers wrap around.
uint apply_whole(uint x, uint y) {
    switch (OP) {
    case 0: return uint(-int(x));
    case 1: return uint(abs(int(x)));
    case 20: return x + y;
    case 21: return x - y;
    case 22: return x * y;
    case 24: return uint(max(int(x), int(y)));
    case 25: return uint(min(int(x), int(y)));
    default: return 0;
    }
}

void whole_element(uint i) {
    Words w = Words(walk);
    int ia = int(FLAT ? i : walk_offset(w, 1, i)), ib = int(FLAT || !TWO ? i : walk_offset(w, 2, i));
    uint v = apply_whole(Words(a).w[ia], TWO ? Words(b).w[ib] : 0);
    Words(o).w[int(FLAT ? i : walk_offset(w, 0, i))] = v;
}

// The loop is one for all kinds, so that a driver compiles one copy of it.
void main() {
    const uint PER = KIND == F16 || KIND == BF16 ? 2 : 1;
    uint i = thread_index() * PER, word = 0;
    if (i >= n) return;
    if (KIND == I32) {
        whole_element(i);
        return;
    }
    for (uint k = 0; k < PER; k++) {
        if (i + k < n) {
            float v = element(i + k);
            if (KIND == F32)
                Floats(o).f[int(FLAT ? i : walk_offset(Words(walk), 0, i))] = v;
            else
                word |= to_half(KIND, v) << 16 * k;
        } else {
            word |= Words(o).w[i / 2] & 0xffff0000u;
        }
    }
    if (KIND != F32) Words(o).w[i / 2] = word; // contiguous, and beginning with a word
}
