#version 450
#extension GL_GOOGLE_include_directive : require
// Rotary positions: x (rows, T, d), whose first `dims` are turned in pairs. A thread makes a word of the
// result: one element of f32, two of 16 bits.
#include "common.glsl"
#include "turns.glsl"

layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const uint POSITIONS = I32;

layout(push_constant) uniform Push {
    uvec2 x, positions, divisors, turns, o; // turns: of each pair in a step of position, in two parts
    uint n, time, d, dims;
    uint adjacent;
    float direction; // 1, or -1 for the inverse
};

float element(uint i) {
    uint j = i % d, row = i / d, start = row * d, at = row % time;
    if (j >= dims) return load_float(KIND, x, i);
    uint p = adjacent != 0 ? j / 2 : j % (dims / 2);
    uint first = adjacent != 0 ? 2 * p : p, second = adjacent != 0 ? 2 * p + 1 : p + dims / 2;
    float position = float(at);
    if (positions != uvec2(0)) position = float(int(Words(positions).w[POSITIONS == I64 ? 2 * at : at]));
    float by = divisors != uvec2(0) ? Floats(divisors).f[p] : 1;
    vec2 cs = rotation(position, Floats(turns).f[2 * p], Floats(turns).f[2 * p + 1], by);
    float a = load_float(KIND, x, start + first), b = load_float(KIND, x, start + second);
    cs.y *= direction;
    return j == first ? a * cs.x - b * cs.y : a * cs.y + b * cs.x;
}

void main() {
    const uint PER = KIND == F32 ? 1 : 2;
    uint i = thread_index() * PER;
    if (i >= n) return;
    float v = element(i);
    if (KIND == F32)
        Floats(o).f[i] = v;
    else if (i + 1 < n)
        Words(o).w[i / 2] = to_half(KIND, v) | to_half(KIND, element(i + 1)) << 16;
    else
        store_float(KIND, o, i, v);
}
