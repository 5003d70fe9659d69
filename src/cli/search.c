/* kermes search: the nearest vectors of one query, a file of queries, or stdin. */
#include "base/alloc.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/vectors.h"
#include "report/json.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>

typedef struct search_line {
    km_common common;
    km_input_line input;
    km_look_line look;
    const char *queries, *query, *allow, *deny, *format, *out, *base;
} search_line;

typedef struct answers {
    int64_t n, k;
    uint64_t *ids; /* (n, k) */
    float *dist;
} answers;

/* ---- Output ---- */

static void print_text(const answers *a) {
    for (int64_t q = 0; q < a->n; q++)
        for (int64_t i = 0; i < a->k && a->ids[q * a->k + i] != KM_NO_ID; i++)
            printf("%" PRId64 "\t%" PRId64 "\t%" PRIu64 "\t%.7g\n", q, i + 1, a->ids[q * a->k + i],
                   (double)a->dist[q * a->k + i]);
}

static int print_json(const answers *a, km_metric metric) {
    json_t *list = json_array();
    for (int64_t q = 0; q < a->n; q++) {
        json_t *ids = json_array(), *dist = json_array();
        for (int64_t i = 0; i < a->k && a->ids[q * a->k + i] != KM_NO_ID; i++) {
            uint64_t id = a->ids[q * a->k + i];
            json_array_append_new(ids, id <= INT64_MAX ? json_integer((json_int_t)id)
                                                       : json_real((double)id));
            json_array_append_new(dist, km_json_number(a->dist[q * a->k + i], 8));
        }
        json_array_append_new(list, json_pack("{s:o, s:o}", "ids", ids, "distances", dist));
    }
    return km_cli_print_json(json_pack("{s:s, s:I, s:s, s:o}", "kermes", km_version(), "k",
                                       (json_int_t)a->k, "metric", km_metric_names[metric],
                                       "queries", list));
}

static km_status write_npy(const answers *a, const char *path, bool ids, km_error *err) {
    km_status s = ids ? km_vectors_save(path, "u64", a->ids, a->n, a->k)
                      : km_vectors_save(path, "f32", a->dist, a->n, a->k);
    return s == KM_OK ? KM_OK : km_error_set(err, s, "%s", km_last_error());
}

/* ids as i32; 4294967295, and -1 in i32, where there are fewer than k */
static km_status write_ivecs(const answers *a, const char *path, km_error *err) {
    for (int64_t i = 0; i < a->n * a->k; i++)
        if (a->ids[i] > INT32_MAX && a->ids[i] != KM_NO_ID)
            return km_error_set(err, KM_ERR_RANGE,
                                "id %" PRIu64 " does not fit into ivecs; "
                                "--format npy has room",
                                a->ids[i]);
    km_writer *w = km_writer_open(path, err);
    if (!w) return err->code;
    int32_t k = (int32_t)a->k;
    for (int64_t q = 0; q < a->n; q++) {
        km_writer_put(w, &k, 4);
        for (int64_t i = 0; i < a->k; i++) {
            int32_t id = (int32_t)(uint32_t)a->ids[q * a->k + i];
            km_writer_put(w, &id, 4);
        }
    }
    return km_writer_commit(w, err);
}

/* "out.npy" -> "out-distances.npy" */
static void distances_path(char out[PATH_MAX], const char *path) {
    const char *dot = strrchr(path, '.'), *slash = strrchr(path, '/');
    int stem = dot && (!slash || dot > slash) ? (int)(dot - path) : (int)strlen(path);
    snprintf(out, PATH_MAX, "%.*s-distances%s", stem, path, path + stem);
}

static int give(const search_line *l, const char *format, const answers *a, km_metric metric) {
    km_error err = {0};
    char other[PATH_MAX];
    if (strcmp(format, "text") == 0) print_text(a);
    if (strcmp(format, "json") == 0) return print_json(a, metric);
    if (strcmp(format, "ivecs") == 0) write_ivecs(a, l->out, &err);
    if (strcmp(format, "npy") == 0 && write_npy(a, l->out, true, &err) == KM_OK) {
        distances_path(other, l->out);
        write_npy(a, other, false, &err);
    }
    return err.code == KM_OK ? KM_EXIT_OK : km_cli_fail("search: %s", err.text);
}

/* ---- Searching ---- */

