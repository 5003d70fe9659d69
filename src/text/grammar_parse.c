/* Reads GBNF. Groups and repetition become rules of their own: x* is r ::= x r | nothing, and
 * x{2,4} is x x r with r ::= x s | nothing, s ::= x | nothing; so that what matches knows only rows
 * of items. */
#include "base/alloc.h"
#include "base/array.h"
#include "text/grammar_rules.h"
#include "base/utf8.h"
#include <stdio.h>
#include <string.h>

typedef struct row { /* items of an alternative being read */
    km_grammar_item *data;
    size_t n, cap;
} row;

typedef struct grammar_reader {
    km_grammar *g;
    const char *at, *end;
    int line, depth;
    km_hash named; /* rules by their names */
    km_error *err;
} grammar_reader;

static bool fail(grammar_reader *r, km_status code, const char *what) {
    km_error_set(r->err, code, "grammar, line %d: %s", r->line, what);
    return false;
}

static bool no_memory(grammar_reader *r) { return fail(r, KM_ERR_MEMORY, "out of memory"); }

/* ---- Rows, rules ---- */

static bool put(grammar_reader *r, row *to, km_grammar_item item) {
    if (!km_array_reserve(&to->data, &to->cap, to->n + 1)) return no_memory(r);
    if (to->n >= KM_GRAMMAR_ITEMS) return fail(r, KM_ERR_RANGE, "the grammar is too large");
    to->data[to->n++] = item;
    return true;
}

static bool new_rule(grammar_reader *r, const char *name, size_t bytes, uint32_t *rule) {
    km_grammar *g = r->g;
    if (g->n_rules >= KM_GRAMMAR_ITEMS)
        return fail(r, KM_ERR_RANGE, "the grammar has too many rules");
    if (!km_array_reserve(&g->rules, &g->cap_rules, g->n_rules + 1)) return no_memory(r);
    char *copy = km_alloc(bytes + 1);
    if (!copy) return no_memory(r);
    if (bytes) memcpy(copy, name, bytes);
    copy[bytes] = 0;
    g->rules[g->n_rules] = (km_grammar_rule){.name = copy, .line = r->line};
    *rule = (uint32_t)g->n_rules++;
    return true;
}

/* The rule of this name, made if it was not heard of yet. */
static bool rule_of(grammar_reader *r, const char *name, size_t bytes, uint32_t *rule) {
    uint32_t hash = km_hash_bytes(name, bytes);
    for (size_t step = 0; (*rule = km_hash_next(&r->named, hash, &step)) != KM_HASH_NONE;) {
        const char *other = r->g->rules[*rule].name;
        if (strlen(other) == bytes && memcmp(other, name, bytes) == 0) return true;
    }
    if (!new_rule(r, name, bytes, rule)) return false;
    return km_hash_put(&r->named, hash, *rule) || no_memory(r);
}

/* Gives the rule one alternative more: n items. */
static bool add_alt(grammar_reader *r, uint32_t rule, const km_grammar_item *items, size_t n) {
    km_grammar *g = r->g;
    km_grammar_rule *to = &g->rules[rule];
    if (n + 1 > KM_GRAMMAR_ITEMS - g->n_items)
        return fail(r, KM_ERR_RANGE, "the grammar is too large");
    if (!km_array_reserve(&g->items, &g->cap_items, g->n_items + n + 1)) return no_memory(r);
    if (!km_array_reserve(&to->alts, &to->cap, to->n_alts + 1)) return no_memory(r);
    to->alts[to->n_alts++] = (uint32_t)g->n_items;
    to->defined = true;
    if (n) memcpy(g->items + g->n_items, items, n * sizeof *items);
    g->n_items += n;
    g->items[g->n_items++] = (km_grammar_item){KM_ITEM_END, 0};
    return true;
}

/* ---- Characters ---- */

/* Space and comments; newlines only where they do not end a rule. */
static void skip(grammar_reader *r, bool newlines) {
    while (r->at < r->end) {
        char c = *r->at;
        if (c == '#') {
            while (r->at < r->end && *r->at != '\n' && *r->at != '\r') r->at++;
        } else if (c == ' ' || c == '\t' || ((c == '\n' || c == '\r') && newlines)) {
            r->line += c == '\n';
            r->at++;
        } else {
            break;
        }
    }
}

