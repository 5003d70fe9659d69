/* Walks a template's tree: expressions give values, statements write text. */
#include "text/jinja_eval.h"
#include "base/alloc.h"
#include <string.h>
#include <time.h>

typedef struct eval {
    km_jrun *r;
    km_jscope *scope;
} eval;

typedef enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAIL } flow;

static bool value(eval *e, const km_jnode *n, km_jv *out);
static flow run(eval *e, const km_jnode *n);

static bool enter(eval *e, const km_jnode *n) {
    e->r->line = n->line;
    if (!km_jinja_step(e->r, 0)) return false;
    if (++e->r->depth <= KM_JINJA_DEPTH) return true;
    return km_jinja_fail(e->r, KM_ERR_RANGE, "evaluation is nested more than %d deep",
                         KM_JINJA_DEPTH);
}

bool km_jinja_undefined(km_jrun *r, const km_jv *v) {
    return km_jinja_fail(r, KM_ERR_FORMAT, "'%.*s' is undefined",
                         v->bytes < 100 ? (int)v->bytes : 100, v->text);
}

/* ---- Scopes ---- */

static bool define(eval *e, const char *name, size_t bytes, const km_jv *v) {
    for (km_jvar *x = e->scope->vars; x; x = x->next) {
        if (x->bytes != bytes || memcmp(x->name, name, bytes) != 0) continue;
        x->value = *v;
        return true;
    }
    km_jvar *x = km_jinja_alloc(e->r, sizeof *x);
    if (!x) return false;
    *x = (km_jvar){e->scope->vars, name, bytes, *v};
    e->scope->vars = x;
    return true;
}

static bool open_scope(eval *e, km_jscope *outer) {
    km_jscope *s = km_jinja_alloc(e->r, sizeof *s);
    if (!s) return false;
    s->outer = outer;
    e->scope = s;
    return true;
}

static bool look_up(eval *e, const km_jnode *n, km_jv *out) {
    for (const km_jscope *s = e->scope; s; s = s->outer)
        for (const km_jvar *x = s->vars; x; x = x->next)
            if (x->bytes == n->bytes && memcmp(x->name, n->text, n->bytes) == 0) {
                *out = x->value;
                return true;
            }
    int function = km_jinja_find_function(n->text, n->bytes);
    if (function >= 0)
        *out = (km_jv){.kind = KM_JV_FUNCTION, .i = function};
    else
        *out = (km_jv){.kind = KM_JV_UNDEFINED, .text = n->text, .bytes = n->bytes};
    return true;
}

static bool assign(eval *e, const km_jnode *to, const km_jv *v) {
    if (to->kind == KM_JNODE_NAME) return define(e, to->text, to->bytes, v);
    if (to->kind == KM_JNODE_ATTR) {
        km_jv of;
        if (!look_up(e, to->kid[0], &of)) return false;
        if (of.kind != KM_JV_NAMESPACE)
            return km_jinja_fail(e->r, KM_ERR_FORMAT,
                                 "'%.*s' is no namespace, so nothing of it can be set",
                                 (int)to->kid[0]->bytes, to->kid[0]->text);
        km_jv key = km_jv_text(to->text, to->bytes);
        return km_jv_put(e->r, &of, &key, v);
    }
    km_jv list; /* several names */
    size_t i = 0, wanted = 0;
    for (const km_jnode *k = to->kid[0]; k; k = k->next) wanted++;
    if (!km_jv_iterate(e->r, v, &list)) return false;
    if (list.list->n != wanted)
        return km_jinja_fail(e->r, KM_ERR_FORMAT, "%zu values for %zu names", list.list->n, wanted);
    for (const km_jnode *k = to->kid[0]; k; k = k->next)
        if (!assign(e, k, &list.list->items[i++])) return false;
    return true;
}

/* ---- Calls ---- */

const km_jv *km_jarg(const km_jargs *a, size_t position, const char *name) {
    if (position < a->n) return &a->values[position];
    for (size_t i = 0; name && i < a->n_named; i++)
        if (a->name_bytes[i] == strlen(name) && memcmp(a->names[i], name, a->name_bytes[i]) == 0)
            return &a->values[a->n + i];
    return NULL;
}

