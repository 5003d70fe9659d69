/* Models for JavaScript: opened through a reader of pieces, so that a file lies in memory once; chats
 * and texts generated a token at a time, so that whoever calls can stop between two. */
#include "web.h"
#include <stdlib.h>
#include <string.h>

typedef struct opening {
    int handle;
    bool stopped;
} opening;

static km_status read_piece(void *user, uint64_t offset, void *to, size_t n) {
    const size_t most = (size_t)8 << 20; /* what JavaScript holds beside it for a moment */
    const opening *o = user;
    for (size_t at = 0, some; at < n; at += some) {
        some = n - at < most ? n - at : most;
        if (web_read(o->handle, (double)(offset + at), (char *)to + at, (int)some) != 0)
            return KM_ERR_FILE;
    }
    return KM_OK;
}

/* The model in the file that JavaScript knows by `handle`. settings: context, cache ("f16", "q8_0"),
 * activations. */
WEB km_model *web_model_open(int handle, double bytes, const char *settings) {
    json_t *s = web_settings(settings);
    if (!s) return NULL;
    km_model_options o = km_model_defaults();
    const char *cache = web_text(s, "cache");
    o.device = "cpu";
    o.sequences = 1;
    o.context = (int64_t)web_number(s, "context", 0);
    o.activations = (int)web_number(s, "activations", 0);
    o.threads = (int)web_number(s, "threads", 0);
    if (cache)
        o.cache = strcmp(cache, "q8_0") == 0  ? KM_Q8_0
                  : strcmp(cache, "f32") == 0 ? KM_F32
                                              : KM_F16;
    opening from = {.handle = handle};
    km_reader r = {.bytes = (uint64_t)bytes, .read = read_piece, .user = &from};
    km_model *m = km_model_open_reader(&r, &o);
    json_decref(s);
    return m;
}

WEB void web_model_close(km_model *m) { km_model_close(m); }

WEB char *web_model_describe(km_model *m) {
    km_model_info i = km_model_describe(m);
    km_sampling p = km_model_sampling(m);
    if (!i.size) return NULL;
    return web_dump(
        json_pack("{s:s, s:s, s:s, s:f, s:f, s:I, s:I, s:I, s:I, s:b, s:{s:f, s:I, s:f, s:f, s:f}}",
                  "name", i.name, "architecture", i.architecture, "type", i.file_type, "parameters",
                  (double)i.parameters, "bytes", (double)i.bytes, "context", (json_int_t)i.context,
                  "trained_context", (json_int_t)i.trained_context, "vocab", (json_int_t)i.vocab,
                  "layers", (json_int_t)i.layers, "has_template", (int)i.has_template, "sampling",
                  "temperature", p.temperature, "top_k", (json_int_t)p.top_k, "top_p", p.top_p,
                  "min_p", p.min_p, "repeat_penalty", p.repeat_penalty));
}

/* ---- Tokens ---- */

/* A text's ids as a JSON array. */
WEB char *web_tokenize(km_model *m, const char *text, int flags) {
    size_t bytes = strlen(text);
    int64_t n = km_tokenize(m, text, bytes, (unsigned)flags, NULL, 0);
    int32_t *ids = n < 0 ? NULL : malloc(((size_t)n + 1) * sizeof *ids);
    if (!ids) return NULL;
    km_tokenize(m, text, bytes, (unsigned)flags, ids, (size_t)n);
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    free(ids);
    return web_dump(list);
}

/* ---- Generation ---- */

WEB km_session *web_session_new(km_model *m) { return km_session_new(m); }
WEB void web_session_free(km_session *s) { km_session_free(s); }

static void read_sampling(const json_t *s, km_sampling *p) {
    p->temperature = web_number(s, "temperature", p->temperature);
    p->top_k = (int64_t)web_number(s, "top_k", (double)p->top_k);
    p->top_p = web_number(s, "top_p", p->top_p);
    p->min_p = web_number(s, "min_p", p->min_p);
    p->typical = web_number(s, "typical", p->typical);
    p->repeat_penalty = web_number(s, "repeat_penalty", p->repeat_penalty);
    p->seed = (uint64_t)web_number(s, "seed", (double)p->seed);
}

/* Whether a long prompt goes on is asked now and then: JavaScript may have been told to stop. */
static bool on_prompt(void *user, int64_t done, int64_t total) {
    char *text =
        web_dump(json_pack("{s:I, s:I}", "done", (json_int_t)done, "total", (json_int_t)total));
    (void)user;
    bool on = !text || web_tell(text) != 0;
    free(text);
    return on;
}

/* settings: {"messages": [...]} or {"prompt": "..."}, max_tokens, stop: [...], grammar, schema (a value),
 * past_end, and the sampling's names. Reads the prompt. 0: web_next goes on. */
WEB int web_generate(km_model *m, km_session *session, const char *settings) {
    json_t *s = web_settings(settings);
    if (!s) return -1;
    const char *stops[16];
    km_generation how = km_generation_defaults(m);
    const json_t *list = json_object_get(s, "stop"), *schema = json_object_get(s, "schema");
    json_t *messages = json_object_get(s, "messages");
    char *prompt = NULL, *schema_text = schema ? json_dumps(schema, JSON_ENCODE_ANY) : NULL;
    how.max_tokens = (int64_t)web_number(s, "max_tokens", 0);
    how.past_end = json_is_true(json_object_get(s, "past_end"));
    how.shift = true;
    how.grammar = web_text(s, "grammar");
    how.schema = schema_text;
    how.stops = stops;
    how.on_prompt = on_prompt;
    for (size_t i = 0; i < json_array_size(list) && i < 16; i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one && *one) stops[how.n_stops++] = one;
    }
    read_sampling(s, &how.sampling);
    if (messages) {
        char *text = json_dumps(messages, 0);
        prompt = text ? km_render_chat(m, text, NULL) : NULL;
        free(text);
        how.rendered = true;
    }
    const char *said = messages ? prompt : web_text(s, "prompt");
    km_status status = KM_ERR_NULL;
    if (said)
        status = km_generate_begin(session, said, strlen(said), &how);
    else if (!messages)
        web_fail("there is neither a prompt nor messages");
    km_string_free(prompt);
    free(schema_text);
    json_decref(s);
    return status == KM_OK ? 0 : -1;
}

static km_piece_event event;
static char *event_text; /* with an end */
static size_t event_room;

/* 1: there is an event; 0: it ended before; -1: failed. */
WEB int web_next(km_session *session) {
    int n = km_generate_next(session, &event);
    if (n != 1) return n;
    if (event.bytes + 1 > event_room) {
        char *more = realloc(event_text, 2 * event.bytes + 64);
        if (!more) return -1;
        event_text = more;
        event_room = 2 * event.bytes + 64;
    }
    if (event.bytes) memcpy(event_text, event.text, event.bytes);
    event_text[event.bytes] = 0;
    return 1;
}
WEB const char *web_event_text(void) { return event_text; }
WEB int web_event_token(void) { return event.id; }
WEB const char *web_event_end(void) { return km_end_name(event.end); }

WEB char *web_figures(km_session *session) {
    km_generated g = km_generate_state(session);
    return web_dump(json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:s}", "prompt_tokens",
                              (json_int_t)g.prompt_tokens, "reused", (json_int_t)g.reused, "tokens",
                              (json_int_t)g.tokens, "prompt_seconds", g.prompt_seconds, "seconds",
                              g.seconds, "first_seconds", g.first_seconds, "end",
                              km_end_name(g.end)));
}
