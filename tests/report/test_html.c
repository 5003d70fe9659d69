/* Pages and charts: well formed whatever goes in, nothing fetched from outside, written whole. */
#include "base/alloc.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/table.h"
#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Checks that tags nest and close, attributes are quoted, and & and < appear only as entities and
 * tags. Our pages close every element, so this is stricter than HTML. Returns NULL or the place
 * where it goes wrong. */
static const char *malformed(const char *s) {
    char open[64][16];
    int depth = 0;
    if (strncmp(s, "<!DOCTYPE html>", 15) == 0) s += 15;
    while (*s) {
        if (*s == '&') {
            const char *end = strchr(s, ';');
            if (!end || end - s > 7 || end - s < 2) return s;
        }
        if (*s != '<') {
            if (*s == '>' && !(depth && strcmp(open[depth - 1], "style") == 0)) return s;
            s++;
            continue;
        }
        const char *start = s++;
        bool closing = *s == '/';
        if (closing) s++;
        char name[16];
        int n = 0;
        while (isalnum((unsigned char)*s) && n < 15) name[n++] = *s++;
        name[n] = '\0';
        if (n == 0) return start;
        bool single = false;
        while (*s && *s != '>') { /* attributes */
            if (*s == '"') {
                s = strpbrk(s + 1, "\"<");
                if (!s || *s == '<') return start;
            } else if (*s == '<') {
                return start;
            }
            single = *s == '/';
            s++;
        }
        if (*s++ != '>') return start;
        if (closing) {
            if (depth == 0 || strcmp(open[depth - 1], name) != 0) return start;
            depth--;
        } else if (!single) {
            if (depth == 64) return start;
            memcpy(open[depth++], name, sizeof name);
        }
    }
    return depth ? "end of text with open tags" : NULL;
}

static void assert_well_formed(const km_text *t) {
    assert_true(km_text_ok(t));
    const char *where = malformed(km_text_str(t));
    if (where) fail_msg("malformed at: %.80s", where);
}

static int count(const char *s, const char *what) {
    int n = 0;
    for (; (s = strstr(s, what)); s += strlen(what)) n++;
    return n;
}

static void the_checker_itself_finds_broken_markup(void **state) {
    (void)state;
    assert_null(malformed("<a b=\"c\">x &amp; y<d/></a>"));
    assert_non_null(malformed("<a><b></a></b>"));
    assert_non_null(malformed("<a>"));
    assert_non_null(malformed("a & b"));
    assert_non_null(malformed("a < b"));
    assert_non_null(malformed("<a b=\"c>x</a>"));
}

static const double sizes[] = {128, 256, 512, 1024};
static const double rates[] = {1.5, NAN, 80, 160};
static const double peak[] = {200};

static km_chart example(const km_series *series, int n) {
    return (km_chart){.title = "matmul <f32> & \"friends\"",
                      .note = "it's the best of 5",
                      .x = {.label = "n", .scale = KM_SCALE_LOG2},
                      .y = {.label = "GFLOP/s", .from_zero = true},
                      .series = series,
                      .n_series = n};
}

/* The largest and smallest y of a path made of M x y, H x and V y. */
static void path_range(const char *path, double *lo, double *hi) {
    *lo = INFINITY;
    *hi = -INFINITY;
    for (const char *p = path; *p != '"'; p++) {
        double x, y;
        bool has = *p == 'V' ? sscanf(p + 1, "%lf", &y) == 1
                             : *p == 'M' && sscanf(p + 1, "%lf %lf", &x, &y) == 2;
        if (!has) continue;
        *lo = fmin(*lo, y);
        *hi = fmax(*hi, y);
    }
}

static void stacks_stand_on_each_other(void **state) {
    (void)state;
    static const double x[] = {0, 1, 2, 3}, first[] = {1, 1, 1, 1}, second[] = {2, 3, NAN, 0};
    static const char *const titles[] = {"a<", "b", "c", "d"};
    const km_series series[] = {
        {.name = "below", .x = x, .y = first, .n = 4, .kind = KM_SERIES_STACK},
        {.name = "above & more",
         .x = x,
         .y = second,
         .n = 4,
         .kind = KM_SERIES_STACK,
         .titles = titles},
    };
    km_chart c = {.title = "memory",
                  .x = {.label = "op"},
                  .y = {.label = "bytes", .ticks = KM_TICKS_BYTES, .from_zero = true},
                  .series = series,
                  .n_series = 2,
                  .wide = true};
    km_text t = {0};
    km_chart_html(&c, &t);
    assert_well_formed(&t);
    assert_null(strstr(t.data, "nan"));
    assert_int_equal(count(t.data, "<rect "), 4);
    assert_non_null(strstr(t.data, "a&lt;"));
    assert_non_null(strstr(t.data, ">4 B</text>")); /* the axis goes up to the sum */
    double lo[2], hi[2];
    const char *at = t.data;
    for (int i = 0; i < 2; i++) {
        at = strstr(at, "class=\"stack");
        assert_non_null(at);
        at = strstr(at, " d=\"") + 4;
        path_range(at, &lo[i], &hi[i]);
    }
    assert_true(fabs(lo[0] - hi[1]) < 0.2); /* the upper one begins where the lower one ends */
    assert_true(fabs((hi[0] - lo[0]) * 3 - (hi[1] - lo[1])) < 0.5);
    km_text_free(&t);
}

