/* kermes add, delete and merge: changes to an index, which is written anew beside itself. */
#include "base/alloc.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/vectors.h"
#include "report/json.h"
#include "base/text.h"
#include <inttypes.h>
#include <sys/stat.h>

typedef struct change_line {
    km_common common;
    km_input_line input;
    const char *out, *ids;
    bool compact, missing_ok, skip_bad, shift;
} change_line;

/* What the library said last, as *err. */
static void taken(km_error *err) { km_error_set(err, km_last_status(), "%s", km_last_error()); }

/* Writes x to `path` and says what there is now. */
static int finish(const change_line *l, const char *command, km_index *x, const char *path,
                  const char *verb, int64_t count, km_error *err) {
    struct stat st = {0};
    if (err->code == KM_OK && km_index_save(x, path, l->compact) != KM_OK) taken(err);
    if (err->code != KM_OK) return km_cli_fail("%s: %s", command, err->text);
    km_index_info now = km_index_describe(x);
    double bytes = stat(path, &st) == 0 ? (double)st.st_size : now.total_bytes;
    if (l->common.json)
        return km_cli_print_json(
            json_pack("{s:s, s:o, s:I, s:I, s:o, s:I}", "kermes", km_version(), "index",
                      km_json_text(path), verb, (json_int_t)count, "vectors", (json_int_t)now.count,
                      "bytes", km_json_count(bytes), "next_id", (json_int_t)now.next_id));
    char a[KM_NUMBER_TEXT];
    if (!l->common.quiet)
        printf("%s: %lld %s, %lld vectors now, %s\n", path, (long long)count, verb,
               (long long)now.count, km_format_bytes(a, bytes));
    return KM_EXIT_OK;
}

/* An index that will be written over; a manifest has to be merged into one file first. */
static km_index *open_for_change(const char *path, const char *out, km_error *err) {
    km_index *x = km_index_open(path);
    if (!x) taken(err);
    if (!x || km_index_describe(x).segments <= 1 || out) return x;
    km_error_set(err, KM_ERR_STATE,
                 "'%s' is a manifest; 'kermes merge %s -o one.kmx' makes one index of it", path,
                 path);
    km_index_close(x);
    return NULL;
}

static km_ctx *open_ctx(const km_common *c, km_error *err) {
    km_ctx *ctx = km_ctx_new(c->device, (int)c->threads);
    if (!ctx) km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
    return ctx;
}

/* ---- add ---- */

static int add(const change_line *l, const char *path, const char *vectors) {
    km_error err = {0};
    int64_t added = 0;
    change_line again = *l;
    km_index *x = open_for_change(path, l->out, &err);
    km_vectors *in = x ? km_open_vectors(vectors, &l->input, &err) : NULL;
    uint64_t *ids = in && l->ids ? km_read_ids_of(l->ids, km_vectors_count(in), &err) : NULL;
    km_ctx *ctx = in && err.code == KM_OK ? open_ctx(&l->common, &err) : NULL;
    if (ctx && km_index_add_from(ctx, x, in, ids, l->skip_bad, &added) != KM_OK) taken(&err);
    bool lost = err.code != KM_OK && km_cli_lost(ctx, &again.common);
    int code = lost ? KM_EXIT_FAILED
               : x  ? finish(l, "add", x, l->out ? l->out : path, "added", added, &err)
                    : km_cli_fail("add: %s", err.text);
    km_ctx_free(ctx);
    km_free(ids);
    km_vectors_close(in);
    km_index_close(x); /* some may have been added: it is read again */
    return lost ? add(&again, path, vectors) : code;
}

