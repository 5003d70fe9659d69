/* kermes run, which is kermes sample too: one prompt, one answer, from a model file that is used
 * where it lies. As sample it shows the prompt before the text and goes on when the context is
 * full. */
#include "base/log.h"
#include "cli/progress.h"
#include "base/text.h"
#include "cli/loop.h"
#include "cli/run_many.h"
#include "cli/run_prompt.h"
#include "cli/sampling.h"
#include "cli/use_model.h"
#include "report/json.h"
#include <math.h>
#include <string.h>

typedef struct run_settings {
    km_common common;
    const char *name; /* run or sample */
    const char *model, *template, *system, *draft, *tokenizer, *dtype;
    km_run_prompt prompt;
    int64_t tokens;
    bool chat, echo, only_new, allow_loops;
    km_run_many many; /* with `prompts` */
    km_cli_loras loras;
    km_cli_where where;
    km_cli_session session;
    km_cli_sampling sampling;
} run_settings;

/* ---- The prompt ---- */

static km_status render(const run_settings *o, km_model *m, const km_text *prompt, km_text *out,
                        km_error *err) {
    json_t *messages = json_array();
    if (o->system)
        json_array_append_new(messages, km_cli_message("system", o->system, strlen(o->system)));
    json_array_append_new(messages, km_cli_message("user", km_text_str(prompt), prompt->len));
    km_status s = km_cli_render(m, o->template, messages, out, err);
    json_decref(messages);
    return s;
}

static km_status make_prompt(const run_settings *o, km_model *m, const km_text *plain, km_text *out,
                             km_error *err) {
    km_status s = KM_OK;
    if (o->chat)
        s = render(o, m, plain, out, err);
    else
        km_text_put(out, km_text_str(plain), plain->len);
    if (s == KM_OK && !km_text_ok(out)) s = km_error_set(err, KM_ERR_MEMORY, "run: out of memory");
    return s;
}

/* ---- Running ---- */

typedef struct output {
    km_cli_text text;
    km_loop loop;
    bool watch;      /* for loops */
    km_progress bar; /* while the prompt is read */
    bool reading;
} output;

static bool on_prompt(void *user, int64_t done, int64_t total) {
    output *o = user;
    if (!o->reading) return true;
    o->bar.total = total;
    km_progress_step(&o->bar, done, NULL);
    if (done == total) km_progress_end(&o->bar), o->reading = false;
    return true;
}

static bool on_token(void *user, const km_piece_event *e) {
    output *o = user;
    return km_cli_show(&o->text, e->text, e->bytes) &&
           !(o->watch && km_loop_put(&o->loop, e->text, e->bytes));
}

static double rate(int64_t tokens, double seconds) {
    return tokens > 0 && seconds > 0 ? (double)tokens / seconds : NAN;
}

static int print_json(const run_settings *o, const km_model_info *m, const km_text *prompt,
                      const km_text *text, const km_generated *got) {
    double reading = rate(got->prompt_tokens - got->reused, got->prompt_seconds);
    double decode = rate(got->tokens - 1, got->seconds); /* the first comes with the prompt */
    return km_cli_print_json(json_pack(
        "{s:o, s:s, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:b, s:s, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:I, s:I}",
        "model", km_json_text(m->path), "device", m->devices, "context", (json_int_t)m->context,
        "context_asked", o->session.context ? json_integer(o->session.context) : json_null(),
        "prompt", km_json_text(km_text_str(prompt)), "text", km_json_text(km_text_str(text)),
        "seed", (json_int_t)o->sampling.seed, "prompt_tokens", (json_int_t)got->prompt_tokens,
        "reused", (json_int_t)got->reused, "tokens", (json_int_t)got->tokens, "ended",
        got->end == KM_ENDED_TEXT, "end", km_end_name(got->end), "prompt_seconds",
        km_json_number(got->prompt_seconds, 4), "seconds", km_json_number(got->seconds, 4),
        "first_token_seconds", km_json_number(got->tokens ? got->first_seconds : NAN, 4),
        "prompt_tokens_per_s", km_json_number(reading, 4), "decode_tokens_per_s",
        km_json_number(decode, 4), "tokens_per_s",
        km_json_number(rate(got->tokens, got->seconds), 4), "guessed", (json_int_t)got->guessed,
        "accepted", (json_int_t)got->accepted));
}

