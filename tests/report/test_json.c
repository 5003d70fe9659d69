/* The helpers over Jansson. */
#include "report/json.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void numbers_are_rounded_and_what_json_cannot_say_is_null(void **state) {
    (void)state;
    json_t *v = km_json_number(1.0 / 3, 4);
    assert_true(json_real_value(v) == 0.3333);
    json_decref(v);
    v = km_json_number(NAN, 4);
    assert_true(json_is_null(v));
    json_decref(v);
    v = km_json_number(-INFINITY, 4);
    assert_true(json_is_null(v));
    json_decref(v);
}

static void counts_are_whole_numbers(void **state) {
    (void)state;
    json_t *v = km_json_count(68719476736.0);
    assert_true(json_is_integer(v));
    assert_int_equal(json_integer_value(v), 68719476736);
    json_decref(v);
    v = km_json_count(NAN);
    assert_true(json_is_null(v));
    json_decref(v);
    v = km_json_count(1e300);
    assert_true(json_is_null(v));
    json_decref(v);
}

static void text_that_is_not_utf8_still_becomes_a_string(void **state) {
    (void)state;
    json_t *v = km_json_text("CPU \xff\xfe");
    assert_string_equal(json_string_value(v), "CPU ??");
    json_decref(v);
    v = km_json_text("caf\xc3\xa9");
    assert_string_equal(json_string_value(v), "caf\xc3\xa9");
    json_decref(v);
}

static void printed_values_parse_back(void **state) {
    (void)state;
    json_t *v = json_pack("{s:[o,o],s:s}", "numbers", km_json_number(0.1, 6),
                          km_json_number(1e300, 6), "text", "a\"b\n");
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    assert_true(km_json_print(v, f));
    fclose(f);
    assert_int_equal(text[size - 1], '\n');
    assert_non_null(strstr(text, "0.1,"));
    json_t *back = json_loads(text, 0, NULL);
    assert_true(json_equal(v, back));
    json_decref(back);
    json_decref(v);
    free(text);
}

static void a_missing_value_is_a_failure(void **state) {
    (void)state;
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_false(km_json_print(NULL, f));
    fclose(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_rounded_and_what_json_cannot_say_is_null),
        cmocka_unit_test(counts_are_whole_numbers),
        cmocka_unit_test(text_that_is_not_utf8_still_becomes_a_string),
        cmocka_unit_test(printed_values_parse_back),
        cmocka_unit_test(a_missing_value_is_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
