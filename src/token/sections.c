/* The normaliser, pre-tokeniser and post-processor of a tokenizer.json, compiled into steps. What
 * is not supported is refused by its name: a tokenizer that is half understood gives wrong ids. */
#include "token/internal.h"
#include "base/alloc.h"
#include "base/shown.h"
#include "token/scan.h"
#include <string.h>

#define DEEPEST 8 /* sequences within sequences */

typedef struct compiler {
    km_token *t;
    const char *name; /* of the file */
    km_error *err;
} compiler;

static km_status refuse(const compiler *c, const char *what, const char *type) {
    char shown[KM_SHOWN];
    return km_error_set(c->err, KM_ERR_UNSUPPORTED, "%s: %s '%s' is not supported", c->name, what,
                        km_shown(shown, type));
}

static km_status malformed(const compiler *c, const char *what) {
    return km_error_set(c->err, KM_ERR_FORMAT, "%s: %s is not as it should be", c->name, what);
}

const char *km_section_type(const json_t *o) {
    const char *type = json_string_value(json_object_get(o, "type"));
    return type ? type : "";
}

static bool is(const json_t *o, const char *type) { return strcmp(km_section_type(o), type) == 0; }

static bool flag(const json_t *o, const char *key, bool fallback) {
    const json_t *v = json_object_get(o, key);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

bool km_section_has(const json_t *section, const char *type) {
    if (is(section, type)) return true;
    static const char *const lists[] = {"normalizers", "pretokenizers", "processors", "decoders"};
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const json_t *list = json_object_get(section, lists[k]);
        for (size_t i = 0; i < json_array_size(list); i++)
            if (is(json_array_get(list, i), type)) return true;
    }
    return false;
}

/* ---- Steps ---- */

static char *copy(const char *text, size_t n) {
    char *s = km_alloc(n + 1);
    if (!s) return NULL;
    memcpy(s, text, n);
    s[n] = 0;
    return s;
}

static km_status no_memory(const compiler *c) { return km_no_memory_for(c->err, "a tokenizer"); }

/* A step more, with its texts copied; NULL when there are too many or no memory. */
static km_normal_step *add_normal(compiler *c, km_normal_kind kind, const char *a, size_t n_a,
                                  const char *b, size_t n_b) {
    km_token *t = c->t;
    if (t->n_normal == KM_MAX_STEPS) {
        malformed(c, "the normalizer (too many steps)");
        return NULL;
    }
    km_normal_step n = {.kind = kind, .n_a = n_a, .n_b = n_b};
    n.a = copy(a ? a : "", n_a);
    n.b = copy(b ? b : "", n_b);
    if (!n.a || !n.b) {
        km_free(n.a);
        km_free(n.b);
        no_memory(c);
        return NULL;
    }
    t->normal[t->n_normal] = n;
    return &t->normal[t->n_normal++];
}

static km_status plain_normal(compiler *c, km_normal_kind kind) {
    return add_normal(c, kind, NULL, 0, NULL, 0) ? KM_OK : c->err ? c->err->code : KM_ERR_MEMORY;
}

/* Takes the pattern over. */
static km_status add_split(compiler *c, km_pattern *p, km_split_kind kind, bool invert) {
    if (!p) return c->err ? c->err->code : KM_ERR_FORMAT;
    if (c->t->n_split == KM_MAX_STEPS) {
        km_pattern_free(p);
        return malformed(c, "the pre_tokenizer (too many steps)");
    }
    c->t->split[c->t->n_split++] = (km_split_step){kind, invert, p};
    return KM_OK;
}

static km_status split_by(compiler *c, const char *regex, km_split_kind kind, bool invert) {
    return add_split(c, km_pattern_new(regex, strlen(regex), c->err), kind, invert);
}

/* {"String": ...} or {"Regex": ...}: exactly one of *text and *regex is set. */
static km_status read_pattern(const compiler *c, const json_t *o, const char **text, size_t *n,
                              bool *regex) {
    const json_t *p = json_object_get(o, "pattern");
    const json_t *s = json_object_get(p, "String"), *r = json_object_get(p, "Regex");
    if (json_is_string(p)) s = p; /* early files */
    const json_t *v = json_is_string(s) ? s : r;
    if (!json_is_string(v) || json_string_length(v) == 0)
        return malformed(c, "the pattern of a step");
    *text = json_string_value(v);
    *n = json_string_length(v);
    *regex = v == r;
    return KM_OK;
}

