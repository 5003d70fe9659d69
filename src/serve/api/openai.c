/* OpenAI's dialect: /v1/chat/completions and /v1/completions, streaming and whole. */
#include "serve/api/api.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reading ---- */

static km_status read_stream(km_api_call *c) {
    const json_t *o = json_object_get(c->request, "stream_options");
    if (!km_field_bool(c, "stream", &c->stream)) return KM_ERR_RANGE;
    c->usage = json_is_true(json_object_get(o, "include_usage"));
    return KM_OK;
}

static km_status read_logprobs(km_api_call *c) {
    bool wanted = false;
    int64_t top = 0;
    if (!km_field_bool(c, "logprobs", &wanted) || !km_field_int(c, "top_logprobs", 0, 20, &top))
        return KM_ERR_RANGE;
    if (top > 0 && !wanted)
        return km_call_refuse(c, 400, "top_logprobs", "'top_logprobs' needs 'logprobs'");
    if (wanted) c->logprobs = c->how.logprobs = (int)top;
    return KM_OK;
}

static km_status read_thinking(km_api_call *c) {
    const json_t *kwargs = json_object_get(c->request, "chat_template_kwargs");
    const json_t *on = json_object_get(kwargs, "enable_thinking");
    const char *effort = json_string_value(json_object_get(c->request, "reasoning_effort"));
    if (json_is_boolean(on)) c->thinking = json_is_true(on) ? 1 : -1;
    if (effort && strcmp(effort, "none") == 0) c->thinking = -1;
    if (json_is_object(kwargs)) c->variables = json_dumps(kwargs, JSON_COMPACT);
    const char *format = json_string_value(json_object_get(c->request, "reasoning_format"));
    c->keep_reasoning = format && strcmp(format, "none") == 0;
    return KM_OK;
}

static km_status read_chat(km_api_call *c, km_error *err) {
    json_t *r = c->request;
    if (km_fields_sampling(c) != KM_OK || read_stream(c) != KM_OK || read_logprobs(c) != KM_OK ||
        read_thinking(c) != KM_OK || km_fields_format(c) != KM_OK ||
        km_fields_tools(c, json_object_get(r, "tools"), json_object_get(r, "tool_choice")) !=
            KM_OK ||
        km_fields_messages(c, json_object_get(r, "messages")) != KM_OK)
        return KM_ERR_RANGE;
    return km_call_prompt_chat(c, err);
}

static km_status read_prompts(km_api_call *c, const json_t *v, km_error *err) {
    size_t n = json_array_size(v);
    if (json_is_string(v))
        return km_call_prompt_text(c, json_string_value(v), json_string_length(v), err);
    if (!v || json_is_null(v)) return km_call_prompt_text(c, "", 0, err);
    if (!json_is_array(v) || n == 0 || n > 1000000)
        return km_call_refuse(c, 400, "prompt", "'prompt' is a text, tokens, or a list of these");
    if (json_is_integer(json_array_get(v, 0))) return km_call_prompt_ids(c, v, err);
    if (n > 64) return km_call_refuse(c, 400, "prompt", "at most 64 prompts in one request");
    km_status s = KM_OK;
    for (size_t i = 0; i < n && s == KM_OK; i++) {
        const json_t *one = json_array_get(v, i);
        if (json_is_string(one))
            s = km_call_prompt_text(c, json_string_value(one), json_string_length(one), err);
        else if (json_is_array(one))
            s = km_call_prompt_ids(c, one, err);
        else
            s = km_call_refuse(c, 400, "prompt", "'prompt' is a text, tokens, or a list of these");
    }
    return s;
}

