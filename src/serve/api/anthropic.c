/* Anthropic's dialect: /v1/messages with tools and thinking, and its count_tokens. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reading: its messages become OpenAI's ---- */

static void append_text(km_text *t, const json_t *content) {
    if (json_is_string(content))
        km_text_put(t, json_string_value(content), json_string_length(content));
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *text = json_object_get(json_array_get(content, i), "text");
        if (json_is_string(text)) km_text_put(t, json_string_value(text), json_string_length(text));
    }
}

static json_t *text_of(const json_t *content) {
    km_text t = {0};
    append_text(&t, content);
    json_t *v = json_stringn(km_text_str(&t), t.len);
    km_text_free(&t);
    return v;
}

/* One message may hold text, calls of tools, and their results, which are messages of their own. */
static km_status convert(km_api_call *c, const json_t *m, json_t *all, size_t number) {
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
        return km_call_refuse(c, 400, "messages", "messages.%zu.role is user or assistant", number);
    if (json_is_string(content)) {
        json_array_append_new(all, json_pack("{s:s, s:O}", "role", role, "content", content));
        return KM_OK;
    }
    if (!json_is_array(content))
        return km_call_refuse(c, 400, "messages",
                              "messages.%zu.content is a text or a list of blocks", number);
    km_text text = {0};
    json_t *calls = json_array();
    for (size_t i = 0; i < json_array_size(content) && !c->status; i++) {
        const json_t *b = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(b, "type"));
        const json_t *input = json_object_get(b, "input");
        if (type && strcmp(type, "text") == 0) {
            const json_t *v = json_object_get(b, "text");
            km_text_put(&text, json_is_string(v) ? json_string_value(v) : "",
                        json_string_length(v));
        } else if (type && strcmp(type, "tool_use") == 0 &&
                   json_is_string(json_object_get(b, "name"))) {
            json_t *none = json_object();
            json_array_append_new(calls, json_pack("{s:s?, s:s, s:{s:O, s:O}}", "id",
                                                   json_string_value(json_object_get(b, "id")),
                                                   "type", "function", "function", "name",
                                                   json_object_get(b, "name"), "arguments",
                                                   json_is_object(input) ? input : none));
            json_decref(none);
        } else if (type && strcmp(type, "tool_result") == 0) {
            const char *id = json_string_value(json_object_get(b, "tool_use_id"));
            json_array_append_new(all, json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id",
                                                 id ? id : "", "content",
                                                 text_of(json_object_get(b, "content"))));
        } else if (!type ||
                   (strcmp(type, "thinking") != 0 && strcmp(type, "redacted_thinking") != 0)) {
            km_call_refuse(c, 400, "messages",
                           "messages.%zu.content.%zu: blocks of type '%.40s' are not understood",
                           number, i, type ? type : "?");
        }
    }
    if (!c->status && (text.len || json_array_size(calls) || strcmp(role, "assistant") == 0)) {
        json_t *one =
            json_pack("{s:s, s:s%}", "role", role, "content", km_text_str(&text), text.len);
        if (one && json_array_size(calls)) json_object_set(one, "tool_calls", calls);
        json_array_append_new(all, one);
    }
    json_decref(calls);
    km_text_free(&text);
    return c->status ? KM_ERR_RANGE : KM_OK;
}

static km_status read_messages(km_api_call *c) {
    json_t *messages = json_object_get(c->request, "messages"),
           *system = json_object_get(c->request, "system");
    json_t *all = json_array();
    if (!json_is_array(messages) || json_array_size(messages) == 0) {
        json_decref(all);
        return km_call_refuse(c, 400, "messages", "messages: at least one message is required");
    }
    if (system && !json_is_null(system))
        json_array_append_new(
            all, json_pack("{s:s, s:o}", "role", "system", "content", text_of(system)));
    km_status s = KM_OK;
    for (size_t i = 0; i < json_array_size(messages) && s == KM_OK; i++)
        s = convert(c, json_array_get(messages, i), all, i);
    if (s == KM_OK) s = km_fields_messages(c, all);
    json_decref(all);
    return s;
}

