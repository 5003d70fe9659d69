/* Grammars: what they match, against sets of strings worked out by hand-sized means for random
 * grammars; masks against matching token by token; wrong and hostile grammars. */
#include "base/alloc.h"
#include "text/grammar.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static km_grammar *parse(const char *text) {
    km_error err = {0};
    km_grammar *g = km_grammar_parse(text, strlen(text), &err);
    if (!g) fail_msg("%s\n%s", text, err.text);
    return g;
}

/* 0: refused, 1: the beginning of a text, 2: a whole text */
static int fits(const km_grammar *g, const char *text) {
    km_error err = {0};
    km_guide *m = km_guide_new(g, NULL, &err);
    if (!m) fail_msg("%s", err.text);
    int result = km_guide_feed(m, text, strlen(text), &err) == KM_OK ? 1 + km_guide_may_end(m) : 0;
    if (!result && err.code != KM_ERR_RANGE) fail_msg("%s", err.text);
    km_guide_free(m);
    return result;
}

typedef struct expectation {
    const char *text;
    int fits;
} expectation;

static void expect(const char *grammar, const expectation *e) {
    km_grammar *g = parse(grammar);
    for (; e->text; e++)
        if (fits(g, e->text) != e->fits)
            fail_msg("%s\n\"%s\": %d, not %d", grammar, e->text, fits(g, e->text), e->fits);
    km_grammar_free(g);
}

static void expect_error(const char *grammar, km_status code, const char *part) {
    km_error err = {0};
    km_grammar *g = km_grammar_parse(grammar, strlen(grammar), &err);
    if (g) fail_msg("%.200s: was taken", grammar);
    if (err.code != code || !strstr(err.text, part))
        fail_msg("%.200s: \"%s\" lacks \"%s\"", grammar, err.text, part);
}

static void grammars_match_what_they_say(void **state) {
    (void)state;
    expect(
        "root ::= \"yes\" | \"no\"",
        (expectation[]){{"yes", 2}, {"no", 2}, {"y", 1}, {"", 1}, {"yess", 0}, {"maybe", 0}, {0}});
    expect("root ::= [a-c]+ \"-\" [^a-c]*",
           (expectation[]){{"abc-", 2}, {"a-xyz", 2}, {"-", 0}, {"a-b", 0}, {"ab", 1}, {0}});
    expect("root ::= \"a\"{2,4}",
           (expectation[]){{"a", 1}, {"aa", 2}, {"aaaa", 2}, {"aaaaa", 0}, {0}});
    expect("root ::= \"ab\"{2}", (expectation[]){{"ab", 1}, {"abab", 2}, {"ababa", 0}, {0}});
    expect("root ::= \"a\"{2,}", (expectation[]){{"a", 1}, {"aa", 2}, {"aaaaaaaaaa", 2}, {0}});
    expect("root ::= \"a\"{,2} \"b\"{0}",
           (expectation[]){{"", 2}, {"aa", 2}, {"aaa", 0}, {"b", 0}, {0}});
    expect("root ::= (\"a\" | \"b\" (\"c\" | \"d\"))? \"e\"",
           (expectation[]){{"e", 2}, {"ae", 2}, {"bce", 2}, {"be", 0}, {0}});
    expect("root ::= x \"!\"\n\nx ::= \"(\" x \")\" | y # nested\ny ::=\n  [0-9]+ |\n  \"z\"",
           (expectation[]){{"((12))!", 2}, {"z!", 2}, {"((1)!", 0}, {"(((", 1}, {0}});
    expect("root ::= (\n \"a\" # one\n | \"b\"\n)*", (expectation[]){{"", 2}, {"abba", 2}, {0}});
    expect("root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\\\\\\"\"",
           (expectation[]){{"Aé😀\n\t\\\"", 2}, {"A\xc3", 1}, {"A\xc3\xa8", 0}, {0}});
    expect("root ::= [é-ü]+ .", (expectation[]){{"éñ漢", 2},
                                                {"é", 1},
                                                {"é\xf0\x9f\x98\x80", 2},
                                                {"é\xff", 0},
                                                {"é\xed\xa0\x80", 0},
                                                {"é\xc0\x80", 0},
                                                {"é\xe0\x80\x80", 0},
                                                {"é\xf4\x90\x80\x80", 0},
                                                {0}});
    expect("root ::= [^\\x00-\\x7f]{2}",
           (expectation[]){
               {"\xc2\x80\xf4\x8f\xbf\xbf", 2}, {"a", 0}, {"\xef\xbf\xbd\xe0\xa0\x80", 2}, {0}});
    expect("root ::= [a\\-z\\]^] [-+]",
           (expectation[]){{"--", 2}, {"]+", 2}, {"^-", 2}, {"b-", 0}, {0}});
    expect("root ::= \"\" | a-b_1\na-b_1 ::= \"x\" root",
           (expectation[]){{"", 2}, {"xxx", 2}, {0}});
    expect("root ::= (\"a\"?)* \"b\" (\"c\"*)+",
           (expectation[]){{"b", 2}, {"aab", 2}, {"bccc", 2}, {"c", 0}, {0}});
    expect("root ::= \"x\"*?", (expectation[]){{"", 2}, {"xx", 2}, {0}});
}

