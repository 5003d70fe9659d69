#version 450
#extension GL_GOOGLE_include_directive : require
// Gradients of norms by weight and bias, dw = sum of dy h and db = sum of dy over rows: a workgroup to 32
// columns and a part of the rows (y), four rows at a time. Parts are added up afterwards.
#include "common.glsl"

layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const bool RMS = false;
layout(constant_id = 2) const uint TO = 0;

layout(push_constant) uniform Push {
    uvec2 dy, x, mean, rstd, dw, db; // dw, db (parts, n); may be 0
    uint rows, n, part;              // part: rows of each
};

shared float sums[2][128];

void main() {
    uint t = gl_LocalInvocationID.x, j = gl_WorkGroupID.x * 32 + t % 32;
    uint begin = gl_WorkGroupID.y * part, end = min(begin + part, rows);
    float s = 0, b = 0;
    if (j < n)
        for (uint r = begin + t / 32; r < end; r += 4) {
            float g = load_float(KIND, dy, r * n + j), m = RMS ? 0 : Floats(mean).f[r];
            s += g * (load_float(KIND, x, r * n + j) - m) * Floats(rstd).f[r];
            b += g;
        }
    sums[0][t] = s;
    sums[1][t] = b;
    barrier();
    if (t >= 32 || j >= n) return;
    uint to = gl_WorkGroupID.y * n + j;
    if (dw != uvec2(0))
        store_float(TO, dw, to, (sums[0][t] + sums[0][t + 32]) + (sums[0][t + 64] + sums[0][t + 96]));
    if (db != uvec2(0))
        store_float(TO, db, to, (sums[1][t] + sums[1][t + 32]) + (sums[1][t + 64] + sums[1][t + 96]));
}