/* ---- Normaliser ---- */

static km_status compile_replace(compiler *c, const json_t *o) {
    const json_t *content = json_object_get(o, "content");
    const char *text;
    size_t n;
    bool regex;
    km_status s = read_pattern(c, o, &text, &n, &regex);
    if (s != KM_OK) return s;
    if (!json_is_string(content)) return malformed(c, "the content of Replace");
    km_normal_step *step = add_normal(c, KM_NORMAL_REPLACE, text, n, json_string_value(content),
                                      json_string_length(content));
    if (!step) return c->err ? c->err->code : KM_ERR_MEMORY;
    if (!regex) return KM_OK;
    step->pattern = km_pattern_new(text, n, c->err);
    return step->pattern ? KM_OK : KM_ERR_FORMAT;
}

static km_status compile_bert(compiler *c, const json_t *o) {
    bool lower = flag(o, "lowercase", true);
    km_status s = KM_OK;
    if (flag(o, "clean_text", true)) s = plain_normal(c, KM_NORMAL_CLEAN);
    if (s == KM_OK && flag(o, "handle_chinese_chars", true)) s = plain_normal(c, KM_NORMAL_CJK);
    if (s == KM_OK && flag(o, "strip_accents", lower)) {
        s = plain_normal(c, KM_NORMAL_NFD);
        if (s == KM_OK) s = plain_normal(c, KM_NORMAL_ACCENTS);
    }
    return s == KM_OK && lower ? plain_normal(c, KM_NORMAL_LOWER) : s;
}

static km_status compile_normalizer(compiler *c, const json_t *o, int depth) {
    static const struct {
        const char *type;
        km_normal_kind kind;
    } plain[] = {{"NFC", KM_NORMAL_NFC},         {"NFD", KM_NORMAL_NFD},
                 {"NFKC", KM_NORMAL_NFKC},       {"NFKD", KM_NORMAL_NFKD},
                 {"Lowercase", KM_NORMAL_LOWER}, {"StripAccents", KM_NORMAL_ACCENTS}};
    if (!o || json_is_null(o)) return KM_OK;
    if (depth > DEEPEST) return malformed(c, "the normalizer (nested too deep)");
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (is(o, plain[i].type)) return plain_normal(c, plain[i].kind);
    if (is(o, "Sequence")) {
        const json_t *list = json_object_get(o, "normalizers");
        km_status s = KM_OK;
        for (size_t i = 0; s == KM_OK && i < json_array_size(list); i++)
            s = compile_normalizer(c, json_array_get(list, i), depth + 1);
        return s;
    }
    if (is(o, "Prepend")) {
        const json_t *v = json_object_get(o, "prepend");
        if (!json_is_string(v)) return malformed(c, "the normalizer Prepend");
        return add_normal(c, KM_NORMAL_PREPEND, json_string_value(v), json_string_length(v), NULL,
                          0)
                   ? KM_OK
                   : KM_ERR_MEMORY;
    }
    if (is(o, "Replace")) return compile_replace(c, o);
    if (is(o, "BertNormalizer")) return compile_bert(c, o);
    if (is(o, "Strip")) {
        km_normal_step *step = add_normal(c, KM_NORMAL_STRIP, NULL, 0, NULL, 0);
        if (!step) return KM_ERR_MEMORY;
        step->left = flag(o, "strip_left", true);
        step->right = flag(o, "strip_right", true);
        return KM_OK;
    }
    return refuse(c, "normalizer", km_section_type(o));
}

/* ---- Pre-tokeniser ---- */

#define PUNCTUATION "[\\p{P}$+<=>^`|~]"
/* What Rust's \w means; PCRE2's own leaves out marks. */
#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}"

static km_status read_behaviour(const compiler *c, const json_t *o, km_split_kind *kind) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = json_string_value(json_object_get(o, "behavior"));
    for (int i = 0; name && i < 5; i++)
        if (strcmp(name, names[i]) == 0) {
            *kind = (km_split_kind)i;
            return KM_OK;
        }
    return refuse(c, "the behavior of a pre_tokenizer", name ? name : "");
}

