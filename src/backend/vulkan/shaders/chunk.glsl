// Weights in blocks as 8-bit integers: chunk c of a row is 32 weights in two runs of 16, so that
// products are four to an instruction. A weight is s q + m, s and m of its run. The order of a block's
// fields is that of tensor/quant.c.

layout(buffer_reference, std430, buffer_reference_align = 16) readonly restrict buffer Quads { uvec4 q[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly restrict buffer ReadWords { uint w[]; };

struct Chunk {
    uvec4 a, b;     // codes of the first and second run
    uint run, next; // which runs of x they meet
    vec2 s, m;
};

// Rows begin at any byte; those of q4_k and q5_k at multiples of 16.
uint skew;
uvec2 aligned(uvec2 at) {
    skew = at.x & 3u;
    return uvec2(at.x & ~3u, at.y);
}
// 16 bytes from byte b on; `at` is a multiple of four, b may be odd.
uvec4 load_16(uvec2 at, uint b) {
    uint w = b >> 2, shift = 8 * (b & 3u);
    ReadWords p = ReadWords(at);
    uvec4 v = uvec4(p.w[w], p.w[w + 1], p.w[w + 2], p.w[w + 3]);
    uint last = p.w[shift == 0 ? w + 3 : w + 4]; // no branch: loads of several chunks are on their way together
    return v >> shift | uvec4(v.yzw, last) << 31 - shift << 1;
}
uint load_4(uvec2 at, uint b) {
    uint w = b >> 2, shift = 8 * (b & 3u);
    uint v = ReadWords(at).w[w], next = ReadWords(at).w[shift == 0 ? w : w + 1];
    return v >> shift | next << 31 - shift << 1;
}
uint load_1(uvec2 at, uint b) { return ReadWords(at).w[b >> 2] >> 8 * (b & 3u) & 255u; }
// Two bytes; those of a block lie at an even distance from where the row begins.
uint load_2(uvec2 at, uint b) {
    uint w = b >> 2, shift = 8 * (b & 3u);
    if (WEIGHT != MXFP4 && UP != MXFP4) return ReadWords(at).w[w] >> (shift & 16u) & 0xffffu;
    return load_4(at, b) & 0xffffu;
}
float load_half(uvec2 at, uint b) { return unpackHalf2x16(load_2(at, b)).x; }

// Values of a byte's two codes: the lower one's in bits 0 to 7, the higher one's in bits 16 to 23.
bool looks_up(uint kind) { return kind == IQ4_NL || kind == IQ4_XS || kind == MXFP4; }
shared uint values[2][256];
void fill_values(uint t, uint threads) {
    if (!looks_up(WEIGHT) && !(GATED && looks_up(UP))) return;
    for (uint i = t; i < 512; i += threads) {
        uint low = i & 15u, high = i >> 4 & 15u;
        bool fp4 = i >= 256;
        uint a = fp4 ? mxfp4_table[low >> 2] : iq4_table[low >> 2];
        uint b = fp4 ? mxfp4_table[high >> 2] : iq4_table[high >> 2];
        values[i / 256][i % 256] = a >> 8 * (low & 3u) & 255u | (b >> 8 * (high & 3u) & 255u) << 16;
    }
}
void look_up(uint table, uvec4 codes, inout Chunk c) {
    [[unroll]] for (int i = 0; i < 4; i++) {
        uint w = codes[i];
        uint p = values[table][w & 255u], q = values[table][w >> 8 & 255u];
        uint r = values[table][w >> 16 & 255u], s = values[table][w >> 24];
        c.a[i] = p & 255u | (q & 255u) << 8 | (r & 255u) << 16 | s << 24;
        c.b[i] = p >> 16 | q >> 16 << 8 | r >> 16 << 16 | s >> 16 << 24;
    }
}

const uvec4 LOW = uvec4(0x0f0f0f0fu);
void nibbles(uvec4 codes, inout Chunk c) {
    c.a = codes & LOW;
    c.b = codes >> 4 & LOW;
}
// Four bits as a fifth one of four codes.
uvec4 fifth(uint bits) {
    return (uvec4(bits, bits >> 4, bits >> 8, bits >> 12) & 15u) * 0x00204081u & 0x01010101u;
}

Chunk chunk_32(uint kind, uvec2 at, uint i) {
    Chunk c;
    c.run = 2 * i;
    c.next = 2 * i + 1;
    c.m = vec2(0);
    if (kind == Q8_0) {
        uint b = skew + i * 34;
        c.a = load_16(at, b + 2);
        c.b = load_16(at, b + 18);
        c.s = vec2(load_half(at, b));
        return c;
    }
    if (kind == MXFP4) {
        uint b = skew + i * 17, e = load_1(at, b);
        look_up(1, load_16(at, b + 1), c);
        c.s = vec2(uintBitsToFloat(e < 2 ? 0x00200000u << e : e - 1 << 23));
        return c;
    }
    uint bytes = kind == Q4_1 ? 20 : kind == Q5_0 ? 22 : kind == Q5_1 ? 24 : 18, b = skew + i * bytes;
    uvec4 codes = load_16(at, b + bytes - 16);
    c.s = vec2(load_half(at, b));
    if (kind == IQ4_NL) {
        look_up(0, codes, c);
        return c;
    }
    nibbles(codes, c);
    if (kind == Q5_0 || kind == Q5_1) {
        uint bits = load_4(at, b + bytes - 20);
        c.a |= fifth(bits) << 4;
        c.b |= fifth(bits >> 16) << 4;
    }
    if (kind == Q4_1 || kind == Q5_1)
        c.m = vec2(load_half(at, b + 2));
    else
        c.m = c.s * (kind == Q5_0 ? -16 : -8);
    return c;
}

// Scale of 16 weights of q3_k.
float q3_scale(uvec2 at, uint b, uint k) {
    uint low = load_1(at, b + 96 + (k & 7u)) >> (k < 8 ? 0 : 4) & 15u;
    return float(low | (load_1(at, b + 104 + (k & 3u)) >> 2 * (k >> 2) & 3u) << 4) - 32;
}

Chunk chunk_256(uint kind, uvec2 at, uint i) {
    uint n = i / 8, j = i % 8, h = j & 1u;
    Chunk c;
    if (kind == Q4_K || kind == Q5_K) { // rows of these begin at multiples of 16
        uint at_16 = n * (kind == Q4_K ? 9 : 11), pair = j / 2;
        uvec4 head = Quads(at).q[at_16];
        nibbles(Quads(at).q[at_16 + (kind == Q4_K ? 1 : 3) + j], c);
        if (kind == Q5_K) {
            uvec4 bits = Quads(at).q[at_16 + 1 + h] >> 2 * pair;
            c.a |= (bits & 0x01010101u) << 4;
            c.b |= (bits >> 1 & 0x01010101u) << 4;
        }
        uvec3 t = head.yzw >> (pair & 1u) * 16; // two scales, two minima
        uint scales = pair < 2 ? t.x & 0x3f3fu : t.z & 0x0f0fu | t.x >> 2 & 0x3030u;
        uint minima = pair < 2 ? t.y & 0x3f3fu : t.z >> 4 & 0x0f0fu | t.y >> 2 & 0x3030u;
        vec2 d = unpackHalf2x16(head.x);
        c.s = d.x * vec2(scales & 63u, scales >> 8);
        c.m = -d.y * vec2(minima & 63u, minima >> 8);
        c.run = n * 16 + pair * 4 + h;
        c.next = c.run + 2;
        return c;
    }
    if (kind == IQ4_XS) {
        uint b = skew + n * 136, high = load_2(at, b + 2) >> 2 * j & 3u;
        look_up(0, load_16(at, b + 8 + j * 16), c);
        c.s = vec2(load_half(at, b) * (float(load_4(at, b + 4) >> 4 * j & 15u | high << 4) - 32));
        c.m = vec2(0);
        c.run = n * 16 + 2 * j;
        c.next = c.run + 1;
        return c;
    }
    uint side = j / 4, g = j >> 1 & 1u;
    if (kind == Q6_K) {
        uint b = skew + n * 210, k = side * 8 + g * 2 + h;
        uvec4 high = load_16(at, b + 128 + side * 32 + h * 16) >> 2 * g;
        nibbles(load_16(at, b + side * 64 + g * 32 + h * 16), c);
        c.a |= (high & 0x03030303u) << 4;
        c.b |= (high >> 4 & 0x03030303u) << 4;
        uint first = load_1(at, b + 192 + k), second = load_1(at, b + 196 + k);
        c.s = load_half(at, b + 208) *
              vec2(bitfieldExtract(int(first), 0, 8), bitfieldExtract(int(second), 0, 8));
        c.m = -32 * c.s;
        c.run = n * 16 + k;
        c.next = c.run + 4;
        return c;
    }
    uint k = side * 8 + g * 4 + h; // of the first run; two bits to a weight
    c.run = n * 16 + k;
    c.next = c.run + 2;
    if (kind == Q2_K) {
        uint b = skew + n * 84;
        uvec4 codes = load_16(at, b + 16 + side * 32 + h * 16) >> 4 * g;
        c.a = codes & 0x03030303u;
        c.b = codes >> 2 & 0x03030303u;
        uint first = load_1(at, b + k), second = load_1(at, b + k + 2);
        vec2 d = unpackHalf2x16(load_4(at, b + 80));
        c.s = d.x * vec2(first & 15u, second & 15u);
        c.m = -d.y * vec2(first >> 4, second >> 4);
        return c;
    }
    uint b = skew + n * 110; // q3_k
    uvec4 codes = load_16(at, b + 32 + side * 32 + h * 16) >> 4 * g;
    uvec4 third = load_16(at, b + h * 16) >> side * 4 + 2 * g;
    c.a = codes & 0x03030303u | (third & 0x01010101u) << 2;
    c.b = codes >> 2 & 0x03030303u | (third >> 1 & 0x01010101u) << 2;
    c.s = load_half(at, b + 108) * vec2(q3_scale(at, b, k), q3_scale(at, b, k + 2));
    c.m = -4 * c.s;
    return c;
}

Chunk chunk(uint kind, uvec2 at, uint i) {
    if (kind != Q4_K && kind != Q5_K) at = aligned(at);
    if (kind >= Q2_K && kind <= Q6_K || kind == IQ4_XS) return chunk_256(kind, at, i);
    return chunk_32(kind, at, i);
}
