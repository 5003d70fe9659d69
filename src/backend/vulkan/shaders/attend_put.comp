#version 450
#extension GL_GOOGLE_include_directive : require
// Keys and values of all rows into the paged cache: a workgroup to a row and key head.
#include "attend.glsl"

// A block of 32, from head[] or from v, to element `to` of a cache, in the layout and with the rounding
// of backend/attend.h.
void put_block(bool key, uint row, uint h, uint first, uint to) {
    float e[32], most = 0, far = 0;
    for (uint i = 0; i < 32; i++) {
        e[i] = key ? head[first + i] : load_float(KIND, v, row * v_row + h * d + first + i);
        if (abs(e[i]) > abs(far)) far = e[i];
    }
    uvec2 cache = key ? cache_k : cache_v;
    most = abs(far);
    if (CACHE == Q8_0) {
        precise float scale = most / 127, by = scale > 0 ? 1 / scale : 0;
        uint at = to / 32 * 17; // in words of 16 bits
        store_u16(cache, at, f32_to_f16(scale));
        for (uint i = 0; i < 16; i++) {
            precise float low = e[2 * i] * by, high = e[2 * i + 1] * by;
            store_u16(cache, at + 1 + i,
                      (uint(int(roundEven(low))) & 255u) | (uint(int(roundEven(high))) & 255u) << 8);
        }
        return;
    }
    precise float scale = far / -8, by = scale != 0 ? 1 / scale : 0;
    uint at = to / 32 * 9, code[32];
    store_u16(cache, at, f32_to_f16(scale));
    for (uint i = 0; i < 32; i++) {
        precise float c = e[i] * by;
        c = c + 8.5;
        code[i] = uint(min(int(c), 15)) & 15u;
    }
    for (uint i = 0; i < 8; i++)
        store_u16(cache, at + 1 + i, code[2 * i] | code[2 * i + 16] << 4 | code[2 * i + 1] << 8 |
                                         code[2 * i + 17] << 12);
}

void main() {
    uint row = gl_WorkGroupID.y, h = gl_WorkGroupID.x, t = gl_LocalInvocationID.x, sequence;
    int position;
    if (!place(row, sequence, position)) return;
    load_head(x, x_row, norm, row, h, position);
    uint to = cache_at(sequence, uint(position), h);
    if (CACHE >= Q4_0) {
        for (uint b = t; b < d / 16; b += 128) put_block(b < d / 32, row, h, b % (d / 32) * 32, to + b % (d / 32) * 32);
        return;
    }
    for (uint i = t; i < d; i += 128) {
        store_float(CACHE, cache_k, to + i, head[i]);
        store_float(CACHE, cache_v, to + i, load_float(KIND, v, row * v_row + h * d + i));
    }
}