/* The end of the text, and then the figures. */
static void tell(const run_settings *o, const km_model_info *m, const output *out,
                 const km_generated *got) {
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    if (!o->common.json) putchar('\n');
    fflush(stdout);
    if (out->loop.period)
        km_note(KM_LOG_WARN, "the text repeats itself and was ended; --allow-loops lets it go on");
    else if (got->end == KM_ENDED_CONTEXT)
        km_note(KM_LOG_WARN,
                "the answer ends where the context of %lld tokens is full; --shift goes on",
                (long long)m->context);
    if (o->common.quiet || o->common.json) return;
    fprintf(stderr, "kermes: prompt %lld token%s (%s a second), answer %lld (%s a second)\n",
            (long long)got->prompt_tokens, got->prompt_tokens == 1 ? "" : "s",
            km_format_number(a, rate(got->prompt_tokens - got->reused, got->prompt_seconds)),
            (long long)got->tokens, km_format_number(b, rate(got->tokens - 1, got->seconds)));
    if (got->guessed)
        fprintf(stderr, "kermes: %lld of %lld guesses were right (%.0f%%)\n",
                (long long)got->accepted, (long long)got->guessed,
                100.0 * (double)got->accepted / (double)got->guessed);
}

static km_status last(km_error *err) {
    return km_error_set(err, km_last_status(), "%s", km_last_error());
}

static km_status generate(run_settings *o, km_model *m, const km_text *prompt, output *out,
                          km_generated *got, km_error *err) {
    km_generation g = km_generation_defaults(NULL);
    g.max_tokens = o->tokens ? o->tokens : -1;
    g.rendered = o->chat;
    g.shift = o->session.shift;
    g.exact = o->session.file && !o->session.no_reread;
    g.on_prompt = on_prompt;
    g.on_token = on_token;
    g.user = out;
    km_cli_sampling_apply(&o->sampling, &g);
    km_session *session = km_cli_session_open(m, &o->session);
    if (!session) return last(err);
    km_progress_begin(&out->bar, "prompt", "tokens", 1, o->common.quiet);
    out->reading = true;
    km_status s = km_generate(session, km_text_str(prompt), prompt->len, &g, got);
    if (out->reading) km_progress_end(&out->bar);
    if (s != KM_OK) {
        last(err);
        km_session_free(session);
        return s;
    }
    return km_cli_session_close(session, &o->session) == KM_OK ? KM_OK : last(err);
}

static km_model *open_model(run_settings *o, km_dtype dtype, km_error *err) {
    km_model_options how;
    if (km_cli_model_options(&o->common, &o->where, &o->session, &how, err) != KM_OK ||
        km_cli_loras_open(&o->loras, &how, err) != KM_OK)
        return NULL;
    how.dtype = dtype;
    how.tokenizer = o->tokenizer;
    how.draft = o->draft;
    km_model *m = km_cli_model_open(o->model, &how, &o->common);
    if (!m) last(err);
    return m;
}

static km_status prepare(run_settings *o, km_model *m, km_error *err) {
    km_cli_context_told(o->session.context, km_model_describe(m).context);
    km_cli_sampling_of_model(&o->sampling, m);
    return km_cli_sampling_open(&o->sampling, m, err);
}

