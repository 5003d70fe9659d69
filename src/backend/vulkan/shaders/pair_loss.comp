#version 450
#extension GL_GOOGLE_include_directive : require
// Losses of two tensors of n elements. Forward, a workgroup adds up 16384 of them into parts[]; the
// parts are added up by another dispatch. Backward, a thread makes a word of dx.
#include "common.glsl"
#include "math.glsl"

layout(constant_id = 0) const bool BCE = false; // with logits; else (x - target)^2
layout(constant_id = 1) const uint KIND = 0;
layout(constant_id = 2) const bool BACK = false;

layout(push_constant) uniform Push {
    uvec2 x, target, parts, dloss; // parts: dx backward
    uint n;
    float by; // 1, or 1 / n
};

// ln(1 + e) for e in [0, 1], with its digits where e is small.
float log_one_plus(float e) {
    if (e > 0.01) return k_log(1 + e);
    return e * (1 - e * (0.5 - e * (0.33333333 - e * 0.25)));
}

float loss(uint i) {
    float a = load_float(KIND, x, i), b = load_float(KIND, target, i);
    if (!BCE) return (a - b) * (a - b);
    return max_nan(a, 0) - a * b + log_one_plus(k_exp(-abs(a)));
}

float slope(uint i) {
    float a = load_float(KIND, x, i), b = load_float(KIND, target, i);
    return (BCE ? k_sigmoid(a) - b : 2 * (a - b)) * (Floats(dloss).f[0] * by);
}

void main() {
    uint t = gl_LocalInvocationID.x, part = group_index();
    if (BACK) {
        uint per = KIND == F32 ? 1 : 2, i = thread_index() * per;
        if (i >= n) return;
        if (KIND == F32)
            Floats(parts).f[i] = slope(i);
        else if (i + 1 < n)
            Words(parts).w[i / 2] = to_half(KIND, slope(i)) | to_half(KIND, slope(i + 1)) << 16;
        else
            store_float(KIND, parts, i, slope(i));
        return;
    }
    uint begin = part * 16384, end = min(begin + 16384, n);
    if (begin >= n && part > 0) return;
    float s = 0;
    for (uint i = begin + t; i < end; i += 128) s += loss(i);
    s = team_sum(s);
    if (t == 0) Floats(parts).f[part] = s * by;
}
