#version 450
#extension GL_GOOGLE_include_directive : require
// Keys and values of all rows into the paged cache: a workgroup to a row and key head.
#include "attend.glsl"

void main() {
    uint row = gl_WorkGroupID.y, h = gl_WorkGroupID.x, t = gl_LocalInvocationID.x, sequence;
    int position;
    if (!place(row, sequence, position)) return;
    load_head(row, h, position);
    uint to = cache_at(sequence, uint(position), h);
    for (uint i = t; i < d; i += 128) {
        store_float(CACHE, cache_k, to + i, head[i]);
        store_float(CACHE, cache_v, to + i, load_float(KIND, v, row * v_row + h * d + i));
    }
}
