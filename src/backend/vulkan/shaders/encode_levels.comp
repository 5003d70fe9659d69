#version 450
#extension GL_GOOGLE_include_directive : require
// Rows become codes of levels (ops/encode_codes.h): a workgroup to a row, a thread to eight columns, whose
// bits make whole bytes.
#include "encode.glsl"

layout(push_constant) uniform Push {
    uvec2 z, squares, bits, at, amps, tables, codes;
    uint n, d, bytes;
    float dim, low, step;
};

// The level next to x, by the borders halfway between levels.
uint level_of(uint b, float x) {
    uint level = 0;
    for (uint half_of = 1u << b >> 1; half_of > 0; half_of /= 2) {
        uint mid = level + half_of;
        precise float border = 0.5 * (Floats(tables).f[b * 256 + mid - 1] + Floats(tables).f[b * 256 + mid]);
        if (x >= border) level = mid;
    }
    return level;
}

void main() {
    uint row = group_index(), t = gl_LocalInvocationID.x;
    if (row >= n) return;
    uint start = row * bytes;
    clear_code(codes, start, bytes);
    float s = sqrt(Floats(squares).f[row] / dim), along = 0, norm = 0;
    if (scale_code(s, low, step) == 0) return;
    float by = 1 / s;
    for (uint g = t; g * 8 < d; g += 128) {
        uint made[8];
        for (uint l = 0; l < 8; l++) made[l] = 0;
        uint b = Words(bits).w[g * 8];
        for (uint e = 0; e < 8 && g * 8 + e < d; e++) {
            uint j = g * 8 + e;
            precise float x = Floats(z).f[row * d + j] * by;
            float amp = Floats(amps).f[j];
            uint level = b > 0 && amp > 0 ? level_of(b, x / amp) : 0;
            for (uint l = 0; l < b; l++) made[l] |= (level >> b - 1 - l & 1u) << e;
            float v = b > 0 ? amp * Floats(tables).f[b * 256 + level] : 0;
            along += x * v;
            norm += v * v;
        }
        for (uint l = 0; l < b; l++) store_u8(codes, start + Words(at).w[g * 8 + l], made[l]);
    }
    along = team_sum(along);
    norm = team_sum(norm);
    if (t == 0) store_u8(codes, start, scale_code(norm > 0 ? s * along / norm : 0, low, step));
}
