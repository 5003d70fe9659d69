#version 450
#extension GL_GOOGLE_include_directive : require
// Elements picked by index along an axis: x (outer, n, inner) as o (outer, m, inner). The index is (m), or of
// o's shape (gather). A thread makes a word of the result, or several of wide elements; what is out of range
// gives 0.
#include "common.glsl"

layout(constant_id = 0) const uint BYTES = 4; // of an element
layout(constant_id = 1) const uint IDS = I32;
layout(constant_id = 2) const bool EACH = false; // an index for each element

layout(push_constant) uniform Push {
    uvec2 x, ids, o;
    uint total, n, m, inner; // total: elements of o
    uint rows, row;          // of x and o: elements of one step along `outer`
};

// Where element i of o comes from; false: nowhere.
bool source(uint i, out uint from) {
    uint outer = i / row, rest = i - outer * row, at = rest / inner;
    uint id = load_index(IDS, ids, EACH ? i : at, n);
    from = outer * rows + id * inner + rest % inner;
    return id < n;
}

void main() {
    const uint PER = BYTES < 4 ? 4 / BYTES : 1;
    uint i = thread_index() * PER, from;
    if (i >= total) return;
    if (BYTES >= 4) {
        bool there = source(i, from);
        for (uint k = 0; k < BYTES / 4; k++)
            Words(o).w[i * (BYTES / 4) + k] = there ? Words(x).w[from * (BYTES / 4) + k] : 0;
        return;
    }
    uint word = 0;
    for (uint k = 0; k < PER; k++) {
        bool there = i + k < total && source(i + k, from);
        uint v = !there ? 0 : BYTES == 1 ? load_u8(x, from) : load_u16(x, from);
        if (i + PER <= total)
            word |= v << 8 * BYTES * k;
        else if (i + k < total && BYTES == 1)
            store_u8(o, i + k, v);
        else if (i + k < total)
            store_u16(o, i + k, v);
    }
    if (i + PER <= total) Words(o).w[i / PER] = word;
}