int km_command_add(int argc, char **argv) {
    change_line l = {.common = KM_COMMON_DEFAULTS, .input = KM_INPUT_DEFAULTS};
    const km_option options[] = {
        {"ids", KM_OPTION_TEXT, "FILE", &l.ids, 0, 0,
         "the vectors' ids, .npy or one a line (default: counted on)"},
        KM_OVER_INDEX_ROW(l.out),
        {"compact", KM_OPTION_FLAG, NULL, &l.compact, 0, 0, "drop deleted vectors"},
        KM_SKIP_BAD_ROW(l.skip_bad),
        KM_INPUT_ROWS(l.input),
        KM_COMPUTE_ROWS(l.common),
        {0},
    };
    const km_spec spec = {
        .name = "add",
        .words = "INDEX VECTORS",
        .summary = "Adds vectors to an index.",
        .details = "Anchors and codes stay as they were learnt: where the new vectors are of "
                   "another kind,\ncompress everything anew. INDEX changes only when the new one "
                   "is complete.\n",
        .options = options,
        .examples = "kermes add v.kmx more.npy\n"
                    "kermes add v.kmx more.npy --ids more-ids.npy -o larger.kmx\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words != 2)
        return km_cli_usage("add takes an index and a file, as in 'kermes add v.kmx more.npy'");
    km_cli_notes(l.common.quiet);
    return add(&l, args.words[0], args.words[1]);
}

/* ---- delete ---- */

int km_command_delete(int argc, char **argv) {
    change_line l = {.common = KM_COMMON_DEFAULTS};
    const km_option options[] = {
        {"ids", KM_OPTION_TEXT, "IDS", &l.ids, 0, 0, "3,7,10-19, or a file (.npy, or one a line)"},
        {"missing-ok", KM_OPTION_FLAG, NULL, &l.missing_ok, 0, 0,
         "ids that are not there are no error"},
        {"compact", KM_OPTION_FLAG, NULL, &l.compact, 0, 0,
         "drop deleted vectors from the file; alone, of earlier deletes"},
        KM_OVER_INDEX_ROW(l.out),
        KM_OPTION_DEVICE_ROW(l.common, "deleting runs on the CPU"),
        KM_OPTION_OUTPUT_ROWS(l.common),
        {0},
    };
    const km_spec spec = {
        .name = "delete",
        .words = "INDEX",
        .summary = "Deletes vectors from an index by their ids.",
        .details = "They are marked, and dropped from the file with --compact or when more than "
                   "an eighth\nof it is marked. Ids are never given again.\n",
        .options = options,
        .examples = "kermes delete v.kmx --ids 3,7,10-19\n"
                    "kermes delete v.kmx --ids old.txt --missing-ok --compact\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words != 1 || (!l.ids && !l.compact))
        return km_cli_usage(
            "delete takes an index and --ids, as in 'kermes delete v.kmx --ids 3,7'");
    km_cli_notes(l.common.quiet);
    km_error err = {0};
    int64_t n = 0, removed = 0;
    km_index *x = open_for_change(args.words[0], l.out, &err);
    uint64_t *ids = x && l.ids ? km_read_ids(l.ids, &n, &err) : NULL;
    if (ids) {
        int64_t before = km_index_describe(x).count;
        km_status s =
            l.missing_ok ? km_index_delete_some(x, ids, n, NULL) : km_index_delete(x, ids, n);
        if (s != KM_OK) taken(&err);
        removed = before - km_index_describe(x).count;
    }
    code = x ? finish(&l, "delete", x, l.out ? l.out : args.words[0], "deleted", removed, &err)
             : km_cli_fail("delete: %s", err.text);
    km_free(ids);
    km_index_close(x);
    return code;
}

/* ---- merge ---- */

static void merge_one(km_ctx *ctx, km_index *x, const char *path, bool shift, km_error *err) {
    km_index *other = km_index_open(path);
    uint64_t by = 0;
    if (!other)
        taken(err);
    else if (km_index_merge(ctx, x, other, shift ? &by : NULL) != KM_OK)
        km_error_set(err, km_last_status(), "'%s': %s", path, km_last_error());
    else if (shift)
        km_note(KM_LOG_INFO, "ids of '%s' are now %" PRIu64 " more than they were", path, by);
    km_index_close(other);
}

static int merge(const change_line *l, const km_args *args) {
    km_error err = {0};
    change_line again = *l;
    km_index *x = km_index_open(args->words[0]);
    if (!x) taken(&err);
    km_ctx *ctx = x ? open_ctx(&l->common, &err) : NULL;
    for (int i = 1; ctx && i < args->n_words && err.code == KM_OK; i++)
        merge_one(ctx, x, args->words[i], l->shift, &err);
    bool lost = err.code != KM_OK && km_cli_lost(ctx, &again.common);
    int code = lost ? KM_EXIT_FAILED
               : x  ? finish(l, "merge", x, l->out, "merged", args->n_words, &err)
                    : km_cli_fail("merge: %s", err.text);
    km_ctx_free(ctx);
    km_index_close(x);
    return lost ? merge(&again, args) : code;
}

int km_command_merge(int argc, char **argv) {
    change_line l = {.common = KM_COMMON_DEFAULTS, .compact = true};
    const km_option options[] = {
        KM_NEW_INDEX_ROW(l.out),
        {"shift-ids", KM_OPTION_FLAG, NULL, &l.shift, 0, 0,
         "move the ids of each further index behind those before it"},
        KM_COMPUTE_ROWS(l.common),
        {0},
    };
    const km_spec spec = {
        .name = "merge",
        .words = "INDEX [INDEX ...]",
        .summary = "Makes one index of several, or of a manifest.",
        .details =
            "Ids must be different, or be made so. Indexes with the anchors and codes of the first are "
            "taken over\nas they are; others are decoded and coded anew, which costs a "
            "little recall. Deleted\nvectors are dropped.\n",
        .options = options,
        .examples = "kermes merge a.kmx b.kmx -o all.kmx\n"
                    "kermes merge monday.kmx tuesday.kmx -o both.kmx --shift-ids\n"
                    "kermes merge ranks.kmx -o one.kmx\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words < 1 || !l.out)
        return km_cli_usage("merge takes indexes and --out, as in 'kermes merge a.kmx b.kmx -o "
                            "all.kmx'");
    km_cli_notes(l.common.quiet);
    return merge(&l, &args);
}
