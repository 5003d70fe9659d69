#version 450
#extension GL_GOOGLE_include_directive : require
// What adapters add to a layer: y + sum over r of mix[row, slot[r]] (x . a[r]) b[r], in two passes. The
// first gives a workgroup to each x . a[r] that counts, the second a thread to each result.
#include "common.glsl"

layout(constant_id = 0) const bool SECOND = false;

layout(push_constant) uniform Push {
    uvec2 y, x, mix_at, slot, a, b, low, o; // low (rows, ranks)
    uint rows, n, outs, slots, ranks;
};

float share(uint row, uint r) {
    uint s = Words(slot).w[r];
    return s < slots ? Floats(mix_at).f[row * slots + s] : 0;
}

void main() {
    uint t = gl_LocalInvocationID.x;
    if (!SECOND) {
        uint at = group_index(), row = at / ranks, r = at - row * ranks;
        if (row >= rows) return;
        float w = share(row, r), sum = 0;
        if (w == 0) return;
        for (uint i = t; i < n; i += 128) sum += Floats(x).f[row * n + i] * Floats(a).f[r * n + i];
        sum = team_sum(sum);
        if (t == 0) Floats(low).f[at] = w * sum;
        return;
    }
    uint i = thread_index(), row = i / outs, c = i - row * outs;
    if (row >= rows) return;
    float sum = Floats(y).f[i];
    for (uint r = 0; r < ranks; r++)
        if (share(row, r) != 0) sum += Floats(low).f[row * ranks + r] * Floats(b).f[r * outs + c];
    Floats(o).f[i] = sum;
}