static void errors_name_the_line(void **state) {
    (void)state;
    expect_error("", KM_ERR_FORMAT, "no rule 'root'");
    expect_error("a ::= \"x\"", KM_ERR_FORMAT, "no rule 'root'");
    expect_error("root ::= a\n\nb ::= c", KM_ERR_FORMAT, "line 1: there is no rule 'a'");
    expect_error("root ::= \"x\"\nroot ::= \"y\"", KM_ERR_FORMAT,
                 "line 2: a rule of this name was there before");
    expect_error("root = \"x\"", KM_ERR_FORMAT, "line 1: '::=' is missing");
    expect_error("root ::= \"x", KM_ERR_FORMAT, "a literal does not end");
    expect_error("root ::= \"x\n\"", KM_ERR_FORMAT, "does not end on its line");
    expect_error("root ::= [a-", KM_ERR_FORMAT, "a class does not end");
    expect_error("root ::= [z-a]", KM_ERR_FORMAT, "runs backwards");
    expect_error("\nroot ::= (\"x\"\n", KM_ERR_FORMAT,
                 "line 2: a group that begins here lacks its ')'");
    expect_error("root ::= \"x\" )", KM_ERR_FORMAT, "')' means nothing here");
    expect_error("root ::= *", KM_ERR_FORMAT, "'*' means nothing here");
    expect_error("root ::= \"x\"{", KM_ERR_FORMAT, "'}' is missing");
    expect_error("root ::= \"x\"{a}", KM_ERR_FORMAT, "a number is missing");
    expect_error("root ::= \"x\"{3,2}", KM_ERR_FORMAT, "run backwards");
    expect_error("root ::= \"x\"{99999999999}", KM_ERR_RANGE, "beyond 10000 times");
    expect_error("root ::= \"\\q\"", KM_ERR_FORMAT, "an escape that is not");
    expect_error("root ::= \"\\xg0\"", KM_ERR_FORMAT, "lacks hexadecimal digits");
    expect_error("root ::= \"\\ud800\"", KM_ERR_FORMAT, "is no character");
    expect_error("root ::= \"\xff\"", KM_ERR_FORMAT, "not valid UTF-8");
}

