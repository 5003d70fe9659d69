/* Saved sessions: what a model has read of a conversation, kept on disk under a name, to go on from after a
 * restart or when it has long left the caches. Each key has a folder of its own. A session is two files:
 * NAME.session (docs/formats/session.md) and NAME.json, which tells about it and is written last. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST = 64, MOST_SESSIONS = 1000 };

typedef struct km_session_state {
    char name[LONGEST + 1];
    char path[4096]; /* of the .session */
    int64_t tokens;
} km_session_state;

static bool is_name(const char *s) {
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n > 0 && n <= LONGEST && !s[n] && s[0] != '.';
}

/* The folder of a key, or with a name a file in it; false: too long. */
static bool path_of(const km_serve *s, uint64_t key, const char *name, const char *end, char *out,
                    size_t size) {
    int n = snprintf(out, size, "%s/%016llx%s%s%s", s->o.sessions, (unsigned long long)key,
                     name ? "/" : "", name ? name : "", end);
    return n > 0 && (size_t)n < size;
}

/* What is told about it; NULL: there is none. */
static json_t *describe(const km_serve *s, uint64_t key, const char *name) {
    char path[4200];
    struct stat st;
    if (!is_name(name) || !path_of(s, key, name, ".session", path, sizeof path) ||
        stat(path, &st) != 0 || !path_of(s, key, name, ".json", path, sizeof path))
        return NULL;
    json_t *v = json_load_file(path, 0, NULL);
    const json_t *model = json_object_get(v, "model"), *tokens = json_object_get(v, "tokens");
    json_t *out = NULL;
    if (json_is_string(model) && json_is_integer(tokens))
        out = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:O*}", "object", "session", "session",
                        name, "model", json_string_value(model), "tokens",
                        json_integer_value(tokens), "bytes", (json_int_t)st.st_size, "created",
                        (json_int_t)st.st_mtime, "adapters", json_object_get(v, "adapters"));
    json_decref(v);
    return out;
}

static bool is_json_file(const char *name) {
    size_t n = strlen(name);
    return n > 5 && n <= LONGEST + 5 && strcmp(name + n - 5, ".json") == 0 && name[0] != '.';
}

static int keep_json(const struct dirent *e) { return is_json_file(e->d_name); }

static json_t *list(const km_serve *s, uint64_t key) {
    char path[4200];
    struct dirent **all = NULL;
    json_t *out = json_array();
    int n = path_of(s, key, NULL, "", path, sizeof path) ? scandir(path, &all, keep_json, alphasort)
                                                         : 0;
    for (int i = 0; i < n; i++) {
        all[i]->d_name[strlen(all[i]->d_name) - 5] = '\0';
        json_t *one = describe(s, key, all[i]->d_name);
        if (one) json_array_append_new(out, one);
        free(all[i]);
    }
    free(all);
    return out;
}

/* ---- GET /v1/sessions, GET and DELETE /v1/sessions/NAME ---- */

void km_endpoint_sessions(km_serve *s, km_exchange *x, const char *name, const km_key *key) {
    uint64_t owner = key ? key->number : 0;
    bool gone = strcmp(km_exchange_request(x)->method, "DELETE") == 0;
    char path[4200];
    if (!s->o.sessions) {
        km_send_error(x, NULL, 501, NULL,
                      "sessions are not kept here: the server was started without --sessions DIR");
        return;
    }
    if (!name) {
        km_send_json(x, 200, json_pack("{s:s, s:o}", "object", "list", "data", list(s, owner)));
        return;
    }
    json_t *one = describe(s, owner, name);
    if (!one) {
        km_send_error(x, NULL, 404, "session", "there is no such session");
        return;
    }
    if (!gone) {
        km_send_json(x, 200, one);
        return;
    }
    json_decref(one);
    bool ok = path_of(s, owner, name, ".json", path, sizeof path) && unlink(path) == 0 &&
              path_of(s, owner, name, ".session", path, sizeof path) && unlink(path) == 0;
    if (ok)
        km_send_json(
            x, 200,
            json_pack("{s:s, s:s, s:b}", "object", "session", "session", name, "deleted", 1));
    else
        km_send_error(x, NULL, 500, "session", "this session cannot be deleted");
}

/* ---- POST /v1/sessions/save and /v1/sessions/restore ---- */

static km_status read_name(km_api_call *c, km_error *err) {
    const char *name = json_string_value(json_object_get(c->request, "session"));
    km_session_state *st = km_calloc(1, sizeof *st);
    if (!st) return km_no_memory(err);
    c->state = st;
    c->free_state = km_free;
    if (!c->serve->o.sessions)
        return km_call_refuse(
            c, 501, NULL,
            "sessions are not kept here: the server was started without --sessions DIR");
    if (!name || !is_name(name))
        return km_call_refuse(
            c, 400, "session",
            "'session' is a name of up to %d letters, digits, dots, dashes and underscores",
            LONGEST);
    snprintf(st->name, sizeof st->name, "%s", name);
    if (!path_of(c->serve, c->key.number, name, ".session", st->path, sizeof st->path))
        return km_call_refuse(c, 500, NULL, "the folder's path is too long");
    return KM_OK;
}

static km_status make_folder(km_api_call *c) {
    char path[4200];
    if (!path_of(c->serve, c->key.number, NULL, "", path, sizeof path) ||
        (mkdir(path, 0700) != 0 && errno != EEXIST))
        return km_call_refuse(c, 500, NULL, "cannot keep sessions: %s", strerror(errno));
    return KM_OK;
}

