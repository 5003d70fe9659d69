/* Ollama's dialect: /api/chat and /api/generate as lines of JSON, and what its clients ask about models. */
#include "serve/api/api.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Reading ---- */

/* How long the model stays: seconds or "5m"; 0: it goes after this answer, -1: it stays. */
km_status km_fields_keep_alive(km_api_call *c) {
    const json_t *v = json_object_get(c->request, "keep_alive");
    double seconds = json_number_value(v);
    if (!v || json_is_null(v)) return KM_OK;
    if (!json_is_number(v) &&
        !(json_is_string(v) && km_serve_duration(json_string_value(v), &seconds)))
        return km_call_refuse(c, 400, "keep_alive", "'keep_alive' is seconds, or a time like 5m");
    c->keep_alive = seconds < 0 ? -1 : seconds;
    c->has_keep_alive = true;
    return KM_OK;
}

static km_status read_shared(km_api_call *c) {
    json_t *format = json_object_get(c->request, "format"),
           *think = json_object_get(c->request, "think");
    c->stream = true; /* unless told otherwise */
    if (!km_field_bool(c, "stream", &c->stream) || km_fields_sampling(c) != KM_OK ||
        km_fields_keep_alive(c) != KM_OK)
        return KM_ERR_RANGE;
    c->n = 1;
    if (json_is_boolean(think)) c->thinking = json_is_true(think) ? 1 : -1;
    if (json_is_object(format) ||
        (json_is_string(format) && strcmp(json_string_value(format), "json") == 0)) {
        json_t *any = json_pack("{s:s}", "type", "object");
        json_object_set(c->request, "json_schema", json_is_object(format) ? format : any);
        json_decref(any);
        return km_fields_format(c);
    }
    if (format && !json_is_null(format) &&
        !(json_is_string(format) && json_string_length(format) == 0))
        return km_call_refuse(c, 400, "format", "'format' is \"json\" or a JSON schema");
    return KM_OK;
}

/* Calls in earlier messages have no id and no type here. */
static void complete_calls(json_t *messages) {
    size_t i, k;
    json_t *m, *call;
    json_array_foreach(messages, i, m) {
        json_array_foreach(json_object_get(m, "tool_calls"), k, call) {
            if (json_is_object(call) && !json_object_get(call, "type"))
                json_object_set_new(call, "type", json_string("function"));
        }
    }
}

/* Nothing is asked: the model is to come up, or to go (keep_alive 0). */
static bool only_loads(km_api_call *c, const char *key) {
    const json_t *v = json_object_get(c->request, key);
    bool nothing = !v || json_is_null(v) || (json_is_array(v) && json_array_size(v) == 0) ||
                   (json_is_string(v) && json_string_length(v) == 0);
    return c->no_text = nothing;
}

static km_status read_chat(km_api_call *c, km_error *err) {
    json_t *messages = json_object_get(c->request, "messages");
    complete_calls(messages);
    if (read_shared(c) != KM_OK) return KM_ERR_RANGE;
    if (only_loads(c, "messages")) return KM_OK;
    if (km_fields_tools(c, json_object_get(c->request, "tools"), NULL) != KM_OK ||
        km_fields_messages(c, messages) != KM_OK)
        return KM_ERR_RANGE;
    return km_call_prompt_chat(c, err);
}

static km_status read_generate(km_api_call *c, km_error *err) {
    json_t *prompt = json_object_get(c->request, "prompt"),
           *system = json_object_get(c->request, "system");
    bool raw = false;
    if (read_shared(c) != KM_OK || !km_field_bool(c, "raw", &raw)) return KM_ERR_RANGE;
    if (only_loads(c, "prompt")) return KM_OK;
    if (prompt && !json_is_string(prompt))
        return km_call_refuse(c, 400, "prompt", "'prompt' is a text");
    if (raw || !c->served->info.has_template)
        return km_call_prompt_text(c, prompt ? json_string_value(prompt) : "",
                                   json_string_length(prompt), err);
    json_t *messages = json_array();
    if (json_is_string(system) && json_string_length(system))
        json_array_append_new(messages,
                              json_pack("{s:s, s:O}", "role", "system", "content", system));
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content",
                                              prompt ? json_incref(prompt) : json_string("")));
    km_status s = km_fields_messages(c, messages);
    json_decref(messages);
    return s == KM_OK ? km_call_prompt_chat(c, err) : s;
}

/* ---- Writing ---- */

