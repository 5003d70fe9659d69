#version 450
#extension GL_GOOGLE_include_directive : require
// The largest of every 64 logits, so that choosing reads few of them again: a workgroup to 32 blocks,
// four threads to a block.
#include "sample.glsl"

void main() {
    uint row = gl_WorkGroupID.y, t = gl_LocalInvocationID.x, n = tokens_of(row);
    uint block = gl_WorkGroupID.x * 32 + t / 4, first = block * BLOCK + t % 4 * 16;
    float most = -infinity();
    for (uint i = first; i < min(first + 16, n); i++) {
        float x = logit(row, i);
        if (x > most) most = x; // never NaN
    }
    team[t] = most;
    barrier();
    if (t >= 32 || gl_WorkGroupID.x * 32 + t >= blocks) return;
    most = max(max(team[4 * t], team[4 * t + 1]), max(team[4 * t + 2], team[4 * t + 3]));
    Floats(peaks).f[row * blocks + gl_WorkGroupID.x * 32 + t] = most;
}