static km_status compile_split(compiler *c, const json_t *o) {
    km_split_kind kind;
    const char *text;
    size_t n;
    bool regex;
    km_status s = read_behaviour(c, o, &kind);
    if (s == KM_OK) s = read_pattern(c, o, &text, &n, &regex);
    if (s != KM_OK) return s;
    return add_split(c, (regex ? km_pattern_new : km_pattern_literal)(text, n, c->err), kind,
                     flag(o, "invert", false));
}

/* Steps that change the text must come before those that cut it. */
static km_status prefix(compiler *c, const char *text, size_t n, bool first) {
    if (c->t->n_split > 0) return refuse(c, "pre_tokenizer", "a prefix after a split");
    km_normal_step *step = add_normal(c, KM_NORMAL_PREFIX, text, n, NULL, 0);
    if (step) step->first = first;
    return step ? KM_OK : KM_ERR_MEMORY;
}

static km_status compile_metaspace(compiler *c, const json_t *o) {
    const json_t *v = json_object_get(o, "replacement");
    const char *mark = json_is_string(v) ? json_string_value(v) : "\xE2\x96\x81";
    size_t n = strlen(mark);
    const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
    if (!scheme) scheme = flag(o, "add_prefix_space", true) ? "always" : "never";
    if (n == 0) return malformed(c, "the replacement of Metaspace");
    if (c->t->n_split > 0) return refuse(c, "pre_tokenizer", "Metaspace after a split");
    if (!add_normal(c, KM_NORMAL_REPLACE, " ", 1, mark, n)) return KM_ERR_MEMORY;
    km_status s = KM_OK;
    if (strcmp(scheme, "never") != 0) s = prefix(c, mark, n, strcmp(scheme, "first") == 0);
    if (s == KM_OK && flag(o, "split", true))
        s = add_split(c, km_pattern_literal(mark, n, c->err), KM_SPLIT_NEXT, false);
    return s;
}

static km_status compile_pre(compiler *c, const json_t *o, int depth) {
    if (!o || json_is_null(o)) return KM_OK;
    if (depth > DEEPEST) return malformed(c, "the pre_tokenizer (nested too deep)");
    if (is(o, "Sequence")) {
        const json_t *list = json_object_get(o, "pretokenizers");
        km_status s = KM_OK;
        for (size_t i = 0; s == KM_OK && i < json_array_size(list); i++)
            s = compile_pre(c, json_array_get(list, i), depth + 1);
        return s;
    }
    if (is(o, "ByteLevel")) {
        km_status s = flag(o, "add_prefix_space", true) ? prefix(c, " ", 1, false) : KM_OK;
        if (s == KM_OK && flag(o, "use_regex", true))
            s = split_by(c, KM_PATTERN_GPT2, KM_SPLIT_ISOLATED, false);
        return s;
    }
    if (is(o, "Split")) return compile_split(c, o);
    if (is(o, "Metaspace")) return compile_metaspace(c, o);
    if (is(o, "Digits"))
        return split_by(
            c, "\\p{N}",
            flag(o, "individual_digits", false) ? KM_SPLIT_ISOLATED : KM_SPLIT_CONTIGUOUS, false);
    if (is(o, "Punctuation")) {
        km_split_kind kind = KM_SPLIT_ISOLATED;
        km_status s = json_object_get(o, "behavior") ? read_behaviour(c, o, &kind) : KM_OK;
        return s == KM_OK ? split_by(c, PUNCTUATION, kind, false) : s;
    }
    if (is(o, "Whitespace"))
        return split_by(c, "[" WORD "]+|[^" WORD "\\s]+", KM_SPLIT_REMOVED, true);
    if (is(o, "WhitespaceSplit")) return split_by(c, "\\s", KM_SPLIT_REMOVED, false);
    if (is(o, "BertPreTokenizer")) {
        km_status s = split_by(c, "\\s", KM_SPLIT_REMOVED, false);
        return s == KM_OK ? split_by(c, PUNCTUATION, KM_SPLIT_ISOLATED, false) : s;
    }
    if (is(o, "CharDelimiterSplit")) {
        const json_t *v = json_object_get(o, "delimiter");
        if (!json_is_string(v) || !json_string_length(v)) return malformed(c, "the delimiter");
        return add_split(c, km_pattern_literal(json_string_value(v), json_string_length(v), c->err),
                         KM_SPLIT_REMOVED, false);
    }
    return refuse(c, "pre_tokenizer", km_section_type(o));
}

