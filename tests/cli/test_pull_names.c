/* SHA-256 by its published examples, and which names of files stay in a folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cli/pull/hub.c"
#include "cli/pull/web.c"
#include "base/sha256.h"

static void assert_sum(const char *text, size_t times, const char *expected) {
    km_sha256 s;
    uint8_t sum[32];
    char hex[65];
    km_sha256_begin(&s);
    for (size_t i = 0; i < times; i++) km_sha256_put(&s, text, strlen(text));
    km_sha256_end(&s, sum);
    km_hex(hex, sum, sizeof sum);
    assert_string_equal(hex, expected);
}

static void sums_are_those_of_the_standard(void **state) {
    (void)state;
    assert_sum("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_sum("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_sum("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
               "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    assert_sum("aaaaaaaaaa", 100000,
               "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void names_that_leave_a_folder_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"",   "/etc/x", "..",   "../x", "a/../b", "a//b", "a/",
                                      ".x", "a/.b",   "a\\b", "a:b",  "a\nb",   "\x7f", "a/./b"};
    static const char *const good[] = {"a", "a.gguf", "a/b-c_d.gguf", "Modell \xC3\xA4.gguf",
                                       "a..b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(km_pull_safe(bad[i]));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(km_pull_safe(good[i]));
    char longest[600];
    memset(longest, 'a', 599);
    longest[599] = 0;
    assert_false(km_pull_safe(longest));
}

static void kinds_of_weights_are_whole_words(void **state) {
    (void)state;
    assert_true(has_quant("x/model-Q4_K_M.gguf", "q4_k_m"));
    assert_true(has_quant("model.Q4_K-00001-of-00002.gguf", "Q4_K"));
    assert_false(has_quant("model-Q4_K_M.gguf", "Q4_K"));
    assert_false(has_quant("model-IQ4_K.gguf", "Q4_K"));
    assert_false(has_quant("Q4_K/model-Q8_0.gguf", "Q4_K"));
}

static void tokens_belong_to_an_origin(void **state) {
    (void)state;
    char a[300], b[300];
    assert_true(km_web_origin("https://Hub.example/x", a) &&
                km_web_origin("https://hub.example:443/y", b));
    assert_string_equal(a, b);
    assert_true(km_web_origin("http://hub.example/x", b));
    assert_string_not_equal(a, b);
    assert_true(km_web_origin("https://hub.example.org", b));
    assert_string_not_equal(a, b);
    assert_false(km_web_origin("https://me:secret@hub.example/", a));
    assert_false(km_web_origin("file:///etc/passwd", a));
    assert_false(km_web_origin("https:///x", a));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_standard),
        cmocka_unit_test(names_that_leave_a_folder_are_refused),
        cmocka_unit_test(kinds_of_weights_are_whole_words),
        cmocka_unit_test(tokens_belong_to_an_origin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
