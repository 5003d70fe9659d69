#version 450
#extension GL_GOOGLE_include_directive : require
// Rows of x as f16 for cooperative matrices: each divided by a power of two that brings its largest element
// below 2^14, and that power. A workgroup to a row.
#include "common.glsl"

layout(constant_id = 0) const uint KIND = 0;

layout(push_constant) uniform Push {
    uvec2 x, o, scales;
    uint rows, k, x_row;
};

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 q[]; };

void main() {
    uint row = group_index(), t = gl_LocalInvocationID.x;
    if (row >= rows) return;
    float most = 0;
    for (uint i = t; i < k; i += 128) most = max_nan(most, abs(load_float(KIND, x, row * x_row + i)));
    most = team_max(most);
    // An infinity keeps its size; NaN stays NaN in any case.
    uint e = floatBitsToUint(most) >> 23 & 255u;
    int by = e == 255 || e < 30 ? 0 : int(e) - 127 - 13;
    float down = uintBitsToFloat(uint(127 - by) << 23);
    for (uint i = t; i < k / 8; i += 128) {
        float v[8];
        [[unroll]] for (uint j = 0; j < 8; j++) v[j] = load_float(KIND, x, row * x_row + i * 8 + j) * down;
        Quads(o).q[row * (k / 8) + i] =
            uvec4(packHalf2x16(vec2(v[0], v[1])), packHalf2x16(vec2(v[2], v[3])),
                  packHalf2x16(vec2(v[4], v[5])), packHalf2x16(vec2(v[6], v[7])));
    }
    if (t == 0) Floats(scales).f[row] = uintBitsToFloat(uint(127 + by) << 23);
}
