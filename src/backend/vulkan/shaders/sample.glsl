// What the three steps of choosing tokens share: their arguments, the settings of a row, and bits that
// order as logits do. The layout of settings and state is that of backend/sample.h.
#include "common.glsl"

layout(push_constant) uniform Push {
    uvec2 logits, edited; // (rows, v); edited: with penalties, or none
    uvec2 settings, before, peaks, ids, after;
    uint v, blocks; // blocks of BLOCK logits, each with its largest in peaks (rows, blocks)
};

const uint BLOCK = 64, SETTINGS = 12, RING = 256, STATE = 5 + RING;
const uint TEMPERATURE = 0, TOP_K = 1, TOP_P = 2, MIN_P = 3, REPEAT = 4, FREQUENCY = 5, PRESENCE = 6,
           LAST = 7, TOKENS = 8;
const uint SEED = 0, DRAWS = 2, SEEN = 4, TOKEN_AT = 5;

float setting(uint row, uint i) { return Floats(settings).f[row * SETTINGS + i]; }
uint state(uint row, uint i) { return Words(before).w[row * STATE + i]; }

// A setting that counts something; what is no such number is 0.
uint count_of(uint row, uint i) {
    float f = setting(row, i);
    return f >= 1 && f < 2147483520.0 ? uint(f) : 0;
}
uint tokens_of(uint row) {
    uint n = count_of(row, TOKENS);
    return n < 1 || n > v ? v : n;
}
float logit(uint row, uint i) {
    return Floats(edited != uvec2(0) ? edited : logits).f[row * v + i];
}

// NaN comes last, as 0.
uint key_of(float x) {
    uint b = floatBitsToUint(x);
    if (is_nan(x)) return 0;
    return (b & 0x80000000u) != 0 ? ~b : b | 0x80000000u;
}
float of_key(uint k) { return uintBitsToFloat((k & 0x80000000u) != 0 ? k & 0x7fffffffu : ~k); }
