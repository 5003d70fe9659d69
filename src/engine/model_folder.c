/* Finding models in the model folder. */
#include "engine/model_folder.h"
#include "model/convert.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

bool km_models_folder(char out[PATH_MAX]) {
    const char *mine = getenv("KERMES_MODELS"), *data = getenv("XDG_DATA_HOME");
    const char *home = getenv("HOME");
    int n = 0;
    if (mine && *mine)
        n = snprintf(out, PATH_MAX, "%s", mine);
    else if (data && *data)
        n = snprintf(out, PATH_MAX, "%s/kermes/models", data);
    else if (home && *home)
        n = snprintf(out, PATH_MAX, "%s/.local/share/kermes/models", home);
    return n > 0 && n < PATH_MAX;
}

typedef struct folder_search {
    const char *prefix; /* only names that begin so; NULL: all */
    char best[PATH_MAX], second[PATH_MAX];
    struct timespec when;
    int found;
} folder_search;

/* "-00002-of-00003.gguf": a later part of a split model. */
static bool later_part(const char *name) {
    const char *of = strstr(name, "-of-");
    return of && of - name >= 6 && of[-6] == '-' && strspn(of - 5, "0123456789") >= 5 &&
           strncmp(of - 5, "00001", 5) != 0;
}

static bool newer(const struct stat *st, const folder_search *s) {
    return st->st_mtim.tv_sec != s->when.tv_sec ? st->st_mtim.tv_sec > s->when.tv_sec
                                                : st->st_mtim.tv_nsec > s->when.tv_nsec;
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void found(folder_search *s, const char *path, const struct stat *st) {
    if (s->prefix && strncasecmp(last_name(path), s->prefix, strlen(s->prefix)) != 0) return;
    /* of two as old as each other the first by name, so that the choice does not hang on the order
     * in which a file system lists them */
    bool equal =
        s->found && st->st_mtim.tv_sec == s->when.tv_sec && st->st_mtim.tv_nsec == s->when.tv_nsec;
    if (s->found == 0 || newer(st, s) || (equal && strcmp(path, s->best) < 0)) {
        memcpy(s->second, s->best, sizeof s->second);
        snprintf(s->best, sizeof s->best, "%s", path);
        s->when = st->st_mtim;
    } else {
        snprintf(s->second, sizeof s->second, "%s", path);
    }
    s->found++;
}

static void look(folder_search *s, const char *folder, int depth) {
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        char path[PATH_MAX], config[PATH_MAX];
        struct stat st;
        if (e->d_name[0] == '.') continue;
        int n = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (n < 0 || n >= (int)sizeof path || stat(path, &st) != 0) continue;
        if (S_ISREG(st.st_mode)) {
            if (km_names_gguf(path) && !later_part(e->d_name)) found(s, path, &st);
        } else if (S_ISDIR(st.st_mode)) {
            n = snprintf(config, sizeof config, "%s/config.json", path);
            struct stat inside;
            if (n > 0 && n < (int)sizeof config && stat(config, &inside) == 0)
                found(s, path, &inside);
            else if (depth > 0)
                look(s, path, depth - 1);
        }
    }
    closedir(d);
}

km_status km_models_default(char out[PATH_MAX], int *others, km_error *err) {
    char folder[PATH_MAX];
    folder_search s = {.found = 0};
    if (!km_models_folder(folder))
        return km_error_set(err, KM_ERR_FILE, "no model is named, and there is no model folder");
    look(&s, folder, 1);
    if (!s.found)
        return km_error_set(err, KM_ERR_FILE, "no model is named and there is none in %.300s",
                            folder);
    snprintf(out, PATH_MAX, "%s", s.best);
    if (others) *others = s.found - 1;
    return KM_OK;
}

static bool named_exactly(const char *folder, const char *name, char out[PATH_MAX]) {
    struct stat st;
    for (int i = 0; i < 2; i++) {
        int n = snprintf(out, PATH_MAX, "%s/%s%s", folder, name, i ? ".gguf" : "");
        if (n > 0 && n < PATH_MAX && stat(out, &st) == 0) return true;
    }
    return false;
}

bool km_models_named(const char *name, char out[PATH_MAX], km_error *err) {
    char folder[PATH_MAX];
    if (!*name || strchr(name, '/') || name[0] == '.' || !km_models_folder(folder)) return false;
    if (named_exactly(folder, name, out)) return true;
    folder_search s = {.prefix = name};
    look(&s, folder, 1);
    if (s.found > 1)
        km_error_set(err, KM_ERR_FILE, "'%.60s' could be %.100s, %.100s%s; name one of them", name,
                     last_name(s.best), last_name(s.second), s.found > 2 ? " and more" : "");
    if (s.found == 1) memcpy(out, s.best, sizeof s.best);
    return s.found == 1;
}

bool km_models_is(const char *word, bool exact) {
    char path[PATH_MAX], folder[PATH_MAX];
    struct stat st;
    if (stat(word, &st) == 0 && S_ISREG(st.st_mode)) return km_is_gguf(word);
    static const char *const inside[] = {"config.json", "model/config.json"};
    for (int i = 0; i < 2; i++) {
        int n = snprintf(path, sizeof path, "%s/%s", word, inside[i]);
        if (n > 0 && n < (int)sizeof path && stat(path, &st) == 0) return true;
    }
    if (!*word || strchr(word, '/') || word[0] == '.' || !km_models_folder(folder)) return false;
    km_error err = {0};
    return exact ? named_exactly(folder, word, path) : km_models_named(word, path, &err);
}
