/* Parses the expressions of templates, by recursive descent with Jinja's precedence: or, and, not,
 * comparisons, + and -, ~, * and its kin, **, signs, then what is written behind a value. */
#include "text/jinja_parser.h"
#include <string.h>

km_jnode *km_jparse_node(km_jparser *p, km_jnode_kind kind, int line) {
    km_jnode *n = km_jinja_alloc(p->r, sizeof *n);
    if (!n) return NULL;
    n->kind = (uint8_t)kind;
    n->line = line;
    n->which = -1;
    return n;
}

void *km_jparse_fail(km_jparser *p, km_status code, const char *what) {
    const km_jtoken *t = km_jparse_now(p);
    p->r->line = t->line;
    static const char *const kinds[] = {"the end of the template", "text", "{{", "}}", "{%", "%}"};
    int shown = t->bytes < 40 ? (int)t->bytes : 40;
    if (code == KM_ERR_UNSUPPORTED)
        km_jinja_fail(p->r, code, "%s", what);
    else if (t->kind <= KM_JTOKEN_BLOCK_END)
        km_jinja_fail(p->r, code, "%s, but here is %s", what, kinds[t->kind]);
    else if (t->kind == KM_JTOKEN_INT || t->kind == KM_JTOKEN_FLOAT)
        km_jinja_fail(p->r, code, "%s, but here is a number", what);
    else
        km_jinja_fail(p->r, code, "%s, but here is '%.*s'", what, shown, t->text);
    return NULL;
}

bool km_jparse_is(const km_jparser *p, size_t ahead, km_jtoken_kind kind, const char *text) {
    size_t at = p->at + ahead;
    if (at >= p->n) return false;
    const km_jtoken *t = &p->tokens[at];
    return t->kind == kind && t->bytes == strlen(text) && memcmp(t->text, text, t->bytes) == 0;
}

bool km_jparse_op(km_jparser *p, const char *op) {
    if (!km_jparse_is(p, 0, KM_JTOKEN_OPERATOR, op)) return false;
    p->at++;
    return true;
}

bool km_jparse_word(km_jparser *p, const char *word) {
    if (!km_jparse_is(p, 0, KM_JTOKEN_NAME, word)) return false;
    p->at++;
    return true;
}

bool km_jparse_expect(km_jparser *p, const char *op) {
    if (km_jparse_op(p, op)) return true;
    char what[64];
    snprintf(what, sizeof what, "'%s' is missing", op);
    km_jparse_fail(p, KM_ERR_FORMAT, what);
    return false;
}

bool km_jparse_deeper(km_jparser *p) {
    if (++p->depth <= KM_JINJA_PARSE_DEPTH) return true;
    p->r->line = km_jparse_now(p)->line;
    return km_jinja_fail(p->r, KM_ERR_RANGE, "nested more than %d deep", KM_JINJA_PARSE_DEPTH);
}

/* ---- Values ---- */

static km_jnode *constant(km_jparser *p, km_jv v, int line) {
    km_jnode *n = km_jparse_node(p, KM_JNODE_CONST, line);
    if (n) n->value = v;
    return n;
}

static km_jnode *name(km_jparser *p) {
    const km_jtoken *t = &p->tokens[p->at++];
    static const struct {
        const char *name;
        km_jv value;
    } words[] = {{"true", {.kind = KM_JV_BOOL, .b = true}},
                 {"True", {.kind = KM_JV_BOOL, .b = true}},
                 {"false", {.kind = KM_JV_BOOL}},
                 {"False", {.kind = KM_JV_BOOL}},
                 {"none", {.kind = KM_JV_NONE}},
                 {"None", {.kind = KM_JV_NONE}}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (t->bytes == strlen(words[i].name) && memcmp(t->text, words[i].name, t->bytes) == 0)
            return constant(p, words[i].value, t->line);
    km_jnode *n = km_jparse_node(p, KM_JNODE_NAME, t->line);
    if (!n) return NULL;
    n->text = t->text;
    n->bytes = t->bytes;
    n->kid[0] = p->names;
    return p->names = n;
}

static km_jnode *strings(km_jparser *p) { /* "a" 'b' is one string */
    const km_jtoken *first = &p->tokens[p->at];
    size_t count = 0, bytes = 0;
    while (p->tokens[p->at + count].kind == KM_JTOKEN_STRING) bytes += first[count++].bytes;
    p->at += count;
    if (count == 1) return constant(p, km_jv_text(first->text, first->bytes), first->line);
    char *joined = km_jinja_alloc(p->r, bytes + 1);
    if (!joined) return NULL;
    bytes = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(joined + bytes, first[i].text, first[i].bytes);
        bytes += first[i].bytes;
    }
    return constant(p, km_jv_text(joined, bytes), first->line);
}