/* The converted tools stay in the request, since names are kept as they lie there. */
static km_status read_tools(km_api_call *c) {
    json_t *tools = json_object_get(c->request, "tools"),
           *choice = json_object_get(c->request, "tool_choice");
    json_t *all = json_array(), *word = NULL;
    const char *type = json_string_value(json_object_get(choice, "type"));
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *t = json_array_get(tools, i), *name = json_object_get(t, "name"),
               *p = json_object_get(t, "input_schema");
        json_t *about = json_object_get(t, "description");
        json_t *f = json_object();
        if (name) json_object_set(f, "name", name);
        if (about) json_object_set(f, "description", about);
        if (p) json_object_set(f, "parameters", p);
        json_array_append_new(all, json_pack("{s:s, s:o}", "type", "function", "function", f));
    }
    json_object_set_new(c->request, "tools", all);
    if (type && strcmp(type, "any") == 0) word = json_string("required");
    if (type && strcmp(type, "none") == 0) word = json_string("none");
    if (type && strcmp(type, "tool") == 0) word = json_incref(choice);
    c->one_call = json_is_true(json_object_get(choice, "disable_parallel_tool_use"));
    km_status s = km_fields_tools(c, all, word);
    json_decref(word);
    return s;
}

static km_status read_request(km_api_call *c, km_error *err) {
    if (km_fields_sampling(c) != KM_OK || !km_field_bool(c, "stream", &c->stream) ||
        km_fields_format(c) != KM_OK || read_tools(c) != KM_OK || read_messages(c) != KM_OK)
        return KM_ERR_RANGE;
    const char *thinking =
        json_string_value(json_object_get(json_object_get(c->request, "thinking"), "type"));
    if (thinking) c->thinking = strcmp(thinking, "enabled") == 0 ? 1 : -1;
    if (c->how.max_tokens == 0)
        return km_call_refuse(c, 400, "max_tokens", "max_tokens: this field is required");
    return km_call_prompt_chat(c, err);
}

static km_status read_count(km_api_call *c, km_error *err) {
    c->no_text = true;
    if (read_tools(c) != KM_OK || read_messages(c) != KM_OK) return KM_ERR_RANGE;
    return km_call_prompt_chat(c, err);
}

/* ---- Writing ---- */

enum { NO_BLOCK, TEXT_BLOCK, THINKING_BLOCK, TOOL_BLOCK };

static const char *stop_reason(const km_api_choice *ch) {
    if (km_finish_is_length(ch)) return "max_tokens";
    if (ch->n_uses) return "tool_use";
    return ch->end == KM_ENDED_STOP ? "stop_sequence" : "end_turn";
}

static void put_message_head(const km_api_call *c, km_text *t) {
    km_text_printf(
        t, "\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", c->id);
    km_put_string0(t, km_call_model(c));
}

static void begin(km_api_call *c) {
    km_text *t = km_event_begin(c, "message_start");
    km_text_add(t, ",\"message\":{");
    put_message_head(c, t);
    km_text_printf(
        t,
        ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":%lld,\"output_tokens\":0}}",
        (long long)km_call_prompt_tokens(c));
    km_event_send(c, t);
    t = km_event_begin(c, "ping");
    km_event_send(c, t);
}

static void close_block(km_api_choice *ch) {
    if (ch->block_kind == NO_BLOCK) return;
    km_text *t = km_event_begin(ch->call, "content_block_stop");
    km_text_printf(t, ",\"index\":%d", ch->block);
    km_event_send(ch->call, t);
    ch->block_kind = NO_BLOCK;
}

