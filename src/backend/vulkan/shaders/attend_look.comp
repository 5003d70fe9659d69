#version 450
#extension GL_GOOGLE_include_directive : require
// Attention of all rows over the paged cache: a workgroup to a row and head, 128 tokens at a time, with
// the running maximum and sum of an online softmax.
#include "attend.glsl"

shared float weight[128];
shared uint from[128];

void main() {
    uint row = gl_WorkGroupID.y, h = gl_WorkGroupID.x, t = gl_LocalInvocationID.x, sequence;
    int position;
    uint out_at = (row * heads + h) * d, key_head = h / (heads / kv_heads);
    float acc[2] = {0, 0}, most = -infinity(), total = 0;
    if (place(row, sequence, position)) {
        float scale = setting(2), cap = setting(3);
        load_head(row, h, position);
        uint begin = window > 0 && position >= int(window) ? uint(position) - window + 1 : 0;
        for (uint at = begin; at <= uint(position); at += 128) {
            uint n = min(128, uint(position) + 1 - at);
            float s = -infinity();
            if (t < n) {
                uint where = cache_at(sequence, at + t, key_head);
                from[t] = where;
                s = 0;
                for (uint i = 0; i < d; i++) s += head[i] * load_float(CACHE, cache_k, where + i);
                s *= scale;
                if (cap > 0) s = cap * k_tanh(s / cap);
            }
            float highest = max_nan(most, team_max(s));
            float p = t < n ? k_exp(s - highest) : 0, shrink = total == 0 ? 0 : k_exp(most - highest);
            weight[t] = p;
            total = total * shrink + team_sum(p); // behind a barrier
            most = highest;
            for (uint part = 0; part < 2; part++) {
                uint i = part * 128 + t;
                if (i >= d) break;
                float sum = 0;
                for (uint k = 0; k < n; k++)
                    sum += weight[k] * load_float(CACHE, cache_v, from[k] + i);
                acc[part] = acc[part] * shrink + sum;
            }
            barrier();
        }
    }
    for (uint part = 0; part < 2; part++) {
        uint i = part * 128 + t;
        if (i < d)
            store_float(KIND, o, out_at + i, total > 0 || is_nan(total) ? acc[part] / total : 0);
    }
}
