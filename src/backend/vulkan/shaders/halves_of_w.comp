#version 450
#extension GL_GOOGLE_include_directive : require
// Rows of weights as f16 for cooperative matrices, a thread to 32 of them. Of a gated pair 16 rows of g and
// the same 16 of u follow each other; rows past the end of both are left as they are.
#define OWN_SIZE
#include "common.glsl"
#include "quant.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint WEIGHT = 0;
layout(constant_id = 1) const bool GATED = false;
layout(constant_id = 2) const uint UP = 0;

layout(push_constant) uniform Push {
    uvec2 w, u, o;
    uint n, k; // rows of w (and as many of u)
    uint row_bytes, up_bytes;
};

#include "chunk.glsl"
layout(buffer_reference, std430, buffer_reference_align = 16) writeonly buffer Out { uvec4 q[]; };

vec4 bytes(uint v) {
    int s = int(v);
    return vec4(bitfieldExtract(s, 0, 8), bitfieldExtract(s, 8, 8), bitfieldExtract(s, 16, 8),
                bitfieldExtract(s, 24, 8));
}
uvec2 halves(vec4 v) { return uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw)); }
void put(uint at, uvec4 q, float s, float m) {
    Out(o).q[at] = uvec4(halves(s * bytes(q.x) + m), halves(s * bytes(q.y) + m));
    Out(o).q[at + 1] = uvec4(halves(s * bytes(q.z) + m), halves(s * bytes(q.w) + m));
}
void plain(uint kind, uvec2 at, uint i, uint to) {
    for (uint q = 0; q < 4; q++)
        Out(o).q[to + q] = uvec4(halves(quad(kind, at, i * 32 + q * 8)), halves(quad(kind, at, i * 32 + q * 8 + 4)));
}
void convert(uint kind, uvec2 at, uint i, uint to) {
    if (kind < Q4_0) {
        plain(kind, at, i, to + i * 4);
        return;
    }
    Chunk c = chunk(kind, at, i);
    put(to + c.run * 2, c.a, c.s.x, c.m.x);
    put(to + c.next * 2, c.b, c.s.y, c.m.y);
}

void main() {
    fill_values(gl_LocalInvocationID.x, 128);
    barrier();
    uint chunks = k / 32, index = thread_index();
    uint row = index / chunks, i = index % chunks;
    if (!GATED) {
        if (row < n) convert(WEIGHT, row_at(w, row, row_bytes), i, row * (k / 8));
        return;
    }
    uint of = row / 32 * 16 + row % 16;
    if (of >= n) return;
    if (row % 32 < 16)
        convert(WEIGHT, row_at(w, of, row_bytes), i, row * (k / 8));
    else
        convert(UP, row_at(u, of, up_bytes), i, row * (k / 8));
}