static bool name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t name_length(const grammar_reader *r) {
    size_t n = 0;
    while (r->at + n < r->end && name_char(r->at[n])) n++;
    return n;
}

static bool hex(grammar_reader *r, int digits, uint32_t *cp) {
    *cp = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        char c = r->at < r->end ? *r->at : 0;
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return fail(r, KM_ERR_FORMAT, "an escape lacks hexadecimal digits");
        *cp = *cp << 4 | (uint32_t)d;
    }
    if (*cp > 0x10ffff || (*cp >= 0xd800 && *cp < 0xe000))
        return fail(r, KM_ERR_FORMAT, "an escape is no character");
    return true;
}

/* One character of a literal or a class. */
static bool character(grammar_reader *r, uint32_t *cp) {
    if (*r->at != '\\') {
        int n = km_utf8_read(r->at, (size_t)(r->end - r->at), cp);
        if (!n) return fail(r, KM_ERR_FORMAT, "the grammar is not valid UTF-8");
        if (*cp == '\n' || *cp == '\r')
            return fail(r, KM_ERR_FORMAT, "a literal or class does not end on its line");
        r->at += n;
        return true;
    }
    char c = r->at + 1 < r->end ? r->at[1] : 0;
    static const char from[] = "trn\\\"[]-^'/", to[] = "\t\r\n\\\"[]-^'/";
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        *cp = (unsigned char)to[simple - from];
        r->at += 2;
        return true;
    }
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (!digits)
        return fail(r, KM_ERR_FORMAT,
                    "an escape that is not \\t \\r \\n \\\\ \\\" \\[ \\] \\x \\u or \\U");
    r->at += 2;
    return hex(r, digits, cp);
}

static bool chars(grammar_reader *r, row *to, km_char_range *ranges, size_t n, bool negated) {
    uint16_t node;
    km_error inner = {0};
    if (km_char_nodes_class(&r->g->nodes, ranges, n, negated, &node, &inner) != KM_OK)
        return fail(r, inner.code, inner.text);
    return put(r, to, (km_grammar_item){KM_ITEM_CHARS, node});
}

static bool literal(grammar_reader *r, row *to) {
    r->at++;
    for (;;) {
        uint32_t cp;
        if (r->at >= r->end) return fail(r, KM_ERR_FORMAT, "a literal does not end");
        if (*r->at == '"') break;
        if (!character(r, &cp)) return false;
        km_char_range one = {cp, cp};
        if (!chars(r, to, &one, 1, false)) return false;
    }
    r->at++;
    return true;
}

static bool class_body(grammar_reader *r, km_char_range **ranges, size_t *n) {
    size_t cap = 0;
    for (;;) {
        km_char_range c;
        if (r->at >= r->end) return fail(r, KM_ERR_FORMAT, "a class does not end");
        if (*r->at == ']') break;
        if (!character(r, &c.lo)) return false;
        c.hi = c.lo;
        if (r->end - r->at > 1 && r->at[0] == '-' && r->at[1] != ']') {
            r->at++;
            if (!character(r, &c.hi)) return false;
            if (c.hi < c.lo) return fail(r, KM_ERR_FORMAT, "a range of characters runs backwards");
        }
        if (!km_array_reserve(ranges, &cap, *n + 1)) return no_memory(r);
        (*ranges)[(*n)++] = c;
    }
    r->at++;
    return true;
}

static bool class_item(grammar_reader *r, row *to) {
    km_char_range *ranges = NULL;
    size_t n = 0;
    r->at++;
    bool negated = r->at < r->end && *r->at == '^';
    r->at += negated;
    bool ok = class_body(r, &ranges, &n) && chars(r, to, ranges, n, negated);
    km_free(ranges);
    return ok;
}

/* ---- Repetition ---- */

static bool number(grammar_reader *r, int64_t *v) {
    if (r->at >= r->end || *r->at < '0' || *r->at > '9')
        return fail(r, KM_ERR_FORMAT, "a number is missing in {m,n}");
    *v = 0;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') {
        *v = *v * 10 + (*r->at++ - '0');
        if (*v > KM_GRAMMAR_REPEAT) {
            char what[64];
            snprintf(what, sizeof what, "a repetition beyond %d times", KM_GRAMMAR_REPEAT);
            return fail(r, KM_ERR_RANGE, what);
        }
    }
    skip(r, true);
    return true;
}

