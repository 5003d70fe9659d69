/* Growing text, escaping and number formats. */
#include "base/alloc.h"
#include "base/text.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void text_grows_past_any_first_guess(void **state) {
    (void)state;
    km_text t = {0};
    assert_string_equal(km_text_str(&t), "");
    for (int i = 0; i < 1000; i++) km_text_printf(&t, "%03d ", i);
    assert_int_equal(t.len, 4000);
    assert_memory_equal(t.data + 3996, "999 ", 5);
    assert_true(km_text_ok(&t));
    km_text_free(&t);
    assert_null(t.data);
}

static void running_out_of_memory_sticks_and_keeps_what_was_there(void **state) {
    (void)state;
    int64_t live = km_alloc_live();
    km_text t = {0};
    km_text_add(&t, "kept");
    km_alloc_fail_nth(0);
    for (int i = 0; i < 100; i++) km_text_add(&t, "0123456789");
    km_alloc_fail_nth(-1);
    assert_false(km_text_ok(&t));
    assert_memory_equal(t.data, "kept", 4);
    km_text_free(&t);
    assert_int_equal(km_alloc_live(), live);
}

static void check_escaped(const char *in, const char *want) {
    km_text t = {0};
    km_text_escape(&t, in);
    assert_string_equal(km_text_str(&t), want);
    km_text_free(&t);
}

static void markup_and_quotes_are_escaped(void **state) {
    (void)state;
    check_escaped("a<b & \"c\" > 'd'", "a&lt;b &amp; &quot;c&quot; &gt; &#39;d&#39;");
    check_escaped("", "");
    check_escaped("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
}

static void bytes_that_are_not_utf8_are_replaced(void **state) {
    (void)state;
    check_escaped("a\x80z", "a\xef\xbf\xbdz");             /* stray continuation */
    check_escaped("\xc3", "\xef\xbf\xbd");                 /* cut short */
    check_escaped("\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"); /* overlong */
    check_escaped("\x1b[0m\x7f", "\xef\xbf\xbd[0m\xef\xbf\xbd");
    check_escaped("a\tb\n", "a\tb\n");
}

static void numbers_read_as_people_write_them(void **state) {
    (void)state;
    char b[KM_NUMBER_TEXT];
    assert_string_equal(km_format_number(b, 0), "0");
    assert_string_equal(km_format_number(b, 165.4), "165");
    assert_string_equal(km_format_number(b, 12.34), "12.3");
    assert_string_equal(km_format_number(b, 0.9512), "0.95");
    assert_string_equal(km_format_number(b, 0.0123), "0.0123");
    assert_string_equal(km_format_number(b, 1.5e-7), "1.50e-07");
    assert_string_equal(km_format_number(b, NAN), "-");
    assert_string_equal(km_format_si(b, 1500), "1.5k");
    assert_string_equal(km_format_si(b, 2e9), "2G");
    assert_string_equal(km_format_si(b, 999.9), "1k");
    assert_string_equal(km_format_binary(b, 64 * 1024 * 1024), "64M");
    assert_string_equal(km_format_binary(b, 512), "512");
    assert_string_equal(km_format_bytes(b, 1572864), "1.5 MiB");
    assert_string_equal(km_format_bytes(b, 0), "0 B");
    assert_string_equal(km_format_seconds(b, 0.0015), "1.50 ms");
    assert_string_equal(km_format_seconds(b, 2.5e-8), "25 ns");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_grows_past_any_first_guess),
        cmocka_unit_test(running_out_of_memory_sticks_and_keeps_what_was_there),
        cmocka_unit_test(markup_and_quotes_are_escaped),
        cmocka_unit_test(bytes_that_are_not_utf8_are_replaced),
        cmocka_unit_test(numbers_read_as_people_write_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
