// Layers of a running model over few rows, on devices with integer dot products: bound by reading the
// weights. A workgroup makes 8-bit integers of ROWS rows of x, with a scale to every 32, in shared memory;
// then each subgroup takes a row of weights at a time, a lane 32 weights of it, and the next 32 are on their
// way while these are multiplied. What a row of x gets does not depend on the others. Rows of q4_k and q5_k
// begin at multiples of 16 bytes, and so do rows of x.
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_spirv_intrinsics : require
#define OWN_SIZE
#include "common.glsl"
#include "math.glsl"
#include "quant.glsl"

layout(local_size_x_id = 5) in;
layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const uint WEIGHT = 0;
layout(constant_id = 2) const bool GATED = false;
layout(constant_id = 3) const uint UP = 0;      // the type of u
layout(constant_id = 4) const uint LONG = 4096; // columns that there is room for
layout(constant_id = 5) const uint THREADS = 128;
layout(constant_id = 6) const uint EACH = 4;    // rows of weights to a workgroup

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

vec4 load_x(uint i) {
    if (KIND == F32) return Fours(x).f[i >> 2];
    return vec4(load_float(KIND, x, i), load_float(KIND, x, i + 1), load_float(KIND, x, i + 2),
                load_float(KIND, x, i + 3));
}

// 32 columns are eight neighbouring lanes' work.
void encode_four(uint r, uint i, vec4 v) {
    vec4 size = abs(v);
    float most = max_nan(max_nan(size.x, size.y), max_nan(size.z, size.w));
    most = max_nan(most, subgroupShuffleXor(most, 1));
    most = max_nan(most, subgroupShuffleXor(most, 2));
    most = max_nan(most, subgroupShuffleXor(most, 4));
    ivec4 q = ivec4(roundEven(v * (most > 1e-35 ? 127 / most : 0)));
    int sum = q.x + q.y + q.z + q.w;
    sum += subgroupShuffleXor(sum, 1);
    sum += subgroupShuffleXor(sum, 2);
    float scale = most / 127;
    if (i >= k) return;
    codes[r][i >> 4][i >> 2 & 3u] = uint(q.x & 255 | (q.y & 255) << 8 | (q.z & 255) << 16 | q.w << 24);
    if ((i & 15u) == 0) scale_sum[r][i >> 4] = vec2(scale, scale * float(sum));
}

// All of a row's columns; k is a multiple of 32, and four loads are on their way at a time.
void encode(uint r, uint from, uint t) {
    const uint STEP = THREADS * 4;
    for (uint i = t * 4; i - t * 4 < k; i += 4 * STEP) {
        vec4 a = load_x(from + min(i, k - 4)), b = load_x(from + min(i + STEP, k - 4));
        vec4 c = load_x(from + min(i + 2 * STEP, k - 4)), d = load_x(from + min(i + 3 * STEP, k - 4));
        encode_four(r, i, a);
        if (i - t * 4 + STEP < k) encode_four(r, i + STEP, b);
        if (i - t * 4 + 2 * STEP < k) encode_four(r, i + 2 * STEP, c);
        if (i - t * 4 + 3 * STEP < k) encode_four(r, i + 3 * STEP, d);
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
    uint t = gl_LocalInvocationID.x, lane = gl_SubgroupInvocationID, step = gl_SubgroupSize;
    uint first = gl_WorkGroupID.y * ROWS, chunks = k / 32;
    uint base = (gl_WorkGroupID.z * 65535 + gl_WorkGroupID.x) * EACH;
    uint row = min(base + gl_SubgroupID, n - 1);
    uvec2 at = row_at(w, row, row_bytes), up = row_at(u, row, up_bytes);
    fill_values(t, THREADS);
    if (looks_up(WEIGHT) || GATED && looks_up(UP)) barrier();
    // The first weights are asked for before x is there.
    Chunk c = chunk(WEIGHT, at, min(lane, chunks - 1)), e;
    if (GATED) e = chunk(UP, up, min(lane, chunks - 1));
    [[unroll]] for (uint r = 0; r < ROWS; r++) encode(r, min(first + r, rows - 1) * x_row, t);
    barrier();
    for (uint mine = gl_SubgroupID; mine < EACH; mine += gl_NumSubgroups) {
        float s[ROWS], v[ROWS];
        [[unroll]] for (uint r = 0; r < ROWS; r++) s[r] = v[r] = 0;
        uint row = min(base + mine, n - 1), next_row = min(base + mine + gl_NumSubgroups, n - 1);
        for (uint i = lane; i < chunks; i += step) {
            // What comes next: of this row, or the first of the next one.
            bool more = i + step < chunks;
            uint from = more ? row : next_row, which = more ? i + step : min(lane, chunks - 1);
            Chunk next = chunk(WEIGHT, row_at(w, from, row_bytes), which), next_up;
            if (GATED) next_up = chunk(UP, row_at(u, from, up_bytes), which);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                s[r] += product(c, r);
                if (GATED) v[r] += product(e, r);
            }
            c = next;
            if (GATED) e = next_up;
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            float g = subgroupAdd(s[r]), h = GATED ? subgroupAdd(v[r]) : 0;
            if (lane == 0 && base + mine < n && first + r < rows) put(first + r, base + mine, g, h);
        }
    }
}
