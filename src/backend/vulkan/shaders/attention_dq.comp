#version 450
#extension GL_GOOGLE_include_directive : require
// Gradient of attention by q, and delta = grad . o for what comes after: a workgroup to 16 queries of a
// head, over tiles of 32 keys. With p = exp(scale q k - lse), ds = p (grad v - delta): dq = scale ds k.
#include "attention.glsl"

void main() {
    uint first = first_row(), head = gl_WorkGroupID.y, batch = gl_WorkGroupID.z;
    uint kv_head = head / (heads / kv_heads), n = min(ROWS, tq - first);
    uint query = min(first + my_row(), tq - 1), at = (batch * heads + head) * tq + query;
    uint mine = visible(query), last = visible(first + n - 1);
    float part = 0, sum = 0, l = Floats(lse).f[at];
    uint grad_at = place(GRAD, batch, head, query), o_at = place(O, batch, head, query);
    for (uint i = my_column(0); i < d; i += 8)
        part += load_float(KIND, grad, grad_at + i) * load_float(KIND, o, o_at + i);
    tile[my_row()][my_column(0)] = part;
    barrier();
    for (uint i = 0; i < 8; i++) sum += tile[my_row()][i];
    if (my_column(0) == 0 && my_row() < n && my_part() == 0) Floats(delta).f[at] = sum;
    clear_sums();
    for (uint key = 0; key < last; key += COLUMNS) {
        uint keys = min(COLUMNS, last - key);
        uint k_at = place(K, batch, kv_head, key), v_at = place(V, batch, kv_head, key);
        vec4 s = products(q, place(Q, batch, head, first), step_of(Q), n, k, k_at, step_of(K), keys);
        vec4 g = products(grad, place(GRAD, batch, head, first), step_of(GRAD), n, v, v_at, step_of(V),
                          keys);
        for (uint j = 0; j < 4; j++) {
            bool seen = key + my_column(j) < mine;
            tile[my_row()][my_column(j)] = seen ? k_exp(s[j] * scale - l) * (g[j] - sum) : 0;
        }
        add_products(0, k, k_at, step_of(K), keys);
    }
    if (my_row() < n) store_sums(0, dq, place(DQ, batch, head, query), scale);
}
