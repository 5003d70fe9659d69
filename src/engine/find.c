/* Which model is meant: a file, a folder, a training run's folder, or a name in the model folder. */
#include "base/alloc.h"
#include "base/log.h"
#include "engine/model_folder.h"
#include "model/convert.h"
#include "train/checkpoint.h"
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool is_model(const char *folder) {
    char path[PATH_MAX];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/config.json", folder);
    return n > 0 && n < (int)sizeof path && stat(path, &st) == 0;
}

static km_status find_default(char out[PATH_MAX], km_error *err) {
    int others = 0;
    km_status s = km_models_default(out, &others, err);
    if (s == KM_OK && others == 0) km_note(KM_LOG_INFO, "the model is %s", out);
    if (s == KM_OK && others > 0)
        km_note(KM_LOG_INFO, "the model is %s, the newest of %d there", out, others + 1);
    return s;
}

/* What a file that is no model looks like by its first bytes; NULL: nothing known. */
static const char *looks_like(const char *path) {
    static const struct {
        const char *magic, *name;
    } known[] = {
        {"\x89PNG", "a PNG picture"},
        {"\xFF\xD8\xFF", "a JPEG picture"},
        {"GIF8", "a GIF picture"},
        {"%PDF", "a PDF document"},
        {"PK\3\4", "a ZIP archive, or PyTorch weights"},
        {"\x1F\x8B", "a gzip archive"},
        {"\x7F"
         "ELF",
         "a program"},
        {"\x93NUMPY", "a NumPy array"},
        {"version https://git-lfs", "a Git LFS pointer, not the file itself"},
        {"<!DOCTYPE", "a web page"},
        {"<html", "a web page"},
    };
    char head[64] = "";
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(head, 1, sizeof head - 1, f) : 0;
    if (f) fclose(f);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].magic);
        if (n >= length && memcmp(head, known[i].magic, length) == 0) return known[i].name;
    }
    if (n >= 4 && memcmp(head, "GGUF", 4) == 0) return NULL;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)head[i] < 9) return "of no kind known here";
    return n ? "a text file" : f ? "an empty file" : NULL;
}

static km_status no_such_model(const char *given, km_error *err) {
    char folder[PATH_MAX];
    bool name = !strchr(given, '/') && km_models_folder(folder);
    return km_error_set(err, KM_ERR_FILE, "there is no model '%.200s': no such file%s%.200s", given,
                        name ? ", and no model of that name in " : "", name ? folder : "");
}

/* A file that was named: a GGUF file whatever it is called, or what it is instead. */
static km_status find_file(const char *given, char out[PATH_MAX], km_error *err) {
    if (snprintf(out, PATH_MAX, "%s", given) >= PATH_MAX)
        return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", given);
    const char *like = looks_like(given);
    if (like)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%.200s' is %s; a model is a GGUF file or a folder with config.json",
                            given, like);
    return KM_OK;
}

/* A folder that was named: a model's, or a training run's. */
static km_status find_in_folder(const char *given, char out[PATH_MAX], km_error *err) {
    static const char *const parts[] = {"", "/model", "/best"};
    for (int i = 0; i < 3; i++) {
        if (snprintf(out, PATH_MAX, "%s%s", given, parts[i]) >= PATH_MAX)
            return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", given);
        if (!is_model(out)) continue;
        if (i > 0) km_note(KM_LOG_INFO, "the model is that in %s", out);
        return KM_OK;
    }
    int64_t step = km_checkpoint_latest(given);
    if (step >= 0 && snprintf(out, PATH_MAX, "%s/step-%lld", given, (long long)step) < PATH_MAX) {
        km_note(KM_LOG_INFO, "the model is that in %s", out);
        return KM_OK;
    }
    return km_error_set(err, KM_ERR_FILE,
                        "the folder '%.200s' holds no model: neither config.json nor a training "
                        "run's model, best or step-N",
                        given);
}

km_status km_find_model(const char *given, char out[PATH_MAX], km_error *err) {
    struct stat st;
    if (!given) return find_default(out, err);
    if (stat(given, &st) == 0)
        return S_ISDIR(st.st_mode) ? find_in_folder(given, out, err) : find_file(given, out, err);
    if (snprintf(out, PATH_MAX, "%s.gguf", given) < PATH_MAX && stat(out, &st) == 0) return KM_OK;
    if (km_models_named(given, out, err)) {
        km_note(KM_LOG_INFO, "the model is %s", out);
        return KM_OK;
    }
    return err->code != KM_OK ? err->code : no_such_model(given, err);
}

/* ---- The public calls ---- */

static char *given_out(const char *path) {
    km_error err = {0};
    char *copy = km_strdup(path);
    if (!copy) km_no_memory_for(&err, "a path");
    km_told(&err);
    return copy;
}

char *km_model_find(const char *path) {
    km_error err = {0};
    char found[PATH_MAX];
    if (km_find_model(path, found, &err) == KM_OK) return given_out(found);
    km_told(&err);
    return NULL;
}

bool km_model_known(const char *word, bool whole) {
    if (!word) km_missing("km_model_known");
    return word && km_models_is(word, whole);
}

char *km_model_folder(void) {
    char folder[PATH_MAX];
    if (km_models_folder(folder)) return given_out(folder);
    km_public_fail(KM_ERR_FILE, "there is no HOME, and KERMES_MODELS names no folder");
    return NULL;
}
