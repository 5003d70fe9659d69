/* The parts of kermes info for vectors: indexes, manifests, and files of vectors. */
#include "cli/info_parts.h"
#include "cli/vectors.h"
#include "report/json.h"
#include "base/text.h"
#include "tensor/dtype.h"
#include "vector/index.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

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

json_t *km_info_index(const char *path, const km_info_options *o, km_error *err) {
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
        "anchors", (json_int_t)d.anchors, "metric", km_metric_names[d.metric], "mode",
        km_mode_names[d.mode], "rerank", km_rerank_names[d.rerank], "dtype", km_dtype_name(d.dtype),
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

static double number(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

void km_info_print_index(const json_t *x) {
    if (!x) return;
    char a[KM_NUMBER_TEXT];
    printf("  %-11s %.0f of %.0f dimensions, %s, %s", "vectors", number(x, "vectors"),
           number(x, "dim"), text_of(x, "dtype"), text_of(x, "metric"));
    if (number(x, "deleted") > 0) printf(", %.0f more are deleted", number(x, "deleted"));
    if (number(x, "parts") > 1) printf(", in %.0f parts", number(x, "parts"));
    printf("\n  %-11s %.0f anchors, %.0f bytes each, %s", "codes", number(x, "anchors"),
           number(x, "code_bytes"), text_of(x, "mode"));
    if (strcmp(text_of(x, "rerank"), "none") != 0)
        printf(", vectors kept as %s", text_of(x, "rerank"));
    printf("\n  %-11s %s, %.1f bytes a vector all counted, %.1f times smaller\n", "size",
           km_format_bytes(a, number(x, "bytes")), number(x, "bytes_per_vector"),
           number(x, "ratio"));
    printf("  %-11s energy %s", "measured", km_format_number(a, number(x, "energy")));
    const json_t *m = json_object_get(json_object_get(x, "meta"), "measured");
    if (json_is_number(json_object_get(m, "mse")))
        printf(", mse %s", km_format_number(a, number(m, "mse")));
    if (json_is_number(json_object_get(m, "recall@10")))
        printf(", recall@10 %.3f", number(m, "recall@10"));
    printf("\n  %-11s next %.0f\n", "ids", number(x, "next_id"));
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(x, "sections"), i, s)
        printf("  %-11s %-8s %s\n", i ? "" : "sections", text_of(s, "name"),
               km_format_bytes(a, number(s, "bytes")));
    if (json_object_get(x, "verified_blocks"))
        printf("  %-11s all %.0f blocks are as they were written\n", "verified",
               number(x, "verified_blocks"));
}

void km_info_print_rows(const json_t *r) {
    if (!r) return;
    printf("  %-11s %.0f of %.0f dimensions, %s%s%s\n", "vectors", number(r, "vectors"),
           number(r, "dim"), text_of(r, "dtype"),
           json_is_true(json_object_get(r, "big_endian")) ? ", big-endian" : "",
           strcmp(text_of(r, "order"), "columns") == 0 ? ", column after column" : "");
}
