/* kermes train: from a text to a model. The options are the library's table of settings. */
#include "cli/cli.h"
#include "cli/progress.h"
#include "report/json.h"
#include "base/text.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* ---- Options ---- */

/* The settings as rows of the command's table, with those that only the command has. */
static void make_options(km_option *out, km_train_settings *s, km_words *data, const char **config,
                         bool *demo, km_common *common) {
    int n = 0;
    static const km_option_kind kinds[] = {
        [KM_SETTING_FLAG] = KM_OPTION_FLAG,     [KM_SETTING_INT] = KM_OPTION_INT,
        [KM_SETTING_NUMBER] = KM_OPTION_NUMBER, [KM_SETTING_TEXT] = KM_OPTION_TEXT,
        [KM_SETTING_LIST] = KM_OPTION_LIST,
    };
    const km_setting *r;
    for (int i = 0; (r = km_train_setting(i)); i++) {
        km_option o = {r->name, kinds[r->kind], r->value, (char *)s + r->offset,
                       r->lo,   r->hi,          r->help};
        if (r->kind == KM_SETTING_LIST) o.dest = data;
        if (strcmp(r->name, "device") == 0) o.kind = KM_OPTION_DEVICE;
        out[n++] = o;
    }
    const km_option rest[] = {
        {"config", KM_OPTION_TEXT, "FILE", config, 0, 0,
         "settings as JSON, with the names above; the line goes before it"},
        {"demo", KM_OPTION_FLAG, NULL, demo, 0, 0,
         "learn from small stories that a grammar writes to DIR/demo.txt"},
        KM_OPTION_OUTPUT_ROWS(*common),
        {0},
    };
    memcpy(out + n, rest, sizeof rest);
}

/* What a call of the library that failed says. */
static bool failed(km_status status, km_error *err) {
    if (status != KM_OK) km_error_set(err, status, "%s", km_last_error());
    return status != KM_OK;
}

/* Settings come from the defaults, then from --config or the run that is resumed, then from the
 * line. */
static bool overlay(const km_spec *spec, int argc, char **argv, km_train_settings *s,
                    km_words *data, const char *config, km_error *err) {
    km_train_settings line = *s;
    km_args args;
    *s = km_train_defaults();
    *data = (km_words){.n = 0};
    if (config && failed(km_train_read_file(s, config), err)) return false;
    if (line.resume && line.out && failed(km_train_read_run(s, line.out), err)) return false;
    data->n = s->data.n;
    memcpy(data->at, s->data.at, sizeof data->at);
    if (km_args_parse(spec, argc, argv, &args, err) != KM_OK) return false;
    s->data.n = data->n;
    memcpy(s->data.at, data->at, sizeof data->at);
    return true;
}

/* ---- While it runs ---- */

static volatile sig_atomic_t interrupted;

static const char *stopping; /* what a signal says; NULL: nothing */

static void on_signal(int number) {
    (void)number;
    interrupted = 1;
    if (stopping && write(STDERR_FILENO, stopping, strlen(stopping)) < 0) interrupted = 1;
}

static bool stop(void *user) {
    (void)user;
    return interrupted;
}

typedef struct train_show {
    const km_common *common;
    km_progress progress;
    const char *stage; /* whose progress is shown; NULL: none */
    char note[100];
} train_show;

static void begin(train_show *w, const char *stage, const char *unit, int64_t total) {
    if (w->stage && strcmp(w->stage, stage) == 0 && w->progress.total == total) return;
    km_progress_end(&w->progress);
    km_progress_begin(&w->progress, stage, unit, total, w->common->quiet);
    w->stage = stage;
}

/* "40 s", "8 min", "3.5 h", for the time that is to come. */
static const char *about_time(char out[32], double seconds) {
    if (seconds < 90)
        snprintf(out, 32, "%.0f s", seconds);
    else if (seconds < 5400)
        snprintf(out, 32, "%.0f min", seconds / 60);
    else
        snprintf(out, 32, "%.3g h", seconds / 3600);
    return out;
}

/* Short, so that the time left still fits on a line of 80: "loss 1.92/2.11  6.5k/s". */
static void make_note(train_show *w, const km_train_status *s) {
    char speed[KM_NUMBER_TEXT], loss[KM_NUMBER_TEXT], val[KM_NUMBER_TEXT] = "";
    if (!isnan(s->val_loss)) km_format_number(val, s->val_loss);
    snprintf(w->note, sizeof w->note, "loss %s%s%s  %s/s", km_format_number(loss, s->train_loss),
             *val ? "/" : "", val, km_format_si(speed, s->tokens_per_s));
}

