#version 450
#extension GL_GOOGLE_include_directive : require
// Layers of a running model: y = act(x w^T + b), or act(x g^T) * (x u^T), with weights of any type. 32
// threads to a row of weights, four rows to a workgroup; each reads its weights once for four rows of x.
// What a row of x gets does not depend on the others.
#include "common.glsl"
#include "math.glsl"
#include "quant.glsl"

layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const uint WEIGHT = 0;
layout(constant_id = 2) const bool GATED = false;
layout(constant_id = 3) const uint ROWS = 4; // of x, at once: 1 or 4
layout(constant_id = 4) const uint UP = 0;   // the type of u
layout(constant_id = 5) const bool ODD = false; // plain weights whose columns are no multiple of four

layout(push_constant) uniform Push {
    uvec2 x, w, u, bias, y;
    uint rows, n, k;        // rows of x, rows of w, columns
    uint x_row, row_bytes;  // stride of x's rows, bytes of a row of w
    uint act, up_bytes;     // bytes of a row of u
};

// Four columns from i on; those past the end are 0.
vec4 four(uint kind, uvec2 at, uint first, uint i) {
    if (!ODD || i + 3 < k) return quad(kind, at, first + i);
    vec4 v = vec4(0);
    for (uint j = 0; i + j < k; j++) v[j] = load_float(kind, at, first + i + j);
    return v;
}

shared float sums[ROWS * 2][128];

void main() {
    uint t = gl_LocalInvocationID.x, lane = t % 32;
    uint row = (gl_WorkGroupID.z * 65535 + gl_WorkGroupID.x) * 4 + t / 32, first = gl_WorkGroupID.y * ROWS;
    uvec2 at = row_at(w, min(row, n - 1), row_bytes), up = row_at(u, min(row, n - 1), up_bytes);
    float s[ROWS], v[ROWS];
    for (uint r = 0; r < ROWS; r++) s[r] = v[r] = 0;
    for (uint i = lane * 4; i < k; i += 128) {
        vec4 a = four(WEIGHT, at, 0, i), b = vec4(0);
        if (GATED) b = four(UP, up, 0, i);
        for (uint r = 0; r < ROWS; r++) {
            vec4 e = four(KIND, x, min(first + r, rows - 1) * x_row, i);
            s[r] += dot(a, e);
            if (GATED) v[r] += dot(b, e);
        }
    }
    for (uint r = 0; r < ROWS; r++) {
        sums[r][t] = s[r];
        if (GATED) sums[ROWS + r][t] = v[r];
    }
    barrier();
    // A thread to each result: four rows of w, ROWS of x.
    if (t >= 4 * ROWS) return;
    uint mine = t % 4, r = t / 4;
    row = (gl_WorkGroupID.z * 65535 + gl_WorkGroupID.x) * 4 + mine;
    if (row >= n || first + r >= rows) return;
    float g = 0, h = 0;
    for (uint i = 0; i < 32; i++) {
        g += sums[r][mine * 32 + i];
        if (GATED) h += sums[ROWS + r][mine * 32 + i];
    }
    if (bias != uvec2(0)) g += load_float(KIND, bias, row);
    g = activation(act, g);
    store_float(KIND, y, (first + r) * n + row, GATED ? g * h : g);
}
