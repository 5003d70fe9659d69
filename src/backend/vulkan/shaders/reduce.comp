#version 450
#extension GL_GOOGLE_include_directive : require
// Reductions: a workgroup to a result. Kept axes are walked by `keep` (result, operand), reduced ones by
// `gone` (operand).
#include "common.glsl"
#include "math.glsl"
#include "walk.glsl"

layout(constant_id = 0) const uint OP = 0; // sum, mean, max, logsumexp, var, sumsq
layout(constant_id = 1) const uint KIND = 0;
layout(constant_id = 2) const uint TO = 0;

layout(push_constant) uniform Push {
    uvec2 x, o, keep, gone;
    uint outer, n;
    float correction;
};

float at(uint base, uint j) { return load_float(KIND, x, base + walk_offset(Words(gone), 0, j)); }

void main() {
    uint r = group_index(), t = gl_LocalInvocationID.x;
    if (r >= outer) return;
    uint base = walk_offset(Words(keep), 1, r);
    float v = OP == 2 || OP == 3 ? -infinity() : 0;
    for (uint j = t; j < n; j += 128) {
        float e = at(base, j);
        if (OP == 2 || OP == 3)
            v = max_nan(v, e);
        else
            v += OP == 5 ? e * e : e;
    }
    v = OP == 2 || OP == 3 ? team_max(v) : team_sum(v);
    if (OP == 1) v /= float(n);
    if (OP == 3 && !is_inf(v) && !is_nan(v)) {
        float s = 0;
        for (uint j = t; j < n; j += 128) s += k_exp(at(base, j) - v);
        v += k_log(team_sum(s));
    }
    if (OP == 4) {
        float m = v / float(n), s = 0;
        for (uint j = t; j < n; j += 128) {
            float e = at(base, j) - m;
            s += e * e;
        }
        v = team_sum(s) / (float(n) - correction);
    }
    if (t == 0) store_float(TO, o, walk_offset(Words(keep), 0, r), v);
}
