// What both halves of attention over the paged cache share: where a row stands, and a head of it,
// normalised and rotated.
#ifndef OWN_SIZE
#include "common.glsl"
#endif
#include "math.glsl"
#include "quant.glsl"
#include "turns.glsl"

#ifndef THREADS
#define THREADS 128
#endif
layout(constant_id = 0) const uint KIND = 0;  // of q, k, v and the result
layout(constant_id = 1) const uint CACHE = 0; // of the cache: f32, f16, bf16, q8_0 or q4_0

layout(push_constant) uniform Push {
    uvec2 x, v, cache_k, cache_v, rows_at, table, norm, o, more;
    uint x_row, v_row; // strides; v: of the values where they are put, else unused
    uint pages, sequences, max_pages;
    uint heads, kv_heads, d;
    uint window;
    uint k_row; // where one launch does both: the new key, its stride and norm
    uvec2 k, k_norm;
};
// more: dims, adjacent, scale, softcap, eps, magnitude, divisors (2), then of each pair its turns in a
// step of position, in two parts.

const uint PAGE = 64, MOST = 512;
shared float head[MOST];
shared uint bad;

float setting(uint i) { return Floats(more).f[i]; }

// Whether the row counts; all threads call it.
bool place(uint row, out uint sequence, out int position) {
    uint t = gl_LocalInvocationID.x;
    int s = int(Words(rows_at).w[2 * row]);
    position = int(Words(rows_at).w[2 * row + 1]);
    sequence = uint(s);
    bool ok = s >= 0 && s < int(sequences) && position >= 0 && position < int(max_pages * PAGE);
    if (t == 0) bad = 0;
    barrier();
    if (ok) {
        uint begin = window > 0 && position >= int(window) ? uint(position) - window + 1 : 0;
        for (uint p = begin / PAGE + t; p <= uint(position) / PAGE; p += THREADS)
            if (Words(table).w[sequence * max_pages + p] >= pages) bad = 1;
    }
    barrier();
    return ok && bad == 0;
}

// Where token `at` of a sequence begins in a cache, in elements.
uint cache_at(uint sequence, uint at, uint h) {
    uint page = Words(table).w[sequence * max_pages + at / PAGE];
    return ((page * kv_heads + h) * PAGE + at % PAGE) * d;
}

// head[] = head h of a row of `from`, normalised and rotated to its position. All threads call it.
void load_head(uvec2 from, uint stride, uvec2 norm_at, uint row, uint h, int position) {
    uint t = gl_LocalInvocationID.x, dims = Words(more).w[0];
    bool adjacent = Words(more).w[1] != 0;
    uvec2 divisors = uvec2(Words(more).w[6], Words(more).w[7]);
    float sum = 0;
    for (uint i = t; i < d; i += THREADS) {
        float e = load_float(KIND, from, row * stride + h * d + i);
        head[i] = e;
        sum += e * e;
    }
    if (norm_at != uvec2(0)) {
        float by = 1 / sqrt(team_sum(sum) / float(d) + setting(4));
        for (uint i = t; i < d; i += THREADS) head[i] *= Floats(norm_at).f[i] * by;
    }
    barrier();
    for (uint p = t; p < dims / 2; p += THREADS) {
        uint i = adjacent ? 2 * p : p, k = adjacent ? 2 * p + 1 : p + dims / 2;
        float high = setting(8 + 2 * p), low = setting(9 + 2 * p);
        float by = divisors != uvec2(0) ? Floats(divisors).f[p] : 1;
        vec2 cs = rotation(float(position), high, low, by);
        float a = setting(5) * head[i], b = setting(5) * head[k];
        head[i] = a * cs.x - b * cs.y;
        head[k] = a * cs.y + b * cs.x;
    }
    barrier();
}