/* The bounds of an operator at r->at, which is taken; most = -1: none. */
static bool bounds(grammar_reader *r, int64_t *least, int64_t *most) {
    char c = *r->at++;
    *least = c == '+';
    *most = c == '?' ? 1 : -1;
    if (c != '{') return true;
    skip(r, true);
    *least = 0;
    if (r->at < r->end && *r->at != ',' && !number(r, least)) return false;
    *most = *least;
    if (r->at < r->end && *r->at == ',') {
        r->at++;
        skip(r, true);
        *most = -1;
        if (r->at < r->end && *r->at != '}' && !number(r, most)) return false;
    }
    if (r->at >= r->end || *r->at != '}')
        return fail(r, KM_ERR_FORMAT, "'}' is missing after {m,n");
    r->at++;
    if (*most >= 0 && *most < *least)
        return fail(r, KM_ERR_FORMAT, "the bounds of {m,n} run backwards");
    return true;
}

/* A rule "what, then the rule `then`, or nothing at all"; then -1: itself, -2: nothing more. */
static bool optional(grammar_reader *r, const row *what, int64_t then, uint32_t *rule) {
    row all = {0};
    bool ok = new_rule(r, "", 0, rule);
    for (size_t i = 0; ok && i < what->n; i++) ok = put(r, &all, what->data[i]);
    if (ok && then == -1) then = *rule;
    if (ok && then >= 0)
        ok = put(r, &all, (km_grammar_item){KM_ITEM_RULE, (uint32_t)then & 0x3fffffff});
    ok = ok && add_alt(r, *rule, all.data, all.n) && add_alt(r, *rule, NULL, 0);
    km_free(all.data);
    return ok;
}

/* Replaces the items from `from` on by their repetition. */
static bool repeat(grammar_reader *r, row *items, size_t from, int64_t least, int64_t most) {
    row what = {0};
    bool ok = true;
    uint32_t rule = 0;
    for (size_t i = from; ok && i < items->n; i++) ok = put(r, &what, items->data[i]);
    items->n = from;
    if (ok && what.n > 1) { /* a long thing is a rule, so that it is not copied each time */
        ok = new_rule(r, "", 0, &rule) && add_alt(r, rule, what.data, what.n);
        what.n = 0;
        ok = ok && put(r, &what, (km_grammar_item){KM_ITEM_RULE, rule & 0x3fffffff});
    }
    for (int64_t i = 0; ok && what.n && i < least; i++) ok = put(r, items, what.data[0]);
    if (ok && what.n && most < 0) {
        ok = optional(r, &what, -1, &rule) &&
             put(r, items, (km_grammar_item){KM_ITEM_RULE, rule & 0x3fffffff});
    } else if (ok && what.n && most > least) {
        int64_t next = -2;
        for (int64_t i = least; ok && i < most; i++) {
            ok = optional(r, &what, next, &rule);
            next = rule;
        }
        ok = ok && put(r, items, (km_grammar_item){KM_ITEM_RULE, rule & 0x3fffffff});
    }
    km_free(what.data);
    return ok;
}

/* ---- Alternatives ---- */

static bool alternatives(grammar_reader *r, uint32_t rule, bool nested);

static bool item(grammar_reader *r, row *items, bool *any) {
    size_t n;
    uint32_t rule;
    *any = true;
    if (*r->at == '"') return literal(r, items);
    if (*r->at == '[') return class_item(r, items);
    if (*r->at == '.') {
        r->at++;
        return chars(r, items, NULL, 0, true);
    }
    if (*r->at == '(') {
        r->at++;
        if (++r->depth > KM_GRAMMAR_NESTED)
            return fail(r, KM_ERR_RANGE, "groups are nested too deeply");
        int line = r->line;
        if (!new_rule(r, "", 0, &rule)) return false;
        skip(r, true);
        if (!alternatives(r, rule, true)) return false;
        if (r->at >= r->end || *r->at != ')') {
            r->line = line;
            return fail(r, KM_ERR_FORMAT, "a group that begins here lacks its ')'");
        }
        r->at++;
        r->depth--;
        return put(r, items, (km_grammar_item){KM_ITEM_RULE, rule & 0x3fffffff});
    }
    if ((n = name_length(r)) > 0) {
        if (!rule_of(r, r->at, n, &rule)) return false;
        r->at += n;
        return put(r, items, (km_grammar_item){KM_ITEM_RULE, rule & 0x3fffffff});
    }
    *any = false;
    return true;
}

