/* Cutting a rank's share out of tensors. */
#include "model/cut.h"
#include "tensor/tensor.h"
#include <string.h>

static bool is_part(const km_layout_row *r, const char *part) {
    return strncmp(r->gguf, "blk.", 4) == 0 && strstr(r->gguf, part) != NULL;
}

/* Runs of rows, side by side in what is left. */
static km_cut by_rows(const km_layout_row *r, int runs, const int64_t *first, const int64_t *rows) {
    km_cut cut = {.shape = r->shape, .runs = runs};
    cut.shape.dim[0] = 0;
    for (int i = 0; i < runs; i++) {
        cut.first[i] = first[i];
        cut.rows[i] = rows[i];
        cut.shape.dim[0] += rows[i];
    }
    return cut;
}

/* Columns of a matrix; the bias of such a layer is added once, by rank 0. */
static km_cut by_columns(const km_share *s, const km_layout_row *r, int64_t first, int64_t count) {
    km_cut cut = {.shape = r->shape};
    if (r->shape.ndim != 2) {
        cut.absent = s->rank != 0;
        return cut;
    }
    cut.columns = true;
    cut.column = first;
    cut.shape.dim[1] = count;
    return cut;
}

km_cut km_share_cut(const km_config *c, const km_share *s, const km_layout_row *r) {
    int64_t group = c->heads / c->kv_heads * c->head_dim, d = c->head_dim;
    int64_t q_first = group * s->kv_first, q = group * s->kv_heads;
    int64_t k_first = d * s->kv_first, k = d * s->kv_heads;
    if (s->ranks < 1) return (km_cut){.shape = r->shape};
    if (strcmp(r->gguf, "output.weight") == 0) return by_rows(r, 1, &s->token_first, &s->tokens);
    if (is_part(r, ".attn_output.")) return by_columns(s, r, q_first, q);
    if (is_part(r, ".ffn_down.")) return by_columns(s, r, s->hidden_first, s->hidden);
    if (is_part(r, ".attn_q.")) return by_rows(r, 1, &q_first, &q);
    if (is_part(r, ".attn_k.") || is_part(r, ".attn_v.")) return by_rows(r, 1, &k_first, &k);
    if (is_part(r, ".attn_qkv.")) {
        int64_t nq = c->heads * d, nk = c->kv_heads * d;
        int64_t first[] = {q_first, nq + k_first, nq + nk + k_first}, rows[] = {q, k, k};
        return by_rows(r, 3, first, rows);
    }
    if (is_part(r, ".ffn_up.") || is_part(r, ".ffn_gate.")) {
        int64_t first[] = {s->hidden_first, c->hidden + s->hidden_first};
        int64_t rows[] = {s->hidden, s->hidden};
        bool both = r->shape.dim[0] == 2 * c->hidden; /* gate, and up below it */
        return by_rows(r, both ? 2 : 1, first, rows);
    }
    return (km_cut){.shape = r->shape};
}

/* Bytes of so many rows. */
static size_t rows_bytes(km_dtype d, km_shape whole, int64_t rows) {
    return (size_t)km_dtype_bytes(d, rows * (whole.ndim > 1 ? whole.dim[1] : 1));
}

const void *km_cut_in_place(const km_cut *cut, km_dtype d, km_shape whole, const void *data) {
    if (!data || cut->absent || cut->columns || cut->runs > 1) return NULL;
    return cut->runs ? (const char *)data + rows_bytes(d, whole, cut->first[0]) : data;
}

size_t km_cut_bytes(const km_cut *cut, km_dtype d) {
    return (size_t)km_dtype_bytes(d, km_shape_count(cut->shape));
}

km_status km_cut_copy(const km_cut *cut, km_dtype d, km_shape whole, const void *data, void *dst,
                      km_error *err) {
    int64_t block = km_dtype_is_block(d) ? km_dtype_block(d) : 1;
    char *to = dst;
    if (!data || cut->absent) {
        memset(dst, 0, km_cut_bytes(cut, d));
        return KM_OK;
    }
    if (!cut->columns) {
        km_cut all = {.shape = whole, .runs = 1, .rows = {whole.dim[0]}};
        const km_cut *of = cut->runs ? cut : &all;
        for (int i = 0; i < of->runs; i++) {
            size_t bytes = rows_bytes(d, whole, of->rows[i]);
            memcpy(to, (const char *)data + rows_bytes(d, whole, of->first[i]), bytes);
            to += bytes;
        }
        return KM_OK;
    }
    if (cut->column % block || cut->shape.dim[1] % block)
        return km_error_set(err, KM_ERR_SHAPE,
                            "columns %lld to %lld cannot be cut out of %s's blocks of %lld",
                            (long long)cut->column, (long long)(cut->column + cut->shape.dim[1]),
                            km_dtype_name(d), (long long)block);
    size_t stride = rows_bytes(d, whole, 1), bytes = (size_t)km_dtype_bytes(d, cut->shape.dim[1]);
    const char *from = (const char *)data + km_dtype_bytes(d, cut->column);
    for (int64_t i = 0; i < whole.dim[0]; i++, from += stride, to += bytes) memcpy(to, from, bytes);
    return KM_OK;
}
