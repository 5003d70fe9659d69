/* How long token masks take: a random text of a JSON grammar is made token by token from a
 * vocabulary, and every mask is timed, those that had to be worked out apart from those remembered.
 *
 *     grammar [TOKENIZER]    a tokenizer.json, folder or .gguf; otherwise 150,000 made-up tokens
 *
 * Prints one JSON object; times are of the processor, in milliseconds. */
#include "text/grammar.h"
#include "base/alloc.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VOCAB 150000
#define TOKENS 2000

static const char json_any[] =
    "root ::= value\n"
    "value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"
    "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | "
    "\"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? "
    "([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

static const char record[] = "root ::= \"{\\\"name\\\": \\\"\" char{1,60} \"\\\", \\\"age\\\": \" "
                             "[1-9] [0-9]? \", \\\"tags\\\": [\" tag (\", \" tag){0,7} \"]}\"\n"
                             "tag ::= \"\\\"\" [a-z]{2,20} \"\\\"\"\n"
                             "char ::= [^\"\\\\\\x7F\\x00-\\x1F]\n";

static const char prose[] = "root ::= [^<]* \"<end>\"\n";

static double now(void) { /* of this thread's own time, so that a busy machine does not count */
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t seed;
static uint64_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
}

/* Tokens as a byte-level vocabulary has them: all bytes, words with and without a space in front,
 * numbers, signs in rows, and words beyond ASCII. */
static km_trie *made_up(km_error *err) {
    static const char *const signs = "{}[]():;,.\"'\\/<>=+-*&|!?@#$%^~`_ \n\t";
    static const char *const others[] = {"é",  "ü",  "ж",  "и", "н", "漢", "字",
                                         "の", "中", "한", "😀", "ا", "ل"};
    static const char *const pieces[] = {"\xe4\xb8", "\xf0\x9f", "\x80", " \xd0",
                                         "\xe3\x81\x82\xe3"};
    char *room = km_alloc((size_t)VOCAB * 24);
    km_span *texts = km_calloc(VOCAB, sizeof *texts);
    static const int32_t ends[] = {VOCAB - 1};
    if (!room || !texts) return NULL;
    for (int i = 0; i < VOCAB; i++) {
        char *s = room + (size_t)i * 24;
        size_t n = 0;
        if (i < 256) {
            s[n++] = (char)i;
        } else if (draw() % 100 < 60) {
            if (draw() % 2) s[n++] = ' ';
            for (uint64_t k = 2 + draw() % 9; k > 0; k--)
                s[n++] = (char)((draw() % 12 ? 'a' : 'A') + draw() % 26);
            if (draw() % 20 == 0) s[n++] = signs[draw() % strlen(signs)];
        } else if (draw() % 50 == 0) {
            const char *c = pieces[draw() % (sizeof pieces / sizeof *pieces)];
            memcpy(s, c, n = strlen(c));
        } else if (draw() % 2) {
            for (uint64_t k = 1 + draw() % 5; k > 0; k--) {
                const char *c = others[draw() % (sizeof others / sizeof *others)];
                memcpy(s + n, c, strlen(c));
                n += strlen(c);
            }
        } else {
            for (uint64_t k = 1 + draw() % 8; k > 0; k--) s[n++] = signs[draw() % strlen(signs)];
        }
        texts[i] = (km_span){s, i == VOCAB - 1 ? 0 : n};
    }
    km_trie *t = km_trie_of(texts, VOCAB, ends, 1, err);
    km_free(room);
    km_free(texts);
    return t;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(const char *name, const char *text, const km_trie *t, const char *between,
                   km_error *err) {
    static double fresh[TOKENS], again[TOKENS];
    size_t n_fresh = 0, n_again = 0;
    double total = 0;
    km_grammar *g = km_grammar_parse(text, strlen(text), err);
    km_guide *m = g ? km_guide_new(g, t, err) : NULL;
    seed = 7;
    for (int i = 0; m && i < TOKENS; i++) {
        uint64_t before = km_guide_counts(m).computed;
        double start = now();
        const uint64_t *mask = km_guide_mask(m, err);
        double ms = (now() - start) * 1e3;
        if (!mask) break;
        total += ms;
        if (km_guide_counts(m).computed > before)
            fresh[n_fresh++] = ms;
        else
            again[n_again++] = ms;
        int32_t id = (int32_t)(draw() % (uint64_t)km_trie_vocab(t));
        while (!km_mask_has(mask, id)) id = (id + 1) % (int32_t)km_trie_vocab(t);
        if (km_guide_accept(m, id, err) != KM_OK) break;
        if (km_guide_must_end(m)) km_guide_reset(m);
    }
    if (err->code == KM_OK) {
        qsort(fresh, n_fresh, sizeof *fresh, by_value);
        qsort(again, n_again, sizeof *again, by_value);
        printf("%s\"%s\":{\"mean_ms\":%.4f,\"worked_out\":%zu,\"median_ms\":%.4f,\"p95_ms\":%.4f,"
               "\"max_ms\":%.4f,\"remembered\":%zu,"
               "\"remembered_median_ms\":%.5f,\"states\":%zu}",
               between, name, total / TOKENS, n_fresh, n_fresh ? fresh[n_fresh / 2] : 0,
               n_fresh ? fresh[n_fresh * 95 / 100] : 0, n_fresh ? fresh[n_fresh - 1] : 0, n_again,
               n_again ? again[n_again / 2] : 0, km_guide_counts(m).states);
    }
    km_guide_free(m);
    km_grammar_free(g);
    return err->code == KM_OK ? 0 : 1;
}

int main(int argc, char **argv) {
    km_error err = {0};
    km_token *token = argc > 1 ? km_token_load(argv[1], &err) : NULL;
    seed = 1;
    double start = now();
    km_trie *t = argc > 1 ? token ? km_trie_new(token, &err) : NULL : made_up(&err);
    double ms = (now() - start) * 1e3;
    int failed = !t;
    if (t) {
        printf("{\"vocabulary\":%lld,\"trie_ms\":%.1f,", (long long)km_trie_vocab(t), ms);
        failed = measure("json", json_any, t, "", &err) ||
                 measure("record", record, t, ",", &err) || measure("prose", prose, t, ",", &err);
        printf("}\n");
    }
    if (failed) fprintf(stderr, "grammar: %s\n", err.text);
    km_trie_free(t);
    km_token_free(token);
    return failed;
}