/* --prompts: all of a file. */
static int run_many(run_settings *o, km_dtype dtype) {
    km_error err = {0};
    km_model *m = open_model(o, dtype, &err);
    if (m && km_model_follows(m)) return km_cli_follow(m);
    km_status s = m ? prepare(o, m, &err) : err.code;
    km_generation g = km_generation_defaults(NULL);
    g.max_tokens = o->tokens ? o->tokens : -1;
    g.exact = true; /* what a sequence held before has no say in the next answer */
    if (s == KM_OK) km_cli_sampling_apply(&o->sampling, &g);
    o->many.common = &o->common;
    o->many.chat = o->chat;
    o->many.template = o->template;
    o->many.system = o->system;
    o->many.how = &g;
    int code = s == KM_OK         ? km_run_many_all(&o->many, m)
               : s == KM_ERR_PEER ? km_cli_peer_failed()
                                  : km_cli_fail("%s", err.text);
    km_cli_sampling_close(&o->sampling);
    km_model_close(m);
    return code;
}

static int run(run_settings *o, km_dtype dtype, const km_text *plain) {
    km_error err = {0};
    km_generated got = {.size = sizeof got};
    output out = {.text = {.json = o->common.json},
                  .watch = !o->common.json && !o->allow_loops && !o->sampling.past_end};
    km_text prompt = {0};
    int code = KM_EXIT_OK;
    km_model *m = open_model(o, dtype, &err);
    if (m && km_model_follows(m)) return km_cli_follow(m);
    km_status s = m ? prepare(o, m, &err) : err.code;
    if (s == KM_OK) s = make_prompt(o, m, plain, &prompt, &err);
    if (o->echo && !o->only_new && !o->common.json) out.text.before = km_text_str(plain);
    if (s == KM_OK) s = generate(o, m, &prompt, &out, &got, &err);
    if (s == KM_OK) {
        km_model_info about = km_model_describe(m);
        km_cli_show_before(&out.text);
        tell(o, &about, &out, &got);
        if (o->common.json) code = print_json(o, &about, plain, &out.text.text, &got);
    } else {
        code = s == KM_ERR_PEER ? km_cli_peer_failed() : km_cli_fail("%s", err.text);
    }
    km_text_free(&prompt);
    km_text_free(&out.text.text);
    km_cli_sampling_close(&o->sampling);
    km_model_close(m);
    return code;
}

/* ---- The command ---- */

static km_status parse_dtype(const char *name, km_dtype *out, km_error *err) {
    static const km_dtype known[] = {KM_F32, KM_BF16, KM_F16};
    *out = KM_DTYPE_COUNT;
    if (!name) return KM_OK;
    for (int i = 0; i < 3; i++)
        if (strcmp(name, km_dtype_name(known[i])) == 0) *out = known[i];
    if (*out != KM_DTYPE_COUNT) return KM_OK;
    return km_error_set(err, KM_ERR_RANGE, "--dtype takes f32, bf16 or f16, not '%.40s'", name);
}

static km_status check_many(const run_settings *o, km_error *err) {
    const km_run_many *p = &o->many;
    const char *alone = strcmp(o->name, "run") != 0 ? "it is kermes run that has it"
                        : o->prompt.given           ? "it goes without --prompt"
                        : o->prompt.file            ? "it goes without --file"
                        : o->session.file           ? "answers of many have no --session"
                        : o->session.shift          ? "a batch does not --shift contexts"
                        : o->draft                  ? "a batch makes no guesses (--draft)"
                                                    : NULL;
    if (p->prompts && alone) return km_error_set(err, KM_ERR_RANGE, "run: --prompts: %s", alone);
    if (!p->prompts && (p->strict || p->out || p->parallel || p->cache_memory))
        return km_error_set(err, KM_ERR_RANGE, "run: --%s goes with --prompts FILE",
                            p->strict     ? "strict"
                            : p->out      ? "out"
                            : p->parallel ? "parallel"
                                          : "cache-memory");
    return KM_OK;
}

