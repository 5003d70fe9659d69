/* kermes bench --from FILE: a report from a results file of scripts/gpu-check. Nothing is measured
 * and nothing in the file is trusted: what is missing or of another kind is left out. */
#include "cli/bench/bench.h"
#include "report/html.h"
#include "report/json.h"
#include <math.h>
#include <string.h>

static const json_t *named(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(km_json_text_at(json_array_get(list, i), "name"), name) == 0)
            return json_array_get(list, i);
    return NULL;
}

typedef struct verdict {
    char wanted[64];
    int met; /* 1, 0, or -1: nothing is wanted, or it cannot be told */
} verdict;

static verdict judge(const json_t *results, const json_t *figure) {
    const json_t *target =
        json_object_get(json_object_get(results, "targets"), km_json_text_at(figure, "name"));
    const json_t *torch = named(json_object_get(results, "torch"), km_json_text_at(figure, "name"));
    const json_t *other = named(json_object_get(results, "kermes"), km_json_text_at(target, "of"));
    double rate = km_json_number_at(figure, "rate"), value = NAN, bound = NAN;
    verdict v = {"", -1};
    if (isfinite(bound = km_json_number_at(target, "of_pytorch"))) {
        value = rate / km_json_number_at(torch, "rate");
        snprintf(v.wanted, sizeof v.wanted, "%g x PyTorch", bound);
    } else if (isfinite(bound = km_json_number_at(target, "rate"))) {
        value = rate;
        snprintf(v.wanted, sizeof v.wanted, "%g %.20s", bound, km_json_text_at(figure, "unit"));
    } else if (isfinite(bound = km_json_number_at(target, "us"))) {
        value = -km_json_number_at(figure, "us");
        snprintf(v.wanted, sizeof v.wanted, "at most %g us", bound);
        bound = -bound;
    } else if (isfinite(bound = km_json_number_at(target, "at_least"))) {
        value = rate / km_json_number_at(other, "rate");
        snprintf(v.wanted, sizeof v.wanted, "%g x cuBLAS (is %.2f)", bound, value);
    }
    if (isfinite(value) && isfinite(bound)) v.met = value >= bound;
    return v;
}

static void figures_table(const json_t *results, km_table *t, int *met, int *missed) {
    const json_t *list = json_object_get(results, "kermes"),
                 *torch = json_object_get(results, "torch");
    *met = *missed = 0;
    km_table_init(
        t, "lrrrrll",
        (const char *const[]){"work", "us", "Kermes", "PyTorch", "ratio", "wanted", "result"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *f = json_array_get(list, i);
        if (!*km_json_text_at(f, "name")) continue;
        char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT], c[KM_NUMBER_TEXT], d[KM_NUMBER_TEXT];
        double theirs = km_json_number_at(named(torch, km_json_text_at(f, "name")), "rate");
        verdict v = judge(results, f);
        *met += v.met == 1;
        *missed += v.met == 0;
        km_table_cell(t, "%s", km_json_text_at(f, "name"));
        km_table_cell(t, "%s", km_format_number(a, km_json_number_at(f, "us")));
        km_table_cell(t, "%s %s", km_format_number(b, km_json_number_at(f, "rate")),
                      km_json_text_at(f, "unit"));
        km_table_cell(t, "%s", km_format_number(c, theirs));
        km_table_cell(t, "%s", km_format_number(d, km_json_number_at(f, "rate") / theirs));
        km_table_cell(t, "%s", v.wanted);
        km_table_cell(t, "%s", v.met == 1 ? "met" : v.met == 0 ? "MISSED" : "");
    }
}

