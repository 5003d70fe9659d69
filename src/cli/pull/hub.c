/* Names, lists of files, and the choice among them. */
#include "cli/pull/hub.h"
#include "base/alloc.h"
#include "base/json_read.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name, *stands_for;
} short_names[] = {
    {"smollm2", "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF"},
    {"smollm2:135m", "bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M"},
    {"smollm2:360m", "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF"},
    {"smollm2:1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF"},
    {"qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"},
    {"qwen2.5:1.5b", "Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M"},
    {"qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct-GGUF:Q4_K_M"},
    {"qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M"},
    {"qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF:Q8_0"},
    {"qwen3:4b", "Qwen/Qwen3-4B-GGUF:Q4_K_M"},
    {"qwen3:8b", "Qwen/Qwen3-8B-GGUF:Q4_K_M"},
    {"llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"},
    {"llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"},
    {"gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"},
};
enum { N_SHORT = sizeof short_names / sizeof *short_names };

void km_pull_short_names(km_text *out) {
    for (int i = 0; i < N_SHORT; i++)
        km_text_printf(out, "%s\t%s\n", short_names[i].name, short_names[i].stands_for);
}

/* ---- Names ---- */

static bool plain(const char *s, size_t n) { /* of an owner, a repository, a kind of weights */
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("-_.", s[i])) return false;
    return n > 0 && n < 100 && s[0] != '.' && s[0] != '-';
}

km_status km_pull_parse(const char *given, km_pull_name *out, km_error *err) {
    *out = (km_pull_name){.revision = "main"};
    char origin[300];
    if (strstr(given, "://")) {
        if (!km_web_origin(given, origin))
            return km_error_set(err, KM_ERR_RANGE, "pull: '%.100s' is no http or https address",
                                given);
        out->url = given;
        return KM_OK;
    }
    for (int i = 0; i < N_SHORT; i++)
        if (strcasecmp(given, short_names[i].name) == 0) given = short_names[i].stands_for;
    if (strncmp(given, "hf.co/", 6) == 0) given += 6;
    if (strncmp(given, "huggingface.co/", 15) == 0) given += 15;
    const char *slash = strchr(given, '/'), *colon = strchr(given, ':');
    size_t end = colon ? (size_t)(colon - given) : strlen(given);
    if (!slash || (colon && colon < slash) || !plain(given, (size_t)(slash - given)) ||
        !plain(slash + 1, end - (size_t)(slash + 1 - given)) || end >= sizeof out->repo ||
        (colon && (!plain(colon + 1, strlen(colon + 1)) || strlen(colon + 1) >= sizeof out->quant)))
        return km_error_set(
            err, KM_ERR_RANGE,
            "pull: '%.100s' is neither OWNER/NAME[:QUANT] nor an address nor one of "
            "the short names that --list shows",
            given);
    snprintf(out->repo, sizeof out->repo, "%.*s", (int)end, given);
    if (colon) snprintf(out->quant, sizeof out->quant, "%s", colon + 1);
    return KM_OK;
}

bool km_pull_safe(const char *path) {
    if (!*path || *path == '/' || strlen(path) >= 512) return false;
    for (const char *at = path;;) {
        size_t n = strcspn(at, "/");
        if (n == 0 || *at == '.') return false; /* empty, "..", hidden */
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)at[i] < 32 || at[i] == 127 || strchr("\\:", at[i])) return false;
        if (!at[n]) return true;
        at += n + 1;
    }
}

/* ---- Lists ---- */

static km_status add(km_pull_list *l, const char *path, int64_t size, const char *sum,
                     km_error *err) {
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        km_pull_file *more = km_realloc(l->at, room * sizeof *more);
        if (!more) return km_error_set(err, KM_ERR_MEMORY, "pull: out of memory");
        l->at = more;
        l->room = room;
    }
    km_pull_file *f = &l->at[l->n++];
    snprintf(f->path, sizeof f->path, "%s", path);
    snprintf(f->sum, sizeof f->sum, "%s", sum);
    f->size = size;
    return KM_OK;
}

void km_pull_list_free(km_pull_list *l) {
    km_free(l->at);
    *l = (km_pull_list){0};
}

static bool is_model_file(const char *path) {
    static const char *const ends[] = {".gguf",  ".safetensors", ".json",
                                       ".model", ".txt",         ".jinja"};
    size_t n = strlen(path);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t e = strlen(ends[i]);
        if (n > e && strcasecmp(path + n - e, ends[i]) == 0) return true;
    }
    return false;
}

/* One row of the hub's list. Files that are no part of a model may be called what they like. */
static km_status take_row(const json_t *o, const char *shown, km_pull_list *out, km_error *err) {
    const char *type = json_string_value(json_object_get(o, "type"));
    const char *path = json_string_value(json_object_get(o, "path"));
    const json_t *lfs = json_object_get(o, "lfs"), *size = json_object_get(o, "size");
    const char *sum = json_string_value(json_object_get(lfs, "oid"));
    if (!type || !path)
        return km_error_set(err, KM_ERR_FORMAT, "%.100s: a file without a path", shown);
    if (strcmp(type, "file") != 0 || !is_model_file(path)) return KM_OK;
    if (!km_pull_safe(path))
        return km_error_set(
            err, KM_ERR_FORMAT,
            "%.100s: the server names a file '%.100s', which would leave the folder; "
            "nothing was fetched",
            shown, path);
    if (json_is_integer(json_object_get(lfs, "size"))) size = json_object_get(lfs, "size");
    if (sum && strncmp(sum, "sha256:", 7) == 0) sum += 7;
    bool known = sum && strlen(sum) == 64 && strspn(sum, "0123456789abcdefABCDEF") == 64;
    return add(out, path, json_is_integer(size) ? json_integer_value(size) : -1, known ? sum : "",
               err);
}

