/* OpenAI's /v1/responses: the answer as a list of items (reasoning, messages, calls of functions), whole
 * or as events; what is kept for previous_response_id, and the endpoints that show and delete it. */
#include "serve/api/responses.h"
#include "base/alloc.h"
#include "base/array.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reading ---- */

static void free_state(void *state) {
    km_response_state *st = state;
    for (size_t i = 0; i < st->n_items; i++) {
        km_free(st->items[i].name);
        km_text_free(&st->items[i].text);
    }
    km_free(st->items);
    json_decref(st->input);
    json_decref(st->talk);
    json_decref(st->tools);
    km_free(st);
}

static bool has(const km_api_call *c, const char *key) {
    const json_t *v = json_object_get(c->request, key);
    return v && !json_is_null(v);
}

static km_status read_logprobs(km_api_call *c) {
    const json_t *include = json_object_get(c->request, "include");
    int64_t top = 0;
    if (!km_field_int(c, "top_logprobs", 0, 20, &top)) return KM_ERR_RANGE;
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *what = json_string_value(json_array_get(include, i));
        if (what && strcmp(what, "message.output_text.logprobs") == 0)
            c->logprobs = c->how.logprobs = (int)top;
    }
    if (top > 0) c->logprobs = c->how.logprobs = (int)top;
    return KM_OK;
}

static km_status read_rest(km_api_call *c) {
    km_response_state *st = c->state;
    const json_t *reasoning = json_object_get(c->request, "reasoning");
    const char *effort = json_string_value(json_object_get(reasoning, "effort"));
    bool background = false;
    st->store = true;
    if (!km_field_bool(c, "store", &st->store) || !km_field_bool(c, "stream", &c->stream) ||
        !km_field_bool(c, "background", &background))
        return KM_ERR_RANGE;
    if (background)
        return km_call_refuse(c, 400, "background", "there are no answers in the background here");
    if (has(c, "conversation"))
        return km_call_refuse(c, 400, "conversation",
                              "there are no conversations here: use 'previous_response_id'");
    if (has(c, "prompt"))
        return km_call_refuse(c, 400, "prompt", "there are no stored prompts here");
    if (has(c, "instructions") && !json_is_string(json_object_get(c->request, "instructions")))
        return km_call_refuse(c, 400, "instructions", "'instructions' is a text");
    if (has(c, "metadata") && !json_is_object(json_object_get(c->request, "metadata")))
        return km_call_refuse(c, 400, "metadata", "'metadata' is an object");
    if (effort && strcmp(effort, "none") == 0) c->thinking = -1;
    return read_logprobs(c);
}

/* "truncation": "auto" drops the oldest messages until the rest fits. */
static km_status render(km_api_call *c, json_t *messages, km_error *err) {
    const char *truncation = json_string_value(json_object_get(c->request, "truncation"));
    int64_t context = km_scheduler_count(c->served->scheduler).context;
    for (;;) {
        km_status s = km_fields_messages(c, messages);
        if (s == KM_OK) s = km_call_prompt_chat(c, err);
        if (s != KM_OK || !truncation || strcmp(truncation, "auto") != 0 ||
            (int64_t)c->prompts[0].n < context)
            return s;
        const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
        size_t first = role && strcmp(role, "system") == 0 ? 1 : 0;
        if (json_array_size(messages) <= first + 1) return s;
        json_array_remove(messages, first);
        free(c->messages);
        c->messages = NULL;
        km_free(c->prompts[0].ids);
        c->n_prompts = 0;
    }
}

static km_status read_request(km_api_call *c, km_error *err) {
    json_t *messages = NULL;
    c->state = km_calloc(1, sizeof(km_response_state));
    if (!c->state) return km_no_memory(err);
    c->free_state = free_state;
    if (km_fields_sampling(c) != KM_OK || read_rest(c) != KM_OK ||
        km_responses_read_format(c) != KM_OK || km_responses_read_tools(c) != KM_OK)
        return KM_ERR_RANGE;
    c->n = 1;
    km_status s = km_responses_read_items(c, &messages);
    if (s == KM_OK) s = render(c, messages, err);
    json_decref(messages);
    return s;
}