static void left_recursion_is_refused_by_name(void **state) {
    (void)state;
    expect_error("root ::= \"x\" | list\nlist ::= list \",\" \"x\" | \"x\"", KM_ERR_UNSUPPORTED,
                 "line 2: the rule 'list' begins with itself");
    expect_error("root ::= root", KM_ERR_UNSUPPORTED, "the rule 'root' begins with itself");
    expect_error("root ::= a\na ::= b \"x\"\nb ::= c | \"y\"\nc ::= \"\" a \"z\"",
                 KM_ERR_UNSUPPORTED, "begins with itself");
    expect_error("root ::= a\na ::= \"x\"? a \"y\"", KM_ERR_UNSUPPORTED,
                 "line 2: the rule 'a' begins with itself");
    expect_error("root ::= (\"a\"* root)* \"b\"", KM_ERR_UNSUPPORTED, "'root' begins with itself");
    expect("root ::= \"x\" root | \"\"",
           (expectation[]){{"xxx", 2}, {0}}); /* to the right is fine */
    expect("root ::= \"x\"? root2\nroot2 ::= \"y\" root | \"z\"",
           (expectation[]){{"xyyxz", 2}, {0}});
}

/* ---- Random grammars ---- */

/* Strings over a and b of at most 5 letters are numbers 1 to 63: 1 is the empty one, and a letter
 * more doubles it. A language is a set of 64 bits. */
#define LETTERS 5
typedef uint64_t language;
#define EMPTY ((language)1 << 1)

static language join(language x, language y) {
    language out = 0;
    for (unsigned i = 1; i < 64; i++) {
        if (!(x >> i & 1)) continue;
        unsigned ni = 31u - (unsigned)__builtin_clz(i);
        for (unsigned j = 1; j < 64; j++) {
            unsigned nj = 31u - (unsigned)__builtin_clz(j);
            if (!(y >> j & 1) || ni + nj > LETTERS) continue;
            out |= (language)1 << (i << nj | (j ^ 1u << nj));
        }
    }
    return out;
}

static language times(language x, int least, int most) { /* most < 0: as many as fit */
    language power = EMPTY, out = 0;
    if (most < 0) most = least + LETTERS;
    for (int i = 0; i <= most; i++) {
        if (i >= least) out |= power;
        if (i < most) power = join(power, x);
    }
    return out;
}

typedef enum kind { LETTER, EITHER, RULE, SEQUENCE, CHOICE, REPEAT } kind;
typedef struct node {
    kind kind;
    int a, b; /* letter or rule; bounds of a repetition */
    int kids[3], n;
} node;
static node nodes[400];
static int n_nodes;
static uint64_t random_state;