/* How many checks there are; *failed: how many of them failed. */
static int checks_table(const json_t *results, km_table *t, int *failed) {
    const json_t *list = json_object_get(results, "checks");
    *failed = 0;
    km_table_init(t, "llr", (const char *const[]){"check", "result", "seconds"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        const char *result = km_json_text_at(c, "result");
        km_table_cell(t, "%s", km_json_text_at(c, "name"));
        km_table_cell(t, "%s", result);
        km_table_cell(t, "%.0f", km_json_number_at(c, "seconds"));
        *failed += strcmp(result, "ok") != 0 && strncmp(result, "skipped", 7) != 0;
    }
    return (int)json_array_size(list);
}

static void write_page(const json_t *results, km_text *page) {
    const json_t *bench = json_object_get(results, "bench");
    const json_t *memory = json_object_get(bench, "memory"), *pool = json_object_get(bench, "pool");
    char title[120], lead[200], v[3][KM_NUMBER_TEXT], line[200];
    km_table figures, checks;
    int met, missed, failed;
    figures_table(results, &figures, &met, &missed);
    int n_checks = checks_table(results, &checks, &failed);
    const char *torch = km_json_text_at(results, "torch_version");
    const char *model = km_json_text_at(results, "model");
    snprintf(title, sizeof title, "Kermes on %.80s",
             *model ? model : km_json_text_at(results, "gpu"));
    snprintf(lead, sizeof lead, "%.40s, %s%.40s%s. Written by scripts/gpu-check.",
             km_json_text_at(results, "date"), *torch ? "PyTorch " : "no PyTorch beside", torch,
             *torch ? " in the same run" : "");
    km_html_begin(page, title, lead);
    snprintf(v[0], sizeof v[0], "%d of %d", met, met + missed);
    snprintf(v[1], sizeof v[1], "%d of %d", n_checks - failed, n_checks);
    snprintf(v[2], sizeof v[2], "%.0f",
             km_json_number_at(json_object_get(results, "verify"), "checks"));
    const km_tile tiles[] = {{v[0], "", "speed targets met"},
                             {v[1], "", "checks passed or skipped"},
                             {v[2], "", "ops and dtypes against the reference"}};
    km_html_tiles(page, tiles, 3);
    km_html_section(page, "Speed",
                    "Every run is a replay of a captured graph; the best of seven "
                    "rounds, PyTorch's in graphs too.");
    km_table_html(&figures, page);
    if (json_is_object(memory)) km_memory_html(memory, page);
    if (json_is_object(pool)) km_pool_html(pool, page);
    if (n_checks) {
        snprintf(line, sizeof line,
                 "Tests on the GPU, every op against the reference, and the same "
                 "under compute-sanitizer: %d failed.",
                 failed);
        km_html_section(page, "Checks", line);
        km_table_html(&checks, page);
    }
    km_table_free(&figures);
    km_table_free(&checks);
    snprintf(line, sizeof line, "Kermes %.40s", km_json_text_at(bench, "kermes"));
    km_html_end(page, line);
}

static void print(const json_t *results) {
    const json_t *bench = json_object_get(results, "bench");
    const json_t *memory = json_object_get(bench, "memory"), *pool = json_object_get(bench, "pool");
    km_table figures, checks;
    int met, missed, failed;
    figures_table(results, &figures, &met, &missed);
    printf("%s, %s: %d targets met, %d missed\n", km_json_text_at(results, "gpu"),
           km_json_text_at(results, "date"), met, missed);
    km_table_print(&figures, stdout, 2);
    if (json_is_object(memory)) km_memory_print(memory, stdout);
    if (json_is_object(pool)) km_pool_print(pool, stdout);
    int n_checks = checks_table(results, &checks, &failed);
    if (n_checks) {
        printf("\n%d checks, %d failed\n", n_checks, failed);
        km_table_print(&checks, stdout, 2);
    }
    km_table_free(&figures);
    km_table_free(&checks);
}

int km_bench_from(const char *path, const char *html) {
    json_error_t where;
    json_t *results = json_load_file(path, 0, &where);
    if (!results) return km_cli_fail("bench: %s, line %d: %s", path, where.line, where.text);
    int code = KM_EXIT_OK;
    if (!json_is_array(json_object_get(results, "kermes"))) {
        code = km_cli_fail("bench: %s is not a results file of scripts/gpu-check", path);
    } else if (html) {
        km_text page = {0};
        km_error err = {0};
        write_page(results, &page);
        if (km_html_write(&page, html, &err) != KM_OK) code = km_cli_fail("%s", err.text);
        km_text_free(&page);
    } else {
        print(results);
    }
    json_decref(results);
    return code;
}
