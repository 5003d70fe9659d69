#version 450
#extension GL_GOOGLE_include_directive : require
// o = softmax(scale q k^T) v and the scores' log sum exp: a workgroup to 16 queries of a head, over tiles
// of 32 keys with an online softmax.
#include "attention.glsl"

void main() {
    uint first = first_row(), head = gl_WorkGroupID.y, batch = gl_WorkGroupID.z;
    uint kv_head = head / (heads / kv_heads), n = min(ROWS, tq - first);
    uint mine = visible(first + my_row()), last = visible(first + n - 1);
    float most = -infinity(), total = 0;
    clear_sums();
    for (uint key = 0; key < last; key += COLUMNS) {
        uint keys = min(COLUMNS, last - key);
        vec4 s = products(q, place(Q, batch, head, first), step_of(Q), n, k,
                          place(K, batch, kv_head, key), step_of(K), keys);
        barrier();
        for (uint j = 0; j < 4; j++)
            tile[my_row()][my_column(j)] = key + my_column(j) < mine ? s[j] * scale : -infinity();
        barrier();
        float highest = most;
        for (uint i = 0; i < COLUMNS; i++) highest = max_nan(highest, tile[my_row()][i]);
        barrier();
        for (uint j = 0; j < 4; j++) {
            bool seen = key + my_column(j) < mine;
            tile[my_row()][my_column(j)] = seen ? k_exp(s[j] * scale - highest) : 0;
        }
        barrier();
        float shrink = total == 0 ? 0 : k_exp(most - highest), sum = 0;
        for (uint i = 0; i < COLUMNS; i++) sum += tile[my_row()][i];
        total = total * shrink + sum;
        most = highest;
        for (uint c = 0; c < CHUNKS; c++) sums[0][c] *= shrink;
        add_products(0, v, place(V, batch, kv_head, key), step_of(V), keys);
    }
    if (my_row() >= n) return;
    uint query = first + my_row();
    store_sums(0, o, place(O, batch, head, query), mine > 0 ? 1 / total : 0);
    if (my_column(0) == 0 && my_part() == 0)
        Floats(lse).f[(batch * heads + head) * tq + query] = mine > 0 ? most + k_log(total) : -infinity();
}