static int pick(int n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

#define RULES 3

static int grow(int depth) {
    int me = n_nodes++, what = pick(depth > 3 ? 3 : 9);
    node n = {0};
    if (what <= 1)
        n = (node){.kind = LETTER, .a = pick(2)};
    else if (what == 2)
        n = pick(3) ? (node){.kind = RULE, .a = pick(RULES)} : (node){.kind = EITHER};
    else if (what <= 5)
        n = (node){.kind = SEQUENCE, .n = pick(4)};
    else if (what <= 7)
        n = (node){.kind = CHOICE, .n = 1 + pick(3)};
    else {
        static const int bounds[][2] = {{0, 1}, {0, -1}, {1, -1}, {2, 2}, {1, 3}, {0, 2}, {2, -1}};
        int i = pick(7);
        n = (node){.kind = REPEAT, .a = bounds[i][0], .b = bounds[i][1], .n = 1};
    }
    if (n.n > 3) n.n = 3;
    nodes[me] = n;
    for (int i = 0; i < n.n; i++) {
        int kid = grow(depth + 1);
        nodes[me].kids[i] = kid;
    }
    return me;
}

static void print(km_text *t, int at) {
    const node *n = &nodes[at];
    switch (n->kind) {
    case LETTER: km_text_printf(t, "\"%c\"", 'a' + n->a); return;
    case EITHER: km_text_add(t, "[ab]"); return;
    case RULE: km_text_printf(t, "r%d", n->a); return;
    case REPEAT:
        km_text_add(t, "(");
        print(t, n->kids[0]);
        km_text_add(t, ")");
        if (n->a == 0 && n->b == 1)
            km_text_add(t, "?");
        else if (n->a == 0 && n->b == -1)
            km_text_add(t, "*");
        else if (n->a == 1 && n->b == -1)
            km_text_add(t, "+");
        else if (n->b == -1)
            km_text_printf(t, "{%d,}", n->a);
        else
            km_text_printf(t, "{%d,%d}", n->a, n->b);
        return;
    default:
        km_text_add(t, "(");
        if (n->n == 0) km_text_add(t, "\"\"");
        for (int i = 0; i < n->n; i++) {
            if (i) km_text_add(t, n->kind == CHOICE ? " | " : " ");
            print(t, n->kids[i]);
        }
        km_text_add(t, ")");
    }
}

static language value(int at, const language rules[RULES]) {
    const node *n = &nodes[at];
    language out = EMPTY;
    switch (n->kind) {
    case LETTER: return (language)1 << (2 + n->a);
    case EITHER: return (language)3 << 2;
    case RULE: return rules[n->a];
    case REPEAT: return times(value(n->kids[0], rules), n->a, n->b);
    case SEQUENCE:
        for (int i = 0; i < n->n; i++) out = join(out, value(n->kids[i], rules));
        return out;
    default:
        out = 0;
        for (int i = 0; i < n->n; i++) out |= value(n->kids[i], rules);
        return out;
    }
}

static void spell(unsigned i, char *out) {
    unsigned n = 31u - (unsigned)__builtin_clz(i);
    for (unsigned k = 0; k < n; k++) out[k] = 'a' + (char)(i >> (n - 1 - k) & 1);
    out[n] = 0;
}

/* False when a text could be read in too many ways. */
static bool check_language(const km_grammar *g, language want, const char *text) {
    km_error err = {0};
    km_guide *m = km_guide_new(g, NULL, &err);
    bool clear = true;
    if (!m && err.code == KM_ERR_UNSUPPORTED) return false;
    if (!m) { /* a grammar without any text is told so */
        assert_int_equal(err.code, KM_ERR_FORMAT);
        if (want) fail_msg("%s\nmatches nothing?", text);
        return true;
    }
    language begins = 0;
    for (unsigned i = 1; i < 64; i++)
        for (unsigned j = i; want >> i & 1 && j >= 1; j >>= 1) begins |= (language)1 << j;
    for (unsigned i = 1; i < 64; i++) {
        char s[8];
        spell(i, s);
        km_guide_reset(m);
        km_error refused = {0};
        bool ok = km_guide_feed(m, s, strlen(s), &refused) == KM_OK;
        if (refused.code == KM_ERR_UNSUPPORTED) {
            clear = false;
            continue;
        }
        if ((ok && km_guide_may_end(m)) != (want >> i & 1))
            fail_msg("%s\n\"%s\" is wrong", text, s);
        if ((begins >> i & 1) && !ok)
            fail_msg("%s\n\"%s\" begins a text, but was refused", text, s);
    }
    km_guide_free(m);
    return clear;
}

static void random_grammars_match_their_languages(void **state) {
    (void)state;
    int taken = 0, ambiguous = 0;
    for (int seed = 0; seed < 1500; seed++) {
        random_state = (uint64_t)seed * 7919 + 17;
        n_nodes = 0;
        int roots[RULES];
        km_text t = {0};
        for (int r = 0; r < RULES; r++) roots[r] = grow(0);
        km_text_add(&t, "root ::= r0\n");
        for (int r = 0; r < RULES; r++) {
            km_text_printf(&t, "r%d ::= ", r);
            print(&t, roots[r]);
            km_text_add(&t, "\n");
        }
        km_error err = {0};
        km_grammar *g = km_grammar_parse(t.data, t.len, &err);
        if (!g && err.code != KM_ERR_UNSUPPORTED) fail_msg("%s\n%s", t.data, err.text);
        if (g) {
            language rules[RULES] = {0}, before[RULES];
            do {
                memcpy(before, rules, sizeof rules);
                for (int r = 0; r < RULES; r++) rules[r] = value(roots[r], before);
            } while (memcmp(before, rules, sizeof rules) != 0);
            if (check_language(g, rules[0], t.data))
                taken++;
            else
                ambiguous++;
        }
        km_grammar_free(g);
        km_text_free(&t);
    }
    printf("%d matched, %d too ambiguous\n", taken, ambiguous);
    assert_true(taken > 700 && ambiguous < taken / 10);
}

/* ---- Masks ---- */

static const char json_grammar[] =
    "root ::= value\n"
    "value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"
    "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

#define VOCAB 3000
static char texts[VOCAB][12];
static km_span spans[VOCAB];
static const int32_t ends[] = {VOCAB - 1};

/* Tokens of all sorts: every byte, and mixtures of what JSON is made of and what it is not. */
static km_trie *make_trie(void) {
    static const char *const parts[] = {"{",    "}",    "[",    "]",  ":", ",",   "\"",
                                        "\\",   "true", "null", "n",  "a", " ",   "\n",
                                        "12",   ".",    "-",    "e",  "é", "漢",  "\xe6\xbc",
                                        "\xa2", "u",    "00",   "\t", "😀", "xyz", "\xf0\x9f"};
    random_state = 5;
    for (int i = 0; i < VOCAB; i++) {
        int n = i < 256 ? 0 : 1 + pick(4);
        texts[i][0] = 0;
        if (i < 256) texts[i][0] = (char)i;
        spans[i] = (km_span){texts[i], i < 256};
        for (int k = 0; k < n; k++) {
            const char *p = parts[pick((int)(sizeof parts / sizeof *parts))];
            if (spans[i].bytes + strlen(p) > 11) break;
            memcpy(texts[i] + spans[i].bytes, p, strlen(p));
            spans[i].bytes += strlen(p);
        }
    }
    spans[VOCAB - 1].bytes = 0;
    km_error err = {0};
    km_trie *t = km_trie_of(spans, VOCAB, ends, 1, &err);
    assert_non_null(t);
    return t;
}

/* The mask after `text`, bit by bit, against a fresh matcher that reads text and token. */
static void check_mask(const km_grammar *g, km_guide *m, const char *text) {
    km_error err = {0};
    const uint64_t *mask = km_guide_mask(m, &err);
    if (!mask) fail_msg("%s", err.text);
    km_guide *other = km_guide_new(g, NULL, &err);
    assert_non_null(other);
    for (int32_t id = 0; id < VOCAB; id++) {
        km_error refused = {0};
        km_guide_reset(other);
        assert_int_equal(km_guide_feed(other, text, strlen(text), &refused), KM_OK);
        bool want = spans[id].bytes
                        ? km_guide_feed(other, spans[id].data, spans[id].bytes, &refused) == KM_OK
                        : id == ends[0] && km_guide_may_end(other);
        if (km_mask_has(mask, id) != want)
            fail_msg("after \"%s\", token %d \"%.*s\" should%s fit", text, id, (int)spans[id].bytes,
                     spans[id].data, want ? "" : " not");
    }
    km_guide_free(other);
}

static void masks_hold_exactly_the_tokens_that_fit(void **state) {
    (void)state;
    static const char *const begun[] = {
        "",           "{",  "{\"",  "{\"a",          "{\"a\\", "{\"a\\u0", "[1",
        "[1.",        "[-", "\"漢", "[[[{\"k\":[\"", "tru",    "[1,2]",    "{\"a\":1,",
        "\"\xe6\xbc", "1e", "[ ",   "\"a\""};
    km_trie *t = make_trie();
    km_grammar *g = parse(json_grammar);
    km_error err = {0};
    km_guide *m = km_guide_new(g, t, &err);
    for (size_t i = 0; i < sizeof begun / sizeof *begun; i++) {
        km_guide_reset(m);
        assert_int_equal(km_guide_feed(m, begun[i], strlen(begun[i]), &err), KM_OK);
        check_mask(g, m, begun[i]);
        check_mask(g, m, begun[i]); /* remembered, and the same */
    }
    km_guide_stats s = km_guide_counts(m);
    assert_int_equal(s.masks, 2 * sizeof begun / sizeof *begun);
    assert_true(s.computed <= sizeof begun / sizeof *begun);
    km_guide_free(m);
    km_grammar_free(g);
    km_trie_free(t);
}

static void masks_count_characters_where_repetition_is_bounded(void **state) {
    (void)state;
    static const char *const grammars[] = {
        "root ::= \"\\\"\" [^\"\\\\]{0,5} \"\\\"\"", "root ::= \"\\\"\" [a-z0-9]{2,40} \"\\\"\"",
        "root ::= \"\\\"\" ([^\"\\\\\\x00-\\x1F] | \"\\\\\" [nu]){3,7} \"\\\"\" [1-9]?",
        "root ::= \"\\\"\" .{2,4} [a-f]{1,3} \"\\\"\"",
        "root ::= \"\\\"\" [^a]{3} [^b]{3} .* \"\\\"\""};
    static const char *const begun[] = {"\"", "\"n", "\"n1", "\"nnn", "\"xyze"};
    km_trie *t = make_trie();
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        km_grammar *g = parse(grammars[i]);
        km_error err = {0};
        km_guide *m = km_guide_new(g, t, &err);
        for (size_t k = 0; k < sizeof begun / sizeof *begun; k++) {
            km_guide_reset(m);
            km_error refused = {0};
            if (km_guide_feed(m, begun[k], strlen(begun[k]), &refused) == KM_OK)
                check_mask(g, m, begun[k]);
        }
        km_guide_free(m);
        km_grammar_free(g);
    }
    km_trie_free(t);
}

