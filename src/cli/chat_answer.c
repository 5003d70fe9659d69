/* Answers: the conversation through its template, the model, and onto the screen, with Ctrl-C as
 * the way to stop. */
#include "base/alloc.h"
#include "base/array.h"
#include "cli/progress.h"
#include "cli/chat.h"
#include "cli/interrupt.h"
#include "cli/loop.h"
#include "cli/word_wrap.h"
#include "report/json.h"
#include <math.h>
#include <string.h>
#include <unistd.h>

/* ---- What is shown ---- */

typedef struct answer {
    km_chat *chat;
    km_text text;
    km_progress bar; /* while the prompt is read */
    bool reading, begun;
    km_loop loop;
    km_word_wrap wrap;
    /* With tools: what is text and what is a call. */
    km_answer_parser *parser;
    km_chat_call *calls;
    size_t n_calls, cap_calls;
    bool shown;
} answer;

static bool put_on_screen(const char *text, size_t bytes) { return km_cli_put(text, bytes, true); }

static bool on_prompt(void *user, int64_t done, int64_t total) {
    answer *a = user;
    if (!a->reading) return !km_interrupted();
    a->bar.total = total;
    km_progress_step(&a->bar, done, NULL);
    if (done == total) km_progress_end(&a->bar), a->reading = false;
    return !km_interrupted();
}

static bool show(answer *a, const char *text, size_t bytes) {
    if (!a->begun) { /* answers that begin with a space or a newline are not meant to */
        while (bytes > 0 && (*text == ' ' || *text == '\n')) text++, bytes--;
        if (bytes == 0) return !km_interrupted();
        a->begun = true;
    }
    km_text_put(&a->text, text, bytes);
    bool shown = a->chat->common.json || (a->chat->screen ? km_word_wrap_put(&a->wrap, text, bytes)
                                                          : km_cli_put(text, bytes, false));
    bool watch = !a->chat->common.json && !a->chat->allow_loops;
    if (watch && km_loop_put(&a->loop, text, bytes)) return false;
    return shown && km_text_ok(&a->text) && !km_interrupted();
}

static void on_part(void *user, const km_answer_part *p) {
    answer *a = user;
    if (p->kind == KM_ANSWER_TEXT || p->kind == KM_ANSWER_REASONING) {
        a->shown = show(a, p->text, p->bytes) && a->shown;
    } else if (p->kind == KM_ANSWER_CALL &&
               km_array_reserve(&a->calls, &a->cap_calls, a->n_calls + 1)) {
        km_chat_call *call = &a->calls[a->n_calls++];
        *call = (km_chat_call){.name = km_alloc(p->bytes + 1)};
        if (call->name) memcpy(call->name, p->text, p->bytes), call->name[p->bytes] = '\0';
        a->shown = a->shown && call->name;
    } else if (p->kind == KM_ANSWER_ARGUMENTS && a->n_calls) {
        km_text_put(&a->calls[a->n_calls - 1].arguments, p->text, p->bytes);
    }
}

static bool on_token(void *user, const km_piece_event *e) {
    answer *a = user;
    if (!a->parser) return show(a, e->text, e->bytes);
    size_t n = 0;
    a->shown = true;
    const char *special = !e->bytes && km_token_special(a->chat->m, e->id)
                              ? km_token_piece(a->chat->m, e->id, &n)
                              : NULL;
    km_status fed = special ? km_answer_parser_special(a->parser, special, n)
                            : km_answer_parser_put(a->parser, e->text, e->bytes);
    return fed == KM_OK && a->shown && !km_interrupted();
}

static void forget_calls(answer *a) {
    for (size_t i = 0; i < a->n_calls; i++) {
        km_free(a->calls[i].name);
        km_text_free(&a->calls[i].arguments);
    }
    km_free(a->calls);
    km_answer_parser_free(a->parser);
}