static bool among(const char *names, const char *name, size_t bytes) {
    for (const char *at = names; *at;) {
        size_t n = strcspn(at, " ");
        if (n == bytes && memcmp(at, name, n) == 0) return true;
        at += n + (at[n] == ' ');
    }
    return false;
}

bool km_jargs_check(km_jrun *r, const char *what, const km_jargs *a, size_t most,
                    const char *names) {
    if (a->n > most)
        return km_jinja_fail(r, KM_ERR_FORMAT, "%s takes %zu arguments at most, not %zu", what,
                             most, a->n);
    for (size_t i = 0; i < a->n_named; i++)
        if (!among(names, a->names[i], a->name_bytes[i]))
            return km_jinja_fail(r, KM_ERR_FORMAT, "%s takes no argument '%.*s'", what,
                                 (int)a->name_bytes[i], a->names[i]);
    return true;
}

static bool arguments(eval *e, const km_jnode *first, km_jargs *a) {
    *a = (km_jargs){0};
    size_t n = 0;
    for (const km_jnode *k = first; k; k = k->next) n++;
    if (!n) return true;
    a->values = km_jinja_alloc(e->r, n * sizeof *a->values);
    a->names = km_jinja_alloc(e->r, n * sizeof *a->names);
    a->name_bytes = km_jinja_alloc(e->r, n * sizeof *a->name_bytes);
    if (!a->values || !a->names || !a->name_bytes) return false;
    for (const km_jnode *k = first; k; k = k->next) {
        bool named = k->kind == KM_JNODE_KEYWORD;
        if (!named && a->n_named)
            return km_jinja_fail(e->r, KM_ERR_FORMAT,
                                 "an argument without a name follows one with a name");
        if (!value(e, named ? k->kid[0] : k, &a->values[a->n + a->n_named])) return false;
        if (named) {
            a->names[a->n_named] = k->text;
            a->name_bytes[a->n_named++] = k->bytes;
        } else {
            a->n++;
        }
    }
    return true;
}

/* What a block of statements writes, as a string. */
static bool captured(eval *e, const km_jnode *first, km_jv *out) {
    size_t start = e->r->out->len;
    return run(e, first) != FLOW_FAIL && km_jv_take(e->r, start, out);
}

/* Arguments beyond the parameters are there as varargs and kwargs, for bodies that want them. */
static bool bind_rest(eval *e, const km_jv_macro *m, const km_jargs *a) {
    size_t n = 0;
    for (const km_jnode *k = m->parameters; k; k = k->next) n++;
    km_jv rest, named;
    if (!km_jv_new_list(e->r, KM_JV_TUPLE, 0, &rest) || !km_jv_new_dict(e->r, 0, &named))
        return false;
    for (size_t i = n; i < a->n; i++)
        if (!km_jv_push(e->r, &rest, &a->values[i])) return false;
    for (size_t i = 0; i < a->n_named; i++) {
        bool taken = false;
        for (const km_jnode *k = m->parameters; k && !taken; k = k->next)
            taken = k->bytes == a->name_bytes[i] && memcmp(k->text, a->names[i], k->bytes) == 0;
        km_jv key = km_jv_text(a->names[i], a->name_bytes[i]);
        if (!taken && !km_jv_put(e->r, &named, &key, &a->values[a->n + i])) return false;
    }
    return define(e, "varargs", 7, &rest) && define(e, "kwargs", 6, &named);
}