/* Expressions with commas between them up to a closing bracket, which is taken; a comma may end
 * them. *commas tells (1) from (1,). */
static bool items(km_jparser *p, const char *close, km_jnode **first, bool *commas) {
    km_jnode **tail = first;
    *commas = false;
    while (!km_jparse_op(p, close)) {
        if (*first && !km_jparse_expect(p, ",")) return false;
        if (*first) *commas = true;
        if (*first && km_jparse_op(p, close)) return true;
        *tail = km_jparse_expression(p);
        if (!*tail) return false;
        tail = &(*tail)->next;
    }
    return true;
}

static km_jnode *brackets(km_jparser *p, km_jnode_kind kind, const char *close, int line) {
    km_jnode *n = km_jparse_node(p, kind, line);
    bool commas;
    if (!n || !items(p, close, &n->kid[0], &commas)) return NULL;
    if (kind == KM_JNODE_TUPLE && n->kid[0] && !commas) return n->kid[0];
    return n;
}

static km_jnode *braces(km_jparser *p, int line) {
    km_jnode *n = km_jparse_node(p, KM_JNODE_DICT, line), **tail = n ? &n->kid[0] : NULL;
    if (!n) return NULL;
    while (!km_jparse_op(p, "}")) {
        if (n->kid[0] && !km_jparse_expect(p, ",")) return NULL;
        if (n->kid[0] && km_jparse_op(p, "}")) break;
        km_jnode *key = km_jparse_expression(p);
        if (!key || !km_jparse_expect(p, ":")) return NULL;
        km_jnode *value = km_jparse_expression(p);
        if (!value) return NULL;
        *tail = key;
        key->next = value;
        tail = &value->next;
    }
    return n;
}

static km_jnode *primary(km_jparser *p) {
    const km_jtoken *t = km_jparse_now(p);
    switch (t->kind) {
    case KM_JTOKEN_NAME: return name(p);
    case KM_JTOKEN_STRING: return strings(p);
    case KM_JTOKEN_INT: p->at++; return constant(p, km_jv_int(t->i), t->line);
    case KM_JTOKEN_FLOAT: p->at++; return constant(p, km_jv_float(t->f), t->line);
    default:
        if (km_jparse_op(p, "(")) return brackets(p, KM_JNODE_TUPLE, ")", t->line);
        if (km_jparse_op(p, "[")) return brackets(p, KM_JNODE_LIST, "]", t->line);
        if (km_jparse_op(p, "{")) return braces(p, t->line);
        return km_jparse_fail(p, KM_ERR_FORMAT, "an expression is missing");
    }
}

/* ---- Behind a value: .name [item] (arguments) | filter, is test ---- */

bool km_jparse_arguments(km_jparser *p, km_jnode **first) {
    km_jnode **tail = first;
    while (!km_jparse_op(p, ")")) {
        if (*first && !km_jparse_expect(p, ",")) return false;
        if (*first && km_jparse_op(p, ")")) return true;
        if (km_jparse_is(p, 0, KM_JTOKEN_OPERATOR, "*") ||
            km_jparse_is(p, 0, KM_JTOKEN_OPERATOR, "**")) {
            km_jparse_fail(p, KM_ERR_UNSUPPORTED, "arguments by * and ** are not supported");
            return false;
        }
        const km_jtoken *t = km_jparse_now(p);
        km_jnode *arg;
        if (t->kind == KM_JTOKEN_NAME && km_jparse_is(p, 1, KM_JTOKEN_OPERATOR, "=")) {
            p->at += 2;
            arg = km_jparse_node(p, KM_JNODE_KEYWORD, t->line);
            if (!arg || !(arg->kid[0] = km_jparse_expression(p))) return false;
            arg->text = t->text;
            arg->bytes = t->bytes;
        } else if (!(arg = km_jparse_expression(p))) {
            return false;
        }
        *tail = arg;
        tail = &arg->next;
    }
    return true;
}

