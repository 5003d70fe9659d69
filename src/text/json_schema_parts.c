/* Regular expressions and bounds of numbers, as GBNF. */
#include "text/json_schema_parts.h"
#include "base/utf8.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_code(km_text *out, uint32_t cp) {
    if (cp < 0x80 && (cp == ' ' || cp == '_' || (cp >= '0' && cp <= '9') ||
                      (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z')))
        km_text_printf(out, "%c", (char)cp);
    else if (cp < 0x100)
        km_text_printf(out, "\\x%02" PRIX32, cp);
    else if (cp < 0x10000)
        km_text_printf(out, "\\u%04" PRIX32, cp);
    else
        km_text_printf(out, "\\U%08" PRIX32, cp);
}

void km_gbnf_literal(km_text *out, const char *s, size_t n) {
    km_text_add(out, "\"");
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            km_text_printf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            km_text_printf(out, "\\x%02X", c);
        else
            km_text_put(out, s + i, 1);
    }
    km_text_add(out, "\"");
}

/* ---- Sets of characters ---- */

#define MAX_RANGES 200
typedef struct char_range {
    uint32_t lo, hi;
} char_range;
typedef struct char_set {
    char_range r[MAX_RANGES];
    size_t n;
} char_set;

static bool add(char_set *s, uint32_t lo, uint32_t hi) {
    if (s->n >= MAX_RANGES) return false;
    s->r[s->n++] = (char_range){lo, hi};
    return true;
}

static int by_low(const void *a, const void *b) {
    const char_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static void tidy(char_set *s) {
    size_t n = 0;
    if (s->n > 1) qsort(s->r, s->n, sizeof *s->r, by_low);
    for (size_t i = 0; i < s->n; i++) {
        if (n && s->r[i].lo <= s->r[n - 1].hi + 1) {
            if (s->r[i].hi > s->r[n - 1].hi) s->r[n - 1].hi = s->r[i].hi;
        } else {
            s->r[n++] = s->r[i];
        }
    }
    s->n = n;
}

static bool negate(char_set *s) {
    char_set other = {.n = 0};
    uint32_t from = 0;
    tidy(s);
    for (size_t i = 0; i < s->n; i++) {
        if (s->r[i].lo > from && !add(&other, from, s->r[i].lo - 1)) return false;
        from = s->r[i].hi + 1;
    }
    if (from <= 0x10ffff && !add(&other, from, 0x10ffff)) return false;
    *s = other;
    return true;
}

static bool has(const char_set *s, uint32_t c) {
    for (size_t i = 0; i < s->n; i++)
        if (s->r[i].lo <= c && c <= s->r[i].hi) return true;
    return false;
}

/* One character of the set as JSON writes it: quotes, backslashes and controls by their escapes. */
static void put_set(km_text *out, char_set *s) {
    static const char special[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    bool any = false;
    tidy(s);
    km_text_add(out, "(");
    km_text plain = {0};
    for (size_t i = 0; i < s->n; i++) {
        uint32_t lo = s->r[i].lo < 0x20 ? 0x20 : s->r[i].lo, hi = s->r[i].hi;
        /* around the quote, the backslash and DEL */
        static const uint32_t cuts[] = {'"', '\\', 0x7f, 0x110000};
        for (int c = 0; c < 4 && lo <= hi; c++) {
            if (cuts[c] < lo) continue;
            uint32_t end = cuts[c] <= hi ? cuts[c] - 1 : hi;
            if (lo <= end) {
                put_code(&plain, lo);
                if (end > lo) km_text_add(&plain, "-");
                if (end > lo) put_code(&plain, end);
            }
            if (cuts[c] > hi) break;
            lo = cuts[c] + 1;
        }
    }
    if (plain.len) km_text_printf(out, "[%s]", km_text_str(&plain));
    any = plain.len > 0;
    if (plain.failed) out->failed = true;
    km_text_free(&plain);
    for (size_t i = 0; i < strlen(special); i++)
        if (has(s, (unsigned char)special[i])) {
            char text[2] = {'\\', letter[i]};
            if (any) km_text_add(out, " | ");
            km_gbnf_literal(out, text, 2);
            any = true;
        }
    if (!any) km_text_add(out, "[^\\x00-\\U0010FFFF]"); /* of nothing */
    km_text_add(out, ")");
}

/* ---- Regular expressions ---- */

typedef struct regex {
    const char *at, *end;
    km_text *out;
    int depth;
    const char *wrong;
} regex;

static bool fail(regex *r, const char *what) {
    if (!r->wrong) r->wrong = what;
    return false;
}

static bool class_letter(regex *r, char_set *s, char c) {
    char_set own = {.n = 0};
    switch (c | 32) {
    case 'd': add(&own, '0', '9'); break;
    case 'w':
        add(&own, '0', '9'), add(&own, 'a', 'z'), add(&own, 'A', 'Z'), add(&own, '_', '_');
        break;
    default:
        add(&own, 9, 13), add(&own, ' ', ' '), add(&own, 0xa0, 0xa0), add(&own, 0x1680, 0x1680);
        add(&own, 0x2000, 0x200a), add(&own, 0x2028, 0x2029), add(&own, 0x202f, 0x202f);
        add(&own, 0x205f, 0x205f), add(&own, 0x3000, 0x3000), add(&own, 0xfeff, 0xfeff);
    }
    if (c < 'a' && !negate(&own)) return fail(r, "it has too many ranges");
    for (size_t i = 0; i < own.n; i++)
        if (!add(s, own.r[i].lo, own.r[i].hi)) return fail(r, "it has too many ranges");
    return true;
}

/* An escape, after its backslash: one character, or a whole class added to s. */
static bool escape(regex *r, char_set *s, uint32_t *cp, bool *single) {
    if (r->at >= r->end) return fail(r, "it ends with a backslash");
    char c = *r->at++;
    *single = true;
    if (strchr("dDwWsS", c) && c) {
        *single = false;
        return class_letter(r, s, c);
    }
    static const char from[] = "tnrfv0", to[] = "\t\n\r\f\v\0";
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        *cp = (unsigned char)to[simple - from];
        return true;
    }
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : 0;
    if (digits) {
        *cp = 0;
        for (int i = 0; i < digits; i++, r->at++) {
            char h = r->at < r->end ? *r->at : 0;
            int d = h >= '0' && h <= '9'                 ? h - '0'
                    : (h | 32) >= 'a' && (h | 32) <= 'f' ? (h | 32) - 'a' + 10
                                                         : -1;
            if (d < 0) return fail(r, "an escape lacks hexadecimal digits");
            *cp = *cp * 16 + (uint32_t)d;
        }
        if (*cp >= 0xd800 && *cp < 0xe000) return fail(r, "an escape is half a character");
        return true;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9'))
        return fail(r, "such an escape (a boundary, a reference, a property) is not supported");
    *cp = (unsigned char)c;
    return true;
}

static bool code(regex *r, uint32_t *cp) {
    int n = km_utf8_read(r->at, (size_t)(r->end - r->at), cp);
    if (!n) return fail(r, "it is not valid UTF-8");
    r->at += n;
    return true;
}

static bool class_member(regex *r, char_set *s, uint32_t *cp, bool *single) {
    *single = true;
    if (*r->at != '\\') return code(r, cp);
    r->at++;
    if (r->at < r->end && *r->at == 'b') {
        r->at++;
        *cp = '\b';
        return true;
    }
    return escape(r, s, cp, single);
}

static bool class_set(regex *r, char_set *s) {
    bool negated = r->at < r->end && *r->at == '^';
    r->at += negated;
    while (r->at < r->end && *r->at != ']') {
        uint32_t lo, hi;
        bool single, other;
        if (!class_member(r, s, &lo, &single)) return false;
        if (!single) continue;
        hi = lo;
        if (r->end - r->at > 1 && r->at[0] == '-' && r->at[1] != ']') {
            r->at++;
            if (!class_member(r, s, &hi, &other)) return false;
            if (!other || hi < lo) return fail(r, "a range in a class is no range");
        }
        if (!add(s, lo, hi)) return fail(r, "it has too many ranges");
    }
    if (r->at >= r->end) return fail(r, "a class does not end");
    r->at++;
    return !negated || negate(s) || fail(r, "it has too many ranges");
}

static bool alternatives(regex *r, km_lengths *lengths);

#define FAR_LENGTH ((int64_t)1 << 30) /* beyond what a schema may ask for */

static int64_t times(int64_t a, int64_t b) {
    return a < 0 || b < 0 ? -1 : a && b > FAR_LENGTH / a ? FAR_LENGTH : a * b;
}

static int64_t plus(int64_t a, int64_t b) {
    return a < 0 || b < 0 ? -1 : a + b > FAR_LENGTH ? FAR_LENGTH : a + b;
}

static bool quantifier(regex *r, km_lengths *lengths) {
    if (r->at >= r->end || !strchr("*+?{", *r->at) || !*r->at) return true;
    const char *from = r->at++;
    int64_t least = *from == '+', most = *from == '?' ? 1 : -1;
    if (*from == '{') {
        while (r->at < r->end && ((*r->at >= '0' && *r->at <= '9') || *r->at == ',')) r->at++;
        if (r->at >= r->end || *r->at != '}' || r->at - from > 20 || from[1] == '}' ||
            from[1] == ',')
            return fail(r, "a quantifier {m,n} is wrong");
        const char *comma = memchr(from, ',', (size_t)(r->at - from));
        least = most = strtoll(from + 1, NULL, 10);
        if (comma) most = comma[1] == '}' ? -1 : strtoll(comma + 1, NULL, 10);
        r->at++;
    }
    lengths->least = times(lengths->least, least);
    lengths->most = lengths->most == 0 ? 0 : times(lengths->most, most);
    km_text_put(r->out, from, (size_t)(r->at - from));
    if (r->at < r->end && *r->at == '?') r->at++; /* lazy matches the same texts */
    return true;
}

static bool atom(regex *r, km_lengths *lengths) {
    char_set s = {.n = 0};
    uint32_t cp;
    bool single;
    char c = *r->at;
    if (c == '(') {
        r->at++;
        if (++r->depth > 50) return fail(r, "groups are nested too deeply");
        if (r->end - r->at > 1 && r->at[0] == '?') {
            if (r->at[1] != ':')
                return fail(r, "looking ahead or behind and named groups are not supported");
            r->at += 2;
        }
        km_text_add(r->out, "(");
        if (!alternatives(r, lengths)) return false;
        if (r->at >= r->end || *r->at != ')') return fail(r, "a group does not end");
        r->at++;
        r->depth--;
        km_text_add(r->out, ")");
        return quantifier(r, lengths);
    }
    *lengths = (km_lengths){1, 1};
    if (strchr("*+?{", c) && c) return fail(r, "a quantifier has nothing before it");
    if (c == '^' || c == '$') return fail(r, "^ and $ are supported at the ends only");
    if (c == '[') {
        r->at++;
        if (!class_set(r, &s)) return false;
    } else if (c == '.') {
        r->at++;
        add(&s, '\n', '\n'), add(&s, '\r', '\r'), add(&s, 0x2028, 0x2029);
        negate(&s);
    } else if (c == '\\') {
        r->at++;
        if (!escape(r, &s, &cp, &single)) return false;
        if (single) add(&s, cp, cp);
    } else {
        if (!code(r, &cp)) return false;
        add(&s, cp, cp);
    }
    put_set(r->out, &s);
    return quantifier(r, lengths);
}

static void either(km_lengths *all, km_lengths one, bool first) {
    if (first || one.least < all->least) all->least = one.least;
    if (first || one.most < 0 || (all->most >= 0 && one.most > all->most)) all->most = one.most;
}

static bool alternatives(regex *r, km_lengths *lengths) {
    bool any = false, first = true;
    km_lengths way = {0, 0}, part;
    while (r->at < r->end && *r->at != ')') {
        if (*r->at == '|') {
            r->at++;
            if (!any) km_text_add(r->out, "\"\"");
            km_text_add(r->out, " | ");
            any = false;
            either(lengths, way, first);
            way = (km_lengths){0, 0};
            first = false;
            continue;
        }
        if (r->depth == 0 && *r->at == '$' && r->at + 1 == r->end) break;
        if (any) km_text_add(r->out, " ");
        if (!atom(r, &part)) return false;
        way = (km_lengths){plus(way.least, part.least), plus(way.most, part.most)};
        any = true;
    }
    if (!any) km_text_add(r->out, "\"\"");
    either(lengths, way, first);
    return true;
}

/* Whether a bar divides the whole pattern: ^ and $ then belong to its parts. */
static bool divided(const char *p, size_t n) {
    int depth = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\\')
            i++;
        else if (p[i] == '[') {
            while (i < n && p[i] != ']') i += 1 + (p[i] == '\\');
        } else if (p[i] == '(')
            depth++;
        else if (p[i] == ')')
            depth--;
        else if (p[i] == '|' && depth == 0)
            return true;
    }
    return false;
}

const char *km_gbnf_pattern(km_text *out, const char *pattern, size_t n, km_lengths *lengths) {
    bool front = n && pattern[0] == '^', back = n > (size_t)front && pattern[n - 1] == '$';
    size_t slashes = 0; /* an escaped dollar is no anchor */
    while (back && slashes + 1 < n && pattern[n - 2 - slashes] == '\\') slashes++;
    back = back && slashes % 2 == 0;
    if ((front || back) && divided(pattern, n))
        return "^ and $ beside | are not supported: put the alternatives in a group";
    regex r = {.at = pattern + front, .end = pattern + n, .out = out};
    km_text_add(out, front ? "(" : "(char* (");
    *lengths = (km_lengths){0, -1};
    bool ok = alternatives(&r, lengths);
    if (ok && back && r.at < r.end && *r.at == '$') r.at++;
    if (ok && r.at < r.end) ok = fail(&r, "a bracket fits no other");
    km_text_add(out, front ? ")" : "))");
    if (!back) km_text_add(out, " char*");
    if (!front || !back) lengths->most = -1;
    return ok ? NULL : r.wrong;
}

/* ---- Whole numbers ---- */

static void digits_any(km_text *out, size_t n) {
    if (n == 1)
        km_text_add(out, " [0-9]");
    else if (n > 1)
        km_text_printf(out, " [0-9]{%zu}", n);
}

static void one_of(km_text *out, char lo, char hi) {
    if (lo == hi)
        km_text_printf(out, "\"%c\"", lo);
    else
        km_text_printf(out, "[%c-%c]", lo, hi);
}

/* Numbers of n digits from a to b. */
static void between(km_text *out, const char *a, const char *b, size_t n) {
    if (n == 0) {
        km_text_add(out, "\"\"");
        return;
    }
    bool from_zero = true, to_nine = true;
    for (size_t i = 1; i < n; i++) {
        from_zero = from_zero && a[i] == '0';
        to_nine = to_nine && b[i] == '9';
    }
    char lo = a[0], hi = b[0];
    bool any = false;
    km_text_add(out, "(");
    if (lo == hi) {
        one_of(out, lo, lo);
        if (n > 1) {
            km_text_add(out, " ");
            between(out, a + 1, b + 1, n - 1);
        }
        km_text_add(out, ")");
        return;
    }
    char nines[24], zeros[24];
    memset(nines, '9', sizeof nines);
    memset(zeros, '0', sizeof zeros);
    if (!from_zero) {
        one_of(out, lo, lo);
        km_text_add(out, " ");
        between(out, a + 1, nines, n - 1);
        lo++;
        any = true;
    }
    char last = to_nine ? hi : (char)(hi - 1);
    if (lo <= last) {
        if (any) km_text_add(out, " | ");
        one_of(out, lo, last);
        digits_any(out, n - 1);
        any = true;
    }
    if (!to_nine) {
        if (any) km_text_add(out, " | ");
        one_of(out, hi, hi);
        km_text_add(out, " ");
        between(out, zeros, b + 1, n - 1);
    }
    km_text_add(out, ")");
}

static void not_negative(km_text *out, uint64_t lo, uint64_t hi) {
    char a[24], b[24];
    bool any = false;
    uint64_t low = 0, high = 9;
    for (;; low = low ? low * 10 : 10, high = high * 10 + 9) { /* by the number of digits */
        uint64_t from = lo > low ? lo : low, to = hi < high ? hi : high;
        if (from <= to) {
            if (any) km_text_add(out, " | ");
            int n = snprintf(a, sizeof a, "%" PRIu64, from);
            snprintf(b, sizeof b, "%" PRIu64, to);
            between(out, a, b, (size_t)n);
            any = true;
        }
        if (hi <= high || high >= UINT64_MAX / 10) break;
    }
}

void km_gbnf_integers(km_text *out, int64_t lo, int64_t hi) {
    km_text_add(out, "(");
    if (lo < 0) {
        km_text_add(out, "\"-\" (");
        not_negative(out, hi < 0 ? 0 - (uint64_t)hi : 1, 0 - (uint64_t)lo);
        km_text_add(out, ")");
    }
    if (lo < 0 && hi >= 0) km_text_add(out, " | ");
    if (hi >= 0) not_negative(out, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi);
    km_text_add(out, ")");
}