static bool call_macro(eval *e, const km_jv_macro *m, const km_jargs *a, const km_jv *caller,
                       km_jv *out) {
    eval inside = {.r = e->r};
    size_t i = 0;
    if (!open_scope(&inside, m->scope)) return false;
    for (const km_jnode *k = m->parameters; k; k = k->next, i++) {
        const km_jv *given = i < a->n ? &a->values[i] : NULL;
        for (size_t j = 0; !given && j < a->n_named; j++)
            if (a->name_bytes[j] == k->bytes && memcmp(a->names[j], k->text, k->bytes) == 0)
                given = &a->values[a->n + j];
        km_jv v = {.kind = KM_JV_UNDEFINED, .text = k->text, .bytes = k->bytes};
        if (given)
            v = *given;
        else if (k->kid[0] && !value(&inside, k->kid[0], &v))
            return false;
        if (!define(&inside, k->text, k->bytes, &v)) return false;
    }
    if (!bind_rest(&inside, m, a)) return false;
    if (caller && !define(&inside, "caller", 6, caller)) return false;
    return captured(&inside, m->body, out);
}

static bool call_loop(eval *e, const km_jv_method *m, const km_jargs *a, km_jv *out) {
    km_jv_loop *loop = m->self.loop;
    if (m->bytes == 5) { /* cycle */
        if (!a->n) return km_jinja_fail(e->r, KM_ERR_FORMAT, "loop.cycle needs values");
        *out = a->values[loop->at % a->n];
        return true;
    }
    km_jv now; /* changed */
    bool same = false;
    if (!km_jv_new_list(e->r, KM_JV_TUPLE, 0, &now)) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!km_jv_push(e->r, &now, &a->values[i])) return false;
    if (loop->seen && !km_jv_equal(e->r, &loop->changed, &now, &same)) return false;
    loop->seen = true;
    loop->changed = now;
    *out = km_jv_bool(!same);
    return true;
}

static bool call_value(eval *e, const km_jv *callee, const km_jargs *a, const km_jv *caller,
                       km_jv *out) {
    switch (callee->kind) {
    case KM_JV_MACRO: return call_macro(e, callee->macro, a, caller, out);
    case KM_JV_FUNCTION: return km_jinja_function(e->r, (int)callee->i, a, out);
    case KM_JV_METHOD:
        if (callee->method->self.kind == KM_JV_LOOP) return call_loop(e, callee->method, a, out);
        return km_jinja_method(e->r, callee->method, a, out);
    case KM_JV_UNDEFINED: return km_jinja_undefined(e->r, callee);
    default: return km_jinja_fail(e->r, KM_ERR_FORMAT, "a %s cannot be called", km_jv_type(callee));
    }
}

static bool call(eval *e, const km_jnode *n, const km_jv *caller, km_jv *out) {
    km_jv callee;
    km_jargs a;
    if (!value(e, n->kid[0], &callee) || !arguments(e, n->kid[1], &a)) return false;
    e->r->line = n->line;
    return call_value(e, &callee, &a, caller, out);
}

/* ---- Expressions ---- */

/* Left-leaning sums are as long as a template makes them, so the left side is a loop: down to the
 * first operand, then back up. */
static bool binary(eval *e, const km_jnode *n, km_jv *out) {
    size_t count = 0;
    const km_jnode *first = n;
    for (; first->kind == KM_JNODE_BINARY; first = first->kid[0]) count++;
    const km_jnode **chain = km_jinja_alloc(e->r, count * sizeof *chain);
    if (!chain) return false;
    for (size_t i = count; i-- > 0; n = n->kid[0]) chain[i] = n;
    if (!value(e, first, out)) return false;
    for (size_t i = 0; i < count; i++) {
        km_jv left = *out, right;
        if (!value(e, chain[i]->kid[1], &right)) return false;
        e->r->line = chain[i]->line;
        if (!km_jinja_binary(e->r, chain[i]->op, &left, &right, out)) return false;
    }
    return true;
}

static bool holds(eval *e, char op, const km_jv *a, const km_jv *b, bool *yes) {
    if (op == '=' || op == '!') {
        if (!km_jv_equal(e->r, a, b, yes)) return false;
        *yes = *yes == (op == '=');
        return true;
    }
    if (op == 'i' || op == 'n') {
        if (!km_jv_contains(e->r, b, a, yes)) return false;
        *yes = *yes == (op == 'i');
        return true;
    }
    if (a->kind == KM_JV_UNDEFINED || b->kind == KM_JV_UNDEFINED)
        return km_jinja_undefined(e->r, a->kind == KM_JV_UNDEFINED ? a : b);
    int order;
    if (!km_jv_order(e->r, a, b, &order)) return false;
    *yes = op == '<' ? order < 0 : op == '>' ? order > 0 : op == 'l' ? order <= 0 : order >= 0;
    return true;
}