static void text_made_of_allowed_tokens_is_of_the_grammar(void **state) {
    (void)state;
    km_trie *t = make_trie();
    km_grammar *g = parse(json_grammar);
    km_error err = {0};
    km_guide *m = km_guide_new(g, t, &err);
    int whole = 0;
    for (int round = 0; round < 60; round++) {
        km_text text = {0};
        random_state = (uint64_t)round + 99;
        km_guide_reset(m);
        for (int i = 0; i < 40; i++) {
            const uint64_t *mask = km_guide_mask(m, &err);
            if (!mask) fail_msg("%s", err.text);
            int32_t id = pick(VOCAB);
            while (!km_mask_has(mask, id)) id = (id + 1) % VOCAB;
            if (km_mask_has(mask, ends[0]) && i > 20) id = ends[0];
            assert_int_equal(km_guide_accept(m, id, &err), KM_OK);
            km_text_put(&text, spans[id].data, spans[id].bytes);
            if (id == ends[0]) break;
        }
        km_guide *other = km_guide_new(g, NULL, &err);
        assert_int_equal(km_guide_feed(other, km_text_str(&text), text.len, &err), KM_OK);
        whole += km_guide_may_end(other);
        assert_int_equal(km_guide_may_end(other), km_guide_may_end(m));
        km_guide_free(other);
        km_text_free(&text);
    }
    assert_true(whole > 5);
    km_guide_free(m);
    km_grammar_free(g);
    km_trie_free(t);
}

