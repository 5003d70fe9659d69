// What every shader begins with: memory by address, numbers of few bits by 32-bit words (no device lacks
// those), sums over a workgroup. Addresses are two words; they need not be aligned to four bytes.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require

#ifndef OWN_SIZE // a shader with another workgroup says so, and has no sums over it
layout(local_size_x = 128) in;
#endif

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint w[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float f[]; };

// As km_dtype.
const uint F32 = 0, F16 = 1, BF16 = 2, F64 = 3, I32 = 4, I64 = 5, U8 = 6, I8 = 7, BOOL = 8;

// Groups are counted in rows of gl_NumWorkGroups.x (launch.h).
uint group_index() { return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }
uint thread_index() { return group_index() * 128 + gl_LocalInvocationID.x; }

// ---- Numbers ----

bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
const uint NAN_BITS = 0x7fc00000u, INF_BITS = 0x7f800000u;
float infinity() { return uintBitsToFloat(INF_BITS); }
float nan() { return uintBitsToFloat(NAN_BITS); }

float f16_to_f32(uint h) {
    uint sign = (h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3ffu;
    if (e == 31) return uintBitsToFloat(sign | 0x7f800000u | m << 13);
    if (e != 0) return uintBitsToFloat(sign | (e + 112) << 23 | m << 13);
    float f = float(m) * 5.9604644775390625e-8;
    return sign != 0 ? -f : f;
}

// To the nearest, even where two are as near.
uint f32_to_f16(float f) {
    uint u = floatBitsToUint(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return sign | 0x7e00u;
    if (a >= 0x477ff000u) return sign | 0x7c00u;
    if (a < 0x38800000u) {
        precise float s = uintBitsToFloat(a) + 0.5;
        return sign | (floatBitsToUint(s) - 0x3f000000u);
    }
    return sign | (a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13;
}

float bf16_to_f32(uint h) { return uintBitsToFloat(h << 16); }
uint f32_to_bf16(float f) {
    uint u = floatBitsToUint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return u >> 16 | 0x40u;
    return u + 0x7fffu + (u >> 16 & 1u) >> 16;
}

// ---- Memory ----

// Indices are those of elements, below 2^30; as uint they may be negative: operands that run backwards.

#define words_at(at) Words(uvec2((at).x & ~3u, (at).y))
uint load_u8(uvec2 at, uint i) {
    int b = int(i) + int(at.x & 3u);
    return words_at(at).w[b >> 2] >> 8 * (b & 3) & 255u;
}
uint load_u16(uvec2 at, uint i) {
    int b = 2 * int(i) + int(at.x & 3u);
    return words_at(at).w[b >> 2] >> 8 * (b & 2) & 0xffffu;
}
// Neighbours in the same word stay as they are, whoever writes them at the same time.
void store_u8(uvec2 at, uint i, uint v) {
    int b = int(i) + int(at.x & 3u), shift = 8 * (b & 3);
    atomicAnd(words_at(at).w[b >> 2], ~(255u << shift));
    atomicOr(words_at(at).w[b >> 2], (v & 255u) << shift);
}
void store_u16(uvec2 at, uint i, uint v) {
    int b = 2 * int(i) + int(at.x & 3u), shift = 8 * (b & 2);
    atomicAnd(words_at(at).w[b >> 2], ~(0xffffu << shift));
    atomicOr(words_at(at).w[b >> 2], (v & 0xffffu) << shift);
}
float load_float(uint kind, uvec2 at, uint i) {
    if (kind == F16) return f16_to_f32(load_u16(at, i));
    if (kind == BF16) return bf16_to_f32(load_u16(at, i));
    return Floats(at).f[int(i)];
}
uint to_half(uint kind, float v) { return kind == F16 ? f32_to_f16(v) : f32_to_bf16(v); }
float rounded(uint kind, float v) {
    if (kind == F16) return f16_to_f32(f32_to_f16(v));
    if (kind == BF16) return bf16_to_f32(f32_to_bf16(v));
    return v;
}
void store_float(uint kind, uvec2 at, uint i, float v) {
    if (kind == F32)
        Floats(at).f[int(i)] = v;
    else
        store_u16(at, i, to_half(kind, v));
}
// An index of i32 or i64; one that is no index of anything becomes `limit`.
uint load_index(uint kind, uvec2 at, uint i, uint limit) {
    uint low = Words(at).w[kind == I64 ? 2 * i : i];
    if (kind == I64 && Words(at).w[2 * i + 1] != 0) return limit;
    return min(low, limit);
}

float max_nan(float a, float b) { return is_nan(a) ? a : is_nan(b) ? b : a > b ? a : b; }
float min_nan(float a, float b) { return is_nan(a) ? a : is_nan(b) ? b : a < b ? a : b; }

// ---- A workgroup's sums; every thread calls them and gets the result ----

#ifndef OWN_SIZE
shared float team[128];
float team_sum(float v) {
    uint t = gl_LocalInvocationID.x;
    barrier();
    team[t] = v;
    barrier();
    if (t < 16) {
        float s = 0;
        for (uint i = 0; i < 8; i++) s += team[t * 8 + i];
        team[t * 8] = s;
    }
    barrier();
    float s = 0;
    for (uint i = 0; i < 16; i++) s += team[i * 8];
    return s;
}
float team_max(float v) {
    uint t = gl_LocalInvocationID.x;
    barrier();
    team[t] = v;
    barrier();
    if (t < 16) {
        float s = team[t * 8];
        for (uint i = 1; i < 8; i++) s = max_nan(s, team[t * 8 + i]);
        team[t * 8] = s;
    }
    barrier();
    float s = team[0];
    for (uint i = 1; i < 16; i++) s = max_nan(s, team[i * 8]);
    return s;
}
#endif