static km_status read_completion(km_api_call *c, km_error *err) {
    int64_t top = -1;
    if (km_fields_sampling(c) != KM_OK || read_stream(c) != KM_OK || km_fields_format(c) != KM_OK ||
        !km_field_bool(c, "echo", &c->echo))
        return KM_ERR_RANGE;
    if (json_is_integer(json_object_get(c->request, "logprobs")) &&
        !km_field_int(c, "logprobs", 0, 20, &top))
        return KM_ERR_RANGE;
    c->logprobs = c->how.logprobs = (int)top;
    if (c->how.max_tokens == 0) c->how.max_tokens = 16; /* OpenAI's default here */
    return read_prompts(c, json_object_get(c->request, "prompt"), err);
}

/* ---- Writing ---- */

static const char *finish_reason(const km_api_choice *ch) {
    if (km_finish_is_length(ch)) return "length";
    return ch->n_uses ? "tool_calls" : "stop";
}

static void put_usage(const km_api_call *c, km_text *t) {
    long long in = km_call_prompt_tokens(c), out = km_call_tokens(c);
    km_text_printf(t,
                   "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
                   "\"prompt_tokens_details\":{\"cached_tokens\":%lld},"
                   "\"completion_tokens_details\":{\"reasoning_tokens\":%lld}}",
                   in, out, in + out, (long long)km_call_reused(c),
                   (long long)km_call_reasoning_tokens(c));
}

static void put_head(const km_api_call *c, km_text *t, const char *object) {
    km_text_printf(t, "{\"id\":\"%s-%s\",\"object\":\"%s\",\"created\":%lld,\"model\":",
                   c->chat ? "chatcmpl" : "cmpl", c->id, object, (long long)c->created);
    km_put_string0(t, km_call_model(c));
    km_text_add(t, ",\"system_fingerprint\":\"kermes-" KM_VERSION "\"");
}

static km_text *chunk(km_api_call *c, const char *object) {
    km_text *t = km_scratch(c->serve);
    if (c->head.len == 0) {
        km_text_add(&c->head, "data: ");
        put_head(c, &c->head, object);
    }
    km_text_put(t, km_text_str(&c->head), c->head.len);
    t->failed |= c->head.failed;
    return t;
}

static void send_chunk(km_api_call *c, km_text *t) {
    if (c->usage) km_text_add(t, ",\"usage\":null");
    km_text_add(t, "}\n\n");
    km_call_put(c, t);
}

static void put_logprobs(km_api_choice *ch, km_text *t) {
    if (ch->call->logprobs < 0) return;
    km_text_add(t, ",\"logprobs\":{\"content\":[");
    km_text_put(t, km_text_str(&ch->logprobs) + ch->logprobs_sent,
                ch->logprobs.len - ch->logprobs_sent);
    km_text_add(t, "],\"refusal\":null}");
    ch->logprobs_sent = ch->logprobs.len;
}

static void begin_delta(km_api_choice *ch, km_text *t) {
    if (ch->index == 0)
        km_text_add(t, ",\"choices\":[{\"index\":0,\"delta\":{");
    else
        km_text_printf(t, ",\"choices\":[{\"index\":%d,\"delta\":{", ch->index);
    if (!ch->begun) km_text_add(t, "\"role\":\"assistant\",");
    ch->begun = true;
}