static void after_the_end_only_ends_may_come(void **state) {
    (void)state;
    km_trie *t = make_trie();
    km_grammar *g = parse("root ::= \"a\" | \"ab\"");
    km_error err = {0};
    km_guide *m = km_guide_new(g, t, &err);
    assert_int_equal(km_guide_accept(m, ends[0], &err), KM_ERR_RANGE);
    assert_non_null(strstr(err.text, "does not let the text end here"));
    err = (km_error){0};
    assert_int_equal(km_guide_accept(m, 'a', &err), KM_OK);
    assert_true(km_guide_may_end(m) && !km_guide_must_end(m));
    assert_int_equal(km_guide_accept(m, 'x', &err), KM_ERR_RANGE); /* and changes nothing */
    err = (km_error){0};
    assert_int_equal(km_guide_accept(m, 'b', &err), KM_OK);
    assert_true(km_guide_must_end(m));
    const uint64_t *mask = km_guide_mask(m, &err);
    assert_non_null(mask);
    for (int32_t id = 0; id < VOCAB; id++) assert_int_equal(km_mask_has(mask, id), id == ends[0]);
    assert_int_equal(km_guide_accept(m, ends[0], &err), KM_OK);
    assert_int_equal(km_guide_accept(m, 'a', &err), KM_ERR_RANGE);
    err = (km_error){0};
    assert_int_equal(km_guide_accept(m, VOCAB, &err), KM_ERR_RANGE);
    km_guide_free(m);
    km_grammar_free(g);
    km_trie_free(t);
}

