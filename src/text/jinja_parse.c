/* Parses the statements of templates: text, {{ output }} and {% blocks %}. */
#include "base/alloc.h"
#include "text/jinja_parser.h"
#include <string.h>

static bool body(km_jparser *p, const char *const *ends, km_jnode **first);

static bool end_block(km_jparser *p) {
    if (km_jparse_now(p)->kind == KM_JTOKEN_BLOCK_END) {
        p->at++;
        return true;
    }
    km_jparse_fail(p, KM_ERR_FORMAT, "'%}' is missing");
    return false;
}

/* What follows is "{% word": both are taken. */
static bool block_word(km_jparser *p, const char *word) {
    if (km_jparse_now(p)->kind != KM_JTOKEN_BLOCK_BEGIN ||
        !km_jparse_is(p, 1, KM_JTOKEN_NAME, word))
        return false;
    p->at += 2;
    return true;
}

/* A body up to "{% endword %}", which is taken. */
static bool body_to(km_jparser *p, const char *end, km_jnode **first) {
    const char *const ends[] = {end, NULL};
    if (!end_block(p) || !body(p, ends, first)) return false;
    block_word(p, end);
    if (strcmp(end, "endmacro") == 0 && km_jparse_now(p)->kind == KM_JTOKEN_NAME) p->at++;
    return end_block(p);
}

/* ---- Targets of for and set ---- */

static km_jnode *target_name(km_jparser *p) {
    const km_jtoken *t = km_jparse_now(p);
    int line = t->line;
    if (km_jparse_op(p, "(")) {
        km_jnode *n = km_jparse_node(p, KM_JNODE_TUPLE, line), **tail = n ? &n->kid[0] : NULL;
        if (!n || !km_jparse_deeper(p)) return NULL;
        while (!km_jparse_op(p, ")")) {
            if (n->kid[0] && !km_jparse_expect(p, ",")) return NULL;
            if (n->kid[0] && km_jparse_op(p, ")")) break;
            if (!(*tail = target_name(p))) return NULL;
            tail = &(*tail)->next;
        }
        p->depth--;
        return n;
    }
    if (t->kind != KM_JTOKEN_NAME) return km_jparse_fail(p, KM_ERR_FORMAT, "a name is missing");
    km_jnode *n = km_jparse_node(p, KM_JNODE_NAME, line);
    if (!n) return NULL;
    p->at++;
    n->text = t->text;
    n->bytes = t->bytes;
    if (!km_jparse_op(p, ".")) return n;
    const km_jtoken *attr = km_jparse_now(p);
    if (attr->kind != KM_JTOKEN_NAME)
        return km_jparse_fail(p, KM_ERR_FORMAT, "a name is missing after '.'");
    km_jnode *of = km_jparse_node(p, KM_JNODE_ATTR, line);
    if (!of) return NULL;
    p->at++;
    of->kid[0] = n;
    of->text = attr->text;
    of->bytes = attr->bytes;
    return of;
}

static km_jnode *target(km_jparser *p) {
    km_jnode *first = target_name(p);
    if (!first || !km_jparse_is(p, 0, KM_JTOKEN_OPERATOR, ",")) return first;
    km_jnode *n = km_jparse_node(p, KM_JNODE_TUPLE, first->line), *last = first;
    if (!n) return NULL;
    n->kid[0] = first;
    while (km_jparse_op(p, ",")) {
        if (km_jparse_now(p)->kind != KM_JTOKEN_NAME &&
            !km_jparse_is(p, 0, KM_JTOKEN_OPERATOR, "("))
            break;
        if (!(last->next = target_name(p))) return NULL;
        last = last->next;
    }
    return n;
}

/* ---- Statements, each after its name ---- */

static km_jnode *if_block(km_jparser *p, int line) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    km_jnode *top = km_jparse_node(p, KM_JNODE_IF, line), *n = top;
    if (!top) return NULL;
    for (;;) { /* a chain of elif hangs on the else of the one before */
        if (!(n->kid[0] = km_jparse_tuple(p)) || !end_block(p) || !body(p, ends, &n->kid[1]))
            return NULL;
        int next = km_jparse_now(p)->line;
        if (!block_word(p, "elif")) break;
        if (!(n->kid[2] = km_jparse_node(p, KM_JNODE_IF, next))) return NULL;
        n = n->kid[2];
    }
    if (block_word(p, "else")) return body_to(p, "endif", &n->kid[2]) ? top : NULL;
    block_word(p, "endif");
    return end_block(p) ? top : NULL;
}