static void chat_part(km_api_choice *ch, const km_answer_part *p) {
    km_text *t = chunk(ch->call, "chat.completion.chunk");
    if (p->kind == KM_ANSWER_CALL_END) return;
    begin_delta(ch, t);
    if (p->kind == KM_ANSWER_TEXT || p->kind == KM_ANSWER_REASONING) {
        km_text_add(t, p->kind == KM_ANSWER_TEXT ? "\"content\":" : "\"reasoning_content\":");
        km_put_string(t, p->text, p->bytes);
    } else if (p->kind == KM_ANSWER_CALL) {
        km_text_printf(
            t,
            "\"tool_calls\":[{\"index\":%d,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
            p->call, ch->n_uses ? ch->uses[ch->n_uses - 1].id : "");
        km_put_string(t, p->text, p->bytes);
        km_text_add(t, ",\"arguments\":\"\"}}]");
    } else {
        km_text_printf(t, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", p->call);
        km_put_string(t, p->text, p->bytes);
        km_text_add(t, "}}]");
    }
    km_text_add(t, "}");
    put_logprobs(ch, t);
    km_text_add(t, ",\"finish_reason\":null}]");
    send_chunk(ch->call, t);
}

static void chat_end_choice(km_api_choice *ch) {
    km_text *t = chunk(ch->call, "chat.completion.chunk");
    begin_delta(ch, t);
    if (t->len && t->data[t->len - 1] == ',') km_text_add(t, "\"content\":\"\"");
    km_text_add(t, "}");
    put_logprobs(ch, t);
    km_text_printf(t, ",\"finish_reason\":\"%s\"}]", finish_reason(ch));
    send_chunk(ch->call, t);
}

static void end_stream(km_api_call *c) {
    if (c->usage) {
        km_text *t = chunk(c, c->chat ? "chat.completion.chunk" : "text_completion");
        km_text_add(t, ",\"choices\":[],\"usage\":");
        put_usage(c, t);
        km_text_add(t, "}\n\n");
        km_call_put(c, t);
    }
    km_text *t = km_scratch(c->serve);
    km_text_add(t, "data: [DONE]\n\n");
    km_call_put(c, t);
}

static void put_message(const km_api_choice *ch, km_text *t) {
    km_text_add(t, "{\"role\":\"assistant\",\"content\":");
    if (ch->n_uses && ch->content.len == 0)
        km_text_add(t, "null");
    else
        km_put_string(t, km_text_str(&ch->content), ch->content.len);
    if (ch->reasoning.len) {
        km_text_add(t, ",\"reasoning_content\":");
        km_put_string(t, km_text_str(&ch->reasoning), ch->reasoning.len);
    }
    km_text_add(t, ",\"refusal\":null");
    for (int i = 0; i < ch->n_uses; i++) {
        const km_tool_use *u = &ch->uses[i];
        km_text_printf(t, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
                       i ? "," : ",\"tool_calls\":[", u->id);
        km_put_string0(t, u->name ? u->name : "");
        km_text_add(t, ",\"arguments\":");
        km_put_string(t, km_text_str(&u->arguments), u->arguments.len);
        km_text_add(t, "}}");
    }
    if (ch->n_uses) km_text_add(t, "]");
    km_text_add(t, "}");
}

static void chat_whole(km_api_call *c, km_text *t) {
    put_head(c, t, "chat.completion");
    km_text_add(t, ",\"choices\":[");
    for (int i = 0; i < c->n_choices; i++) {
        km_api_choice *ch = &c->choices[i];
        km_text_printf(t, "%s{\"index\":%d,\"message\":", i ? "," : "", i);
        put_message(ch, t);
        if (c->logprobs >= 0)
            put_logprobs(ch, t);
        else
            km_text_add(t, ",\"logprobs\":null");
        km_text_printf(t, ",\"finish_reason\":\"%s\"}", finish_reason(ch));
    }
    km_text_add(t, "],\"usage\":");
    put_usage(c, t);
    km_text_add(t, "}\n");
}

/* ---- Completions ---- */

/* The older form of logprobs, out of the newer one. */
static void put_old_logprobs(km_api_choice *ch, km_text *t) {
    km_text list = {0};
    if (ch->call->logprobs < 0) {
        km_text_add(t, ",\"logprobs\":null");
        return;
    }
    km_text_printf(&list, "[%s]", km_text_str(&ch->logprobs) + ch->logprobs_sent);
    ch->logprobs_sent = ch->logprobs.len;
    json_t *all = json_loads(km_text_str(&list), 0, NULL), *one, *top;
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(),
           *offsets = json_array();
    size_t i, k;
    json_array_foreach(all, i, one) {
        json_t *likeliest = json_object();
        json_array_append(tokens, json_object_get(one, "token"));
        json_array_append(values, json_object_get(one, "logprob"));
        json_array_append_new(offsets, json_integer((json_int_t)ch->text_at));
        ch->text_at += (int64_t)json_string_length(json_object_get(one, "token"));
        json_array_foreach(json_object_get(one, "top_logprobs"), k, top) {
            const char *token = json_string_value(json_object_get(top, "token"));
            if (token) json_object_set(likeliest, token, json_object_get(top, "logprob"));
        }
        json_array_append_new(tops, likeliest);
    }
    json_t *v = json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values,
                          "top_logprobs", tops, "text_offset", offsets);
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    km_text_printf(t, ",\"logprobs\":%s", text ? text : "null");
    free(text);
    json_decref(v);
    json_decref(all);
    km_text_free(&list);
}

