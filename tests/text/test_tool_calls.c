/* Answers of every family, cut into pieces of every size: the same text, reasoning and calls come out. */
#include <kermes.h>
#include "base/text.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* "text|R:reasoning|f(arguments)", in order. */
typedef struct parts_seen {
    km_text text;
    km_answer_kind last;
    bool any;
} parts_seen;

static void see(void *user, const km_answer_part *part) {
    parts_seen *s = user;
    bool same = s->any && s->last == part->kind;
    switch (part->kind) {
    case KM_ANSWER_TEXT:
        if (!same && s->any) km_text_add(&s->text, "|");
        break;
    case KM_ANSWER_REASONING:
        if (!same) km_text_add(&s->text, s->any ? "|R:" : "R:");
        break;
    case KM_ANSWER_CALL:
        if (s->any) km_text_add(&s->text, "|");
        km_text_printf(&s->text, "%d ", part->call);
        break;
    case KM_ANSWER_ARGUMENTS:
        if (!same) km_text_add(&s->text, "(");
        break;
    case KM_ANSWER_CALL_END: km_text_add(&s->text, ")"); break;
    }
    if (part->bytes) km_text_put(&s->text, part->text, part->bytes);
    s->last = part->kind;
    s->any = true;
}

static const char *const tools[] = {"f", "get_weather"};

static void check(const char *answer, const char *want, bool thinking, size_t n_tools) {
    for (size_t piece = 1; piece <= strlen(answer); piece++) {
        parts_seen seen = {0};
        km_answer_parser *p =
            km_answer_parser_new(tools, n_tools, thinking ? KM_ANSWER_THINKING : 0, see, &seen);
        for (size_t at = 0; at < strlen(answer); at += piece) {
            size_t n = strlen(answer + at) < piece ? strlen(answer + at) : piece;
            assert_int_equal(km_answer_parser_put(p, answer + at, n), KM_OK);
        }
        assert_int_equal(km_answer_parser_end(p), KM_OK);
        if (strcmp(km_text_str(&seen.text), want) != 0)
            fail_msg("in pieces of %zu: %s\n gives %s\n not   %s", piece, answer,
                     km_text_str(&seen.text), want);
        km_text_free(&seen.text);
        km_answer_parser_free(p);
    }
}

