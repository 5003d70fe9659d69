/* Texts to stop at: found wherever the pieces are cut, never shown, and nothing is held back that
 * cannot become one. */
#include "infer/stop.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* What is shown of the text, fed in pieces of `part` bytes. */
static bool shown(km_stop *s, const char *text, size_t part, km_text *out) {
    size_t n = strlen(text);
    out->len = 0;
    km_stop_reset(s);
    for (size_t i = 0; i < n; i += part)
        if (km_stop_put(s, text + i, n - i < part ? n - i : part, out)) return true;
    km_stop_end(s, out);
    return false;
}

static void a_stop_is_found_however_the_text_is_cut(void **state) {
    (void)state;
    static const struct {
        const char *stops[3];
        const char *text, *want;
        int which; /* -1: not stopped */
    } cases[] = {
        {{"END"}, "the END of it", "the ", 0},
        {{"END"}, "the EN of it", "the EN of it", -1},
        {{"END"}, "the EEND", "the E", 0},
        {{"aab"}, "aaaaab", "aaa", 0},
        {{"abab"}, "abaabab", "aba", 0},
        {{"\n\nUser:", "\n###"}, "yes\n\nUse\n### no", "yes\n\nUse", 1},
        {{"abcd", "c"}, "xabc", "xab", 1}, /* the first to be complete */
        {{"é", "ü"}, "naïve für", "naïve f", 1},
        {{"x"}, "x", "", 0},
        {{"END"}, "E", "E", -1},
        {{"END"}, "", "", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = 0;
        while (n < 3 && cases[i].stops[n]) n++;
        km_error err = {0};
        km_stop *s = km_stop_new(cases[i].stops, n, &err);
        assert_non_null(s);
        km_text out = {0};
        for (size_t part = 1; part <= strlen(cases[i].text) + 1; part++) {
            bool stopped = shown(s, cases[i].text, part, &out);
            assert_int_equal(stopped, cases[i].which >= 0);
            assert_int_equal(km_stop_which(s), cases[i].which);
            assert_int_equal(out.len, strlen(cases[i].want));
            assert_memory_equal(km_text_str(&out), cases[i].want, out.len);
        }
        km_text_free(&out);
        km_stop_free(s);
    }
}

static void only_what_may_begin_a_stop_is_held_back(void **state) {
    (void)state;
    static const char *const stops[] = {"stop", "top-hat"};
    km_stop *s = km_stop_new(stops, 2, NULL);
    static const struct {
        const char *piece, *shown;
    } steps[] = {{"a s", "a "}, {"to", ""}, {"w", "stow"}, {" st", " "}, {"op", NULL}};
    km_text out = {0};
    for (int i = 0; i < 5; i++) {
        out.len = 0;
        bool end = km_stop_put(s, steps[i].piece, strlen(steps[i].piece), &out);
        assert_int_equal(end, steps[i].shown == NULL);
        if (steps[i].shown) {
            assert_int_equal(out.len, strlen(steps[i].shown));
            assert_memory_equal(km_text_str(&out), steps[i].shown, out.len);
        }
    }
    assert_int_equal(out.len, 0);
    assert_true(km_stop_put(s, "more", 4, &out)); /* stays stopped */
    assert_int_equal(out.len, 0);
    km_text_free(&out);
    km_stop_free(s);
}

static void an_empty_stop_is_refused(void **state) {
    (void)state;
    static const char *const stops[] = {"a", ""};
    km_error err = {0};
    assert_null(km_stop_new(stops, 2, &err));
    assert_string_equal(err.text, "a text to stop at must not be empty");
    km_stop *none = km_stop_new(NULL, 0, &err);
    km_text out = {0};
    assert_false(km_stop_put(none, "abc", 3, &out));
    assert_string_equal(km_text_str(&out), "abc");
    km_text_free(&out);
    km_stop_free(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_is_found_however_the_text_is_cut),
        cmocka_unit_test(only_what_may_begin_a_stop_is_held_back),
        cmocka_unit_test(an_empty_stop_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
