#version 450
#extension GL_GOOGLE_include_directive : require
// Copies and casts through strides, and fills. BYTES of an element are moved as they are where FROM is
// TO; otherwise numbers are converted, between floats, i32, u8, i8 and bool.
#include "common.glsl"
#include "walk.glsl"

layout(constant_id = 0) const uint BYTES = 4;
layout(constant_id = 1) const uint FROM = 0;
layout(constant_id = 2) const uint TO = 0;
layout(constant_id = 3) const bool FILL = false; // x is one element

layout(push_constant) uniform Push {
    uvec2 x, o, walk;
    uint n;
    uint bits[2];
};

float number(uint i) {
    if (FROM == I32) return float(int(Words(x).w[int(i)]));
    if (FROM == U8 || FROM == BOOL) return float(load_u8(x, i));
    if (FROM == I8) return float(bitfieldExtract(int(load_u8(x, i)), 0, 8));
    return load_float(FROM, x, i);
}

// Truncated and clamped; NaN gives 0.
int whole(float v, float low, float high, int least, int most) {
    if (is_nan(v)) return 0;
    return v <= low ? least : v >= high ? most : int(v);
}

void put(uint i, float v) {
    if (TO == I32)
        Words(o).w[int(i)] = uint(whole(v, -2147483648.0, 2147483648.0, int(0x80000000u), 0x7fffffff));
    else if (TO == U8)
        store_u8(o, i, uint(whole(v, 0, 255, 0, 255)));
    else if (TO == I8)
        store_u8(o, i, uint(whole(v, -128, 127, -128, 127)));
    else if (TO == BOOL)
        store_u8(o, i, v != 0 || is_nan(v) ? 1 : 0);
    else
        store_float(TO, o, i, v);
}

void main() {
    uint i = thread_index();
    if (i >= n) return;
    uint to = walk_offset(Words(walk), 0, i), from = FILL ? 0 : walk_offset(Words(walk), 1, i);
    if (!FILL && FROM != TO) {
        put(to, number(from));
        return;
    }
    if (BYTES == 1) {
        store_u8(o, to, FILL ? bits[0] : load_u8(x, from));
    } else if (BYTES == 2) {
        store_u16(o, to, FILL ? bits[0] : load_u16(x, from));
    } else {
        for (uint k = 0; k < BYTES / 4; k++)
            Words(o).w[int(to * (BYTES / 4) + k)] =
                FILL ? bits[k] : Words(x).w[int(from * (BYTES / 4) + k)];
    }
}