/* Where a search runs: by the CPU's threads, or wherever a context is. */
typedef struct search_place {
    km_index *index;
    km_searcher *on; /* NULL: the CPU */
    int threads;
} search_place;

static km_status seek(const search_place *w, const float *queries, int64_t n, int64_t k,
                      const km_search_options *o, uint64_t *ids, float *dist, km_error *err) {
    km_status s = w->on ? km_searcher_search(w->on, queries, n, k, o, ids, dist)
                        : km_index_search(w->index, queries, n, k, o, w->threads, ids, dist);
    return s == KM_OK ? KM_OK : km_error_set(err, s, "%s", km_last_error());
}

static km_status find(const search_line *l, const search_place *w, const float *queries,
                      const km_search_options *o, answers *a, km_error *err) {
    km_index_info info = km_index_describe(w->index);
    if (!l->base) return seek(w, queries, a->n, a->k, o, a->ids, a->dist, err);
    int64_t m = o->rerank < a->k ? a->k : o->rerank;
    km_search_options first = *o;
    first.rerank = 0;
    uint64_t *ids = km_alloc(sizeof *ids * (size_t)(a->n * m));
    float *dist = km_alloc(sizeof *dist * (size_t)(a->n * m));
    km_vectors *base = km_open_vectors(l->base, &l->input, err);
    km_status s = !base ? err->code : KM_OK;
    if (s == KM_OK && (!ids || !dist)) s = km_no_memory(err);
    if (s == KM_OK && km_vectors_dim(base) != info.dim)
        s = km_error_set(err, KM_ERR_SHAPE, "'%s' holds vectors of another dimension", l->base);
    if (s == KM_OK) s = seek(w, queries, a->n, m, &first, ids, dist, err);
    if (s == KM_OK &&
        km_vectors_rerank(base, info.metric, queries, a->n, ids, m, a->k, a->ids, a->dist) != KM_OK)
        s = km_error_set(err, km_last_status(), "%s", km_last_error());
    km_vectors_close(base);
    km_free(ids);
    km_free(dist);
    return s;
}

static void search_once(const search_line *l, km_index *x, km_ctx *ctx, const float *queries,
                        const km_search_options *o, answers *a, km_error *err) {
    search_place w = {.index = x, .threads = (int)l->common.threads};
    if (ctx && !(w.on = km_searcher_new(ctx, x)))
        km_error_set(err, km_last_status(), "%s", km_last_error());
    else
        find(l, &w, queries, o, a, err);
    km_searcher_free(w.on);
}

static void search_all(const search_line *l, km_index *x, km_ctx *ctx, const float *queries,
                       const km_search_options *o, answers *a, km_error *err) {
    km_common common = l->common;
    search_once(l, x, ctx, queries, o, a, err);
    if (err->code == KM_OK || !km_cli_lost(ctx, &common)) return;
    *err = (km_error){0};
    search_once(l, x, NULL, queries, o, a, err);
}

static int run(const search_line *l, const char *path, const char *format) {
    km_error err = {0};
    km_index *x = km_index_open(path);
    answers a = {.k = l->look.k};
    uint64_t *allow = NULL, *deny = NULL;
    int64_t n_allow = 0, n_deny = 0;
    float *queries = NULL;
    km_ctx *ctx = NULL;
    if (!x) return km_cli_fail("search: %s", km_last_error());
    km_index_info info = km_index_describe(x);
    queries = km_read_queries(l->queries, l->query, &l->input, info.dim, &a.n, &err);
    if (queries && l->allow) allow = km_read_ids(l->allow, &n_allow, &err);
    if (queries && l->deny && err.code == KM_OK) deny = km_read_ids(l->deny, &n_deny, &err);
    if (err.code == KM_OK) {
        km_search_options o = km_look_options(&l->look);
        o.allow = allow;
        o.n_allow = (size_t)n_allow;
        o.deny = deny;
        o.n_deny = (size_t)n_deny;
        a.ids = km_alloc(sizeof *a.ids * (size_t)(a.n * a.k));
        a.dist = km_alloc(sizeof *a.dist * (size_t)(a.n * a.k));
        if (!a.ids || !a.dist)
            km_no_memory_for(&err, "%lld answers of %lld", (long long)a.n, (long long)a.k);
        else if (strcmp(l->common.device, "auto") != 0 &&
                 !(ctx = km_ctx_new(l->common.device, (int)l->common.threads)))
            km_error_set(&err, KM_ERR_DEVICE, "%s", km_last_error());
        else
            search_all(l, x, ctx, queries, &o, &a, &err);
    }
    int code =
        err.code == KM_OK ? give(l, format, &a, info.metric) : km_cli_fail("search: %s", err.text);
    km_ctx_free(ctx);
    km_free(queries);
    km_free(allow);
    km_free(deny);
    km_free(a.ids);
    km_free(a.dist);
    km_index_close(x);
    return code;
}

