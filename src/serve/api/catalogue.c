/* Which models a server has: those named on its command line and those of a folder, by names that are
 * theirs alone. Reading a file's head is enough for this; weights come later (served.c). */
#include "serve/api/api.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/log.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

static void name_it(km_served *m, const char *given) {
    const char *path = m->info.path && *m->info.path ? m->info.path : m->path;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    if (given)
        snprintf(m->name, sizeof m->name, "%s", given);
    else
        snprintf(m->name, sizeof m->name, "%.*s", (int)(n - from), path + from);
    if (!given && ends_with(m->name, ".gguf")) m->name[strlen(m->name) - 5] = '\0';
}

/* Texts of the description move to where they stay. */
static void keep_info(km_served *m, km_model *model) {
    km_model_info i = km_model_describe(model);
    snprintf(m->architecture, sizeof m->architecture, "%s", i.architecture ? i.architecture : "");
    snprintf(m->file_type, sizeof m->file_type, "%s", i.file_type ? i.file_type : "");
    snprintf(m->devices, sizeof m->devices, "%s", i.devices ? i.devices : "");
    struct stat st;
    if (i.path && stat(i.path, &st) == 0) m->changed = (int64_t)st.st_mtime;
    m->info = i;
}

/* Weights, and keys and values as 16-bit numbers for all sequences at their longest or as far as the
 * ceiling allows. */
static int64_t memory_of(const km_served *m) {
    const km_serve_options *o = &m->serve->o;
    const km_model_info *i = &m->info;
    int64_t context = o->context > 0 && o->context < i->context ? o->context : i->context;
    int64_t parallel = o->parallel > 0 ? o->parallel : 16, kept = o->kept > 0    ? o->kept
                                                                  : o->kept == 0 ? parallel
                                                                                 : 0;
    double token = i->heads > 0 ? 4.0 * (double)i->layers * (double)i->kv_heads *
                                      ((double)i->dim / (double)i->heads)
                                : 0,
           cache = token * (double)context * (double)(parallel + kept);
    if (o->cache_memory && cache > (double)o->cache_memory) cache = (double)o->cache_memory;
    return i->bytes + (int64_t)cache;
}

static km_served *add(km_serve *s, const char *path, const char *name, km_error *err) {
    km_served *m = km_calloc(1, sizeof *m);
    if (m) m->path = km_alloc(strlen(path) + 1);
    if (!m || !m->path || !km_array_reserve(&s->served, &s->cap_served, s->n_served + 1)) {
        if (m) km_free(m->path);
        km_free(m);
        km_no_memory(err);
        return NULL;
    }
    strcpy(m->path, path);
    m->serve = s;
    m->keep_alive = s->o.keep_alive;
    /* One alone is loaded at once: its tokenizer, which may take a tenth of a second, is built once. */
    bool alone = s->o.n_models == 1 && !s->o.folder;
    km_model_options o = s->o.model;
    o.tokenizer_only = true;
    km_model *model = alone ? km_served_load(s, path) : km_model_open(*path ? path : NULL, &o);
    if (model) {
        keep_info(m, model);
        name_it(m, name);
        m->need = memory_of(m);
        for (int i = 0; i < s->n_served; i++)
            if (strcasecmp(s->served[i]->name, m->name) == 0)
                km_error_set(err, KM_ERR_STATE, "two models are called '%s': %s and %s", m->name,
                             s->served[i]->path, path);
    } else {
        km_error_set(err, km_last_status(), "%s", km_last_error());
    }
    if (model && m->info.path && strcmp(m->info.path, m->path) != 0) { /* a name, or none */
        char *real = km_alloc(strlen(m->info.path) + 1);
        if (real) {
            strcpy(real, m->info.path);
            km_free(m->path);
            m->path = real;
        }
    }
    m->info.path = m->path;
    m->info.name = m->name;
    m->info.architecture = m->architecture;
    m->info.file_type = m->file_type;
    m->info.devices = m->devices;
    m->info.sampling_from = "";
    if (alone && err->code == KM_OK)
        m->model = model;
    else
        km_model_close(model);
    if (err->code != KM_OK) {
        km_free(m->path);
        km_free(m);
        return NULL;
    }
    return s->served[s->n_served++] = m;
}

