/* Reading a request of /v1/responses: its items (messages, calls of functions, their results, reasoning)
 * become OpenAI's messages, together with those of the response it goes on from. */
#include "serve/api/responses.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is(const char *word, const char *other) { return word && strcmp(word, other) == 0; }

/* ---- Items to messages ---- */

/* The parts' text; NULL: refused. */
static json_t *item_text(km_api_call *c, const json_t *content, size_t number) {
    if (json_is_string(content)) return json_incref((json_t *)(uintptr_t)content);
    if (!json_is_array(content)) {
        km_call_refuse(c, 400, "input", "input[%zu]: its content is a text, or a list of parts",
                       number);
        return NULL;
    }
    km_text t = {0};
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (is(type, "refusal")) text = json_object_get(part, "refusal");
        if (!json_is_string(text)) {
            km_text_free(&t);
            km_call_refuse(c, 400, "input", "input[%zu]: this model reads text, and not '%.40s'",
                           number, type ? type : "?");
            return NULL;
        }
        km_text_put(&t, json_string_value(text), json_string_length(text));
    }
    json_t *v = json_stringn(km_text_str(&t), t.len);
    km_text_free(&t);
    return v;
}

/* The assistant's message that a call or a thought belongs to: the last one, if it is the assistant's. */
static json_t *assistant_message(json_t *messages) {
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    if (is(json_string_value(json_object_get(last, "role")), "assistant")) return last;
    last = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    json_array_append_new(messages, last);
    return last;
}

static void add_call(json_t *messages, const json_t *item) {
    json_t *m = assistant_message(messages), *calls = json_object_get(m, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(m, "tool_calls", calls);
    }
    json_t *arguments = json_object_get(item, "arguments");
    json_array_append_new(calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id",
                                           json_object_get(item, "call_id"), "type", "function",
                                           "function", "name", json_object_get(item, "name"),
                                           "arguments", arguments));
}

static void add_thought(json_t *messages, const json_t *item) {
    const json_t *parts = json_object_get(item, "content");
    km_text t = {0};
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *text = json_object_get(json_array_get(parts, i), "text");
        if (json_is_string(text))
            km_text_put(&t, json_string_value(text), json_string_length(text));
    }
    /* A message of its own: the answer that follows joins it. */
    if (t.len) {
        json_t *m = json_pack("{s:s, s:s, s:s%, s:b}", "role", "assistant", "content", "",
                              "reasoning_content", km_text_str(&t), t.len, "open", 1);
        json_array_append_new(messages, m);
    }
    km_text_free(&t);
}

static void add_message(json_t *messages, const char *role, json_t *text) {
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    if (is(role, "assistant") && json_object_get(last, "open")) {
        json_object_set_new(last, "content", text);
        json_object_del(last, "open");
        return;
    }
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", text));
}

static bool has_strings(km_api_call *c, const json_t *item, size_t number, const char *a,
                        const char *b, const char *d) {
    const char *const keys[] = {a, b, d};
    for (int i = 0; i < 3; i++)
        if (keys[i] && !json_is_string(json_object_get(item, keys[i]))) {
            km_call_refuse(c, 400, "input", "input[%zu]: '%s' is missing, or no text", number,
                           keys[i]);
            return false;
        }
    return true;
}

static void add_item(km_api_call *c, json_t *messages, const json_t *item, size_t number) {
    const char *type = json_string_value(json_object_get(item, "type")),
               *role = json_string_value(json_object_get(item, "role"));
    if (!type && role) type = "message";
    if (is(type, "message")) {
        if (!is(role, "user") && !is(role, "assistant") && !is(role, "system") &&
            !is(role, "developer")) {
            km_call_refuse(c, 400, "input",
                           "input[%zu]: a role is user, assistant, system or developer", number);
            return;
        }
        json_t *text = item_text(c, json_object_get(item, "content"), number);
        if (text) add_message(messages, is(role, "developer") ? "system" : role, text);
    } else if (is(type, "function_call")) {
        if (has_strings(c, item, number, "call_id", "name", "arguments")) add_call(messages, item);
    } else if (is(type, "function_call_output")) {
        if (!has_strings(c, item, number, "call_id", NULL, NULL)) return;
        json_t *text = item_text(c, json_object_get(item, "output"), number);
        if (text)
            json_array_append_new(messages,
                                  json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id",
                                            json_object_get(item, "call_id"), "content", text));
    } else if (is(type, "reasoning")) {
        add_thought(messages, item);
    } else {
        km_call_refuse(c, 400, "input", "input[%zu]: items of type '%.40s' are not understood",
                       number, type ? type : "?");
    }
}

/* Instructions come first, as the system's message; templates want no second one there. */
static void add_instructions(json_t *messages, const json_t *instructions) {
    json_t *first = json_array_get(messages, 0);
    if (!json_is_string(instructions) || json_string_length(instructions) == 0) return;
    if (is(json_string_value(json_object_get(first, "role")), "system")) {
        json_t *both = json_sprintf("%s\n\n%s", json_string_value(instructions),
                                    json_string_value(json_object_get(first, "content")));
        json_object_set_new(first, "content", both);
        return;
    }
    json_array_insert_new(messages, 0,
                          json_pack("{s:s, s:O}", "role", "system", "content", instructions));
}

/* ---- What is kept ---- */