static void every_family_writes_its_calls(void **state) {
    static const struct {
        const char *answer, *want;
    } cases[] = {
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\"}]}}\n</tool_call>",
         "0 f({\"a\": [1, {\"b\": \"}\"}]})"},
        {"Well:\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"arguments\":"
         "{\"x\":\"\\\"\"},\"name\":\"get_weather\"}</tool_call> done",
         "Well:\n|0 f({})|1 get_weather({\"x\":\"\\\"\"})|done"},
        {"<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n<parameter=s>\nx y\n</parameter>\n"
         "</function>\n</tool_call>",
         "0 f({\"a\":12,\"s\":\"x y\"})"},
        {"<|python_tag|>{\"name\": \"f\", \"parameters\": {\"q\": \"a\"}}", "0 f({\"q\": \"a\"})"},
        {"{\"name\": \"f\", \"parameters\": {\"q\": 1}}; {\"name\": \"f\", \"parameters\": {}}",
         "0 f({\"q\": 1})|1 f({})"},
        {"{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"q\": 1}}",
         "0 f({\"q\": 1})"},
        {"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"get_weather\", "
         "\"arguments\": {}}]",
         "0 f({\"a\": 1})|1 get_weather({})"},
        {"[TOOL_CALLS]f[ARGS]{\"a\": {}}[TOOL_CALLS]get_weather{}",
         "0 f({\"a\": {}})|1 get_weather({})"},
        {"[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "0 f({\"a\": 1})"},
        {"<\xef\xbd\x9ctool\xe2\x96\x81"
         "calls\xe2\x96\x81"
         "begin\xef\xbd\x9c><\xef\xbd\x9ctool\xe2\x96\x81"
         "call\xe2\x96\x81"
         "begin\xef\xbd\x9c>function<\xef\xbd\x9ctool\xe2\x96\x81sep\xef\xbd\x9c>f\n```json\n{\"a\": "
         "1}\n```<\xef\xbd\x9ctool\xe2\x96\x81"
         "call\xe2\x96\x81"
         "end\xef\xbd\x9c><\xef\xbd\x9ctool\xe2\x96\x81"
         "calls\xe2\x96\x81"
         "end\xef\xbd\x9c>",
         "0 f({\"a\": 1})"},
        {"<\xef\xbd\x9ctool\xe2\x96\x81"
         "call\xe2\x96\x81"
         "begin\xef\xbd\x9c>f<\xef\xbd\x9ctool\xe2\x96\x81sep\xef\xbd\x9c>{\"a\": 1}<\xef\xbd\x9ctool\xe2\x96\x81"
         "call\xe2\x96\x81"
         "end\xef\xbd\x9c>",
         "0 f({\"a\": 1})"},
        {"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
         "to=functions.f <|constrain|>json<|message|>{\"a\":1}<|call|>",
         "R:Hm.|0 f({\"a\":1})"},
        {"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
         "R:Hm.|Yes."},
        {"```json\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n```", "0 f({\"a\":1})"},
        {"```tool_code\n[{\"name\": \"f\", \"parameters\": {}}]\n```", "0 f({})"},
        {"<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<|/tool_call|>",
         "0 f({\"a\": 1})"},
        {"<think>So.</think>\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
         "R:So.|\n\n|0 f({})"},
        {"<think>So.</think>{\"name\": \"f\", \"arguments\": {}}", "R:So.|0 f({})"},
        {"{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}", "0 f({\"a\": 1})"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(cases[i].answer, cases[i].want, false, 2);
}

static void what_only_looks_like_a_call_stays_text(void **state) {
    static const char *const texts[] = {"a < b and <tool",
                                        "{\"answer\": 42}",
                                        "{\"name\": \"Ada\", \"age\": 36}",
                                        "[1, 2, 3]",
                                        "```json\n{\"name\": \"Ada\"}\n```",
                                        "```json\n{\"name\": ",
                                        "```c\nint f;\n```",
                                        "[TOOL",
                                        "{",
                                        "<|python_tag|>print(1)",
                                        "{\"name\": \"f\"}",
                                        "}{",
                                        "[]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *want = texts[i];
        if (strncmp(want, "<|python_tag|>", 14) == 0) want += 14;
        check(texts[i], want, false, 2);
    }
    /* Without tools nothing is a call, whatever it says. */
    check("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
          "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", false, 0);
}

static void reasoning_is_kept_apart(void **state) {
    check("<think>\nHm, <b>.\n</think>\nYes.", "R:\nHm, <b>.\n|\nYes.", false, 0);
    check("Hm.</think>Yes.", "R:Hm.|Yes.", true, 0);
    check("Hm, and no end", "R:Hm, and no end", true, 2);
    check("No</think>n.", "No</think>n.", false, 0);
}

static void a_call_that_is_cut_off_ends_as_one(void **state) {
    check("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"lon", "0 f({\"a\": \"lon)", false,
          2);
}

static void many_answers_of_nonsense_do_no_harm(void **state) {
    static const char *const bits[] = {"<tool_call>",
                                       "</tool_call>",
                                       "{",
                                       "}",
                                       "\"name\"",
                                       ":",
                                       "\"f\"",
                                       "\"arguments\"",
                                       ",",
                                       "[",
                                       "]",
                                       "<think>",
                                       "</think>",
                                       "\\",
                                       "x",
                                       "<|channel|>",
                                       "<|message|>",
                                       "[TOOL_CALLS]",
                                       "f[ARGS]",
                                       "```json\n",
                                       "```",
                                       "<function=",
                                       "</function>",
                                       "\n",
                                       "<parameter=a>",
                                       "1",
                                       ";"};
    uint64_t r = 7;
    for (int i = 0; i < 20000; i++) {
        km_text a = {0};
        parts_seen one = {0}, all = {0};
        for (int k = 0; k < 14; k++) {
            r = r * 6364136223846793005u + 1442695040888963407u;
            km_text_add(&a, bits[(r >> 33) % (sizeof bits / sizeof *bits)]);
        }
        km_answer_parser *p = km_answer_parser_new(tools, 2, 0, see, &all);
        km_answer_parser_put(p, a.data, a.len);
        km_answer_parser_end(p);
        km_answer_parser_free(p);
        p = km_answer_parser_new(tools, 2, 0, see, &one);
        for (size_t k = 0; k < a.len; k++) km_answer_parser_put(p, a.data + k, 1);
        km_answer_parser_end(p);
        km_answer_parser_free(p);
        if (strcmp(km_text_str(&one.text), km_text_str(&all.text)) != 0)
            fail_msg("%s\n at once:      %s\n byte by byte: %s", a.data, km_text_str(&all.text),
                     km_text_str(&one.text));
        km_text_free(&one.text);
        km_text_free(&all.text);
        km_text_free(&a);
    }
}

static void nothing_in_place_of_something_is_an_error(void **state) {
    (void)state;
    static const char *const hole[] = {"f", NULL};
    parts_seen seen = {0};
    assert_null(km_answer_parser_new(tools, 2, 0, NULL, NULL));
    assert_null(km_answer_parser_new(NULL, 2, 0, see, &seen));
    assert_null(km_answer_parser_new(hole, 2, 0, see, &seen));
    assert_int_equal(km_last_status(), KM_ERR_NULL);
    assert_int_equal(km_answer_parser_put(NULL, "a", 1), KM_ERR_NULL);
    assert_int_equal(km_answer_parser_special(NULL, "a", 1), KM_ERR_NULL);
    assert_int_equal(km_answer_parser_end(NULL), KM_ERR_NULL);
    assert_int_equal(km_answer_parser_calls(NULL), -1);
    km_answer_parser *p = km_answer_parser_new(NULL, 0, 0, see, &seen);
    assert_int_equal(km_answer_parser_put(p, NULL, 1), KM_ERR_NULL);
    assert_int_equal(km_answer_parser_put(p, NULL, 0), KM_OK);
    assert_int_equal(km_answer_parser_end(p), KM_OK);
    assert_false(seen.any);
    km_answer_parser_free(p);
    km_answer_parser_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_writes_its_calls),
        cmocka_unit_test(nothing_in_place_of_something_is_an_error),
        cmocka_unit_test(what_only_looks_like_a_call_stays_text),
        cmocka_unit_test(reasoning_is_kept_apart),
        cmocka_unit_test(a_call_that_is_cut_off_ends_as_one),
        cmocka_unit_test(many_answers_of_nonsense_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
