/* The hand-written scanners against the regular expressions they stand for, and UTF-8. */
#include "token/pattern.h"
#include "token/scan.h"
#include "token/token_support.h"
#include "base/utf8.h"

static const char *const patterns[] = {KM_PATTERN_GPT2, KM_PATTERN_LLAMA3("\\p{N}{1,3}"),
                                       KM_PATTERN_LLAMA3("\\p{N}")};

static void scanners_cut_text_as_their_patterns_do(void **state) {
    (void)state;
    km_matcher *m = km_matcher_new(&token_err);
    assert_made(m);
    for (size_t k = 0; k < sizeof patterns / sizeof *patterns; k++) {
        km_scan_fn scan = km_scan_for(patterns[k], strlen(patterns[k]));
        assert_non_null(scan);
        char wrapped[512]; /* another text for the same pattern: matched by PCRE2 */
        int n = snprintf(wrapped, sizeof wrapped, "(?:%s)", patterns[k]);
        km_pattern *p = km_pattern_new(wrapped, (size_t)n, &token_err);
        assert_made(p);
        token_seed = 7;
        for (int round = 0; round < 3000; round++) {
            km_text text = token_random_text(1 + token_random(60), false);
            for (size_t at = 0, begin, end; at < text.len; at = end) {
                assert_int_equal(
                    km_pattern_find(p, m, text.data, text.len, at, &begin, &end, &token_err), 1);
                size_t mine = scan(text.data, text.len, at);
                if (begin != at || mine != end)
                    fail_msg("pattern %zu: '%s' at %zu: %zu to %zu, not to %zu", k, text.data, at,
                             begin, end, mine);
            }
            km_text_free(&text);
        }
        km_pattern_free(p);
    }
    km_matcher_free(m);
}

static void patterns_that_are_wrong_or_wild_are_refused(void **state) {
    (void)state;
    assert_null(km_pattern_new("(a", 2, &token_err));
    assert_says("pattern '(a' cannot be used");
    km_matcher *m = km_matcher_new(&token_err);
    const char *wild = "(?:a+)+(?:a+)+(?:a+)+[^a]";
    km_pattern *p = km_pattern_new(wild, strlen(wild), &token_err);
    assert_made(p);
    char text[60];
    memset(text, 'a', sizeof text);
    size_t begin, end;
    assert_int_equal(km_pattern_find(p, m, text, sizeof text, 0, &begin, &end, &token_err), -1);
    assert_says("splitting the text by its pattern failed");
    km_pattern_free(p);
    km_matcher_free(m);
}

static void utf8_is_judged_by_the_letter(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t valid, tail;
    } rows[] = {
        {"abc", 3, 0},
        {"\xC3\xA9", 2, 0},
        {"\xC3", 0, 1},
        {"\xC0\x80", 0, 0},
        {"\xED\xA0\x80", 0, 0},
        {"\xEF\xBF\xBD", 3, 0},
        {"\xF0\x9F\xA6\x99", 4, 0},
        {"a\xF0\x9F\xA6", 1, 3},
        {"a\xF0\x9F", 1, 2},
        {"\xF4\x90\x80\x80", 0, 0},
        {"\xF4\x8F\xBF\xBF", 4, 0},
        {"\xE2\x82", 0, 2},
        {"\xE0\x80", 0, 0},
        {"12345678\xFF", 8, 0},
        {"\x80", 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = strlen(rows[i].text);
        assert_int_equal(km_utf8_valid(rows[i].text, n), rows[i].valid);
        assert_int_equal(km_utf8_tail(rows[i].text, n), rows[i].tail);
    }
    for (uint32_t cp = 0; cp < 0x110000; cp += cp < 0x3000 ? 1 : 97) {
        if (cp >= 0xD800 && cp < 0xE000) continue;
        char text[4];
        uint32_t back = 0;
        int n = km_utf8_write(text, cp);
        assert_int_equal(km_utf8_read(text, (size_t)n, &back), n);
        assert_int_equal(back, cp);
        for (int cut = 1; cut < n; cut++)
            assert_int_equal(km_utf8_tail(text, (size_t)cut), (size_t)cut);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(scanners_cut_text_as_their_patterns_do, token_setup),
        cmocka_unit_test_setup(patterns_that_are_wrong_or_wild_are_refused, token_setup),
        cmocka_unit_test_setup(utf8_is_judged_by_the_letter, token_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
