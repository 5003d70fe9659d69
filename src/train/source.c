/* Finding and mapping the text that a run learns from. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "train/source.h"
#include "base/alloc.h"
#include "base/utf8.h"
#include "train/tokens.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FILES = 50000, MAX_DEPTH = 32 }; /* a process may hold about 65,000 mappings */

/* ---- Files and folders ---- */

static km_status add_file(km_text_source *s, const char *path, const struct stat *st, bool given,
                          km_error *err) {
    if (s->n_files == MAX_FILES)
        return km_error_set(err, KM_ERR_RANGE,
                            "'%s' holds more than %d files; join them into fewer", s->path,
                            MAX_FILES);
    if (st->st_size == 0) {
        if (given) return km_error_set(err, KM_ERR_FILE, "'%s' is empty: no text to learn", path);
        return KM_OK;
    }
    if ((s->n_files & (s->n_files - 1)) == 0) { /* a power of two: full */
        km_text_file *more =
            km_realloc(s->files, (size_t)(s->n_files ? 2 * s->n_files : 1) * sizeof *more);
        if (!more) return km_no_memory_for(err, "the list of text files");
        s->files = more;
    }
    km_text_file *f = &s->files[s->n_files];
    *f = (km_text_file){.mtime = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec};
    char full[PATH_MAX];
    f->path = km_strdup(realpath(path, full) ? full : path);
    if (!f->path) return km_no_memory_for(err, "the list of text files");
    s->n_files++;
    km_status status = km_map_open(&f->text, path, err);
    s->bytes += f->text.size;
    return status;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name); /* the same order in every locale */
}

static int not_hidden(const struct dirent *e) { return e->d_name[0] != '.'; }

static km_status add_folder(km_text_source *s, const char *path, int depth, km_error *err) {
    struct dirent **list = NULL;
    if (depth == MAX_DEPTH)
        return km_error_set(err, KM_ERR_FILE, "'%s' lies too deep, %d folders down", path, depth);
    int n = scandir(path, &list, not_hidden, by_name);
    if (n < 0)
        return km_error_set(err, KM_ERR_FILE, "cannot read the folder '%s': %s", path,
                            strerror(errno));
    km_status status = KM_OK;
    for (int i = 0; i < n; i++) {
        char child[PATH_MAX];
        struct stat st;
        int length = snprintf(child, sizeof child, "%s/%s", path, list[i]->d_name);
        free(list[i]);
        if (status != KM_OK) continue;
        if (length >= (int)sizeof child || stat(child, &st) != 0)
            status = km_error_set(err, KM_ERR_FILE, "cannot read '%.300s': %s", child,
                                  strerror(errno ? errno : ENAMETOOLONG));
        else if (S_ISDIR(st.st_mode))
            status = add_folder(s, child, depth + 1, err);
        else if (S_ISREG(st.st_mode))
            status = add_file(s, child, &st, false, err);
    }
    free(list);
    return status;
}

/* ---- Arguments ---- */

/* "path:0.7" into path and weight, unless a file has the whole as its name. */
static km_status split_weight(const char *argument, km_text_source *s, km_error *err) {
    struct stat st;
    const char *colon = strrchr(argument, ':');
    char *end = NULL;
    double weight = colon && colon[1] ? strtod(colon + 1, &end) : 0;
    bool weighted = end && !*end && end != colon + 1 && stat(argument, &st) != 0;
    if (weighted && !(isfinite(weight) && weight > 0))
        return km_error_set(err, KM_ERR_RANGE, "--data '%s': a weight is a number above 0",
                            argument);
    s->path = km_strdup(argument);
    if (!s->path) return km_no_memory_for(err, "the list of text files");
    if (weighted) {
        s->path[colon - argument] = 0;
        s->weight = weight;
    }
    return KM_OK;
}

static km_status open_source(km_text_source *s, const char *argument, km_error *err) {
    struct stat st;
    km_status status = split_weight(argument, s, err);
    if (status != KM_OK) return status;
    if (stat(s->path, &st) != 0)
        return km_error_set(err, KM_ERR_FILE, "cannot open '%s': %s", s->path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        status = add_folder(s, s->path, 0, err);
        if (status == KM_OK && s->bytes == 0)
            status = km_error_set(err, KM_ERR_FILE, "the folder '%s' holds no text", s->path);
        return status;
    }
    s->tokenised = km_tokens_is(s->path);
    return s->tokenised ? KM_OK : add_file(s, s->path, &st, true, err);
}

km_status km_sources_open(km_text_source **sources, const char *const *arguments, int n,
                          km_error *err) {
    *sources = NULL;
    if (n < 1) return km_error_set(err, KM_ERR_NULL, "no text was given: use --data FILE");
    km_text_source *list = km_calloc((size_t)n, sizeof *list);
    if (!list) return km_no_memory_for(err, "the list of text files");
    for (int i = 0; i < n; i++) {
        km_status s = open_source(&list[i], arguments[i], err);
        if (s == KM_OK) continue;
        km_sources_close(list, n);
        return s;
    }
    *sources = list;
    return KM_OK;
}

void km_sources_close(km_text_source *sources, int n) {
    for (int i = 0; sources && i < n; i++) {
        for (int k = 0; k < sources[i].n_files; k++) {
            km_map_close(&sources[i].files[k].text);
            km_free(sources[i].files[k].path);
        }
        km_free(sources[i].files);
        km_free(sources[i].path);
    }
    km_free(sources);
}

/* ---- UTF-8 ---- */

km_status km_sources_check_utf8(const km_text_source *sources, int n, km_error *err) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < sources[i].n_files; k++) {
            const km_text_file *f = &sources[i].files[k];
            size_t at = km_utf8_valid((const char *)f->text.data, f->text.size);
            if (km_map_check(&f->text, err) != KM_OK) return KM_ERR_FILE;
            if (at == f->text.size) continue;
            int64_t line = 1;
            for (size_t b = 0; b < at; b++) line += f->text.data[b] == '\n';
            return km_error_set(err, KM_ERR_FORMAT,
                                "'%s' is not UTF-8: byte %zu, in line %" PRId64
                                ", is 0x%02X; convert it, or use --tokenizer bytes",
                                f->path, at, line, f->text.data[at]);
        }
    return KM_OK;
}
