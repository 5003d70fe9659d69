/* kermes models and kermes rm: what is here, and taking it away. */
#include "base/text.h"
#include "cli/cli.h"
#include "cli/model_stores.h"
#include "base/json_read.h"
#include "report/json.h"
#include "report/table.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- What a model says of itself ---- */

typedef struct model_words {
    char arch[48], licence[64];
    int64_t context; /* 0: not told */
} model_words;

static void copy_text(char *out, size_t room, const char *text) {
    if (text) snprintf(out, room, "%s", text);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 32) *c = '?';
}

static void ask_gguf(const char *path, model_words *w) {
    char key[80];
    km_file *g = km_file_open(path);
    if (!g) {
        snprintf(w->arch, sizeof w->arch, "broken");
        return;
    }
    copy_text(w->arch, sizeof w->arch, km_file_meta(g, "general.architecture"));
    copy_text(w->licence, sizeof w->licence, km_file_meta(g, "general.license"));
    snprintf(key, sizeof key, "%.48s.context_length", w->arch);
    km_file_meta_int(g, key, &w->context);
    km_file_close(g);
}

static void ask_folder(const char *path, model_words *w) {
    km_error err = {0};
    char file[PATH_MAX];
    if (snprintf(file, sizeof file, "%s/config.json", path) >= PATH_MAX) return;
    json_t *o = km_json_load(file, &err);
    const char *type = json_string_value(json_object_get(o, "model_type"));
    snprintf(w->arch, sizeof w->arch, "%.40s", type ? type : o ? "" : "broken");
    const json_t *n = json_object_get(o, "max_position_embeddings");
    if (!n) n = json_object_get(o, "n_positions");
    w->context = json_integer_value(n);
    json_decref(o);
}

static model_words ask(const km_found_model *f) {
    model_words w = {.context = 0};
    if (f->folder)
        ask_folder(f->path, &w);
    else
        ask_gguf(f->path, &w);
    return w;
}

static const char *when(char out[24], int64_t used) {
    double days = ((double)time(NULL) - (double)used) / 86400;
    if (days < 1)
        snprintf(out, 24, "today");
    else if (days < 2)
        snprintf(out, 24, "yesterday");
    else if (days < 90)
        snprintf(out, 24, "%.0f days ago", days);
    else
        snprintf(out, 24, "%.0f months ago", days / 30.4);
    return out;
}

/* ---- kermes models ---- */

static json_t *as_json(const km_found_models *m) {
    json_t *all = json_array();
    for (size_t i = 0; i < m->n; i++) {
        const km_found_model *f = &m->at[i];
        model_words w = ask(f);
        json_array_append_new(
            all, json_pack("{s:o, s:s, s:o, s:I, s:o, s:o, s:o, s:I}", "name",
                           km_json_text(f->name), "store", f->store, "path", km_json_text(f->path),
                           "bytes", (json_int_t)f->bytes, "architecture", km_json_text(w.arch),
                           "context", w.context ? json_integer(w.context) : json_null(), "licence",
                           *w.licence ? km_json_text(w.licence) : json_null(), "last_used",
                           (json_int_t)f->used));
    }
    return all;
}

static bool print_table(const km_found_models *m, bool others) {
    static const char *const titles[] = {"model",   "size",    "architecture",
                                         "context", "licence", "last used"};
    km_table t;
    char size[KM_NUMBER_TEXT], used[24];
    km_table_init(&t, "lrlrll", titles);
    for (size_t i = 0; i < m->n; i++) {
        const km_found_model *f = &m->at[i];
        model_words w = ask(f);
        if (others)
            km_table_cell(&t, "%s: %s", f->store, f->name);
        else
            km_table_cell(&t, "%s", f->name);
        km_table_cell(&t, "%s", km_format_bytes(size, (double)f->bytes));
        km_table_cell(&t, "%s", w.arch);
        if (w.context)
            km_table_cell(&t, "%lld", (long long)w.context);
        else
            km_table_cell(&t, "%s", "");
        km_table_cell(&t, "%s", w.licence);
        km_table_cell(&t, "%s", when(used, f->used));
    }
    bool ok = km_table_print(&t, stdout, 0);
    km_table_free(&t);
    return ok;
}

static int print_text(const km_found_models *mine, const km_found_models *others, bool paths) {
    char folder[PATH_MAX] = "";
    km_stores_folder(folder);
    if (mine->n)
        print_table(mine, false);
    else
        printf("no models in %s: 'kermes pull smollm2' fetches one\n", folder);
    if (others->n) {
        printf("\nleft by other programs, used where they lie (-m PATH; --paths shows it):\n");
        print_table(others, true);
    }
    for (size_t i = 0; paths && i < mine->n + others->n; i++) {
        const km_found_model *f = i < mine->n ? &mine->at[i] : &others->at[i - mine->n];
        printf("%s%s\n", i ? "" : "\n", f->path);
    }
    return KM_EXIT_OK;
}