static km_jnode *for_block(km_jparser *p, int line) {
    static const char *const ends[] = {"else", "endfor", NULL};
    km_jnode *n = km_jparse_node(p, KM_JNODE_FOR, line);
    if (!n || !(n->kid[0] = target(p))) return NULL;
    if (!km_jparse_word(p, "in")) return km_jparse_fail(p, KM_ERR_FORMAT, "'in' is missing");
    /* "for a in b if c": the if belongs to the loop. */
    km_jnode *over = km_jparse_simple(p);
    if (over && km_jparse_is(p, 0, KM_JTOKEN_OPERATOR, ",")) {
        km_jnode *tuple = km_jparse_node(p, KM_JNODE_TUPLE, line), *last = over;
        if (!tuple) return NULL;
        tuple->kid[0] = over;
        while (km_jparse_op(p, ",")) {
            if (!(last->next = km_jparse_simple(p))) return NULL;
            last = last->next;
        }
        over = tuple;
    }
    if (!(n->kid[1] = over)) return NULL;
    if (km_jparse_word(p, "if") && !(n->kid[4] = km_jparse_expression(p))) return NULL;
    if (km_jparse_is(p, 0, KM_JTOKEN_NAME, "recursive"))
        return km_jparse_fail(p, KM_ERR_UNSUPPORTED, "recursive loops are not supported");
    p->loops++;
    bool ok = end_block(p) && body(p, ends, &n->kid[2]);
    p->loops--;
    if (!ok) return NULL;
    if (block_word(p, "else")) return body_to(p, "endfor", &n->kid[3]) ? n : NULL;
    block_word(p, "endfor");
    return end_block(p) ? n : NULL;
}

static km_jnode *set_block(km_jparser *p, int line) {
    km_jnode *n = km_jparse_node(p, KM_JNODE_SET, line);
    if (!n || !(n->kid[0] = target(p))) return NULL;
    if (km_jparse_op(p, "=")) return (n->kid[1] = km_jparse_tuple(p)) && end_block(p) ? n : NULL;
    n->kind = KM_JNODE_SET_BLOCK;
    while (km_jparse_op(p, "|"))
        if (!(n->kid[1] = km_jparse_filter(p, n->kid[1]))) return NULL;
    return body_to(p, "endset", &n->kid[2]) ? n : NULL;
}

static bool parameters(km_jparser *p, km_jnode **tail) {
    bool first = true;
    while (!km_jparse_op(p, ")")) {
        if (!first && !km_jparse_expect(p, ",")) return false;
        if (!first && km_jparse_op(p, ")")) return true;
        first = false;
        const km_jtoken *t = km_jparse_now(p);
        if (t->kind != KM_JTOKEN_NAME) {
            km_jparse_fail(p, KM_ERR_FORMAT, "a parameter's name is missing");
            return false;
        }
        km_jnode *n = km_jparse_node(p, KM_JNODE_KEYWORD, t->line);
        if (!n) return false;
        p->at++;
        n->text = t->text;
        n->bytes = t->bytes;
        if (km_jparse_op(p, "=") && !(n->kid[0] = km_jparse_expression(p))) return false;
        *tail = n;
        tail = &n->next;
    }
    return true;
}

/* break and continue reach no further than the body of a macro. */
static bool own_body(km_jparser *p, const char *end, km_jnode **first) {
    int loops = p->loops;
    p->loops = 0;
    bool ok = body_to(p, end, first);
    p->loops = loops;
    return ok;
}

static km_jnode *macro_block(km_jparser *p, int line) {
    const km_jtoken *t = km_jparse_now(p);
    if (t->kind != KM_JTOKEN_NAME)
        return km_jparse_fail(p, KM_ERR_FORMAT, "a macro's name is missing");
    km_jnode *n = km_jparse_node(p, KM_JNODE_MACRO, line);
    if (!n) return NULL;
    p->at++;
    n->text = t->text;
    n->bytes = t->bytes;
    if (!km_jparse_expect(p, "(") || !parameters(p, &n->kid[0])) return NULL;
    return own_body(p, "endmacro", &n->kid[1]) ? n : NULL;
}

