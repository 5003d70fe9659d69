// What both ways of encoding share: the scale of a row and its step (ops/encode_codes.h).
#include "common.glsl"
#include "math.glsl"

// The step of low exp(step (b - 1)) that is nearest to s; 0: s is below half of the lowest.
uint scale_code(float s, float low, float step) {
    if (is_nan(s) || 2 * s < low) return 0;
    float i = floor(k_log(s / low) / max(step, 1e-9) + 0.5);
    return i < 0 ? 1 : i >= 255 ? 255 : uint(i) + 1;
}

// Clears a row's code. All threads call it; behind it all of them see that.
void clear_code(uvec2 codes, uint start, uint bytes) {
    for (uint b = gl_LocalInvocationID.x; b < bytes; b += 128) store_u8(codes, start + b, 0);
    memoryBarrierBuffer();
    barrier();
}
