/* What the memory benchmarks found, for people: tables, and the chart of a step's memory. All of it
 * is made from their JSON, so that a results file gives the same page as the run that wrote it. */
#include "base/alloc.h"
#include "cli/bench/bench.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/json.h"
#include <math.h>
#include <string.h>

#define GROUPS KM_CHART_COLORS /* what was there before, the largest, and all others */
#define NAME 64

/* "linear", "gradient of linear" */
static void group_name(char name[NAME], const json_t *v) {
    const char *of = km_json_text_at(v, "gradient_of"), *op = km_json_text_at(v, "op");
    if (*of)
        snprintf(name, NAME, "gradient of %s", of);
    else if (strcmp(op, "before") == 0)
        snprintf(name, NAME, "there before the step");
    else
        snprintf(name, NAME, "%s", op);
}

/* ---- The chart ---- */

typedef struct picture {
    char name[GROUPS][NAME];
    int n_groups;
    int points; /* one for each op, and the end */
    double *x, *y[GROUPS];
    char (*title)[96];
    const char **titles;
} picture;

static void picture_free(picture *p) {
    km_free(p->x);
    for (int g = 0; g < GROUPS; g++) km_free(p->y[g]);
    km_free(p->title);
    km_free(p->titles);
}

/* The groups that hold most at the peak, what was there before first, all others together last. */
static void choose_groups(picture *p, const json_t *memory) {
    const json_t *list = json_object_get(memory, "at_peak");
    char name[NAME];
    snprintf(p->name[p->n_groups++], NAME, "there before the step");
    for (size_t i = 0; i < json_array_size(list) && p->n_groups < GROUPS - 1; i++) {
        group_name(name, json_array_get(list, i));
        int g = 0;
        while (g < p->n_groups && strcmp(p->name[g], name) != 0) g++;
        if (g == p->n_groups) memcpy(p->name[p->n_groups++], name, NAME);
    }
    snprintf(p->name[p->n_groups++], NAME, "others");
}

static int group_of(const picture *p, const json_t *event) {
    char name[NAME];
    group_name(name, event);
    int g = 0;
    while (g < p->n_groups - 1 && strcmp(p->name[g], name) != 0) g++;
    return g;
}

/* For each op the moment when it held the most. */
static bool fill_in(picture *p, const json_t *memory) {
    const json_t *list = json_object_get(memory, "timeline");
    double ops = km_json_number_at(memory, "ops"), held[GROUPS] = {0}, most = 0;
    if (!(ops >= 0 && ops < 1e6)) return false;
    p->points = (int)ops + 2;
    size_t n = (size_t)p->points;
    p->x = km_calloc(n, sizeof *p->x);
    p->title = km_calloc(n, sizeof *p->title);
    p->titles = km_calloc(n, sizeof *p->titles);
    bool ok = p->x && p->title && p->titles;
    for (int g = 0; g < p->n_groups; g++) ok = (p->y[g] = km_calloc(n, sizeof **p->y)) && ok;
    if (!ok) return false;
    int at = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        double index = km_json_number_at(e, "index"), live = km_json_number_at(e, "live"),
               bytes = km_json_number_at(e, "bytes");
        if (!(index >= at && index <= ops) || !isfinite(bytes)) return false;
        for (; at < index; at++) { /* an op starts from what the one before left */
            most = 0;
            for (int g = 0; g < p->n_groups; g++) most += p->y[g][at + 1] = held[g];
        }
        held[group_of(p, e)] += bytes;
        if (bytes > 0 && at > 0) {
            const char *of = km_json_text_at(e, "gradient_of");
            snprintf(p->title[at], sizeof *p->title, " %.30s%s%.30s", km_json_text_at(e, "op"),
                     *of ? " for the gradient of " : "", of);
        }
        if (live <= most) continue;
        most = live;
        for (int g = 0; g < p->n_groups; g++) p->y[g][at] = held[g];
    }
    for (; at + 1 < p->points; at++)
        for (int g = 0; g < p->n_groups; g++) p->y[g][at + 1] = held[g];
    for (int k = 0; k < p->points; k++) {
        char bytes[KM_NUMBER_TEXT], name[80];
        double live = 0;
        for (int g = 0; g < p->n_groups; g++) live += p->y[g][k];
        snprintf(name, sizeof name, "%s", p->title[k]);
        snprintf(p->title[k], sizeof *p->title, "op %d%.60s: %s", k, name,
                 km_format_bytes(bytes, live));
        p->x[k] = k;
        p->titles[k] = p->title[k];
    }
    return true;
}

