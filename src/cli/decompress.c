/* kermes decompress: an index back to vectors, as .npy. */
#include "base/alloc.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/vectors.h"
#include "report/json.h"
#include "base/text.h"
#include "tensor/dtype.h"
#include "vector/index.h"
#include <string.h>

enum { BLOCK = 32768 };

typedef struct decompress_line {
    km_common common;
    const char *out, *anchors, *assignments, *ids, *ids_out, *dtype;
} decompress_line;

/* rows of dim numbers (0: a list of them) of `size` bytes. */
static km_status write_npy(const char *path, const char *type, size_t size, const void *data,
                           int64_t rows, int64_t dim, km_error *err) {
    char head[KM_NPY_HEAD];
    km_writer *w = km_writer_open(path, err);
    if (!w) return err->code;
    km_writer_put(w, head, km_npy_head(head, type, rows, dim));
    km_writer_put(w, data, size * (size_t)(rows * (dim ? dim : 1)));
    return km_writer_commit(w, err);
}

static km_status write_assignments(const char *path, km_index *x, const uint64_t *ids, int64_t n,
                                   km_error *err) {
    int32_t *anchors = km_alloc(sizeof *anchors * (size_t)(n + 1));
    if (!anchors) return km_no_memory(err);
    km_status s = km_index_assignments(x, ids, n, anchors);
    if (s != KM_OK)
        km_error_set(err, s, "%s", km_last_error());
    else
        s = write_npy(path, "<i4", sizeof *anchors, anchors, n, 0, err);
    km_free(anchors);
    return s;
}

static km_status write_rows(const decompress_line *l, km_index *x, const uint64_t *ids, int64_t n,
                            bool half, km_error *err) {
    char head[KM_NPY_HEAD];
    int64_t block = n < BLOCK ? n : BLOCK;
    km_snapshot *v = km_index_rows(x);
    km_row_place *places = km_index_places(x, v, ids, n, err);
    if (!places) {
        km_snapshot_drop(v);
        return err->code;
    }
    float *rows = km_alloc(sizeof *rows * (size_t)(block * x->dim + 1));
    km_threads *t = km_threads_new((int)l->common.threads);
    km_writer *w = rows ? km_writer_open(l->out, err) : NULL;
    km_status s = w ? KM_OK : rows ? err->code : km_no_memory(err);
    km_progress bar;
    km_progress_begin(&bar, "decompress", "vectors", n, l->common.quiet);
    if (w) km_writer_put(w, head, km_npy_head(head, half ? "<f2" : "<f4", n, x->dim));
    for (int64_t i = 0; s == KM_OK && i < n; i += block) {
        int64_t m = n - i < block ? n - i : block, cells = m * x->dim;
        s = km_index_restore(x, v, t, places + i, m, rows, err);
        if (s != KM_OK) break;
        uint16_t *to = (uint16_t *)(void *)rows; /* in place: never ahead of what is read */
        for (int64_t k = 0; half && k < cells; k++) {
            uint16_t h = km_f32_to_f16(rows[k]);
            memcpy(to + k, &h, 2);
        }
        s = km_writer_put(w, rows, (size_t)cells * (half ? 2 : 4));
        km_progress_step(&bar, i + m, NULL);
    }
    km_progress_end(&bar);
    if (w && err->code == KM_OK)
        s = km_writer_commit(w, err); /* also tells a failed put */
    else
        km_writer_abort(w);
    km_threads_free(t);
    km_snapshot_drop(v);
    km_free(rows);
    km_free(places);
    return s;
}

int km_command_decompress(int argc, char **argv) {
    decompress_line l = {.common = KM_COMMON_DEFAULTS, .dtype = "f32"};
    const km_option options[] = {
        {"out", KM_OPTION_TEXT, "FILE", &l.out, 0, 0, "the .npy to write (-o)"},
        {"anchors", KM_OPTION_TEXT, "FILE", &l.anchors, 0, 0,
         "write the anchors to this .npy, one a row, f32"},
        {"assignments", KM_OPTION_TEXT, "FILE", &l.assignments, 0, 0,
         "write each vector's anchor, a row of them, to this .npy, i32"},
        {"dtype", KM_OPTION_TEXT, "T", &l.dtype, 0, 0, "f32 (default) or f16"},
        {"ids", KM_OPTION_TEXT, "IDS", &l.ids, 0, 0,
         "only these, in ascending order: 3,7,10-19, or a file (default: all)"},
        {"ids-out", KM_OPTION_TEXT, "FILE", &l.ids_out, 0, 0, "write the rows' ids to this .npy"},
        KM_OPTION_DEVICE_ROW(l.common, "decoding runs on the CPU"),
        KM_OPTION_THREADS_ROW(l.common),
        KM_OPTION_OUTPUT_ROWS(l.common),
        {0},
    };
    const km_spec spec = {
        .name = "decompress",
        .words = "INDEX",
        .summary = "Writes an index's vectors, as well as its codes give them back, as .npy.",
        .details = "Rows stand in the order of their ids, assignments too. With cosine they have "
                   "length 1.\n",
        .options = options,
        .examples = "kermes decompress v.kmx -o vectors.npy\n"
                    "kermes decompress v.kmx -o some.npy --ids 10-19 --dtype f16\n"
                    "kermes decompress v.kmx --anchors anchors.npy --assignments of.npy\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words != 1 || (!l.out && !l.anchors && !l.assignments && !l.ids_out))
        return km_cli_usage(
            "decompress takes an index and --out, as in 'kermes decompress v.kmx -o vectors.npy', "
            "or --anchors, --assignments or --ids-out");
    static const char *const types[] = {"f32", "f16"};
    km_error err = {0};
    int type = km_choose("dtype", l.dtype, types, 2, &err);
    if (type < 0) return km_cli_usage("decompress: %s", err.text);
    km_cli_notes(l.common.quiet);
    int64_t n = 0, dim = 0, anchors = 0;
    km_index *x = km_index_load(args.words[0], &err);
    uint64_t *ids = !x ? NULL : l.ids ? km_read_ids(l.ids, &n, &err) : km_index_ids(x, &n, &err);
    if (ids && l.out) write_rows(&l, x, ids, n, type == 1, &err);
    if (ids && err.code == KM_OK && l.ids_out)
        write_npy(l.ids_out, "<u8", sizeof *ids, ids, n, 0, &err);
    if (ids && err.code == KM_OK && l.assignments)
        write_assignments(l.assignments, x, ids, n, &err);
    if (ids && err.code == KM_OK && l.anchors)
        write_npy(l.anchors, "<f4", sizeof *x->anchors, x->anchors, x->cells, x->dim, &err);
    if (x) dim = x->dim;
    if (x) anchors = x->cells;
    km_free(ids);
    km_index_close(x);
    if (err.code != KM_OK) return km_cli_fail("decompress: %s", err.text);
    if (l.common.json)
        return km_cli_print_json(json_pack("{s:s, s:o, s:I, s:I, s:I}", "kermes", km_version(),
                                           "out", l.out ? km_json_text(l.out) : json_null(),
                                           "vectors", (json_int_t)n, "dim", (json_int_t)dim,
                                           "anchors", (json_int_t)anchors));
    if (l.common.quiet) return KM_EXIT_OK;
    if (l.out) printf("%s: %lld vectors of %lld dimensions\n", l.out, (long long)n, (long long)dim);
    if (l.anchors)
        printf("%s: %lld anchors of %lld dimensions\n", l.anchors, (long long)anchors,
               (long long)dim);
    if (l.assignments) printf("%s: anchors of %lld vectors\n", l.assignments, (long long)n);
    return KM_EXIT_OK;
}
