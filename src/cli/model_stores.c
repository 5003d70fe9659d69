/* Looking for models where programs keep them. Stores are other people's files: what does not look
 * as expected is passed over. */
#include "cli/model_stores.h"
#include "base/alloc.h"
#include "kermes.h"
#include "base/json_read.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

bool km_stores_folder(char out[PATH_MAX]) {
    char *folder = km_model_folder();
    bool fits = folder && snprintf(out, PATH_MAX, "%s", folder) < PATH_MAX;
    km_string_free(folder);
    return fits;
}

static bool names_gguf(const char *name) {
    size_t n = strlen(name);
    return n > 5 && strcasecmp(name + n - 5, ".gguf") == 0;
}

void km_stores_free(km_found_models *m) {
    km_free(m->at);
    *m = (km_found_models){0};
}

static km_found_model *add(km_found_models *m, const char *store, const char *path) {
    if (m->n == m->room) {
        size_t room = m->room ? 2 * m->room : 16;
        km_found_model *more = km_realloc(m->at, room * sizeof *more);
        if (!more) {
            m->failed = true;
            return NULL;
        }
        m->at = more;
        m->room = room;
    }
    km_found_model *f = &m->at[m->n];
    *f = (km_found_model){.store = store};
    if (snprintf(f->path, sizeof f->path, "%s", path) >= PATH_MAX) return NULL;
    m->n++;
    return f;
}

static bool join(char out[PATH_MAX], const char *a, const char *b) {
    int n = snprintf(out, PATH_MAX, "%s/%s", a, b);
    return n > 0 && n < PATH_MAX;
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static void count(km_found_model *f, const struct stat *st) {
    f->bytes += st->st_size;
    if (st->st_atim.tv_sec > f->used) f->used = st->st_atim.tv_sec;
    if (st->st_mtim.tv_sec > f->used) f->used = st->st_mtim.tv_sec;
}

/* "x-00001-of-00003.gguf": how long "x" is, and the part's number; 0: no part of a split model. */
static int split_part(const char *name, size_t *stem) {
    const char *of = strstr(name, "-of-");
    if (!of || of - name < 6 || of[-6] != '-' || strspn(of - 5, "0123456789") != 5) return 0;
    *stem = (size_t)(of - 6 - name);
    return atoi(of - 5);
}

/* All parts of a split model count as one. */
static void count_parts(km_found_model *f, const char *folder, const char *name) {
    struct stat st;
    char path[PATH_MAX];
    size_t stem = 0, other = 0;
    DIR *d = split_part(name, &stem) ? opendir(folder) : NULL;
    for (struct dirent *e; d && (e = readdir(d));)
        if (split_part(e->d_name, &other) > 1 && other == stem &&
            strncmp(e->d_name, name, stem) == 0 && join(path, folder, e->d_name) &&
            stat(path, &st) == 0)
            count(f, &st);
    if (d) closedir(d);
}

static void add_gguf(km_found_models *m, const char *store, const char *folder, const char *name,
                     const char *before) {
    char path[PATH_MAX];
    struct stat st;
    size_t stem = 0;
    if (split_part(name, &stem) > 1 || !join(path, folder, name) || stat(path, &st) != 0 ||
        !S_ISREG(st.st_mode))
        return;
    km_found_model *f = add(m, store, path);
    if (!f) return;
    snprintf(f->name, sizeof f->name, "%.120s%s%.120s", before, *before ? "/" : "", name);
    count(f, &st);
    count_parts(f, folder, name);
}

/* A folder with a config.json and weights. */
static bool add_folder(km_found_models *m, const char *store, const char *folder,
                       const char *name) {
    char path[PATH_MAX];
    struct stat st;
    bool weights = false;
    if (!join(path, folder, "config.json") || stat(path, &st) != 0) return false;
    km_found_model *f = add(m, store, folder);
    DIR *d = f ? opendir(folder) : NULL;
    for (struct dirent *e; d && (e = readdir(d));)
        if (join(path, folder, e->d_name) && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
            count(f, &st);
            weights = weights || strstr(e->d_name, ".safetensors");
        }
    if (d) closedir(d);
    if (f && !weights) m->n--;
    if (!f || !weights) return false;
    f->folder = true;
    snprintf(f->name, sizeof f->name, "%.250s", name);
    return true;
}

static void look(km_found_models *m, const char *store, const char *folder, const char *before,
                 int depth) {
    char path[PATH_MAX], name[256];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.' || !join(path, folder, e->d_name)) continue;
        snprintf(name, sizeof name, "%.120s%s%.120s", before, *before ? "/" : "", e->d_name);
        if (names_gguf(e->d_name))
            add_gguf(m, store, folder, e->d_name, before);
        else if (depth > 0 && is_folder(path) && !add_folder(m, store, path, name))
            look(m, store, path, name, depth - 1);
    }
    if (d) closedir(d);
}

