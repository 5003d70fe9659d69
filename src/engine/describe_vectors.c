/* The parts of a description for vectors: indexes, manifests, and files of vectors. */
#include "engine/describe.h"
#include "report/json.h"
#include "tensor/dtype.h"
#include "vector/index.h"
#include "vector/input.h"
#include <math.h>

static const char *const metric_names[] = {"l2", "ip", "cosine"};
static const char *const mode_names[] = {"fast", "dense", "anchors-only"};
static const char *const rerank_names[] = {"none", "f16", "int8"};

static json_t *sections(const km_kmx *f) {
    json_t *list = json_array();
    for (int i = 0; i < km_kmx_count(f); i++) {
        uint64_t offset, bytes;
        const char *name = km_kmx_at(f, i, &offset, &bytes);
        json_array_append_new(list, json_pack("{s:o, s:o, s:o}", "name", km_json_text(name),
                                              "offset", km_json_count((double)offset), "bytes",
                                              km_json_count((double)bytes)));
    }
    return list;
}

json_t *km_info_index(const char *path, const km_describe_options *o, km_error *err) {
    km_index *x = km_index_load(path, err);
    if (!x) return NULL;
    int64_t blocks = 0;
    km_snapshot *rows = km_index_rows(x);
    for (int i = 0; o->verify && i < rows->n; i++) {
        int64_t n;
        if (km_kmx_verify(rows->at[i]->file, &n, err) != KM_OK) {
            km_snapshot_drop(rows);
            km_index_close(x);
            return NULL;
        }
        blocks += n;
    }
    km_index_info d = km_index_describe(x);
    double raw = (double)d.count * (double)d.dim * (double)km_dtype_size(d.dtype);
    json_t *v = json_pack(
        "{s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:I, s:o, s:i}",
        "vectors", (json_int_t)d.count, "deleted", (json_int_t)d.deleted, "dim", (json_int_t)d.dim,
        "anchors", (json_int_t)d.anchors, "metric", metric_names[d.metric], "mode",
        mode_names[d.mode], "rerank", rerank_names[d.rerank], "dtype", km_dtype_name(d.dtype),
        "code_bytes", (json_int_t)d.code_bytes, "bytes", km_json_count(d.total_bytes),
        "bytes_per_vector", km_json_number(d.count ? d.total_bytes / (double)d.count : NAN, 7),
        "ratio", km_json_number(raw / d.total_bytes, 6), "energy", km_json_number(d.energy, 9),
        "next_id", (json_int_t)d.next_id, "seed", km_json_count((double)d.seed), "parts", rows->n);
    json_object_set(v, "meta", x->meta);
    if (rows->n == 1) json_object_set_new(v, "sections", sections(rows->at[0]->file));
    if (o->verify) json_object_set_new(v, "verified_blocks", json_integer(blocks));
    km_snapshot_drop(rows);
    km_index_close(x);
    return json_pack("{s:s, s:o}", "kind", "index", "index", v);
}

json_t *km_info_rows(const char *path, km_error *err) {
    km_input *in = km_input_open(path, NULL, err);
    if (!in) return NULL;
    const km_row_layout *l = km_input_layout(in);
    json_t *v = json_pack("{s:s, s:{s:I, s:I, s:s, s:s, s:b, s:b}}", "kind", "vectors", "rows",
                          "vectors", (json_int_t)l->rows, "dim", (json_int_t)l->dim, "dtype",
                          km_row_layout_type(l), "order", l->columns ? "columns" : "rows",
                          "big_endian", l->swapped, "unsigned", l->is_unsigned);
    km_input_close(in);
    return v;
}
