#version 450
#extension GL_GOOGLE_include_directive : require
// Comparisons of two operands through strides, and choices by a condition (where, masked_fill). A thread
// to an element.
#include "common.glsl"
#include "walk.glsl"

layout(constant_id = 0) const uint OP = 0; // eq, ne, lt, le, gt, ge, where, masked_fill
layout(constant_id = 1) const uint KIND = 0;
const uint WHERE = 6, MASKED = 7;

layout(push_constant) uniform Push {
    uvec2 o, a, b, c, walk; // a: where's condition; masked_fill's is b
    uint n;
    uint bits[2]; // masked_fill's value
};

const uint BYTES = KIND == I64 ? 8 : KIND == F32 || KIND == I32 ? 4 : KIND == F16 || KIND == BF16 ? 2 : 1;

bool holds(int order, bool equal) { // order: -1, 0, 1; neither less nor equal nor greater: NaN
    switch (OP) {
    case 0: return equal;
    case 1: return !equal;
    case 2: return order < 0;
    case 3: return order < 0 || equal;
    case 4: return order > 0;
    default: return order > 0 || equal;
    }
}

int whole(uvec2 at, uint i) {
    if (KIND == I32) return int(Words(at).w[int(i)]);
    uint v = load_u8(at, i);
    return KIND == I8 ? bitfieldExtract(int(v), 0, 8) : int(v);
}

bool compared(uint ia, uint ib) {
    if (KIND == F32 || KIND == F16 || KIND == BF16) {
        float x = load_float(KIND, a, ia), y = load_float(KIND, b, ib);
        if (is_nan(x) || is_nan(y)) return OP == 1;
        return holds(x < y ? -1 : x > y ? 1 : 0, x == y);
    }
    int x, y;
    uint x_low = 0, y_low = 0;
    if (KIND == I64) {
        x = int(Words(a).w[int(2 * ia + 1)]), y = int(Words(b).w[int(2 * ib + 1)]);
        x_low = Words(a).w[int(2 * ia)], y_low = Words(b).w[int(2 * ib)];
    } else {
        x = whole(a, ia), y = whole(b, ib);
    }
    int order = x != y ? (x < y ? -1 : 1) : x_low != y_low ? (x_low < y_low ? -1 : 1) : 0;
    return holds(order, order == 0);
}

void copy(uint to, uvec2 from, uint i, bool fill) {
    if (BYTES == 1)
        store_u8(o, to, fill ? bits[0] : load_u8(from, i));
    else if (BYTES == 2)
        store_u16(o, to, fill ? bits[0] : load_u16(from, i));
    else
        for (uint k = 0; k < BYTES / 4; k++)
            Words(o).w[int(to * (BYTES / 4) + k)] =
                fill ? bits[k] : Words(from).w[int(i * (BYTES / 4) + k)];
}

void main() {
    uint i = thread_index();
    if (i >= n) return;
    Words w = Words(walk);
    uint to = walk_offset(w, 0, i), ia = walk_offset(w, 1, i), ib = walk_offset(w, 2, i);
    if (OP == WHERE) {
        if (load_u8(a, ia) != 0)
            copy(to, b, ib, false);
        else
            copy(to, c, walk_offset(w, 3, i), false);
    } else if (OP == MASKED) {
        copy(to, a, ia, load_u8(b, ib) != 0);
    } else {
        store_u8(o, to, compared(ia, ib) ? 1 : 0);
    }
}
