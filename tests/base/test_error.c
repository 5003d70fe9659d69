/* Errors, notes and the version: small values that every other part relies on. */
#include "base/error.h"
#include "base/log.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void every_status_has_its_name_and_text(void **state) {
    assert_string_equal(km_status_name(KM_OK), "OK");
    assert_string_equal(km_status_text(KM_OK), "no error");
    assert_string_equal(km_status_name(KM_ERR_SHAPE), "ERR_SHAPE");
    assert_string_equal(km_status_text(KM_ERR_SHAPE), "shapes do not fit");
    assert_string_equal(km_status_name(KM_ERR_GPU), "ERR_GPU");
    assert_string_equal(km_status_text(KM_ERR_GPU), "GPU error");
}

static void a_number_that_is_no_status_has_a_name_too(void **state) {
    assert_string_equal(km_status_name((km_status)1000), "ERR_UNKNOWN");
    assert_string_equal(km_status_text((km_status)-1), "unknown error");
}

static void the_first_error_stays(void **state) {
    km_error err = {0};
    assert_int_equal(km_error_set(&err, KM_ERR_SHAPE, "matmul: %d and %d", 3, 4), KM_ERR_SHAPE);
    assert_int_equal(km_error_set(&err, KM_ERR_MEMORY, "later"), KM_ERR_MEMORY);
    assert_int_equal(err.code, KM_ERR_SHAPE);
    assert_string_equal(err.text, "matmul: 3 and 4");
}

static void nobody_has_to_listen(void **state) {
    assert_int_equal(km_error_set(NULL, KM_ERR_RANGE, "index %d", 9), KM_ERR_RANGE);
}

static void setting_ok_changes_nothing(void **state) {
    km_error err = {0};
    assert_int_equal(km_error_set(&err, KM_OK, "fine"), KM_OK);
    assert_int_equal(err.code, KM_OK);
    assert_string_equal(err.text, "");
}

static void a_text_too_long_is_cut_and_says_so(void **state) {
    km_error err = {0};
    char path[1000];
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = 0;
    km_error_set(&err, KM_ERR_FILE, "cannot open '%s'", path);
    assert_int_equal(strlen(err.text), KM_ERROR_TEXT - 1);
    assert_string_equal(err.text + KM_ERROR_TEXT - 5, "x...");
    assert_memory_equal(err.text, "cannot open 'xxx", 16);
}

static void a_text_that_just_fits_is_whole(void **state) {
    km_error err = {0};
    char text[KM_ERROR_TEXT];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = 0;
    km_error_set(&err, KM_ERR_FILE, "%s", text);
    assert_string_equal(err.text, text);
}

typedef struct heard {
    int notes;
    km_log_level level;
    char line[600];
} heard;

static void listen(void *user, km_log_level level, const char *line) {
    heard *h = user;
    h->notes++;
    h->level = level;
    snprintf(h->line, sizeof h->line, "%s", line);
}

static void listen_once(void *user, km_log_level level, const char *line) {
    km_set_log(NULL, NULL);
    listen(user, level, line);
}

static void notes_reach_the_sink_and_only_while_it_is_set(void **state) {
    heard h = {0};
    km_note(KM_LOG_WARN, "before");
    km_set_log(listen, &h);
    km_note(KM_LOG_WARN, "no %s kernel for %d", "f64", 7);
    km_set_log(NULL, NULL);
    km_note(KM_LOG_INFO, "after");
    assert_int_equal(h.notes, 1);
    assert_int_equal(h.level, KM_LOG_WARN);
    assert_string_equal(h.line, "no f64 kernel for 7");
}

static void a_sink_may_unset_itself(void **state) {
    heard h = {0};
    km_set_log(listen_once, &h);
    km_note(KM_LOG_INFO, "one");
    km_note(KM_LOG_INFO, "two");
    assert_int_equal(h.notes, 1);
    assert_string_equal(h.line, "one");
}

static void the_version_is_that_of_the_header(void **state) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", KM_VERSION_MAJOR, KM_VERSION_MINOR, KM_VERSION_PATCH);
    assert_string_equal(km_version(), text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_its_name_and_text),
        cmocka_unit_test(a_number_that_is_no_status_has_a_name_too),
        cmocka_unit_test(the_first_error_stays),
        cmocka_unit_test(nobody_has_to_listen),
        cmocka_unit_test(setting_ok_changes_nothing),
        cmocka_unit_test(a_text_too_long_is_cut_and_says_so),
        cmocka_unit_test(a_text_that_just_fits_is_whole),
        cmocka_unit_test(notes_reach_the_sink_and_only_while_it_is_set),
        cmocka_unit_test(a_sink_may_unset_itself),
        cmocka_unit_test(the_version_is_that_of_the_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
