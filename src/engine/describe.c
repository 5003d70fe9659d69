/* Finding out what a file or folder is and what it holds. */
#include "engine/describe.h"
#include "base/file.h"
#include "base/sized.h"
#include "base/json_read.h"
#include "format/row_layout.h"
#include "report/json.h"
#include "train/checkpoint.h"
#include "train/tokens.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool exists(const char *folder, const char *name, char *path) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX) return false;
    return access(path, F_OK) == 0;
}

bool km_run_folder(const char *path, char *out) {
    char file[PATH_MAX];
    static const char *const names[] = {"model", "best"};
    if (exists(path, "config.json", file)) return false;
    for (int i = 0; i < 2; i++) {
        if (snprintf(out, PATH_MAX, "%s/%s", path, names[i]) >= PATH_MAX) return false;
        if (exists(out, "config.json", file)) return true;
    }
    int64_t step = km_checkpoint_latest(path);
    return step >= 0 && snprintf(out, PATH_MAX, "%s/step-%lld", path, (long long)step) < PATH_MAX;
}

/* ---- Files ---- */

static json_t *gather_safetensors(const char *path, const km_describe_options *o, km_error *err) {
    km_safetensors *f = km_safetensors_open(path, err);
    if (!f) return NULL;
    json_t *v = km_info_safetensors(f, o->tensors);
    json_object_set_new(v, "kind", json_string("safetensors"));
    km_safetensors_close(f);
    return v;
}

static json_t *gather_gguf(const char *path, const km_describe_options *o, km_error *err) {
    km_gguf *g = km_gguf_open(path, err);
    if (!g) return NULL;
    json_t *v = km_info_gguf(g, o);
    json_object_set_new(v, "kind", json_string("gguf"));
    km_gguf_close(g);
    return v;
}

static json_t *gather_json(const char *path, const km_describe_options *o, km_error *err) {
    json_t *file = km_json_load(path, err);
    if (!file) return NULL;
    json_t *v = NULL;
    if (json_object_get(file, "weight_map")) {
        v = gather_safetensors(path, o, err);
    } else if (json_is_object(json_object_get(file, "model")) ||
               json_object_get(file, "added_tokens")) {
        json_t *token = km_info_tokenizer(path, err);
        if (token) v = json_pack("{s:s, s:o}", "kind", "tokenizer", "tokenizer", token);
    } else if (json_object_get(file, "parts") && json_object_get(file, "format")) {
        v = km_info_index(path, o, err);
    } else if (json_object_get(file, "model_type")) {
        v = json_pack("{s:s, s:o}", "kind", "config", "model", km_info_config(path, file, o));
    } else {
        km_error_set(err, KM_ERR_FORMAT,
                     "'%s' is JSON, but no tokenizer.json, config.json or safetensors index", path);
    }
    json_decref(file);
    return v;
}

static json_t *gather_tokens(const char *path, km_error *err) {
    km_tokens t;
    if (km_tokens_open(&t, path, err) != KM_OK) return NULL;
    json_t *sources = json_array();
    for (int i = 0; i < t.meta.n_sources; i++)
        json_array_append_new(sources, km_json_text(t.meta.sources[i].path));
    json_t *v = json_pack("{s:s, s:{s:o, s:I, s:i, s:o}}", "kind", "tokens", "text", "count",
                          km_json_count((double)t.count), "vocab", (json_int_t)t.meta.vocab,
                          "bytes_per_token", t.width, "sources", sources);
    km_tokens_close(&t);
    return v;
}

static bool ends(const char *path, const char *end) {
    size_t n = strlen(path), m = strlen(end);
    return n > m && strcmp(path + n - m, end) == 0;
}

static json_t *gather_file(const char *path, const km_describe_options *o, km_error *err) {
    km_map m;
    if (km_map_open(&m, path, err) != KM_OK) return NULL;
    enum { UNKNOWN, GGUF, SAFETENSORS, JSON, INDEX, ROWS } kind = UNKNOWN;
    size_t first = 0;
    while (first < m.size && first < 64 && strchr(" \t\r\n", m.data[first])) first++;
    if (m.size >= 4 && memcmp(m.data, "GGUF", 4) == 0)
        kind = GGUF;
    else if (m.size >= 8 && memcmp(m.data, "KMXINDEX", 8) == 0)
        kind = INDEX;
    else if (km_npy_is(m.data, m.size) || ends(path, ".fvecs") || ends(path, ".bvecs") ||
             ends(path, ".ivecs") || (km_idx_is(m.data, m.size) && !ends(path, ".safetensors")))
        kind = ROWS;
    else if ((m.size > 8 && m.data[8] == '{' && !m.data[7] && !m.data[6]) ||
             ends(path, ".safetensors"))
        kind = SAFETENSORS;
    else if (first < m.size && m.data[first] == '{')
        kind = JSON;
    bool empty = m.size == 0;
    km_map_close(&m);
    if (km_tokens_is(path)) return gather_tokens(path, err);
    if (kind == GGUF) return gather_gguf(path, o, err);
    if (kind == SAFETENSORS) return gather_safetensors(path, o, err);
    if (kind == JSON) return gather_json(path, o, err);
    if (kind == INDEX) return km_info_index(path, o, err);
    if (kind == ROWS) return km_info_rows(path, err);
    km_error_set(err, KM_ERR_FORMAT,
                 "'%s' is %s; Kermes knows safetensors, GGUF, tokenizer.json, config.json, token "
                 "files, npy, fvecs, IDX, indexes, Hugging Face folders, checkpoints and training "
                 "runs",
                 path, empty ? "empty" : "no file that Kermes knows");
    return NULL;
}