static bool compare(eval *e, const km_jnode *n, km_jv *out) {
    km_jv left, right;
    bool yes = true;
    if (!value(e, n->kid[0], &left)) return false;
    for (const km_jnode *k = n->kid[1]; k && yes; k = k->next) {
        if (!value(e, k->kid[0], &right)) return false;
        e->r->line = n->line;
        if (!holds(e, k->op, &left, &right, &yes)) return false;
        left = right;
    }
    *out = km_jv_bool(yes);
    return true;
}

static bool concat(eval *e, const km_jnode *n, km_jv *out) {
    km_jv parts;
    if (!km_jv_new_list(e->r, KM_JV_PLAIN, 0, &parts)) return false;
    for (const km_jnode *k = n->kid[0]; k; k = k->next) {
        km_jv v;
        if (!value(e, k, &v) || !km_jv_push(e->r, &parts, &v)) return false;
    }
    size_t start = e->r->out->len;
    for (size_t i = 0; i < parts.list->n; i++)
        if (!km_jv_write(e->r, &parts.list->items[i])) return false;
    return km_jv_take(e->r, start, out);
}

static bool collection(eval *e, const km_jnode *n, km_jv *out) {
    if (n->kind != KM_JNODE_DICT) {
        if (!km_jv_new_list(e->r, n->kind == KM_JNODE_TUPLE ? KM_JV_TUPLE : KM_JV_PLAIN, 0, out))
            return false;
        for (const km_jnode *k = n->kid[0]; k; k = k->next) {
            km_jv v;
            if (!value(e, k, &v) || !km_jv_push(e->r, out, &v)) return false;
        }
        return true;
    }
    if (!km_jv_new_dict(e->r, 0, out)) return false;
    for (const km_jnode *k = n->kid[0]; k; k = k->next->next) {
        km_jv key, v;
        if (!value(e, k, &key) || !value(e, k->next, &v) || !km_jv_put(e->r, out, &key, &v))
            return false;
    }
    return true;
}

static bool slice(eval *e, const km_jnode *n, km_jv *out) {
    km_jv of, part[3];
    if (!value(e, n->kid[0], &of)) return false;
    for (int i = 0; i < 3; i++) {
        part[i] = km_jv_none();
        if (n->kid[i + 1] && !value(e, n->kid[i + 1], &part[i])) return false;
    }
    e->r->line = n->line;
    return km_jinja_slice(e->r, &of, &part[0], &part[1], &part[2], out);
}

static bool not_supported(eval *e, const char *what, const km_jnode *n) {
    return km_jinja_fail(e->r, KM_ERR_UNSUPPORTED, "the %s '%.*s' is not supported", what,
                         n->bytes < 60 ? (int)n->bytes : 60, n->text);
}

static bool filter(eval *e, const km_jnode *n, const km_jv *input, km_jv *out) {
    km_jv v;
    km_jargs a;
    if (n->kid[0] && n->kid[0]->kind == KM_JNODE_FILTER && input) {
        if (!filter(e, n->kid[0], input, &v)) return false;
    } else if (n->kid[0]) {
        if (!value(e, n->kid[0], &v)) return false;
    } else {
        v = *input;
    }
    if (!arguments(e, n->kid[1], &a)) return false;
    e->r->line = n->line;
    if (n->which < 0) return not_supported(e, "filter", n);
    return km_jinja_filter(e->r, n->which, &v, &a, out);
}