/* Items get ids and a type, as /v1/responses/{id}/input_items shows them. */
static json_t *own_items(km_api_call *c) {
    const json_t *input = json_object_get(c->request, "input");
    json_t *all = json_array();
    if (json_is_string(input))
        json_array_append_new(all,
                              json_pack("{s:s, s:s, s:[{s:s, s:O}]}", "type", "message", "role",
                                        "user", "content", "type", "input_text", "text", input));
    else
        for (size_t i = 0; i < json_array_size(input); i++)
            json_array_append_new(all, json_deep_copy(json_array_get(input, i)));
    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *item = json_array_get(all, i), *content = json_object_get(item, "content");
        if (!json_is_object(item)) continue;
        if (!json_object_get(item, "type"))
            json_object_set_new(item, "type", json_string("message"));
        if (!json_is_string(json_object_get(item, "id")))
            json_object_set_new(item, "id", json_sprintf("msg_%s%03zui", c->id, i));
        const char *role = json_string_value(json_object_get(item, "role"));
        if (json_is_string(content) && role) {
            json_t *parts =
                json_pack("[{s:s, s:O}]", "type",
                          is(role, "assistant") ? "output_text" : "input_text", "text", content);
            if (is(role, "assistant"))
                json_object_set_new(json_array_get(parts, 0), "annotations", json_array());
            json_object_set_new(item, "content", parts);
        }
        if (!json_object_get(item, "status") && role)
            json_object_set_new(item, "status", json_string("completed"));
    }
    return all;
}

static json_t *earlier_items(km_api_call *c) {
    const json_t *previous = json_object_get(c->request, "previous_response_id");
    if (!previous || json_is_null(previous)) return json_array();
    km_kept_response kept = {0};
    json_t *talk = NULL;
    if (json_is_string(previous) && km_response_store_get(c->serve->responses, c->key.number,
                                                          json_string_value(previous), &kept)) {
        talk = json_loads(kept.talk, 0, NULL);
        km_kept_response_free(&kept);
    }
    if (!talk)
        km_call_refuse(c, 400, "previous_response_id",
                       "there is no response '%.60s' here (any more)",
                       json_is_string(previous) ? json_string_value(previous) : "?");
    return talk;
}

km_status km_responses_read_items(km_api_call *c, json_t **messages) {
    const json_t *input = json_object_get(c->request, "input");
    km_response_state *st = c->state;
    if (!json_is_string(input) && !(json_is_array(input) && json_array_size(input) > 0))
        return km_call_refuse(c, 400, "input", "'input' is a text, or a list of items");
    for (size_t i = 0; i < json_array_size(input); i++)
        if (!json_is_object(json_array_get(input, i)))
            return km_call_refuse(c, 400, "input", "input[%zu] is no object", i);
    st->talk = earlier_items(c);
    if (!st->talk) return KM_ERR_RANGE;
    st->input = own_items(c);
    json_t *all = json_array(), *m;
    size_t earlier = json_array_size(st->talk), i;
    json_array_extend(st->talk, st->input);
    for (i = 0; i < json_array_size(st->talk) && !c->status; i++)
        add_item(c, all, json_array_get(st->talk, i), i < earlier ? 0 : i - earlier);
    json_array_foreach(all, i, m) json_object_del(m, "open");
    add_instructions(all, json_object_get(c->request, "instructions"));
    *messages = all;
    return c->status ? KM_ERR_RANGE : KM_OK;
}

/* ---- Tools and formats ---- */

km_status km_responses_read_tools(km_api_call *c) {
    json_t *tools = json_object_get(c->request, "tools"),
           *choice = json_object_get(c->request, "tool_choice"), *all = json_array();
    km_response_state *st = c->state;
    if (tools && !json_is_null(tools) && !json_is_array(tools)) {
        json_decref(all);
        return km_call_refuse(c, 400, "tools", "'tools' is a list of functions");
    }
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *t = json_array_get(tools, i), *f = json_object();
        const char *type = json_string_value(json_object_get(t, "type"));
        static const char *const keys[] = {"name", "description", "parameters", "strict"};
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            json_t *v = json_object_get(t, keys[k]);
            if (v && !json_is_null(v)) json_object_set(f, keys[k], v);
        }
        json_array_append_new(all, json_pack("{s:s, s:o}", "type", "function", "function", f));
        if (!is(type, "function"))
            km_call_refuse(c, 400, "tools", "tool %zu is of type '%.40s': here are functions alone",
                           i + 1, type ? type : "?");
    }
    if (is(json_string_value(json_object_get(choice, "type")), "allowed_tools"))
        km_call_refuse(c, 400, "tool_choice",
                       "'tool_choice' is auto, none, required or a function's name");
    /* Names are kept as they lie there. */
    st->tools = all;
    return c->status ? KM_ERR_RANGE : km_fields_tools(c, all, choice);
}

km_status km_responses_read_format(km_api_call *c) {
    json_t *text = json_object_get(c->request, "text"), *format = json_object_get(text, "format");
    if (text && !json_is_null(text) && !json_is_object(text))
        return km_call_refuse(c, 400, "text", "'text' is an object with a format");
    if (!format || json_is_null(format)) return km_fields_format(c);
    if (is(json_string_value(json_object_get(format, "type")), "json_schema")) {
        json_t *named = json_object();
        static const char *const keys[] = {"name", "schema", "strict"};
        for (size_t k = 0; k < 3; k++)
            if (json_object_get(format, keys[k]))
                json_object_set(named, keys[k], json_object_get(format, keys[k]));
        json_object_set_new(c->request, "response_format",
                            json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", named));
    } else {
        json_object_set(c->request, "response_format", format);
    }
    return km_fields_format(c);
}
