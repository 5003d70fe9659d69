/* kermes convert: models between Hugging Face folders, checkpoints and GGUF files. A folder is
 * made beside its target and renamed when it is whole. */
#include "model/convert.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "cli/info.h"
#include "report/json.h"
#include "report/text.h"
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

static json_t *report(const char *in, const char *out, const km_converted *d) {
    return json_pack("{s:s, s:o, s:o, s:s, s:s, s:s, s:i, s:I, s:I, s:I}", "kermes", km_version(),
                     "in", km_json_text(in), "out", km_json_text(out), "from",
                     d->from_gguf ? "gguf" : "folder", "to", d->to_gguf ? "gguf" : "folder",
                     "architecture", km_arch_name(d->config.arch), "tensors", d->tensors,
                     "parameters", (json_int_t)d->parameters, "bytes", (json_int_t)d->bytes,
                     "tokens", (json_int_t)d->tokens);
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

/* What is wrong with the line itself; the exit code, or KM_EXIT_OK. */
static int check_line(const km_args *args, const char *type, km_convert_options *o) {
    static const char *const types[] = {"f32", "f16", "bf16"};
    if (args->n_words != 2)
        return km_cli_usage("convert takes two names, as in 'kermes convert gpt2/ gpt2.gguf'");
    o->dtype = KM_DTYPE_COUNT;
    if (type) {
        km_error err = {0};
        int i = km_choose("type", type, types, 3, &err);
        if (i < 0) return km_cli_usage("%s; there are f32, f16 and bf16", err.text);
        o->dtype = i == 0 ? KM_F32 : i == 1 ? KM_F16 : KM_BF16;
    }
    if (o->tokenizer && o->no_tokenizer)
        return km_cli_usage("--tokenizer and --no-tokenizer exclude each other");
    return KM_EXIT_OK;
}

int km_command_convert(int argc, char **argv) {
    km_common common = KM_COMMON_DEFAULTS;
    km_convert_options o = {0};
    const char *type = NULL;
    bool force = false;
    const km_option options[] = {
        {"type", KM_OPTION_TEXT, "TYPE", &type, 0, 0,
         "f32, f16 or bf16 (default: as stored); GGUF keeps norms, biases and positions in f32"},
        {"tokenizer", KM_OPTION_TEXT, "FILE", &o.tokenizer, 0, 0,
         "a tokenizer.json or GGUF file in place of the model's own"},
        {"no-tokenizer", KM_OPTION_FLAG, NULL, &o.no_tokenizer, 0, 0, "leave the tokenizer out"},
        {"force", KM_OPTION_FLAG, NULL, &force, 0, 0, "replace OUT if it is there"},
        KM_OPTION_OUTPUT_ROWS(common),
        {0},
    };
    const km_spec spec = {
        .name = "convert",
        .words = "IN OUT",
        .summary = "A model from one format into another.",
        .details =
            "IN is a Hugging Face folder (config.json, model.safetensors, tokenizer.json), a "
            "checkpoint\nor run of kermes train, or a GGUF file. OUT is a GGUF file when its "
            "name ends in .gguf,\nand a Hugging Face folder otherwise. Architectures: gpt2, "
            "llama,\nqwen2 and qwen3. OUT changes only when all of the new one is on disk.\n",
        .options = options,
        .examples = "kermes convert gpt2/ gpt2.gguf --type f16\n"
                    "kermes convert runs/shakespeare shakespeare/\n"
                    "kermes convert runs/shakespeare/step-2000 shakespeare.gguf\n"
                    "kermes convert model.gguf model/ --type f32\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    code = check_line(&args, type, &o);
    if (code != KM_EXIT_OK) return code;
    km_cli_notes(common.quiet);

    char in[PATH_MAX], out[PATH_MAX], inner[PATH_MAX], real_in[PATH_MAX], real_out[PATH_MAX];
    if (!trim(args.words[0], in) || !trim(args.words[1], out))
        return km_cli_fail("a path is too long");
    o.in = km_run_folder(in, inner) ? inner : in;
    struct stat st;
    bool there = lstat(out, &st) == 0, to_gguf = km_names_gguf(out);
    if (there && realpath(o.in, real_in) && realpath(out, real_out) &&
        strcmp(real_in, real_out) == 0)
        return km_cli_fail("'%s' cannot be converted into itself", out);
    if (there && !force) return km_cli_fail("'%s' is there already; --force replaces it", out);
    if (there && to_gguf != !S_ISDIR(st.st_mode))
        return km_cli_fail("'%s' is %s, and the result would be %s", out,
                           S_ISDIR(st.st_mode) ? "a folder" : "a file",
                           to_gguf ? "a file" : "a folder");

    km_progress progress;
    km_error err = {0};
    km_converted done;
    km_progress_begin(&progress, "convert", "bytes", 1, common.quiet);
    o.progress = on_progress;
    o.user = &progress;
    o.out = out;
    km_status s = to_gguf ? km_convert(&o, &done, &err) : convert_folder(&o, out, &done, &err);
    km_progress_end(&progress);
    if (s != KM_OK) return km_cli_fail("%s", err.text);
    if (common.json) return km_cli_print_json(report(o.in, out, &done));
    print_result(out, &done);
    return KM_EXIT_OK;
}
