/* Conversations in memory and in files. Files may come from anywhere: everything is checked before
 * any of it is taken. */
#include "cli/chat_talk.h"
#include "base/file.h"
#include "cli/use_model.h"
#include <string.h>

#define MOST_BYTES ((size_t)64 << 20)
#define FORMAT "kermes conversation"

static km_status no_memory(km_error *err) {
    return km_error_set(err, KM_ERR_MEMORY, "the conversation does not fit in memory");
}

km_status km_talk_begin(km_talk *t, km_error *err) {
    t->messages = json_array();
    return t->messages ? KM_OK : no_memory(err);
}

void km_talk_end(km_talk *t) {
    json_decref(t->messages);
    t->messages = NULL;
}

static const char *role_at(const km_talk *t, size_t i) {
    const char *role = json_string_value(json_object_get(json_array_get(t->messages, i), "role"));
    return role ? role : "";
}

static bool has_system(const km_talk *t) { return strcmp(role_at(t, 0), "system") == 0; }

km_status km_talk_system(km_talk *t, const char *text, km_error *err) {
    if (has_system(t)) json_array_remove(t->messages, 0);
    if (!text || !*text) return KM_OK;
    json_t *m = km_cli_message("system", text, strlen(text));
    return json_array_insert_new(t->messages, 0, m) == 0 ? KM_OK : no_memory(err);
}

const char *km_talk_get_system(const km_talk *t) {
    return has_system(t)
               ? json_string_value(json_object_get(json_array_get(t->messages, 0), "content"))
               : NULL;
}

km_status km_talk_add(km_talk *t, const char *role, const char *text, size_t bytes, km_error *err) {
    json_t *m = km_cli_message(role, text, bytes);
    return json_array_append_new(t->messages, m) == 0 ? KM_OK : no_memory(err);
}

size_t km_talk_questions(const km_talk *t) {
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(t->messages); i++)
        n += strcmp(role_at(t, i), "user") == 0;
    return n;
}

bool km_talk_ends_with(const km_talk *t, const char *role) {
    size_t n = json_array_size(t->messages);
    return n > 0 && strcmp(role_at(t, n - 1), role) == 0;
}

void km_talk_drop_last(km_talk *t) {
    size_t n = json_array_size(t->messages);
    if (n > 0) json_array_remove(t->messages, n - 1);
}

void km_talk_clear(km_talk *t) {
    size_t keep = has_system(t);
    while (json_array_size(t->messages) > keep) km_talk_drop_last(t);
}

bool km_talk_drop_oldest(km_talk *t) {
    size_t at = has_system(t);
    if (km_talk_questions(t) < 2) return false;
    do json_array_remove(t->messages, at);
    while (strcmp(role_at(t, at), "user") != 0);
    return true;
}

/* ---- Files ---- */

km_status km_talk_save(const km_talk *t, const char *path, const char *model, km_error *err) {
    const char *name = strrchr(model, '/');
    json_t *v = json_pack("{s:s, s:i, s:s*, s:O}", "format", FORMAT, "version", 1, "model",
                          name ? name + 1 : model, "messages", t->messages);
    char *text = v ? json_dumps(v, JSON_INDENT(2)) : NULL;
    json_decref(v);
    if (!text) return no_memory(err);
    km_writer *w = km_writer_open(path, err);
    km_status s = w ? KM_OK : err->code;
    if (w) {
        km_writer_put(w, text, strlen(text));
        km_writer_put(w, "\n", 1);
        s = km_writer_commit(w, err);
    }
    free(text);
    return s;
}

static km_status check(const char *path, const json_t *messages, km_error *err) {
    const char *before = "";
    bool calls = false; /* the message before this one calls tools, or answers a call */
    size_t n = json_array_size(messages);
    if (!json_is_array(messages))
        return km_error_set(err, KM_ERR_FORMAT,
                            "%.200s is no conversation: it has no list of messages", path);
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        const json_t *content = json_object_get(m, "content");
        size_t more = (json_object_get(m, "tool_calls") != NULL) +
                      (json_object_get(m, "name") != NULL) +
                      (json_object_get(m, "tool_call_id") != NULL);
        if (!role || !json_is_string(content) || json_object_size(m) != 2 + more)
            return km_error_set(err, KM_ERR_FORMAT,
                                "%.200s: message %zu is not a role and a content", path, i + 1);
        if (strlen(json_string_value(content)) != json_string_length(content))
            return km_error_set(err, KM_ERR_FORMAT, "%.200s: message %zu has a NUL in it", path,
                                i + 1);
        bool system = strcmp(role, "system") == 0, user = strcmp(role, "user") == 0;
        bool tool = strcmp(role, "tool") == 0, after_tool = strcmp(before, "tool") == 0;
        if (!system && !user && !tool && strcmp(role, "assistant") != 0)
            return km_error_set(err, KM_ERR_FORMAT,
                                "%.200s: message %zu is of '%.40s'; there are system, user, "
                                "assistant and tool",
                                path, i + 1, role);
        bool first = i == 0 || strcmp(before, "system") == 0;
        bool fits = system  ? i == 0
                    : first ? user
                    : tool  ? after_tool || (strcmp(before, "assistant") == 0 && calls)
                            : strcmp(role, before) != 0;
        calls = json_is_array(json_object_get(m, "tool_calls")) || (tool && calls);
        if (!fits)
            return km_error_set(
                err, KM_ERR_FORMAT,
                "%.200s: message %zu is of '%s' after '%s'; user and assistant take "
                "turns",
                path, i + 1, role, *before ? before : "nobody");
        before = role;
    }
    if (strcmp(before, "user") == 0)
        return km_error_set(err, KM_ERR_FORMAT, "%.200s ends with a question that has no answer",
                            path);
    return KM_OK;
}

km_status km_talk_load(km_talk *t, const char *path, km_error *err) {
    km_map map = {0};
    km_status s = km_map_open(&map, path, err);
    if (s != KM_OK) return s;
    json_t *v = NULL;
    if (map.size > MOST_BYTES) {
        s = km_error_set(err, KM_ERR_FORMAT, "%.200s is larger than %zu MiB and no conversation",
                         path, MOST_BYTES >> 20);
    } else {
        json_error_t where;
        v = json_loadb(map.data ? (const char *)map.data : "", map.size,
                       JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
        if (!v)
            s = km_error_set(err, KM_ERR_FORMAT, "%.200s is no JSON: %s (line %d, column %d)", path,
                             where.text, where.line, where.column);
    }
    s = km_map_done(&map, s, err);
    if (s != KM_OK) {
        json_decref(v);
        return s;
    }
    const char *format = json_string_value(json_object_get(v, "format"));
    json_t *messages = json_object_get(v, "messages");
    if (!format || strcmp(format, FORMAT) != 0)
        s = km_error_set(err, KM_ERR_FORMAT, "%.200s is no conversation that /save wrote", path);
    else if (json_integer_value(json_object_get(v, "version")) != 1)
        s = km_error_set(err, KM_ERR_UNSUPPORTED,
                         "%.200s is a conversation of a version that this Kermes does not know",
                         path);
    else
        s = check(path, messages, err);
    if (s == KM_OK) {
        json_decref(t->messages);
        t->messages = json_incref(messages);
    }
    json_decref(v);
    return s;
}