static void a_vocabulary_that_cannot_say_it_is_an_error(void **state) {
    (void)state;
    km_span only[] = {{"a", 1}, {"bc", 2}};
    km_error err = {0};
    km_trie *t = km_trie_of(only, 2, NULL, 0, &err);
    km_grammar *g = parse("root ::= \"a\" \"b\" \"d\"");
    km_guide *m = km_guide_new(g, t, &err);
    assert_int_equal(km_guide_accept(m, 0, &err), KM_OK);
    assert_null(km_guide_mask(m, &err));
    assert_int_equal(err.code, KM_ERR_STATE);
    assert_non_null(strstr(err.text, "no token of the vocabulary fits"));
    km_guide_free(m);
    km_grammar_free(g);
    km_trie_free(t);
}

/* ---- Hostile grammars ---- */

static char *chain(const char *format, int n,
                   const char *last) { /* numbers i and i + 1 into the format */
    km_text t = {0};
    km_text_add(&t, "root ::= r0\n");
    for (int i = 0; i < n; i++) {
        for (const char *c = format; *c; c++) {
            if (*c == '@')
                km_text_printf(&t, "%d", i);
            else if (*c == '^')
                km_text_printf(&t, "%d", i + 1);
            else
                km_text_put(&t, c, 1);
        }
        km_text_add(&t, "\n");
    }
    km_text_printf(&t, "r%d ::= %s\n", n, last);
    return t.data;
}

static void ambiguous_grammars_are_stopped(void **state) {
    (void)state;
    km_trie *t = make_trie();
    /* Each rule has two ways to come back to itself, so stacks double with each rule. */
    char *text = chain("r@ ::= r^ \"a\" | r^ \"b\"", 60, "\"x\"");
    km_error err = {0};
    km_grammar *g = km_grammar_parse(text, strlen(text), &err);
    assert_non_null(g);
    km_guide *m = km_guide_new(g, t, &err);
    assert_null(m);
    assert_int_equal(err.code, KM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "too ambiguous"));
    km_grammar_free(g);
    km_free(text);
    /* Here only once a text has begun. */
    err = (km_error){0};
    g = parse(
        "root ::= \"x\" s\ns ::= (\"a\" s \"b\" | \"a\" s \"c\" | \"a\" s \"d\" | \"a\" s \"e\")");
    m = km_guide_new(g, t, &err);
    assert_non_null(m);
    km_status status = km_guide_feed(m, "x", 1, &err);
    for (int i = 0; i < 40 && status == KM_OK; i++) status = km_guide_feed(m, "a", 1, &err);
    assert_int_equal(status, KM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "too ambiguous"));
    km_guide_free(m);
    km_grammar_free(g);
    km_trie_free(t);
}

