#version 450
#extension GL_GOOGLE_include_directive : require
// Gradients of layer norm and RMS norm by x: a workgroup to a row. With h = (x - mean) rstd and g = dy w,
// dx = rstd (g - mean(g) - h mean(g h)) + dsum; RMS norm has no mean(g).
#include "common.glsl"

layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const bool RMS = false;

layout(push_constant) uniform Push {
    uvec2 dy, x, w, mean, rstd, dsum, dx; // mean: layer norm's; dsum may be 0
    uint rows, n;
};

void main() {
    uint row = group_index(), t = gl_LocalInvocationID.x;
    if (row >= rows) return;
    uint start = row * n;
    float m = RMS ? 0 : Floats(mean).f[row], r = Floats(rstd).f[row], sum_g = 0, sum_gh = 0;
    for (uint j = t; j < n; j += 128) {
        float g = load_float(KIND, dy, start + j) * load_float(KIND, w, j);
        sum_g += g;
        sum_gh += g * (load_float(KIND, x, start + j) - m) * r;
    }
    float mean_g = RMS ? 0 : team_sum(sum_g) / float(n), mean_gh = team_sum(sum_gh) / float(n);
    for (uint j = t; j < n; j += 128) {
        float g = load_float(KIND, dy, start + j) * load_float(KIND, w, j);
        float h = (load_float(KIND, x, start + j) - m) * r;
        float v = r * (g - mean_g - h * mean_gh);
        if (dsum != uvec2(0)) v += load_float(KIND, dsum, start + j);
        store_float(KIND, dx, start + j, v);
    }
}