static bool test(eval *e, const km_jnode *n, km_jv *out) {
    km_jv v;
    km_jargs a;
    bool yes = false;
    if (!value(e, n->kid[0], &v) || !arguments(e, n->kid[1], &a)) return false;
    e->r->line = n->line;
    if (n->which < 0) return not_supported(e, "test", n);
    if (!km_jinja_test(e->r, n->which, &v, &a, &yes)) return false;
    *out = km_jv_bool(yes != (n->op != 0));
    return true;
}

static bool sign(eval *e, const km_jnode *n, km_jv *out) {
    km_jv v;
    if (!value(e, n->kid[0], &v)) return false;
    if (v.kind == KM_JV_UNDEFINED) return km_jinja_undefined(e->r, &v);
    if (!km_jv_number(&v))
        return km_jinja_fail(e->r, KM_ERR_FORMAT, "a %s has no sign", km_jv_type(&v));
    if (v.kind == KM_JV_BOOL) v = km_jv_int(v.b);
    if (n->kind == KM_JNODE_NEGATE && v.kind == KM_JV_FLOAT) v.f = -v.f;
    if (n->kind == KM_JNODE_NEGATE && v.kind == KM_JV_INT && __builtin_sub_overflow(0, v.i, &v.i))
        return km_jinja_fail(e->r, KM_ERR_RANGE, "an integer does not fit in 64 bits");
    *out = v;
    return true;
}

static bool logical(eval *e, const km_jnode *n, km_jv *out) {
    if (!value(e, n->kid[0], out)) return false;
    if (km_jv_true(out) == (n->kind == KM_JNODE_OR)) return true;
    return value(e, n->kid[1], out);
}

static bool condition(eval *e, const km_jnode *n, km_jv *out) {
    km_jv test_value;
    if (!value(e, n->kid[1], &test_value)) return false;
    if (km_jv_true(&test_value)) return value(e, n->kid[0], out);
    if (n->kid[2]) return value(e, n->kid[2], out);
    *out = (km_jv){.kind = KM_JV_UNDEFINED, .text = "an inline if without else", .bytes = 25};
    return true;
}

static bool evaluate(eval *e, const km_jnode *n, km_jv *out) {
    km_jv a, b;
    switch (n->kind) {
    case KM_JNODE_CONST: *out = n->value; return true;
    case KM_JNODE_NAME: return look_up(e, n, out);
    case KM_JNODE_LIST:
    case KM_JNODE_TUPLE:
    case KM_JNODE_DICT: return collection(e, n, out);
    case KM_JNODE_NEGATE:
    case KM_JNODE_PLUS: return sign(e, n, out);
    case KM_JNODE_NOT:
        if (!value(e, n->kid[0], &a)) return false;
        *out = km_jv_bool(!km_jv_true(&a));
        return true;
    case KM_JNODE_BINARY: return binary(e, n, out);
    case KM_JNODE_AND:
    case KM_JNODE_OR: return logical(e, n, out);
    case KM_JNODE_COMPARE: return compare(e, n, out);
    case KM_JNODE_CONCAT: return concat(e, n, out);
    case KM_JNODE_COND: return condition(e, n, out);
    case KM_JNODE_ATTR:
        if (!value(e, n->kid[0], &a)) return false;
        e->r->line = n->line;
        return km_jinja_attribute(e->r, &a, n->text, n->bytes, out);
    case KM_JNODE_ITEM:
        if (!value(e, n->kid[0], &a) || !value(e, n->kid[1], &b)) return false;
        e->r->line = n->line;
        return km_jinja_item(e->r, &a, &b, out);
    case KM_JNODE_SLICE: return slice(e, n, out);
    case KM_JNODE_CALL: return call(e, n, NULL, out);
    case KM_JNODE_FILTER: return filter(e, n, NULL, out);
    case KM_JNODE_TEST: return test(e, n, out);
    default: return km_jinja_fail(e->r, KM_ERR_FORMAT, "this is no expression");
    }
}

static bool value(eval *e, const km_jnode *n, km_jv *out) {
    bool ok = enter(e, n) && evaluate(e, n, out);
    e->r->depth--;
    return ok;
}

/* ---- Statements ---- */

