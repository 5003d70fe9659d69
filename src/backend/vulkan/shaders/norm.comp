#version 450
#extension GL_GOOGLE_include_directive : require
// Layer norm and RMS norm over rows, with the residual added first where there is one: a workgroup to a
// row of n elements.
#include "common.glsl"

layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const bool RMS = false;
layout(constant_id = 2) const bool ADD = false;
layout(constant_id = 3) const bool BIAS = false;

layout(push_constant) uniform Push {
    uvec2 x, residual, w, b, y, sum, mean, rstd; // sum: of x and residual; mean, rstd (rows), may be 0
    uint rows, n;
    float eps;
};

void main() {
    uint row = group_index(), t = gl_LocalInvocationID.x;
    if (row >= rows) return;
    uint start = row * n;
    float m = 0, v = 0;
    if (ADD) {
        for (uint j = t; j < n; j += 128) {
            float s = load_float(KIND, x, start + j) + load_float(KIND, residual, start + j);
            store_float(KIND, sum, start + j, s);
            s = rounded(KIND, s);
            m += s;
            if (RMS) v += s * s;
        }
    } else {
        for (uint j = t; j < n; j += 128) {
            float s = load_float(KIND, x, start + j);
            m += s;
            if (RMS) v += s * s;
        }
    }
    uvec2 from = ADD ? sum : x;
    m = RMS ? 0 : team_sum(m) / float(n);
    if (!RMS)
        for (uint j = t; j < n; j += 128) {
            float s = load_float(KIND, from, start + j) - m;
            v += s * s;
        }
    float r = 1 / sqrt(team_sum(v) / float(n) + eps);
    for (uint j = t; j < n; j += 128) {
        float s = (load_float(KIND, from, start + j) - m) * r * load_float(KIND, w, j);
        store_float(KIND, y, start + j, BIAS ? s + load_float(KIND, b, j) : s);
    }
    if (t == 0) {
        if (!RMS && mean != uvec2(0)) Floats(mean).f[row] = m;
        if (rstd != uvec2(0)) Floats(rstd).f[row] = r;
    }
}
