/* Tokens and chat templates of a model. */
#include "base/alloc.h"
#include "base/sized.h"
#include "base/utf8.h"
#include "engine/engine.h"
#include <string.h>
#include <sys/stat.h>

/* ---- Tokens ---- */

int64_t km_tokenize(km_model *m, const char *text, size_t bytes, unsigned flags, int32_t *ids,
                    size_t cap) {
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_tokenize", m, false)) return -1;
    return km_ids_of("km_tokenize", m->token, text, bytes, flags, ids, cap);
}

int64_t km_detokenize(km_model *m, const int32_t *ids, size_t n, unsigned flags, char *text,
                      size_t cap) {
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_detokenize", m, false)) return -1;
    return km_text_of("km_detokenize", m->token, ids, n, flags, text, cap);
}

const char *km_token_piece(km_model *m, int32_t id, size_t *bytes) {
    size_t n = 0;
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_token_piece", m, false)) return NULL;
    const char *text = km_token_text(m->token, id, &n);
    if (bytes) *bytes = text ? n : 0;
    return text;
}

int32_t km_model_bos(km_model *m) {
    KM_HOLDING(held);
    return km_model_usable(&held, "km_model_bos", m, false) ? km_token_bos(m->token) : -1;
}

int32_t km_model_eos(km_model *m) {
    KM_HOLDING(held);
    return km_model_usable(&held, "km_model_eos", m, false) ? km_token_eos(m->token) : -1;
}

static bool has_token(km_holding *held, const char *call, km_model *m, int32_t id) {
    return km_model_usable(held, call, m, false) && id >= 0 && id < km_token_vocab(m->token);
}

bool km_token_ends(km_model *m, int32_t id) {
    KM_HOLDING(held);
    return has_token(&held, "km_token_ends", m, id) && km_token_is_end(m->token, id);
}

bool km_token_special(km_model *m, int32_t id) {
    KM_HOLDING(held);
    return has_token(&held, "km_token_special", m, id) && km_token_is_special(m->token, id);
}

/* ---- Templates ---- */

/* Jinja has its marks, a file its ending; anything else is a name. */
km_chat_template *km_template_of(const char *given, km_error *err) {
    size_t n = strlen(given);
    if (strstr(given, "{{") || strstr(given, "{%"))
        return km_chat_template_parse(given, n, "chat template", err);
    struct stat st;
    if ((n > 6 && strcmp(given + n - 6, ".jinja") == 0) || strchr(given, '/') ||
        (strchr(given, '.') && stat(given, &st) == 0))
        return km_chat_template_load(given, err);
    return km_chat_template_named(given, err);
}

const km_chat_template *km_model_template(km_model *m, km_error *err) {
    pthread_mutex_lock(&m->lock);
    if (!m->template && !m->template_sought) {
        m->template = km_chat_template_load(m->path, &m->no_template);
        m->template_sought = m->template || m->no_template.code != KM_ERR_MEMORY;
    }
    const km_chat_template *t = m->template;
    km_error why = m->no_template;
    if (!t && !m->template_sought) m->no_template = (km_error){0};
    pthread_mutex_unlock(&m->lock);
    if (t) return t;
    if (why.code == KM_ERR_STATE)
        km_error_set(err, why.code, "%.200s has no chat template, and no built-in one was chosen",
                     m->lent ? "the model" : m->path);
    else
        km_error_set(err, why.code, "%.400s; a built-in one can be chosen", why.text);
    return NULL;
}

/* ---- Rendering ---- */

km_status km_render_defaults_sized(km_render_options *out, size_t size) {
    km_render_options own = {.size = sizeof(km_render_options)};
    return KM_HAND_OUT(out, size, &own, km_render_options);
}

static const char *token_text(const km_token *t, int32_t id, km_text *room) {
    size_t bytes = 0;
    const char *text = id >= 0 ? km_token_text(t, id, &bytes) : NULL;
    if (!text) return NULL;
    km_text_put(room, text, bytes);
    return km_text_ok(room) ? km_text_str(room) : NULL;
}

/* JSON of one kind; *out NULL where there is no text. */
static km_status parse(const char *what, const char *text, bool array, json_t **out,
                       km_error *err) {
    json_error_t where;
    *out = NULL;
    if (!text) return KM_OK;
    *out = json_loads(text, JSON_ALLOW_NUL, &where);
    if (!*out)
        return km_error_set(err, KM_ERR_FORMAT, "%s are no JSON: %s, line %d", what, where.text,
                            where.line);
    if (array ? json_is_array(*out) : json_is_object(*out)) return KM_OK;
    return km_error_set(err, KM_ERR_FORMAT, "%s are a JSON %s", what, array ? "array" : "object");
}

static km_status render(km_model *m, const json_t *messages, const json_t *tools,
                        const json_t *more, const km_render_options *o, km_text *out,
                        km_error *err) {
    km_text bos = {0}, eos = {0};
    km_chat_template *own = NULL;
    const km_chat_template *t = NULL;
    if (o->chat_template)
        t = own = km_template_of(o->chat_template, err);
    else
        t = km_model_template(m, err);
    if (!t) return err->code;
    km_chat_options how = {.bos = token_text(m->token, km_token_bos(m->token), &bos),
                           .eos = token_text(m->token, km_token_eos(m->token), &eos),
                           .complete = o->no_answer,
                           .fold_system = true,
                           .thinking = o->thinking > 0   ? KM_THINKING_ON
                                       : o->thinking < 0 ? KM_THINKING_OFF
                                                         : KM_THINKING_DEFAULT,
                           .tools = tools,
                           .more = more,
                           .now = o->now};
    km_status s = km_chat_render_json(t, messages, &how, out, err);
    km_text_free(&bos);
    km_text_free(&eos);
    km_chat_template_free(own);
    return s;
}

char *km_render_chat(km_model *m, const char *messages, const km_render_options *options) {
    KM_HOLDING(held);
    return km_model_usable(&held, "km_render_chat", m, false) ? km_render_held(m, messages, options)
                                                              : NULL;
}

char *km_render_held(km_model *m, const char *messages, const km_render_options *options) {
    km_render_options o = km_render_defaults();
    km_error err = {0};
    km_text out = {0};
    json_t *list = NULL, *tools = NULL, *more = NULL;
    if (km_take_options("km_render_chat", &o, sizeof o, options) != KM_OK) return NULL;
    if (!messages) {
        km_public_fail(KM_ERR_NULL, "km_render_chat: no messages given");
        return NULL;
    }
    km_status s = parse("messages", messages, true, &list, &err);
    if (s == KM_OK) s = parse("tools", o.tools, true, &tools, &err);
    if (s == KM_OK) s = parse("variables", o.variables, false, &more, &err);
    if (s == KM_OK) s = render(m, list, tools, more, &o, &out, &err);
    json_decref(list);
    json_decref(tools);
    json_decref(more);
    if (s == KM_OK) km_text_put(&out, "", 0);
    if (s == KM_OK && (!km_text_ok(&out) || (!out.data && !(out.data = km_strdup("")))))
        s = km_no_memory_for(&err, "a conversation");
    km_last_error_set(&err);
    if (s == KM_OK) return out.data;
    km_text_free(&out);
    return NULL;
}
