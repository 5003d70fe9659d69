/* kermes sample: a model goes on with a prompt, and the text is shown as it is made. */
#include "base/log.h"
#include "cli/cli.h"
#include "infer/session.h"
#include "model/convert.h"
#include "model/lora.h"
#include "model/open.h"
#include "report/json.h"
#include "report/text.h"
#include "train/checkpoint.h"
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

typedef struct settings {
    km_common common;
    const char *model, *tokenizer, *adapter, *dtype, *prompt;
    int64_t tokens, seed;
    bool past_end, only_new;
    km_sampling sampling;
} settings;

typedef struct output {
    const char *prompt; /* still to be printed, once there is something to follow it; or NULL */
    bool json;
    km_text text; /* with --json it is printed at the end */
} output;

static void show_prompt(output *o) {
    if (o->prompt) fputs(o->prompt, stdout);
    o->prompt = NULL;
}

static bool show(void *user, int32_t id, const char *text, size_t bytes) {
    output *o = user;
    (void)id;
    if (o->json) {
        km_text_put(&o->text, text, bytes);
        return km_text_ok(&o->text);
    }
    show_prompt(o);
    fwrite(text, 1, bytes, stdout);
    return fflush(stdout) == 0 && !ferror(stdout);
}

/* ---- Finding the model ---- */

static bool is_model(const char *folder) {
    char path[PATH_MAX];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/config.json", folder);
    return n > 0 && n < (int)sizeof path && stat(path, &st) == 0;
}

/* A GGUF file, a folder with a model, or in a training run's folder the last one, the best, or the newest
 * checkpoint. */
static km_status find_model(const char *given, char out[PATH_MAX], km_error *err) {
    static const char *const parts[] = {"", "/model", "/best"};
    if (km_names_gguf(given) && snprintf(out, PATH_MAX, "%s", given) < PATH_MAX) return KM_OK;
    for (int i = 0; i < 3; i++) {
        if (snprintf(out, PATH_MAX, "%s%s", given, parts[i]) >= PATH_MAX)
            return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", given);
        if (is_model(out)) return KM_OK;
    }
    int64_t step = km_checkpoint_latest(given);
    if (step >= 0 && snprintf(out, PATH_MAX, "%s/step-%lld", given, (long long)step) < PATH_MAX)
        return KM_OK;
    return km_error_set(err, KM_ERR_FILE,
                        "'%.200s' holds no model: neither config.json nor a training run's model, "
                        "best or step-N",
                        given);
}

static km_status parse_dtype(const char *name, km_dtype *out, km_error *err) {
    static const km_dtype known[] = {KM_F32, KM_BF16, KM_F16};
    *out = KM_DTYPE_COUNT;
    if (!name) return KM_OK;
    for (int i = 0; i < 3; i++)
        if (strcmp(name, km_dtype_name(known[i])) == 0) *out = known[i];
    if (*out != KM_DTYPE_COUNT) return KM_OK;
    return km_error_set(err, KM_ERR_RANGE, "sample: --dtype takes f32, bf16 or f16, not '%.40s'",
                        name);
}

/* ---- Running ---- */

static void tell(const settings *o, const km_generated *got) {
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    if (o->common.quiet || o->common.json) return;
    fprintf(stderr, "kermes: %lld tokens in %s (%s a second) after a prompt of %lld\n",
            (long long)got->tokens, km_format_seconds(a, got->seconds),
            km_format_number(b, got->seconds > 0 ? (double)got->tokens / got->seconds : 0),
            (long long)got->prompt_tokens);
}

static int print_json(const settings *o, const char *folder, const km_ctx *ctx, const output *out,
                      const km_generated *got) {
    return km_cli_print_json(json_pack(
        "{s:o, s:s, s:o, s:o, s:I, s:I, s:I, s:b, s:o, s:o, s:o}", "model", km_json_text(folder),
        "device", km_ctx_device(ctx), "prompt", km_json_text(o->prompt), "text",
        km_json_text(km_text_str(&out->text)), "prompt_tokens", (json_int_t)got->prompt_tokens,
        "tokens", (json_int_t)got->tokens, "seed", (json_int_t)o->seed, "ended", got->ended,
        "prompt_seconds", km_json_number(got->prompt_seconds, 4), "seconds",
        km_json_number(got->seconds, 4), "tokens_per_s",
        km_json_number(got->seconds > 0 ? (double)got->tokens / got->seconds : NAN, 4)));
}

static km_status sample(const settings *o, km_ctx *ctx, km_model *m, const km_token *token,
                        output *out, km_generated *got, km_error *err) {
    km_generation how = {.tokens = o->tokens,
                         .past_end = o->past_end,
                         .sampling = o->sampling,
                         .on_text = show,
                         .user = out};
    if (!o->common.json && !o->only_new) out->prompt = o->prompt;
    km_status s = km_generate(ctx, m, token, o->prompt, strlen(o->prompt), &how, got, err);
    if (s != KM_OK || o->common.json) return s;
    show_prompt(out);
    putchar('\n');
    return s;
}

