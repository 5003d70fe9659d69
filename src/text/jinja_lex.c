/* Cuts a template into tokens, and does all that Jinja does with the space around tags: a minus
 * sign eats it, the newline after a block goes (trim_blocks), and so does the indent before one
 * that begins its line (lstrip_blocks). */
#include "base/alloc.h"
#include "base/array.h"
#include "text/jinja_chars.h"
#include "text/jinja_parse.h"
#include "base/utf8.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPEN 256 /* brackets open at a time */

typedef struct lexer {
    km_jrun *r;
    km_jtokens *out;
    char *s; /* the source with \n for all line ends */
    size_t n, at;
    int line;           /* of `at` */
    bool line_starting; /* what was read last ended with a newline */
    char open[MAX_OPEN];
    int n_open;
} lexer;

static bool fail(lexer *x, const char *what) {
    x->r->line = x->line;
    return km_jinja_fail(x->r, KM_ERR_FORMAT, "%s", what);
}

static bool add(lexer *x, km_jtoken t) {
    km_jtokens *out = x->out;
    if (!km_array_reserve(&out->data, &out->cap, out->n + 1))
        return km_jinja_fail(x->r, KM_ERR_MEMORY, "out of memory");
    out->data[out->n++] = t;
    return true;
}

static void advance(lexer *x, size_t n) {
    for (size_t i = 0; i < n; i++) x->line += x->s[x->at + i] == '\n';
    if (n) x->line_starting = x->s[x->at + n - 1] == '\n';
    x->at += n;
}

static bool starts(const lexer *x, size_t at, const char *with) {
    size_t n = strlen(with);
    return x->n - at >= n && memcmp(x->s + at, with, n) == 0;
}

static size_t spaces(const lexer *x, size_t at) {
    size_t i = at, n;
    while (i < x->n && (n = km_space_length(x->s + i, x->n - i)) > 0) i += n;
    return i - at;
}

/* The end of a tag of this kind at `at`: its length with the space it takes; 0 when it is not. */
static size_t tag_end(const lexer *x, size_t at, const char *close, bool trims) {
    size_t n = strlen(close);
    if (x->s[at] == '-' && starts(x, at + 1, close)) return 1 + n + spaces(x, at + 1 + n);
    if (x->s[at] == '+' && trims && starts(x, at + 1, close)) return 1 + n;
    if (!starts(x, at, close)) return 0;
    return n + (trims && at + n < x->n && x->s[at + n] == '\n');
}

/* ---- Between tags ---- */

/* The text before a tag at `end` whose sign is given. */
static bool put_text(lexer *x, size_t end, char sign, bool is_output) {
    size_t begin = x->at, stop = end;
    if (sign == '-') {
        stop = begin + km_trim_end(x->s + begin, end - begin);
    } else if (sign != '+' && !is_output) {
        size_t from = end;
        while (from > begin && x->s[from - 1] != '\n') from--;
        bool at_line_start = from > begin || x->line_starting;
        if (at_line_start && spaces(x, from) >= end - from) stop = from;
    }
    km_jtoken t = {KM_JTOKEN_TEXT, x->line, x->s + begin, stop - begin, 0, 0};
    if (t.bytes && !add(x, t)) return false;
    advance(x, end - begin);
    return true;
}

static bool skip_comment(lexer *x) {
    for (size_t i = x->at; i < x->n; i++) {
        size_t n = tag_end(x, i, "#}", true);
        if (!n) continue;
        advance(x, i + n - x->at);
        return true;
    }
    return fail(x, "a comment {# does not end with #}");
}

/* {% raw %} at x->at (its sign read already)? Its text, up to {% endraw %}. */
static bool raw_block(lexer *x, bool *was_raw) {
    size_t at = x->at + spaces(x, x->at), n;
    *was_raw = false;
    if (!starts(x, at, "raw")) return true;
    at += 3;
    at += spaces(x, at);
    if (at >= x->n || x->s[at] == '+' || !(n = tag_end(x, at, "%}", false))) return true;
    *was_raw = true;
    advance(x, at + n - x->at);
    for (size_t i = x->at; i + 2 <= x->n; i++) {
        if (!starts(x, i, "{%")) continue;
        size_t name = i + 2;
        char sign = name < x->n && (x->s[name] == '-' || x->s[name] == '+') ? x->s[name] : 0;
        name += sign != 0;
        name += spaces(x, name);
        if (!starts(x, name, "endraw")) continue;
        size_t end = name + 6;
        end += spaces(x, end);
        if (end >= x->n || !(n = tag_end(x, end, "%}", true))) continue;
        if (!put_text(x, i, sign, false)) return false;
        advance(x, end + n - i);
        return true;
    }
    return fail(x, "{% raw %} without {% endraw %}");
}

/* ---- Within tags ---- */

static bool digit(char c) { return c >= '0' && c <= '9'; }

