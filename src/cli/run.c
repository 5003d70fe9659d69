/* kermes run: one prompt, one answer, from a model file that is used where it lies. */
#include "base/file.h"
#include "base/log.h"
#include "cli/progress.h"
#include "cli/sampling.h"
#include "cli/use_model.h"
#include "report/json.h"
#include "base/text.h"
#include <math.h>
#include <string.h>

typedef struct run_settings {
    km_common common;
    const char *model, *prompt, *file, *template, *system, *draft;
    int64_t tokens;
    bool chat;
    km_cli_where where;
    km_cli_session session;
    km_cli_sampling sampling;
} run_settings;

/* ---- The prompt ---- */

static km_status render(const run_settings *o, const km_cli_model *m, const km_text *prompt,
                        km_text *out, km_error *err) {
    km_chat_template *t = km_cli_template(m, o->template, err);
    if (!t) return err->code;
    json_t *messages = json_array();
    if (o->system)
        json_array_append_new(messages, km_cli_message("system", o->system, strlen(o->system)));
    json_array_append_new(messages, km_cli_message("user", km_text_str(prompt), prompt->len));
    km_status s = km_cli_render(m, t, messages, out, err);
    json_decref(messages);
    km_chat_template_free(t);
    return s;
}

static km_status read_prompt(const run_settings *o, const km_cli_model *m, km_text *out,
                             km_error *err) {
    km_text plain = {0};
    km_map map = {0};
    km_status s = KM_OK;
    if (o->file) {
        s = km_map_open(&map, o->file, err);
        if (s == KM_OK) km_text_put(&plain, (const char *)map.data, map.size);
        s = km_map_done(&map, s, err);
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

typedef struct output {
    km_cli_text text;
    km_progress bar; /* while the prompt is read */
    bool reading;
    km_cli_model *m;
    const km_cli_session *room;
    km_sequence *session;
} output;

static bool on_prompt(void *user, int64_t done, int64_t total) {
    output *o = user;
    if (!o->reading) return true;
    o->bar.total = total;
    km_progress_step(&o->bar, done, NULL);
    if (done == total) km_progress_end(&o->bar), o->reading = false;
    return true;
}

static bool on_text(void *user, int32_t id, const char *text, size_t bytes) {
    output *o = user;
    return km_cli_show(&o->text, id, text, bytes);
}

static km_sequence *rescue(void *user, km_sequence *failed, const km_error *why) {
    output *o = user;
    (void)failed; /* o->session */
    return km_cli_rescue(o->m, o->room, &o->session, why);
}

static double rate(int64_t tokens, double seconds) {
    return tokens > 0 && seconds > 0 ? (double)tokens / seconds : NAN;
}

static int finish(const run_settings *o, const km_cli_model *m, const km_text *text,
                  const km_generated *got) {
    double prompt = rate(got->prompt_tokens - got->reused, got->prompt_seconds);
    double decode = rate(got->tokens - 1, got->seconds); /* the first comes with the prompt */
    if (o->common.json)
        return km_cli_print_json(json_pack(
            "{s:o, s:s, s:I, s:o, s:o, s:I, s:I, s:I, s:b, s:s, s:o, s:o, s:o, s:o, s:o, s:I, s:I}",
            "model", km_json_text(m->path), "device", m->devices, "context",
            (json_int_t)m->model->config.context, "context_asked",
            o->session.context ? json_integer(o->session.context) : json_null(), "text",
            km_json_text(km_text_str(text)), "prompt_tokens", (json_int_t)got->prompt_tokens,
            "reused", (json_int_t)got->reused, "tokens", (json_int_t)got->tokens, "ended",
            got->end == KM_END_TEXT, "end", km_end_name(got->end), "prompt_seconds",
            km_json_number(got->prompt_seconds, 4), "seconds", km_json_number(got->seconds, 4),
            "first_token_seconds", km_json_number(got->tokens ? got->first_seconds : NAN, 4),
            "prompt_tokens_per_s", km_json_number(prompt, 4), "decode_tokens_per_s",
            km_json_number(decode, 4), "guessed", (json_int_t)got->guessed, "accepted",
            (json_int_t)got->accepted));
    putchar('\n');
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    if (!o->common.quiet)
        fprintf(stderr, "kermes: prompt %lld tokens (%s a second), answer %lld (%s a second)\n",
                (long long)got->prompt_tokens, km_format_number(a, prompt), (long long)got->tokens,
                km_format_number(b, decode));
    if (!o->common.quiet && got->guessed)
        fprintf(stderr, "kermes: %lld of %lld guesses were right (%.0f%%)\n",
                (long long)got->accepted, (long long)got->guessed,
                100.0 * (double)got->accepted / (double)got->guessed);
    return KM_EXIT_OK;
}

static km_status generate(run_settings *o, km_cli_model *m, km_drafter *draft,
                          const km_text *prompt, output *out, km_generated *got, km_error *err) {
    km_generation g = {.tokens = o->tokens,
                       .rendered = o->chat,
                       .shift = o->session.shift,
                       .exact = o->session.file && !o->session.no_reread,
                       .on_prompt = on_prompt,
                       .on_text = on_text,
                       .rescue = rescue,
                       .user = out};
    g.draft = draft;
    km_cli_sampling_apply(&o->sampling, &g);
    km_sequence *session = km_cli_session_open(m, &o->session, err);
    if (!session) return err->code;
    out->m = m;
    out->room = &o->session;
    out->session = session;
    km_progress_begin(&out->bar, "prompt", "tokens", 1, o->common.quiet);
    out->reading = true;
    km_status s =
        km_generate_in(session, m->model, m->token, km_text_str(prompt), prompt->len, &g, got, err);
    if (out->reading) km_progress_end(&out->bar);
    if (s == KM_OK) return km_cli_session_close(out->session, &o->session, err);
    km_sequence_free(out->session);
    return s;
}

static int run(run_settings *o) {
    km_error err = {0};
    km_generated got = {0};
    output out = {.text = {.json = o->common.json}};
    km_text prompt = {0};
    km_cli_model m;
    km_cli_draft draft = {0};
    km_open_options how = {.context = o->session.context, .dtype = KM_DTYPE_COUNT};
    km_dtype cache = KM_F16;
    int code = KM_EXIT_FAILED;
    km_cli_cache_type(o->session.cache_type, &cache, &err); /* checked before */
    km_status s =
        km_cli_model_open_at(&m, o->model, NULL, &o->common, &o->where, cache, 1, &how, &err);
    if (s == KM_OK && km_cli_follows(&m)) return km_cli_follow(&m);
    if (s == KM_OK) km_cli_context_told(o->session.context, m.model->config.context);
    if (s == KM_OK) s = km_cli_sampling_open(&o->sampling, m.token, &err);
    if (s == KM_OK) s = read_prompt(o, &m, &prompt, &err);
    if (s == KM_OK) s = km_cli_draft_open(&draft, o->draft, &m, &o->common, &err);
    if (s == KM_OK) s = generate(o, &m, draft.drafter, &prompt, &out, &got, &err);
    if (s == KM_OK) {
        code = finish(o, &m, &out.text.text, &got);
        if (got.end == KM_END_CONTEXT)
            km_note(KM_LOG_WARN,
                    "the answer ends where the context of %lld tokens is full; --shift goes on",
                    (long long)m.model->config.context);
    } else {
        km_cli_model_fail(&m, &err);
    }
    km_text_free(&prompt);
    km_text_free(&out.text.text);
    km_cli_sampling_close(&o->sampling);
    km_cli_draft_close(&draft);
    km_cli_model_close(&m);
    return code;
}

int km_command_run(int argc, char **argv) {
    run_settings o = {.common = KM_COMMON_DEFAULTS,
                      .tokens = 256,
                      .sampling = km_cli_sampling_defaults(40, 0.95, 0.05)};
    const km_option options[] = {
        {"model", KM_OPTION_TEXT, "PATH", &o.model, 0, 0,
         "a GGUF file, a Hugging Face folder, or a training run's; also -m\n"
         "(default: the newest in the model folder)"},
        {"prompt", KM_OPTION_TEXT, "TEXT", &o.prompt, 0, 0, "what to go on with"},
        {"file", KM_OPTION_TEXT, "FILE", &o.file, 0, 0, "the prompt is what this file holds"},
        {"chat", KM_OPTION_FLAG, NULL, &o.chat, 0, 0,
         "the prompt is a question: put it into the model's chat template"},
        {"template", KM_OPTION_TEXT, "NAME", &o.template, 0, 0,
         "with --chat: a built-in template (chatml, llama3, mistral, ...)"},
        {"system", KM_OPTION_TEXT, "TEXT", &o.system, 0, 0, "with --chat: the system message"},
        {"tokens", KM_OPTION_INT, "N", &o.tokens, 0, 1e9,
         "at most this many more (default 256); also -n"},
        KM_OPTION_SESSION_ROWS(o.session,
                               "go on from the second half of the context when it is full"),
        KM_OPTION_SAMPLING_ROWS(o.sampling, "40", "0.95", "0.05"),
        KM_OPTION_DRAFT_ROW(o.draft),
        KM_OPTION_DEVICE_ROW(o.common, "where to compute (default: auto, a GPU if there is one)"),
        KM_OPTION_WHERE_ROWS(o.where),
        KM_OPTION_SPLIT_ROWS(o.where),
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
                    "  kermes run -m SmolLM2.gguf --chat --prompt 'Name three colours.' --json\n"
                    "  kermes run --chat --file question.txt --system 'Answer in one sentence.'\n"
                    "  kermes run --chat --prompt 'A cat, as JSON.' --json-schema cat.schema.json\n"
                    "  kermes run --prompt '1, 2, 3,' --stop '10' --logit-bias ' 7=-inf'\n"
                    "  kermes run -m large.gguf --prompt 'Once' --device cuda --gpu-layers auto\n"
                    "  mpirun -n 2 kermes run -m large.gguf --split tensor --prompt 'Once'\n"
                    "  kermes run -m Qwen2.5-7B.gguf --draft Qwen2.5-0.5B.gguf --prompt 'Once'\n"
                    "  kermes run --chat --file code.txt --draft lookup\n",
    };
    km_args args;
    km_error err = {0};
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (!o.prompt == !o.file) return km_cli_usage("run: give one of --prompt TEXT and --file FILE");
    if ((o.template || o.system) && !o.chat)
        return km_cli_usage("run: --%s needs --chat", o.template ? "template" : "system");
    if (km_cli_session_check(&o.session, &err) != KM_OK ||
        km_cli_where_check(&o.where, &err) != KM_OK ||
        km_cli_sampling_check(&o.sampling, &err) != KM_OK)
        return km_cli_silent(&o.where) ? KM_EXIT_USAGE : km_cli_usage("%s", err.text);
    km_cli_notes(o.common.quiet || km_cli_silent(&o.where));
    return run(&o);
}
