/* Small endpoints: models, tokens, templates; and what all of them use to write JSON. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include "base/utf8.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON ---- */

void km_put_string(km_text *t, const char *s, size_t n) {
    static const char hex[] = "0123456789abcdef";
    size_t from = 0;
    km_text_put(t, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') continue;
        uint32_t cp;
        int k = c >= 0x80 ? km_utf8_read(s + i, n - i, &cp) : 0;
        if (k) {
            i += (size_t)k - 1;
            continue;
        }
        km_text_put(t, s + from, i - from);
        from = i + 1;
        char escape[8] = {'\\', 0};
        if (c >= 0x80)
            km_text_add(t, "\xef\xbf\xbd"); /* no UTF-8 */
        else if (c == '"' || c == '\\')
            escape[1] = (char)c, km_text_put(t, escape, 2);
        else if (c == '\n')
            km_text_put(t, "\\n", 2);
        else if (c == '\t')
            km_text_put(t, "\\t", 2);
        else
            memcpy(escape, "\\u00", 4), escape[4] = hex[c >> 4], escape[5] = hex[c & 15],
                                        km_text_put(t, escape, 6);
    }
    km_text_put(t, s + from, n - from);
    km_text_put(t, "\"", 1);
}

void km_put_string0(km_text *t, const char *s) { km_put_string(t, s, strlen(s)); }

void km_send_json(km_exchange *x, int status, json_t *v) {
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    json_decref(v);
    if (text)
        km_exchange_send(x, status, "application/json", text, strlen(text));
    else
        km_send_error(x, &km_dialect_chat, 503, NULL, "out of memory");
    free(text);
}

km_text *km_scratch(km_serve *s) {
    s->scratch.len = 0;
    s->scratch.failed = false; /* memory may have run out for what was in it before */
    return &s->scratch;
}

void km_send_text(km_exchange *x, const km_dialect *d, const char *type, const km_text *t) {
    if (km_text_ok(t))
        km_exchange_send(x, 200, type, km_text_str(t), t->len);
    else
        km_send_error(x, d, 503, NULL, "out of memory");
}

km_text *km_event_begin(km_api_call *c, const char *name) {
    km_text *t = km_scratch(c->serve);
    km_text_printf(t, "event: %s\ndata: {\"type\":\"%s\"", name, name);
    return t;
}

void km_event_send(km_api_call *c, km_text *t) {
    km_text_add(t, "}\n\n");
    km_call_put(c, t);
}

