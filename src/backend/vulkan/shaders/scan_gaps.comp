#version 450
#extension GL_GOOGLE_include_directive : require
// Distances of queries to decoded rows: a workgroup to 32 queries and 64 rows.
#include "common.glsl"
#include "gaps.glsl"

layout(constant_id = 0) const bool PRODUCT = false; // minus the inner product

layout(push_constant) uniform Push {
    uvec2 queries, y, lost, o; // o (queries, row)
    uint n_queries, n, d;      // n: of these rows
    uint row, first;           // row: of all rows
};

void main() {
    uint query0 = gl_WorkGroupID.x * GAP_ROWS, row0 = gl_WorkGroupID.y * GAP_OTHERS;
    make_gaps(F32, queries, query0, n_queries, y, row0, n, d, PRODUCT);
    for (uint i = 0; i < 4; i++)
        for (uint j = 0; j < 4; j++) {
            uint q = query0 + gap_row(i), r = row0 + gap_other(j);
            if (q >= n_queries || r >= n) continue;
            Floats(o).f[q * row + first + r] = Floats(lost).f[r] + (PRODUCT ? -gaps[i][j] : gaps[i][j]);
        }
}