static km_jnode *subscript(km_jparser *p, km_jnode *of, int line) {
    km_jnode *n = km_jparse_node(p, KM_JNODE_ITEM, line);
    if (!n) return NULL;
    n->kid[0] = of;
    int part = 1;
    bool any = false;
    while (!km_jparse_op(p, "]")) {
        if (km_jparse_op(p, ":")) {
            n->kind = KM_JNODE_SLICE;
            any = false;
            if (++part > 3) return km_jparse_fail(p, KM_ERR_FORMAT, "a slice has three parts");
            continue;
        }
        if (km_jparse_is(p, 0, KM_JTOKEN_OPERATOR, ","))
            return km_jparse_fail(p, KM_ERR_UNSUPPORTED,
                                  "an index of several parts is not supported");
        if (any || !(n->kid[part] = km_jparse_expression(p)))
            return km_jparse_fail(p, KM_ERR_FORMAT, "']' is missing");
        any = true;
    }
    if (n->kind == KM_JNODE_ITEM && !n->kid[1])
        return km_jparse_fail(p, KM_ERR_FORMAT, "an index is missing");
    return n;
}

static km_jnode *call(km_jparser *p, km_jnode *callee, int line) {
    km_jnode *n = km_jparse_node(p, KM_JNODE_CALL, line);
    if (!n) return NULL;
    n->kid[0] = callee;
    return km_jparse_arguments(p, &n->kid[1]) ? n : NULL;
}

static km_jnode *attribute(km_jparser *p, km_jnode *of, int line) {
    const km_jtoken *t = km_jparse_now(p);
    if (t->kind == KM_JTOKEN_INT) { /* a.0 is a[0] */
        p->at++;
        km_jnode *n = km_jparse_node(p, KM_JNODE_ITEM, line);
        if (!n || !(n->kid[1] = constant(p, km_jv_int(t->i), line))) return NULL;
        n->kid[0] = of;
        return n;
    }
    if (t->kind != KM_JTOKEN_NAME)
        return km_jparse_fail(p, KM_ERR_FORMAT, "a name is missing after '.'");
    km_jnode *n = km_jparse_node(p, KM_JNODE_ATTR, line);
    if (!n) return NULL;
    p->at++;
    n->kid[0] = of;
    n->text = t->text;
    n->bytes = t->bytes;
    return n;
}

/* Each of a long chain such as a.b.c.d is one level of the tree, and counts as one. */
static km_jnode *postfix(km_jparser *p, km_jnode *n, int *levels) {
    while (n) {
        int line = km_jparse_now(p)->line;
        if (km_jparse_op(p, "."))
            n = attribute(p, n, line);
        else if (km_jparse_op(p, "["))
            n = subscript(p, n, line);
        else if (km_jparse_op(p, "("))
            n = call(p, n, line);
        else
            break;
        ++*levels;
        if (!km_jparse_deeper(p)) return NULL;
    }
    return n;
}

km_jnode *km_jparse_filter(km_jparser *p, km_jnode *input) {
    const km_jtoken *t = km_jparse_now(p);
    if (t->kind != KM_JTOKEN_NAME)
        return km_jparse_fail(p, KM_ERR_FORMAT, "a filter's name is missing");
    km_jnode *n = km_jparse_node(p, KM_JNODE_FILTER, t->line);
    if (!n) return NULL;
    p->at++;
    n->kid[0] = input;
    n->text = t->text;
    n->bytes = t->bytes;
    n->which = (int16_t)km_jinja_find_filter(t->text, t->bytes);
    if (km_jparse_op(p, "(") && !km_jparse_arguments(p, &n->kid[1])) return NULL;
    return n;
}

static bool argument_follows(const km_jparser *p) {
    const km_jtoken *t = km_jparse_now(p);
    if (t->kind == KM_JTOKEN_NAME)
        return !km_jparse_is(p, 0, KM_JTOKEN_NAME, "else") &&
               !km_jparse_is(p, 0, KM_JTOKEN_NAME, "or") &&
               !km_jparse_is(p, 0, KM_JTOKEN_NAME, "and") &&
               !km_jparse_is(p, 0, KM_JTOKEN_NAME, "if") &&
               !km_jparse_is(p, 0, KM_JTOKEN_NAME, "in") &&
               !km_jparse_is(p, 0, KM_JTOKEN_NAME, "is") &&
               !km_jparse_is(p, 0, KM_JTOKEN_NAME, "not") &&
               !km_jparse_is(p, 0, KM_JTOKEN_NAME, "recursive");
    return t->kind == KM_JTOKEN_STRING || t->kind == KM_JTOKEN_INT || t->kind == KM_JTOKEN_FLOAT ||
           km_jparse_is(p, 0, KM_JTOKEN_OPERATOR, "[") ||
           km_jparse_is(p, 0, KM_JTOKEN_OPERATOR, "{");
}

