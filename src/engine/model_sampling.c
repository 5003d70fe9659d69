/* A model's own sampling settings, from its file or a small table of families. */
#include "engine/model_sampling.h"
#include "base/log.h"
#include "format/gguf.h"
#include "base/json_read.h"
#include "model/convert.h"
#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static const struct {
    const char *gguf, *json;
    double lo, hi;
} keys[KM_SUGGEST_COUNT] = {
    [KM_SUGGEST_TEMPERATURE] = {"general.sampling.temp", "temperature", 0, 100},
    [KM_SUGGEST_TOP_K] = {"general.sampling.top_k", "top_k", 0, 1e9},
    [KM_SUGGEST_TOP_P] = {"general.sampling.top_p", "top_p", 1e-6, 1},
    [KM_SUGGEST_MIN_P] = {"general.sampling.min_p", "min_p", 0, 1},
    [KM_SUGGEST_REPEAT_PENALTY] = {"general.sampling.penalty_repeat", "repetition_penalty", 1e-3,
                                   100},
};

/* What the makers of a family recommend for its instruct models; found by the beginning of a part of
 * the model's name. Longer names come before those they begin with. SmolLM2's repeat penalty is ours:
 * without it one answer in nine of the smallest is a loop (bench/results/questions-smollm2-135m.json).
 */
static const struct {
    const char *name;
    double value[KM_SUGGEST_COUNT]; /* temperature, top-k, top-p, min-p, repeat penalty */
} families[] = {
    {"smollm3", {0.6, NAN, 0.95, NAN, NAN}},       {"smollm2", {0.2, NAN, 0.9, NAN, 1.1}},
    {"smollm", {0.2, NAN, 0.9, NAN, 1.1}},         {"qwen3", {0.6, 20, 0.95, 0, NAN}},
    {"qwen2.5", {0.7, 20, 0.8, NAN, 1.05}},        {"qwen2", {0.7, 20, 0.8, NAN, 1.05}},
    {"llama-3", {0.6, NAN, 0.9, NAN, NAN}},        {"meta-llama-3", {0.6, NAN, 0.9, NAN, NAN}},
    {"gemma-3", {1.0, 64, 0.95, 0, NAN}},          {"deepseek-r1", {0.6, NAN, 0.95, NAN, NAN}},
    {"mistral-small", {0.15, NAN, NAN, NAN, NAN}}, {"mistral-nemo", {0.3, NAN, NAN, NAN, NAN}},
    {"phi-4", {0.8, 50, 0.95, NAN, NAN}},
};

static void clear(km_suggested *s) {
    for (int i = 0; i < KM_SUGGEST_COUNT; i++) s->value[i] = NAN;
    s->from[0] = 0;
}

static bool any(const km_suggested *s) {
    for (int i = 0; i < KM_SUGGEST_COUNT; i++)
        if (!isnan(s->value[i])) return true;
    return false;
}

/* ---- What files say ---- */

static void set(km_suggested *s, int i, const char *key, double v) {
    if (v >= keys[i].lo && v <= keys[i].hi)
        s->value[i] = v;
    else
        km_note(KM_LOG_WARN, "the model's %s is %g, which makes no sense and is left out", key, v);
}

static void read_gguf(const km_gguf *g, km_suggested *s) {
    for (int i = 0; i < KM_SUGGEST_COUNT; i++) {
        const km_gguf_value *v = km_gguf_get(g, keys[i].gguf);
        if (!v) continue;
        switch (v->type) {
        case KM_GGUF_F32:
        case KM_GGUF_F64: set(s, i, keys[i].gguf, v->f); break;
        case KM_GGUF_U8:
        case KM_GGUF_U16:
        case KM_GGUF_U32:
        case KM_GGUF_U64: set(s, i, keys[i].gguf, (double)v->u); break;
        case KM_GGUF_I8:
        case KM_GGUF_I16:
        case KM_GGUF_I32:
        case KM_GGUF_I64: set(s, i, keys[i].gguf, (double)v->i); break;
        default: km_note(KM_LOG_WARN, "the model's %s is no number and is left out", keys[i].gguf);
        }
    }
    if (any(s)) snprintf(s->from, sizeof s->from, "general.sampling");
}

static void read_json(const json_t *o, km_suggested *s) {
    for (int i = 0; i < KM_SUGGEST_COUNT; i++) {
        const json_t *v = json_object_get(o, keys[i].json);
        if (json_is_number(v)) set(s, i, keys[i].json, json_number_value(v));
    }
    if (any(s)) snprintf(s->from, sizeof s->from, "generation_config.json");
}

/* ---- Families ---- */

/* Whether a part of `name`, cut at blanks, slashes, dashes and underscores, begins with `family`;
 * blanks and underscores are as good as dashes. */
static bool names_family(const char *name, const char *family) {
    for (const char *at = name; *at; at++) {
        if (at > name && isalnum((unsigned char)at[-1])) continue;
        size_t i = 0;
        for (; family[i]; i++) {
            char c = at[i] == ' ' || at[i] == '_' ? '-' : (char)tolower((unsigned char)at[i]);
            if (c != family[i]) break;
        }
        if (!family[i] && !isdigit((unsigned char)at[i])) return true;
    }
    return false;
}

static bool find_family(const char *name, km_suggested *s) {
    for (size_t f = 0; name && f < sizeof families / sizeof *families; f++) {
        if (!names_family(name, families[f].name)) continue;
        memcpy(s->value, families[f].value, sizeof s->value);
        snprintf(s->from, sizeof s->from, "the %s family", families[f].name);
        return true;
    }
    return false;
}

static const char *gguf_text(const km_gguf *g, const char *key) {
    const km_gguf_value *v = km_gguf_get(g, key);
    return v && v->type == KM_GGUF_STRING ? v->text.data : NULL;
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* ---- A model ---- */

static void of_gguf(const char *path, km_suggested *s) {
    km_error err = {0};
    km_gguf *g = km_gguf_open(path, &err);
    if (!g) return;
    read_gguf(g, s);
    if (!any(s) && !find_family(gguf_text(g, "general.basename"), s) &&
        !find_family(gguf_text(g, "general.name"), s))
        find_family(last_name(path), s);
    km_gguf_close(g);
}

static json_t *load(const char *folder, const char *name) {
    char path[PATH_MAX];
    struct stat st;
    km_error err = {0};
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (n < 0 || n >= (int)sizeof path || stat(path, &st) != 0) return NULL;
    json_t *v = km_json_load(path, &err);
    if (!v) km_note(KM_LOG_WARN, "%s; it is left out", err.text);
    return v;
}

static void of_folder(const char *folder, km_suggested *s) {
    json_t *o = load(folder, "generation_config.json");
    if (o) read_json(o, s);
    json_decref(o);
    if (any(s)) return;
    o = load(folder, "config.json");
    if (!o || !find_family(json_string_value(json_object_get(o, "_name_or_path")), s))
        find_family(last_name(folder), s);
    json_decref(o);
}

km_suggested km_suggested_of(const char *path) {
    km_suggested s;
    struct stat st;
    clear(&s);
    if (S_ISDIR(stat(path, &st) == 0 ? st.st_mode : 0))
        of_folder(path, &s);
    else if (km_is_gguf(path))
        of_gguf(path, &s);
    return s;
}
