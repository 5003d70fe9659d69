/* kermes convert: models between Hugging Face folders, checkpoints and GGUF files. A folder is
 * made beside its target and renamed when it is whole. */
#include "model/convert.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/info.h"
#include "cli/progress.h"
#include "report/json.h"
#include "base/text.h"
#include "train/checkpoint.h"
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void on_progress(void *user, uint64_t done, uint64_t total) {
    km_progress *p = user;
    if (p->total != (int64_t)total) p->total = (int64_t)total;
    km_progress_step(p, (int64_t)done, NULL);
}

/* path without slashes at its end, so that its last part is a name */
static bool trim(const char *path, char out[PATH_MAX]) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n >= PATH_MAX - 64) return false;
    memcpy(out, path, n);
    out[n] = 0;
    return true;
}

static km_status convert_folder(km_convert_options *o, const char *out, km_converted *done,
                                km_error *err) {
    char temp[PATH_MAX];
    const char *slash = strrchr(out, '/');
    int parent = slash ? (int)(slash - out) + 1 : 0;
    if (snprintf(temp, sizeof temp, "%.*s.kermes-convert-%ld.tmp", parent, out, (long)getpid()) >=
        (int)sizeof temp)
        return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", out);
    km_status s = km_folder_make(temp, err);
    o->out = temp;
    if (s == KM_OK) s = km_convert(o, done, err);
    if (s == KM_OK) s = km_folder_publish(temp, out, err);
    if (s != KM_OK) km_folder_remove(temp);
    return s;
}

typedef struct convert_settings {
    km_common common;
    km_convert_options o;
    const char *type, *out;
    bool force;
} convert_settings;

static json_t *report(const convert_settings *s, const char *in, const char *out,
                      const km_converted *d) {
    const char *type = s->o.mix ? s->o.mix->name : s->type ? km_dtype_name(s->o.dtype) : NULL;
    return json_pack("{s:s, s:o, s:o, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:s?}", "kermes",
                     km_version(), "in", km_json_text(in), "out", km_json_text(out), "from",
                     d->from_gguf ? "gguf" : "folder", "to", d->to_gguf ? "gguf" : "folder",
                     "architecture", km_arch_name(d->config.arch), "tensors", d->tensors,
                     "parameters", (json_int_t)d->parameters, "bytes", (json_int_t)d->bytes,
                     "tokens", (json_int_t)d->tokens, "type", type);
}

static void print_result(const char *out, const km_converted *d) {
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    printf("%s: %s with %s parameters in %d tensors, %s; ", out, km_arch_name(d->config.arch),
           km_format_si(a, (double)d->parameters), d->tensors,
           km_format_bytes(b, (double)d->bytes));
    if (d->tokens)
        printf("a tokenizer of %lld tokens\n", (long long)d->tokens);
    else
        printf("no tokenizer\n");
}

static int check_type(convert_settings *s, const char *out) {
    const char *names[32];
    int n = 0;
    km_error err = {0};
    s->o.dtype = KM_DTYPE_COUNT;
    if (!s->type) return KM_EXIT_OK;
    for (; km_mix_at(n); n++) names[n] = km_mix_at(n)->name;
    const km_mix *mix = km_mix_find(s->type);
    if (!mix) {
        km_choose("type", s->type, names, n, &err);
        return km_cli_usage("%s; --help lists them", err.text);
    }
    if (mix->base <= KM_BF16)
        s->o.dtype = mix->base;
    else
        s->o.mix = mix;
    if (s->o.mix && !km_names_gguf(out))
        return km_cli_usage("weights of type %s need a target whose name ends in .gguf", mix->name);
    return KM_EXIT_OK;
}

/* What is wrong with the line itself; the exit code, or KM_EXIT_OK. */
static int check_line(const km_args *args, convert_settings *s) {
    if (args->n_words != 2 - (s->out != NULL))
        return km_cli_usage("convert takes two names, as in 'kermes convert gpt2/ gpt2.gguf'");
    if (!s->out) s->out = args->words[1];
    int code = check_type(s, s->out);
    if (code != KM_EXIT_OK) return code;
    if (s->o.imatrix && !s->o.mix)
        return km_cli_usage("--imatrix needs a --type of a few bits, as q4_k_m");
    if (s->o.tokenizer && s->o.no_tokenizer)
        return km_cli_usage("--tokenizer and --no-tokenizer exclude each other");
    return KM_EXIT_OK;
}

int km_command_convert(int argc, char **argv) {
    convert_settings set = {.common = KM_COMMON_DEFAULTS};
    const km_option options[] = {
        {"type", KM_OPTION_TEXT, "TYPE", &set.type, 0, 0,
         "f32, f16, bf16, or for GGUF q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s,\n"
         "q4_1, q4_0, iq4_nl, iq4_xs, mxfp4, q3_k_l, q3_k_m, q3_k_s, q2_k (default: as stored)"},
        {"imatrix", KM_OPTION_TEXT, "FILE", &set.o.imatrix, 0, 0,
         "an importance matrix, as kermes perplexity --imatrix-out writes it"},
        {"out", KM_OPTION_TEXT, "OUT", &set.out, 0, 0, "the target, in place of a second name; -o"},
        {"tokenizer", KM_OPTION_TEXT, "FILE", &set.o.tokenizer, 0, 0,
         "a tokenizer.json or GGUF file in place of the model's own"},
        {"no-tokenizer", KM_OPTION_FLAG, NULL, &set.o.no_tokenizer, 0, 0,
         "leave the tokenizer out"},
        {"force", KM_OPTION_FLAG, NULL, &set.force, 0, 0, "replace OUT if it is there"},
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

    char in[PATH_MAX], out[PATH_MAX], inner[PATH_MAX], real_in[PATH_MAX], real_out[PATH_MAX];
    km_convert_options o = set.o;
    if (!trim(args.words[0], in) || !trim(set.out, out)) return km_cli_fail("a path is too long");
    o.in = km_run_folder(in, inner) ? inner : in;
    o.threads = (int)set.common.threads;
    struct stat st;
    bool there = lstat(out, &st) == 0, to_gguf = km_names_gguf(out);
    if (there && realpath(o.in, real_in) && realpath(out, real_out) &&
        strcmp(real_in, real_out) == 0)
        return km_cli_fail("'%s' cannot be converted into itself", out);
    if (there && !set.force) return km_cli_fail("'%s' is there already; --force replaces it", out);
    if (there && to_gguf != !S_ISDIR(st.st_mode))
        return km_cli_fail("'%s' is %s, and the result would be %s", out,
                           S_ISDIR(st.st_mode) ? "a folder" : "a file",
                           to_gguf ? "a file" : "a folder");

    km_progress progress;
    km_error err = {0};
    km_converted done;
    km_progress_begin(&progress, "convert", "bytes", 1, set.common.quiet);
    o.progress = on_progress;
    o.user = &progress;
    o.out = out;
    km_status s = to_gguf ? km_convert(&o, &done, &err) : convert_folder(&o, out, &done, &err);
    km_progress_end(&progress);
    if (s != KM_OK) return km_cli_fail("%s", err.text);
    if (done.unweighed > 1) /* the table of tokens is looked up, so it never has inputs */
        km_note(KM_LOG_INFO, "the importance matrix does not know %d of the matrices",
                done.unweighed);
    if (set.common.json) return km_cli_print_json(report(&set, o.in, out, &done));
    print_result(out, &done);
    return KM_EXIT_OK;
}