static km_jnode *test(km_jparser *p, km_jnode *input, int *levels) {
    bool negated = km_jparse_word(p, "not");
    const km_jtoken *t = km_jparse_now(p);
    if (t->kind != KM_JTOKEN_NAME)
        return km_jparse_fail(p, KM_ERR_FORMAT, "a test's name is missing");
    km_jnode *n = km_jparse_node(p, KM_JNODE_TEST, t->line);
    if (!n) return NULL;
    p->at++;
    n->kid[0] = input;
    n->text = t->text;
    n->bytes = t->bytes;
    n->op = negated;
    n->which = (int16_t)km_jinja_find_test(t->text, t->bytes);
    if (km_jparse_op(p, "(")) return km_jparse_arguments(p, &n->kid[1]) ? n : NULL;
    if (!argument_follows(p)) return n;
    n->kid[1] = primary(p);
    if (n->kid[1]) n->kid[1] = postfix(p, n->kid[1], levels);
    return n->kid[1] ? n : NULL;
}

static km_jnode *filters(km_jparser *p, km_jnode *n, int *levels) {
    while (n) {
        int line = km_jparse_now(p)->line;
        if (km_jparse_op(p, "|"))
            n = km_jparse_filter(p, n);
        else if (km_jparse_word(p, "is"))
            n = test(p, n, levels);
        else if (km_jparse_op(p, "("))
            n = call(p, n, line);
        else
            break;
        ++*levels;
        if (!km_jparse_deeper(p)) return NULL;
    }
    return n;
}

/* ---- Operators ---- */

static km_jnode *unary(km_jparser *p, bool with_filters) {
    int line = km_jparse_now(p)->line, levels = 1;
    if (!km_jparse_deeper(p)) return NULL;
    km_jnode *n;
    bool minus = km_jparse_op(p, "-");
    if (minus || km_jparse_op(p, "+")) {
        n = km_jparse_node(p, minus ? KM_JNODE_NEGATE : KM_JNODE_PLUS, line);
        if (!n || !(n->kid[0] = unary(p, false))) return NULL;
    } else {
        n = primary(p);
    }
    n = postfix(p, n, &levels);
    if (with_filters) n = filters(p, n, &levels);
    p->depth -= levels;
    return n;
}

/* A row of binary operators of one rank: ops[i] is written, codes[i] is what nodes call it. The
 * tree of a row leans left, one level for each. */
typedef km_jnode *(*operand_fn)(km_jparser *p);
static km_jnode *row(km_jparser *p, operand_fn next, const char *const *ops, const char *codes) {
    km_jnode *left = next(p);
    int levels = 0;
    while (left) {
        size_t i = 0;
        int line = km_jparse_now(p)->line;
        while (ops[i] && !km_jparse_op(p, ops[i])) i++;
        if (!ops[i]) break;
        km_jnode *n = km_jparse_node(p, KM_JNODE_BINARY, line);
        levels++;
        if (!n || !km_jparse_deeper(p) || !(n->kid[1] = next(p))) return NULL;
        n->kid[0] = left;
        n->op = codes[i];
        left = n;
    }
    p->depth -= levels;
    return left;
}

static km_jnode *signed_value(km_jparser *p) { return unary(p, true); }

static km_jnode *power(km_jparser *p) {
    static const char *const ops[] = {"**", NULL};
    return row(p, signed_value, ops, "^");
}

static km_jnode *product(km_jparser *p) {
    static const char *const ops[] = {"*", "/", "//", "%", NULL};
    return row(p, power, ops, "*/f%");
}

static km_jnode *concat(km_jparser *p) {
    int line = km_jparse_now(p)->line;
    km_jnode *first = product(p);
    if (!first || !km_jparse_is(p, 0, KM_JTOKEN_OPERATOR, "~")) return first;
    km_jnode *n = km_jparse_node(p, KM_JNODE_CONCAT, line), *last = first;
    if (!n) return NULL;
    n->kid[0] = first;
    while (km_jparse_op(p, "~")) {
        if (!(last->next = product(p))) return NULL;
        last = last->next;
    }
    return n;
}

/* Long sums of strings are common in templates, so they may be longer than other things are deep:
 * the tree leans left, and the evaluator walks down that side in a loop. */
