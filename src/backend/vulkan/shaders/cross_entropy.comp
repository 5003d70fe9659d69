#version 450
#extension GL_GOOGLE_include_directive : require
// Cross entropy of logits (rows, v), in dispatches one after the other:
//   COUNT  one workgroup: numbers[0] = 1 / (rows that count), or 1 for a sum
//   ROWS   a workgroup to a row: lse, losses, and dlogits = (softmax - onehot) numbers[0]
//   TOTAL  one workgroup: loss = numbers[0] times the sum of the rows' losses
//   SLOPE  a workgroup to a row: dlogits from lse, times dloss
#include "common.glsl"
#include "math.glsl"

layout(constant_id = 0) const uint STEP = 0;
layout(constant_id = 1) const uint KIND = 0;
layout(constant_id = 2) const uint TARGETS = I32;
const uint COUNT = 0, ROWS = 1, TOTAL = 2, SLOPE = 3;

layout(push_constant) uniform Push {
    uvec2 logits, targets, numbers, losses, lse, dlogits, loss; // dlogits may be 0; loss: dloss in SLOPE
    uint rows, v, ignored, mean;                                // ignored: v where nothing is
};

uint target(uint row) {
    uint id = load_index(TARGETS, targets, row, v);
    return id == ignored ? v : id;
}

void count() {
    float n = 0;
    for (uint r = gl_LocalInvocationID.x; r < rows; r += 128) n += target(r) < v ? 1 : 0;
    n = team_sum(n);
    if (gl_LocalInvocationID.x == 0) Floats(numbers).f[0] = mean == 0 ? 1 : n == 0 ? infinity() : 1 / n;
}

void total() {
    float s = 0;
    for (uint r = gl_LocalInvocationID.x; r < rows; r += 128) s += Floats(losses).f[r];
    s = team_sum(s);
    float by = Floats(numbers).f[0];
    // The mean over nothing is no number.
    if (gl_LocalInvocationID.x == 0) Floats(loss).f[0] = is_inf(by) ? nan() : s * by;
}

float slope(uint start, uint j, float l, uint id, float by) {
    float p = k_exp(load_float(KIND, logits, start + j) - l);
    return id < v ? (j == id ? p - 1 : p) * by : 0;
}

// The row's dlogits; two of 16 bits at a time, where a word holds two of the row.
void write_slopes(uint start, float l, uint id, float by) {
    uint t = gl_LocalInvocationID.x;
    if (KIND == F32) {
        for (uint j = t; j < v; j += 128) Floats(dlogits).f[start + j] = slope(start, j, l, id, by);
        return;
    }
    uint odd = start & 1u; // the row begins in the middle of a word
    for (uint k = t; 2 * k < v + odd; k += 128) {
        uint j = 2 * k - odd; // wraps below 0 for the word before
        bool first = k > 0 || odd == 0, second = j + 1 < v;
        uint a = first ? to_half(KIND, slope(start, j, l, id, by)) : 0;
        uint b = second ? to_half(KIND, slope(start, j + 1, l, id, by)) : 0;
        if (first && second)
            Words(dlogits).w[(start + j) / 2] = a | b << 16;
        else if (first)
            store_u16(dlogits, start + j, a);
        else if (second)
            store_u16(dlogits, start + j + 1, b);
    }
}

void row_losses(uint row) {
    uint t = gl_LocalInvocationID.x, start = row * v, id = target(row);
    float m = -infinity(), s = 0;
    for (uint j = t; j < v; j += 128) m = max_nan(m, load_float(KIND, logits, start + j));
    m = team_max(m);
    float l = m;
    if (!is_nan(m) && !is_inf(m)) {
        for (uint j = t; j < v; j += 128) s += k_exp(load_float(KIND, logits, start + j) - m);
        l = m + k_log(team_sum(s));
    }
    if (t == 0) {
        Floats(lse).f[row] = l;
        Floats(losses).f[row] = id < v ? l - load_float(KIND, logits, start + id) : 0;
    }
    if (dlogits != uvec2(0)) write_slopes(start, l, id, Floats(numbers).f[0]);
}

void main() {
    uint row = group_index();
    if (STEP == COUNT) count();
    if (STEP == TOTAL) total();
    if (row >= rows) return;
    if (STEP == ROWS) row_losses(row);
    if (STEP == SLOPE)
        write_slopes(row * v, Floats(lse).f[row], target(row), Floats(numbers).f[0] * Floats(loss).f[0]);
}
