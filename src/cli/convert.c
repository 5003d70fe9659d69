/* kermes convert: models between Hugging Face folders, checkpoints and GGUF files. */
#include "cli/progress.h"
#include "base/text.h"
#include "cli/cli.h"
#include "report/json.h"
#include <limits.h>
#include <string.h>
#include <strings.h>

static void on_progress(void *user, uint64_t done, uint64_t total) {
    km_progress *p = user;
    if (p->total != (int64_t)total) p->total = (int64_t)total;
    km_progress_step(p, (int64_t)done, NULL);
}

/* path without slashes at its end, as the library takes it */
static void trim(const char *path, char out[PATH_MAX]) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    snprintf(out, PATH_MAX, "%.*s", (int)n, path);
}

static bool names_gguf(const char *path) {
    size_t n = strlen(path);
    return n > 5 && strcasecmp(path + n - 5, ".gguf") == 0;
}

typedef struct convert_settings {
    km_common common;
    km_convert_options o;
    const char *out;
} convert_settings;

static json_t *report(const convert_settings *s, const char *out, const km_converted *d) {
    return json_pack("{s:s, s:o, s:o, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:s?}", "kermes",
                     km_version(), "in", km_json_text(d->in), "out", km_json_text(out), "from",
                     d->from_gguf ? "gguf" : "folder", "to", d->to_gguf ? "gguf" : "folder",
                     "architecture", d->architecture, "tensors", d->tensors, "parameters",
                     (json_int_t)d->parameters, "bytes", (json_int_t)d->bytes, "tokens",
                     (json_int_t)d->tokens, "type", s->o.type);
}

static void print_result(const char *out, const km_converted *d) {
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    printf("%s: %s with %s parameters in %d tensors, %s; ", out, d->architecture,
           km_format_si(a, (double)d->parameters), d->tensors,
           km_format_bytes(b, (double)d->bytes));
    if (d->tokens)
        printf("a tokenizer of %lld tokens\n", (long long)d->tokens);
    else
        printf("no tokenizer\n");
}

/* The type by the name it goes by; *few: it is one of a few bits. */
static int check_type(convert_settings *s, bool *few) {
    const char *names[32];
    int n = 0;
    km_error err = {0};
    *few = false;
    if (!s->o.type) return KM_EXIT_OK;
    for (; n < 32 && km_convert_type(n); n++) names[n] = km_convert_type(n);
    const char *type = km_convert_type_named(s->o.type);
    if (!type) {
        km_choose("type", s->o.type, names, n, &err);
        return km_cli_usage("%s; --help lists them", err.text);
    }
    s->o.type = type;
    *few = strcmp(type, "f32") != 0 && strcmp(type, "f16") != 0 && strcmp(type, "bf16") != 0;
    if (*few && !names_gguf(s->out))
        return km_cli_usage("weights of type %s need a target whose name ends in .gguf", type);
    return KM_EXIT_OK;
}

/* What is wrong with the line itself; the exit code, or KM_EXIT_OK. */
static int check_line(const km_args *args, convert_settings *s) {
    bool few;
    if (args->n_words != 2 - (s->out != NULL))
        return km_cli_usage("convert takes two names, as in 'kermes convert gpt2/ gpt2.gguf'");
    if (!s->out) s->out = args->words[1];
    int code = check_type(s, &few);
    if (code != KM_EXIT_OK) return code;
    if (s->o.imatrix && !few)
        return km_cli_usage("--imatrix needs a --type of a few bits, as q4_k_m");
    if (s->o.tokenizer && s->o.no_tokenizer)
        return km_cli_usage("--tokenizer and --no-tokenizer exclude each other");
    return KM_EXIT_OK;
}

static int tell_failure(km_status s) {
    const char *why = km_last_error(), *there = "is there already";
    size_t n = strlen(why), m = strlen(there);
    bool force = s == KM_ERR_STATE && n > m && strcmp(why + n - m, there) == 0;
    return km_cli_fail("%s%s", why, force ? "; --force replaces it" : "");
}

int km_command_convert(int argc, char **argv) {
    convert_settings set = {.common = KM_COMMON_DEFAULTS, .o = km_convert_defaults()};
    const km_option options[] = {
        {"type", KM_OPTION_TEXT, "TYPE", &set.o.type, 0, 0,
         "f32, f16, bf16, or for GGUF q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s,\n"
         "q4_1, q4_0, iq4_nl, iq4_xs, mxfp4, q3_k_l, q3_k_m, q3_k_s, q2_k (default: as stored)"},
        {"imatrix", KM_OPTION_TEXT, "FILE", &set.o.imatrix, 0, 0,
         "an importance matrix, as kermes perplexity --imatrix-out writes it"},
        {"out", KM_OPTION_TEXT, "OUT", &set.out, 0, 0, "the target, in place of a second name; -o"},
        {"tokenizer", KM_OPTION_TEXT, "FILE", &set.o.tokenizer, 0, 0,
         "a tokenizer.json or GGUF file in place of the model's own"},
        {"no-tokenizer", KM_OPTION_FLAG, NULL, &set.o.no_tokenizer, 0, 0,
         "leave the tokenizer out"},
        {"force", KM_OPTION_FLAG, NULL, &set.o.replace, 0, 0, "replace OUT if it is there"},
        KM_OPTION_DEVICE_ROW(set.common, "converting runs on the CPU"),
        KM_OPTION_THREADS_ROW(set.common),
        KM_OPTION_OUTPUT_ROWS(set.common),
        {0},
    };
    const km_spec spec = {
        .name = "convert",
        .words = "IN OUT",
        .summary = "A model from one format into another.",
        .details =
            "IN is a Hugging Face folder (config.json, model.safetensors, tokenizer.json), a "
            "checkpoint\nor run of kermes train, or a GGUF file. OUT is a GGUF file when its "
            "name ends in .gguf,\nand a Hugging Face folder otherwise. Types of a few bits give "
            "more of them to the matrices\nthat need it, as the names promise; norms, biases and "
            "positions stay f32 in GGUF.\nOUT changes only when all of the new one is on disk.\n",
        .options = options,
        .examples = "kermes convert gpt2/ gpt2.gguf --type f16\n"
                    "kermes convert model-f16.gguf -o model-q4.gguf --type q4_k_m\n"
                    "kermes convert runs/shakespeare shakespeare/\n"
                    "kermes convert runs/shakespeare/step-2000 shakespeare.gguf\n"
                    "kermes convert model.gguf model/ --type f32\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    code = check_line(&args, &set);
    if (code != KM_EXIT_OK) return code;
    km_cli_notes(set.common.quiet);

    km_progress progress;
    km_converted done = {.size = sizeof done};
    km_progress_begin(&progress, "convert", "bytes", 1, set.common.quiet);
    set.o.threads = (int)set.common.threads;
    set.o.progress = on_progress;
    set.o.user = &progress;
    km_status s = km_convert(args.words[0], set.out, &set.o, &done);
    km_progress_end(&progress);
    if (s != KM_OK) return tell_failure(s);
    char out[PATH_MAX];
    trim(set.out, out);
    if (done.unweighed > 1 && !set.common.quiet) /* tokens are looked up: never any inputs */
        fprintf(stderr, "kermes: the importance matrix does not know %d of the matrices\n",
                done.unweighed);
    if (set.common.json) return km_cli_print_json(report(&set, out, &done));
    print_result(out, &done);
    return KM_EXIT_OK;
}
