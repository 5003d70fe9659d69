/* kermes compare: the same anchors learnt on the CPU and on a GPU: time, rounds, energy, speed-up. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "cli/anchor_line.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/vectors.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/json.h"
#include "report/table.h"
#include "base/text.h"
#include <math.h>
#include <string.h>

typedef struct compare_line {
    km_common common;
    km_input_line input;
    km_anchor_line training;
    km_anchor_training how;
    int64_t anchors, seed;
    bool small, large, verbose;
    const char *html;
} compare_line;

typedef struct outcome {
    bool there;
    char device[32];
    double seconds, energy;
    int rounds;
    int64_t anchors;
} outcome;

/* Points around random centres, so that there is something to find. */
static float *synthetic(int64_t n, int64_t dim, int64_t centres, uint64_t seed) {
    float *x = km_alloc(sizeof *x * (size_t)(n * dim));
    for (int64_t i = 0; x && i < n; i++) {
        uint64_t c = km_philox(seed, 1, (uint64_t)i).v[0] % (uint64_t)centres;
        for (int64_t j = 0; j < dim; j += 2) {
            km_philox4 at = km_philox(seed, 2 + c, (uint64_t)j);
            km_philox4 noise = km_philox(seed, 1u << 20, (uint64_t)(i * dim + j));
            double a, b, u, v;
            km_box_muller(at.v[0], at.v[1], &a, &b);
            km_box_muller(noise.v[0], noise.v[1], &u, &v);
            x[i * dim + j] = (float)(a + 0.5 * u);
            if (j + 1 < dim) x[i * dim + j + 1] = (float)(b + 0.5 * v);
        }
    }
    return x;
}

static km_status learn(const char *device, const compare_line *l, const float *x, int64_t n,
                       int64_t dim, outcome *out, km_round_log *log, km_error *err) {
    km_ctx *ctx = km_ctx_new(device, (int)l->common.threads);
    if (!ctx) return km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
    km_progress bar;
    km_anchor_training training = l->how;
    training.report = km_round_keep;
    training.user = log;
    km_index_options how = km_index_defaults();
    how.anchors = l->anchors;
    how.seed = (uint64_t)l->seed;
    how.training = &training;
    log->bar = &bar;
    km_status s = KM_OK;
    /* The second run is the one that counts: the first one loads kernels and fills pools. */
    for (int run = 0; s == KM_OK && run < 2; run++) {
        km_anchors_learnt a = {.size = sizeof a};
        log->lines = l->verbose && !l->common.quiet && run == 0; /* they are the same in both */
        if (log->lines) fprintf(stderr, "%s\n", km_ctx_device(ctx));
        km_round_clear(log);
        km_progress_begin(&bar, device, "rounds", l->how.rounds, l->common.quiet);
        double start = km_now();
        s = km_anchors_learn(ctx, x, n, dim, &how, NULL, &a);
        km_sync(ctx);
        km_progress_end(&bar);
        double seconds = km_now() - start;
        if (s != KM_OK) km_error_set(err, s, "%s", km_last_error());
        *out = (outcome){.there = true,
                         .seconds = seconds,
                         .energy = a.energy,
                         .rounds = a.rounds,
                         .anchors = a.anchors};
        snprintf(out->device, sizeof out->device, "%s", km_ctx_device(ctx));
        if (run == 0 && seconds > 5) break;
    }
    km_ctx_free(ctx);
    return s;
}

static double ratio(int64_t n, int64_t dim, int64_t anchors) {
    double ids = ceil(log2((double)(anchors > 1 ? anchors : 2))) / 8;
    return 4.0 * (double)(n * dim) / (4.0 * (double)(anchors * dim) + ids * (double)n);
}

static json_t *one(const outcome *o, int64_t n, int64_t dim) {
    if (!o->there) return json_null();
    return json_pack("{s:s, s:o, s:i, s:I, s:o, s:o}", "device", o->device, "seconds",
                     km_json_number(o->seconds, 6), "rounds", o->rounds, "anchors",
                     (json_int_t)o->anchors, "energy", km_json_number(o->energy, 9), "ratio",
                     km_json_number(ratio(n, dim, o->anchors), 5));
}

static void fill_table(km_table *t, const outcome *cpu, const outcome *gpu, int64_t n,
                       int64_t dim) {
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    km_table_init(t, "lrrrrr",
                  (const char *[]){"device", "time", "rounds", "anchors", "energy", "ratio"});
    for (int i = 0; i < 2; i++) {
        const outcome *o = i ? gpu : cpu;
        if (!o->there) continue;
        km_table_cell(t, "%s", o->device);
        km_table_cell(t, "%s", km_format_seconds(a, o->seconds));
        km_table_cell(t, "%d", o->rounds);
        km_table_cell(t, "%lld", (long long)o->anchors);
        km_table_cell(t, "%s", km_format_number(b, o->energy));
        km_table_cell(t, "%.1f", ratio(n, dim, o->anchors));
    }
}

