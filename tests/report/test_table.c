/* Tables: alignment in plain text, escaping in HTML, short rows. */
#include "base/alloc.h"
#include "report/table.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *printed(const km_table *t, int indent, bool *ok) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    *ok = km_table_print(t, f, indent);
    fclose(f);
    return text;
}

static void columns_line_up_and_lines_end_without_spaces(void **state) {
    (void)state;
    km_table t;
    km_table_init(&t, "lrl", (const char *const[]){"op", "error", "result"});
    km_table_cell(&t, "add");
    km_table_cell(&t, "%.1e", 0.0);
    km_table_cell(&t, "pass");
    km_table_cell(&t, "cross_entropy");
    km_table_cell(&t, "%d", 12);
    km_table_cell(&t, "%s", "");
    bool ok;
    char *text = printed(&t, 1, &ok);
    assert_true(ok);
    assert_string_equal(text, " op               error  result\n"
                              " -------------  -------  ------\n"
                              " add            0.0e+00  pass\n"
                              " cross_entropy       12\n");
    free(text);
    km_table_free(&t);
}

static void a_row_cut_short_prints_empty_cells(void **state) {
    (void)state;
    km_table t;
    km_table_init(&t, "lr", (const char *const[]){"a", "b"});
    km_table_cell(&t, "x");
    assert_int_equal(km_table_rows(&t), 1);
    bool ok;
    char *text = printed(&t, 0, &ok);
    assert_string_equal(text, "a  b\n-  -\nx\n");
    free(text);
    km_table_free(&t);
}

static void html_cells_are_escaped(void **state) {
    (void)state;
    km_table t;
    km_table_init(&t, "l", (const char *const[]){"<op>"});
    km_table_cell(&t, "a & b");
    km_text out = {0};
    km_table_html(&t, &out);
    assert_non_null(strstr(out.data, "&lt;op&gt;"));
    assert_non_null(strstr(out.data, "a &amp; b"));
    assert_null(strstr(out.data, "<op>"));
    km_text_free(&out);
    km_table_free(&t);
}

static void running_out_of_memory_is_reported_when_printing(void **state) {
    (void)state;
    int64_t live = km_alloc_live();
    for (int n = 0; n < 2; n++) {
        km_table t;
        km_table_init(&t, "l", (const char *const[]){"a"});
        km_alloc_fail_nth(n);
        km_table_cell(&t, "x");
        km_alloc_fail_nth(-1);
        bool ok;
        free(printed(&t, 0, &ok));
        assert_false(ok);
        km_text out = {0};
        km_table_html(&t, &out);
        assert_false(km_text_ok(&out));
        km_text_free(&out);
        km_table_free(&t);
    }
    assert_int_equal(km_alloc_live(), live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_line_up_and_lines_end_without_spaces),
        cmocka_unit_test(a_row_cut_short_prints_empty_cells),
        cmocka_unit_test(html_cells_are_escaped),
        cmocka_unit_test(running_out_of_memory_is_reported_when_printing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
