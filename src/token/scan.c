/* Hand-written scanners, found by the text of the pattern they stand for. A character is a letter,
 * a number, white space or something else; ASCII is looked up, the rest asked of utf8proc. */
#include "token/scan.h"
#include "base/utf8.h"
#include <string.h>
#include <utf8proc.h>

typedef enum scan_kind { OTHER, LETTER, NUMBER, BLANK } scan_kind;

static const unsigned char ascii[128] = {
    ['\t'] = BLANK, ['\n'] = BLANK, ['\v'] = BLANK, ['\f'] = BLANK, ['\r'] = BLANK, [' '] = BLANK,
    ['0'] = NUMBER, ['1'] = NUMBER, ['2'] = NUMBER, ['3'] = NUMBER, ['4'] = NUMBER, ['5'] = NUMBER,
    ['6'] = NUMBER, ['7'] = NUMBER, ['8'] = NUMBER, ['9'] = NUMBER, ['A'] = LETTER, ['B'] = LETTER,
    ['C'] = LETTER, ['D'] = LETTER, ['E'] = LETTER, ['F'] = LETTER, ['G'] = LETTER, ['H'] = LETTER,
    ['I'] = LETTER, ['J'] = LETTER, ['K'] = LETTER, ['L'] = LETTER, ['M'] = LETTER, ['N'] = LETTER,
    ['O'] = LETTER, ['P'] = LETTER, ['Q'] = LETTER, ['R'] = LETTER, ['S'] = LETTER, ['T'] = LETTER,
    ['U'] = LETTER, ['V'] = LETTER, ['W'] = LETTER, ['X'] = LETTER, ['Y'] = LETTER, ['Z'] = LETTER,
    ['a'] = LETTER, ['b'] = LETTER, ['c'] = LETTER, ['d'] = LETTER, ['e'] = LETTER, ['f'] = LETTER,
    ['g'] = LETTER, ['h'] = LETTER, ['i'] = LETTER, ['j'] = LETTER, ['k'] = LETTER, ['l'] = LETTER,
    ['m'] = LETTER, ['n'] = LETTER, ['o'] = LETTER, ['p'] = LETTER, ['q'] = LETTER, ['r'] = LETTER,
    ['s'] = LETTER, ['t'] = LETTER, ['u'] = LETTER, ['v'] = LETTER, ['w'] = LETTER, ['x'] = LETTER,
    ['y'] = LETTER, ['z'] = LETTER,
};

static scan_kind kind_beyond_ascii(const char *text, size_t n, size_t *length) {
    uint32_t cp = 0;
    *length = (size_t)km_utf8_read(text, n, &cp);
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    if (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) return LETTER;
    if (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO) return NUMBER;
    if (c >= UTF8PROC_CATEGORY_ZS && c <= UTF8PROC_CATEGORY_ZP) return BLANK;
    return cp == 0x85 ? BLANK : OTHER;
}

static inline scan_kind kind_at(const char *text, size_t n, size_t at, size_t *length) {
    unsigned char c = (unsigned char)text[at];
    if (c < 0x80) {
        *length = 1;
        return (scan_kind)ascii[c];
    }
    return kind_beyond_ascii(text + at, n - at, length);
}

/* The end of the run of characters of this kind that starts at `at`. */
static inline size_t run_of(scan_kind k, const char *text, size_t n, size_t at) {
    for (;;) {
        while (at < n && (unsigned char)text[at] < 0x80 && ascii[(unsigned char)text[at]] == k)
            at++;
        size_t length;
        if (at == n || (unsigned char)text[at] < 0x80 ||
            kind_beyond_ascii(text + at, n - at, &length) != k)
            return at;
        at += length;
    }
}

/* \s+(?!\S)|\s+ : all of the white space at the end of the text, all but its last character
 * before anything else, and that one if it is alone. */
static size_t blank_run(const char *text, size_t n, size_t from) {
    size_t end = run_of(BLANK, text, n, from), last = end - 1;
    if (end == n) return n;
    while (km_utf8_continues(text[last])) last--;
    return last > from ? last : end;
}

/* 's 't 'm 'd 'll 've 're; its length, 0: none. */
static size_t contraction(const char *p, size_t n, bool any_case) {
    unsigned char fold = any_case ? 0x20 : 0;
    if (n < 2) return 0;
    char a = (char)(p[1] | fold);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (n < 3) return 0;
    if (any_case && p[1] == '\xC5' && p[2] == '\xBF') return 3; /* the long s is an s, too */
    char b = (char)(p[2] | fold);
    return (a == 'l' && b == 'l') || ((a == 'v' || a == 'r') && b == 'e') ? 3 : 0;
}

size_t km_scan_gpt2(const char *text, size_t n, size_t from) {
    size_t at = from, length;
    if (text[at] == '\'' && (length = contraction(text + at, n - at, false)) > 0)
        return at + length;
    if (text[at] == ' ' && at + 1 < n) at++;
    scan_kind k = kind_at(text, n, at, &length);
    return k == BLANK ? blank_run(text, n, from) : run_of(k, text, n, at + length);
}

/* \s*[\r\n]+ : white space up to its last line end; `from` when there is none. */
static size_t lines(const char *text, size_t n, size_t from) {
    size_t end = run_of(BLANK, text, n, from);
    while (end > from && text[end - 1] != '\n' && text[end - 1] != '\r') end--;
    return end;
}

static inline size_t scan_llama3(const char *text, size_t n, size_t from, int digits) {
    size_t length, next_length, end;
    if (text[from] == '\'' && (length = contraction(text + from, n - from, true)) > 0)
        return from + length;
    scan_kind k = kind_at(text, n, from, &length), next = BLANK;
    if (k == LETTER) return run_of(LETTER, text, n, from + length);
    if (k == NUMBER) {
        end = from + length;
        for (int i = 1; i < digits && end < n; i++) {
            if (kind_at(text, n, end, &length) != NUMBER) break;
            end += length;
        }
        return end;
    }
    if (from + length < n) next = kind_at(text, n, from + length, &next_length);
    bool line = text[from] == '\n' || text[from] == '\r';
    if (next == LETTER && !line) return run_of(LETTER, text, n, from + length + next_length);
    if (k == OTHER || (text[from] == ' ' && next == OTHER)) {
        end = run_of(OTHER, text, n, from + length);
        while (end < n && (text[end] == '\n' || text[end] == '\r')) end++;
        return end;
    }
    end = lines(text, n, from);
    return end > from ? end : blank_run(text, n, from);
}

static size_t scan_three_digits(const char *text, size_t n, size_t from) {
    return scan_llama3(text, n, from, 3);
}

static size_t scan_one_digit(const char *text, size_t n, size_t from) {
    return scan_llama3(text, n, from, 1);
}

km_scan_fn km_scan_for(const char *pattern, size_t n) {
    static const struct {
        const char *pattern;
        km_scan_fn scan;
    } known[] = {
        {KM_PATTERN_GPT2, km_scan_gpt2},
        {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
         km_scan_gpt2},
        {KM_PATTERN_LLAMA3("\\p{N}{1,3}"), scan_three_digits},
        {KM_PATTERN_LLAMA3("\\p{N}"), scan_one_digit},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].pattern) == n && memcmp(known[i].pattern, pattern, n) == 0)
            return known[i].scan;
    return NULL;
}