static void a_chart_draws_every_finite_point_and_every_series_name(void **state) {
    (void)state;
    const km_series series[] = {
        {.name = "cpu & co", .x = sizes, .y = rates, .n = 4},
        {.name = "limit <peak>", .x = sizes, .y = peak, .n = 1, .kind = KM_SERIES_LIMIT},
        {.name = "held", .x = sizes, .y = rates, .n = 4, .kind = KM_SERIES_AREA},
    };
    km_chart c = example(series, 3);
    km_text t = {0};
    km_chart_html(&c, &t);
    assert_well_formed(&t);
    assert_int_equal(count(t.data, "class=\"hit\""), 3); /* one of the four is not a number */
    assert_int_equal(count(t.data, "class=\"limit\"><path"), 1);
    assert_int_equal(count(t.data, "class=\"area c"), 1);
    assert_int_equal(count(t.data, "<li"), 3);
    assert_non_null(strstr(t.data, "limit &lt;peak&gt;"));
    assert_non_null(strstr(t.data, "matmul &lt;f32&gt; &amp; &quot;friends&quot;"));
    for (int i = 0; i < 4; i++) { /* powers of two get their ticks */
        char tick[32];
        snprintf(tick, sizeof tick, ">%g</text>", sizes[i]);
        assert_non_null(strstr(t.data, tick));
    }
    assert_null(strstr(t.data, "nan"));
    km_text_free(&t);
}

static void hostile_values_never_break_the_drawing(void **state) {
    (void)state;
    const double values[] = {-1, 0, 1e-300, 1e300, INFINITY, -INFINITY, NAN, 5};
    for (int sx = KM_SCALE_LINEAR; sx <= KM_SCALE_LOG10; sx++)
        for (int sy = KM_SCALE_LINEAR; sy <= KM_SCALE_LOG10; sy++)
            for (int kind = KM_SERIES_LINE; kind <= KM_SERIES_LIMIT; kind++)
                for (int n = 0; n <= 8; n++) {
                    const km_series s = {
                        .name = "s", .x = values, .y = values, .n = n, .kind = kind};
                    km_chart c = example(&s, 1);
                    c.x.scale = sx;
                    c.y.scale = sy;
                    km_text t = {0};
                    km_chart_html(&c, &t);
                    assert_well_formed(&t);
                    assert_null(strstr(t.data, "nan"));
                    assert_null(strstr(t.data, "inf"));
                    km_text_free(&t);
                }
}

static void a_chart_without_data_says_so(void **state) {
    (void)state;
    km_chart c = example(NULL, 0);
    km_text t = {0};
    km_chart_html(&c, &t);
    assert_well_formed(&t);
    assert_non_null(strstr(t.data, "Nothing was measured"));
    km_text_free(&t);
}

static void build_page(km_text *t) {
    const km_series series[] = {{.name = "cpu", .x = sizes, .y = rates, .n = 4}};
    km_chart c = example(series, 1);
    km_html_begin(t, "Bench <1>", "lead & text");
    km_html_tiles(t, (const km_tile[]){{"165", "GFLOP/s", "matmul"}, {"2<3", NULL, "x"}}, 2);
    km_html_section(t, "A & B", "words");
    km_html_charts_begin(t);
    km_chart_html(&c, t);
    km_html_charts_end(t);
    km_html_note(t, "a < b");
    km_table table;
    km_table_init(&table, "lr", (const char *const[]){"op", "rate"});
    km_table_cell(&table, "a<b");
    km_table_cell(&table, "1");
    km_table_html(&table, t);
    km_table_free(&table);
    km_html_end(t, "made by & with");
}

static void a_whole_page_is_well_formed_and_fetches_nothing(void **state) {
    (void)state;
    km_text t = {0};
    build_page(&t);
    assert_well_formed(&t);
    assert_non_null(strstr(t.data, "prefers-color-scheme:dark"));
    const char *const outside[] = {"http:", "https:", "//", "url(", "@import", "<link", "src="};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        assert_null(strstr(t.data, outside[i]));
    km_text_free(&t);
}

static void a_page_is_written_whole_or_not_at_all(void **state) {
    (void)state;
    char folder[] = "/tmp/kermes-html-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char path[64];
    snprintf(path, sizeof path, "%s/page.html", folder);
    km_text t = {0};
    build_page(&t);
    km_error err = {0};
    assert_int_equal(km_html_write(&t, path, &err), KM_OK);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    assert_int_equal(ftell(f), (long)t.len);
    fclose(f);

    t.failed = true; /* as after running out of memory: the file stays as it was */
    assert_int_equal(km_html_write(&t, path, &err), KM_ERR_MEMORY);
    assert_int_equal(access(path, R_OK), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else was left there */
    t.failed = false;
    err = (km_error){0};
    assert_int_equal(km_html_write(&t, path, &err), KM_ERR_FILE);
    assert_non_null(strstr(err.text, path));
    km_text_free(&t);
}

static void running_out_of_memory_leaks_nothing(void **state) {
    (void)state;
    int64_t live = km_alloc_live();
    for (int n = 0; n < 12; n++) {
        km_text t = {0};
        km_alloc_fail_nth(n);
        build_page(&t);
        km_alloc_fail_nth(-1);
        km_text_free(&t);
    }
    assert_int_equal(km_alloc_live(), live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_checker_itself_finds_broken_markup),
        cmocka_unit_test(stacks_stand_on_each_other),
        cmocka_unit_test(a_chart_draws_every_finite_point_and_every_series_name),
        cmocka_unit_test(hostile_values_never_break_the_drawing),
        cmocka_unit_test(a_chart_without_data_says_so),
        cmocka_unit_test(a_whole_page_is_well_formed_and_fetches_nothing),
        cmocka_unit_test(a_page_is_written_whole_or_not_at_all),
        cmocka_unit_test(running_out_of_memory_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
