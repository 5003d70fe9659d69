#version 450
#extension GL_GOOGLE_include_directive : require
// The nearest of k centres to each row, the lower id of equals: a workgroup to 32 rows, 64 centres at a
// time.
#include "common.glsl"
#include "gaps.glsl"

layout(constant_id = 0) const uint KIND = 0;

layout(push_constant) uniform Push {
    uvec2 x, centres, ids, dists;
    uint n, k, d;
};

shared float near[GAP_ROWS][16];
shared uint which[GAP_ROWS][16];

// NaN is larger than all.
bool better(float a, uint a_id, float b, uint b_id) {
    if (is_nan(a)) return false;
    return is_nan(b) || a < b || (a == b && a_id < b_id);
}

void main() {
    uint first = group_index() * GAP_ROWS, t = gl_LocalInvocationID.x;
    if (first >= n) return;
    vec4 best = vec4(nan());
    uvec4 id = uvec4(0);
    for (uint c = 0; c < k; c += GAP_OTHERS) {
        make_gaps(KIND, x, first, n, centres, c, k, d, false);
        for (uint i = 0; i < 4; i++)
            for (uint j = 0; j < 4; j++) {
                uint centre = c + gap_other(j);
                if (centre < k && better(gaps[i][j], centre, best[i], id[i])) {
                    best[i] = gaps[i][j];
                    id[i] = centre;
                }
            }
    }
    for (uint i = 0; i < 4; i++) {
        near[gap_row(i)][t % 16] = best[i];
        which[gap_row(i)][t % 16] = id[i];
    }
    barrier();
    if (t >= GAP_ROWS || first + t >= n) return;
    float least = near[t][0];
    uint found = which[t][0];
    for (uint i = 1; i < 16; i++)
        if (better(near[t][i], which[t][i], least, found)) {
            least = near[t][i];
            found = which[t][i];
        }
    Words(ids).w[first + t] = found;
    Floats(dists).f[first + t] = least;
}