int km_command_models(int argc, char **argv) {
    km_common common = KM_COMMON_DEFAULTS;
    bool paths = false, mine_only = false, names = false;
    const km_option options[] = {
        {"paths", KM_OPTION_FLAG, NULL, &paths, 0, 0, "where each of them lies, too"},
        {"mine", KM_OPTION_FLAG, NULL, &mine_only, 0, 0, "only those of the model folder"},
        {"names", KM_OPTION_FLAG, NULL, &names, 0, 0, "only their names, one a line"},
        KM_OPTION_OUTPUT_ROWS(common),
        {0},
    };
    const km_spec spec = {
        .name = "models",
        .summary = "Lists the models on this machine.",
        .details =
            "Those of the model folder (KERMES_MODELS, or ~/.local/share/kermes/models), and what\n"
            "ollama, LM Studio and the Hugging Face cache hold, which Kermes can use where it lies.\n",
        .options = options,
        .examples = "  kermes models\n"
                    "  kermes models --paths\n"
                    "  kermes models --json\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    km_cli_notes(common.quiet);
    km_found_models mine = {0}, others = {0};
    km_stores_kermes(&mine);
    if (!mine_only && !names) km_stores_others(&others);
    if (mine.failed || others.failed) {
        code = km_cli_fail("models: out of memory");
    } else if (common.json) {
        json_t *all = as_json(&mine), *rest = as_json(&others);
        json_array_extend(all, rest);
        json_decref(rest);
        code = km_cli_print_json(json_pack("{s:o}", "models", all));
    } else if (names) {
        for (size_t i = 0; i < mine.n; i++) puts(mine.at[i].name);
        code = KM_EXIT_OK;
    } else {
        code = print_text(&mine, &others, paths);
    }
    km_stores_free(&mine);
    km_stores_free(&others);
    return code;
}

/* ---- kermes rm ---- */

/* The only model of the folder that is meant: by its whole name, with or without .gguf, or by its
 * beginning. */
static const km_found_model *find(const km_found_models *m, const char *name, km_error *err) {
    const km_found_model *found = NULL;
    size_t length = strlen(name);
    int n = 0;
    for (size_t i = 0; i < m->n; i++) {
        const char *whole = m->at[i].name, *last = strrchr(whole, '/');
        last = last ? last + 1 : whole;
        size_t l = strlen(whole);
        bool exact = strcmp(whole, name) == 0 || strcmp(last, name) == 0 ||
                     (l == length + 5 && strncmp(whole, name, length) == 0 &&
                      strcasecmp(whole + length, ".gguf") == 0);
        if (exact) return &m->at[i];
        if (strncasecmp(whole, name, length) == 0 || strncasecmp(last, name, length) == 0) {
            found = &m->at[i];
            n++;
        }
    }
    if (n == 0)
        km_error_set(err, KM_ERR_FILE, "there is no model '%.100s' in the model folder", name);
    if (n > 1)
        km_error_set(err, KM_ERR_FILE, "'%.100s' could be several models; name one in full", name);
    return n == 1 ? found : NULL;
}

static int remove_file(const char *folder, const char *name) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= PATH_MAX) return ENAMETOOLONG;
    return unlink(path) == 0 ? 0 : errno;
}

/* A file with its other parts, or the plain files of a folder and then the folder. */
static int remove_model(const km_found_model *f) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", f->path);
    const char *of = strstr(f->name, "-of-");
    char *slash = strrchr(folder, '/');
    char name[NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", slash + 1);
    if (!f->folder) *slash = 0;
    if (!f->folder && !of) return remove_file(folder, name);
    size_t stem = 0;
    const char *at = strstr(name, "-of-");
    if (!f->folder && at && at - name > 6) stem = (size_t)(at - name - 6);
    int worst = 0;
    DIR *d = opendir(folder);
    if (!d) return errno;
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (!f->folder && (strncmp(e->d_name, name, stem) != 0 || !strstr(e->d_name, "-of-")))
            continue;
        int failed = remove_file(folder, e->d_name);
        if (failed) worst = failed;
    }
    closedir(d);
    if (f->folder && rmdir(folder) != 0 && !worst) worst = errno;
    return worst;
}

static bool agreed(const km_found_model *f) {
    char size[KM_NUMBER_TEXT], answer[16] = "";
    fprintf(stderr, "remove %s (%s)? [y/N] ", f->name, km_format_bytes(size, (double)f->bytes));
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

int km_command_rm(int argc, char **argv) {
    km_common common = KM_COMMON_DEFAULTS;
    bool yes = false;
    const km_option options[] = {
        {"yes", KM_OPTION_FLAG, NULL, &yes, 0, 0, "do not ask"},
        KM_OPTION_OUTPUT_ROWS(common),
        {0},
    };
    const km_spec spec = {
        .name = "rm",
        .words = "NAME",
        .summary = "Removes a model from the model folder.",
        .details =
            "With all parts of a split model. What other programs have left is theirs and is never\n"
            "removed.\n",
        .options = options,
        .examples = "  kermes rm SmolLM2-135M-Instruct.Q4_1\n"
                    "  kermes rm qwen2.5-0.5b --yes\n",
    };
    km_args args;
    km_error err = {0};
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words != 1) return km_cli_usage("rm: name one model; 'kermes models' lists them");
    km_found_models mine = {0};
    km_stores_kermes(&mine);
    const km_found_model *f = find(&mine, args.words[0], &err);
    code = KM_EXIT_OK;
    if (!f)
        code = km_cli_fail("rm: %s", err.text);
    else if (!yes && !isatty(STDIN_FILENO))
        code = km_cli_usage("rm: without a terminal to ask on, --yes is needed");
    else if (!yes && !agreed(f))
        code = km_cli_fail("rm: nothing was removed");
    else {
        int failed = remove_model(f);
        if (failed)
            code = km_cli_fail("rm: cannot remove all of %s: %s", f->path, strerror(failed));
        else if (common.json)
            code = km_cli_print_json(json_pack("{s:o, s:I}", "removed", km_json_text(f->path),
                                               "bytes", (json_int_t)f->bytes));
        else if (!common.quiet)
            printf("removed %s\n", f->path);
    }
    km_stores_free(&mine);
    return code;
}
