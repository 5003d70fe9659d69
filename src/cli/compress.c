/* kermes compress: from a file of vectors to a searchable index. */
#include "base/alloc.h"
#include "base/clock.h"
#include "cli/anchor_line.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/vectors.h"
#include "report/json.h"
#include "base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct compress_line { /* the command line */
    km_common common;
    km_input_line input;
    km_anchor_line training;
    const char *out, *anchors, *metric, *mode, *rerank, *ids, *queries;
    double bytes, ratio, recall;
    int64_t seed;
    km_sizes memory;
    bool skip_bad, lloyd, verbose;
} compress_line;

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
}

typedef struct compress_show {
    km_progress bar;
    const char *stage;
    bool quiet;
    km_round_log rounds;
} compress_show;

static bool on_progress(void *user, const char *stage, int64_t done, int64_t total) {
    compress_show *w = user;
    if (!w->stage || strcmp(w->stage, stage) != 0) {
        if (w->stage) km_progress_end(&w->bar);
        km_progress_begin(&w->bar, stage, "", total, w->quiet);
        w->stage = stage;
    }
    km_progress_step(&w->bar, done, strcmp(stage, "anchors") == 0 ? w->rounds.note : NULL);
    return !interrupted;
}

static bool parse_options(const compress_line *l, km_index_options *o, km_error *err) {
    int metric, mode, rerank;
    if (!km_choose_3("metric", l->metric, km_metric_names, &metric, err) ||
        !km_choose_3("mode", l->mode, km_mode_names, &mode, err) ||
        !km_choose_3("kind of re-ranking", l->rerank, km_rerank_names, &rerank, err))
        return false;
    *o = (km_index_options){.size = sizeof(km_index_options),
                            .metric = (km_metric)metric,
                            .mode = (km_index_mode)mode,
                            .rerank = (km_index_vectors)rerank,
                            .bytes = l->bytes,
                            .ratio = l->ratio,
                            .recall = l->recall,
                            .queries = l->queries,
                            .seed = (uint64_t)l->seed,
                            .memory = l->memory.n ? (size_t)l->memory.value[0] : 0,
                            .skip_bad = l->skip_bad,
                            .lloyd = l->lloyd};
    if (strcmp(l->anchors, "auto") != 0) {
        char *end;
        errno = 0;
        o->anchors = strtoll(l->anchors, &end, 10);
        if (*end || errno || o->anchors < 1 || o->anchors > 1 << 24) {
            km_error_set(err, KM_ERR_RANGE, "--anchors takes a number from 1 to 16777216, or auto");
            return false;
        }
    }
    if (l->memory.n > 1) {
        km_error_set(err, KM_ERR_RANGE, "--memory takes one size, as in 1G");
        return false;
    }
    return true;
}

static json_t *report(const compress_line *l, const char *in, const km_compressed *m,
                      const km_round_log *rounds, double seconds) {
    json_t *o = json_pack(
        "{s:s, s:o, s:o, s:I, s:I, s:I, s:I, s:i, s:o, s:o, s:o, s:I, s:o, s:o, s:o, "
        "s:i, s:o, s:s, s:s, s:o}",
        "kermes", km_version(), "in", km_json_text(in), "out", km_json_text(l->out), "vectors",
        (json_int_t)m->count, "skipped", (json_int_t)m->skipped, "dim", (json_int_t)m->dim,
        "anchors", (json_int_t)m->anchors, "parts", m->parts, "bytes", km_json_count(m->bytes),
        "bytes_per_vector", km_json_number(m->bytes / (double)m->count, 7), "ratio",
        km_json_number(m->input_bytes / m->bytes, 6), "code_bytes", (json_int_t)m->code_bytes,
        "energy", km_json_number(m->energy, 9), "mse", km_json_number(m->mse, 9), "recall@10",
        km_json_number(m->recall, 6), "rounds", m->rounds, "training", km_round_json(rounds),
        "metric", l->metric, "mode", l->mode, "seconds", km_json_number(seconds, 5));
    if (!isnan(m->recall)) {
        json_object_set_new(o, "recall_queries", json_integer(m->recall_queries));
        json_object_set_new(o, "recall_interval",
                            json_pack("[o, o]", km_json_number(m->recall_low, 6),
                                      km_json_number(m->recall_high, 6)));
    }
    return o;
}

