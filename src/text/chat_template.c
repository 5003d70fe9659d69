/* Finds the template of a model, and renders conversations with it. */
#include "text/chat_template.h"
#include "base/alloc.h"
#include "base/file.h"
#include "format/gguf.h"
#include "base/json_read.h"
#include "text/chat_builtin.h"
#include "text/jinja.h"
#include "base/utf8.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct km_chat_template {
    const km_chat_builtin *builtin; /* one or the other */
    km_jinja *jinja;
};

static km_chat_template *make(const km_chat_builtin *builtin, km_jinja *jinja, km_error *err) {
    km_chat_template *t = builtin || jinja ? km_calloc(1, sizeof *t) : NULL;
    if (t) {
        *t = (km_chat_template){builtin, jinja};
        return t;
    }
    if (builtin || jinja)
        km_error_set(err, KM_ERR_MEMORY, "cannot read a chat template: out of memory");
    km_jinja_free(jinja);
    return NULL;
}

km_chat_template *km_chat_template_parse(const char *text, size_t bytes, const char *name,
                                         km_error *err) {
    return make(NULL, km_jinja_parse(text, bytes, name ? name : "chat template", err), err);
}

km_chat_template *km_chat_template_named(const char *name, km_error *err) {
    const km_chat_builtin *b = name ? km_chat_builtin_find(name) : NULL;
    if (b) return make(b, NULL, err);
    km_text known = {0};
    const char *other;
    for (size_t i = 0; (other = km_chat_template_builtin(i, NULL)); i++)
        km_text_printf(&known, "%s%s", i ? ", " : "", other);
    km_error_set(err, KM_ERR_RANGE, "there is no chat template '%.60s'; there are %s",
                 name ? name : "", km_text_str(&known));
    km_text_free(&known);
    return NULL;
}

void km_chat_template_free(km_chat_template *t) {
    if (!t) return;
    km_jinja_free(t->jinja);
    km_free(t);
}

/* ---- From a model's files ---- */

static void *without(const char *path, km_error *err) {
    km_error_set(err, KM_ERR_STATE, "'%s' has no chat template", path);
    return NULL;
}

static km_chat_template *from_gguf(const char *path, km_error *err) {
    km_gguf *g = km_gguf_open(path, err);
    if (!g) return NULL;
    const km_gguf_value *v = km_gguf_get(g, "tokenizer.chat_template");
    km_chat_template *t = NULL;
    if (v && v->type == KM_GGUF_STRING && v->text.size)
        t = km_chat_template_parse(v->text.data, v->text.size, "chat template", err);
    else
        without(path, err);
    km_gguf_close(g);
    return t;
}

/* A template as JSON holds it: a string, or a list of {"name", "template"} with one "default". */
static const json_t *template_of(const json_t *config) {
    const json_t *v = json_object_get(config, "chat_template");
    if (!json_is_array(v)) return json_is_string(v) ? v : NULL;
    const json_t *found = NULL;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *entry = json_array_get(v, i), *text = json_object_get(entry, "template");
        const char *name = json_string_value(json_object_get(entry, "name"));
        bool chosen = name && strcmp(name, "default") == 0;
        if (json_is_string(text) && (chosen || !found)) found = text;
        if (chosen) break;
    }
    return found;
}

static km_chat_template *from_json(const char *path, km_error *err) {
    json_t *config = km_json_load(path, err);
    if (!config) return NULL;
    const json_t *text = template_of(config);
    km_chat_template *t = NULL;
    if (text)
        t = km_chat_template_parse(json_string_value(text), json_string_length(text),
                                   "chat template", err);
    else
        without(path, err);
    json_decref(config);
    return t;
}

