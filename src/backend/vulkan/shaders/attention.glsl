// Attention in training, forward and backward, in tiles of 16 rows by 32 columns: a thread has one row and
// every eighth column. Operands are (B, H, T, D) by strides and 1 along D; 9 KiB of shared memory.
#include "common.glsl"
#include "math.glsl"

layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const uint CHUNKS = 2; // 32 dimensions each: what a workgroup makes of D

layout(push_constant) uniform Push {
    uvec2 q, k, v, o, grad, lse, delta, dq, dk, dv, strides; // grad: of o; delta (B, H, Tq): grad . o
    uint heads, kv_heads, tq, tk, d;
    uint causal, parts; // parts: workgroups that share D, beside each other along x
    float scale;
};

const uint Q = 0, K = 1, V = 2, O = 3, GRAD = 4, DQ = 5, DK = 6, DV = 7; // places in strides, three each
const uint ROWS = 16, COLUMNS = 32, DEEP = 32;

shared float left[ROWS][DEEP + 1], right[COLUMNS][DEEP + 1], tile[ROWS][COLUMNS + 1];

uint first_row() { return gl_WorkGroupID.x / parts * ROWS; }
uint my_part() { return gl_WorkGroupID.x % parts; }
uint my_row() { return gl_LocalInvocationID.x / 8; }
uint my_column(uint j) { return gl_LocalInvocationID.x % 8 + 8 * j; }

uint step_of(uint which) { return Words(strides).w[3 * which + 2]; }
// Where row `time` of a head begins, in elements.
uint place(uint which, uint batch, uint head, uint time) {
    Words s = Words(strides);
    return batch * s.w[3 * which] + head * s.w[3 * which + 1] + time * s.w[3 * which + 2];
}

// How many keys query i sees.
uint visible(uint i) { return causal == 0 ? tk : uint(clamp(int(tk) - int(tq) + int(i) + 1, 0, int(tk))); }

// A part of `n` rows of b, of the dimensions from c on, into right[].
void load_right(uvec2 b, uint at, uint stride, uint n, uint c) {
    for (uint e = gl_LocalInvocationID.x; e < COLUMNS * DEEP; e += 128) {
        uint r = e / DEEP, i = e % DEEP;
        right[r][i] = r < n && c + i < d ? load_float(KIND, b, at + r * stride + c + i) : 0;
    }
}

// Products of a's rows with b's: of this thread's row with its four columns. All threads call it.
vec4 products(uvec2 a, uint a_at, uint a_stride, uint a_n, uvec2 b, uint b_at, uint b_stride, uint b_n) {
    vec4 s = vec4(0);
    for (uint c = 0; c < d; c += DEEP) {
        barrier();
        for (uint e = gl_LocalInvocationID.x; e < ROWS * DEEP; e += 128) {
            uint r = e / DEEP, i = e % DEEP;
            left[r][i] = r < a_n && c + i < d ? load_float(KIND, a, a_at + r * a_stride + c + i) : 0;
        }
        load_right(b, b_at, b_stride, b_n, c);
        barrier();
        uint deep = min(DEEP, d - c);
        for (uint i = 0; i < deep; i++) {
            float x = left[my_row()][i];
            [[unroll]] for (uint j = 0; j < 4; j++) s[j] += x * right[my_column(j)][i];
        }
    }
    return s;
}

// sums[which] += tile times b's rows; this thread has its row and every eighth of its part's dimensions.
vec4 sums[2][CHUNKS];
void add_products(uint which, uvec2 b, uint at, uint stride, uint n) {
    for (uint c = 0; c < CHUNKS; c++) {
        barrier();
        load_right(b, at, stride, n, (my_part() * CHUNKS + c) * DEEP);
        barrier();
        vec4 s = vec4(0);
        for (uint i = 0; i < n; i++) {
            float x = tile[my_row()][i];
            [[unroll]] for (uint j = 0; j < 4; j++) s[j] += x * right[i][my_column(j)];
        }
        sums[which][c] += s;
    }
}

void clear_sums() {
    for (uint c = 0; c < CHUNKS; c++) sums[0][c] = sums[1][c] = vec4(0);
}

void store_sums(uint which, uvec2 to, uint at, float by) {
    for (uint c = 0; c < CHUNKS; c++)
        for (uint j = 0; j < 4; j++) {
            uint i = (my_part() * CHUNKS + c) * DEEP + my_column(j);
            if (i < d) store_float(KIND, to, at + i, sums[which][c][j] * by);
        }
}
