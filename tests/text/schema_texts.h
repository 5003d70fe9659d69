/* For tests of schemas: texts that fit and texts that do not, and texts as a model could write. */
#ifndef KM_TESTS_SCHEMA_TEXTS_H
#define KM_TESTS_SCHEMA_TEXTS_H
#include "base/alloc.h"
#include "text/json_schema.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct schema_case {
    const char *schema;
    const char *fit[16], *unfit[16];
} schema_case;

static inline int fits(const km_grammar *g, const char *text) {
    km_error err = {0};
    km_guide *m = km_guide_new(g, NULL, &err);
    if (!m) fail_msg("%s", err.text);
    bool whole = km_guide_feed(m, text, strlen(text), &err) == KM_OK && km_guide_may_end(m);
    if (err.code != KM_OK && err.code != KM_ERR_RANGE) fail_msg("%s", err.text);
    km_guide_free(m);
    return whole;
}

static inline void check_case(const schema_case *c) {
    km_error err = {0};
    km_grammar *g = km_json_schema_grammar(c->schema, strlen(c->schema), false, &err);
    if (!g) fail_msg("%s\n%s", c->schema, err.text);
    for (int k = 0; c->fit[k]; k++)
        if (!fits(g, c->fit[k])) fail_msg("%s\nshould take %s", c->schema, c->fit[k]);
    for (int k = 0; c->unfit[k]; k++)
        if (fits(g, c->unfit[k])) fail_msg("%s\nshould not take %s", c->schema, c->unfit[k]);
    km_grammar_free(g);
}

static inline void expect_error(const char *schema, km_status code, const char *part) {
    km_error err = {0};
    km_grammar *g = km_json_schema_grammar(schema, strlen(schema), false, &err);
    if (g) fail_msg("%.200s: was taken", schema);
    if (err.code != code || !strstr(err.text, part) || strchr(err.text, '\n'))
        fail_msg("%.200s: \"%s\" lacks \"%s\"", schema, err.text, part);
}

/* A vocabulary of the 256 bytes and an end. */
#define SCHEMA_END 256
static inline km_trie *byte_trie(char all[256]) {
    km_span bytes[257] = {{0}};
    int32_t end = SCHEMA_END;
    km_error err = {0};
    for (int b = 0; b < 256; b++) {
        all[b] = (char)b;
        bytes[b] = (km_span){&all[b], 1};
    }
    return km_trie_of(bytes, 257, &end, 1, &err);
}

/* Bytes one after another, any that may come, until the text may end and a coin says so. */
static inline bool write_text(km_guide *m, const char all[256], uint64_t *seed, km_text *text) {
    km_error err = {0};
    km_guide_reset(m);
    for (int n = 0; n < 4000; n++) {
        const uint64_t *mask = km_guide_mask(m, &err);
        if (!mask) fail_msg("%s", err.text);
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        if (km_mask_has(mask, SCHEMA_END) && (*seed >> 60) < 4) break;
        int32_t id = (int32_t)(*seed >> 33) & 255;
        /* Closing brackets and quotes more often than others, or texts would not end. */
        static const char closing[] = "\"]}";
        for (int k = 0; k < 3 && (*seed >> 50 & 3); k++)
            if (km_mask_has(mask, closing[k])) id = closing[k];
        while (id == SCHEMA_END || !km_mask_has(mask, id)) {
            id = (id + 1) % 257;
            if (id == SCHEMA_END && km_mask_has(mask, SCHEMA_END)) break;
        }
        if (id == SCHEMA_END) break;
        assert_int_equal(km_guide_accept(m, id, &err), KM_OK);
        km_text_put(text, all + id, 1);
    }
    return km_guide_may_end(m);
}

/* Whatever is written is JSON. With KERMES_SCHEMA_TEXTS=FILE a line for each text goes there, for a
 * validator (tests/long/json_schema.sh); KERMES_SCHEMA_ROUNDS asks for more of them. */
static inline void write_texts(const char *schema, int rounds) {
    char all[256];
    uint64_t seed = 3;
    km_error err = {0};
    const char *path = getenv("KERMES_SCHEMA_TEXTS"), *more = getenv("KERMES_SCHEMA_ROUNDS");
    if (more) rounds = atoi(more);
    FILE *lines = path ? fopen(path, "a") : NULL;
    km_trie *t = byte_trie(all);
    km_grammar *g = km_json_schema_grammar(schema, strlen(schema), false, &err);
    if (!g) fail_msg("%s\n%s", schema, err.text);
    km_guide *m = km_guide_new(g, t, &err);
    for (int round = 0; round < rounds; round++) {
        km_text text = {0};
        if (write_text(m, all, &seed, &text)) {
            json_error_t wrong;
            json_t *j =
                json_loadb(km_text_str(&text), text.len,
                           JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &wrong);
            if (!j)
                fail_msg("%s\ngave %s\nwhich is no JSON: %s", schema, km_text_str(&text),
                         wrong.text);
            json_decref(j);
            json_t *pair = json_pack("[s, s%]", schema, km_text_str(&text), text.len);
            char *line = lines && pair ? json_dumps(pair, JSON_COMPACT) : NULL;
            if (line) fprintf(lines, "%s\n", line);
            free(line);
            json_decref(pair);
        }
        km_text_free(&text);
    }
    if (lines) fclose(lines);
    km_guide_free(m);
    km_grammar_free(g);
    km_trie_free(t);
}

#endif