static km_jnode *call_block(km_jparser *p, int line) {
    km_jnode *n = km_jparse_node(p, KM_JNODE_CALL_BLOCK, line);
    if (!n || (km_jparse_op(p, "(") && !parameters(p, &n->kid[1]))) return NULL;
    if (!(n->kid[0] = km_jparse_expression(p))) return NULL;
    if (n->kid[0]->kind != KM_JNODE_CALL)
        return km_jparse_fail(p, KM_ERR_FORMAT, "a call is missing");
    return own_body(p, "endcall", &n->kid[2]) ? n : NULL;
}

static km_jnode *filter_block(km_jparser *p, int line) {
    km_jnode *n = km_jparse_node(p, KM_JNODE_FILTER_BLOCK, line);
    if (!n) return NULL;
    do
        if (!(n->kid[0] = km_jparse_filter(p, n->kid[0]))) return NULL;
    while (km_jparse_op(p, "|"));
    return body_to(p, "endfilter", &n->kid[1]) ? n : NULL;
}

static km_jnode *with_block(km_jparser *p, int line) {
    km_jnode *n = km_jparse_node(p, KM_JNODE_WITH, line), **tail = n ? &n->kid[0] : NULL;
    if (!n) return NULL;
    while (km_jparse_now(p)->kind != KM_JTOKEN_BLOCK_END) {
        if (n->kid[0] && !km_jparse_expect(p, ",")) return NULL;
        km_jnode *to = target_name(p);
        if (!to || !km_jparse_expect(p, "=")) return NULL;
        *tail = to;
        if (!(to->next = km_jparse_expression(p))) return NULL;
        tail = &to->next->next;
    }
    return body_to(p, "endwith", &n->kid[1]) ? n : NULL;
}

static km_jnode *scope_block(km_jparser *p, int line) {
    km_jnode *n = km_jparse_node(p, KM_JNODE_SCOPE, line);
    return n && own_body(p, "endgeneration", &n->kid[0]) ? n : NULL;
}

static km_jnode *do_block(km_jparser *p, int line) {
    km_jnode *n = km_jparse_node(p, KM_JNODE_DO, line);
    return n && (n->kid[0] = km_jparse_tuple(p)) && end_block(p) ? n : NULL;
}

static km_jnode *jump(km_jparser *p, int line, km_jnode_kind kind) {
    if (!p->loops) return km_jparse_fail(p, KM_ERR_FORMAT, "there is no loop around this");
    km_jnode *n = km_jparse_node(p, kind, line);
    return n && end_block(p) ? n : NULL;
}
static km_jnode *break_block(km_jparser *p, int line) { return jump(p, line, KM_JNODE_BREAK); }
static km_jnode *continue_block(km_jparser *p, int line) {
    return jump(p, line, KM_JNODE_CONTINUE);
}

static const struct {
    const char *word;
    km_jnode *(*parse)(km_jparser *p, int line);
} statements[] = {
    {"if", if_block},
    {"for", for_block},
    {"set", set_block},
    {"macro", macro_block},
    {"call", call_block},
    {"filter", filter_block},
    {"with", with_block},
    {"do", do_block},
    {"generation", scope_block},
    {"break", break_block},
    {"continue", continue_block},
};

static km_jnode *statement(km_jparser *p) {
    int line = km_jparse_now(p)->line;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (block_word(p, statements[i].word)) return statements[i].parse(p, line);
    p->at++;
    const km_jtoken *t = km_jparse_now(p);
    if (t->kind != KM_JTOKEN_NAME)
        return km_jparse_fail(p, KM_ERR_FORMAT, "the name of a statement is missing");
    char what[96];
    int shown = t->bytes < 40 ? (int)t->bytes : 40;
    bool ends = (t->bytes > 3 && memcmp(t->text, "end", 3) == 0) ||
                km_jparse_is(p, 0, KM_JTOKEN_NAME, "else") ||
                km_jparse_is(p, 0, KM_JTOKEN_NAME, "elif");
    if (ends) {
        snprintf(what, sizeof what, "{%% %.*s %%} without a beginning", shown, t->text);
        p->r->line = line;
        km_jinja_fail(p->r, KM_ERR_FORMAT, "%s", what);
        return NULL;
    }
    snprintf(what, sizeof what, "the statement {%% %.*s %%} is not supported", shown, t->text);
    return km_jparse_fail(p, KM_ERR_UNSUPPORTED, what);
}