static km_jnode *sum(km_jparser *p) {
    km_jnode *left = concat(p);
    while (left) {
        int line = km_jparse_now(p)->line;
        char op = km_jparse_op(p, "+") ? '+' : km_jparse_op(p, "-") ? '-' : 0;
        if (!op) break;
        km_jnode *n = km_jparse_node(p, KM_JNODE_BINARY, line);
        if (!n || !(n->kid[1] = concat(p))) return NULL;
        n->kid[0] = left;
        n->op = op;
        left = n;
    }
    return left;
}

static char comparison(km_jparser *p) {
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (km_jparse_op(p, ops[i])) return "=!lg<>"[i];
    if (km_jparse_word(p, "in")) return 'i';
    if (km_jparse_is(p, 0, KM_JTOKEN_NAME, "not") && km_jparse_is(p, 1, KM_JTOKEN_NAME, "in")) {
        p->at += 2;
        return 'n';
    }
    return 0;
}

static km_jnode *compare(km_jparser *p) {
    int line = km_jparse_now(p)->line;
    km_jnode *first = sum(p), *n = NULL, **tail = NULL;
    char op;
    while (first && (op = comparison(p))) {
        if (!n) {
            n = km_jparse_node(p, KM_JNODE_COMPARE, line);
            if (!n) return NULL;
            n->kid[0] = first;
            tail = &n->kid[1];
        }
        km_jnode *operand = km_jparse_node(p, KM_JNODE_OPERAND, line);
        if (!operand || !(operand->kid[0] = sum(p))) return NULL;
        operand->op = op;
        *tail = operand;
        tail = &operand->next;
    }
    return n ? n : first;
}

static km_jnode *negation(km_jparser *p) {
    int line = km_jparse_now(p)->line;
    if (!km_jparse_word(p, "not")) return compare(p);
    km_jnode *n = km_jparse_node(p, KM_JNODE_NOT, line);
    if (!n || !km_jparse_deeper(p) || !(n->kid[0] = negation(p))) return NULL;
    p->depth--;
    return n;
}

static km_jnode *logical(km_jparser *p, operand_fn next, const char *word, km_jnode_kind kind) {
    km_jnode *left = next(p);
    int levels = 0;
    while (left) {
        int line = km_jparse_now(p)->line;
        if (!km_jparse_word(p, word)) break;
        km_jnode *n = km_jparse_node(p, kind, line);
        levels++;
        if (!n || !km_jparse_deeper(p) || !(n->kid[1] = next(p))) return NULL;
        n->kid[0] = left;
        left = n;
    }
    p->depth -= levels;
    return left;
}

static km_jnode *conjunction(km_jparser *p) { return logical(p, negation, "and", KM_JNODE_AND); }
km_jnode *km_jparse_simple(km_jparser *p) { return logical(p, conjunction, "or", KM_JNODE_OR); }

km_jnode *km_jparse_expression(km_jparser *p) {
    if (!km_jparse_deeper(p)) return NULL;
    km_jnode *value = km_jparse_simple(p);
    int levels = 1;
    while (value) {
        int line = km_jparse_now(p)->line;
        if (!km_jparse_word(p, "if")) break;
        levels++;
        km_jnode *n = km_jparse_node(p, KM_JNODE_COND, line);
        if (!n || !km_jparse_deeper(p) || !(n->kid[1] = km_jparse_simple(p))) return NULL;
        n->kid[0] = value;
        if (km_jparse_word(p, "else") && !(n->kid[2] = km_jparse_expression(p))) return NULL;
        value = n;
    }
    p->depth -= levels;
    return value;
}

km_jnode *km_jparse_tuple(km_jparser *p) {
    int line = km_jparse_now(p)->line;
    km_jnode *first = km_jparse_expression(p);
    if (!first || !km_jparse_is(p, 0, KM_JTOKEN_OPERATOR, ",")) return first;
    km_jnode *n = km_jparse_node(p, KM_JNODE_TUPLE, line), *last = first;
    if (!n) return NULL;
    n->kid[0] = first;
    while (km_jparse_op(p, ",")) {
        km_jtoken_kind kind = km_jparse_now(p)->kind;
        if (kind == KM_JTOKEN_BLOCK_END || kind == KM_JTOKEN_OUTPUT_END) break;
        if (!(last->next = km_jparse_expression(p))) return NULL;
        last = last->next;
    }
    return n;
}