/* The conversation is read like any other, for one token that nobody sees, and what was read is kept. */
static km_status read_save(km_api_call *c, km_error *err) {
    json_t *messages = json_object_get(c->request, "messages"),
           *prompt = json_object_get(c->request, "prompt");
    if (read_name(c, err) != KM_OK) return KM_ERR_RANGE;
    km_session_state *st = c->state;
    json_t *known = describe(c->serve, c->key.number, st->name),
           *all = known ? NULL : list(c->serve, c->key.number);
    bool full = all && json_array_size(all) >= MOST_SESSIONS;
    json_decref(known);
    json_decref(all);
    if (full)
        return km_call_refuse(c, 400, "session", "there are %d sessions already: delete some",
                              MOST_SESSIONS);
    if (make_folder(c) != KM_OK || km_fields_sampling(c) != KM_OK) return KM_ERR_RANGE;
    km_status s;
    if (json_is_array(messages)) {
        if (km_fields_tools(c, json_object_get(c->request, "tools"), NULL) != KM_OK ||
            km_fields_messages(c, messages) != KM_OK)
            return KM_ERR_RANGE;
        s = km_call_prompt_chat(c, err);
    } else if (json_is_string(prompt)) {
        s = km_call_prompt_text(c, json_string_value(prompt), json_string_length(prompt), err);
    } else if (json_is_array(prompt)) {
        s = km_call_prompt_ids(c, prompt, err);
    } else {
        return km_call_refuse(c, 400, "messages",
                              "'messages' or 'prompt' says what the session holds");
    }
    c->chat = false;
    c->how.max_tokens = c->n = 1;
    c->how.schema = c->how.grammar = NULL;
    c->save_to = st->path;
    return s;
}

/* Those that a call chose, as a session's file and a request have them. */
static json_t *adapters_of(const km_api_call *c) {
    json_t *all = json_array();
    for (int64_t i = 0; i < c->how.n_adapters; i++)
        json_array_append_new(all, json_pack("{s:s, s:f}", "name", c->adapters[i].name, "scale",
                                             (double)(float)c->adapters[i].scale));
    return all;
}

/* A session is restored with the adapters that read it: its own where the request chooses none. */
static km_status check_adapters(km_api_call *c, const json_t *session, km_error *err) {
    const json_t *own = json_object_get(session, "adapters");
    if (own && c->how.n_adapters <= 0 && !json_object_get(c->request, "adapters") &&
        !json_object_get(c->request, "lora")) {
        if (json_object_set(c->request, "adapters", (json_t *)(uintptr_t)own) != 0)
            return km_no_memory(err);
        if (km_call_adapters(c) != KM_OK) return KM_ERR_RANGE;
    }
    json_t *none = json_array(), *chosen = adapters_of(c);
    bool same = json_equal(chosen, own ? own : none);
    json_decref(none);
    json_decref(chosen);
    return same ? KM_OK
                : km_call_refuse(
                      c, 400, "adapters",
                      "the session was read with other adapters; /v1/sessions tells them");
}

static km_status read_restore(km_api_call *c, km_error *err) {
    if (read_name(c, err) != KM_OK) return KM_ERR_RANGE;
    km_session_state *st = c->state;
    json_t *v = describe(c->serve, c->key.number, st->name);
    if (!v) return km_call_refuse(c, 404, "session", "there is no session '%s'", st->name);
    const char *model = json_string_value(json_object_get(v, "model"));
    if (strcmp(model, c->served->name) != 0)
        km_call_refuse(c, 400, "model", "the session '%s' is of the model '%.100s'", st->name,
                       model);
    km_status s = c->status ? KM_ERR_RANGE : check_adapters(c, v, err);
    json_decref(v);
    if (s != KM_OK) return s;
    /* A prompt that is not read: it stands for what the file holds. */
    c->prompts = km_calloc(1, sizeof *c->prompts);
    if (c->prompts) c->prompts[0].ids = km_calloc(1, sizeof *c->prompts[0].ids);
    if (!c->prompts || !c->prompts[0].ids) return km_no_memory(err);
    c->n_prompts = 1;
    c->prompts[0].n = 1;
    c->restore_from = st->path;
    return KM_OK;
}

static bool write_about(const km_api_call *c, const char *name, int64_t tokens) {
    char path[4200], fresh[4200];
    json_t *v = json_pack("{s:s, s:I}", "model", c->served->name, "tokens", (json_int_t)tokens);
    if (v && c->how.n_adapters > 0) json_object_set_new(v, "adapters", adapters_of(c));
    bool ok = v && path_of(c->serve, c->key.number, name, ".json", path, sizeof path) &&
              path_of(c->serve, c->key.number, name, ".new", fresh, sizeof fresh) &&
              json_dump_file(v, fresh, JSON_COMPACT) == 0 && rename(fresh, path) == 0;
    json_decref(v);
    return ok;
}

static void whole(km_api_call *c, km_text *t) {
    const km_session_state *st = c->state;
    int64_t tokens = c->choices[0].task.held;
    bool ok = c->restore_from || write_about(c, st->name, tokens);
    km_text_add(t, "{\"object\":\"session\",\"session\":");
    km_put_string0(t, st->name);
    km_text_add(t, ",\"model\":");
    km_put_string0(t, c->served->name);
    km_text_printf(t, ",\"tokens\":%lld,\"%s\":%s}\n", (long long)tokens,
                   c->restore_from ? "restored" : "saved", ok ? "true" : "false");
}

static void put_error(km_text *t, int status, const char *param, const char *message, bool stream) {
    km_dialect_chat.error(t, status, param, message, stream);
}

const km_dialect km_dialect_session_save = {
    .name = "kermes", .read = read_save, .whole = whole, .error = put_error};
const km_dialect km_dialect_session_restore = {
    .name = "kermes", .read = read_restore, .whole = whole, .error = put_error};
