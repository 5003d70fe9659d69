/* kermes pull: a model from a hub, or from any address, into the model folder. */
#include "base/log.h"
#include "cli/cli.h"
#include "cli/model_stores.h"
#include "cli/pull/fetch.h"
#include "cli/pull/hub.h"
#include "report/json.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct pull_settings {
    km_common common;
    const char *out;
    bool list, dry;
    char folder[PATH_MAX];
    char endpoint[200];
    json_t *files; /* what was fetched or is there */
} pull_settings;

static km_status make_folder(const char *path, km_error *err) {
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(part, 0777);
        *slash = '/';
    }
    if (mkdir(part, 0777) == 0 || errno == EEXIST) return KM_OK;
    return km_error_set(err, KM_ERR_FILE, "cannot make %.200s: %s", path, strerror(errno));
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Bytes of a path as they may stand in a URL. */
static void add_escaped(km_text *url, const char *path) {
    for (; *path; path++) {
        bool plain = strchr("-_.~/", *path) || (*path >= '0' && *path <= '9') ||
                     ((*path | 32) >= 'a' && (*path | 32) <= 'z');
        if (plain)
            km_text_put(url, path, 1);
        else
            km_text_printf(url, "%%%02X", (unsigned char)*path);
    }
}

/* One file of the list, unless it is there already, whole. */
static km_status fetch(pull_settings *o, km_web *h, const char *url, const km_pull_file *f,
                       const char *to, km_error *err) {
    char path[PATH_MAX];
    struct stat st;
    if (snprintf(path, sizeof path, "%s/%s", to, last_name(f->path)) >= PATH_MAX)
        return km_error_set(err, KM_ERR_FILE, "the path is too long");
    bool there = stat(path, &st) == 0 && (f->size < 0 || st.st_size == f->size);
    km_status s = KM_OK;
    if (there) {
        km_note(KM_LOG_INFO, "%s is here already", path);
    } else if (!o->dry) {
        s = km_fetch_file(h,
                          &(km_fetch){.url = url,
                                      .path = path,
                                      .size = f->size,
                                      .sum = f->sum,
                                      .shown = last_name(f->path),
                                      .quiet = o->common.quiet},
                          err);
    }
    if (s == KM_OK)
        json_array_append_new(o->files,
                              json_pack("{s:o, s:I, s:s, s:b}", "path", km_json_text(path), "bytes",
                                        (json_int_t)(f->size >= 0           ? f->size
                                                     : stat(path, &st) == 0 ? st.st_size
                                                                            : 0),
                                        "sha256", f->sum, "was_here", there));
    if (s == KM_OK && !there && !o->common.json) printf("%s\n", path);
    return s;
}

static km_status pull_repo(pull_settings *o, km_web *h, const km_pull_name *name, km_error *err) {
    km_pull_list list = {0};
    bool folder = false;
    char to[PATH_MAX];
    km_status s = km_pull_files(h, o->endpoint, name, &list, err);
    if (s == KM_OK) s = km_pull_choose(name, &list, &folder, err);
    int n = snprintf(to, sizeof to, "%s%s%s", o->folder, folder ? "/" : "",
                     folder ? last_name(name->repo) : "");
    if (s == KM_OK && n >= PATH_MAX) s = km_error_set(err, KM_ERR_FILE, "the path is too long");
    if (s == KM_OK) s = make_folder(to, err);
    /* config.json is what makes a folder a model: it comes last */
    for (int last = 0; last < 2; last++)
        for (size_t i = 0; s == KM_OK && i < list.n; i++) {
            km_text url = {0};
            if ((strcmp(list.at[i].path, "config.json") == 0) != last) continue;
            km_text_printf(&url, "%s/%s/resolve/%s/", o->endpoint, name->repo, name->revision);
            add_escaped(&url, list.at[i].path);
            s = fetch(o, h, km_text_str(&url), &list.at[i], to, err);
            km_text_free(&url);
        }
    km_pull_list_free(&list);
    return s;
}

/* An address: the file is called as its last part. */
static km_status pull_url(pull_settings *o, km_web *h, const char *url, km_error *err) {
    km_pull_file f = {.size = -1};
    const char *end = url + strcspn(url, "?#"), *from = end;
    while (from > url && from[-1] != '/') from--;
    snprintf(f.path, sizeof f.path, "%.*s", (int)(end - from), from);
    if (!km_pull_safe(f.path) || strchr(f.path, '%'))
        return km_error_set(err, KM_ERR_RANGE,
                            "pull: the address ends with no name that a file can have: '%.100s'",
                            f.path);
    km_status s = make_folder(o->folder, err);
    return s == KM_OK ? fetch(o, h, url, &f, o->folder, err) : s;
}