/* Of a split model its first part stands for all; an mmproj file or an adapter is no model. */
static bool is_model_file(const char *name) {
    const char *of = strstr(name, "-of-");
    if (!ends_with(name, ".gguf") || name[0] == '.') return false;
    return !of || of - name < 6 || strncmp(of - 6, "-00001", 6) == 0;
}

static bool is_known(const km_serve *s, const char *path) {
    for (int i = 0; i < s->n_served; i++)
        if (strcmp(s->served[i]->path, path) == 0) return true;
    return false;
}

static km_status read_folder(km_serve *s, km_error *err) {
    struct dirent **all = NULL;
    int n = scandir(s->o.folder, &all, NULL, alphasort);
    if (n < 0) return km_error_set(err, KM_ERR_FILE, "cannot read the folder '%s'", s->o.folder);
    for (int i = 0; i < n; i++) {
        char path[4096];
        km_error why = {0};
        int k = snprintf(path, sizeof path, "%s/%s", s->o.folder, all[i]->d_name);
        if (is_model_file(all[i]->d_name) && k < (int)sizeof path && !is_known(s, path) &&
            !add(s, path, NULL, &why))
            km_note(KM_LOG_WARN, "%s is left out: %s", path, why.text);
        free(all[i]);
    }
    free(all);
    return KM_OK;
}

km_status km_catalogue_open(km_serve *s, km_error *err) {
    for (int i = 0; i < s->o.n_models; i++)
        if (!add(s, s->o.models[i], s->o.n_models == 1 ? s->o.name : NULL, err)) return err->code;
    if (s->o.folder && read_folder(s, err) != KM_OK) return err->code;
    if (s->n_served == 0)
        return km_error_set(err, KM_ERR_FILE, "there is no model in '%s'",
                            s->o.folder ? s->o.folder : "");
    if (km_adapters_served(s, err) != KM_OK) return err->code;
    /* One model alone is always there. */
    if (s->n_served == 1 && !s->o.folder) s->served[0]->keep_alive = -1;
    return KM_OK;
}

void km_catalogue_reload(km_serve *s) {
    km_error err = {0};
    if (s->o.folder && read_folder(s, &err) != KM_OK) km_note(KM_LOG_WARN, "%s", err.text);
}

void km_catalogue_free(km_serve *s) {
    for (int i = 0; i < s->n_served; i++) {
        km_adapters_forget(s->served[i]);
        km_free(s->served[i]->path);
        km_free(s->served[i]);
    }
    km_free(s->served);
    s->n_served = 0;
}

/* ---- Names ---- */

static km_served *find_exact(km_serve *s, const char *name, size_t n) {
    for (int i = 0; i < s->n_served; i++)
        if (strlen(s->served[i]->name) == n && strncasecmp(s->served[i]->name, name, n) == 0)
            return s->served[i];
    for (int i = 0; i < s->n_served; i++)
        if (km_served_adapter(s->served[i], name, n) >= 0) return s->served[i];
    return NULL;
}

/* Ollama's clients write "name:latest", others the file's name. */
km_served *km_served_find(km_serve *s, const char *name) {
    bool any = s->n_served == 1 && s->n_adapters == 0; /* one alone answers under any name */
    if (!name || !*name || any) return s->n_served ? s->served[0] : NULL;
    size_t n = strlen(name);
    km_served *m = find_exact(s, name, n);
    if (!m && ends_with(name, ":latest")) m = find_exact(s, name, n - 7);
    if (!m && ends_with(name, ".gguf")) m = find_exact(s, name, n - 5);
    return m;
}

bool km_key_may_use(const km_key *key, const char *model) {
    if (!key || !key->models[0]) return true;
    size_t n = strlen(model);
    for (const char *at = key->models; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && strncasecmp(at, model, n) == 0) return true;
    return false;
}

bool km_key_may_use_some(const km_key *key, const km_served *m) {
    bool may = km_key_may_use(key, m->name);
    for (size_t i = 0; i < m->n_adapters && !may; i++)
        may = km_key_may_use(key, m->adapters[i].name);
    return may;
}