void km_chat_tell_last(const km_chat *c) {
    const km_generated *g = &c->last;
    char first[KM_NUMBER_TEXT], rate[KM_NUMBER_TEXT], prompt[KM_NUMBER_TEXT];
    int64_t read = g->prompt_tokens - g->reused;
    double decode = g->tokens > 1 && g->seconds > 0 ? (double)(g->tokens - 1) / g->seconds : NAN;
    double reading = g->prompt_seconds > 0 ? (double)read / g->prompt_seconds : NAN;
    km_chat_say(
        c,
        "read %lld token%s after %lld known (%s/s); first token after %s; answer %lld token%s "
        "(%s/s)",
        (long long)read, read == 1 ? "" : "s", (long long)g->reused,
        km_format_number(prompt, reading), km_format_seconds(first, g->first_seconds),
        (long long)g->tokens, g->tokens == 1 ? "" : "s", km_format_number(rate, decode));
    if (g->guessed)
        km_chat_say(c, "%lld of %lld guesses were right (%.0f%%)", (long long)g->accepted,
                    (long long)g->guessed, 100.0 * (double)g->accepted / (double)g->guessed);
}

static void log_figures(km_chat *c) {
    const km_generated *g = &c->last;
    double decode = g->tokens > 1 && g->seconds > 0 ? (double)(g->tokens - 1) / g->seconds : NAN;
    json_array_append_new(
        c->log,
        json_pack("{s:I, s:I, s:I, s:s, s:o, s:o, s:o, s:o, s:I, s:I}", "prompt_tokens",
                  (json_int_t)g->prompt_tokens, "reused", (json_int_t)g->reused, "tokens",
                  (json_int_t)g->tokens, "end", km_end_name(g->end), "prompt_seconds",
                  km_json_number(g->prompt_seconds, 4), "seconds", km_json_number(g->seconds, 4),
                  "first_token_seconds", km_json_number(g->tokens ? g->first_seconds : NAN, 4),
                  "decode_tokens_per_s", km_json_number(decode, 4), "guessed",
                  (json_int_t)g->guessed, "accepted", (json_int_t)g->accepted));
}

/* ---- The prompt ---- */

static km_status render(const km_chat *c, km_text *out, size_t *tokens, km_error *err) {
    out->len = 0;
    km_status s =
        km_cli_render_tools(c->m, c->template_name, c->talk.messages, c->tools.text, out, err);
    if (s != KM_OK) return s;
    int64_t n = km_tokenize(c->m, km_text_str(out), out->len, KM_TOKENS_PARSE_SPECIAL, NULL, 0);
    if (n < 0) return km_error_set(err, km_last_status(), "%s", km_last_error());
    *tokens = (size_t)n;
    return KM_OK;
}

/* The text to go on with, and room for an answer after it. With --shift the oldest turns are left
 * out until there is. */
static km_status make_prompt(km_chat *c, km_text *out, km_error *err) {
    int64_t context = c->about.context, room = c->room.shift ? context / 4 : 1;
    if (room > c->tokens) room = c->tokens;
    if (room < 1) room = 1;
    size_t tokens = 0;
    int dropped = 0;
    km_status s = render(c, out, &tokens, err);
    while (s == KM_OK && c->room.shift && (int64_t)tokens > context - room &&
           km_talk_drop_oldest(&c->talk)) {
        dropped++;
        s = render(c, out, &tokens, err);
    }
    if (dropped > 0)
        km_chat_say(c,
                    "the context is full: the oldest %d question%s and what answered %s left out",
                    dropped, dropped > 1 ? "s" : "", dropped > 1 ? "them are" : "it are");
    if (s == KM_OK && (int64_t)tokens >= context)
        s = km_error_set(
            err, KM_ERR_RANGE,
            "the conversation has %zu tokens and the context %lld; /clear begins anew, "
            "--context makes room%s",
            tokens, (long long)context, c->room.shift ? "" : ", --shift leaves out the oldest");
    return s;
}

static km_status generate(km_chat *c, const km_text *prompt, answer *a, km_error *err) {
    km_generation g = km_generation_defaults(NULL);
    g.max_tokens = c->tokens == INT64_MAX ? 0 : c->tokens;
    g.rendered = true;
    g.shift = c->room.shift;
    g.exact = c->room.file && !c->room.no_reread;
    g.on_prompt = on_prompt;
    g.on_token = on_token;
    g.user = a;
    km_cli_sampling_apply(&c->sampling, &g);
    g.sampling.seed += c->answers++;
    km_progress_begin(&a->bar, "reading", "tokens", 1, c->common.quiet);
    a->reading = true;
    c->last = (km_generated){.size = sizeof c->last};
    km_status s = km_generate(c->session, km_text_str(prompt), prompt->len, &g, &c->last);
    if (a->reading) km_progress_end(&a->bar);
    return s == KM_OK ? s : km_error_set(err, s, "%s", km_last_error());
}

