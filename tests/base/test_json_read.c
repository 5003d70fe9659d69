/* JSON of others: strict, typed, and every complaint one line that names the file. */
#include "format/formats.h"
#include "base/json_read.h"
#include "base/shown.h"

static void assert_no_json(const char *text, size_t n, const char *why) {
    km_error err = {0};
    assert_null(km_json_parse(text, n, "x.json", &err));
    assert_one_line(&err);
    assert_non_null(strstr(err.text, "'x.json'"));
    if (!strstr(err.text, why)) fail_msg("'%s' lacks '%s'", err.text, why);
}

static void what_is_not_strict_json_is_refused(void **state) {
    assert_no_json("", 0, "line 1, column 0");
    assert_no_json("{", 1, "line 1");
    assert_no_json("{}\n\nx", 5, "line 3");
    assert_no_json("{\"a\":1,\"a\":2}", 13, "duplicate");
    assert_no_json("{\"a\":\"\\u0000\"}", 14, "\\u0000");
    assert_no_json("\"\xff\"", 3, "");
    assert_no_json("{\"a\":NaN}", 9, "");
    assert_no_json("{\"a\":1}\0{}", 10, "");
    char deep[10000];
    memset(deep, '[', sizeof deep);
    assert_no_json(deep, sizeof deep, "depth");
}

static void members_keep_their_default_or_are_checked(void **state) {
    const char text[] = "{\"n\":3,\"x\":2.5,\"b\":true,\"s\":\"t\",\"null\":null,\"big\":1e300}";
    json_t *o = km_json_parse(text, sizeof text - 1, "x.json", NULL);
    assert_non_null(o);
    int64_t n = 7;
    double x = 7;
    bool b = false;
    const char *s = "default";
    assert_int_equal(km_json_int(o, "none", 0, 1, &n, "x", NULL), KM_OK);
    assert_int_equal(km_json_int(o, "null", 0, 1, &n, "x", NULL), KM_OK);
    assert_int_equal(n, 7);
    assert_int_equal(km_json_int(o, "n", 3, 3, &n, "x", NULL), KM_OK);
    assert_int_equal(n, 3);
    assert_int_equal(km_json_real(o, "n", 0, 9, &x, "x", NULL), KM_OK);
    assert_true(x == 3);
    assert_int_equal(km_json_real(o, "x", 0, 9, &x, "x", NULL), KM_OK);
    assert_true(x == 2.5);
    assert_int_equal(km_json_bool(o, "b", &b, "x", NULL), KM_OK);
    assert_true(b);
    assert_int_equal(km_json_string(o, "s", &s, "x", NULL), KM_OK);
    assert_string_equal(s, "t");

    km_error err = {0};
    assert_int_equal(km_json_int(o, "n", 4, 9, &n, "x.json", &err), KM_ERR_FORMAT);
    assert_string_equal(err.text, "'x.json': \"n\" is 3, not between 4 and 9");
    err = (km_error){0};
    assert_int_equal(km_json_int(o, "x", 0, 9, &n, "x.json", &err), KM_ERR_FORMAT);
    assert_string_equal(err.text, "'x.json': \"x\" must be a whole number, not a number");
    assert_int_equal(km_json_real(o, "big", 0, 9, &x, "x", NULL), KM_ERR_FORMAT);
    assert_int_equal(km_json_real(o, "s", 0, 9, &x, "x", NULL), KM_ERR_FORMAT);
    assert_int_equal(km_json_bool(o, "n", &b, "x", NULL), KM_ERR_FORMAT);
    assert_int_equal(km_json_string(o, "b", &s, "x", NULL), KM_ERR_FORMAT);
    assert_int_equal(n, 3);
    assert_true(x == 2.5);
    json_decref(o);
}

static void a_file_is_loaded_and_named_when_it_is_wrong(void **state) {
    km_error err = {0};
    assert_null(km_json_load(in_folder("none"), &err));
    assert_int_equal(err.code, KM_ERR_FILE);
    write_blob(in_folder("a"), "[1,", 3);
    err = (km_error){0};
    assert_null(km_json_load(in_folder("a"), &err));
    assert_int_equal(err.code, KM_ERR_FORMAT);
    assert_non_null(strstr(err.text, in_folder("a")));
    write_blob(in_folder("a"), "", 0);
    assert_null(km_json_load(in_folder("a"), NULL));
    write_blob(in_folder("a"), "[1]", 3);
    json_t *v = km_json_load(in_folder("a"), NULL);
    assert_int_equal(json_array_size(v), 1);
    json_decref(v);
}

static void names_are_shown_on_one_line(void **state) {
    char out[KM_SHOWN], longer[300];
    assert_string_equal(km_shown(out, "plain ü €"), "plain ü €");
    assert_string_equal(km_shown(out, "a\nb\tc\x7f\x1b[31m"), "a?b?c??[31m");
    assert_string_equal(km_shown(out, "\xff\xc3 \xe2\x82 \xc2\x85 \xed\xa0\x80"), "?? ?? ? ???");
    assert_string_equal(km_shown_bytes(out, "a\0b", 3), "a?b");
    assert_string_equal(km_shown(out, ""), "");
    memset(longer, 'x', sizeof longer);
    longer[299] = 0;
    km_shown(out, longer);
    assert_true(strlen(out) < KM_SHOWN);
    assert_non_null(strstr(out, "xx..."));
    for (int i = 0; i + 4 < 299; i += 4) memcpy(longer + i, "\xf0\x9f\x98\x80", 4);
    km_shown(out, longer);
    assert_true(strlen(out) < KM_SHOWN);
    json_t *valid = json_string(out); /* cut between characters */
    assert_non_null(valid);
    json_decref(valid);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_strict_json_is_refused),
        cmocka_unit_test(members_keep_their_default_or_are_checked),
        cmocka_unit_test_teardown(a_file_is_loaded_and_named_when_it_is_wrong, empty_folder),
        cmocka_unit_test(names_are_shown_on_one_line),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
