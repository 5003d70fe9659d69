#version 450
#extension GL_GOOGLE_include_directive : require
// Attention of all rows over the paged cache: a workgroup to a row and head, 128 tokens at a time, with
// the running maximum and sum of an online softmax.
#include "attend.glsl"

// Two neighbours from a word. The device's own conversion may take the smallest numbers for 0, which in
// a cache is no loss.
vec2 pair(uint w) {
    return CACHE == F16 ? unpackHalf2x16(w) : vec2(bf16_to_f32(w & 0xffffu), bf16_to_f32(w >> 16));
}

// Element i of a cache.
float cached(uvec2 at, uint i) {
    if (CACHE == F16 || CACHE == BF16) {
        vec2 both = pair(Words(at).w[i >> 1]);
        return (i & 1u) == 0 ? both.x : both.y;
    }
    if (CACHE == Q8_0) {
        uint b = i / 32 * 34;
        return half_at(at, b) * float(bitfieldExtract(int(byte_at(at, b + 2 + i % 32)), 0, 8));
    }
    if (CACHE == Q4_0) {
        uint b = i / 32 * 18, q = byte_at(at, b + 2 + i % 16) >> (i % 32 < 16 ? 0 : 4) & 15u;
        return half_at(at, b) * (float(q) - 8);
    }
    return load_float(CACHE, at, i);
}

// head[] . the key at element `where`
float score(uint where) {
    float s = 0;
    if (CACHE >= Q4_0)
        for (uint i = 0; i < d; i += 4)
            s += dot(vec4(head[i], head[i + 1], head[i + 2], head[i + 3]), quad(CACHE, cache_k, where + i));
    else if (CACHE != F32 && (d & 1u) == 0)
        for (uint i = 0; i < d; i += 2)
            s += dot(vec2(head[i], head[i + 1]), pair(Words(cache_k).w[(where + i) >> 1]));
    else
        for (uint i = 0; i < d; i++) s += head[i] * load_float(CACHE, cache_k, where + i);
    return s;
}

const uint PARTS = MOST / 128; // of a head, to a thread

shared float weight[128];
shared uint from[128];

void main() {
    uint row = gl_WorkGroupID.y, h = gl_WorkGroupID.x, t = gl_LocalInvocationID.x, sequence;
    int position;
    uint out_at = (row * heads + h) * d, key_head = h / (heads / kv_heads);
    float acc[PARTS], most = -infinity(), total = 0;
    for (uint part = 0; part < PARTS; part++) acc[part] = 0;
    if (place(row, sequence, position)) {
        float scale = setting(2), cap = setting(3);
        load_head(x, x_row, norm, row, h, position);
        uint begin = window > 0 && position >= int(window) ? uint(position) - window + 1 : 0;
        for (uint at = begin; at <= uint(position); at += 128) {
            uint n = min(128, uint(position) + 1 - at);
            float s = -infinity();
            if (t < n) {
                uint where = cache_at(sequence, at + t, key_head);
                from[t] = where;
                s = score(where) * scale;
                if (cap > 0) s = cap * k_tanh(s / cap);
            }
            float highest = max_nan(most, team_max(s));
            float p = t < n ? k_exp(s - highest) : 0, shrink = total == 0 ? 0 : k_exp(most - highest);
            weight[t] = p;
            total = total * shrink + team_sum(p); // behind a barrier
            most = highest;
            for (uint part = 0; part < PARTS; part++) {
                uint i = part * 128 + t;
                if (i >= d) break;
                float sum = 0;
                for (uint k = 0; k < n; k++)
                    sum += weight[k] * cached(cache_v, from[k] + i);
                acc[part] = acc[part] * shrink + sum;
            }
            barrier();
        }
    }
    for (uint part = 0; part < PARTS; part++) {
        uint i = part * 128 + t;
        if (i < d)
            store_float(KIND, o, out_at + i, total > 0 || is_nan(total) ? acc[part] / total : 0);
    }
}