static bool sequence(grammar_reader *r, row *items, bool nested) {
    while (r->at < r->end) {
        size_t from = items->n;
        bool any;
        if (!item(r, items, &any)) return false;
        if (!any) break;
        skip(r, nested);
        while (r->at < r->end &&
               (*r->at == '*' || *r->at == '+' || *r->at == '?' || *r->at == '{')) {
            int64_t least, most;
            if (!bounds(r, &least, &most) || !repeat(r, items, from, least, most)) return false;
            skip(r, nested);
        }
    }
    return true;
}

static bool alternatives(grammar_reader *r, uint32_t rule, bool nested) {
    for (;;) {
        row items = {0};
        bool ok = sequence(r, &items, nested) && add_alt(r, rule, items.data, items.n);
        km_free(items.data);
        if (!ok) return false;
        if (r->at >= r->end || *r->at != '|') return true;
        r->at++;
        skip(r, true);
    }
}

static bool rule(grammar_reader *r) {
    size_t n = name_length(r);
    uint32_t made;
    if (!n) return fail(r, KM_ERR_FORMAT, "the name of a rule is missing");
    const char *name = r->at;
    int line = r->line;
    r->at += n;
    skip(r, false);
    if (r->end - r->at < 3 || memcmp(r->at, "::=", 3) != 0)
        return fail(r, KM_ERR_FORMAT, "'::=' is missing after a rule's name");
    r->at += 3;
    skip(r, true);
    if (!rule_of(r, name, n, &made)) return false;
    if (r->g->rules[made].defined)
        return fail(r, KM_ERR_FORMAT, "a rule of this name was there before");
    r->g->rules[made].line = line;
    if (!alternatives(r, made, false)) return false;
    if (r->at < r->end && *r->at != '\n' && *r->at != '\r') {
        char what[64];
        char c = *r->at;
        snprintf(what, sizeof what,
                 c > 32 && c < 127 ? "'%c' means nothing here"
                                   : "a character that means nothing here",
                 c);
        return fail(r, KM_ERR_FORMAT, what);
    }
    skip(r, true);
    return true;
}

static bool all_defined(grammar_reader *r) {
    km_grammar *g = r->g;
    bool found = false;
    for (size_t i = 0; i < g->n_rules; i++) {
        if (!g->rules[i].defined) {
            km_error_set(r->err, KM_ERR_FORMAT, "grammar, line %d: there is no rule '%.60s'",
                         g->rules[i].line, g->rules[i].name);
            return false;
        }
        if (strcmp(g->rules[i].name, "root") != 0) continue;
        found = true;
        g->root = (uint32_t)i;
    }
    if (found) return true;
    km_error_set(r->err, KM_ERR_FORMAT, "the grammar has no rule 'root', where it would begin");
    return false;
}

km_grammar *km_grammar_parse(const char *text, size_t bytes, km_error *err) {
    km_error own = {0};
    if (!err) err = &own;
    km_grammar *g = km_calloc(1, sizeof *g);
    if (!g) {
        km_error_set(err, KM_ERR_MEMORY, "cannot read a grammar: out of memory");
        return NULL;
    }
    if (!text) text = "", bytes = 0;
    grammar_reader r = {.g = g, .at = text, .end = text + bytes, .line = 1, .err = err};
    bool ok =
        bytes <= (size_t)16 << 20 || fail(&r, KM_ERR_RANGE, "the grammar has more than 16 MiB");
    ok = ok && km_char_nodes_begin(&g->nodes, err) == KM_OK;
    if (ok) skip(&r, true);
    while (ok && r.at < r.end) ok = rule(&r);
    ok = ok && all_defined(&r) && km_grammar_bounded(g, err) == KM_OK &&
         km_grammar_compress(g, err) == KM_OK;
    km_hash_free(&r.named);
    if (ok) return g;
    km_grammar_free(g);
    return NULL;
}

void km_grammar_free(km_grammar *g) {
    if (!g) return;
    for (size_t i = 0; i < g->n_rules; i++) {
        km_free(g->rules[i].name);
        km_free(g->rules[i].alts);
    }
    km_free(g->rules);
    km_free(g->items);
    km_free(g->step);
    km_char_nodes_free(&g->nodes);
    km_free(g);
}