static void add_chart(const json_t *memory, km_text *page) {
    picture p = {0};
    choose_groups(&p, memory);
    if (fill_in(&p, memory)) {
        double peak = km_json_number_at(memory, "peak_bytes"), zero = 0;
        char name[80], bytes[KM_NUMBER_TEXT];
        snprintf(name, sizeof name, "peak: %s", km_format_bytes(bytes, peak));
        static const int colors[GROUPS] = {3, 1, 2, 4, 5, 6, 7, 8};
        km_series series[GROUPS + 1];
        for (int g = 0; g < p.n_groups; g++)
            series[g] = (km_series){.name = p.name[g],
                                    .x = p.x,
                                    .y = p.y[g],
                                    .titles = g == p.n_groups - 1 ? p.titles : NULL,
                                    .n = p.points,
                                    .kind = KM_SERIES_STACK,
                                    .color = colors[g < p.n_groups - 1 ? g : GROUPS - 1]};
        series[p.n_groups] =
            (km_series){.name = name, .x = &zero, .y = &peak, .n = 1, .kind = KM_SERIES_LIMIT};
        km_chart c = {.title = "Bytes in tensors, op by op",
                      .note = "by the op that made them, at the moment of each op when most is in "
                              "use; forward, backward, update",
                      .x = {.label = "op", .ticks = KM_TICKS_NUMBER},
                      .y = {.label = "in use", .ticks = KM_TICKS_BYTES, .from_zero = true},
                      .series = series,
                      .n_series = p.n_groups + 1,
                      .wide = true};
        km_chart_html(&c, page);
    } else {
        km_html_note(page, "The timeline cannot be drawn.");
    }
    picture_free(&p);
}

/* ---- Tables ---- */

void km_memory_table(const json_t *memory, km_table *t, int most) {
    const json_t *list = json_object_get(memory, "at_peak");
    double peak = km_json_number_at(memory, "peak_bytes");
    km_table_init(t, "llrrr",
                  (const char *const[]){"made by", "for", "buffers", "bytes", "of the peak"});
    for (size_t i = 0; i < json_array_size(list) && (int)i < most; i++) {
        const json_t *h = json_array_get(list, i);
        const char *of = km_json_text_at(h, "gradient_of"), *op = km_json_text_at(h, "op");
        bool before = strcmp(op, "before") == 0;
        char bytes[KM_NUMBER_TEXT];
        km_table_cell(t, "%s", before ? "there before the step" : op);
        km_table_cell(t, "%s%s", before ? "" : *of ? "the gradient of " : "the forward pass", of);
        if (before)
            km_table_cell(t, "-");
        else
            km_table_cell(t, "%.0f", km_json_number_at(h, "buffers"));
        km_table_cell(t, "%s", km_format_bytes(bytes, km_json_number_at(h, "bytes")));
        km_table_cell(t, "%.1f%%", 100 * km_json_number_at(h, "bytes") / peak);
    }
}

void km_pool_table(const json_t *pool, km_table *t) {
    const json_t *devices = json_object_get(pool, "devices");
    km_table_init(t, "lrrrr",
                  (const char *const[]){"device", "buffer", "pool", "system or driver", "times"});
    for (size_t d = 0; d < json_array_size(devices); d++) {
        const json_t *device = json_array_get(devices, d), *list = json_object_get(device, "sizes");
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *s = json_array_get(list, i);
            char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT], c[KM_NUMBER_TEXT], r[KM_NUMBER_TEXT];
            km_table_cell(t, "%s", km_json_text_at(device, "device"));
            km_table_cell(t, "%s", km_format_bytes(a, km_json_number_at(s, "bytes")));
            km_table_cell(t, "%s", km_format_seconds(b, 1e-9 * km_json_number_at(s, "pool_ns")));
            km_table_cell(t, "%s", km_format_seconds(c, 1e-9 * km_json_number_at(s, "system_ns")));
            km_table_cell(t, "%s", km_format_number(r, km_json_number_at(s, "ratio")));
        }
    }
}

