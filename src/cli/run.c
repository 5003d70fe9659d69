/* kermes run: one prompt, one answer, from a model file that is used where it lies. */
#include "base/file.h"
#include "cli/use_model.h"
#include "infer/chat_template.h"
#include "report/json.h"
#include "report/text.h"
#include <math.h>
#include <string.h>

typedef struct settings {
    km_common common;
    const char *model, *prompt, *file, *template, *system;
    int64_t tokens, seed, context;
    bool chat, past_end;
    km_sampling sampling;
} settings;

/* ---- The prompt ---- */

static const char *token_text(const km_token *t, int32_t id, km_text *room) {
    size_t bytes = 0;
    const char *text = id >= 0 ? km_token_text(t, id, &bytes) : NULL;
    if (!text) return NULL;
    km_text_put(room, text, bytes);
    return km_text_ok(room) ? km_text_str(room) : NULL;
}

/* The model's own template, or the one that was named. */
static km_status render(const settings *o, const km_cli_model *m, const km_text *prompt,
                        km_text *out, km_error *err) {
    km_chat_template *t = o->template ? km_chat_template_named(o->template, err)
                                      : km_chat_template_load(m->path, err);
    if (!t) return err->code;
    km_text bos = {0}, eos = {0};
    km_chat_options how = {.bos = token_text(m->token, km_token_bos(m->token), &bos),
                           .eos = token_text(m->token, km_token_eos(m->token), &eos),
                           .fold_system = true};
    km_message list[2] = {{"system", o->system}, {"user", km_text_str(prompt)}};
    bool system = o->system != NULL;
    km_status s = km_chat_render(t, system ? list : list + 1, system ? 2 : 1, &how, out, err);
    km_text_free(&bos);
    km_text_free(&eos);
    km_chat_template_free(t);
    return s;
}

static km_status read_prompt(const settings *o, const km_cli_model *m, km_text *out,
                             km_error *err) {
    km_text plain = {0};
    km_map map = {0};
    km_status s = KM_OK;
    if (o->file) {
        s = km_map_open(&map, o->file, err);
        if (s == KM_OK) km_text_put(&plain, (const char *)map.data, map.size);
        km_map_close(&map);
    } else {
        km_text_put(&plain, o->prompt, strlen(o->prompt));
    }
    if (s == KM_OK && o->chat)
        s = render(o, m, &plain, out, err);
    else if (s == KM_OK)
        km_text_put(out, plain.data ? plain.data : "", plain.len);
    if (s == KM_OK && (!km_text_ok(&plain) || !km_text_ok(out)))
        s = km_error_set(err, KM_ERR_MEMORY, "run: out of memory");
    km_text_free(&plain);
    return s;
}

/* ---- Running ---- */

static double rate(int64_t tokens, double seconds) {
    return tokens > 0 && seconds > 0 ? (double)tokens / seconds : NAN;
}

static int finish(const settings *o, const km_cli_model *m, const km_cli_text *out,
                  const km_generated *got) {
    double prompt = rate(got->prompt_tokens, got->prompt_seconds);
    double decode = rate(got->tokens - 1, got->seconds); /* the first comes with the prompt */
    if (o->common.json)
        return km_cli_print_json(json_pack(
            "{s:o, s:s, s:o, s:I, s:I, s:b, s:o, s:o, s:o, s:o}", "model", km_json_text(m->path),
            "device", km_ctx_device(m->ctx), "text", km_json_text(km_text_str(&out->text)),
            "prompt_tokens", (json_int_t)got->prompt_tokens, "tokens", (json_int_t)got->tokens,
            "ended", got->ended, "prompt_seconds", km_json_number(got->prompt_seconds, 4),
            "seconds", km_json_number(got->seconds, 4), "prompt_tokens_per_s",
            km_json_number(prompt, 4), "decode_tokens_per_s", km_json_number(decode, 4)));
    putchar('\n');
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    if (!o->common.quiet)
        fprintf(stderr, "kermes: prompt %lld tokens (%s a second), answer %lld (%s a second)\n",
                (long long)got->prompt_tokens, km_format_number(a, prompt), (long long)got->tokens,
                km_format_number(b, decode));
    return KM_EXIT_OK;
}

