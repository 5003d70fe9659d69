/* kermes chat: a conversation with a model, typed or piped. Answers go to stdout, everything else
 * to stderr. */
#include "cli/chat.h"
#include "cli/interrupt.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Telling ---- */

static void tell(const km_chat *c, const char *before, const char *fmt, va_list ap) {
    bool colour = c->colour && isatty(STDERR_FILENO);
    fflush(stdout);
    if (colour) fputs("\033[2m", stderr);
    fputs(before, stderr);
    vfprintf(stderr, fmt, ap);
    fputs(colour ? "\033[0m\n" : "\n", stderr);
}

void km_chat_say(const km_chat *c, const char *fmt, ...) {
    if (c->common.quiet) return;
    va_list ap;
    va_start(ap, fmt);
    tell(c, "", fmt, ap);
    va_end(ap);
}

void km_chat_complain(km_chat *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    tell(c, "kermes: ", fmt, ap);
    va_end(ap);
    c->failed = true;
}

/* ---- Reading ---- */

static bool ends_with(const km_text *t, size_t from, const char *what) {
    size_t n = strlen(what);
    return t->len >= from + n && memcmp(t->data + t->len - n, what, n) == 0;
}

/* A text between three quotes, whose first line is in *out already, from `first` on. */
static km_line read_block(km_chat *c, km_text *out, size_t first, km_error *err) {
    const size_t mark = 3;
    km_line got = KM_LINE_TEXT;
    while (!ends_with(out, first + mark, "\"\"\"")) {
        km_text_put(out, "\n", 1);
        got = km_lines_read(c->lines, ". ", out, err);
        if (got == KM_LINE_END) break; /* what is there is the text */
        if (got != KM_LINE_TEXT) return got;
    }
    if (got == KM_LINE_TEXT) out->len -= mark;
    memmove(out->data + first, out->data + first + mark, out->len - first - mark);
    out->len -= mark;
    while (out->len > first && out->data[out->len - 1] == '\n') out->len--;
    out->data[out->len] = 0;
    return KM_LINE_TEXT;
}

/* A message: a line, lines joined by \ at their ends, or a block. */
static km_line read_message(km_chat *c, km_text *out, km_error *err) {
    out->len = 0;
    if (c->terminal) km_interrupts_catch(true);
    km_line got = km_lines_read(c->lines, "> ", out, err);
    if (got != KM_LINE_TEXT) return got;
    size_t space = strspn(km_text_str(out), " \t");
    if (strncmp(km_text_str(out) + space, "\"\"\"", 3) == 0) return read_block(c, out, space, err);
    while (ends_with(out, 0, "\\")) {
        out->data[out->len - 1] = '\n';
        got = km_lines_read(c->lines, ". ", out, err);
        if (got == KM_LINE_END) break;
        if (got != KM_LINE_TEXT) return got;
    }
    return KM_LINE_TEXT;
}

static bool is_blank(const km_text *t) {
    for (size_t i = 0; i < t->len; i++)
        if (!strchr(" \t\r\n", t->data[i]) || !t->data[i]) return false;
    return true;
}

static void ask(km_chat *c, const char *text, size_t bytes) {
    km_error err = {0};
    if (km_talk_add(&c->talk, "user", text, bytes, &err) != KM_OK)
        km_chat_complain(c, "%s", err.text);
    else
        km_chat_answer(c);
}

static void converse(km_chat *c) {
    km_text text = {0};
    km_error err = {0};
    bool told = false;
    while (!c->quit) {
        km_line got = read_message(c, &text, &err);
        if (got == KM_LINE_END) break;
        if (got == KM_LINE_FAILED) {
            km_chat_complain(c, "%s", err.text);
            break;
        }
        if (got == KM_LINE_CANCELLED) {
            if (!told) km_chat_say(c, "Ctrl-D or /bye leaves");
            told = true;
            continue;
        }
        if (is_blank(&text)) continue;
        bool slash = text.data[0] == '/' && text.len > 1 && !memchr(text.data, '\n', text.len),
             twice = slash && text.data[1] == '/';
        if (slash && !twice)
            km_chat_command(c, text.data);
        else
            ask(c, text.data + twice, text.len - twice);
        if (ferror(stdout)) break; /* nobody reads any more */
    }
    if (c->terminal && !c->quit) putchar('\n');
    km_text_free(&text);
}

