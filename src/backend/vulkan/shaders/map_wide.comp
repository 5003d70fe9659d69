#version 450
#extension GL_GOOGLE_include_directive : require
// Elementwise ops over many contiguous elements, and copies: a thread makes two words of 16 bytes of the
// result, a workgroup's length apart. n counts these words.
#include "common.glsl"
#include "math.glsl"

layout(constant_id = 0) const uint OP = 0;
layout(constant_id = 1) const uint KIND = 0;
layout(constant_id = 2) const bool TWO = false;
layout(constant_id = 3) const bool RAW = false; // a copy, of any kind

layout(push_constant) uniform Push {
    uvec2 a, b, o;
    uint n;
    float f0, f1, f0_low;
};

#include "map.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 q[]; };

float number(uint w) {
    return KIND == F32 ? uintBitsToFloat(w) : KIND == F16 ? f16_to_f32(w & 0xffffu) : bf16_to_f32(w & 0xffffu);
}

uvec4 made(uvec4 x, uvec4 y) {
    uvec4 r;
    if (RAW) return x;
    for (uint i = 0; i < 4; i++) { // one copy of the op for a driver to compile, where it does not unroll
        uint word = 0;
        for (uint k = 0; k < (KIND == F32 ? 1 : 2); k++) {
            float v = apply(number(x[i] >> 16 * k), TWO ? number(y[i] >> 16 * k) : 0);
            word |= KIND == F32 ? floatBitsToUint(v) : to_half(KIND, v) << 16 * k;
        }
        r[i] = word;
    }
    return r;
}

void main() {
    uint i = group_index() * 256 + gl_LocalInvocationID.x;
    uvec4 x[2], y[2];
    [[unroll]] for (uint k = 0; k < 2; k++) {
        if (i + 128 * k >= n) break;
        x[k] = Quads(a).q[i + 128 * k];
        if (TWO) y[k] = Quads(b).q[i + 128 * k];
    }
    [[unroll]] for (uint k = 0; k < 2; k++)
        if (i + 128 * k < n) Quads(o).q[i + 128 * k] = made(x[k], y[k]);
}