static int by_name(const void *a, const void *b) {
    const km_found_model *x = a, *y = b;
    int c = strcmp(x->store, y->store);
    return c ? c : strcasecmp(x->name, y->name);
}

static void sort(km_found_models *m, size_t from) {
    if (m->n > from) qsort(m->at + from, m->n - from, sizeof *m->at, by_name);
}

void km_stores_kermes(km_found_models *out) {
    char folder[PATH_MAX];
    size_t from = out->n;
    if (km_stores_folder(folder)) look(out, "kermes", folder, "", 1);
    sort(out, from);
}

/* ---- ollama: manifests name the blobs that make up a model ---- */

static void add_manifest(km_found_models *m, const char *root, const char *file, const char *name) {
    char path[PATH_MAX];
    struct stat st;
    km_error err = {0};
    json_t *v = km_json_load(file, &err), *layer;
    size_t i;
    json_array_foreach(json_object_get(v, "layers"), i, layer) {
        const char *type = json_string_value(json_object_get(layer, "mediaType"));
        const char *digest = json_string_value(json_object_get(layer, "digest"));
        if (!type || !digest || strcmp(type, "application/vnd.ollama.image.model") != 0) continue;
        if (strncmp(digest, "sha256:", 7) != 0 || strlen(digest) != 71 ||
            strspn(digest + 7, "0123456789abcdef") != 64)
            continue;
        int n = snprintf(path, sizeof path, "%s/blobs/sha256-%s", root, digest + 7);
        if (n < 0 || n >= PATH_MAX || stat(path, &st) != 0) continue;
        km_found_model *f = add(m, "ollama", path);
        if (!f) continue;
        snprintf(f->name, sizeof f->name, "%.250s", name);
        count(f, &st);
    }
    json_decref(v);
}

/* manifests/HOST/OWNER/NAME/TAG; that of the library and the usual host is left out of the name. */
static void look_manifests(km_found_models *m, const char *root, const char *folder,
                           const char *name, int depth) {
    char path[PATH_MAX], longer[256];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.' || !join(path, folder, e->d_name)) continue;
        bool usual = (depth == 3 && strcmp(e->d_name, "registry.ollama.ai") == 0) ||
                     (depth == 2 && strcmp(e->d_name, "library") == 0);
        snprintf(longer, sizeof longer, "%.120s%s%.120s", name,
                 *name && !usual ? depth ? "/" : ":" : "", usual ? "" : e->d_name);
        if (depth > 0 && is_folder(path))
            look_manifests(m, root, path, longer, depth - 1);
        else if (depth == 0)
            add_manifest(m, root, path, longer);
    }
    if (d) closedir(d);
}

static void look_ollama(km_found_models *m, const char *root) {
    char path[PATH_MAX];
    if (join(path, root, "manifests")) look_manifests(m, root, path, "", 3);
}

/* ---- Hugging Face's cache: models--OWNER--NAME/snapshots/REVISION ---- */

static void look_cache(km_found_models *m, const char *hub) {
    char path[PATH_MAX], snapshot[PATH_MAX], name[256];
    DIR *d = opendir(hub);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, "models--", 8) != 0) continue;
        snprintf(name, sizeof name, "%.250s", e->d_name + 8);
        char *dashes = strstr(name, "--");
        if (dashes) {
            *dashes = '/';
            memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
        }
        if (!join(path, hub, e->d_name) || !join(snapshot, path, "snapshots")) continue;
        DIR *s = opendir(snapshot);
        for (struct dirent *r; s && (r = readdir(s));) {
            if (r->d_name[0] == '.' || !join(path, snapshot, r->d_name) || !is_folder(path))
                continue;
            if (!add_folder(m, "huggingface", path, name)) look(m, "huggingface", path, name, 1);
        }
        if (s) closedir(s);
    }
    if (d) closedir(d);
}

void km_stores_others(km_found_models *out) {
    const char *home = getenv("HOME"), *ollama = getenv("OLLAMA_MODELS");
    const char *cache = getenv("HF_HUB_CACHE"), *hf = getenv("HF_HOME");
    char path[PATH_MAX];
    size_t from = out->n;
    if (ollama && *ollama)
        look_ollama(out, ollama);
    else if (home && join(path, home, ".ollama/models"))
        look_ollama(out, path);
    if (!ollama) look_ollama(out, "/usr/share/ollama/.ollama/models");
    if (home && join(path, home, ".lmstudio/models")) look(out, "lm-studio", path, "", 2);
    if (home && join(path, home, ".cache/lm-studio/models")) look(out, "lm-studio", path, "", 2);
    if (cache && *cache)
        look_cache(out, cache);
    else if (hf && *hf && join(path, hf, "hub"))
        look_cache(out, path);
    else if (home && join(path, home, ".cache/huggingface/hub"))
        look_cache(out, path);
    sort(out, from);
}