/* ---- Folders ---- */

/* A checkpoint's state, as far as it is of interest; NULL: it has none. */
static json_t *gather_state(const char *folder, km_error *err) {
    char path[PATH_MAX];
    static const char *const keys[] = {"step",      "train_loss", "val_loss", "best_val",
                                       "best_step", "tokens",     "seconds",  "kermes"};
    if (!exists(folder, "state.json", path)) return NULL;
    json_t *state = km_json_load(path, err), *v = state ? json_object() : NULL;
    for (size_t i = 0; v && i < sizeof keys / sizeof *keys; i++) {
        json_t *item = json_object_get(state, keys[i]);
        if (item) json_object_set(v, keys[i], item);
    }
    json_decref(state);
    return v;
}

static json_t *gather_model(const char *folder, const km_describe_options *o, km_error *err) {
    char path[PATH_MAX], index[PATH_MAX];
    bool weights = exists(folder, "model.safetensors", path) ||
                   exists(folder, "model.safetensors.index.json", index);
    json_t *v = weights ? gather_safetensors(folder, o, err) : json_object();
    if (!v) return NULL;
    json_object_set_new(v, "kind", json_string("folder"));
    exists(folder, "config.json", path);
    json_t *config = km_json_load(path, err);
    if (config) json_object_set_new(v, "model", km_info_config(path, config, o));
    json_decref(config);
    if (config && exists(folder, "tokenizer.json", path)) {
        /* One that Kermes cannot use does not make the model a bad one. */
        km_error why = {0};
        json_t *token = km_info_tokenizer(path, &why);
        if (!token) token = json_pack("{s:o}", "unsupported", km_json_text(why.text));
        json_object_set_new(v, "tokenizer", token);
    }
    json_t *state = config ? gather_state(folder, err) : NULL;
    if (state) {
        json_object_set_new(v, "kind", json_string("checkpoint"));
        json_object_set_new(v, "state", state);
    }
    if (err->code == KM_OK) return v;
    json_decref(v);
    return NULL;
}

static json_t *gather_folder(const char *path, const km_describe_options *o, km_error *err) {
    char file[PATH_MAX], inner[PATH_MAX];
    if (exists(path, "config.json", file)) return gather_model(path, o, err);
    if (km_run_folder(path, inner)) {
        json_t *v = gather_model(inner, o, err);
        if (!v) return NULL;
        json_object_set_new(v, "kind", json_string("run"));
        json_object_set_new(v, "folder", km_json_text(inner));
        int64_t step = km_checkpoint_latest(path);
        if (step >= 0) json_object_set_new(v, "latest_checkpoint", json_integer(step));
        return v;
    }
    if (exists(path, "tokenizer.json", file)) return gather_json(file, o, err);
    km_error_set(err, KM_ERR_FORMAT,
                 "folder '%s' holds no config.json, no tokenizer.json and no training run", path);
    return NULL;
}

/* What the weights and the cache take together. */
static void add_total(json_t *v) {
    json_t *m = json_object_get(v, "model"), *cache = json_object_get(m, "cache_bytes");
    json_t *bytes = json_object_get(v, "bytes");
    if (cache && bytes)
        json_object_set_new(m, "memory_bytes",
                            km_json_count(json_number_value(bytes) + json_number_value(cache)));
}

km_status km_describe_defaults_sized(km_describe_options *out, size_t size) {
    km_describe_options own = {.size = sizeof(km_describe_options), .cache = KM_F16};
    return KM_HAND_OUT(out, size, &own, km_describe_options);
}

static json_t *gather(const char *path, const km_describe_options *o, km_error *err) {
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    json_t *v = folder ? gather_folder(path, o, err) : gather_file(path, o, err);
    if (!v) {
        if (err->code == KM_OK) km_error_set(err, KM_ERR_MEMORY, "out of memory");
        return NULL;
    }
    json_object_set_new(v, "path", km_json_text(path));
    add_total(v);
    json_object_set_new(v, "kermes", json_string(km_version()));
    return v;
}

char *km_describe_file(const char *path, const km_describe_options *options) {
    km_error err = {0};
    km_describe_options o = km_describe_defaults();
    char *text = NULL;
    if (!path)
        km_error_set(&err, KM_ERR_NULL, "km_describe_file: no path");
    else if (km_take_sized(&o, sizeof o, options, "km_describe_options", &err) == KM_OK &&
             ((unsigned)o.cache >= KM_DTYPE_COUNT || o.context < 0))
        km_error_set(&err, KM_ERR_RANGE, "km_describe_file: no such cache type or context");
    if (err.code == KM_OK) {
        json_t *v = gather(path, &o, &err);
        text = v ? km_json_give(v) : NULL;
        if (v && !text) km_error_set(&err, KM_ERR_MEMORY, "out of memory for a description");
    }
    if (!text) km_last_error_set(&err);
    return text;
}