static int run(const settings *o) {
    km_error err = {0};
    km_generated got = {0};
    km_cli_text out = {.json = o->common.json};
    km_text prompt = {0};
    km_cli_model m;
    km_open_options how = {.context = o->context, .dtype = KM_DTYPE_COUNT};
    int code = KM_EXIT_FAILED;
    km_status s = km_cli_model_open(&m, o->model, NULL, &o->common, &how, &err);
    if (s == KM_OK) s = read_prompt(o, &m, &prompt, &err);
    if (s == KM_OK) {
        km_generation g = {.tokens = o->tokens,
                           .past_end = o->past_end,
                           .rendered = o->chat,
                           .sampling = o->sampling,
                           .on_text = km_cli_show,
                           .user = &out};
        s = km_generate(m.ctx, m.model, m.token, prompt.data ? prompt.data : "", prompt.len, &g,
                        &got, &err);
    }
    if (s == KM_OK)
        code = finish(o, &m, &out, &got);
    else
        km_cli_fail("%s", err.text);
    km_text_free(&prompt);
    km_text_free(&out.text);
    km_cli_model_close(&m);
    return code;
}

int km_command_run(int argc, char **argv) {
    settings o = {.common = KM_COMMON_DEFAULTS,
                  .tokens = 256,
                  .seed = 1,
                  .sampling = {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.05}};
    o.common.device = "cpu";
    const km_option options[] = {
        {"model", KM_OPTION_TEXT, "PATH", &o.model, 0, 0,
         "a GGUF file, a Hugging Face folder, or a training run's; also -m"},
        {"prompt", KM_OPTION_TEXT, "TEXT", &o.prompt, 0, 0, "what to go on with"},
        {"file", KM_OPTION_TEXT, "FILE", &o.file, 0, 0, "the prompt is what this file holds"},
        {"chat", KM_OPTION_FLAG, NULL, &o.chat, 0, 0,
         "the prompt is a question: put it into the model's chat template"},
        {"template", KM_OPTION_TEXT, "NAME", &o.template, 0, 0,
         "with --chat: a built-in template (chatml, llama3, mistral, ...)"},
        {"system", KM_OPTION_TEXT, "TEXT", &o.system, 0, 0, "with --chat: the system message"},
        {"tokens", KM_OPTION_INT, "N", &o.tokens, 0, 1e9,
         "at most this many more (default 256); also -n"},
        {"context", KM_OPTION_INT, "N", &o.context, 1, 1 << 24,
         "room for prompt and answer (default: the model's)"},
        KM_OPTION_SAMPLING_ROWS(o.sampling, o.seed, o.past_end, "40", "0.95", "0.05"),
        KM_OPTION_DEVICE_ROW(o.common, "where to compute (default: cpu)"),
        KM_OPTION_THREADS_ROW(o.common),
        KM_OPTION_OUTPUT_ROWS(o.common),
        {0},
    };
    const km_spec spec = {
        .name = "run",
        .summary = "Answers one prompt with a model file.",
        .details = "The file is used where it lies, its weights in the form they have there. The\n"
                   "prompt is text to go on with, unless --chat makes it a question.\n",
        .options = options,
        .examples = "  kermes run -m SmolLM2.gguf --prompt 'The sea is' -n 64 --temperature 0\n"
                    "  kermes run -m SmolLM2.gguf --chat --prompt 'Name three colours.' --json\n",
    };
    km_args args;
    km_error err = {0};
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (!o.model) return km_cli_usage("run: --model PATH is missing");
    if (!o.prompt == !o.file) return km_cli_usage("run: give one of --prompt TEXT and --file FILE");
    if ((o.template || o.system) && !o.chat)
        return km_cli_usage("run: --%s needs --chat", o.template ? "template" : "system");
    o.sampling.seed = (uint64_t)o.seed;
    if (km_sampling_check(&o.sampling, &err) != KM_OK) return km_cli_usage("%s", err.text);
    km_cli_notes(o.common.quiet);
    return run(&o);
}