static void put_time(km_text *t, int64_t seconds) {
    time_t when = (time_t)seconds;
    struct tm tm;
    char text[40];
    gmtime_r(&when, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    km_text_printf(t, "\"%s\"", text);
}

static km_text *line(km_api_call *c) {
    km_text *t = km_scratch(c->serve);
    km_text_add(t, "{\"model\":");
    km_put_string0(t, km_call_model(c));
    km_text_add(t, ",\"created_at\":");
    put_time(t, c->created);
    return t;
}

static bool is_chat(const km_api_call *c) { return c->dialect == &km_dialect_ollama_chat; }

static void put_uses(const km_api_choice *ch, km_text *t, int from) {
    for (int i = from; i < ch->n_uses; i++) {
        const km_tool_use *u = &ch->uses[i];
        json_t *a = json_loads(km_text_str(&u->arguments), 0, NULL);
        char *text = json_is_object(a) ? json_dumps(a, JSON_COMPACT) : NULL;
        km_text_add(t, i > from ? "," : ",\"tool_calls\":[");
        km_text_printf(t, "{\"function\":{\"name\":");
        km_put_string0(t, u->name ? u->name : "");
        km_text_printf(t, ",\"arguments\":%s}}", text ? text : "{}");
        free(text);
        json_decref(a);
    }
    if (ch->n_uses > from) km_text_add(t, "]");
}

static void put_answer(const km_api_choice *ch, km_text *t, const char *text, size_t n,
                       const char *thought, size_t k, int uses_from) {
    bool chat = is_chat(ch->call);
    km_text_add(t, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
    km_put_string(t, text, n);
    if (k) {
        km_text_add(t, ",\"thinking\":");
        km_put_string(t, thought, k);
    }
    if (chat) put_uses(ch, t, uses_from);
    if (chat) km_text_add(t, "}");
}

static void part(km_api_choice *ch, const km_answer_part *p) {
    if (p->kind == KM_ANSWER_CALL || p->kind == KM_ANSWER_ARGUMENTS)
        return; /* calls are sent whole */
    km_text *t = line(ch->call);
    bool text = p->kind == KM_ANSWER_TEXT, thought = p->kind == KM_ANSWER_REASONING;
    put_answer(ch, t, text ? p->text : "", text ? p->bytes : 0, thought ? p->text : "",
               thought ? p->bytes : 0, p->kind == KM_ANSWER_CALL_END ? ch->n_uses - 1 : ch->n_uses);
    km_text_add(t, ",\"done\":false}\n");
    km_call_put(ch->call, t);
}

static void put_done(const km_api_call *c, km_text *t) {
    const km_api_choice *ch = &c->choices[0];
    const km_task *k = &ch->task;
    double first = k->first > 0 ? k->first : k->ended;
    km_text_printf(
        t,
        ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%lld,\"load_duration\":0,\"prompt_eval_count\":%lld,\"prompt_eval_duration\":%lld,\"eval_count\":%lld,\"eval_duration\":%lld}\n",
        km_finish_is_length(ch) ? "length" : "stop", (long long)((k->ended - c->began) * 1e9),
        (long long)km_call_prompt_tokens(c), (long long)((first - k->submitted) * 1e9),
        (long long)k->tokens, (long long)((k->ended - first) * 1e9));
}

static void end(km_api_call *c) {
    km_text *t = line(c);
    put_answer(&c->choices[0], t, "", 0, "", 0, c->choices[0].n_uses);
    put_done(c, t);
    km_call_put(c, t);
}

static void whole(km_api_call *c, km_text *t) {
    line(c); /* t is the scratch */
    if (c->no_text) {
        km_text_printf(t, "%s,\"done\":true,\"done_reason\":\"%s\"}\n",
                       is_chat(c) ? ",\"message\":{\"role\":\"assistant\",\"content\":\"\"}"
                                  : ",\"response\":\"\"",
                       c->has_keep_alive && c->keep_alive == 0 ? "unload" : "load");
        return;
    }
    const km_api_choice *ch = &c->choices[0];
    put_answer(ch, t, km_text_str(&ch->content), ch->content.len, km_text_str(&ch->reasoning),
               ch->reasoning.len, 0);
    put_done(c, t);
}

static void put_error(km_text *t, int status, const char *param, const char *message, bool stream) {
    (void)status;
    (void)param;
    (void)stream;
    km_text_add(t, "{\"error\":");
    km_put_string0(t, message);
    km_text_add(t, "}\n");
}

const km_dialect km_dialect_ollama_chat = {.name = "ollama",
                                           .stream_type = "application/x-ndjson",
                                           .read = read_chat,
                                           .part = part,
                                           .end = end,
                                           .whole = whole,
                                           .error = put_error};
const km_dialect km_dialect_ollama_generate = {.name = "ollama",
                                               .stream_type = "application/x-ndjson",
                                               .read = read_generate,
                                               .part = part,
                                               .end = end,
                                               .whole = whole,
                                               .error = put_error};

/* ---- About models ---- */

static json_t *details(const km_served *m, const char *parent) {
    char size[32];
    const km_model_info *i = &m->info;
    snprintf(size, sizeof size, i->parameters < 1e9 ? "%.0fM" : "%.1fB",
             (double)i->parameters / (i->parameters < 1e9 ? 1e6 : 1e9));
    return json_pack("{s:s, s:s, s:s, s:[s], s:s, s:s}", "parent_model", parent, "format", "gguf",
                     "family", i->architecture, "families", i->architecture, "parameter_size", size,
                     "quantization_level", i->file_type);
}

static json_t *time_json(int64_t seconds) {
    km_text t = {0};
    put_time(&t, seconds);
    json_t *v = t.len > 2 ? json_stringn(t.data + 1, t.len - 2) : json_string("");
    km_text_free(&t);
    return v;
}

/* A model that is up and never goes is said to go in a hundred years, as Ollama does. */
static json_t *expiry(const km_served *m) {
    double left = m->keep_alive < 0 ? 3.15e9 : m->keep_alive;
    if (m->keep_alive >= 0 && m->users == 0) left -= km_now() - m->used;
    return time_json((int64_t)time(NULL) + (int64_t)left);
}

/* As a model that is there, or one that is up. */
static json_t *list_one(const km_served *m, const char *name, bool up) {
    json_t *one = json_pack("{s:s, s:s, s:I, s:s, s:o}", "name", name, "model", name, "size",
                            (json_int_t)m->info.bytes, "digest", "", "details",
                            details(m, name == m->name ? "" : m->name));
    if (!up) {
        json_object_set_new(one, "modified_at", time_json(m->changed));
        return one;
    }
    json_object_set_new(one, "expires_at", expiry(m));
    json_object_set_new(one, "size_vram",
                        json_integer(strstr(m->devices, "cuda") ? m->info.bytes : 0));
    json_object_set_new(one, "context_length", json_integer(m->info.context));
    return one;
}

static json_t *list_models(km_serve *s, bool up_only, const km_key *key) {
    json_t *all = json_array();
    for (int i = 0; i < s->n_served; i++) {
        const km_served *m = s->served[i];
        if (up_only && m->state != KM_SERVED_UP) continue;
        if (km_key_may_use(key, m->name)) json_array_append_new(all, list_one(m, m->name, up_only));
        for (size_t k = 0; k < m->n_adapters && !up_only; k++)
            if (km_key_may_use(key, m->adapters[k].name))
                json_array_append_new(all, list_one(m, m->adapters[k].name, false));
    }
    return json_pack("{s:o}", "models", all);
}

static void show(km_serve *s, km_exchange *x, const km_key *key) {
    json_t *body = km_read_body(x);
    if (!body) return;
    json_t *name = json_object_get(body, "model");
    if (!name) name = json_object_get(body, "name");
    const km_served *m = km_served_find(s, json_string_value(name));
    json_decref(body);
    if (!m || !km_key_may_use_some(key, m)) {
        km_send_error(x, &km_dialect_ollama_chat, 404, "model", "there is no such model here");
        return;
    }
    char key_context[96];
    snprintf(key_context, sizeof key_context, "%s.context_length", m->info.architecture);
    km_send_json(x, 200,
                 json_pack("{s:s, s:s, s:s, s:o, s:{s:s, s:I, s:I}, s:[s, s], s:o}", "modelfile",
                           "", "parameters", "", "template", "", "details", details(m, ""),
                           "model_info", "general.architecture", m->info.architecture,
                           "general.parameter_count", (json_int_t)m->info.parameters, key_context,
                           (json_int_t)m->info.trained_context, "capabilities", "completion",
                           "tools", "modified_at", time_json(m->changed)));
}

void km_endpoint_ollama(km_serve *s, km_exchange *x, const char *what, const km_key *key) {
    if (strcmp(what, "version") == 0)
        km_send_json(x, 200, json_pack("{s:s}", "version", KM_VERSION));
    else if (strcmp(what, "show") == 0)
        show(s, x, key);
    else
        km_send_json(x, 200, list_models(s, strcmp(what, "ps") == 0, key));
}
