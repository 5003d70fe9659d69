/* What tests of tokenizers share: checks that say what went wrong, ids as text, and a generator
 * of text that looks like language, with the odd character thrown in. */
#ifndef KM_TESTS_TOKEN_SUPPORT_H
#define KM_TESTS_TOKEN_SUPPORT_H
#include "base/alloc.h"
#include "base/file.h"
#include "token/token.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static km_error token_err;

static inline int token_setup(void **state) {
    (void)state;
    token_err = (km_error){0};
    return 0;
}

#define assert_made(t)                                                                             \
    do {                                                                                           \
        if (!(t)) fail_msg("%s", token_err.text);                                                  \
    } while (0)

#define assert_fine(call)                                                                          \
    do {                                                                                           \
        if ((call) != KM_OK) fail_msg("%s", token_err.text);                                       \
    } while (0)

/* The error is one line that says `part`; it is then cleared. */
static inline void token_says(const char *part, const char *file, int line) {
    if (!strstr(token_err.text, part)) {
        print_error("'%s' does not say '%s'\n", token_err.text, part);
        _fail(file, line);
    }
    _assert_true(strchr(token_err.text, '\n') == NULL, "the message is one line", file, line);
    token_err = (km_error){0};
}
#define assert_says(part) token_says(part, __FILE__, __LINE__)

static inline km_ids token_encode(const km_token *t, const char *text, size_t n, unsigned flags) {
    km_ids ids = {0};
    if (km_token_encode(t, text, n, flags, &ids, &token_err) != KM_OK)
        fail_msg("%s", token_err.text);
    return ids;
}

/* The ids of the text are just these; on failure both lists are shown. */
static inline void token_check(const km_token *t, const char *text, size_t n, unsigned flags,
                               const int32_t *want, size_t n_want, const char *file, int line) {
    km_ids ids = token_encode(t, text, n, flags);
    bool same = ids.len == n_want && (n_want == 0 || memcmp(ids.data, want, n_want * 4) == 0);
    if (!same) {
        print_error("'%.*s' gives", (int)(n < 200 ? n : 200), text);
        for (size_t i = 0; i < ids.len && i < 60; i++) print_error(" %d", ids.data[i]);
        print_error("\nand not");
        for (size_t i = 0; i < n_want && i < 60; i++) print_error(" %d", want[i]);
        print_error("\n");
    }
    km_ids_free(&ids);
    if (!same) _fail(file, line);
}
#define assert_ids(t, text, ...)                                                                   \
    token_check(t, text, strlen(text), 0, (const int32_t[]){__VA_ARGS__},                          \
                sizeof((int32_t[]){__VA_ARGS__}) / 4, __FILE__, __LINE__)

/* Encoding and decoding gives the text back. */
static inline void token_returns(const km_token *t, const char *text, size_t n, const char *file,
                                 int line) {
    km_ids ids = token_encode(t, text, n, 0);
    km_text back = {0};
    km_status s = km_token_decode(t, ids.data, ids.len, 0, &back, &token_err);
    bool same = s == KM_OK && back.len == n && (n == 0 || memcmp(back.data, text, n) == 0);
    if (!same)
        print_error("'%.*s' came back as '%s'\n", (int)(n < 200 ? n : 200), text,
                    km_text_str(&back));
    km_text_free(&back);
    km_ids_free(&ids);
    if (!same) _fail(file, line);
}
#define assert_returns(t, text, n) token_returns(t, text, n, __FILE__, __LINE__)

/* ---- Random text ---- */

static uint64_t token_seed = 1;

static inline uint32_t token_random(uint32_t below) {
    token_seed ^= token_seed << 13;
    token_seed ^= token_seed >> 7;
    token_seed ^= token_seed << 17;
    return (uint32_t)(token_seed >> 33) % below;
}

/* Adds a piece of text: mostly words of syllables, with numbers, punctuation, white space of all
 * kinds, other alphabets, emoji; with `invalid`, bytes that are not UTF-8 too. */
static inline void token_random_piece(km_text *out, bool invalid) {
    static const char *const syllable[] = {"ka", "lo", "mi",  "ren", "tus", "ar", "eth",
                                           "in", "o",  "sha", "ver", "ing", "ed", "ly"};
    static const char *const odd[] = {"\n",
                                      "\n\n",
                                      "  ",
                                      "\t",
                                      " \n ",
                                      "\r\n",
                                      "'s",
                                      "'ll",
                                      "'RE",
                                      "'",
                                      "...",
                                      "!?",
                                      " - ",
                                      "é",
                                      "ß",
                                      "Ünïcode",
                                      "e\xCC\x81",
                                      "привет",
                                      " мир",
                                      "日本語",
                                      "こんにちは",
                                      "한국어",
                                      "🦙",
                                      "👩‍👩‍👧",
                                      "½",
                                      "٣٤",
                                      "\xC2\xA0",
                                      "\xE2\x80\x83",
                                      "\xE3\x80\x80",
                                      "\xE2\x96\x81",
                                      "<|endoftext|>",
                                      "__x__",
                                      "ſ",
                                      "'ſ",
                                      "\xC2\x85",
                                      "\x01",
                                      "\x7F",
                                      "ǅ",
                                      "ⅷ",
                                      "\xEF\xBF\xBD"};
    static const char *const broken[] = {"\xFF", "\xC3",         "\xE2\x82", "\xF0\x9F",
                                         "\x80", "\xED\xA0\x80", "\xC0\xAF", "\xF5"};
    uint32_t what = token_random(20);
    if (what < 13) {
        uint32_t n = 1 + token_random(4);
        if (token_random(5)) km_text_add(out, " ");
        for (uint32_t i = 0; i < n; i++)
            km_text_add(out, syllable[token_random(14) * token_random(14) / 14]);
    } else if (what < 15) {
        km_text_printf(out, "%s%u", token_random(2) ? " " : "", token_random(100000));
    } else if (invalid && what == 15) {
        km_text_add(out, broken[token_random(sizeof broken / sizeof *broken)]);
    } else {
        km_text_add(out, odd[token_random(sizeof odd / sizeof *odd)]);
    }
}

static inline km_text token_random_text(size_t bytes, bool invalid) {
    km_text out = {0};
    while (out.len < bytes) token_random_piece(&out, invalid);
    return out;
}

#endif
