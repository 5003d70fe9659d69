#version 450
#extension GL_GOOGLE_include_directive : require
// Gradients of attention by k and v: a workgroup to 16 keys of a head, over tiles of 32 queries of all
// heads that share it. dv = sum of p grad, dk = scale times the sum of ds q (attention_dq.comp).
#include "attention.glsl"

void main() {
    uint first = first_row(), kv_head = gl_WorkGroupID.y, batch = gl_WorkGroupID.z;
    uint n = min(ROWS, tk - first), key = first + my_row(), group = heads / kv_heads;
    uint k_at = place(K, batch, kv_head, first), v_at = place(V, batch, kv_head, first);
    uint begin = 0; // the first query that may see one of these keys
    if (causal != 0) begin = uint(max(0, int(first) - (int(tk) - int(tq))));
    clear_sums();
    for (uint head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (uint query = begin; query < tq; query += COLUMNS) {
            uint queries = min(COLUMNS, tq - query), at = (batch * heads + head) * tq + query;
            uint q_at = place(Q, batch, head, query), grad_at = place(GRAD, batch, head, query);
            vec4 s = products(k, k_at, step_of(K), n, q, q_at, step_of(Q), queries);
            vec4 g = products(v, v_at, step_of(V), n, grad, grad_at, step_of(GRAD), queries), ds;
            for (uint j = 0; j < 4; j++) {
                uint i = my_column(j);
                bool seen = i < queries && key < visible(query + i);
                float p = seen ? k_exp(s[j] * scale - Floats(lse).f[at + i]) : 0;
                ds[j] = seen ? p * (g[j] - Floats(delta).f[at + i]) : 0;
                tile[my_row()][i] = p;
            }
            add_products(0, grad, grad_at, step_of(GRAD), queries);
            barrier();
            for (uint j = 0; j < 4; j++) tile[my_row()][my_column(j)] = ds[j];
            add_products(1, q, q_at, step_of(Q), queries);
        }
    if (my_row() >= n) return;
    store_sums(0, dv, place(DV, batch, kv_head, key), 1);
    store_sums(1, dk, place(DK, batch, kv_head, key), scale);
}
