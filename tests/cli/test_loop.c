/* The detector of loops: what is one, and what only looks like one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "cli/loop.c"

/* In pieces of a few bytes, as a model makes it. */
static bool loops(const km_text *t, size_t *at) {
    km_loop l = {.seen = 0};
    for (size_t i = 0; i < t->len;) {
        size_t n = t->len - i < 5 ? t->len - i : 5;
        i += n;
        if (km_loop_put(&l, t->data + i - n, n)) {
            if (at) *at = km_loop_keep(&l, i);
            return true;
        }
    }
    return false;
}

static km_text repeated(const char *before, const char *piece, int times) {
    km_text t = {0};
    km_text_add(&t, before);
    for (int i = 0; i < times; i++) km_text_add(&t, piece);
    return t;
}

static void a_word_or_a_sentence_for_ever_is_a_loop(void **state) {
    (void)state;
    static const char *const pieces[] = {
        "la femme, ",
        "a",
        ". ",
        "I am sorry, but I cannot answer that question.\n",
        ("He went to the door and opened it, and there was nobody. He closed it and went back to his "
         "chair by the fire, where he had sat all evening, and he thought about what he had heard.\n\n"),
    };
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        size_t keep = 0;
        km_text t = repeated("It begins well: ", pieces[i], 600);
        assert_true(loops(&t, &keep));
        assert_true(keep < 21 + 2 * strlen(pieces[i])); /* once, what came before, and a rest */
        km_text_free(&t);
    }
}

static void a_table_of_fifty_rows_is_none(void **state) {
    (void)state;
    km_text t = {0};
    km_text_add(&t, "| number | square | cube |\n|---|---|---|\n");
    for (int i = 1; i <= 50; i++) km_text_printf(&t, "| %d | %d | %d |\n", i, i * i, i * i * i);
    assert_false(loops(&t, NULL));
    km_text_free(&t);
    /* nor where all rows are the same, short or wide */
    t = repeated("| a | b | c |\n|---|---|---|\n", "| 0 | 0 | 0 |\n", 50);
    assert_false(loops(&t, NULL));
    km_text_free(&t);
    t = repeated(
        "", "| a name that is the same in all rows | and a value, also the same | 0.00000 |\n", 50);
    assert_false(loops(&t, NULL));
    km_text_free(&t);
}

static void a_refrain_is_none(void **state) {
    (void)state;
    static const char refrain[] = "Row, row, row your boat,\nGently down the stream,\n"
                                  "Merrily, merrily, merrily, merrily,\nLife is but a dream.\n\n";
    km_text t = repeated("", refrain, 8);
    assert_false(loops(&t, NULL));
    km_text_free(&t);
    t = repeated("", "na na na, ", 24);
    for (int i = 0; i < 8; i++)
        km_text_printf(&t, "Verse %d, which tells of something else.\n%s", i, refrain);
    assert_false(loops(&t, NULL));
    km_text_free(&t);
}

static void rules_and_blanks_are_none(void **state) {
    (void)state;
    km_text t = repeated("A heading\n", "=", 200);
    km_text_add(&t, "\n");
    for (int i = 0; i < 200; i++) km_text_add(&t, " ");
    km_text_add(&t, "x\n");
    for (int i = 0; i < 40; i++) km_text_add(&t, "- - ");
    assert_false(loops(&t, NULL));
    km_text_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_word_or_a_sentence_for_ever_is_a_loop),
        cmocka_unit_test(a_table_of_fifty_rows_is_none),
        cmocka_unit_test(a_refrain_is_none),
        cmocka_unit_test(rules_and_blanks_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