static void print_made(const compress_line *l, const km_compressed *m, const km_round_log *rounds,
                       double seconds) {
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    printf("%s: %lld vectors of %lld dimensions, %lld anchor%s, ", l->out, (long long)m->count,
           (long long)m->dim, (long long)m->anchors, m->anchors == 1 ? "" : "s");
    if (m->code_bytes)
        printf("codes of %zu bytes", m->code_bytes);
    else
        printf("no codes");
    if (m->parts > 1) printf(", in %d parts", m->parts);
    printf("\n  %-10s %s, %.1f bytes a vector all counted, %.1f times smaller\n", "size",
           km_format_bytes(a, m->bytes), m->bytes / (double)m->count, m->input_bytes / m->bytes);
    if (!isnan(m->recall))
        printf("  %-10s %.3f (95%%: %.3f to %.3f), %lld %s against all\n", "recall@10", m->recall,
               m->recall_low, m->recall_high, (long long)m->recall_queries,
               l->queries ? "queries" : "held-out vectors");
    printf("  %-10s %s a vector, %s without codes\n", "error", km_format_number(a, m->mse),
           km_format_number(b, m->energy));
    printf("  %-10s %d%s\n", "rounds", m->rounds,
           km_round_converged(rounds) && rounds->n == m->rounds ? ", converged" : "");
    if (m->skipped)
        printf("  %-10s %lld vectors that are not finite, first %lld\n", "skipped",
               (long long)m->skipped, (long long)m->first_skipped);
    printf("  %-10s %s\n", "time", km_format_seconds(a, seconds));
}

static int run(const compress_line *l, const char *in_path, km_index_options *o) {
    km_error err = {0};
    bool first = km_rank() == 0;
    km_compressed made = {.size = sizeof made, .tells = first};
    compress_show w = {.quiet = l->common.quiet || !first};
    o->progress = on_progress;
    o->user = &w;
    o->comm = "auto";
    km_anchor_training training = *o->training;
    o->training = &training;
    if (first) { /* every rank trains, and hears the same */
        w.rounds.lines = l->verbose && !l->common.quiet;
        w.rounds.bar = &w.bar;
        training.report = km_round_keep;
        training.user = &w.rounds;
    }
    km_vectors *in = km_open_vectors(in_path, &l->input, &err);
    uint64_t *ids = in && l->ids ? km_read_ids_of(l->ids, km_vectors_count(in), &err) : NULL;
    km_ctx *ctx = NULL;
    double start = km_now();
    if (err.code == KM_OK && !(ctx = km_ctx_new(l->common.device, (int)l->common.threads)))
        km_error_set(&err, KM_ERR_DEVICE, "%s", km_last_error());
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};
    sigaction(SIGINT, &act, NULL); /* stops between blocks; a second one at once */
    if (ctx && km_index_compress_from(ctx, in, ids, l->out, o, &made) != KM_OK)
        km_error_set(&err, km_last_status(), "%s", km_last_error());
    if (w.stage) km_progress_end(&w.bar);
    compress_line again = *l;
    bool lost = err.code != KM_OK && km_cli_lost(ctx, &again.common);
    km_ctx_free(ctx);
    km_vectors_close(in);
    km_free(ids);
    if (lost) {
        km_round_free(&w.rounds);
        return run(&again, in_path, o);
    }
    int code = KM_EXIT_OK;
    double seconds = km_now() - start;
    if (err.code != KM_OK)
        code = made.tells ? km_cli_fail("compress: %s", err.text) : KM_EXIT_FAILED;
    else if (first && l->common.json)
        code = km_cli_print_json(report(l, in_path, &made, &w.rounds, seconds));
    else if (first && !l->common.quiet)
        print_made(l, &made, &w.rounds, seconds);
    km_round_free(&w.rounds);
    return code;
}