static int digit_of(char c, int base) {
    int d = digit(c)               ? c - '0'
            : c >= 'a' && c <= 'f' ? c - 'a' + 10
            : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                   : 99;
    return d < base ? d : -1;
}

/* Digits with single underscores between them; the length. */
static size_t digits(const lexer *x, size_t at) {
    size_t i = at;
    while (i < x->n && (digit(x->s[i]) || (i > at && x->s[i] == '_' && x->s[i - 1] != '_' &&
                                           i + 1 < x->n && digit(x->s[i + 1]))))
        i++;
    return i - at;
}

static bool read_int(lexer *x, size_t n, km_jtoken *t) {
    const char *s = x->s + x->at;
    int base = 10;
    size_t i = 0;
    if (n > 1 && s[0] == '0' && !digit(s[1]) && s[1] != '_') {
        base = s[1] == 'x' || s[1] == 'X' ? 16 : s[1] == 'o' || s[1] == 'O' ? 8 : 2;
        i = 2;
    }
    t->kind = KM_JTOKEN_INT;
    for (; i < n; i++) {
        if (s[i] == '_') continue;
        if (__builtin_mul_overflow(t->i, base, &t->i) ||
            __builtin_add_overflow(t->i, digit_of(s[i], base), &t->i))
            return fail(x, "an integer does not fit in 64 bits");
    }
    return true;
}

static bool read_number(lexer *x) {
    km_jtoken t = {.line = x->line};
    size_t whole = digits(x, x->at), end = x->at + whole;
    bool after_dot = x->at > 0 && x->s[x->at - 1] == '.'; /* a.0.1 are places, not a fraction */
    bool real = false;
    if (x->s[x->at] == '0' && whole == 1 && end + 1 < x->n && strchr("xXoObB", x->s[end])) {
        int base = strchr("xX", x->s[end]) ? 16 : strchr("oO", x->s[end]) ? 8 : 2;
        size_t i = end + 1;
        while (i < x->n && (digit_of(x->s[i], base) >= 0 || x->s[i] == '_')) i++;
        if (i > end + 1) end = i;
    } else if (!after_dot) {
        if (end < x->n && x->s[end] == '.') {
            size_t n = digits(x, end + 1);
            real = n > 0;
            if (real) end += 1 + n;
        }
        if (end < x->n && (x->s[end] == 'e' || x->s[end] == 'E')) {
            size_t sign = end + 1 < x->n && (x->s[end + 1] == '+' || x->s[end + 1] == '-');
            size_t n = digits(x, end + 1 + sign);
            real = real || n > 0;
            if (n) end += 1 + sign + n;
        }
    }
    if (!real) {
        if (!read_int(x, end - x->at, &t)) return false;
    } else {
        char buf[64];
        size_t n = 0;
        for (size_t i = x->at; i < end; i++)
            if (x->s[i] != '_' && n < sizeof buf - 1) buf[n++] = x->s[i];
        buf[n] = 0;
        t.kind = KM_JTOKEN_FLOAT;
        t.f = strtod(buf, NULL);
    }
    advance(x, end - x->at);
    return add(x, t);
}

/* The code point of an escape with `width` hex digits (or octal) at s[i]. */
static bool escaped_number(lexer *x, size_t *i, size_t end, int base, int width, uint32_t *cp) {
    int n = 0;
    *cp = 0;
    while (n < width && *i < end && digit_of(x->s[*i], base) >= 0) {
        *cp = *cp * (uint32_t)base + (uint32_t)digit_of(x->s[(*i)++], base);
        n++;
    }
    if (base == 16 && n < width) return fail(x, "an escape in a string lacks digits");
    if (*cp > 0x10ffff || (*cp >= 0xd800 && *cp < 0xe000))
        return fail(x, "an escape in a string is no character");
    return true;
}

static bool unescape(lexer *x, size_t begin, size_t end, km_jtoken *t) {
    char *out = km_jinja_alloc(x->r, end - begin + 1);
    if (!out) return false;
    size_t n = 0;
    for (size_t i = begin; i < end;) {
        if (x->s[i] != '\\' || i + 1 >= end) {
            out[n++] = x->s[i++];
            continue;
        }
        char c = x->s[i + 1];
        i += 2;
        static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
        const char *simple = c ? strchr(from, c) : NULL;
        uint32_t cp;
        if (simple) {
            out[n++] = to[simple - from];
        } else if (c == 'x' || c == 'u' || c == 'U' || (c >= '0' && c <= '7')) {
            bool octal = digit(c);
            i -= octal;
            if (!escaped_number(x, &i, end, octal ? 8 : 16,
                                octal      ? 3
                                : c == 'x' ? 2
                                : c == 'u' ? 4
                                           : 8,
                                &cp))
                return false;
            n += (size_t)km_utf8_write(out + n, cp);
        } else if (c == 'N') {
            return fail(x, "characters by name (\\N{...}) are not supported");
        } else if (c != '\n') { /* an escaped newline is nothing at all */
            out[n++] = '\\';
            out[n++] = c;
        }
    }
    t->text = out;
    t->bytes = n;
    return true;
}

