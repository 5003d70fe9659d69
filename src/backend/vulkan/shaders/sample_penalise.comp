#version 450
#extension GL_GOOGLE_include_directive : require
// Penalties: a copy of the logits, with those of the last tokens changed. A workgroup to 4096 logits.
#include "sample.glsl"

shared int ring[RING];

void main() {
    uint row = gl_WorkGroupID.y, t = gl_LocalInvocationID.x;
    uint seen = state(row, SEEN), last = min(min(count_of(row, LAST), RING), seen), n = tokens_of(row);
    uint begin = gl_WorkGroupID.x * 4096, end = min(begin + 4096, v);
    for (uint i = t; i < last; i += 128)
        ring[i] = int(state(row, TOKEN_AT + (seen - last + i) % RING));
    for (uint i = begin + t; i < end; i += 128)
        Floats(edited).f[row * v + i] = Floats(logits).f[row * v + i];
    memoryBarrierBuffer();
    barrier();
    for (uint mine = t; mine < last; mine += 128) {
        int id = ring[mine];
        if (id < int(begin) || id >= int(end) || id >= int(n)) continue;
        uint times = 0;
        bool first = true;
        for (uint k = 0; k < last; k++) {
            if (ring[k] != id) continue;
            if (k < mine) first = false;
            times++;
        }
        if (!first) continue; // somebody else's
        precise float x = Floats(logits).f[row * v + uint(id)];
        float r = setting(row, REPEAT);
        if (r > 0) x = x > 0 ? x / r : x * r;
        precise float off = setting(row, FREQUENCY) * float(times) + setting(row, PRESENCE);
        x = x - off;
        Floats(edited).f[row * v + uint(id)] = x;
    }
}