static km_jnode *part(km_jparser *p) {
    const km_jtoken *t = km_jparse_now(p);
    if (t->kind == KM_JTOKEN_BLOCK_BEGIN) return statement(p);
    p->at++;
    if (t->kind == KM_JTOKEN_TEXT) {
        km_jnode *n = km_jparse_node(p, KM_JNODE_TEXT, t->line);
        if (n) n->text = t->text, n->bytes = t->bytes;
        return n;
    }
    km_jnode *n = km_jparse_node(p, KM_JNODE_OUTPUT, t->line); /* {{ is all that is left */
    if (!n || !(n->kid[0] = km_jparse_tuple(p))) return NULL;
    if (km_jparse_now(p)->kind != KM_JTOKEN_OUTPUT_END)
        return km_jparse_fail(p, KM_ERR_FORMAT, "'}}' is missing");
    p->at++;
    return n;
}

/* Parts up to a block of one of the names, or to the end of the template where ends is NULL. */
static bool body(km_jparser *p, const char *const *ends, km_jnode **tail) {
    int line = p->at ? p->tokens[p->at - 1].line : 1; /* of the block's own %} */
    if (!km_jparse_deeper(p)) return false;
    for (;;) {
        const km_jtoken *t = km_jparse_now(p);
        if (t->kind == KM_JTOKEN_END && ends) {
            p->r->line = line;
            size_t last = 0;
            while (ends[last + 1]) last++;
            return km_jinja_fail(p->r, KM_ERR_FORMAT,
                                 "the block that begins here lacks its {%% %s %%}", ends[last]);
        }
        bool over = t->kind == KM_JTOKEN_END;
        for (size_t i = 0; ends && ends[i] && t->kind == KM_JTOKEN_BLOCK_BEGIN; i++)
            over = over || km_jparse_is(p, 1, KM_JTOKEN_NAME, ends[i]);
        if (over) break;
        if (!(*tail = part(p))) return false;
        tail = &(*tail)->next;
    }
    p->depth--;
    return true;
}

static bool tree(km_jrun *r, const km_jtokens *tokens, km_jnode **first, km_jnode **names) {
    km_jparser p = {.r = r, .tokens = tokens->data, .n = tokens->n};
    bool ok = body(&p, NULL, first);
    *names = p.names;
    return ok;
}

/* ---- A template ---- */

km_jinja *km_jinja_parse(const char *text, size_t bytes, const char *name, km_error *err) {
    km_error own = {0};
    if (!err) err = &own;
    km_jinja *t = km_calloc(1, sizeof *t);
    if (t) t->name = km_strdup(name ? name : "template");
    if (!t || !t->name) {
        km_jinja_free(t);
        km_error_set(err, KM_ERR_MEMORY, "cannot read a template: out of memory");
        return NULL;
    }
    km_text none = {0};
    km_jrun r = {.memory = (size_t)64 << 20,
                 .steps = INT64_MAX,
                 .line = 1,
                 .name = t->name,
                 .out = &none,
                 .err = err};
    km_jtokens tokens = {0};
    km_jnode *first = NULL, *names = NULL;
    bool ok = bytes <= (size_t)4 << 20 ||
              km_jinja_fail(&r, KM_ERR_RANGE, "the template has more than 4 MiB");
    ok = ok && km_jinja_lex(&r, text ? text : "", text ? bytes : 0, &tokens) &&
         tree(&r, &tokens, &first, &names);
    km_free(tokens.data);
    t->arena = r.arena;
    t->body = first;
    t->names = names;
    if (ok) return t;
    km_jinja_free(t);
    return NULL;
}

void km_jinja_free(km_jinja *t) {
    if (!t) return;
    km_arena_free(&t->arena);
    km_free(t->name);
    km_free(t);
}

bool km_jinja_reads(const km_jinja *t, const char *variable) {
    if (!t || !variable) return false;
    size_t bytes = strlen(variable);
    for (const km_jnode *n = t->names; n; n = n->kid[0])
        if (n->bytes == bytes && memcmp(n->text, variable, bytes) == 0) return true;
    return false;
}
