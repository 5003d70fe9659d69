#version 450
#extension GL_GOOGLE_include_directive : require
// Coded rows made floats (ops/scan_codes.h): y = centre + scale amp level, a thread to an element; and of
// each row what is added to its squared distance, or infinity where its cell does not exist.
#include "common.glsl"

layout(constant_id = 0) const bool TRELLIS = false;

layout(push_constant) uniform Push {
    uvec2 codes, scales, cells, places, amps, tables, centres, rates, windows, y, lost;
    uint first, n, d, stride, n_cells; // rows first to first + n of all
    float loss;                        // times the scale's square; 0 for products
};

uint field(uint row, uint at, uint bits) {
    uint byte = row * stride + at / 8, v = load_u8(codes, byte);
    for (uint k = 1; k * 8 < at % 8 + bits; k++) v |= load_u8(codes, byte + k) << 8 * k;
    return bitfieldExtract(v, int(at % 8), int(bits));
}

void main() {
    uint i = thread_index(), r = i / d, j = i - r * d, row = first + r;
    if (r >= n) return;
    uint cell = Words(cells).w[row];
    bool there = cell < n_cells;
    float scale = Floats(tables).f[9 * 256 + load_u8(scales, row)], v = 0;
    if (there) {
        uint at = Words(places).w[j];
        float level;
        if (TRELLIS) {
            level = Floats(windows).f[Words(rates).w[j] * 4096 + field(row, at, 12)];
        } else {
            uint bits = Words(places).w[j + 1] - at;
            level = Floats(tables).f[bits * 256 + (bits == 0 ? 0 : field(row, at, bits))];
        }
        v = Floats(centres).f[cell * d + j] + scale * Floats(amps).f[j] * level;
    }
    Floats(y).f[i] = v;
    if (j == 0) Floats(lost).f[r] = there ? loss * scale * scale : infinity();
}