static km_status check(run_settings *o, km_dtype *dtype, km_error *err) {
    km_status many = check_many(o, err);
    if (many != KM_OK) return many;
    if (o->many.prompts && !o->many.out) o->many.out = "-";
    if (o->many.prompts && !o->many.parallel) o->many.parallel = 32;
    if ((o->template || o->system) && !o->chat && !o->many.prompts)
        return km_error_set(err, KM_ERR_RANGE, "%s: --%s needs --chat", o->name,
                            o->template ? "template" : "system");
    km_status s = km_cli_session_check(&o->session, err);
    if (s == KM_OK) s = km_cli_where_check(&o->where, err);
    if (s == KM_OK) s = km_cli_sampling_check(&o->sampling, err);
    return s == KM_OK ? parse_dtype(o->dtype, dtype, err) : s;
}

static int command(run_settings *o, int argc, char **argv) {
    const km_option options[] = {
        {"model", KM_OPTION_TEXT, "PATH", &o->model, 0, 0,
         "a GGUF file, a Hugging Face folder, or a training run's; also -m\n"
         "(default: the newest in the model folder)"},
        {"prompt", KM_OPTION_TEXT, "TEXT", &o->prompt.given, 0, 0, "what to go on with; also -p"},
        {"file", KM_OPTION_TEXT, "FILE", &o->prompt.file, 0, 0,
         "the prompt is what this file holds; - is standard input"},
        {"chat", KM_OPTION_FLAG, NULL, &o->chat, 0, 0,
         "the prompt is a question: put it into the model's chat template"},
        {"template", KM_OPTION_TEXT, "NAME", &o->template, 0, 0,
         "with --chat: a built-in template (chatml, llama3, mistral, ...)"},
        {"system", KM_OPTION_TEXT, "TEXT", &o->system, 0, 0, "with --chat: the system message"},
        {"prompts", KM_OPTION_TEXT, "FILE", &o->many.prompts, 0, 0,
         "many prompts at once: a JSON object on each line, with \"prompt\" or\n"
         "\"messages\" and settings of its own; - is standard input"},
        {"out", KM_OPTION_TEXT, "FILE", &o->many.out, 0, 0,
         "with --prompts: an answer a line goes here, as they end; what is there\n"
         "already is not done again (default: standard output); also -o"},
        {"parallel", KM_OPTION_INT, "N", &o->many.parallel, 1, 4096,
         "with --prompts: answers made at once (default 32)"},
        {"cache-memory", KM_OPTION_INT, "MB", &o->many.cache_memory, 1, 1 << 24,
         "with --prompts: memory for keys and values at most"},
        {"strict", KM_OPTION_FLAG, NULL, &o->many.strict, 0, 0,
         "with --prompts: stop at the first line that cannot be answered"},
        {"tokens", KM_OPTION_INT, "N", &o->tokens, 0, 1e9,
         "at most this many more (default 256); also -n"},
        {"echo", KM_OPTION_FLAG, NULL, &o->echo, 0, 0,
         "print the prompt before the text (sample does)"},
        {"only-new", KM_OPTION_FLAG, NULL, &o->only_new, 0, 0, "do not print the prompt"},
        KM_OPTION_SESSION_ROWS(
            o->session, "go on from the second half of the context when it is full (sample does)"),
        {"allow-loops", KM_OPTION_FLAG, NULL, &o->allow_loops, 0, 0,
         "do not end a text that repeats itself over and over"},
        KM_OPTION_SAMPLING_ROWS(o->sampling, "40", "0.95", "0.05"),
        KM_OPTION_DRAFT_ROW(o->draft),
        KM_OPTION_LORA_ROW(o->loras),
        {"tokenizer", KM_OPTION_TEXT, "FILE", &o->tokenizer, 0, 0,
         "another tokenizer.json than the model's own"},
        {"dtype", KM_OPTION_TEXT, "T", &o->dtype, 0, 0,
         "compute in f32, bf16 or f16 (default: as the weights are stored)"},
        KM_OPTION_DEVICE_ROW(o->common, "where to compute (default: auto, a GPU if there is one)"),
        KM_OPTION_WHERE_ROWS(o->where),
        KM_OPTION_SPLIT_ROWS(o->where),
        KM_OPTION_THREADS_ROW(o->common),
        KM_OPTION_OUTPUT_ROWS(o->common),
        {0},
    };
    const km_spec spec = {
        .name = o->name,
        .words = "[MODEL] [PROMPT]",
        .summary = "Goes on with a prompt, or answers it.",
        .details =
            "The model is used where it lies, its weights in the form they have there. The prompt\n"
            "is the words of the line, a file, or what a pipe brings; it is text to go on with,\n"
            "unless --chat makes it a question. The same seed, settings and device give the same\n"
            "text. 'kermes sample' is the same command with --echo and --shift, for models that\n"
            "were just trained; without a prompt it begins from nothing.\n"
            "\n"
            "--prompts answers a file of them together, which is several times as fast as one\n"
            "after the other. Lines of the output come in the order of their end and carry the\n"
            "\"index\" and \"id\" of their prompt; one that cannot be answered carries an\n"
            "\"error\". The same call again goes on where it was stopped.\n",
        .options = options,
        .examples = "  kermes run 'The sea is' -n 64 --temperature 0\n"
                    "  echo 'Name three colours.' | kermes run --chat\n"
                    "  kermes run -m SmolLM2 --chat -p 'Name three colours.' --json\n"
                    "  kermes run --chat --file question.txt --system 'Answer in one sentence.'\n"
                    "  kermes run --chat --prompt 'A cat, as JSON.' --json-schema cat.schema.json\n"
                    "  kermes run --prompt '1, 2, 3,' --stop '10' --logit-bias ' 7=-inf'\n"
                    "  kermes run -m large.gguf --prompt 'Once' --device cuda --gpu-layers auto\n"
                    "  mpirun -n 2 kermes run -m large.gguf --split tensor --prompt 'Once'\n"
                    "  kermes run -m Qwen2.5-7B.gguf --draft Qwen2.5-0.5B.gguf --prompt 'Once'\n"
                    "  kermes run --chat --file code.txt --draft lookup\n"
                    "  kermes run --prompts questions.jsonl -o answers.jsonl --parallel 64\n"
                    "  kermes sample --model runs/shakespeare --prompt 'ROMEO:' --tokens 300\n",
    };
    km_args args;
    km_error err = {0};
    km_text joined = {0}, plain = {0};
    km_dtype dtype;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    km_cli_sampling_said(&o->sampling, &spec, &args);
    km_status s = check(o, &dtype, &err);
    if (s == KM_OK) s = km_run_prompt_words(&o->prompt, &args, &o->model, &joined, &err);
    if (s == KM_OK && o->many.prompts && o->prompt.given)
        s = km_error_set(&err, KM_ERR_RANGE, "run: --prompts: it goes without words of a prompt");
    if (s == KM_OK) km_cli_notes(o->common.quiet || km_cli_silent(&o->where));
    if (s == KM_OK && !o->many.prompts) s = km_run_prompt_read(&o->prompt, &plain, &err);
    if (s == KM_OK)
        code = o->many.prompts ? run_many(o, dtype) : run(o, dtype, &plain);
    else if (km_cli_silent(&o->where))
        code = KM_EXIT_USAGE;
    else
        code = s == KM_ERR_RANGE ? km_cli_usage("%s", err.text) : km_cli_fail("%s", err.text);
    km_text_free(&joined);
    km_text_free(&plain);
    return code;
}

int km_command_run(int argc, char **argv) {
    run_settings o = {.common = KM_COMMON_DEFAULTS,
                      .name = "run",
                      .tokens = 256,
                      .prompt = {.piped = true},
                      .sampling = km_cli_sampling_defaults(40, 0.95, 0.05)};
    return command(&o, argc, argv);
}

int km_command_sample(int argc, char **argv) {
    run_settings o = {.common = KM_COMMON_DEFAULTS,
                      .name = "sample",
                      .tokens = 256,
                      .echo = true,
                      .session = {.shift = true},
                      .sampling = km_cli_sampling_defaults(40, 0.95, 0.05)};
    return command(&o, argc, argv);
}