static km_status find_endpoint(pull_settings *o, km_error *err) {
    const char *given = getenv("HF_ENDPOINT");
    char origin[300];
    int n = snprintf(o->endpoint, sizeof o->endpoint, "%s", given && *given ? given : KM_PULL_HUB);
    while (n > 0 && o->endpoint[n - 1] == '/') o->endpoint[--n] = 0;
    if (n >= (int)sizeof o->endpoint || !km_web_origin(o->endpoint, origin))
        return km_error_set(err, KM_ERR_RANGE, "HF_ENDPOINT is no http or https address: '%.60s'",
                            given);
    return KM_OK;
}

static km_status pull(pull_settings *o, const km_pull_name *name, km_error *err) {
    km_web *h = km_web_open(getenv("HF_TOKEN"), o->endpoint, err);
    if (!h) return err->code;
    km_status s = name->url ? pull_url(o, h, name->url, err) : pull_repo(o, h, name, err);
    km_web_close(h);
    return s;
}

static int list_names(const km_common *common) {
    km_text names = {0};
    km_pull_short_names(&names);
    if (common->json) {
        json_t *all = json_object();
        for (char *line = strtok(names.data, "\n"); line; line = strtok(NULL, "\n")) {
            char *tab = strchr(line, '\t');
            *tab = 0;
            json_object_set_new(all, line, json_string(tab + 1));
        }
        km_text_free(&names);
        return km_cli_print_json(all);
    }
    for (char *line = strtok(names.data, "\n"); line; line = strtok(NULL, "\n")) {
        char *tab = strchr(line, '\t');
        printf("%-14.*s %s\n", (int)(tab - line), line, tab + 1);
    }
    km_text_free(&names);
    return KM_EXIT_OK;
}

int km_command_pull(int argc, char **argv) {
    pull_settings o = {.common = KM_COMMON_DEFAULTS};
    const km_option options[] = {
        {"out", KM_OPTION_TEXT, "DIR", &o.out, 0, 0,
         "put it there and not into the model folder; also -o"},
        {"list", KM_OPTION_FLAG, NULL, &o.list, 0, 0, "show the short names"},
        {"dry-run", KM_OPTION_FLAG, NULL, &o.dry, 0, 0,
         "tell what would be fetched, and fetch nothing"},
        KM_OPTION_OUTPUT_ROWS(o.common),
        {0},
    };
    const km_spec spec = {
        .name = "pull",
        .words = "NAME",
        .summary = "Fetches a model into the model folder.",
        .details =
            "NAME is OWNER/REPOSITORY of Hugging Face, with :QUANT for one of its GGUF files\n"
            "(default: Q4_K_M, or what comes nearest); an address; or a short name. Files come in\n"
            "pieces, several at a time, are checked by the hub's SHA-256, and lie there as plain\n"
            "files; what was broken off is gone on with. HF_TOKEN is sent to the hub alone;\n"
            "HF_ENDPOINT names another hub, https_proxy and no_proxy are kept to.\n",
        .options = options,
        .examples = "  kermes pull smollm2\n"
                    "  kermes pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0\n"
                    "  kermes pull HuggingFaceTB/SmolLM2-135M-Instruct\n"
                    "  kermes pull https://example.org/models/mine.gguf -o models\n"
                    "  kermes pull --list\n",
    };
    km_args args;
    km_error err = {0};
    km_pull_name name;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (o.list) return list_names(&o.common);
    if (args.n_words != 1)
        return km_cli_usage("pull: name one model: kermes pull OWNER/NAME[:QUANT]");
    if (km_pull_parse(args.words[0], &name, &err) != KM_OK || find_endpoint(&o, &err) != KM_OK)
        return km_cli_usage("%s", err.text);
    km_cli_notes(o.common.quiet);
    if (o.out)
        snprintf(o.folder, sizeof o.folder, "%s", o.out);
    else if (!km_stores_folder(o.folder))
        return km_cli_fail("pull: there is no HOME, so no model folder: name one with -o DIR");
    o.files = json_array();
    km_status s = pull(&o, &name, &err);
    if (s != KM_OK)
        code = km_cli_fail("%s", err.text);
    else if (o.common.json)
        code = km_cli_print_json(json_pack("{s:s, s:O}", "name", args.words[0], "files", o.files));
    else
        code = KM_EXIT_OK;
    json_decref(o.files);
    return code;
}