/* "cpu: 20 steps of training took 4000 buffers, 0 of them from the system" */
static void steady_line(const json_t *device, char *line, size_t size) {
    const json_t *s = json_object_get(device, "steady");
    snprintf(line, size,
             "%s: %.0f warm training steps took %.0f buffers, %.0f of them from the system or "
             "driver, and made %.0f heap allocations.",
             km_json_text_at(device, "device"), km_json_number_at(s, "steps"),
             km_json_number_at(s, "buffers"), km_json_number_at(s, "system_allocations"),
             km_json_number_at(s, "heap_allocations"));
}

/* ---- Text ---- */

static void step_line(const json_t *m, char *line, size_t size) {
    snprintf(line, size,
             "%.0f layers, %.0f wide, %.0f heads, %.0f x %.0f tokens, %.1fM parameters, on %s",
             km_json_number_at(m, "layers"), km_json_number_at(m, "width"),
             km_json_number_at(m, "heads"), km_json_number_at(m, "batch"),
             km_json_number_at(m, "tokens"), km_json_number_at(m, "parameters") / 1e6,
             km_json_text_at(m, "device"));
}

void km_memory_print(const json_t *memory, FILE *out) {
    char line[200], peak[KM_NUMBER_TEXT], before[KM_NUMBER_TEXT];
    km_table t;
    step_line(memory, line, sizeof line);
    fprintf(out, "\nMemory of a training step: %s\n", line);
    fprintf(out, "  %s at most, in op %.0f of %.0f (%s); %s were there before the step\n",
            km_format_bytes(peak, km_json_number_at(memory, "peak_bytes")),
            km_json_number_at(memory, "peak_index"), km_json_number_at(memory, "ops"),
            km_json_text_at(memory, "peak_op"),
            km_format_bytes(before, km_json_number_at(memory, "before_bytes")));
    km_memory_table(memory, &t, 10);
    km_table_print(&t, out, 2);
    km_table_free(&t);
}

void km_pool_print(const json_t *pool, FILE *out) {
    const json_t *devices = json_object_get(pool, "devices");
    char line[240];
    km_table t;
    fprintf(out, "\nMemory pool: a buffer taken and given back\n");
    km_pool_table(pool, &t);
    km_table_print(&t, out, 2);
    km_table_free(&t);
    for (size_t i = 0; i < json_array_size(devices); i++) {
        steady_line(json_array_get(devices, i), line, sizeof line);
        fprintf(out, "  %s\n", line);
    }
}

/* ---- HTML ---- */

void km_memory_html(const json_t *memory, km_text *page) {
    char line[240], v[3][KM_NUMBER_TEXT];
    km_table t;
    step_line(memory, line, sizeof line);
    strncat(line, ": one step once it is warm.", sizeof line - strlen(line) - 1);
    km_html_section(page, "Memory of a training step", line);
    snprintf(v[2], sizeof v[2], "%.0f", km_json_number_at(memory, "ops"));
    const km_tile tiles[] = {
        {km_format_bytes(v[0], km_json_number_at(memory, "peak_bytes")), "", "in tensors at most"},
        {km_format_bytes(v[1], km_json_number_at(memory, "before_bytes")), "",
         "there before the step"},
        {v[2], "", "ops in a step"},
    };
    km_html_tiles(page, tiles, 3);
    add_chart(memory, page);
    km_html_note(page, "What holds the memory at the peak:");
    km_memory_table(memory, &t, 15);
    km_table_html(&t, page);
    km_table_free(&t);
}

void km_pool_html(const json_t *pool, km_text *page) {
    const json_t *devices = json_object_get(pool, "devices");
    char line[240];
    km_table t;
    km_html_section(
        page, "Memory pool",
        "A buffer taken and given back, by the pool and by what is under it: the system "
        "on a CPU, the driver on a GPU.");
    km_pool_table(pool, &t);
    km_table_html(&t, page);
    km_table_free(&t);
    for (size_t i = 0; i < json_array_size(devices); i++) {
        steady_line(json_array_get(devices, i), line, sizeof line);
        km_html_note(page, line);
    }
}