/* ---- Post-processor ---- */

static km_status put_id(compiler *c, int32_t **list, int *count, const json_t *v) {
    if (!json_is_integer(v) || !km_vocab_has(&c->t->vocab, json_integer_value(v)))
        return malformed(c, "the post_processor (it names an id that is no token)");
    int32_t *more = km_realloc(*list, ((size_t)*count + 1) * sizeof *more);
    if (!more) return no_memory(c);
    more[(*count)++] = (int32_t)json_integer_value(v);
    *list = more;
    return KM_OK;
}

static km_status compile_template(compiler *c, const json_t *o) {
    const json_t *single = json_object_get(o, "single"),
                 *tokens = json_object_get(o, "special_tokens");
    bool after = false;
    km_status s = KM_OK;
    for (size_t i = 0; s == KM_OK && i < json_array_size(single); i++) {
        const json_t *part = json_array_get(single, i);
        const json_t *special = json_object_get(part, "SpecialToken");
        if (!special) {
            if (!json_object_get(part, "Sequence") || after)
                return malformed(c, "the template of the post_processor");
            after = true;
            continue;
        }
        const char *id = json_string_value(json_object_get(special, "id"));
        const json_t *ids = json_object_get(json_object_get(tokens, id ? id : ""), "ids");
        if (json_array_size(ids) == 0) return malformed(c, "the template of the post_processor");
        for (size_t k = 0; s == KM_OK && k < json_array_size(ids); k++)
            s = put_id(c, after ? &c->t->suffix : &c->t->prefix,
                       after ? &c->t->n_suffix : &c->t->n_prefix, json_array_get(ids, k));
    }
    return s;
}

static km_status compile_post(compiler *c, const json_t *o, int depth) {
    if (!o || json_is_null(o) || is(o, "ByteLevel")) return KM_OK;
    if (depth > DEEPEST) return malformed(c, "the post_processor (nested too deep)");
    if (is(o, "Sequence")) {
        const json_t *list = json_object_get(o, "processors");
        km_status s = KM_OK;
        for (size_t i = 0; s == KM_OK && i < json_array_size(list); i++)
            s = compile_post(c, json_array_get(list, i), depth + 1);
        return s;
    }
    if (is(o, "TemplateProcessing")) return compile_template(c, o);
    if (is(o, "BertProcessing") || is(o, "RobertaProcessing")) {
        const json_t *cls = json_object_get(o, "cls"), *sep = json_object_get(o, "sep");
        km_status s = put_id(c, &c->t->prefix, &c->t->n_prefix, json_array_get(cls, 1));
        return s == KM_OK ? put_id(c, &c->t->suffix, &c->t->n_suffix, json_array_get(sep, 1)) : s;
    }
    return refuse(c, "post_processor", km_section_type(o));
}

/* ---- All ---- */

km_status km_token_compile(km_token *t, const char *name, km_error *err) {
    km_error own = {0};
    compiler c = {t, name, &own};
    km_status s = compile_normalizer(&c, t->normalizer, 0);
    t->n_before = t->n_normal;
    if (s == KM_OK) s = compile_pre(&c, t->pre_tokenizer, 0);
    if (s == KM_OK) s = compile_post(&c, t->post_processor, 0);
    if (s == KM_OK) return KM_OK;
    bool named = strncmp(own.text, name, strlen(name)) == 0; /* a pattern knows no file */
    return km_error_set(err, s, "%s%s%s", named ? "" : name, named ? "" : ": ", own.text);
}

void km_token_compile_free(km_token *t) {
    for (int i = 0; i < t->n_normal; i++) km_normal_free(&t->normal[i]);
    for (int i = 0; i < t->n_split; i++) km_pattern_free(t->split[i].pattern);
    km_free(t->prefix);
    km_free(t->suffix);
}