static km_chat_template *from_text(const char *path, km_error *err) {
    km_map m;
    if (km_map_open(&m, path, err) != KM_OK) return NULL;
    const char *slash = strrchr(path, '/');
    km_chat_template *t =
        km_chat_template_parse((const char *)m.data, m.size, slash ? slash + 1 : path, err);
    km_map_close(&m);
    return t;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static km_chat_template *from_folder(const char *path, km_error *err) {
    static const char *const files[] = {"chat_template.jinja", "chat_template.json",
                                        "tokenizer_config.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char file[PATH_MAX];
        struct stat st;
        int n = snprintf(file, sizeof file, "%s/%s", path, files[i]);
        if (n >= (int)sizeof file || stat(file, &st) != 0) continue;
        return i == 0 ? from_text(file, err) : from_json(file, err);
    }
    return without(path, err);
}

km_chat_template *km_chat_template_load(const char *path, km_error *err) {
    struct stat st;
    if (!path) {
        km_error_set(err, KM_ERR_NULL, "no chat template given");
        return NULL;
    }
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return from_folder(path, err);
    if (ends_with(path, ".gguf")) return from_gguf(path, err);
    return ends_with(path, ".json") ? from_json(path, err) : from_text(path, err);
}

/* ---- Rendering ---- */

static bool set(json_t *o, const char *key, json_t *value) {
    return value && json_object_set_new(o, key, value) == 0;
}

static json_t *shared(const json_t *v) { return json_incref((json_t *)(uintptr_t)v); }

/* What a template can read. The values are those of the caller, counted once more. */
static json_t *variables(const json_t *messages, const km_chat_options *o, km_error *err) {
    json_t *v = json_object();
    bool ok = v != NULL;
    json_t *more = (json_t *)(uintptr_t)o->more; /* iteration takes it as mutable */
    ok = ok && set(v, "tools", o->tools ? shared(o->tools) : json_null());
    ok = ok && set(v, "documents", json_null());
    ok = ok && set(v, "add_generation_prompt", json_boolean(!o->complete));
    ok = ok && (!o->bos || set(v, "bos_token", json_string(o->bos)));
    ok = ok && (!o->eos || set(v, "eos_token", json_string(o->eos)));
    if (ok && o->thinking)
        ok = set(v, "enable_thinking", json_boolean(o->thinking == KM_THINKING_ON));
    for (void *it = json_object_iter(more); ok && it; it = json_object_iter_next(more, it))
        ok = set(v, json_object_iter_key(it), json_incref(json_object_iter_value(it)));
    ok = ok && set(v, "messages", shared(messages));
    if (ok) return v;
    json_decref(v);
    km_error_set(err, KM_ERR_MEMORY, "cannot write a conversation: out of memory");
    return NULL;
}

/* The conversation with its first system message in front of the first question. */
static json_t *folded(const json_t *messages) {
    const json_t *first = json_array_get(messages, 0), *second = json_array_get(messages, 1);
    const char *role = json_string_value(json_object_get(first, "role"));
    const char *about = json_string_value(json_object_get(first, "content"));
    const char *next = json_string_value(json_object_get(second, "role"));
    const char *text = json_string_value(json_object_get(second, "content"));
    if (!role || strcmp(role, "system") != 0 || !about || !next || strcmp(next, "user") != 0 ||
        !text)
        return NULL;
    json_t *copy = json_copy((json_t *)(uintptr_t)messages);
    json_t *question = json_copy((json_t *)(uintptr_t)second);
    json_t *both = json_sprintf("%s\n\n%s", about, text);
    bool ok = copy && question && both && json_object_set(question, "content", both) == 0 &&
              json_array_set(copy, 1, question) == 0 && json_array_remove(copy, 0) == 0;
    json_decref(question);
    json_decref(both);
    if (ok) return copy;
    json_decref(copy);
    return NULL;
}

static km_status render(const km_jinja *t, const json_t *messages, const km_chat_options *o,
                        km_text *out, km_error *err) {
    json_t *v = variables(messages, o, err);
    if (!v) return KM_ERR_MEMORY;
    km_jinja_limits limits = {.now = o->now};
    km_status status = km_jinja_render(t, v, &limits, out, err);
    json_decref(v);
    return status;
}

km_status km_chat_render_json(const km_chat_template *t, const json_t *messages,
                              const km_chat_options *options, km_text *out, km_error *err) {
    static const km_chat_options usual = {0};
    const km_chat_options *o = options ? options : &usual;
    if (!t || !out) return km_error_set(err, KM_ERR_NULL, "no chat template given");
    if (!json_is_array(messages)) return km_error_set(err, KM_ERR_FORMAT, "messages are an array");
    if (t->builtin) return km_chat_builtin_render(t->builtin, messages, o, out, err);
    km_error first = {0};
    km_status status = render(t->jinja, messages, o, out, &first);
    json_t *other = status == KM_ERR_STATE && o->fold_system ? folded(messages) : NULL;
    if (other) {
        km_error second = {0};
        status = render(t->jinja, other, o, out, &second);
        json_decref(other);
    }
    return status == KM_OK ? KM_OK : km_error_set(err, first.code, "%s", first.text);
}

km_status km_chat_render(const km_chat_template *t, const km_message *messages, size_t n,
                         const km_chat_options *options, km_text *out, km_error *err) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++) {
        const km_message *m = &messages[i];
        size_t bytes = m->content ? strlen(m->content) : 0;
        if (!m->role || !m->content || km_utf8_valid(m->content, bytes) < bytes) {
            json_decref(list);
            return km_error_set(err, KM_ERR_FORMAT,
                                "message %zu is not valid UTF-8 text with a role", i + 1);
        }
        json_t *o = json_object();
        if (!o || !set(o, "role", json_string(m->role)) ||
            !set(o, "content", json_stringn_nocheck(m->content, bytes)) ||
            json_array_append(list, o) != 0) {
            json_decref(list);
            list = NULL;
        }
        json_decref(o);
    }
    if (!list)
        return km_error_set(err, KM_ERR_MEMORY, "cannot write a conversation: out of memory");
    km_status status = km_chat_render_json(t, list, options, out, err);
    json_decref(list);
    return status;
}

bool km_chat_template_thinks(const km_chat_template *t) {
    if (!t) return false;
    return t->builtin ? t->builtin->no_thought != NULL
                      : km_jinja_reads(t->jinja, "enable_thinking");
}
