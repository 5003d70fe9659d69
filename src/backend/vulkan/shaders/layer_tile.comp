#version 450
#extension GL_GOOGLE_include_directive : require
// Layers over many rows, as of prompts: the same as layer.comp by tiles of 64 rows of x and 64 of w in 8
// KiB of shared memory, so that weights are read and decoded once for 64 rows. 128 threads have 4 x 8
// results each; a thread's columns lie 8 apart, so that neighbours read neighbouring words. Of a gated
// pair a tile has 32 rows of g and the same 32 of u. A row of x gets the same bits whatever the others.
#include "common.glsl"
#include "math.glsl"
#include "quant.glsl"

layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const uint WEIGHT = 0;
layout(constant_id = 2) const bool GATED = false;
layout(constant_id = 3) const uint UP = 0;

layout(push_constant) uniform Push { // as layer.comp
    uvec2 x, w, u, bias, y;
    uint rows, n, k;
    uint x_row, row_bytes;
    uint act, up_bytes;
};

const uint TILE = 64, DEEP = 16, PAD = TILE + 1; // padded: columns are written, rows are read
shared float tx[DEEP][PAD], tw[DEEP][PAD];

// Four columns from i on; those past the end are 0.
vec4 four(uint kind, uvec2 at, uint first, uint i) {
    if (i + 3 < k) return quad(kind, at, first + i);
    vec4 v = vec4(0);
    for (uint j = 0; i + j < k && kind < Q4_0; j++) v[j] = load_float(kind, at, first + i + j);
    return v;
}

void main() {
    uint t = gl_LocalInvocationID.x, col = t % 8, row = t / 8 * 4;
    uint each = GATED ? TILE / 2 : TILE; // rows of w to a tile
    uint row0 = gl_WorkGroupID.x * TILE, col0 = gl_WorkGroupID.y * each;
    // What this thread fetches: quad t % 4 of two rows of each tile.
    uint part = t % 4 * 4, mine = t / 4, from[2];
    uvec2 at[2];
    for (uint h = 0; h < 2; h++) {
        uint r = mine + 32 * h;
        from[h] = min(row0 + r, rows - 1) * x_row;
        if (GATED && h == 1)
            at[h] = row_at(u, min(col0 + mine, n - 1), up_bytes);
        else
            at[h] = row_at(w, min(col0 + r, n - 1), row_bytes);
    }
    float acc[4][8];
    [[unroll]] for (uint i = 0; i < 4; i++)
        [[unroll]] for (uint j = 0; j < 8; j++) acc[i][j] = 0;
    for (uint k0 = 0; k0 < k; k0 += DEEP) {
        [[unroll]] for (uint h = 0; h < 2; h++) {
            vec4 a = four(KIND, x, from[h], k0 + part), b;
            if (GATED && h == 1)
                b = four(UP, at[h], 0, k0 + part);
            else
                b = four(WEIGHT, at[h], 0, k0 + part);
            [[unroll]] for (uint j = 0; j < 4; j++) {
                tx[part + j][mine + 32 * h] = a[j];
                tw[part + j][mine + 32 * h] = b[j];
            }
        }
        barrier();
        for (uint d = 0; d < DEEP; d++) {
            float e[4], f[8];
            [[unroll]] for (uint i = 0; i < 4; i++) e[i] = tx[d][row + i];
            [[unroll]] for (uint j = 0; j < 8; j++) f[j] = tw[d][j * 8 + col];
            [[unroll]] for (uint i = 0; i < 4; i++)
                [[unroll]] for (uint j = 0; j < 8; j++) acc[i][j] += e[i] * f[j];
        }
        barrier();
    }
    [[unroll]] for (uint i = 0; i < 4; i++)
        [[unroll]] for (uint j = 0; j < 8; j++) {
            uint r = row0 + row + i, c = col0 + j * 8 + col;
            if (r >= rows || c >= n || (GATED && j >= 4)) continue;
            float v = acc[i][j];
            if (bias != uvec2(0)) v += load_float(KIND, bias, c);
            v = activation(act, v);
            if (GATED) v *= acc[i][(j + 4) % 8];
            store_float(KIND, y, r * n + c, v);
        }
}
