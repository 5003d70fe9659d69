#version 450
#extension GL_GOOGLE_include_directive : require
// Gradient of a table by the rows that were read from it: a workgroup to a place and 512 columns. The
// first place of an id adds up the rows of all places of that id, in their order: the same bits every
// run. Rows of the table that nobody read are not touched.
#include "common.glsl"

layout(constant_id = 0) const uint KIND = 0;
layout(constant_id = 1) const uint IDS = I32;

layout(push_constant) uniform Push {
    uvec2 dy, ids, o;
    uint places, table_rows, columns;
    uint add; // to what the table holds
};

shared bool earlier, match[128];

void main() {
    uint place = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x, t = gl_LocalInvocationID.x;
    if (place >= places) return;
    uint id = load_index(IDS, ids, place, table_rows), column = gl_WorkGroupID.z * 512 + t;
    if (id >= table_rows) return;
    if (t == 0) earlier = false;
    barrier();
    for (uint j = t; j < place; j += 128)
        if (load_index(IDS, ids, j, table_rows) == id) earlier = true;
    barrier();
    if (earlier) return;
    vec4 total = vec4(0);
    for (uint begin = place; begin < places; begin += 128) {
        uint n = min(128, places - begin);
        barrier();
        match[t] = t < n && load_index(IDS, ids, begin + t, table_rows) == id;
        barrier();
        vec4 s = vec4(0); // of these places alone: short sums keep their digits
        for (uint k = 0; k < n; k++) {
            if (!match[k]) continue;
            for (uint c = 0; c < 4; c++)
                if (column + c * 128 < columns)
                    s[c] += load_float(KIND, dy, (begin + k) * columns + column + c * 128);
        }
        total += s;
    }
    for (uint c = 0; c < 4; c++) {
        uint i = column + c * 128;
        if (i >= columns) continue;
        float old = add != 0 ? load_float(KIND, o, id * columns + i) : 0;
        store_float(KIND, o, id * columns + i, old + total[c]);
    }
}