static void say_eval(train_show *w, const km_train_status *s) {
    char speed[KM_NUMBER_TEXT], number[KM_NUMBER_TEXT];
    km_progress_hide(&w->progress);
    printf("step %-7" PRId64 " loss %.4f  val %.4f%s  lr %s  %s tokens/s", s->step, s->train_loss,
           s->val_loss, s->best_step == s->step ? " *" : "  ", km_format_number(number, s->lr),
           km_format_si(speed, s->tokens_per_s));
    if (!isnan(s->mfu)) printf("  mfu %.1f%%", 100 * s->mfu);
    putchar('\n');
    fflush(stdout);
}

static void on_event(void *user, km_train_event e, const km_train_status *s, const char *text) {
    train_show *w = user;
    bool words = !w->common->json && !w->common->quiet;
    switch (e) {
    case KM_TRAIN_PREPARE:
        begin(w, strcmp(text, "encoding") == 0 ? "tokenising" : text, "", s->steps);
        km_progress_step(&w->progress, s->step, NULL);
        break;
    case KM_TRAIN_START: {
        km_progress_end(&w->progress);
        if (words) printf("%s\n", text);
        char time[32];
        if (words && isfinite(s->left))
            printf("%" PRId64
                   " steps: about %s, by this machine's rate; Ctrl-C saves a checkpoint and "
                   "stops\n",
                   s->steps - s->step, about_time(time, s->left));
        if (words && s->step) printf("going on after step %" PRId64 "\n", s->step);
        fflush(stdout);
        begin(w, "train", "", s->steps);
        w->progress.first = s->step;
        break;
    }
    case KM_TRAIN_LOG:
        make_note(w, s);
        km_progress_step(&w->progress, s->step, w->note);
        break;
    case KM_TRAIN_STEP: km_progress_step(&w->progress, s->step, w->note); break;
    case KM_TRAIN_EVAL:
        if (words) say_eval(w, s);
        break;
    case KM_TRAIN_SAMPLE:
        km_progress_hide(&w->progress);
        if (words) printf("---- step %" PRId64 "\n%s\n----\n", s->step, text);
        fflush(stdout);
        break;
    case KM_TRAIN_NOTE:
        km_progress_hide(&w->progress);
        if (!w->common->quiet) fprintf(stderr, "kermes: %s\n", text);
        break;
    case KM_TRAIN_SAVE: break;
    }
}

/* ---- The end ---- */

