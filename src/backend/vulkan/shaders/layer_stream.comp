#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_spirv_intrinsics : require
// Layers of a running model over few rows, on devices with integer dot products: bound by reading the
// weights. A workgroup makes 8-bit integers of its rows of x, with a scale to every 32, in shared memory;
// then each subgroup takes TEAM rows of weights at a time, a lane 32 weights of each. What a row of x gets
// does not depend on the others. Rows of q4_k and q5_k begin at multiples of 16 bytes, and so do
// rows of x.
#define OWN_SIZE
#include "common.glsl"
#include "math.glsl"
#include "quant.glsl"

layout(local_size_x_id = 6) in;
layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const uint WEIGHT = 0;
layout(constant_id = 2) const bool GATED = false;
layout(constant_id = 3) const uint ROWS = 1; // of x, at once
layout(constant_id = 4) const uint UP = 0;   // the type of u
layout(constant_id = 5) const uint LONG = 4096; // columns that there is room for
layout(constant_id = 6) const uint THREADS = 128;
layout(constant_id = 7) const uint TEAM = 1; // rows of weights to a subgroup at a time
layout(constant_id = 8) const uint EACH = 8; // rows of weights to a workgroup

layout(push_constant) uniform Push { // as layer.comp
    uvec2 x, w, u, bias, y;
    uint rows, n, k;
    uint x_row, row_bytes;
    uint act, up_bytes;
};

#include "chunk.glsl"

// Four products of signed bytes, added up.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int dot_bytes(uint a, uint b, spirv_literal int packed_4x8);
int dot_16(uvec4 a, uvec4 b) {
    return dot_bytes(a.x, b.x, 0) + dot_bytes(a.y, b.y, 0) + dot_bytes(a.z, b.z, 0) + dot_bytes(a.w, b.w, 0);
}

layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Fours { vec4 f[]; };

// x of each row: codes, and to a run of 16 its scale and the sum of what the codes stand for.
shared uvec4 codes[ROWS][LONG / 16];
shared vec2 scale_sum[ROWS][LONG / 16];

// 32 columns are eight neighbouring lanes' work; k is a multiple of 32.
void encode(uint r, uint from, uint t) {
    for (uint i = t * 4; i < k; i += THREADS * 4) {
        vec4 v;
        if (KIND == F32)
            v = Fours(x).f[from + i >> 2];
        else
            v = vec4(load_float(KIND, x, from + i), load_float(KIND, x, from + i + 1),
                     load_float(KIND, x, from + i + 2), load_float(KIND, x, from + i + 3));
        vec4 size = abs(v);
        float most = max_nan(max_nan(size.x, size.y), max_nan(size.z, size.w));
        for (uint by = 1; by < 8; by *= 2) most = max_nan(most, subgroupShuffleXor(most, by));
        ivec4 q = ivec4(roundEven(v * (most > 1e-35 ? 127 / most : 0)));
        codes[r][i >> 4][i >> 2 & 3u] = uint(q.x & 255 | (q.y & 255) << 8 | (q.z & 255) << 16 | q.w << 24);
        int sum = q.x + q.y + q.z + q.w;
        for (uint by = 1; by < 4; by *= 2) sum += subgroupShuffleXor(sum, by);
        float scale = most / 127;
        if ((i & 15u) == 0) scale_sum[r][i >> 4] = vec2(scale, scale * float(sum));
    }
}

float product(Chunk c, uint r) {
    vec2 p = scale_sum[r][c.run], q = scale_sum[r][c.next];
    return c.s.x * p.x * float(dot_16(c.a, codes[r][c.run])) + c.m.x * p.y +
           (c.s.y * q.x * float(dot_16(c.b, codes[r][c.next])) + c.m.y * q.y);
}

void put(uint r, uint row, float g, float h) {
    if (bias != uvec2(0)) g += load_float(KIND, bias, row);
    g = activation(act, g);
    store_float(KIND, y, r * n + row, GATED ? g * h : g);
}

void main() {
    uint t = gl_LocalInvocationID.x, lane = gl_SubgroupInvocationID;
    uint first = gl_WorkGroupID.y * ROWS;
    uint base = (gl_WorkGroupID.z * 65535 + gl_WorkGroupID.x) * EACH;
    fill_values(t, THREADS);
    [[unroll]] for (uint r = 0; r < ROWS; r++) encode(r, min(first + r, rows - 1) * x_row, t);
    barrier();
    for (uint team = gl_SubgroupID * TEAM; team < EACH; team += gl_NumSubgroups * TEAM) {
        float s[TEAM][ROWS], v[TEAM][ROWS];
        uvec2 at[TEAM], up[TEAM];
        [[unroll]] for (uint j = 0; j < TEAM; j++) {
            uint row = min(base + team + j, n - 1);
            at[j] = row_at(w, row, row_bytes);
            if (GATED) up[j] = row_at(u, row, up_bytes);
            [[unroll]] for (uint r = 0; r < ROWS; r++) s[j][r] = v[j][r] = 0;
        }
        for (uint i = lane; i < k / 32; i += gl_SubgroupSize)
            [[unroll]] for (uint j = 0; j < TEAM; j++) {
                Chunk c = chunk(WEIGHT, at[j], i);
                [[unroll]] for (uint r = 0; r < ROWS; r++) s[j][r] += product(c, r);
                if (GATED) {
                    c = chunk(UP, up[j], i);
                    [[unroll]] for (uint r = 0; r < ROWS; r++) v[j][r] += product(c, r);
                }
            }
        [[unroll]] for (uint j = 0; j < TEAM; j++)
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                float g = subgroupAdd(s[j][r]), h = GATED ? subgroupAdd(v[j][r]) : 0;
                if (lane == 0 && base + team + j < n && team + j < EACH && first + r < rows)
                    put(first + r, base + team + j, g, h);
            }
    }
}
