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

/* The request's object; NULL: an error was answered. */
static json_t *read_body(km_exchange *x) {
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

void km_endpoint_models(km_serve *s, km_exchange *x, const char *name) {
    json_t *one =
        json_pack("{s:s, s:s, s:I, s:s, s:{s:I, s:I, s:I, s:I, s:s}}", "id", s->name, "object",
                  "model", "created", (json_int_t)s->created, "owned_by", "kermes", "meta", "n_ctx",
                  (json_int_t)s->info.context, "n_params", (json_int_t)s->info.parameters,
                  "n_vocab", (json_int_t)s->info.vocab, "size", (json_int_t)s->info.bytes,
                  "architecture", s->info.architecture);
    if (!name) {
        km_send_json(x, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", one));
    } else if (strcmp(name, s->name) == 0) {
        km_send_json(x, 200, one);
    } else {
        json_decref(one);
        km_send_error(x, NULL, 404, "model", "there is no such model here");
    }
}

/* ---- Tokens ---- */

void km_endpoint_tokenize(km_serve *s, km_exchange *x) {
    json_t *v = read_body(x);
    if (!v) return;
    const json_t *text = json_object_get(v, "content");
    if (!text) text = json_object_get(v, "text");
    if (!text) text = json_object_get(v, "prompt");
    unsigned flags =
        (json_is_true(json_object_get(v, "add_special")) ? KM_TOKENS_ADD_SPECIAL : 0u) |
        (json_is_true(json_object_get(v, "parse_special")) ? KM_TOKENS_PARSE_SPECIAL : 0u);
    bool pieces = json_is_true(json_object_get(v, "with_pieces"));
    if (!json_is_string(text)) {
        km_send_error(x, NULL, 400, "content", "'content' is the text to tokenise");
        json_decref(v);
        return;
    }
    size_t bytes = json_string_length(text), cap = bytes + 16;
    int32_t *ids = km_alloc(cap * sizeof *ids);
    int64_t n = ids ? km_tokenize(s->model, json_string_value(text), bytes, flags, ids, cap) : -1;
    json_decref(v);
    if (n < 0 || n > (int64_t)cap) {
        km_send_error(x, NULL, 500, NULL, ids ? km_last_error() : "out of memory");
        km_free(ids);
        return;
    }
    km_text *t = &s->scratch;
    t->len = 0;
    km_text_printf(t, "{\"count\":%lld,\"tokens\":[", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        size_t k = 0;
        const char *piece = pieces ? km_token_piece(s->model, ids[i], &k) : NULL;
        km_text_printf(t, pieces ? "%s{\"id\":%d,\"piece\":" : "%s%d", i ? "," : "", ids[i]);
        if (pieces) km_put_string(t, piece ? piece : "", k), km_text_add(t, "}");
    }
    km_text_add(t, "]}\n");
    km_free(ids);
    km_exchange_send(x, 200, "application/json", km_text_str(t), t->len);
}

void km_endpoint_detokenize(km_serve *s, km_exchange *x) {
    json_t *v = read_body(x);
    if (!v) return;
    const json_t *tokens = json_object_get(v, "tokens");
    size_t n = json_array_size(tokens);
    int32_t *ids = km_alloc((n + 1) * sizeof *ids);
    bool ok = ids && json_is_array(tokens);
    for (size_t i = 0; i < n && ok; i++) {
        const json_t *one = json_array_get(tokens, i);
        json_int_t id = json_integer_value(one);
        ok = json_is_integer(one) && id >= 0 && id < s->info.vocab;
        ids[i] = (int32_t)id;
    }
    int64_t bytes = ok ? km_detokenize(s->model, ids, n, 0, NULL, 0) : -1;
    char *text = bytes >= 0 ? km_alloc((size_t)bytes + 1) : NULL;
    if (text) {
        km_text *t = &s->scratch;
        km_detokenize(s->model, ids, n, 0, text, (size_t)bytes);
        t->len = 0;
        km_text_add(t, "{\"content\":");
        km_put_string(t, text, (size_t)bytes);
        km_text_add(t, "}\n");
        km_exchange_send(x, 200, "application/json", km_text_str(t), t->len);
    } else {
        km_send_error(x, NULL, 400, "tokens", "'tokens' is a list of this model's tokens");
    }
    km_free(text);
    km_free(ids);
    json_decref(v);
}

void km_endpoint_template(km_serve *s, km_exchange *x) {
    json_t *v = read_body(x);
    if (!v) return;
    km_render_options o = km_render_defaults();
    json_t *messages = json_object_get(v, "messages"), *tools = json_object_get(v, "tools");
    char *said = json_is_array(messages) ? json_dumps(messages, JSON_COMPACT) : NULL;
    char *list = json_is_array(tools) ? json_dumps(tools, JSON_COMPACT) : NULL;
    o.tools = list;
    char *prompt = said ? km_render_chat(s->model, said, &o) : NULL;
    if (prompt) {
        km_text *t = &s->scratch;
        t->len = 0;
        km_text_add(t, "{\"prompt\":");
        km_put_string0(t, prompt);
        km_text_add(t, "}\n");
        km_exchange_send(x, 200, "application/json", km_text_str(t), t->len);
    } else {
        km_send_error(x, NULL, 400, "messages",
                      said ? km_last_error() : "'messages' is a list of messages");
    }
    km_string_free(prompt);
    free(said);
    free(list);
    json_decref(v);
}
