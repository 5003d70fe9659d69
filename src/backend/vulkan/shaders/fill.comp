#version 450
#extension GL_GOOGLE_include_directive : require
// Numbers made from their index: rising ones, random ones by Philox (base/rng.h), dropout of x. A thread
// makes a word of the result, or two of i64.
#include "common.glsl"
#include "math.glsl"
#include "turns.glsl"

layout(constant_id = 0) const uint OP = 0; // arange, uniform, normal, dropout
layout(constant_id = 1) const uint KIND = 0;
const uint ARANGE = 0, UNIFORM = 1, NORMAL = 2, DROPOUT = 3;

layout(push_constant) uniform Push {
    uvec2 o, x, seed, stream;
    uint n;
    int start, step;
    float f0, f1; // lo, hi - lo; mean, sd; share dropped, factor
};

uvec4 philox(uint counter) {
    uvec4 c = uvec4(counter, 0, stream.x, stream.y);
    uvec2 k = seed;
    for (int round = 0; round < 10; round++) {
        uint high0, low0, high1, low1;
        umulExtended(0xD2511F53u, c.x, high0, low0);
        umulExtended(0xCD9E8D57u, c.z, high1, low1);
        c = uvec4(high1 ^ c.y ^ k.x, low1, high0 ^ c.w ^ k.y, low0);
        k += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return c;
}

// [0, 1), in steps of 2^-24.
float unit(uint word) { return float(word >> 8) * 5.9604644775390625e-8; }

float element(uint i) {
    if (OP == ARANGE) return float(start + int(i) * step);
    uvec4 block = philox(i / 4);
    if (OP == UNIFORM) return f0 + f1 * unit(block[i % 4]);
    if (OP == DROPOUT) return unit(block[i % 4]) >= f0 ? load_float(KIND, x, i) * f1 : 0;
    uint a = block[i % 4 / 2 * 2], b = block[i % 4 / 2 * 2 + 1]; // Box and Muller's pair
    float r = sqrt(-2 * k_log((float(a >> 8) + 1) * 5.9604644775390625e-8));
    vec2 cs = turned(unit(b));
    return f0 + f1 * (r * (i % 2 == 0 ? cs.x : cs.y));
}

void main() {
    const uint PER = KIND == F16 || KIND == BF16 ? 2 : 1;
    uint i = thread_index() * PER;
    if (i >= n) return;
    if (KIND == I32 || KIND == I64) {
        int v = start + int(i) * step;
        Words(o).w[KIND == I64 ? 2 * i : i] = uint(v);
        if (KIND == I64) Words(o).w[2 * i + 1] = uint(v >> 31);
    } else if (KIND == F32) {
        Floats(o).f[i] = element(i);
    } else if (i + 1 < n) {
        Words(o).w[i / 2] = to_half(KIND, element(i)) | to_half(KIND, element(i + 1)) << 16;
    } else {
        store_float(KIND, o, i, element(i));
    }
}