km_status km_pull_files(km_web *h, const char *endpoint, const km_pull_name *name,
                        km_pull_list *out, km_error *err) {
    char url[1100];
    km_web_head head;
    km_status s = KM_OK;
    snprintf(url, sizeof url, "%s/api/models/%s/tree/%s?recursive=true", endpoint, name->repo,
             name->revision);
    for (int page = 0; s == KM_OK && *url && page < 50; page++) {
        km_text text = {0};
        s = km_web_text(h, url, (size_t)16 << 20, &text, &head, err);
        json_t *v =
            s == KM_OK ? km_json_parse(km_text_str(&text), text.len, name->repo, err) : NULL;
        if (s == KM_OK && !v) s = err->code;
        if (s == KM_OK && !json_is_array(v))
            s = km_error_set(err, KM_ERR_FORMAT, "%.100s: the hub's answer is no list of files",
                             name->repo);
        for (size_t i = 0; s == KM_OK && i < json_array_size(v); i++)
            s = take_row(json_array_get(v, i), name->repo, out, err);
        json_decref(v);
        km_text_free(&text);
        char here[300], there[300]; /* the next page is the same hub's, or there is none */
        bool more = s == KM_OK && head.next[0] && km_web_origin(url, here) &&
                    km_web_origin(head.next, there) && strcmp(here, there) == 0;
        snprintf(url, sizeof url, "%s", more ? head.next : "");
    }
    return s;
}

/* ---- The choice ---- */

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), e = strlen(end);
    return n >= e && strcasecmp(s + n - e, end) == 0;
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Whether the name has `quant` as a part of its own: Q4_K is none of Q4_K_M. */
static bool has_quant(const char *path, const char *quant) {
    size_t n = strlen(quant);
    for (const char *at = last_name(path); (at = strcasestr(at, quant)); at++) {
        bool begins = at == path || !isalnum((unsigned char)at[-1]);
        if (begins && (at[n] == 0 || strchr(".-", at[n]))) return true;
    }
    return false;
}

/* "x-00002-of-00003.gguf": where the number of the part begins, or NULL. */
static const char *part_of(const char *path) {
    const char *of = strstr(path, "-of-");
    if (!of || of - path < 6 || of[-6] != '-' || strspn(of - 5, "0123456789") != 5) return NULL;
    return of - 6;
}

static void keep(km_pull_list *l, bool (*wanted)(const km_pull_file *, const char *),
                 const char *what) {
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        if (wanted(&l->at[i], what)) l->at[n++] = l->at[i];
    l->n = n;
}

static bool is_gguf_row(const km_pull_file *f, const char *what) {
    (void)what; /* projectors of pictures are no models */
    return ends_with(f->path, ".gguf") && strncasecmp(last_name(f->path), "mmproj", 6) != 0;
}
static bool has_quant_row(const km_pull_file *f, const char *what) {
    return has_quant(f->path, what);
}
static bool same_split_row(const km_pull_file *f, const char *what) {
    const char *part = part_of(what);
    if (!part) return strcmp(f->path, what) == 0;
    return part_of(f->path) && strncmp(f->path, what, (size_t)(part - what)) == 0;
}
static bool folder_row(const km_pull_file *f, const char *what) {
    (void)what;
    return !strchr(f->path, '/');
}

static km_status choose_gguf(const km_pull_name *name, km_pull_list *l, km_error *err) {
    static const char *const liked[] = {"Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0",
                                        "Q6_K",   "Q4_1",   "F16",  "BF16",   NULL};
    char found[160] = "";
    const char *chosen = NULL;
    for (size_t i = 0; i < l->n && strlen(found) < 100; i++)
        snprintf(found + strlen(found), sizeof found - strlen(found), "%s%.60s", *found ? ", " : "",
                 last_name(l->at[i].path));
    for (int k = 0; liked[k] && !*name->quant && !chosen; k++)
        for (size_t i = 0; i < l->n && !chosen; i++)
            if (has_quant(l->at[i].path, liked[k])) chosen = liked[k];
    if (*name->quant) chosen = name->quant;
    if (chosen) keep(l, has_quant_row, chosen);
    if (l->n == 0)
        return km_error_set(err, KM_ERR_FILE, "%.100s has no %s; there are %s", name->repo, chosen,
                            found);
    char first[512];
    snprintf(first, sizeof first, "%s", l->at[0].path);
    keep(l, same_split_row, first);
    return KM_OK;
}

km_status km_pull_choose(const km_pull_name *name, km_pull_list *l, bool *folder, km_error *err) {
    bool gguf = false, weights = false, config = false;
    for (size_t i = 0; i < l->n; i++) {
        gguf = gguf || is_gguf_row(&l->at[i], NULL);
        weights =
            weights || (folder_row(&l->at[i], NULL) && ends_with(l->at[i].path, ".safetensors"));
        config = config || strcmp(l->at[i].path, "config.json") == 0;
    }
    *folder = !gguf;
    if (gguf) {
        keep(l, is_gguf_row, NULL);
        return choose_gguf(name, l, err);
    }
    if (!weights || !config)
        return km_error_set(
            err, KM_ERR_FILE,
            "%.100s holds no model: neither GGUF nor safetensors with a config.json", name->repo);
    if (*name->quant)
        return km_error_set(err, KM_ERR_FILE, "%.100s has no GGUF files, so there is no %s of it",
                            name->repo, name->quant);
    keep(l, folder_row, NULL);
    return KM_OK;
}
