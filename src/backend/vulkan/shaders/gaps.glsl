// Squared differences or products of rows with rows, by tiles of 32 x 64 in 6 KiB of shared memory: a
// thread has 4 x 4 of them. Differences are squared as they are, so that vectors far from the origin lose
// no digits.
const uint GAP_ROWS = 32, GAP_OTHERS = 64, GAP_DEEP = 16;
shared float gap_a[GAP_DEEP][GAP_ROWS + 1], gap_b[GAP_DEEP][GAP_OTHERS + 1];

uint gap_row(uint i) { return gl_LocalInvocationID.x / 16 + 8 * i; }
uint gap_other(uint j) { return gl_LocalInvocationID.x % 16 + 16 * j; }

// gaps[i][j] of row first_a + gap_row(i) of a (a_n, d) and row first_b + gap_other(j) of b (b_n, d), f32.
// All threads call it.
vec4 gaps[4];
void make_gaps(uint a_kind, uvec2 a, uint first_a, uint a_n, uvec2 b, uint first_b, uint b_n, uint d,
               bool products) {
    uint t = gl_LocalInvocationID.x;
    for (uint i = 0; i < 4; i++) gaps[i] = vec4(0);
    for (uint c = 0; c < d; c += GAP_DEEP) {
        uint deep = min(GAP_DEEP, d - c);
        barrier();
        for (uint e = t; e < GAP_ROWS * GAP_DEEP; e += 128) {
            uint r = first_a + e / GAP_DEEP, j = e % GAP_DEEP;
            gap_a[j][e / GAP_DEEP] = r < a_n && j < deep ? load_float(a_kind, a, r * d + c + j) : 0;
        }
        for (uint e = t; e < GAP_OTHERS * GAP_DEEP; e += 128) {
            uint r = first_b + e / GAP_DEEP, j = e % GAP_DEEP;
            gap_b[j][e / GAP_DEEP] = r < b_n && j < deep ? Floats(b).f[r * d + c + j] : 0;
        }
        barrier();
        for (uint j = 0; j < deep; j++) {
            vec4 y = vec4(gap_b[j][gap_other(0)], gap_b[j][gap_other(1)], gap_b[j][gap_other(2)],
                          gap_b[j][gap_other(3)]);
            [[unroll]] for (uint i = 0; i < 4; i++) {
                float x = gap_a[j][gap_row(i)];
                vec4 e = products ? x * y : (x - y) * (x - y);
                gaps[i] += e;
            }
        }
    }
}