const char *km_error_type(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

void km_send_error(km_exchange *x, const km_dialect *d, int status, const char *param,
                   const char *message) {
    km_text t = {0};
    (d ? d : &km_dialect_chat)->error(&t, status, param, message, false);
    km_exchange_send(x, status, "application/json", km_text_str(&t), t.len);
    km_text_free(&t);
}

json_t *km_read_body(km_exchange *x) {
    const km_http_request *r = km_exchange_request(x);
    json_error_t where;
    json_t *v = json_loadb(r->body, r->bytes, 0, &where);
    if (json_is_object(v)) return v;
    char why[300];
    snprintf(why, sizeof why, "the request's body is no JSON object: %.160s",
             v ? "it is something else" : where.text);
    json_decref(v);
    km_send_error(x, NULL, 400, NULL, why);
    return NULL;
}

/* ---- Models ---- */

static json_t *describe(const km_served *m) {
    const km_model_info *i = &m->info;
    return json_pack("{s:s, s:s, s:I, s:s, s:{s:I, s:I, s:I, s:I, s:s, s:b}}", "id", m->name,
                     "object", "model", "created", (json_int_t)m->changed, "owned_by", "kermes",
                     "meta", "n_ctx", (json_int_t)i->context, "n_params", (json_int_t)i->parameters,
                     "n_vocab", (json_int_t)i->vocab, "size", (json_int_t)i->bytes, "architecture",
                     i->architecture, "loaded", m->state == KM_SERVED_UP);
}

/* An adapter is a model of its own, whose parent is the one that it corrects. */
static json_t *describe_adapter(const km_served *m, const km_adapter *a) {
    json_t *v = describe(m);
    json_object_set_new(v, "id", json_string(a->name));
    json_object_set_new(v, "root", json_string(m->name));
    json_object_set_new(v, "parent", json_string(m->name));
    json_object_set_new(json_object_get(v, "meta"), "scale", json_real(a->scale));
    return v;
}

/* Adds it to the list; or gives it, if it is the one that was asked for. */
static void list_one(json_t *all, json_t **one, const char *wanted, const char *name,
                     const km_key *key, json_t *v) {
    if (km_key_may_use(key, name) && !wanted)
        json_array_append_new(all, v);
    else if (km_key_may_use(key, name) && strcmp(wanted, name) == 0 && !*one)
        *one = v;
    else
        json_decref(v);
}

void km_endpoint_models(km_serve *s, km_exchange *x, const char *name, const km_key *key) {
    json_t *all = json_array(), *one = NULL;
    for (int i = 0; i < s->n_served; i++) {
        const km_served *m = s->served[i];
        list_one(all, &one, name, m->name, key, describe(m));
        for (size_t k = 0; k < m->n_adapters; k++)
            list_one(all, &one, name, m->adapters[k].name, key,
                     describe_adapter(m, &m->adapters[k]));
    }
    if (!name)
        km_send_json(x, 200, json_pack("{s:s, s:O}", "object", "list", "data", all));
    else if (one)
        km_send_json(x, 200, one);
    else
        km_send_error(x, NULL, 404, "model", "there is no such model here");
    json_decref(all);
}

/* ---- Tokens: answered by what a worker reads ---- */

static km_status read_tokenize(km_api_call *c, km_error *err) {
    const json_t *text = NULL;
    static const char *const keys[] = {"content", "text", "prompt"};
    for (int i = 0; i < 3 && !text; i++) text = json_object_get(c->request, keys[i]);
    bool special = false;
    c->no_text = true;
    if (!km_field_bool(c, "add_special", &special) || !km_field_bool(c, "with_pieces", &c->echo))
        return KM_ERR_RANGE;
    if (!json_is_string(text))
        return km_call_refuse(c, 400, "content", "'content' is the text to tokenise");
    return km_call_prompt_tokens_of(c, json_string_value(text), json_string_length(text), special,
                                    err);
}

static void whole_tokenize(km_api_call *c, km_text *t) {
    const km_prompt *p = &c->prompts[0];
    km_text_printf(t, "{\"count\":%zu,\"tokens\":[", p->n);
    for (size_t i = 0; i < p->n; i++) {
        size_t k = 0;
        const char *piece = c->echo ? km_token_piece(c->served->model, p->ids[i], &k) : NULL;
        km_text_printf(t, c->echo ? "%s{\"id\":%d,\"piece\":" : "%s%d", i ? "," : "", p->ids[i]);
        if (c->echo) km_put_string(t, piece ? piece : "", k), km_text_add(t, "}");
    }
    km_text_add(t, "]}\n");
}

static km_status read_detokenize(km_api_call *c, km_error *err) {
    const json_t *tokens = json_object_get(c->request, "tokens");
    c->no_text = true;
    if (!json_is_array(tokens))
        return km_call_refuse(c, 400, "tokens", "'tokens' is a list of this model's tokens");
    if (km_call_prompt_ids(c, tokens, err) != KM_OK) {
        snprintf(c->param, sizeof c->param, "tokens");
        return KM_ERR_RANGE;
    }
    km_prompt *p = &c->prompts[0];
    int64_t bytes = km_detokenize(c->served->model, p->ids, p->n, 0, NULL, 0);
    p->text = bytes >= 0 ? km_alloc((size_t)bytes + 1) : NULL;
    if (!p->text) return km_no_memory(err);
    km_detokenize(c->served->model, p->ids, p->n, 0, p->text, (size_t)bytes);
    p->n = (size_t)bytes;
    return KM_OK;
}

static void whole_detokenize(km_api_call *c, km_text *t) {
    km_text_add(t, "{\"content\":");
    km_put_string(t, c->prompts[0].text, c->prompts[0].n);
    km_text_add(t, "}\n");
}

static km_status read_template(km_api_call *c, km_error *err) {
    const json_t *messages = json_object_get(c->request, "messages"),
                 *tools = json_object_get(c->request, "tools");
    km_render_options o = km_render_defaults();
    c->no_text = true;
    if (!json_is_array(messages))
        return km_call_refuse(c, 400, "messages", "'messages' is a list of messages");
    c->messages = json_dumps(messages, JSON_COMPACT);
    c->tools = json_is_array(tools) ? json_dumps(tools, JSON_COMPACT) : NULL;
    if (!c->messages) return km_no_memory(err);
    o.tools = c->tools;
    char *prompt = km_render_chat(c->served->model, c->messages, &o);
    if (!prompt) return km_call_refuse(c, 400, "messages", "%s", km_last_error());
    free(c->messages);
    c->messages = strdup(prompt);
    km_string_free(prompt);
    return c->messages ? KM_OK : km_no_memory(err);
}

static void whole_template(km_api_call *c, km_text *t) {
    km_text_add(t, "{\"prompt\":");
    km_put_string0(t, c->messages);
    km_text_add(t, "}\n");
}

static void put_error(km_text *t, int status, const char *param, const char *message, bool stream) {
    km_dialect_chat.error(t, status, param, message, stream);
}

const km_dialect km_dialect_tokenize = {
    .name = "kermes", .read = read_tokenize, .whole = whole_tokenize, .error = put_error};
const km_dialect km_dialect_detokenize = {
    .name = "kermes", .read = read_detokenize, .whole = whole_detokenize, .error = put_error};
const km_dialect km_dialect_template = {
    .name = "kermes", .read = read_template, .whole = whole_template, .error = put_error};