/* ---- Items ---- */

static const char *prefix_of(km_answer_kind kind) {
    return kind == KM_ANSWER_TEXT ? "msg" : kind == KM_ANSWER_REASONING ? "rs" : "fc";
}

static void put_item_id(const km_api_call *c, km_text *t, size_t i) {
    const km_response_state *st = c->state;
    km_text_printf(t, "\"%s_%s%03zu\"", prefix_of(st->items[i].kind), c->id, i);
}

static void put_logprobs(const km_api_choice *ch, km_text *t, size_t from) {
    km_text_add(t, ",\"logprobs\":[");
    if (ch->call->logprobs >= 0 && from < ch->logprobs.len) {
        const char *list = km_text_str(&ch->logprobs) + from;
        km_text_add(t, list + (*list == ','));
    }
    km_text_add(t, "]");
}

static void put_part(const km_api_choice *ch, km_text *t, size_t i, bool empty) {
    const km_response_state *st = ch->call->state;
    const km_response_item *item = &st->items[i];
    bool text = item->kind == KM_ANSWER_TEXT;
    km_text_printf(t, "{\"type\":\"%s\",\"text\":", text ? "output_text" : "reasoning_text");
    km_put_string(t, empty ? "" : km_text_str(&item->text), empty ? 0 : item->text.len);
    if (text) {
        km_text_add(t, ",\"annotations\":[]");
        put_logprobs(ch, t, empty ? ch->logprobs.len : item->logprobs);
    }
    km_text_add(t, "}");
}

