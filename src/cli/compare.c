/* kermes compare: the same anchors learnt on the CPU and on a GPU: time, rounds, energy, speed-up. */
#include "base/alloc.h"
#include "base/progress.h"
#include "base/rng.h"
#include "cli/cli.h"
#include "cli/vectors.h"
#include "report/json.h"
#include "report/table.h"
#include "report/text.h"
#include "vector/anchors.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct line {
    km_common common;
    km_input_line input;
    int64_t anchors, rounds, seed;
    bool small, large;
    const char *robust_name, *cooling_name;
    double momentum, temperature, tolerance, cooling;
    int64_t maintain;
    km_robust robust;
    json_t *log; /* the rounds of the run that is told */
} line;

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

/* ---- Training ---- */

static bool parse_robust(const char *name, km_robust *robust) {
    static const struct {
        const char *name;
        km_robust robust;
    } all[] = {
        {"huber", KM_ROBUST_HUBER}, {"trimmed", KM_ROBUST_TRIMMED}, {"mean", KM_ROBUST_NONE}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0) {
            *robust = all[i].robust;
            return true;
        }
    return false;
}

/* "linear", which is 0, or "exponential:R". */
static bool parse_cooling(const char *name, double *rate) {
    static const char word[] = "exponential:";
    char *end = NULL;
    *rate = 0;
    if (strcmp(name, "linear") == 0) return true;
    if (strncmp(name, word, sizeof word - 1) != 0) return false;
    *rate = strtod(name + sizeof word - 1, &end);
    return end != name + sizeof word - 1 && !*end && *rate > 0 && *rate < 1;
}

static void keep_round(void *user, const km_anchor_round *r) {
    json_array_append_new(
        user,
        json_pack("{s:i, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:b}", "round", r->round, "temperature",
                  km_json_number(r->temperature, 6), "energy", km_json_number(r->energy, 9),
                  "change", km_json_number(r->change, 6), "reassigned", (json_int_t)r->reassigned,
                  "merged", (json_int_t)r->merged, "split", (json_int_t)r->split, "anchors",
                  (json_int_t)r->anchors, "converged", r->converged));
}

