// Weights as they lie in files: four neighbouring elements of a row at a time, of any type. The order of
// a block's fields is that of tensor/quant.c.

// As km_dtype.
const uint Q4_0 = 9, Q4_1 = 10, Q5_0 = 11, Q5_1 = 12, Q8_0 = 13, Q2_K = 14, Q3_K = 15, Q4_K = 16,
           Q5_K = 17, Q6_K = 18, IQ4_NL = 19, IQ4_XS = 20, MXFP4 = 21;

// Byte b, two and four bytes from it; b and the address may be odd.
uint byte_at(uvec2 at, uint b) { return load_u8(at, b); }
uint word_at(uvec2 at, uint b) {
    b += at.x & 3u;
    uint shift = 8 * (b & 3u), low = words_at(at).w[b >> 2] >> shift;
    return shift == 0 ? low : low | words_at(at).w[(b >> 2) + 1] << 32 - shift;
}
float half_at(uvec2 at, uint b) {
    return f16_to_f32((b + at.x & 1u) == 0 ? load_u16(at, b >> 1)
                                           : byte_at(at, b) | byte_at(at, b + 1) << 8);
}

uvec4 bytes_of(uint w) { return uvec4(w & 255u, w >> 8 & 255u, w >> 16 & 255u, w >> 24); }
vec4 signed_bytes(uint w) {
    int s = int(w);
    return vec4(bitfieldExtract(s, 0, 8), bitfieldExtract(s, 8, 8), bitfieldExtract(s, 16, 8),
                bitfieldExtract(s, 24, 8));
}

const uint iq4_table[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
const uint mxfp4_table[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
vec4 looked_up(uint kind, uvec4 q) {
    vec4 v;
    for (int k = 0; k < 4; k++) {
        uint w = kind == MXFP4 ? mxfp4_table[q[k] >> 2] : iq4_table[q[k] >> 2];
        v[k] = float(bitfieldExtract(int(w), int(8 * (q[k] & 3u)), 8));
    }
    return v;
}

// Scale and minimum j of q4_k and q5_k.
vec2 k4_scale(uvec2 at, uint b, uint j) {
    if (j < 4) return vec2(byte_at(at, b + j) & 63u, byte_at(at, b + j + 4) & 63u);
    uint high = byte_at(at, b + j + 4);
    return vec2(high & 15u | byte_at(at, b + j - 4) >> 6 << 4, high >> 4 | byte_at(at, b + j) >> 6 << 4);
}

vec4 quad_32(uint kind, uvec2 at, uint i) {
    uint j = i % 32, n = i / 32, shift = j < 16 ? 0 : 4;
    if (kind == Q8_0) {
        uint b = n * 34;
        return signed_bytes(word_at(at, b + 2 + j)) * half_at(at, b);
    }
    if (kind == MXFP4) {
        uint b = n * 17, e = byte_at(at, b);
        float d = uintBitsToFloat(e < 2 ? 0x00200000u << e : e - 1 << 23);
        return looked_up(kind, bytes_of(word_at(at, b + 1 + j % 16)) >> shift & 15u) * d;
    }
    uint bytes = kind == Q4_1 ? 20 : kind == Q5_0 ? 22 : kind == Q5_1 ? 24 : 18, b = n * bytes;
    uvec4 q = bytes_of(word_at(at, b + bytes - 16 + j % 16)) >> shift & 15u;
    float d = half_at(at, b);
    if (kind == IQ4_NL) return d * looked_up(kind, q);
    if (kind == Q5_0 || kind == Q5_1) {
        uint fifth = word_at(at, b + bytes - 20) >> j;
        q |= (uvec4(fifth, fifth >> 1, fifth >> 2, fifth >> 3) & 1u) << 4;
    }
    if (kind == Q4_1 || kind == Q5_1) return vec4(q) * d + half_at(at, b + 2);
    return (vec4(q) - (kind == Q5_0 ? 16.0 : 8.0)) * d;
}

vec4 quad_256(uint kind, uvec2 at, uint i) {
    uint n = i / 256;
    i %= 256;
    uint j = i / 32;
    if (kind == Q4_K || kind == Q5_K) {
        uint b = n * (kind == Q4_K ? 144 : 176);
        vec2 s = k4_scale(at, b + 4, j) * vec2(half_at(at, b), half_at(at, b + 2));
        uint codes = b + (kind == Q4_K ? 16 : 48) + j / 2 * 32 + i % 32;
        uvec4 q = bytes_of(word_at(at, codes)) >> j % 2 * 4 & 15u;
        if (kind == Q5_K) q |= (bytes_of(word_at(at, b + 16 + i % 32)) >> j & 1u) << 4;
        return s.x * vec4(q) - s.y;
    }
    if (kind == Q6_K) {
        uint b = n * 210, side = i / 128, k = i % 128;
        uvec4 low = bytes_of(word_at(at, b + side * 64 + k % 64)) >> k / 64 * 4 & 15u;
        uvec4 high = bytes_of(word_at(at, b + 128 + side * 32 + k % 32)) >> k / 32 * 2 & 3u;
        float s = float(bitfieldExtract(int(byte_at(at, b + 192 + i / 16)), 0, 8));
        return half_at(at, b + 208) * s * (vec4(low | high << 4) - 32.0);
    }
    if (kind == Q2_K) {
        uint b = n * 84, s = byte_at(at, b + i / 16);
        uvec4 q = bytes_of(word_at(at, b + 16 + i / 128 * 32 + i % 32)) >> j % 4 * 2 & 3u;
        return half_at(at, b + 80) * float(s & 15u) * vec4(q) - half_at(at, b + 82) * float(s >> 4);
    }
    if (kind == Q3_K) {
        uint b = n * 110, k = i / 16;
        uvec4 q = bytes_of(word_at(at, b + 32 + i / 128 * 32 + i % 32)) >> j % 4 * 2 & 3u;
        uvec4 third = bytes_of(word_at(at, b + i % 32)) >> j & 1u;
        uint low = k < 8 ? byte_at(at, b + 96 + k) & 15u : byte_at(at, b + 96 + k - 8) >> 4;
        uint scale = low | (byte_at(at, b + 104 + k % 4) >> 2 * (k / 4) & 3u) << 4;
        return half_at(at, b + 108) * (float(scale) - 32) * (vec4(q) - 4.0 * (1.0 - vec4(third)));
    }
    // IQ4_XS
    uint b = n * 136, k = i % 32;
    uint low = byte_at(at, b + 4 + j / 2) >> 4 * (j % 2) & 15u;
    uint high = word_at(at, b + 2) >> 2 * j & 3u;
    uvec4 q = bytes_of(word_at(at, b + 8 + j * 16 + k % 16)) >> (k < 16 ? 0 : 4) & 15u;
    return half_at(at, b) * (float(low | high << 4) - 32) * looked_up(kind, q);
}

// Elements i to i + 3 of what begins at `at`; i is a multiple of four.
vec4 quad(uint kind, uvec2 at, uint i) {
    if (kind < Q4_0)
        return vec4(load_float(kind, at, i), load_float(kind, at, i + 1), load_float(kind, at, i + 2),
                    load_float(kind, at, i + 3));
    if (kind >= Q2_K && kind <= Q6_K || kind == IQ4_XS) return quad_256(kind, at, i);
    return quad_32(kind, at, i);
}

// at + row * bytes, of a row in a matrix.
uvec2 row_at(uvec2 at, uint row, uint bytes) {
    uint high, low;
    umulExtended(row, bytes, high, low);
    uint carry;
    low = uaddCarry(at.x, low, carry);
    return uvec2(low, at.y + high + carry);
}