/* The items that the loop's own condition lets through; it sees the target, in its own scope. */
static bool sieve(eval *e, const km_jnode *n, km_jv *list) {
    km_jv kept, yes;
    if (!km_jv_new_list(e->r, KM_JV_PLAIN, 0, &kept)) return false;
    for (size_t i = 0; i < list->list->n; i++) {
        eval inside = {.r = e->r};
        if (!open_scope(&inside, e->scope) || !assign(&inside, n->kid[0], &list->list->items[i]) ||
            !value(&inside, n->kid[4], &yes))
            return false;
        if (km_jv_true(&yes) && !km_jv_push(e->r, &kept, &list->list->items[i])) return false;
    }
    *list = kept;
    return true;
}

static flow loop(eval *e, const km_jnode *n) {
    km_jv over, list;
    if (!value(e, n->kid[1], &over) || !km_jv_iterate(e->r, &over, &list)) return FLOW_FAIL;
    if (n->kid[4] && !sieve(e, n, &list)) return FLOW_FAIL;
    if (list.list->n == 0) {
        eval inside = {.r = e->r};
        return open_scope(&inside, e->scope) ? run(&inside, n->kid[3]) : FLOW_FAIL;
    }
    km_jv_loop *state = km_jinja_alloc(e->r, sizeof *state);
    if (!state) return FLOW_FAIL;
    state->items = list.list;
    km_jv loop_value = {.kind = KM_JV_LOOP, .loop = state};
    for (state->at = 0; state->at < list.list->n; state->at++) {
        eval inside = {.r = e->r};
        if (!km_jinja_step(e->r, 0) || !open_scope(&inside, e->scope) ||
            !define(&inside, "loop", 4, &loop_value) ||
            !assign(&inside, n->kid[0], &list.list->items[state->at]))
            return FLOW_FAIL;
        flow f = run(&inside, n->kid[2]);
        if (f == FLOW_FAIL) return f;
        if (f == FLOW_BREAK) break;
    }
    return FLOW_NEXT;
}

static bool define_macro(eval *e, const km_jnode *n, const km_jnode *parameters,
                         const km_jnode *first, km_jv *out) {
    km_jv_macro *m = km_jinja_alloc(e->r, sizeof *m);
    if (!m) return false;
    *m = (km_jv_macro){n, parameters, first, e->scope};
    *out = (km_jv){.kind = KM_JV_MACRO, .macro = m};
    return true;
}

/* A body in a scope of its own, its text kept back. */
static bool captured_apart(eval *e, const km_jnode *first, km_jv *out) {
    eval inside = {.r = e->r};
    return open_scope(&inside, e->scope) && captured(&inside, first, out);
}

static bool with(eval *e, const km_jnode *n, eval *inside) {
    *inside = *e;
    if (!open_scope(inside, e->scope)) return false;
    for (const km_jnode *k = n->kid[0]; k; k = k->next->next) {
        km_jv v;
        if (!value(e, k->next, &v) || !assign(inside, k, &v)) return false;
    }
    return true;
}