static void put_completion(km_api_choice *ch, km_text *t, const char *text, size_t n,
                           const char *finish) {
    const km_api_call *c = ch->call;
    const km_prompt *p = &c->prompts[ch->index / c->n];
    km_text_printf(t, "{\"index\":%d,\"text\":", ch->index);
    if (c->echo && p->text && !ch->begun) {
        km_text both = {0};
        km_text_add(&both, p->text);
        km_text_put(&both, text, n);
        km_put_string(t, km_text_str(&both), both.len);
        km_text_free(&both);
    } else {
        km_put_string(t, text, n);
    }
    ch->begun = true;
    put_old_logprobs(ch, t);
    if (finish)
        km_text_printf(t, ",\"finish_reason\":\"%s\"}", finish);
    else
        km_text_add(t, ",\"finish_reason\":null}");
}

static void completion_part(km_api_choice *ch, const km_answer_part *p) {
    km_text *t = chunk(ch->call, "text_completion");
    km_text_add(t, ",\"choices\":[");
    put_completion(ch, t, p->text, p->bytes, NULL);
    km_text_add(t, "]");
    send_chunk(ch->call, t);
}

static void completion_end_choice(km_api_choice *ch) {
    km_text *t = chunk(ch->call, "text_completion");
    km_text_add(t, ",\"choices\":[");
    put_completion(ch, t, "", 0, finish_reason(ch));
    km_text_add(t, "]");
    send_chunk(ch->call, t);
}

static void completion_whole(km_api_call *c, km_text *t) {
    put_head(c, t, "text_completion");
    km_text_add(t, ",\"choices\":[");
    for (int i = 0; i < c->n_choices; i++) {
        km_api_choice *ch = &c->choices[i];
        if (i) km_text_add(t, ",");
        put_completion(ch, t, km_text_str(&ch->content), ch->content.len, finish_reason(ch));
    }
    km_text_add(t, "],\"usage\":");
    put_usage(c, t);
    km_text_add(t, "}\n");
}

/* ---- Errors ---- */

static void put_error(km_text *t, int status, const char *param, const char *message, bool stream) {
    km_text_add(t, stream ? "data: {\"error\":{\"message\":" : "{\"error\":{\"message\":");
    km_put_string0(t, message);
    km_text_printf(t, ",\"type\":\"%s\",\"param\":", km_error_type(status));
    if (param)
        km_put_string0(t, param);
    else
        km_text_add(t, "null");
    km_text_printf(t, ",\"code\":%d}}%s", status, stream ? "\n\n" : "\n");
}

const km_dialect km_dialect_chat = {.name = "openai",
                                    .stream_type = "text/event-stream",
                                    .beat = ": ping\n\n",
                                    .read = read_chat,
                                    .part = chat_part,
                                    .end_choice = chat_end_choice,
                                    .end = end_stream,
                                    .whole = chat_whole,
                                    .error = put_error};
const km_dialect km_dialect_completions = {.name = "openai",
                                           .stream_type = "text/event-stream",
                                           .beat = ": ping\n\n",
                                           .read = read_completion,
                                           .part = completion_part,
                                           .end_choice = completion_end_choice,
                                           .end = end_stream,
                                           .whole = completion_whole,
                                           .error = put_error};
