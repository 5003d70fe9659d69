#version 450
#extension GL_GOOGLE_include_directive : require
// Elementwise ops of floats, some of i32: one, two operands and gradients of unary ops. A thread makes a word of the
// result: one element of f32, two of 16 bits.
#include "common.glsl"
#include "math.glsl"
#include "walk.glsl"

layout(constant_id = 0) const uint OP = 0;
layout(constant_id = 1) const uint KIND = 0;
layout(constant_id = 2) const bool FLAT = true;
layout(constant_id = 3) const bool TWO = false;

layout(push_constant) uniform Push {
    uvec2 a, b, o, walk;
    uint n;
    float f0, f1, f0_low;
};

#include "map.glsl"

float element(uint i) {
    uint ia = i, ib = i;
    if (!FLAT) {
        ia = walk_offset(Words(walk), 1, i);
        if (TWO) ib = walk_offset(Words(walk), 2, i);
    }
    return apply(load_float(KIND, a, ia), TWO ? load_float(KIND, b, ib) : 0);
}

// Whole numbers wrap around.
uint apply_whole(uint x, uint y) {
    switch (OP) {
    case 0: return uint(-int(x));
    case 1: return uint(abs(int(x)));
    case 20: return x + y;
    case 21: return x - y;
    case 22: return x * y;
    case 24: return uint(max(int(x), int(y)));
    case 25: return uint(min(int(x), int(y)));
    default: return 0;
    }
}

void whole_element(uint i) {
    Words w = Words(walk);
    int ia = int(FLAT ? i : walk_offset(w, 1, i)), ib = int(FLAT || !TWO ? i : walk_offset(w, 2, i));
    uint v = apply_whole(Words(a).w[ia], TWO ? Words(b).w[ib] : 0);
    Words(o).w[int(FLAT ? i : walk_offset(w, 0, i))] = v;
}

// The loop is one for all kinds, so that a driver compiles one copy of it.
void main() {
    const uint PER = KIND == F16 || KIND == BF16 ? 2 : 1;
    uint i = thread_index() * PER, word = 0;
    if (i >= n) return;
    if (KIND == I32) {
        whole_element(i);
        return;
    }
    for (uint k = 0; k < PER; k++) {
        if (i + k < n) {
            float v = element(i + k);
            if (KIND == F32)
                Floats(o).f[int(FLAT ? i : walk_offset(Words(walk), 0, i))] = v;
            else
                word |= to_half(KIND, v) << 16 * k;
        } else {
            word |= Words(o).w[i / 2] & 0xffff0000u;
        }
    }
    if (KIND != F32) Words(o).w[i / 2] = word; // contiguous, and beginning with a word
}
