/* kermes doctor: what is here, what is missing, and what to do about it. */
#include "base/module.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/model_stores.h"
#include "cli/pull/web.h"
#include "report/json.h"
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef enum health { HEALTH_GOOD, HEALTH_LACKING, HEALTH_BAD } health;

typedef struct check_list {
    json_t *rows; /* {"what", "state", "found", "advice"} */
    int bad;
} check_list;

static void say(check_list *c, const char *what, health h, const char *found, const char *advice) {
    static const char *const states[] = {"good", "lacking", "bad"};
    if (h == HEALTH_BAD) c->bad++;
    json_array_append_new(
        c->rows, json_pack("{s:s, s:s, s:o, s:o}", "what", what, "state", states[h], "found",
                           km_json_text(found), "advice",
                           advice && h != HEALTH_GOOD ? km_json_text(advice) : json_null()));
}

static void check_processor(check_list *c) {
    char *all = km_devices_json("auto");
    json_t *v = all ? json_loads(all, 0, NULL) : NULL, *m = json_object_get(v, "machine");
    char found[300], a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    const json_t *blas = json_object_get(m, "blas");
    const char *kernels = km_json_text_at(m, "kernels");
    snprintf(found, sizeof found, "%.100s, %d cores, kernels for %.40s", km_json_text_at(m, "cpu"),
             (int)json_integer_value(json_object_get(m, "cores")), kernels);
    bool fast = strcmp(kernels, "base") != 0 && strcmp(kernels, "generic") != 0;
    say(c, "processor", fast ? HEALTH_GOOD : HEALTH_LACKING, found,
        "without AVX2 or NEON everything is several times slower");
    const json_t *all_of = json_object_get(m, "memory_bytes");
    const json_t *left = json_object_get(m, "memory_available_bytes");
    double total = json_is_number(all_of) ? json_number_value(all_of) : NAN;
    double available = json_is_number(left) ? json_number_value(left) : NAN; /* no /proc */
    snprintf(found, sizeof found, "%s, %s free", km_format_bytes(a, total),
             km_format_bytes(b, available));
    say(c, "memory", available < 1e9 ? HEALTH_LACKING : HEALTH_GOOD, found,
        "close other programs, or take smaller models (--context, --cache-type q8_0)");
    bool has = json_is_true(json_object_get(blas, "available"));
    say(c, "OpenBLAS", has ? HEALTH_GOOD : HEALTH_LACKING,
        has ? km_json_text_at(blas, "name") : "not found",
        "training is faster with it: apt-get install libopenblas0-pthread");
    json_decref(v);
    km_string_free(all);
}

static void check_gpu(check_list *c) {
    char *text = km_devices_json("auto");
    json_error_t where;
    json_t *v = text ? json_loads(text, 0, &where) : NULL;
    const json_t *gpu = json_object_get(v, "gpu"), *driver = json_object_get(gpu, "driver");
    const json_t *list = json_object_get(gpu, "gpus");
    bool present = json_is_true(json_object_get(driver, "present")), usable = false;
    const char *note = "";
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *g = json_array_get(list, i);
        usable = usable || json_is_true(json_object_get(g, "usable"));
        note = km_json_text_at(g, "note");
    }
    say(c, "GPU", usable || !present ? HEALTH_GOOD : HEALTH_LACKING,
        km_json_text_at(gpu, "summary"),
        *note
            ? note
            : "install the package kermes-cuda, or rebuild where nvcc and the GPU are: cmake --preset release "
              "-DKERMES_CUDA_ARCHS=native");
    json_decref(v);
    km_string_free(text);
}