static void deep_and_large_grammars_are_bounded(void **state) {
    (void)state;
    km_text t = {0};
    km_text_add(&t, "root ::= ");
    for (int i = 0; i < 100000; i++) km_text_add(&t, "(");
    expect_error(t.data, KM_ERR_RANGE, "groups are nested too deeply");
    km_text_free(&t);
    km_text_add(&t, "root ::= ((((\"a\"{1000}){1000}){1000}){1000}){1000}");
    km_grammar *g = parse(t.data); /* nested repetition refers to rules, and is small */
    assert_int_equal(fits(g, "aaaa"), 1);
    km_grammar_free(g);
    km_text_free(&t);
    char *text = chain("r@ ::= \"a\" r^ \"b\" | \"c\"", 20000, "\"x\"");
    g = parse(text);
    assert_int_equal(fits(g, "aaaaac"), 1);
    assert_int_equal(fits(g, "aacbb"), 2);
    km_grammar_free(g);
    km_free(text);
    text = chain("r@ ::= r^", 50000, "\"x\""); /* a long way to the first character */
    g = parse(text);
    assert_int_equal(fits(g, "x"), 2);
    km_grammar_free(g);
    km_free(text);
    text = chain("r@ ::= r^ | \"\"", 20000,
                 "\"x\" r0 \"y\""); /* can all be empty: rules begin with others, in no circle */
    g = parse(text);
    assert_int_equal(fits(g, "xxyy"), 2);
    km_grammar_free(g);
    km_free(text);
}

static void long_texts_do_not_fill_the_memory(void **state) {
    (void)state;
    km_trie *t = make_trie();
    km_grammar *g = parse(json_grammar);
    km_error err = {0};
    km_guide *m = km_guide_new(g, t, &err);
    for (int i = 0; i < 100000; i++) /* every depth is a new state */
        if (km_guide_feed(m, "[{\"a\":", 6, &err) != KM_OK) fail_msg("%s", err.text);
    assert_true(km_guide_counts(m).states < 200000);
    assert_non_null(km_guide_mask(m, &err));
    for (int i = 0; i < 100000; i++)
        if (km_guide_feed(m, i ? "}]" : "1}]", i ? 2 : 3, &err) != KM_OK)
            fail_msg("%d: %s", i, err.text);
    assert_true(km_guide_may_end(m));
    assert_int_equal(km_guide_feed(m, "]", 1, &err), KM_ERR_RANGE);
    km_guide_free(m);
    km_grammar_free(g);
    km_trie_free(t);
}

static void running_out_of_memory_is_an_error_without_a_leak(void **state) {
    (void)state;
    km_span few[] = {{"{", 1}, {"\"a", 2}, {"\":", 2}, {"[1", 2}, {"]}", 2}, {"é", 2}};
    for (int64_t nth = 0;; nth++) {
        int64_t live = km_alloc_live();
        km_error err = {0};
        km_alloc_fail_nth(nth);
        km_trie *t = km_trie_of(few, 6, NULL, 0, &err);
        km_grammar *g = t ? km_grammar_parse(json_grammar, strlen(json_grammar), &err) : NULL;
        km_guide *m = g ? km_guide_new(g, t, &err) : NULL;
        for (int32_t id = 0; m && id < 5 && err.code == KM_OK; id++)
            if (km_guide_mask(m, &err)) km_guide_accept(m, id, &err);
        km_alloc_fail_nth(-1);
        km_guide_free(m);
        km_grammar_free(g);
        km_trie_free(t);
        assert_int_equal(km_alloc_live(), live);
        if (err.code == KM_OK) {
            assert_true(nth > 20);
            break;
        }
        assert_int_equal(err.code, KM_ERR_MEMORY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars_match_what_they_say),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(left_recursion_is_refused_by_name),
        cmocka_unit_test(random_grammars_match_their_languages),
        cmocka_unit_test(masks_hold_exactly_the_tokens_that_fit),
        cmocka_unit_test(masks_count_characters_where_repetition_is_bounded),
        cmocka_unit_test(text_made_of_allowed_tokens_is_of_the_grammar),
        cmocka_unit_test(after_the_end_only_ends_may_come),
        cmocka_unit_test(a_vocabulary_that_cannot_say_it_is_an_error),
        cmocka_unit_test(ambiguous_grammars_are_stopped),
        cmocka_unit_test(deep_and_large_grammars_are_bounded),
        cmocka_unit_test(long_texts_do_not_fill_the_memory),
        cmocka_unit_test(running_out_of_memory_is_an_error_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
