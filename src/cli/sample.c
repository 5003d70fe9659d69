/* kermes sample: a model goes on with a prompt, and the text is shown as it is made. */
#include "cli/sampling.h"
#include "cli/use_model.h"
#include "model/lora.h"
#include "report/json.h"
#include "base/text.h"
#include <math.h>
#include <string.h>

typedef struct sample_settings {
    km_common common;
    const char *model, *tokenizer, *adapter, *dtype, *prompt;
    int64_t tokens;
    bool only_new;
    km_cli_sampling sampling;
} sample_settings;

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

static void tell(const sample_settings *o, const km_generated *got) {
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    if (o->common.quiet || o->common.json) return;
    fprintf(stderr, "kermes: %lld tokens in %s (%s a second) after a prompt of %lld\n",
            (long long)got->tokens, km_format_seconds(a, got->seconds),
            km_format_number(b, got->seconds > 0 ? (double)got->tokens / got->seconds : 0),
            (long long)got->prompt_tokens);
}

static int print_json(const sample_settings *o, const char *folder, const km_ctx *ctx,
                      const km_cli_text *out, const km_generated *got) {
    return km_cli_print_json(json_pack(
        "{s:o, s:s, s:o, s:o, s:I, s:I, s:I, s:b, s:o, s:o, s:o}", "model", km_json_text(folder),
        "device", km_ctx_device(ctx), "prompt", km_json_text(o->prompt), "text",
        km_json_text(km_text_str(&out->text)), "prompt_tokens", (json_int_t)got->prompt_tokens,
        "tokens", (json_int_t)got->tokens, "seed", (json_int_t)o->sampling.seed, "ended",
        got->end == KM_END_TEXT, "prompt_seconds", km_json_number(got->prompt_seconds, 4),
        "seconds", km_json_number(got->seconds, 4), "tokens_per_s",
        km_json_number(got->seconds > 0 ? (double)got->tokens / got->seconds : NAN, 4)));
}

static km_status sample(const sample_settings *o, const km_cli_model *m, km_cli_text *out,
                        km_generated *got, km_error *err) {
    km_generation how = {.tokens = o->tokens, .shift = true, .on_text = km_cli_show, .user = out};
    km_cli_sampling_apply(&o->sampling, &how);
    if (!o->common.json && !o->only_new) out->before = o->prompt;
    km_status s =
        km_generate(m->ctx, m->model, m->token, o->prompt, strlen(o->prompt), &how, got, err);
    if (s != KM_OK || o->common.json) return s;
    km_cli_show_before(out);
    putchar('\n');
    return s;
}

static int run(sample_settings *o, km_dtype dtype) {
    km_error err = {0};
    km_generated got = {0};
    km_cli_text out = {.json = o->common.json};
    km_cli_model m;
    int code = KM_EXIT_FAILED;
    km_status s = km_cli_model_open(&m, o->model, o->tokenizer, &o->common,
                                    &(km_open_options){.dtype = dtype}, &err);
    if (s == KM_OK && o->adapter) s = km_lora_load(m.model, o->adapter, &err);
    if (s == KM_OK && o->adapter) s = km_lora_merge(m.model, &err);
    if (s == KM_OK) s = km_cli_sampling_open(&o->sampling, m.token, &err);
    if (s == KM_OK) s = sample(o, &m, &out, &got, &err);
    if (s != KM_OK) {
        km_cli_fail("%s", err.text);
    } else {
        tell(o, &got);
        code = o->common.json ? print_json(o, m.path, m.ctx, &out, &got) : KM_EXIT_OK;
    }
    km_text_free(&out.text);
    km_cli_sampling_close(&o->sampling);
    km_cli_model_close(&m);
    return code;
}

int km_command_sample(int argc, char **argv) {
    sample_settings o = {.common = KM_COMMON_DEFAULTS,
                         .prompt = "",
                         .tokens = 200,
                         .sampling = km_cli_sampling_defaults(200, 1, 0)};
    const km_option options[] = {
        {"model", KM_OPTION_TEXT, "PATH", &o.model, 0, 0,
         "a GGUF file; or a folder with config.json, model.safetensors and\n"
         "tokenizer.json, as Hugging Face and kermes train write it; or a\n"
         "training run's"},
        {"prompt", KM_OPTION_TEXT, "TEXT", &o.prompt, 0, 0,
         "the text to go on with (default: none)"},
        {"tokens", KM_OPTION_INT, "N", &o.tokens, 0, 1e9, "at most this many more (default 200)"},
        KM_OPTION_SAMPLING_ROWS(o.sampling, "200", "1: all", "0"),
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
        .examples =
            "  kermes sample --model runs/shakespeare --prompt 'ROMEO:' --tokens 300\n"
            "  kermes sample --model gpt2 --prompt 'Once upon' --temperature 0 --json\n"
            "  kermes sample --model run --prompt 'To be' --stop $'\\n' --repeat-penalty 1.1\n",
    };
    km_args args;
    km_error err = {0};
    km_dtype dtype;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (!o.model) return km_cli_usage("sample: --model PATH is missing");
    if (parse_dtype(o.dtype, &dtype, &err) != KM_OK ||
        km_cli_sampling_check(&o.sampling, &err) != KM_OK)
        return km_cli_usage("%s", err.text);
    km_cli_notes(o.common.quiet);
    return run(&o, dtype);
}