static int run(const settings *o, km_dtype dtype) {
    char folder[PATH_MAX];
    km_error err = {0};
    km_generated got = {0};
    output out = {.json = o->common.json};
    int code = KM_EXIT_FAILED;
    if (find_model(o->model, folder, &err) != KM_OK) return km_cli_fail("%s", err.text);
    km_token *token = km_token_load(o->tokenizer ? o->tokenizer : folder, &err);
    if (!token) return km_cli_fail("%s", err.text);
    km_ctx *ctx = km_ctx_new(o->common.device, (int)o->common.threads);
    if (!ctx) {
        km_token_free(token);
        return km_cli_fail("%s", km_last_error());
    }
    if (strcmp(folder, o->model) != 0) km_note(KM_LOG_INFO, "the model is that in %s", folder);
    km_model *m = km_model_open(ctx, folder, &(km_open_options){.dtype = dtype}, &err);
    km_status s = m ? KM_OK : err.code;
    if (s == KM_OK && o->adapter) s = km_lora_load(m, o->adapter, &err);
    if (s == KM_OK && o->adapter) s = km_lora_merge(m, &err);
    if (s == KM_OK) s = sample(o, ctx, m, token, &out, &got, &err);
    if (s != KM_OK) {
        km_cli_fail("%s", err.text);
    } else {
        tell(o, &got);
        code = o->common.json ? print_json(o, folder, ctx, &out, &got) : KM_EXIT_OK;
    }
    km_text_free(&out.text);
    km_model_free(m);
    km_ctx_free(ctx);
    km_token_free(token);
    return code;
}

int km_command_sample(int argc, char **argv) {
    settings o = {.common = KM_COMMON_DEFAULTS,
                  .prompt = "",
                  .tokens = 200,
                  .seed = 1,
                  .sampling = {.temperature = 0.8, .top_k = 200, .top_p = 1}};
    const km_option options[] = {
        {"model", KM_OPTION_TEXT, "PATH", &o.model, 0, 0,
         "a GGUF file; or a folder with config.json, model.safetensors and\n"
         "tokenizer.json, as Hugging Face and kermes train write it; or a\n"
         "training run's"},
        {"prompt", KM_OPTION_TEXT, "TEXT", &o.prompt, 0, 0,
         "the text to go on with (default: none)"},
        {"tokens", KM_OPTION_INT, "N", &o.tokens, 0, 1e9, "at most this many more (default 200)"},
        {"temperature", KM_OPTION_NUMBER, "X", &o.sampling.temperature, 0, 100,
         "0 takes the likeliest token each time (default 0.8)"},
        {"top-k", KM_OPTION_INT, "K", &o.sampling.top_k, 0, 1e9,
         "only the K likeliest tokens; 0: all (default 200)"},
        {"top-p", KM_OPTION_NUMBER, "P", &o.sampling.top_p, 1e-6, 1,
         "only the likeliest that together reach P (default 1: all)"},
        {"min-p", KM_OPTION_NUMBER, "P", &o.sampling.min_p, 0, 1,
         "only those at least P times as likely as the first (default 0)"},
        {"seed", KM_OPTION_INT, "N", &o.seed, 0, 0, "another seed, another text (default 1)"},
        {"past-end", KM_OPTION_FLAG, NULL, &o.past_end, 0, 0, "go on after an end-of-text token"},
        {"only-new", KM_OPTION_FLAG, NULL, &o.only_new, 0, 0, "do not print the prompt"},
        {"adapter", KM_OPTION_TEXT, "DIR", &o.adapter, 0, 0,
         "low-rank corrections (LoRA) to add to the model"},
        {"tokenizer", KM_OPTION_TEXT, "FILE", &o.tokenizer, 0, 0,
         "another tokenizer.json than the model's own"},
        {"dtype", KM_OPTION_TEXT, "T", &o.dtype, 0, 0,
         "compute in f32, bf16 or f16 (default: as the weights are stored)"},
        KM_OPTION_DEVICE_ROW(o.common, "where to compute (default: the best here)"),
        KM_OPTION_THREADS_ROW(o.common),
        KM_OPTION_OUTPUT_ROWS(o.common),
        {0},
    };
    const km_spec spec = {
        .name = "sample",
        .summary = "Lets a model go on with a prompt.",
        .details =
            "The text appears as it is made. The same seed, settings and device give the same\n"
            "text. When the model's context is full, it goes on from the second half of it.\n",
        .options = options,
        .examples = "  kermes sample --model runs/shakespeare --prompt 'ROMEO:' --tokens 300\n"
                    "  kermes sample --model gpt2 --prompt 'Once upon' --temperature 0 --json\n",
    };
    km_args args;
    km_error err = {0};
    km_dtype dtype;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (!o.model) return km_cli_usage("sample: --model PATH is missing");
    o.sampling.seed = (uint64_t)o.seed;
    if (parse_dtype(o.dtype, &dtype, &err) != KM_OK ||
        km_sampling_check(&o.sampling, &err) != KM_OK)
        return km_cli_usage("%s", err.text);
    km_cli_notes(o.common.quiet);
    return run(&o, dtype);
}
