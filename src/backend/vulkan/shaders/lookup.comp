#version 450
#extension GL_GOOGLE_include_directive : require
// Rows of a table by ids, of any type to floats; without ids all of it. A thread makes four elements.
#include "common.glsl"
#include "quant.glsl"

layout(constant_id = 0) const uint FROM = 0;
layout(constant_id = 1) const uint TO = 0;
layout(constant_id = 2) const uint IDS = I32;

layout(push_constant) uniform Push {
    uvec2 table, ids, o;
    uint n, table_rows, columns, row_bytes; // n: rows of the result
};

void main() {
    uint i = thread_index(), quads = (columns + 3) / 4, r = i / quads, c = (i - r * quads) * 4;
    if (r >= n) return;
    uint id = ids == uvec2(0) ? r : load_index(IDS, ids, r, table_rows);
    uvec2 at = row_at(table, min(id, table_rows - 1), row_bytes);
    uint end = min(columns - c, 4); // fewer than four only of plain types
    vec4 v = vec4(0);
    if (id < table_rows && end == 4) v = quad(FROM, at, c);
    for (uint k = 0; k < end && end < 4 && id < table_rows; k++) v[k] = load_float(FROM, at, c + k);
    for (uint k = 0; k < end; k++) store_float(TO, o, r * columns + c + k, v[k]);
}
