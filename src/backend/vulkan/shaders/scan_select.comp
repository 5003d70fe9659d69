#version 450
#extension GL_GOOGLE_include_directive : require
// The k smallest of a query's n distances, nearest first, the lower row of equals: a workgroup to a query.
// A radix select finds the kth in four passes, another one collects, and ranks sort what was collected.
// Infinity and NaN are not there.
#include "common.glsl"

layout(push_constant) uniform Push {
    uvec2 dists, ids, nearest; // (queries, n); (queries, k) each
    uint queries, n, k;
};

const uint MOST = 200; // KM_SCAN_MOST
shared uint counts[256], keys[MOST], rows[MOST], flags[128];
shared uint prefix, want, taken, all;

// Rises with the distance; 0xffffffff: it does not count.
uint key_of(uint start, uint i) {
    float d = Floats(dists).f[start + i];
    if (is_nan(d) || d == infinity()) return 0xffffffffu;
    uint u = d == 0 ? 0 : floatBitsToUint(d);
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

// The kth key, and how many of those that equal it are among the k; false: there are fewer than k.
bool find_border(uint start) {
    uint t = gl_LocalInvocationID.x;
    if (t == 0) prefix = 0, want = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        barrier();
        counts[t] = counts[t + 128] = 0;
        barrier();
        for (uint i = t; i < n; i += 128) {
            uint key = key_of(start, i);
            if (key != 0xffffffffu && (shift == 24 || key >> shift + 8 == prefix))
                atomicAdd(counts[key >> shift & 255u], 1);
        }
        barrier();
        if (t == 0) {
            uint before = 0, bin = 0;
            while (bin < 256 && before + counts[bin] < want) before += counts[bin++];
            all = before; // of use where all of them are fewer than k
            prefix = prefix << 8 | min(bin, 255);
            want -= min(before, want);
            taken = bin < 256 ? 1 : 0;
        }
        barrier();
        if (taken == 0) return false;
    }
    return true;
}

void main() {
    uint query = group_index(), t = gl_LocalInvocationID.x, start = query * n;
    if (query >= queries) return;
    bool full = find_border(start);
    uint border = full ? prefix : 0xffffffffu, equals = full ? want : 0;
    barrier();
    if (t == 0) taken = 0;
    barrier();
    for (uint i = t; i < n; i += 128) {
        uint key = key_of(start, i);
        if (key >= border) continue;
        uint at = atomicAdd(taken, 1);
        keys[at] = key;
        rows[at] = i;
    }
    barrier();
    uint found = taken;
    for (uint begin = 0; begin < n && equals > 0; begin += 128) { // in the order of rows
        bool mine = begin + t < n && key_of(start, begin + t) == border;
        barrier();
        flags[t] = mine ? 1 : 0;
        barrier();
        uint before = 0, total = 0;
        for (uint i = 0; i < 128; i++) {
            before += i < t ? flags[i] : 0;
            total += flags[i];
        }
        if (mine && before < equals) {
            keys[found + before] = border;
            rows[found + before] = begin + t;
        }
        total = min(total, equals);
        found += total;
        equals -= total;
    }
    barrier();
    for (uint e = t; e < k; e += 128) {
        if (e >= found) {
            Words(ids).w[query * k + e] = 0xffffffffu;
            Floats(nearest).f[query * k + e] = infinity();
            continue;
        }
        uint rank = 0;
        for (uint i = 0; i < found; i++)
            if (keys[i] < keys[e] || (keys[i] == keys[e] && rows[i] < rows[e])) rank++;
        Words(ids).w[query * k + rank] = rows[e];
        Floats(nearest).f[query * k + rank] = Floats(dists).f[start + rows[e]];
    }
}