/* Why the answer ends here, where it is not by its own end. */
static void tell_end(km_chat *c, const answer *a) {
    const km_generated *g = &c->last;
    if (a->loop.period)
        km_chat_say(c, "(the answer repeats itself and was ended; /retry gives another)");
    else if (g->end == KM_ENDED_CANCELLED)
        km_chat_say(c, "(stopped)");
    else if (a->text.len == 0 && a->n_calls == 0)
        km_chat_say(c, "(an empty answer)");
    if (g->end == KM_ENDED_TOKENS)
        km_chat_say(c, "(cut after %lld token%s; /set tokens N allows more)", (long long)g->tokens,
                    g->tokens == 1 ? "" : "s");
    if (g->end == KM_ENDED_CONTEXT)
        km_chat_say(c, "(the context of %lld tokens is full; --shift goes on)",
                    (long long)c->about.context);
}

static void finish(km_chat *c, answer *a) {
    const km_generated *g = &c->last;
    c->tokens_made += g->tokens;
    c->seconds_made += g->seconds;
    if (c->screen && !c->common.json) km_word_wrap_end(&a->wrap);
    if (!c->common.json && !(a->n_calls && a->text.len == 0) &&
        (a->text.len == 0 || a->text.data[a->text.len - 1] != '\n'))
        putchar('\n');
    fflush(stdout);
    tell_end(c, a);
    c->cleared = false;
    if (c->stats) km_chat_tell_last(c);
    if (c->log) log_figures(c);
}

/* One answer of the model, which may be calls of tools instead of text; *again: these are answered, and
 * it goes on. */
static km_status answer_once(km_chat *c, bool *again, km_error *err) {
    km_text prompt = {0};
    answer a = {.chat = c, .wrap = {.put = put_on_screen}};
    *again = false;
    if (c->screen) a.wrap.width = km_word_wrap_width(STDOUT_FILENO);
    if (c->tools.n && !(a.parser = km_answer_parser_new(c->tools.names, c->tools.n,
                                                        KM_ANSWER_KEEP_REASONING, on_part, &a)))
        return km_no_memory(err);
    km_status s = make_prompt(c, &prompt, err);
    if (s == KM_OK) s = generate(c, &prompt, &a, err);
    if (s == KM_OK && a.parser && km_answer_parser_end(a.parser) != KM_OK) s = km_no_memory(err);
    if (s == KM_OK) finish(c, &a);
    if (s == KM_OK && a.n_calls > 0 && c->last.end != KM_ENDED_CANCELLED)
        *again = km_chat_tools_answer(c, km_text_str(&a.text), a.text.len, a.calls, a.n_calls);
    else if (s == KM_OK && a.text.len > 0)
        /* of a loop once is enough: what the model reads again, it says again */
        s = km_talk_add(&c->talk, "assistant", a.text.data, km_loop_keep(&a.loop, a.text.len), err);
    forget_calls(&a);
    km_text_free(&prompt);
    km_text_free(&a.text);
    return s;
}

void km_chat_answer(km_chat *c) {
    km_error err = {0};
    bool again = true;
    km_status s = KM_OK;
    if (c->terminal) km_interrupts_catch(false);
    for (int round = 0; s == KM_OK && again; round++) {
        if (round == KM_CHAT_ROUNDS) {
            km_chat_say(c, "(%d calls one after the other; ask again to go on)", KM_CHAT_ROUNDS);
            break;
        }
        s = answer_once(c, &again, &err);
    }
    /* A question without an answer goes, and the calls that were made for it. */
    if (!km_talk_ends_with(&c->talk, "assistant") && !(again && s == KM_OK)) {
        while (json_array_size(c->talk.messages) && !km_talk_ends_with(&c->talk, "user"))
            km_talk_drop_last(&c->talk);
        km_talk_drop_last(&c->talk);
    }
    if (s != KM_OK) km_chat_complain(c, "%s", err.text);
}
