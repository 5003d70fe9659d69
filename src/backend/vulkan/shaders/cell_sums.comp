#version 450
#extension GL_GOOGLE_include_directive : require
// Sums over the rows of each cell, in the order of the rows: the same bits every run. Rows are sorted by
// cell first, a part of them to a workgroup:
//   COUNT  how many rows of each part are in each cell: counts (k, parts), zero before
//   START  one workgroup: where they begin in the sorted list, which replaces counts; begins (k + 1)
//   PLACE  the list of row numbers, 128 at a time
//   SUM    a workgroup to a cell and 128 columns (z)
#include "common.glsl"

layout(constant_id = 0) const uint STEP = 0;
layout(constant_id = 1) const uint KIND = 0;
const uint COUNT = 0, START = 1, PLACE = 2, SUM = 3;

layout(push_constant) uniform Push {
    uvec2 x, ids, weights, dists, counts, begins, list, sum, mass, number, spread; // weights, dists: or 0
    uint n, d, k, parts, part;                                                    // part: rows of each
};

shared uint team_ids[128], bases[128];

uint id_of(uint row) { return min(Words(ids).w[row], k); }

void count(uint p) {
    for (uint r = p * part + gl_LocalInvocationID.x; r < min((p + 1) * part, n); r += 128)
        if (id_of(r) < k) atomicAdd(Words(counts).w[id_of(r) * parts + p], 1);
}

void start() {
    uint t = gl_LocalInvocationID.x, total = k * parts, each = (total + 127) / 128;
    uint begin = min(t * each, total), end = min(begin + each, total), s = 0;
    for (uint i = begin; i < end; i++) s += Words(counts).w[i];
    team_ids[t] = s;
    barrier();
    uint at = 0;
    for (uint i = 0; i < t; i++) at += team_ids[i];
    for (uint i = begin; i < end; i++) {
        uint c = Words(counts).w[i];
        Words(counts).w[i] = at;
        if (i % parts == 0) Words(begins).w[i / parts] = at;
        at += c;
    }
    if (t == 127) Words(begins).w[k] = at;
}

void place(uint p) {
    uint t = gl_LocalInvocationID.x, end = min((p + 1) * part, n);
    for (uint begin = p * part; begin < end; begin += 128) {
        uint row = begin + t, id = row < end ? id_of(row) : k, rank = 0, all = 0, first = 128;
        barrier();
        team_ids[t] = id;
        barrier();
        for (uint s = 0; s < 128 && id < k; s++) {
            if (team_ids[s] != id) continue;
            first = min(first, s);
            all++;
            if (s < t) rank++;
        }
        if (id < k && first == t) bases[t] = atomicAdd(Words(counts).w[id * parts + p], all);
        barrier();
        if (id < k) Words(list).w[bases[first] + rank] = row;
    }
}

void add_up(uint cell) {
    uint t = gl_LocalInvocationID.x, j = gl_WorkGroupID.z * 128 + t;
    uint begin = Words(begins).w[cell], end = Words(begins).w[cell + 1];
    float total = 0;
    for (uint at = begin; at < end && j < d; at += 64) {
        float s = 0; // of a few rows alone: short sums keep their digits
        for (uint i = at; i < min(at + 64, end); i++) {
            uint row = Words(list).w[i];
            float v = load_float(KIND, x, row * d + j);
            s += weights != uvec2(0) ? Floats(weights).f[row] * v : v;
        }
        total += s;
    }
    if (j < d) Floats(sum).f[cell * d + j] = total;
    if (gl_WorkGroupID.z > 0) return;
    float w = 0, far = 0;
    for (uint i = begin + t; i < end; i += 128) {
        uint row = Words(list).w[i];
        w += weights != uvec2(0) ? Floats(weights).f[row] : 1;
        if (dists != uvec2(0)) far += Floats(dists).f[row];
    }
    w = team_sum(w);
    far = team_sum(far);
    if (t > 0) return;
    Floats(mass).f[cell] = w;
    Floats(number).f[cell] = float(end - begin);
    Floats(spread).f[cell] = far;
}

void main() {
    uint group = group_index();
    if (STEP == COUNT && group < parts) count(group);
    if (STEP == START) start();
    if (STEP == PLACE && group < parts) place(group);
    if (STEP == SUM && group < k) add_up(group);
}
