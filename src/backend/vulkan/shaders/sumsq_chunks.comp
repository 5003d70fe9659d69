#version 450
#extension GL_GOOGLE_include_directive : require
// Sums of squares of every 16384 elements of many tensors: a workgroup to a chunk.
#include "common.glsl"

layout(push_constant) uniform Push {
    uvec2 tensors, o; // a tensor: address, elements, first chunk, kind
    uint count, chunks;
};

const uint CHUNK = 16384, SIZE = 5;

void main() {
    uint chunk = group_index(), t = gl_LocalInvocationID.x;
    if (chunk >= chunks) return;
    Words w = Words(tensors);
    uint low = 0, high = count;
    while (high - low > 1) {
        uint mid = (low + high) / 2;
        if (w.w[mid * SIZE + 3] <= chunk)
            low = mid;
        else
            high = mid;
    }
    uvec2 x = uvec2(w.w[low * SIZE], w.w[low * SIZE + 1]);
    uint begin = (chunk - w.w[low * SIZE + 3]) * CHUNK, end = min(begin + CHUNK, w.w[low * SIZE + 2]);
    uint kind = w.w[low * SIZE + 4];
    float s = 0;
    for (uint i = begin + t; i < end; i += 128) {
        float e = load_float(kind, x, i);
        s += e * e;
    }
    s = team_sum(s);
    if (t == 0) Floats(o).f[chunk] = s;
}