/* ---- The command ---- */

static void greet(const km_chat *c) {
    const char *name = strrchr(c->about.path, '/');
    if (!c->terminal) return;
    km_chat_say(c, "%s, %lld tokens of context", name ? name + 1 : c->about.path,
                (long long)c->about.context);
    km_chat_say(c, "/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves");
}

static int print_json(const km_chat *c) {
    return km_cli_print_json(
        json_pack("{s:s, s:s, s:I, s:o, s:O, s:O}", "model", c->about.path, "device",
                  km_model_describe(c->m).devices, "context", (json_int_t)c->about.context,
                  "context_asked", c->room.context ? json_integer(c->room.context) : json_null(),
                  "messages", c->talk.messages, "answers", c->log));
}

static km_status open_model(km_chat *c, km_error *err) {
    km_model_options how;
    km_status s = km_cli_model_options(&c->common, &c->where, &c->room, &how, err);
    if (s == KM_OK) s = km_cli_loras_open(&c->loras, &how, err);
    if (s != KM_OK) return s;
    how.draft = c->draft_name;
    c->m = km_cli_model_open(c->model, &how, &c->common);
    if (!c->m) return km_error_set(err, km_last_status(), "%s", km_last_error());
    c->about = km_model_describe(c->m);
    return KM_OK;
}

/* Whether there is a template, before anybody types a question. */
static km_status check_template(km_chat *c, km_error *err) {
    km_text text = {0};
    json_t *none = json_pack("[{s:s, s:s}]", "role", "user", "content", "?");
    km_status s = km_cli_render_tools(c->m, c->template_name, none, c->tools.text, &text, err);
    json_decref(none);
    km_text_free(&text);
    return s;
}

static km_status open_chat(km_chat *c, km_error *err) {
    km_status s = c->tools_file ? km_chat_tools_open(&c->tools, c->tools_file, err) : KM_OK;
    if (s == KM_OK) s = open_model(c, err);
    if (s == KM_OK && km_model_follows(c->m)) return s; /* rank 0 talks */
    if (s == KM_OK) km_cli_context_told(c->room.context, c->about.context);
    if (s == KM_OK) km_cli_sampling_of_model(&c->sampling, c->m);
    if (s == KM_OK) s = km_cli_sampling_open(&c->sampling, c->m, err);
    if (s == KM_OK) s = check_template(c, err);
    if (s == KM_OK && !(c->session = km_cli_session_open(c->m, &c->room)))
        s = km_error_set(err, km_last_status(), "%s", km_last_error());
    if (s == KM_OK) s = km_talk_begin(&c->talk, err);
    if (s == KM_OK) s = km_talk_system(&c->talk, c->system, err);
    if (s == KM_OK && c->common.json) c->log = json_array();
    if (s == KM_OK && !(c->lines = km_lines_open(c->terminal, c->colour)))
        s = km_error_set(err, KM_ERR_MEMORY, "chat: out of memory");
    if (s == KM_OK) km_lines_complete(c->lines, km_chat_complete, c);
    return s;
}

static int chat(km_chat *c) {
    km_error err = {0};
    const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
    c->terminal = isatty(STDIN_FILENO) == 1;
    c->screen = isatty(STDOUT_FILENO) == 1;
    c->colour = c->screen && !(no_colour && *no_colour) && term && strcmp(term, "dumb") != 0;
    int code = KM_EXIT_OK;
    km_status opened = open_chat(c, &err);
    if (opened == KM_OK && km_model_follows(c->m)) return km_cli_follow(c->m);
    if (opened == KM_OK) {
        greet(c);
        converse(c);
        km_interrupts_leave();
        km_session *session = c->session;
        c->session = NULL;
        if (km_cli_session_close(session, &c->room) != KM_OK)
            code = km_cli_fail("%s", km_last_error());
        if (c->failed && !c->terminal) code = KM_EXIT_FAILED;
        if (c->common.json && print_json(c) != KM_EXIT_OK) code = KM_EXIT_FAILED;
    } else {
        code = opened == KM_ERR_PEER ? km_cli_peer_failed() : km_cli_fail("%s", err.text);
    }
    km_lines_close(c->lines);
    json_decref(c->log);
    km_talk_end(&c->talk);
    km_chat_tools_close(&c->tools);
    km_session_free(c->session);
    km_cli_sampling_close(&c->sampling);
    km_model_close(c->m);
    return code;
}

