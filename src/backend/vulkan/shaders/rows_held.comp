#version 450
#extension GL_GOOGLE_include_directive : require
// Softmax and norms over contiguous rows that a workgroup's registers hold: read once, HELD words of four
// elements to a thread.
#define OWN_SIZE
#include "common.glsl"
layout(constant_id = 0) const uint OP = 0; // softmax, log softmax, layer norm, RMS norm
layout(constant_id = 1) const uint KIND = 0;
layout(constant_id = 2) const bool ADD = false;
layout(constant_id = 3) const bool BIAS = false;
layout(constant_id = 4) const uint THREADS = 128;
layout(constant_id = 5) const uint HELD = 1;
layout(local_size_x_id = 4) in;
#include "math.glsl"
#include "team.glsl"

layout(push_constant) uniform Push { // as norm.comp
    uvec2 x, residual, w, b, y, sum, mean, rstd;
    uint rows, n;
    float eps;
};

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Fours { vec4 f[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pairs { uvec2 p[]; };

vec2 two(uint w) {
    return KIND == F16 ? vec2(f16_to_f32(w & 0xffffu), f16_to_f32(w >> 16))
                       : vec2(bf16_to_f32(w & 0xffffu), bf16_to_f32(w >> 16));
}
vec4 load_four(uvec2 at, uint i) {
    if (KIND == F32) return Fours(at).f[i];
    uvec2 p = Pairs(at).p[i];
    return vec4(two(p.x), two(p.y));
}
void store_four(uvec2 at, uint i, vec4 v) {
    if (KIND == F32)
        Fours(at).f[i] = v;
    else
        Pairs(at).p[i] = uvec2(to_half(KIND, v.x) | to_half(KIND, v.y) << 16,
                               to_half(KIND, v.z) | to_half(KIND, v.w) << 16);
}
float all_of(vec4 v) { return (v.x + v.y) + (v.z + v.w); }

void main() {
    uint row = group_index(), t = gl_LocalInvocationID.x, fours = n / 4, start = row * fours;
    if (row >= rows) return;
    vec4 v[HELD];
    [[unroll]] for (uint h = 0; h < HELD; h++) {
        uint i = t + h * THREADS;
        v[h] = vec4(OP < 2 ? -infinity() : 0);
        if (i >= fours) continue;
        v[h] = load_four(x, start + i);
        if (ADD) {
            v[h] += load_four(residual, start + i);
            store_four(sum, start + i, v[h]);
            for (uint e = 0; e < 4; e++) v[h][e] = rounded(KIND, v[h][e]);
        }
    }
    if (OP < 2) {
        float most = -infinity(), total = 0;
        [[unroll]] for (uint h = 0; h < HELD; h++)
            most = max_nan(most, max_nan(max_nan(v[h].x, v[h].y), max_nan(v[h].z, v[h].w)));
        most = team_max(most);
        [[unroll]] for (uint h = 0; h < HELD; h++) {
            if (t + h * THREADS >= fours) continue;
            v[h] -= most;
            vec4 e = vec4(k_exp(v[h].x), k_exp(v[h].y), k_exp(v[h].z), k_exp(v[h].w));
            total += all_of(e);
            if (OP == 0) v[h] = e;
        }
        total = team_sum(total);
        float log_total = k_log(total);
        [[unroll]] for (uint h = 0; h < HELD; h++)
            if (t + h * THREADS < fours)
                store_four(y, start + t + h * THREADS, OP == 0 ? v[h] / total : v[h] - log_total);
        return;
    }
    float m = 0, s = 0;
    if (OP == 2) {
        [[unroll]] for (uint h = 0; h < HELD; h++) m += all_of(v[h]);
        m = team_sum(m) / float(n);
    }
    [[unroll]] for (uint h = 0; h < HELD; h++)
        if (t + h * THREADS < fours) {
            vec4 e = v[h] - m;
            s += all_of(e * e);
        }
    float r = 1 / sqrt(team_sum(s) / float(n) + eps);
    [[unroll]] for (uint h = 0; h < HELD; h++) {
        uint i = t + h * THREADS;
        if (i >= fours) continue;
        vec4 e = (v[h] - m) * r * load_four(w, i);
        store_four(y, start + i, BIAS ? e + load_four(b, i) : e);
    }
    if (t == 0) {
        if (OP == 2 && mean != uvec2(0)) Floats(mean).f[row] = m;
        if (rstd != uvec2(0)) Floats(rstd).f[row] = r;
    }
}