static void check_models(check_list *c) {
    char folder[PATH_MAX] = "", found[PATH_MAX + 100], a[KM_NUMBER_TEXT];
    if (!km_stores_folder(folder)) {
        say(c, "models", HEALTH_LACKING, "there is no HOME",
            "set KERMES_MODELS, or name models with -m FILE");
        return;
    }
    km_found_models left = {0}, mine = {0};
    char *path = km_model_find(NULL);
    if (path) {
        km_stores_kermes(&mine);
        snprintf(found, sizeof found, "%s%s", path, mine.n > 1 ? " and others" : "");
        say(c, "models", HEALTH_GOOD, found, NULL);
    } else {
        km_stores_others(&left);
        snprintf(found, sizeof found, "none in %s%s", folder,
                 left.n ? ", but other programs have some" : "");
        say(c, "models", HEALTH_LACKING, found,
            left.n ? "'kermes models' lists them, 'kermes pull smollm2' fetches one"
                   : "'kermes pull smollm2' fetches one");
    }
    km_stores_free(&left);
    km_stores_free(&mine);
    km_string_free(path);
    struct statvfs fs;
    while (*folder && access(folder, F_OK) != 0 && strrchr(folder, '/') > folder)
        *strrchr(folder, '/') = 0;
    if (statvfs(*folder ? folder : "/", &fs) == 0) {
        double room = (double)fs.f_bavail * (double)fs.f_frsize;
        snprintf(found, sizeof found, "%s free for models", km_format_bytes(a, room));
        say(c, "disk", room < 2e9 ? HEALTH_LACKING : HEALTH_GOOD, found,
            "models take 0.1 to 10 GB: 'kermes rm' removes, KERMES_MODELS names another place");
        bool writable = access(*folder ? folder : "/", W_OK) == 0;
        if (!writable) {
            snprintf(found, sizeof found, "%s cannot be written", folder);
            say(c, "folder", HEALTH_BAD, found, "set KERMES_MODELS to a folder of yours");
        }
    }
}

static void check_tools(check_list *c) {
    km_error err = {0};
    km_web *h = km_web_open(NULL, "", &err);
    say(c, "pull", h ? HEALTH_GOOD : HEALTH_LACKING, h ? "libcurl is here" : "libcurl is not here",
        "apt-get install libcurl4");
    km_web_close(h);
#ifdef KERMES_LIBEDIT
    say(c, "editing", HEALTH_GOOD, "lines in a chat can be edited", NULL);
#else
    say(c, "editing", HEALTH_LACKING, "lines in a chat cannot be edited",
        "apt-get install libedit-dev, and build again");
#endif
    char module[KM_MODULE_PATH];
    bool found = km_module_find("kermes-mpi.so", "KERMES_MPI_MODULE", module);
    say(c, "ranks", found ? HEALTH_GOOD : HEALTH_LACKING, found ? "MPI can be used" : "no MPI",
        "only for several processes: apt-get install libopenmpi-dev openmpi-bin, and build again");
}

static void check_terminal(check_list *c) {
    const char *names[] = {getenv("LC_ALL"), getenv("LC_CTYPE"), getenv("LANG")};
    const char *set = "";
    for (int i = 0; i < 3 && !*set; i++) set = names[i] ? names[i] : "";
    bool utf8 = !*set || strcasestr(set, "utf-8") || strcasestr(set, "utf8");
    say(c, "letters", utf8 ? HEALTH_GOOD : HEALTH_LACKING,
        *set ? set : "no locale is set, UTF-8 is taken",
        "answers are UTF-8: export LC_ALL=C.UTF-8");
}

static void print_rows(const check_list *c) {
    size_t i;
    json_t *row;
    json_array_foreach(c->rows, i, row) {
        const char *state = km_json_text_at(row, "state"), *advice = km_json_text_at(row, "advice");
        printf("%-8s %-10s %s\n", state, km_json_text_at(row, "what"),
               km_json_text_at(row, "found"));
        if (*advice) printf("%-8s %-10s -> %s\n", "", "", advice);
    }
    printf("\n%s\n", c->bad ? "something is wrong, see above"
                            : "Kermes can run here; 'kermes verify' checks every op by computing");
}

int km_command_doctor(int argc, char **argv) {
    km_common common = KM_COMMON_DEFAULTS;
    const km_option options[] = {KM_OPTION_OUTPUT_ROWS(common), {0}};
    const km_spec spec = {
        .name = "doctor",
        .summary = "Tells what is here, what is missing, and what to do.",
        .details =
            "'good' needs nothing, 'lacking' could be better, 'bad' has to be mended; the exit code\n"
            "is 1 where something is bad.\n",
        .options = options,
        .examples = "  kermes doctor\n  kermes doctor --json\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    check_list c = {.rows = json_array()};
    check_processor(&c);
    check_gpu(&c);
    check_models(&c);
    check_tools(&c);
    check_terminal(&c);
    code = c.bad ? KM_EXIT_FAILED : KM_EXIT_OK;
    if (common.json) {
        int printed = km_cli_print_json(json_pack("{s:s, s:b, s:O}", "version", km_version(),
                                                  "well", c.bad == 0, "checks", c.rows));
        if (printed != KM_EXIT_OK) code = printed;
    } else {
        print_rows(&c);
    }
    json_decref(c.rows);
    return code;
}
