#version 450
#extension GL_GOOGLE_include_directive : require
// Rows become codes of trellises by Viterbi's search (ops/encode_codes.h): a workgroup to a row, 4096
// states. Costs and the bits that left the window are in memory of the workgroup's own: two rows of costs,
// then of each column one byte for each state without its newest bits.
#include "encode.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Costs { float f[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer Backs { uint w[]; };

layout(push_constant) uniform Push {
    uvec2 z, squares, amps, rates, classes, water, tables, codes, room;
    uint first, n, width, bytes, n_classes, class_bits, each; // each: words of room for a workgroup
    float dim, low, step;
};

const uint LENGTH = 12, STATES = 4096, SETTLE = 72, TRIES = 16, BACK_WORDS = 512;
const float NEVER = 1e30;

shared float least[128];
shared uint least_at[128], tries[TRIES];

uint row, column, axes; // of this workgroup: its row, the first column of its class, and how many
uvec2 space, backs;
uint now; // which row of costs holds
float by; // 1 / scale

void settle() {
    memoryBarrierBuffer();
    barrier();
}
float cost_at(uint i) { return Costs(space).f[now * STATES + i]; }
uint rate_of(uint i) { return Words(rates).w[column + i]; }
float amp_of(uint i) { return Floats(amps).f[column + i]; }
float x_of(uint i) {
    precise float x = Floats(z).f[row * width + column + i] * by;
    return x;
}

void walk(uint from, uint to) {
    uint t = gl_LocalInvocationID.x;
    for (uint i = from; i < to; i++) {
        uint k = rate_of(i), count = STATES >> k;
        float amp = amp_of(i), x = x_of(i);
        if (k == 0 && amp == 0) continue;
        for (uint u4 = t; u4 < count / 4; u4 += 128) {
            uint packed = 0;
            for (uint e = 0; e < 4; e++) {
                uint u = u4 * 4 + e, best = 0;
                float c = cost_at(u);
                for (uint way = 1; way < 1u << k; way++) {
                    float other = cost_at(way * count + u);
                    if (other < c) {
                        c = other;
                        best = way;
                    }
                }
                packed |= best << 8 * e;
                for (uint s = u << k; s < u + 1 << k; s++) {
                    float d = fma(-amp, Floats(tables).f[k * STATES + s], x);
                    Costs(space).f[(1 - now) * STATES + s] = fma(d, d, c);
                }
            }
            if (k > 0) Backs(backs).w[i * BACK_WORDS + u4] = packed;
        }
        settle();
        now = 1 - now;
    }
}

// Costs before the first step: all states alike, or one alone (start < STATES).
void begin(uint start) {
    for (uint i = gl_LocalInvocationID.x; i < STATES; i += 128)
        Costs(space).f[now * STATES + i] = start >= STATES || i == start ? 0 : NEVER;
    settle();
}

uint cheapest() {
    uint t = gl_LocalInvocationID.x, at = t;
    float c = cost_at(t);
    for (uint i = t + 128; i < STATES; i += 128)
        if (cost_at(i) < c) {
            c = cost_at(i);
            at = i;
        }
    barrier();
    least[t] = c;
    least_at[t] = at;
    barrier();
    for (uint i = 0; i < 128; i++)
        if (least[i] < c || (least[i] == c && least_at[i] < at)) {
            c = least[i];
            at = least_at[i];
        }
    return at;
}

uint before(uint state, uint axis) {
    uint k = rate_of(axis), u = state >> k;
    if (k == 0) return state;
    uint back = Backs(backs).w[axis * BACK_WORDS + u / 4] >> 8 * (u % 4) & 255u;
    return u | back << LENGTH - k;
}

uint closing_state(uint ring) {
    uint tail = axes, head = 0, bits = 0;
    begin(STATES);
    if (ring >= SETTLE) {
        while (tail > 0 && bits < SETTLE) bits += rate_of(--tail);
        bits = 0;
        while (head < tail && bits < SETTLE) bits += rate_of(head++);
        walk(tail, axes);
        walk(0, head);
        uint state = cheapest();
        for (int i = int(head) - 1; i >= 0; i--) state = before(state, uint(i));
        return state;
    }
    walk(0, axes);
    for (uint i = 0; i < TRIES; i++) {
        uint c = cheapest();
        if (gl_LocalInvocationID.x == 0) {
            tries[i] = c;
            Costs(space).f[now * STATES + c] = NEVER;
        }
        settle();
    }
    float lowest = infinity();
    uint best = 0;
    for (uint i = 0; i < TRIES; i++) {
        uint start = tries[i];
        begin(start);
        walk(0, axes);
        float c = cost_at(start);
        if (c < lowest) {
            lowest = c;
            best = start;
        }
        barrier(); // before others clear the costs
    }
    return best;
}

// The class whose columns suit the row best.
uint choose_class() {
    float lowest = infinity();
    uint best = 0;
    for (uint k = 0; k < n_classes && n_classes > 1; k++) {
        uint begin_at = Words(classes).w[2 * k], count = Words(classes).w[2 * k + 1];
        float kept = 0, excess = 0, w = Floats(water).f[k];
        for (uint j = begin_at + gl_LocalInvocationID.x; j < begin_at + count; j += 128) {
            float v = Floats(z).f[row * width + j] * by, a = Floats(amps).f[j];
            kept += v * v;
            excess += v * v / (a * a + w);
        }
        float cost = dim - team_sum(kept) + 0.5 * w * (float(count) + team_sum(excess));
        if (cost < lowest) {
            lowest = cost;
            best = k;
        }
    }
    return best;
}

void put_bit(uint at, uint bit) {
    uint byte = row * bytes + at / 8 + (codes.x & 3u);
    if (bit != 0) atomicOr(words_at(codes).w[byte / 4], 1u << 8 * (byte % 4) + at % 8);
}

void main() {
    uint group = group_index();
    if (group >= n) return;
    row = first + group;
    uint words = group * each, low_word = room.x + words * 4;
    space = uvec2(low_word, room.y + (low_word < room.x ? 1 : 0));
    uint low_back = space.x + 2 * STATES * 4;
    backs = uvec2(low_back, space.y + (low_back < space.x ? 1 : 0));
    now = 0;
    clear_code(codes, row * bytes, bytes);
    float s = sqrt(Floats(squares).f[row] / dim);
    if (scale_code(s, low, step) == 0) return;
    by = 1 / s;
    uint chosen = choose_class(), ring = 0;
    column = Words(classes).w[2 * chosen];
    axes = Words(classes).w[2 * chosen + 1];
    for (uint i = 0; i < axes; i++) ring += rate_of(i);
    uint state = closing_state(ring);
    barrier();
    begin(state);
    walk(0, axes);
    if (gl_LocalInvocationID.x > 0) return;
    for (uint b = 0; b < class_bits; b++) put_bit(8 + b, chosen >> b & 1u);
    uint at = 8 + class_bits + ring;
    float along = 0, norm = 0;
    for (int j = int(axes) - 1; j >= 0; j--) {
        uint k = rate_of(uint(j));
        float v = amp_of(uint(j)) * Floats(tables).f[k * STATES + state];
        for (uint b = 0; b < k; b++) put_bit(--at, state >> b & 1u);
        along += x_of(uint(j)) * v;
        norm += v * v;
        state = before(state, uint(j));
    }
    store_u8(codes, row * bytes, scale_code(norm > 0 ? s * along / norm : 0, low, step));
}