static int print_json(const km_train_settings *s, const km_train_result *r) {
    static const char *const ends[] = {"done", "early", "stopped"};
    const km_train_status *x = &r->status;
    json_t *o = json_pack(
        "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:I, s:I, s:I, s:s, s:s, s:o}",
        "step", (json_int_t)x->step, "train_loss", km_json_number(x->train_loss, 9), "val_loss",
        km_json_number(x->val_loss, 9), "tokens_per_s", km_json_number(r->tokens_per_s, 6),
        "seconds", km_json_number(r->wall, 6), "training_seconds", km_json_number(x->seconds, 6),
        "last_val_loss", km_json_number(r->last_val, 9), "best_val_loss",
        km_json_number(x->best_val, 9), "best_step", (json_int_t)x->best_step, "mfu",
        km_json_number(x->mfu, 4), "grad_norm", km_json_number(x->norm, 9), "skipped",
        (json_int_t)x->skipped, "parameters", (json_int_t)r->parameters, "trained",
        (json_int_t)r->trained, "end", ends[r->end], "device", r->device, "out",
        km_json_text(s->out));
    char *line = o ? json_dumps(o, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(o);
    if (!line) return km_cli_fail("cannot print the JSON: out of memory");
    puts(line);
    free(line);
    return KM_EXIT_OK;
}

static void print_end(const km_train_settings *s, const km_train_result *r) {
    char speed[KM_NUMBER_TEXT], time[KM_NUMBER_TEXT];
    const km_train_status *x = &r->status;
    printf("%s after %" PRId64 " steps: loss %.4f",
           r->end == KM_TRAIN_STOPPED ? "stopped"
           : r->end == KM_TRAIN_EARLY ? "no more improvement"
                                      : "done",
           x->step, x->train_loss);
    if (!isnan(r->last_val)) printf(", validation %.4f", r->last_val);
    if (x->best_step && x->best_step != x->step)
        printf(" (best %.4f at step %" PRId64 ")", x->best_val, x->best_step);
    printf(", %s tokens/s, %s\n", km_format_si(speed, r->tokens_per_s),
           km_format_seconds(time, r->wall));
    if (r->end == KM_TRAIN_STOPPED)
        printf("'kermes train --out %s --resume' goes on\n", s->out);
    else
        printf("the model is in %s/model, the curves are in %s/report.html\n", s->out, s->out);
}

/* The demo's text, in the run's folder; `path` must stay. */
static bool write_demo(km_train_settings *s, char path[PATH_MAX], km_error *err) {
    if (!s->out || s->resume) return true; /* told later, or there already */
    snprintf(path, PATH_MAX, "%s/demo.txt", s->out);
    if (access(path, F_OK) != 0 && failed(km_train_demo_text(path, 1, (size_t)256 << 10), err))
        return false;
    s->data = (km_train_list){.at = {path}, .n = 1};
    return true;
}

static int run(const km_train_settings *s, const km_common *common) {
    km_train_result r = {.size = sizeof r};
    train_show w = {.common = common};
    km_train_hooks hooks = {.size = sizeof hooks, .event = on_event, .stop = stop, .user = &w};
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};
    if (!common->quiet && km_rank() == 0)
        stopping =
            "\nkermes: stopping after this step, with a checkpoint; Ctrl-C again ends at once\n";
    sigaction(SIGINT, &act, NULL); /* a second one ends it at once */
    sigaction(SIGTERM, &act, NULL);
    km_status status = km_train(s, &hooks, &r);
    km_progress_end(&w.progress);
    if (status != KM_OK)
        return r.tells ? km_cli_fail("train: %s", km_last_error()) : KM_EXIT_FAILED;
    if (r.rank != 0) return KM_EXIT_OK;
    if (common->json) return print_json(s, &r);
    print_end(s, &r);
    return KM_EXIT_OK;
}

int km_command_train(int argc, char **argv) {
    km_train_settings s = km_train_defaults();
    km_common common = KM_COMMON_DEFAULTS;
    km_words data = {.n = 0};
    const char *config = NULL;
    bool demo = false;
    char demo_path[PATH_MAX];
    static km_option options[KM_MAX_OPTIONS];
    make_options(options, &s, &data, &config, &demo, &common);
    const km_spec spec = {
        .name = "train",
        .summary = "Trains a language model on text, or goes on with one.",
        .details = "DIR then holds model/ (config.json, model.safetensors, tokenizer.json, as "
                   "Hugging Face\nwants them), best/ (the same, where validation was best), "
                   "step-N/ (checkpoints),\nlog.jsonl and report.html. Ctrl-C saves a checkpoint "
                   "and stops; --resume goes on.\n",
        .options = options,
        .examples =
            "kermes train --demo --out demo --steps 500\n"
            "kermes train --data book.txt --out run\n"
            "kermes train --data texts/ --out run --tokenizer bpe:4096 --model small "
            "--device gpu --dtype bf16\n"
            "kermes train --out run --resume\n"
            "kermes train --data mine.txt --out tuned --init gpt2/ --lr 1e-4 --lora-rank 8\n"
            "kermes train --data a.txt:0.7 --data b.txt --out run --overfit-batch\n"
            "mpirun -n 2 kermes train --data book.txt --out run\n"};
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    km_cli_notes(common.quiet);
    km_error err = {0};
    if (overlay(&spec, argc, argv, &s, &data, config, &err) &&
        (!demo || write_demo(&s, demo_path, &err)) && !failed(km_train_check(&s), &err))
        code = run(&s, &common);
    else if (km_rank() != 0) /* rank 0 says the same */
        code = KM_EXIT_USAGE;
    else
        code = err.code == KM_ERR_FILE || err.code == KM_ERR_FORMAT || err.code == KM_ERR_STATE
                   ? km_cli_fail("train: %s", err.text)
                   : km_cli_usage("train: %s", err.text);
    km_train_settings_free(&s);
    return code;
}
