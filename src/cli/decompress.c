/* kermes decompress: an index back to vectors, as .npy. */
#include "base/alloc.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/vectors.h"
#include "report/json.h"
#include "base/text.h"

typedef struct decompress_line {
    km_common common;
    const char *out, *anchors, *assignments, *ids, *ids_out, *dtype;
} decompress_line;

/* What the library said, as *err. */
static km_status taken(km_status s, km_error *err) {
    return s == KM_OK ? KM_OK : km_error_set(err, s, "%s", km_last_error());
}

/* The ids asked for, or all; the caller frees them. */
static uint64_t *choose_ids(const decompress_line *l, km_index *x, int64_t *n, km_error *err) {
    if (l->ids) return km_read_ids(l->ids, n, err);
    *n = km_index_ids(x, NULL, 0);
    uint64_t *ids = *n >= 0 ? km_alloc(sizeof *ids * (size_t)(*n + 1)) : NULL;
    if (*n >= 0 && !ids) km_no_memory_for(err, "%lld ids", (long long)*n);
    if (*n < 0 || (ids && km_index_ids(x, ids, *n) < 0)) taken(km_last_status(), err);
    return ids;
}

static void write_assignments(const char *path, km_index *x, const uint64_t *ids, int64_t n,
                              km_error *err) {
    int32_t *anchors = km_alloc(sizeof *anchors * (size_t)(n + 1));
    if (!anchors) km_no_memory(err);
    if (anchors && taken(km_index_assignments(x, ids, n, anchors), err) == KM_OK)
        taken(km_vectors_save(path, "i32", anchors, n, 0), err);
    km_free(anchors);
}

static void write_anchors(const char *path, km_index *x, km_error *err) {
    km_index_info i = km_index_describe(x);
    float *anchors = km_alloc(sizeof *anchors * (size_t)(i.anchors * i.dim));
    if (!anchors) km_no_memory(err);
    if (anchors && taken(km_index_anchors(x, anchors), err) == KM_OK)
        taken(km_vectors_save(path, "f32", anchors, i.anchors, i.dim), err);
    km_free(anchors);
}

static bool on_rows(void *user, int64_t done, int64_t total) {
    km_progress *bar = user;
    bar->total = total;
    km_progress_step(bar, done, NULL);
    return true;
}

static void write_rows(const decompress_line *l, km_index *x, const uint64_t *ids, int64_t n,
                       bool half, km_error *err) {
    km_progress bar;
    km_decompress_options o = km_decompress_defaults();
    o.ids = ids;
    o.n_ids = n;
    o.dtype = half ? KM_F16 : KM_F32;
    o.threads = (int)l->common.threads;
    o.progress = on_rows;
    o.user = &bar;
    km_progress_begin(&bar, "decompress", "vectors", n, l->common.quiet);
    if (km_index_decompress(x, l->out, &o) < 0) taken(km_last_status(), err);
    km_progress_end(&bar);
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
    int64_t n = 0;
    km_index *x = km_index_open(args.words[0]);
    if (!x) return km_cli_fail("decompress: %s", km_last_error());
    int64_t dim = km_index_describe(x).dim, anchors = km_index_describe(x).anchors;
    uint64_t *ids = choose_ids(&l, x, &n, &err);
    if (err.code == KM_OK && l.out) write_rows(&l, x, ids, n, type == 1, &err);
    if (err.code == KM_OK && l.ids_out) taken(km_vectors_save(l.ids_out, "u64", ids, n, 0), &err);
    if (err.code == KM_OK && l.assignments) write_assignments(l.assignments, x, ids, n, &err);
    if (err.code == KM_OK && l.anchors) write_anchors(l.anchors, x, &err);
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