static flow statement(eval *e, const km_jnode *n) {
    km_jv v;
    eval inside;
    switch (n->kind) {
    case KM_JNODE_TEXT:
        km_text_put(e->r->out, n->text, n->bytes);
        return km_jinja_step(e->r, n->bytes) ? FLOW_NEXT : FLOW_FAIL;
    case KM_JNODE_OUTPUT:
        return value(e, n->kid[0], &v) && km_jv_write(e->r, &v) ? FLOW_NEXT : FLOW_FAIL;
    case KM_JNODE_IF:
        for (;;) {
            if (!value(e, n->kid[0], &v)) return FLOW_FAIL;
            if (km_jv_true(&v)) return run(e, n->kid[1]);
            const km_jnode *other = n->kid[2];
            if (!other || other->kind != KM_JNODE_IF || other->next) return run(e, other);
            n = other;
        }
    case KM_JNODE_FOR: return loop(e, n);
    case KM_JNODE_SET:
        return value(e, n->kid[1], &v) && assign(e, n->kid[0], &v) ? FLOW_NEXT : FLOW_FAIL;
    case KM_JNODE_SET_BLOCK:
        if (!captured_apart(e, n->kid[2], &v)) return FLOW_FAIL;
        if (n->kid[1] && !filter(e, n->kid[1], &v, &v)) return FLOW_FAIL;
        return assign(e, n->kid[0], &v) ? FLOW_NEXT : FLOW_FAIL;
    case KM_JNODE_MACRO:
        return define_macro(e, n, n->kid[0], n->kid[1], &v) && define(e, n->text, n->bytes, &v)
                   ? FLOW_NEXT
                   : FLOW_FAIL;
    case KM_JNODE_CALL_BLOCK: {
        km_jv caller;
        return define_macro(e, n, n->kid[1], n->kid[2], &caller) &&
                       call(e, n->kid[0], &caller, &v) && km_jv_write(e->r, &v)
                   ? FLOW_NEXT
                   : FLOW_FAIL;
    }
    case KM_JNODE_FILTER_BLOCK:
        return captured_apart(e, n->kid[1], &v) && filter(e, n->kid[0], &v, &v) &&
                       km_jv_write(e->r, &v)
                   ? FLOW_NEXT
                   : FLOW_FAIL;
    case KM_JNODE_WITH: return with(e, n, &inside) ? run(&inside, n->kid[1]) : FLOW_FAIL;
    case KM_JNODE_SCOPE:
        inside = *e;
        return open_scope(&inside, e->scope) ? run(&inside, n->kid[0]) : FLOW_FAIL;
    case KM_JNODE_DO: return value(e, n->kid[0], &v) ? FLOW_NEXT : FLOW_FAIL;
    case KM_JNODE_BREAK: return FLOW_BREAK;
    case KM_JNODE_CONTINUE: return FLOW_CONTINUE;
    default: km_jinja_fail(e->r, KM_ERR_FORMAT, "this is no statement"); return FLOW_FAIL;
    }
}

static flow run(eval *e, const km_jnode *n) {
    for (; n; n = n->next) {
        flow f = enter(e, n) ? statement(e, n) : FLOW_FAIL;
        e->r->depth--;
        if (f != FLOW_NEXT) return f;
    }
    return FLOW_NEXT;
}

/* ---- A rendering ---- */

static bool set_variables(eval *e, const json_t *variables) {
    json_t *o = (json_t *)(uintptr_t)variables; /* iteration takes it as mutable */
    if (!open_scope(e, NULL)) return false;
    for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
        const char *name = json_object_iter_key(it);
        km_jv v;
        if (!km_jv_from_json(e->r, json_object_iter_value(it), &v)) return false;
        if (!define(e, name, strlen(name), &v)) return false;
    }
    return open_scope(e, e->scope); /* names of the template hide the variables */
}

km_status km_jinja_render(const km_jinja *t, const json_t *variables, const km_jinja_limits *limits,
                          km_text *out, km_error *err) {
    if (!t || !out) return km_error_set(err, KM_ERR_NULL, "no template to render");
    if (variables && !json_is_object(variables))
        return km_error_set(err, KM_ERR_FORMAT, "the variables of a template are an object");
    km_error own = {0};
    if (!err) err = &own;
    size_t start = out->len;
    km_jrun r = {.memory = limits && limits->memory ? limits->memory : (size_t)256 << 20,
                 .steps = limits && limits->steps ? limits->steps : 20000000,
                 .now = limits && limits->now ? limits->now : (int64_t)time(NULL),
                 .line = 1,
                 .name = t->name,
                 .out = out,
                 .err = err};
    eval e = {.r = &r};
    bool ok = set_variables(&e, variables) && run(&e, t->body) != FLOW_FAIL;
    if (ok && out->failed) ok = km_jinja_fail(&r, KM_ERR_MEMORY, "out of memory");
    km_arena_free(&r.arena);
    if (ok) return KM_OK;
    if (out->data) {
        out->len = start;
        out->data[start] = '\0';
    }
    return err->code;
}