/* ---- The page ---- */

/* One figure of each round, a line for each device. */
static void add_chart(km_text *page, const char *title, const km_round_log *logs[2],
                      const outcome *of[2], bool energy, double *room) {
    km_series lines[2];
    int n = 0;
    for (int i = 0; i < 2; i++) {
        if (!of[i]->there || !logs[i]->n) continue;
        double *x = room, *y = room + logs[i]->n;
        room = y + logs[i]->n;
        for (int r = 0; r < logs[i]->n; r++) {
            x[r] = logs[i]->at[r].round;
            y[r] = energy ? logs[i]->at[r].energy : logs[i]->at[r].temperature;
        }
        lines[n++] = (km_series){.name = of[i]->device, .x = x, .y = y, .n = logs[i]->n};
    }
    km_chart c = {.title = title,
                  .x = {.label = "round", .ticks = KM_TICKS_NUMBER},
                  .y = {.label = energy ? "mean squared distance" : "temperature",
                        .ticks = KM_TICKS_NUMBER,
                        .from_zero = !energy},
                  .series = lines,
                  .n_series = n};
    km_chart_html(&c, page);
}

static km_status write_page(const compare_line *l, const outcome *cpu, const outcome *gpu,
                            const km_round_log logs[2], int64_t n, int64_t dim, km_error *err) {
    const km_round_log *both[2] = {&logs[0], &logs[1]};
    const outcome *of[2] = {cpu, gpu};
    double *room = km_alloc(sizeof *room * (size_t)(2 * (logs[0].n + logs[1].n) + 1));
    if (!room) return km_no_memory_for(err, "the page");
    char lead[200];
    snprintf(lead, sizeof lead,
             "%lld anchors of %lld vectors of %lld dimensions; cooling %.40s, robust %.20s.",
             (long long)cpu->anchors, (long long)n, (long long)dim, l->training.cooling,
             l->training.robust);
    km_text page = {0};
    km_table t;
    km_html_begin(&page, "Kermes anchors", lead);
    fill_table(&t, cpu, gpu, n, dim);
    km_table_html(&t, &page);
    km_table_free(&t);
    km_html_section(&page, "Rounds",
                    "The energy is the mean squared distance of a vector to its anchor. Steps grow "
                    "as the temperature falls; at 0 they are those of plain k-means.");
    km_html_charts_begin(&page);
    add_chart(&page, "Energy by round", both, of, true, room);
    add_chart(&page, "Temperature by round", both, of, false, room);
    km_html_charts_end(&page);
    char footer[80];
    snprintf(footer, sizeof footer, "kermes %s", km_version());
    km_html_end(&page, footer);
    km_status s = km_html_write(&page, l->html, err);
    km_text_free(&page);
    km_free(room);
    return s;
}

/* ---- The text ---- */

static int tell(const compare_line *l, const outcome *cpu, const outcome *gpu,
                const km_round_log *rounds, const char *why, int64_t n, int64_t dim) {
    if (l->common.json) {
        json_t *o =
            json_pack("{s:s, s:I, s:I, s:o, s:o}", "kermes", km_version(), "vectors", (json_int_t)n,
                      "dim", (json_int_t)dim, "cpu", one(cpu, n, dim), "gpu", one(gpu, n, dim));
        if (gpu->there)
            json_object_set_new(o, "speedup", km_json_number(cpu->seconds / gpu->seconds, 4));
        else
            json_object_set_new(o, "gpu_missing", km_json_text(why));
        json_object_set_new(o, "training", km_round_json(rounds));
        return km_cli_print_json(o);
    }
    km_table t;
    fill_table(&t, cpu, gpu, n, dim);
    printf("%lld vectors of %lld dimensions\n", (long long)n, (long long)dim);
    bool ok = km_table_print(&t, stdout, 2);
    km_table_free(&t);
    if (km_round_converged(rounds))
        printf("converged after %d rounds\n", rounds->at[rounds->n - 1].round);
    if (gpu->there)
        printf("the GPU is %.1f times as fast; the energies differ by %.3f%%\n",
               cpu->seconds / gpu->seconds, 100 * fabs(gpu->energy / cpu->energy - 1));
    else
        printf("no GPU to compare with: %s\n", why);
    return ok ? KM_EXIT_OK : km_cli_fail("out of memory");
}

