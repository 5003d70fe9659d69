#version 450
#extension GL_GOOGLE_include_directive : require
// out = act(alpha a b + bias) + beta out over any strides, by tiles of 64 x 64 in 8 KiB of shared memory:
// 128 threads with 4 x 8 results each. A thread's columns lie 8 apart, so that neighbours read
// neighbouring words of shared memory. The batch is z, in up to three axes by strides.
#include "common.glsl"
#include "math.glsl"

layout(constant_id = 0) const uint KIND = 0;

layout(push_constant) uniform Push {
    uvec2 a, b, o, bias, pre, batch; // pre: what act was given; batch: dims[3], strides of a, b, o [3] each
    uint m, n, k;
    uint a_row, a_col, b_row, b_col, o_row;
    float alpha, beta; // beta 0: out is not read
    uint act;
};

const uint TILE = 64, DEEP = 16;
shared float ta[DEEP][TILE], tb[DEEP][TILE];

void main() {
    uint t = gl_LocalInvocationID.x, tx = t % 8, ty = t / 8;
    uint row0 = gl_WorkGroupID.y * TILE, col0 = gl_WorkGroupID.x * TILE;
    uint oa = 0, ob = 0, oo = 0;
    if (batch != uvec2(0)) {
        uint z = gl_WorkGroupID.z;
        Words w = Words(batch);
        for (int i = 2; i >= 0; i--) {
            uint d = w.w[i], q = z / d, r = z - q * d;
            oa += r * w.w[3 + i];
            ob += r * w.w[6 + i];
            oo += r * w.w[9 + i];
            z = q;
        }
    }
    float acc[4][8];
    for (uint i = 0; i < 4; i++)
        for (uint j = 0; j < 8; j++) acc[i][j] = 0;
    for (uint k0 = 0; k0 < k; k0 += DEEP) {
        for (uint e = t; e < TILE * DEEP; e += 128) {
            // The faster of the two strides goes with neighbouring threads.
            uint i = a_col == 1 ? e / DEEP : e % TILE, j = a_col == 1 ? e % DEEP : e / TILE;
            bool in_a = row0 + i < m && k0 + j < k;
            ta[j][i] = in_a ? load_float(KIND, a, oa + (row0 + i) * a_row + (k0 + j) * a_col) : 0;
            i = b_row == 1 ? e / DEEP : e % TILE;
            j = b_row == 1 ? e % DEEP : e / TILE;
            bool in_b = col0 + i < n && k0 + j < k;
            tb[j][i] = in_b ? load_float(KIND, b, ob + (k0 + j) * b_row + (col0 + i) * b_col) : 0;
        }
        barrier();
        for (uint d = 0; d < DEEP; d++) {
            float x[4], y[8];
            [[unroll]] for (uint i = 0; i < 4; i++) x[i] = ta[d][ty * 4 + i];
            [[unroll]] for (uint j = 0; j < 8; j++) y[j] = tb[d][j * 8 + tx];
            [[unroll]] for (uint i = 0; i < 4; i++)
                [[unroll]] for (uint j = 0; j < 8; j++) acc[i][j] += x[i] * y[j];
        }
        barrier();
    }
    for (uint i = 0; i < 4; i++)
        for (uint j = 0; j < 8; j++) {
            uint r = row0 + ty * 4 + i, c = col0 + j * 8 + tx, at = oo + r * o_row + c;
            if (r >= m || c >= n) continue;
            float v = alpha * acc[i][j];
            if (beta != 0) v += beta * load_float(KIND, o, at);
            if (bias != uvec2(0)) v += load_float(KIND, bias, c);
            if (pre != uvec2(0)) store_float(KIND, pre, at, v);
            store_float(KIND, o, at, activation(act, v));
        }
}