static bool read_string(lexer *x) {
    char mark = x->s[x->at];
    size_t i = x->at + 1;
    while (i < x->n && x->s[i] != mark) i += 1 + (x->s[i] == '\\' && i + 1 < x->n);
    if (i >= x->n) return fail(x, "a string does not end");
    km_jtoken t = {.kind = KM_JTOKEN_STRING, .line = x->line};
    if (!unescape(x, x->at + 1, i, &t)) return false;
    advance(x, i + 1 - x->at);
    return add(x, t);
}

static bool name_char(char c) {
    return digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (unsigned char)c >= 0x80;
}

static bool read_operator(lexer *x) {
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    size_t n = 0;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (starts(x, x->at, two[i])) n = 2;
    char c = x->s[x->at];
    if (!n && c && strchr("+-/*%~[](){}><=.:|,;", c)) n = 1;
    if (!n) return fail(x, "a character that means nothing here");
    if (n == 1 && strchr("([{", c)) {
        if (x->n_open == MAX_OPEN) return fail(x, "brackets are nested too deeply");
        x->open[x->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (n == 1 && strchr(")]}", c)) {
        if (!x->n_open || x->open[--x->n_open] != c)
            return fail(x, "a closing bracket that fits no opening one");
    }
    km_jtoken t = {KM_JTOKEN_OPERATOR, x->line, x->s + x->at, n, 0, 0};
    advance(x, n);
    return add(x, t);
}

static bool read_tag(lexer *x, bool is_output) {
    int begun = x->line;
    x->n_open = 0;
    while (x->at < x->n) {
        size_t n = x->n_open ? 0 : tag_end(x, x->at, is_output ? "}}" : "%}", !is_output);
        if (n) {
            km_jtoken t = {.kind = is_output ? KM_JTOKEN_OUTPUT_END : KM_JTOKEN_BLOCK_END,
                           .line = x->line};
            advance(x, n);
            return add(x, t);
        }
        n = spaces(x, x->at);
        char c = x->s[x->at];
        bool ok = true;
        if (n) {
            advance(x, n);
        } else if (digit(c)) {
            ok = read_number(x);
        } else if (name_char(c)) {
            for (n = 1; x->at + n < x->n && name_char(x->s[x->at + n]);) n++;
            km_jtoken t = {KM_JTOKEN_NAME, x->line, x->s + x->at, n, 0, 0};
            advance(x, n);
            ok = add(x, t);
        } else {
            ok = c == '\'' || c == '"' ? read_string(x) : read_operator(x);
        }
        if (!ok) return false;
    }
    x->line = begun;
    return fail(x, is_output ? "{{ is not closed by }}" : "{% is not closed by %}");
}

static bool lex(lexer *x) {
    while (x->at < x->n) {
        size_t i = x->at;
        while (i < x->n &&
               !(x->s[i] == '{' && i + 1 < x->n && strchr("{%#", x->s[i + 1]) && x->s[i + 1]))
            i++;
        if (i == x->n) {
            km_jtoken t = {KM_JTOKEN_TEXT, x->line, x->s + x->at, i - x->at, 0, 0};
            return add(x, t);
        }
        char kind = x->s[i + 1], sign = i + 2 < x->n ? x->s[i + 2] : 0;
        if (sign != '-' && sign != '+') sign = 0;
        if (!put_text(x, i, sign, kind == '{')) return false;
        int line = x->line;
        /* {#-#} is a comment whose sign both tags claim; the first has it. */
        advance(x, 2 + (sign != 0));
        if (kind == '#') {
            if (!skip_comment(x)) return false;
            continue;
        }
        bool was_raw = false;
        if (kind == '%' && !raw_block(x, &was_raw)) return false;
        if (was_raw) continue;
        km_jtoken t = {.kind = kind == '{' ? KM_JTOKEN_OUTPUT_BEGIN : KM_JTOKEN_BLOCK_BEGIN,
                       .line = line};
        if (!add(x, t) || !read_tag(x, kind == '{')) return false;
    }
    return true;
}

bool km_jinja_lex(km_jrun *r, const char *text, size_t bytes, km_jtokens *out) {
    char *s = km_jinja_alloc(r, bytes + 1);
    if (!s) return false;
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        bool pair = text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n';
        s[n++] = text[i] == '\r' ? '\n' : text[i];
        i += pair;
    }
    n -= n && s[n - 1] == '\n'; /* a last newline belongs to the file, not to the template */
    lexer x = {.r = r, .out = out, .s = s, .n = n, .line = 1, .line_starting = true};
    size_t valid = km_utf8_valid(s, n);
    if (valid < n) {
        for (size_t i = 0; i < valid; i++) x.line += s[i] == '\n';
        return fail(&x, "the template is not valid UTF-8");
    }
    if (!lex(&x)) return false;
    return add(&x, (km_jtoken){.kind = KM_JTOKEN_END, .line = x.line});
}