static int run(compare_line *l, const char *path) {
    km_error err = {0}, cpu_err = {0}, gpu_err = {0};
    int64_t n = l->large ? 100000 : l->small ? 1000 : 10000;
    int64_t dim = l->large ? 384 : l->small ? 64 : 128;
    float *x = NULL;
    if (path) {
        km_vectors *in = km_open_vectors(path, &l->input, &err);
        if (in) {
            n = km_vectors_count(in);
            dim = km_vectors_dim(in);
            x = km_alloc(sizeof *x * (size_t)(n * dim));
            if (!x)
                km_no_memory_for(&err, "%lld vectors", (long long)n);
            else if (km_vectors_read(in, 0, n, x) != KM_OK)
                km_error_set(&err, km_last_status(), "%s", km_last_error());
        }
        km_vectors_close(in);
    } else if (!(x = synthetic(n, dim, l->large ? 2000 : l->small ? 50 : 500, (uint64_t)l->seed))) {
        km_no_memory_for(&err, "%lld vectors", (long long)n);
    }
    if (!l->anchors) l->anchors = path ? 0 : l->large ? 1024 : l->small ? 32 : 256;
    outcome cpu = {0}, gpu = {0};
    km_round_log logs[2] = {0};
    if (err.code == KM_OK && learn("cpu", l, x, n, dim, &cpu, &logs[0], &cpu_err) != KM_OK) {
        if (path)
            km_error_set(&err, cpu_err.code, "'%s': %s", path, cpu_err.text);
        else
            err = cpu_err;
    }
    const char *device = strcmp(l->common.device, "auto") == 0 ? "gpu" : l->common.device;
    if (err.code == KM_OK && strcmp(device, "cpu") != 0)
        learn(device, l, x, n, dim, &gpu, &logs[1], &gpu_err);
    km_free(x);
    if (gpu_err.code != KM_OK) gpu.there = false;
    if (err.code == KM_OK && l->html) write_page(l, &cpu, &gpu, logs, n, dim, &err);
    int code = err.code != KM_OK ? km_cli_fail("compare: %s", err.text)
                                 : tell(l, &cpu, &gpu, &logs[0],
                                        gpu_err.code ? gpu_err.text : "--device cpu", n, dim);
    km_round_free(&logs[0]);
    km_round_free(&logs[1]);
    return code;
}

int km_command_compare(int argc, char **argv) {
    compare_line l = {.common = KM_COMMON_DEFAULTS,
                      .input = KM_INPUT_DEFAULTS,
                      .training = KM_ANCHOR_DEFAULTS(31, 0)};
    const km_option options[] = {
        {"small", KM_OPTION_FLAG, NULL, &l.small, 0, 0,
         "1,000 x 64 and 32 anchors instead of 10,000 x 128 and 256"},
        {"large", KM_OPTION_FLAG, NULL, &l.large, 0, 0,
         "100,000 x 384 and 1024 anchors instead of 10,000 x 128 and 256"},
        {"anchors", KM_OPTION_INT, "M", &l.anchors, 1, 1 << 20, "how many anchors"},
        KM_ANCHOR_ROWS(l.training, "at most so many (default: 31)",
                       "stop when a round improves the energy by less than this part\n"
                       "(default 0: when no vector changes its anchor)"),
        {"verbose", KM_OPTION_FLAG, NULL, &l.verbose, 0, 0, "a line on stderr for each round"},
        {"html", KM_OPTION_TEXT, "FILE", &l.html, 0, 0,
         "write a page with the rounds' energy and temperature as charts"},
        {"seed", KM_OPTION_INT, "N", &l.seed, 0, 9e15, "of the data and the anchors"},
        KM_INPUT_ROWS(l.input),
        KM_OPTION_DEVICE_ROW(l.common,
                             "what to compare the CPU with: auto, gpu, metal, cuda:N, vulkan:N"),
        KM_OPTION_THREADS_ROW(l.common),
        KM_OPTION_OUTPUT_ROWS(l.common),
        {0},
    };
    const km_spec spec = {
        .name = "compare",
        .words = "[VECTORS]",
        .summary = "Learns the same anchors on the CPU and on a GPU and compares.",
        .details = "Of the vectors in a file, or of made-up ones around random centres. Times "
                   "include\nseeding and the way to the device. ratio is that of anchors and "
                   "numbers of cells alone.\n",
        .options = options,
        .examples = "kermes compare\n"
                    "kermes compare --small --robust trimmed --cooling exponential:0.8 --json\n"
                    "kermes compare --verbose --html anchors.html\n"
                    "kermes compare --large --json\n"
                    "kermes compare vectors.npy --anchors 512\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words > 1) return km_cli_usage("compare takes one file at most");
    if (l.small && l.large) return km_cli_usage("compare: --small and --large exclude each other");
    km_error err = {0};
    if (!km_anchor_parse(&l.training, &l.how, &err)) return km_cli_usage("compare: %s", err.text);
    if (l.html && !km_cli_can_write(l.html, &err)) return km_cli_fail("compare: %s", err.text);
    km_cli_notes(l.common.quiet);
    return run(&l, args.n_words ? args.words[0] : NULL);
}