/* status: "in_progress" (with nothing in it yet), "completed", "incomplete". */
static void put_item(const km_api_choice *ch, km_text *t, size_t i, const char *status) {
    const km_response_state *st = ch->call->state;
    const km_response_item *item = &st->items[i];
    bool empty = strcmp(status, "in_progress") == 0;
    km_text_add(t, "{\"id\":");
    put_item_id(ch->call, t, i);
    km_text_printf(t, ",\"status\":\"%s\"", status);
    if (item->kind == KM_ANSWER_CALL) {
        km_text_printf(t,
                       ",\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":", item->call_id);
        km_put_string0(t, item->name ? item->name : "");
        km_text_add(t, ",\"arguments\":");
        km_put_string(t, empty ? "" : km_text_str(&item->text), empty ? 0 : item->text.len);
        km_text_add(t, "}");
        return;
    }
    km_text_add(t, item->kind == KM_ANSWER_TEXT
                       ? ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                       : ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
    if (!empty) put_part(ch, t, i, false);
    km_text_add(t, "]}");
}

/* ---- The response ---- */

static void put_field(const km_api_call *c, km_text *t, const char *key, const char *otherwise) {
    json_t *v = json_object_get(c->request, key);
    char *text = v && !json_is_null(v) ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    km_text_printf(t, ",\"%s\":%s", key, text ? text : otherwise);
    free(text);
}

static const char *status_of(const km_api_call *c) {
    if (c->status) return "failed";
    if (c->n_ended < c->n_choices || !c->n_choices) return "in_progress";
    return km_finish_is_length(&c->choices[0]) ? "incomplete" : "completed";
}

static void put_usage(const km_api_call *c, km_text *t) {
    long long in = km_call_prompt_tokens(c), out = km_call_tokens(c);
    km_text_printf(t,
                   ",\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":"
                   "%lld},\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_tokens\":"
                   "%lld},\"total_tokens\":%lld}",
                   in, (long long)km_call_reused(c), out, (long long)km_call_reasoning_tokens(c),
                   in + out);
}

static void put_response(const km_api_call *c, km_text *t) {
    const km_response_state *st = c->state;
    const char *status = status_of(c);
    bool running = strcmp(status, "in_progress") == 0, cut = strcmp(status, "incomplete") == 0;
    km_text_printf(
        t,
        "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\","
        "\"background\":false,\"error\":",
        c->id, (long long)c->created, status);
    if (c->status) {
        km_text_add(t, "{\"code\":\"server_error\",\"message\":");
        km_put_string0(t, c->error);
        km_text_add(t, "}");
    } else {
        km_text_add(t, "null");
    }
    km_text_printf(t, ",\"incomplete_details\":%s,\"model\":",
                   cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    km_put_string0(t, km_call_model(c));
    km_text_add(t, ",\"output\":[");
    for (size_t i = 0; i < st->n_items && !running; i++) {
        if (i) km_text_add(t, ",");
        put_item(&c->choices[0], t, i, cut && i + 1 == st->n_items ? "incomplete" : "completed");
    }
    km_text_add(t, "]");
    put_field(c, t, "instructions", "null");
    put_field(c, t, "max_output_tokens", "null");
    put_field(c, t, "metadata", "{}");
    put_field(c, t, "parallel_tool_calls", "true");
    put_field(c, t, "previous_response_id", "null");
    put_field(c, t, "reasoning", "{\"effort\":null,\"summary\":null}");
    km_text_printf(t, ",\"store\":%s,\"temperature\":%.17g,\"top_p\":%.17g",
                   st->store ? "true" : "false", c->how.sampling.temperature,
                   c->how.sampling.top_p);
    put_field(c, t, "text", "{\"format\":{\"type\":\"text\"}}");
    put_field(c, t, "tool_choice", "\"auto\"");
    put_field(c, t, "tools", "[]");
    put_field(c, t, "truncation", "\"disabled\"");
    put_field(c, t, "user", "null");
    if (running)
        km_text_add(t, ",\"usage\":null");
    else
        put_usage(c, t);
    km_text_add(t, "}");
}

static void keep(km_api_call *c, const char *response) {
    km_response_state *st = c->state;
    char id[64];
    snprintf(id, sizeof id, "resp_%s", c->id);
    json_t *v = json_loads(response, 0, NULL), *output = json_object_get(v, "output");
    if (v) json_array_extend(st->talk, output);
    char *input = json_dumps(st->input, JSON_COMPACT), *talk = json_dumps(st->talk, JSON_COMPACT);
    if (v && input && talk)
        km_response_store_put(c->serve->responses, c->key.number, id,
                              &(km_kept_response){(char *)(uintptr_t)response, input, talk});
    free(input);
    free(talk);
    json_decref(v);
}

/* ---- Events ---- */

static km_text *event(km_api_call *c, const char *name) {
    km_response_state *st = c->state;
    km_text *t = km_event_begin(c, name);
    km_text_printf(t, ",\"sequence_number\":%lld", (long long)st->sequence++);
    return t;
}

static void send_response(km_api_call *c, const char *name) {
    km_text *t = event(c, name);
    km_text_add(t, ",\"response\":");
    put_response(c, t);
    km_event_send(c, t);
}

static void begin(km_api_call *c) {
    send_response(c, "response.created");
    send_response(c, "response.in_progress");
}

/* An event about the item that is open. */
static km_text *item_event(km_api_call *c, const char *name, bool in_part) {
    km_response_state *st = c->state;
    km_text *t = event(c, name);
    km_text_add(t, ",\"item_id\":");
    put_item_id(c, t, st->n_items - 1);
    km_text_printf(t, ",\"output_index\":%zu", st->n_items - 1);
    if (in_part) km_text_add(t, ",\"content_index\":0");
    return t;
}

static void send_item(km_api_choice *ch, const char *name, const char *status) {
    const km_response_state *st = ch->call->state;
    km_text *t = event(ch->call, name);
    km_text_printf(t, ",\"output_index\":%zu,\"item\":", st->n_items - 1);
    put_item(ch, t, st->n_items - 1, status);
    km_event_send(ch->call, t);
}

static void send_part(km_api_choice *ch, const char *name, bool empty) {
    const km_response_state *st = ch->call->state;
    km_text *t = item_event(ch->call, name, true);
    km_text_add(t, ",\"part\":");
    put_part(ch, t, st->n_items - 1, empty);
    km_event_send(ch->call, t);
}

static void close_item(km_api_choice *ch, bool cut) {
    km_response_state *st = ch->call->state;
    if (!st->open) return;
    st->open = false;
    if (!ch->call->stream) return;
    const km_response_item *item = &st->items[st->n_items - 1];
    bool is_call = item->kind == KM_ANSWER_CALL, text = item->kind == KM_ANSWER_TEXT;
    km_text *t = item_event(ch->call,
                            is_call ? "response.function_call_arguments.done"
                            : text  ? "response.output_text.done"
                                    : "response.reasoning_text.done",
                            !is_call);
    if (is_call) {
        km_text_add(t, ",\"name\":");
        km_put_string0(t, item->name ? item->name : "");
    }
    km_text_add(t, is_call ? ",\"arguments\":" : ",\"text\":");
    km_put_string(t, km_text_str(&item->text), item->text.len);
    if (text) put_logprobs(ch, t, item->logprobs);
    km_event_send(ch->call, t);
    if (!is_call) send_part(ch, "response.content_part.done", false);
    send_item(ch, "response.output_item.done", cut ? "incomplete" : "completed");
}

static bool open_item(km_api_choice *ch, const km_answer_part *p) {
    km_response_state *st = ch->call->state;
    km_response_item *last = st->open ? &st->items[st->n_items - 1] : NULL;
    if (last && last->kind == p->kind && p->kind != KM_ANSWER_CALL) return true;
    close_item(ch, false);
    if (!km_array_reserve(&st->items, &st->cap_items, st->n_items + 1)) return false;
    km_response_item *item = &st->items[st->n_items++];
    *item = (km_response_item){.kind = p->kind, .logprobs = st->logprobs_sent};
    if (p->kind == KM_ANSWER_CALL) {
        item->name = km_alloc(p->bytes + 1);
        if (item->name) memcpy(item->name, p->text, p->bytes), item->name[p->bytes] = '\0';
        snprintf(item->call_id, sizeof item->call_id, "%s",
                 ch->n_uses ? ch->uses[ch->n_uses - 1].id : "");
    }
    st->open = true;
    if (!ch->call->stream) return true;
    send_item(ch, "response.output_item.added", "in_progress");
    if (p->kind != KM_ANSWER_CALL) send_part(ch, "response.content_part.added", true);
    return true;
}

static void part(km_api_choice *ch, const km_answer_part *p) {
    km_response_state *st = ch->call->state;
    if (p->kind == KM_ANSWER_CALL_END) {
        close_item(ch, false);
        return;
    }
    if (p->kind != KM_ANSWER_ARGUMENTS && !open_item(ch, p)) return;
    if (p->kind == KM_ANSWER_CALL || !st->open) return;
    km_text_put(&st->items[st->n_items - 1].text, p->text, p->bytes);
    size_t from = st->logprobs_sent;
    st->logprobs_sent = ch->logprobs.len;
    if (!ch->call->stream) return;
    bool text = p->kind == KM_ANSWER_TEXT;
    km_text *t =
        item_event(ch->call,
                   text                             ? "response.output_text.delta"
                   : p->kind == KM_ANSWER_REASONING ? "response.reasoning_text.delta"
                                                    : "response.function_call_arguments.delta",
                   p->kind != KM_ANSWER_ARGUMENTS);
    km_text_add(t, ",\"delta\":");
    km_put_string(t, p->text, p->bytes);
    if (text) put_logprobs(ch, t, from);
    km_event_send(ch->call, t);
}

/* An answer without a word is a message without one. */
static void end_choice(km_api_choice *ch) {
    const km_response_state *st = ch->call->state;
    if (st->n_items == 0) open_item(ch, &(km_answer_part){.kind = KM_ANSWER_TEXT, .text = ""});
    close_item(ch, km_finish_is_length(ch));
}

static void end(km_api_call *c) {
    const km_response_state *st = c->state;
    const char *status = status_of(c);
    send_response(c,
                  strcmp(status, "incomplete") == 0 ? "response.incomplete" : "response.completed");
    if (!st->store) return;
    km_text *t = km_scratch(c->serve);
    put_response(c, t);
    if (km_text_ok(t)) keep(c, km_text_str(t));
}

static void whole(km_api_call *c, km_text *t) {
    const km_response_state *st = c->state;
    put_response(c, t);
    if (st->store && km_text_ok(t)) keep(c, km_text_str(t));
}

static void stream_error(km_api_call *c) { send_response(c, "response.failed"); }

static void put_error(km_text *t, int status, const char *param, const char *message, bool stream) {
    km_dialect_chat.error(t, status, param, message, stream);
}

const km_dialect km_dialect_responses = {.name = "openai",
                                         .stream_type = "text/event-stream",
                                         .beat = ": ping\n\n",
                                         .all_parts = true,
                                         .read = read_request,
                                         .begin = begin,
                                         .part = part,
                                         .end_choice = end_choice,
                                         .end = end,
                                         .whole = whole,
                                         .stream_error = stream_error,
                                         .error = put_error};

/* ---- What is kept ---- */

static void list_items(km_exchange *x, const char *items) {
    json_t *all = json_loads(items, 0, NULL), *reversed = json_array();
    for (size_t i = json_array_size(all); i-- > 0;) /* the newest first, as OpenAI does */
        json_array_append(reversed, json_array_get(all, i));
    const json_t *first = json_object_get(json_array_get(reversed, 0), "id"),
                 *last =
                     json_object_get(json_array_get(reversed, json_array_size(reversed) - 1), "id");
    km_send_json(x, 200,
                 json_pack("{s:s, s:o, s:O?, s:O?, s:b}", "object", "list", "data", reversed,
                           "first_id", first, "last_id", last, "has_more", 0));
    json_decref(all);
}

void km_endpoint_response(km_serve *s, km_exchange *x, const char *id, const km_key *key) {
    const km_http_request *r = km_exchange_request(x);
    uint64_t owner = key ? key->number : 0;
    char name[64];
    const char *slash = strchr(id, '/');
    snprintf(name, sizeof name, "%.*s", (int)(slash ? slash - id : 63), id);
    km_kept_response kept = {0};
    bool items = slash && strcmp(slash, "/input_items") == 0;
    if (slash && !items) {
        km_send_error(x, NULL, 404, NULL, "there is nothing at this path");
    } else if (strcmp(r->method, "DELETE") == 0 && !items) {
        if (km_response_store_delete(s->responses, owner, name))
            km_send_json(
                x, 200,
                json_pack("{s:s, s:s, s:b}", "id", name, "object", "response", "deleted", 1));
        else
            km_send_error(x, NULL, 404, "response_id", "there is no such response here (any more)");
    } else if (strcmp(r->method, "DELETE") == 0) {
        km_exchange_header(x, "Allow", "GET");
        km_send_error(x, NULL, 405, NULL, "this path takes another method");
    } else if (!km_response_store_get(s->responses, owner, name, &kept)) {
        km_send_error(x, NULL, 404, "response_id", "there is no such response here (any more)");
    } else if (items) {
        list_items(x, kept.input);
    } else {
        km_exchange_send(x, 200, "application/json", kept.response, strlen(kept.response));
    }
    km_kept_response_free(&kept);
}