int km_command_compress(int argc, char **argv) {
    compress_line l = {.common = KM_COMMON_DEFAULTS,
                       .input = KM_INPUT_DEFAULTS,
                       .training = KM_ANCHOR_DEFAULTS(25, 1e-4),
                       .anchors = "auto",
                       .metric = "l2",
                       .mode = "fast",
                       .rerank = "none"};
    const km_option options[] = {
        KM_NEW_INDEX_ROW(l.out),
        {"anchors", KM_OPTION_TEXT, "M", &l.anchors, 0, 0,
         "how many anchors, or auto (default): by the number of vectors"},
        {"bytes", KM_OPTION_NUMBER, "N", &l.bytes, 1, 1 << 20,
         "bytes of a vector's code (default: half a byte a dimension)"},
        {"ratio", KM_OPTION_NUMBER, "R", &l.ratio, 1, 10000,
         "an index R times smaller than the vectors, everything counted"},
        {"recall", KM_OPTION_NUMBER, "X", &l.recall, 0.01, 0.999,
         "the smallest codes that reach recall@10 of X against all vectors"},
        {"queries", KM_OPTION_TEXT, "FILE", &l.queries, 0, 0,
         "measure recall with these (default: 1,000 of the vectors, held out)"},
        {"mode", KM_OPTION_TEXT, "M", &l.mode, 0, 0,
         "fast (default), dense (best recall for the bytes), or anchors-only"},
        {"metric", KM_OPTION_TEXT, "M", &l.metric, 0, 0,
         "l2 (default), ip (inner product), or cosine"},
        {"rerank", KM_OPTION_TEXT, "T", &l.rerank, 0, 0,
         "keep vectors as f16 or int8 for search --exact-rerank (default: none)"},
        {"ids", KM_OPTION_TEXT, "FILE", &l.ids, 0, 0,
         "the vectors' ids, .npy or one a line (default: 0, 1, 2, ...)"},
        KM_SKIP_BAD_ROW(l.skip_bad),
        {"memory", KM_OPTION_SIZES, "SIZE", &l.memory, 0, 0,
         "how much memory to take, as in 1G (default: 2G)"},
        {"lloyd", KM_OPTION_FLAG, NULL, &l.lloyd, 0, 0,
         "learn anchors by plain Lloyd, without annealing and maintenance"},
        KM_ANCHOR_ROWS(l.training, "of training anchors, at most (default: 25)",
                       "stop when a round improves the energy by less than this part\n"
                       "(default 1e-4; 0: when no vector changes its anchor)"),
        {"verbose", KM_OPTION_FLAG, NULL, &l.verbose, 0, 0,
         "a line on stderr for each round of training anchors"},
        {"seed", KM_OPTION_INT, "N", &l.seed, 0, 9e15, "another one, another index (default: 0)"},
        KM_INPUT_ROWS(l.input),
        KM_COMPUTE_ROWS(l.common),
        {0},
    };
    const km_spec spec = {
        .name = "compress",
        .words = "VECTORS",
        .summary = "Turns embeddings into a small index that 'kermes search' searches.",
        .details =
            "VECTORS is .npy (f4, f2, f8, u1, i1), .fvecs, .bvecs, .ivecs, .safetensors, IDX, or "
            "raw\nnumbers with --dim. It is read in blocks and may be larger than memory. The "
            "index\nappears only when it is complete; one that is there already stays until then.\n"
            "Under mpirun every rank takes a part, and the result is a manifest of indexes.\n",
        .options = options,
        .examples = "kermes compress vectors.npy -o v.kmx\n"
                    "kermes compress vectors.npy -o v.kmx --recall 0.95 --metric cosine\n"
                    "kermes compress base.fvecs -o v.kmx --bytes 32 --mode dense\n"
                    "kermes compress big.npy -o v.kmx --ratio 16 --memory 1G --device gpu\n"
                    "kermes compress vectors.npy -o v.kmx --robust trimmed --merge 0.01 --verbose\n"
                    "mpirun -n 4 kermes compress big.npy -o v.kmx\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words != 1 || !l.out)
        return km_cli_usage("compress takes one file and --out, as in 'kermes compress vectors.npy "
                            "-o v.kmx'");
    km_cli_notes(l.common.quiet);
    km_error err = {0};
    km_index_options o;
    km_anchor_training training;
    if (!parse_options(&l, &o, &err) || !km_anchor_parse(&l.training, &training, &err))
        return km_cli_usage("compress: %s", err.text);
    o.training = &training;
    return run(&l, args.words[0], &o);
}