static int check_line(const search_line *l, const km_args *args, const char *format) {
    bool to_file = strcmp(format, "npy") == 0 || strcmp(format, "ivecs") == 0;
    if (args->n_words != 1)
        return km_cli_usage("search takes one index, as in 'kermes search v.kmx --queries q.npy'");
    if (!l->queries == !l->query)
        return km_cli_usage("search: --queries FILE (- for stdin) or --query '0.1,0.2,...', one of "
                            "them");
    if (to_file && !l->out) return km_cli_usage("search: --format %s needs --out FILE", format);
    if (!to_file && l->out)
        return km_cli_usage("search: --out is for --format npy and ivecs; text goes to stdout");
    if (l->base && !l->look.rerank) return km_cli_usage("search: --base goes with --exact-rerank");
    return km_look_check(&l->look, "search");
}

int km_command_search(int argc, char **argv) {
    search_line l = {
        .common = KM_COMMON_DEFAULTS, .input = KM_INPUT_DEFAULTS, .look = KM_LOOK_DEFAULTS};
    const km_option options[] = {
        {"queries", KM_OPTION_TEXT, "FILE", &l.queries, 0, 0,
         "vectors to look for; - reads stdin: .npy, or lines of numbers"},
        {"query", KM_OPTION_TEXT, "X,Y,...", &l.query, 0, 0, "one vector, on the line itself"},
        KM_LOOK_ROWS(l.look, 100000, "how many neighbours (-k; default: 10)",
                     "compare the best candidates again, by vectors kept with compress\n"
                     "--rerank, or by --base"),
        {"base", KM_OPTION_TEXT, "FILE", &l.base, 0, 0,
         "the original vectors, whose row numbers are the ids"},
        {"allow", KM_OPTION_TEXT, "IDS", &l.allow, 0, 0,
         "only these ids: 3,7,10-19, or a file (.npy, or one a line)"},
        {"deny", KM_OPTION_TEXT, "IDS", &l.deny, 0, 0, "none of these ids"},
        {"format", KM_OPTION_TEXT, "F", &l.format, 0, 0,
         "text (default: query, rank, id, distance), json, npy or ivecs"},
        {"out", KM_OPTION_TEXT, "FILE", &l.out, 0, 0,
         "for npy (ids; distances beside it) and ivecs (-o)"},
        KM_INPUT_ROWS(l.input),
        KM_OPTION_DEVICE_ROW(
            l.common,
            "a GPU, where one is named, meets\nwhole batches of queries; else the CPU searches"),
        KM_OPTION_THREADS_ROW(l.common),
        KM_OPTION_OUTPUT_ROWS(l.common),
        {0},
    };
    const km_spec spec = {
        .name = "search",
        .words = "INDEX",
        .summary = "Finds the nearest vectors in an index made by 'kermes compress'.",
        .details = "Distances are squared L2, minus the inner product, or 1 - cosine: smaller is "
                   "nearer.\nINDEX may be the manifest that compress wrote under mpirun.\n",
        .options = options,
        .examples = "kermes search v.kmx --queries q.npy -k 10\n"
                    "kermes search v.kmx --query '0.1, 0.7, -0.2' -k 3 --json\n"
                    "my-embedder 'some words' | kermes search v.kmx --queries -\n"
                    "kermes search v.kmx --queries q.npy --probe 16 --exact-rerank --base "
                    "vectors.npy\n"
                    "kermes search v.kmx --queries q.npy --format npy -o found.npy\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    static const char *const formats[] = {"text", "json", "npy", "ivecs"};
    km_error err = {0};
    const char *format = l.format ? l.format : l.common.json ? "json" : "text";
    if (km_choose("format", format, formats, 4, &err) < 0)
        return km_cli_usage("search: %s", err.text);
    code = check_line(&l, &args, format);
    if (code != KM_EXIT_OK) return code;
    km_cli_notes(l.common.quiet);
    return run(&l, args.words[0], format);
}