static void open_block(km_api_choice *ch, int kind, const char *name, size_t n) {
    if (ch->block_kind == kind && kind != TOOL_BLOCK) return;
    close_block(ch);
    ch->block++;
    ch->block_kind = kind;
    km_text *t = km_event_begin(ch->call, "content_block_start");
    km_text_printf(t, ",\"index\":%d,\"content_block\":", ch->block);
    if (kind == TEXT_BLOCK) km_text_add(t, "{\"type\":\"text\",\"text\":\"\"}");
    if (kind == THINKING_BLOCK)
        km_text_add(t, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    if (kind == TOOL_BLOCK) {
        km_text_printf(t, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":",
                       ch->n_uses ? ch->uses[ch->n_uses - 1].id : "");
        km_put_string(t, name, n);
        km_text_add(t, ",\"input\":{}}");
    }
    km_event_send(ch->call, t);
}

static void part(km_api_choice *ch, const km_answer_part *p) {
    static const char *const deltas[] = {"text_delta\",\"text", "thinking_delta\",\"thinking", "",
                                         "input_json_delta\",\"partial_json"};
    if (p->kind == KM_ANSWER_TEXT) open_block(ch, TEXT_BLOCK, NULL, 0);
    if (p->kind == KM_ANSWER_REASONING) open_block(ch, THINKING_BLOCK, NULL, 0);
    if (p->kind == KM_ANSWER_CALL) open_block(ch, TOOL_BLOCK, p->text, p->bytes);
    if (p->kind == KM_ANSWER_CALL_END) close_block(ch);
    if (p->kind == KM_ANSWER_CALL || p->kind == KM_ANSWER_CALL_END) return;
    km_text *t = km_event_begin(ch->call, "content_block_delta");
    km_text_printf(t, ",\"index\":%d,\"delta\":{\"type\":\"%s\":", ch->block, deltas[p->kind]);
    km_put_string(t, p->text, p->bytes);
    km_text_add(t, "}");
    km_event_send(ch->call, t);
}

static void end_choice(km_api_choice *ch) { close_block(ch); }

static void end(km_api_call *c) {
    km_text *t = km_event_begin(c, "message_delta");
    km_text_printf(
        t,
        ",\"delta\":{\"stop_reason\":\"%s\",\"stop_sequence\":null},\"usage\":{\"input_tokens\":%lld,\"output_tokens\":%lld,\"cache_read_input_tokens\":%lld}",
        stop_reason(&c->choices[0]), (long long)km_call_prompt_tokens(c),
        (long long)km_call_tokens(c), (long long)km_call_reused(c));
    km_event_send(c, t);
    t = km_event_begin(c, "message_stop");
    km_event_send(c, t);
}

static void whole(km_api_call *c, km_text *t) {
    const km_api_choice *ch = &c->choices[0];
    const char *comma = "";
    km_text_add(t, "{");
    put_message_head(c, t);
    km_text_add(t, ",\"content\":[");
    if (ch->reasoning.len) {
        km_text_add(t, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
        km_put_string(t, km_text_str(&ch->reasoning), ch->reasoning.len);
        km_text_add(t, "}");
        comma = ",";
    }
    if (ch->content.len || !ch->n_uses) {
        km_text_printf(t, "%s{\"type\":\"text\",\"text\":", comma);
        km_put_string(t, km_text_str(&ch->content), ch->content.len);
        km_text_add(t, "}");
        comma = ",";
    }
    for (int i = 0; i < ch->n_uses; i++) {
        const km_tool_use *u = &ch->uses[i];
        json_t *input =
            json_loads(km_text_str(&u->arguments), 0, NULL); /* a call that was cut off has none */
        char *text = json_is_object(input) ? json_dumps(input, JSON_COMPACT) : NULL;
        km_text_printf(t, "%s{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", comma, u->id);
        km_put_string0(t, u->name ? u->name : "");
        km_text_printf(t, ",\"input\":%s}", text ? text : "{}");
        free(text);
        json_decref(input);
        comma = ",";
    }
    km_text_printf(
        t,
        "],\"stop_reason\":\"%s\",\"stop_sequence\":null,\"usage\":{\"input_tokens\":%lld,\"output_tokens\":%lld,\"cache_read_input_tokens\":%lld,\"cache_creation_input_tokens\":0}}\n",
        stop_reason(ch), (long long)km_call_prompt_tokens(c), (long long)km_call_tokens(c),
        (long long)km_call_reused(c));
}

static void whole_count(km_api_call *c, km_text *t) {
    km_text_printf(t, "{\"input_tokens\":%lld}\n", (long long)km_call_prompt_tokens(c));
}

static void put_error(km_text *t, int status, const char *param, const char *message, bool stream) {
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},      {413, "request_too_large"},
                 {429, "rate_limit_error"},     {503, "overloaded_error"}};
    const char *type = status < 500 ? "invalid_request_error" : "api_error";
    (void)param;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status) type = types[i].type;
    km_text_printf(t, "%s{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
                   stream ? "event: error\ndata: " : "", type);
    km_put_string0(t, message);
    km_text_add(t, stream ? "}}\n\n" : "}}\n");
}

const km_dialect km_dialect_messages = {.name = "anthropic",
                                        .stream_type = "text/event-stream",
                                        .beat = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                        .read = read_request,
                                        .begin = begin,
                                        .part = part,
                                        .end_choice = end_choice,
                                        .end = end,
                                        .whole = whole,
                                        .error = put_error};
const km_dialect km_dialect_count_tokens = {
    .name = "anthropic", .read = read_count, .whole = whole_count, .error = put_error};
