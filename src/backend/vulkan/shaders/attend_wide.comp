#version 450
#extension GL_GOOGLE_include_directive : require
// Attention of all rows over the paged cache, for heads of a multiple of eight elements: a workgroup to a
// row and head, as many tokens at a time as it has threads, with the running maximum and sum of an online
// softmax. A thread takes a whole key, then eight elements of every so many values, by words of 16 bytes. A
// row by itself (PUT) puts its key and value into the cache on the way.
#define OWN_SIZE
layout(constant_id = 2) const uint THREADS_HERE = 128;
#define THREADS THREADS_HERE
layout(local_size_x_id = 2) in;
#include "common.glsl"
#include "team.glsl"
#include "attend.glsl"

layout(constant_id = 3) const bool PUT = false;
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 q[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly restrict buffer ReadQuads { uvec4 q[]; };

shared float weight[THREADS];
shared uint from[THREADS];
shared vec4 parts[THREADS][2];
shared float key[MOST], value[MOST]; // of the row itself

// Two neighbours from a word. The device's own conversion may take the smallest numbers for 0, which in a
// cache is no loss.
vec2 pair(uint w) {
    return CACHE == F16 ? unpackHalf2x16(w) : vec2(bf16_to_f32(w & 0xffffu), bf16_to_f32(w >> 16));
}
// Elements i to i + 7 of a cache; i is a multiple of eight.
void eight(uvec2 at, uint i, out vec4 a, out vec4 b) {
    if (CACHE == F16 || CACHE == BF16) {
        uvec4 w = Quads(at).q[i >> 3];
        a = vec4(pair(w.x), pair(w.y));
        b = vec4(pair(w.z), pair(w.w));
    } else {
        a = quad(CACHE, at, i);
        b = quad(CACHE, at, i + 4);
    }
}
vec4 of_head(uint i) { return vec4(head[i], head[i + 1], head[i + 2], head[i + 3]); }

float score(uint where) {
    float s = 0, r = 0;
    if (CACHE == F16 || CACHE == BF16) { // eight words of 16 bytes are on their way at a time
        uint at = where >> 3, last = d / 8 - 1;
        for (uint i = 0; i <= last; i += 8) {
            uvec4 w[8];
            [[unroll]] for (uint j = 0; j < 8; j++) w[j] = ReadQuads(cache_k).q[at + min(i + j, last)];
            [[unroll]] for (uint j = 0; j < 8; j++) {
                if (i + j > last) break;
                s += dot(of_head(8 * (i + j)), vec4(pair(w[j].x), pair(w[j].y)));
                r += dot(of_head(8 * (i + j) + 4), vec4(pair(w[j].z), pair(w[j].w)));
            }
        }
        return s + r;
    }
    for (uint i = 0; i < d; i += 8) {
        vec4 a, b;
        eight(cache_k, where + i, a, b);
        s += dot(of_head(i), a);
        r += dot(of_head(i + 4), b);
    }
    return s + r;
}

void main() {
    uint row = gl_WorkGroupID.y, h = gl_WorkGroupID.x, t = gl_LocalInvocationID.x, sequence;
    int position;
    uint out_at = (row * heads + h) * d, group = heads / kv_heads, key_head = h / group;
    uint own = d / 8, side_by_side = THREADS / own, part = t / own, column = t % own * 8;
    vec4 acc = vec4(0), more_acc = vec4(0);
    float most = -infinity(), total = 0;
    if (place(row, sequence, position)) {
        float scale = setting(2), cap = setting(3);
        uint begin = window > 0 && position >= int(window) ? uint(position) - window + 1 : 0;
        uint end = PUT ? uint(position) : uint(position) + 1; // of what is read from the cache
        if (PUT) {
            load_head(k, k_row, k_norm, row, key_head, position);
            uint to = cache_at(sequence, uint(position), key_head);
            for (uint i = t; i < d; i += THREADS) {
                key[i] = rounded(CACHE, head[i]);
                value[i] = rounded(CACHE, load_float(KIND, v, row * v_row + key_head * d + i));
                if (h % group == 0) {
                    store_float(CACHE, cache_k, to + i, key[i]);
                    store_float(CACHE, cache_v, to + i, value[i]);
                }
            }
            barrier();
        }
        load_head(x, x_row, norm, row, h, position);
        if (PUT) { // the row itself comes first
            float s = 0;
            for (uint i = t; i < d; i += THREADS) s += head[i] * key[i];
            s = team_sum(s) * scale;
            most = cap > 0 ? cap * k_tanh(s / cap) : s;
            total = is_nan(most) ? most : 1;
            if (part == 0) {
                acc = vec4(value[column], value[column + 1], value[column + 2], value[column + 3]);
                more_acc = vec4(value[column + 4], value[column + 5], value[column + 6], value[column + 7]);
            }
        }
        for (uint at = begin; at < end; at += THREADS) {
            uint n = min(THREADS, end - at);
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
            acc *= shrink;
            more_acc *= shrink;
            if (part < side_by_side && (CACHE == F16 || CACHE == BF16)) { // four at a time
                for (uint i = part; i < n; i += 4 * side_by_side) {
                    uvec4 w[4];
                    [[unroll]] for (uint j = 0; j < 4; j++)
                        w[j] = ReadQuads(cache_v).q[from[min(i + j * side_by_side, n - 1)] + column >> 3];
                    [[unroll]] for (uint j = 0; j < 4; j++) {
                        if (i + j * side_by_side >= n) break;
                        float by = weight[i + j * side_by_side];
                        acc += by * vec4(pair(w[j].x), pair(w[j].y));
                        more_acc += by * vec4(pair(w[j].z), pair(w[j].w));
                    }
                }
            } else if (part < side_by_side)
                for (uint i = part; i < n; i += side_by_side) {
                    vec4 a, b;
                    eight(cache_v, from[i] + column, a, b);
                    acc += weight[i] * a;
                    more_acc += weight[i] * b;
                }
            barrier();
        }
    }
    parts[t][0] = acc;
    parts[t][1] = more_acc;
    barrier();
    for (uint i = t; i < d; i += THREADS) {
        float sum = 0;
        for (uint j = 0; j < side_by_side; j++) sum += parts[j * own + i / 8][i >> 2 & 1u][i & 3u];
        store_float(KIND, o, out_at + i, total > 0 || is_nan(total) ? sum / total : 0);
    }
}