static km_status learn(const char *device, const line *l, const float *x, int64_t n, int64_t dim,
                       outcome *out, km_error *err) {
    km_ctx *ctx = km_ctx_new(device, (int)l->common.threads);
    if (!ctx) return km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
    km_anchor_options how = {.count = l->anchors,
                             .rounds = (int)l->rounds,
                             .seed = (uint64_t)l->seed,
                             .robust = l->robust,
                             .heat = l->temperature,
                             .cooling = l->cooling,
                             .momentum = l->momentum,
                             .maintain = (int)l->maintain,
                             .settle = l->tolerance};
    km_status s = KM_OK;
    /* The second run is the one that counts: the first one loads kernels and fills pools. */
    for (int run = 0; s == KM_OK && run < 2; run++) {
        km_anchors a = {0};
        if (strcmp(device, "cpu") == 0 && l->log) {
            json_array_clear(l->log);
            how.report = keep_round;
            how.user = l->log;
        }
        double start = km_now();
        s = km_anchors_train(ctx, x, n, dim, &how, NULL, &a);
        km_sync(ctx);
        double seconds = km_now() - start;
        if (s != KM_OK) km_error_set(err, s, "%s", km_ctx_error(ctx));
        *out = (outcome){.there = true,
                         .seconds = seconds,
                         .energy = a.energy,
                         .rounds = a.rounds,
                         .anchors = a.count};
        snprintf(out->device, sizeof out->device, "%s", km_ctx_device(ctx));
        km_anchors_release(&a);
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

static int tell(const line *l, const outcome *cpu, const outcome *gpu, const char *why, int64_t n,
                int64_t dim) {
    if (l->common.json) {
        json_t *o =
            json_pack("{s:s, s:I, s:I, s:o, s:o}", "kermes", km_version(), "vectors", (json_int_t)n,
                      "dim", (json_int_t)dim, "cpu", one(cpu, n, dim), "gpu", one(gpu, n, dim));
        if (gpu->there)
            json_object_set_new(o, "speedup", km_json_number(cpu->seconds / gpu->seconds, 4));
        else
            json_object_set_new(o, "gpu_missing", km_json_text(why));
        json_object_set(o, "rounds", l->log);
        return km_cli_print_json(o);
    }
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    km_table t;
    km_table_init(&t, "lrrrrr",
                  (const char *[]){"device", "time", "rounds", "anchors", "energy", "ratio"});
    for (int i = 0; i < 2; i++) {
        const outcome *o = i ? gpu : cpu;
        if (!o->there) continue;
        km_table_cell(&t, "%s", o->device);
        km_table_cell(&t, "%s", km_format_seconds(a, o->seconds));
        km_table_cell(&t, "%d", o->rounds);
        km_table_cell(&t, "%lld", (long long)o->anchors);
        km_table_cell(&t, "%s", km_format_number(b, o->energy));
        km_table_cell(&t, "%.1f", ratio(n, dim, o->anchors));
    }
    printf("%lld vectors of %lld dimensions\n", (long long)n, (long long)dim);
    bool ok = km_table_print(&t, stdout, 2);
    km_table_free(&t);
    if (gpu->there)
        printf("the GPU is %.1f times as fast; the energies differ by %.3f%%\n",
               cpu->seconds / gpu->seconds, 100 * fabs(gpu->energy / cpu->energy - 1));
    else
        printf("no GPU to compare with: %s\n", why);
    return ok ? KM_EXIT_OK : km_cli_fail("out of memory");
}

static int run(line *l, const char *path) {
    km_error err = {0}, gpu_err = {0};
    int64_t n = l->large ? 100000 : l->small ? 1000 : 10000;
    int64_t dim = l->large ? 384 : l->small ? 64 : 128;
    float *x = NULL;
    if (path) {
        km_input *in = km_open_vectors(path, &l->input, &err);
        if (in) {
            n = km_input_rows(in);
            dim = km_input_dim(in);
            x = km_alloc(sizeof *x * (size_t)(n * dim));
            if (!x)
                km_error_set(&err, KM_ERR_MEMORY, "no memory for %lld vectors", (long long)n);
            else if (km_input_read(in, 0, n, x, &err) == KM_OK) {
                int64_t bad = km_first_bad_row(x, n, dim);
                if (bad >= 0)
                    km_error_set(&err, KM_ERR_RANGE, "'%s': vector %lld holds a NaN or an infinity",
                                 path, (long long)bad);
            }
        }
        km_input_close(in);
    } else if (!(x = synthetic(n, dim, l->large ? 2000 : l->small ? 50 : 500, (uint64_t)l->seed))) {
        km_error_set(&err, KM_ERR_MEMORY, "no memory for %lld vectors", (long long)n);
    }
    if (!l->anchors) l->anchors = path ? 0 : l->large ? 1024 : l->small ? 32 : 256;
    outcome cpu = {0}, gpu = {0};
    if (err.code == KM_OK) learn("cpu", l, x, n, dim, &cpu, &err);
    const char *device = strcmp(l->common.device, "auto") == 0 ? "gpu" : l->common.device;
    if (err.code == KM_OK && strcmp(device, "cpu") != 0)
        learn(device, l, x, n, dim, &gpu, &gpu_err);
    km_free(x);
    if (err.code != KM_OK) return km_cli_fail("compare: %s", err.text);
    if (gpu_err.code != KM_OK) gpu.there = false;
    return tell(l, &cpu, &gpu, gpu_err.code ? gpu_err.text : "--device cpu", n, dim);
}

int km_command_compare(int argc, char **argv) {
    line l = {.common = KM_COMMON_DEFAULTS, .input = KM_INPUT_DEFAULTS, .rounds = 31};
    l.robust_name = "huber";
    l.cooling_name = "linear";
    const km_option options[] = {
        {"small", KM_OPTION_FLAG, NULL, &l.small, 0, 0,
         "1,000 x 64 and 32 anchors instead of 10,000 x 128 and 256"},
        {"large", KM_OPTION_FLAG, NULL, &l.large, 0, 0,
         "100,000 x 384 and 1024 anchors instead of 10,000 x 128 and 256"},
        {"anchors", KM_OPTION_INT, "M", &l.anchors, 1, 1 << 20, "how many anchors"},
        {"rounds", KM_OPTION_INT, "N", &l.rounds, 1, 10000, "at most so many (default: 31)"},
        {"robust", KM_OPTION_TEXT, "HOW", &l.robust_name, 0, 0,
         "how far vectors pull while it is warm: huber (bounded, the default),\n"
         "trimmed (not at all) or mean (in full)"},
        {"temperature", KM_OPTION_NUMBER, "T", &l.temperature, 1e-6, 1,
         "the first temperature (default 0.5)"},
        {"cooling", KM_OPTION_TEXT, "HOW", &l.cooling_name, 0, 0,
         "linear (the default), or exponential:R, R times as warm each round"},
        {"momentum", KM_OPTION_NUMBER, "X", &l.momentum, 0, 0.99,
         "of the last move added to the next while it is warm (default 0)"},
        {"maintain-every", KM_OPTION_INT, "N", &l.maintain, -1, 10000,
         "rounds between merging and splitting; -1: never (default: an eighth)"},
        {"tolerance", KM_OPTION_NUMBER, "X", &l.tolerance, 0, 1,
         "stop when a round improves the energy by less than this part\n"
         "(default 0: when no vector changes its anchor)"},
        {"seed", KM_OPTION_INT, "N", &l.seed, 0, 9e15, "of the data and the anchors"},
        KM_INPUT_ROWS(l.input),
        KM_OPTION_DEVICE_ROW(l.common, "what to compare the CPU with: auto, gpu, metal, cuda:N"),
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
                    "kermes compare --large --json\n"
                    "kermes compare vectors.npy --anchors 512\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words > 1) return km_cli_usage("compare takes one file at most");
    if (l.small && l.large) return km_cli_usage("compare: --small and --large exclude each other");
    if (!parse_robust(l.robust_name, &l.robust))
        return km_cli_usage("compare: --robust is huber, trimmed or mean, not '%.60s'",
                            l.robust_name);
    if (!parse_cooling(l.cooling_name, &l.cooling))
        return km_cli_usage("compare: --cooling is linear or exponential:R with R between 0 and 1, "
                            "not '%.60s'",
                            l.cooling_name);
    km_cli_notes(l.common.quiet);
    l.log = l.common.json ? json_array() : NULL;
    code = run(&l, args.n_words ? args.words[0] : NULL);
    json_decref(l.log);
    return code;
}