int km_command_chat(int argc, char **argv) {
    km_chat c = {.common = KM_COMMON_DEFAULTS,
                 .sampling = km_cli_sampling_defaults(40, 0.95, 0.05)};
    const km_option options[] = {
        {"model", KM_OPTION_TEXT, "PATH", &c.model, 0, 0,
         "a GGUF file, a Hugging Face folder, or a training run's; also -m\n"
         "(default: the newest in the model folder)"},
        {"system", KM_OPTION_TEXT, "TEXT", &c.system, 0, 0, "the system message"},
        {"template", KM_OPTION_TEXT, "NAME", &c.template_name, 0, 0,
         "a built-in chat template (chatml, llama3, mistral, ...) in place of\n"
         "the model's own"},
        {"tools", KM_OPTION_TEXT, "FILE", &c.tools_file, 0, 0,
         "functions that the model may call, as OpenAI describes them (JSON);\na \"command\" beside one answers its calls, else you do"},
        {"tokens", KM_OPTION_INT, "N", &c.tokens, 1, 1e9,
         "at most this many for an answer (default 2048); also -n"},
        KM_OPTION_SESSION_ROWS(c.room, "leave out the oldest turns when the context is full"),
        {"allow-loops", KM_OPTION_FLAG, NULL, &c.allow_loops, 0, 0,
         "do not end an answer that repeats itself over and over"},
        {"stats", KM_OPTION_FLAG, NULL, &c.stats, 0, 0,
         "after each answer: tokens a second, time to the first token"},
        KM_OPTION_SAMPLING_ROWS(c.sampling, "40", "0.95", "0.05"),
        KM_OPTION_DRAFT_ROW(c.draft_name),
        KM_OPTION_LORA_ROW(c.loras),
        KM_OPTION_DEVICE_ROW(c.common, "where to compute (default: auto, a GPU if there is one)"),
        KM_OPTION_WHERE_ROWS(c.where),
        KM_OPTION_SPLIT_ROWS(c.where),
        KM_OPTION_THREADS_ROW(c.common),
        KM_OPTION_OUTPUT_ROWS(c.common),
        {0},
    };
    const km_spec spec = {
        .name = "chat",
        .words = "[MODEL]",
        .summary = "Talks with a model.",
        .details =
            "Type a question; the answer appears as it is made, and Ctrl-C stops it. Lines that\n"
            "begin with a slash are commands: /help lists them. A line that ends with \\ goes on\n"
            "in the next one, and \"\"\" begins and ends a text of many lines. Without a terminal\n"
            "each line of the input is a question, and only the answers go to stdout.\n",
        .options = options,
        .examples = "  kermes chat SmolLM2\n"
                    "  kermes chat --system 'You answer like a pirate.' --stats\n"
                    "  echo 'What is the capital of France?' | kermes chat --temp 0\n"
                    "  kermes chat -m model.gguf --template chatml --context 4096 --shift\n"
                    "  kermes chat -m model.gguf --tools tools.json\n"
                    "  kermes chat -m large.gguf --device cuda --gpu-layers 20\n"
                    "  mpirun -n 2 kermes chat -m large.gguf --split tensor\n"
                    "  kermes chat -m Qwen2.5-7B.gguf --draft Qwen2.5-0.5B.gguf --stats\n",
    };
    km_args args;
    km_error err = {0};
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words > 1 || (args.n_words == 1 && c.model))
        return km_cli_usage("chat: one model is enough: '%.60s' is one more",
                            args.words[args.n_words - 1]);
    if (args.n_words == 1) c.model = args.words[0];
    if (c.tokens == 0) c.tokens = KM_CHAT_TOKENS;
    km_cli_sampling_said(&c.sampling, &spec, &args);
    if (km_cli_session_check(&c.room, &err) != KM_OK ||
        km_cli_where_check(&c.where, &err) != KM_OK ||
        km_cli_sampling_check(&c.sampling, &err) != KM_OK)
        return km_cli_silent(&c.where) ? KM_EXIT_USAGE : km_cli_usage("%s", err.text);
    km_cli_notes(c.common.quiet || km_cli_silent(&c.where));
    return chat(&c);
}
