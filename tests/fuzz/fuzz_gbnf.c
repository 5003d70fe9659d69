/* Fuzzes grammars: whatever parses can be matched and masked, and masks agree with matching.
 * seeds: tests/fixtures/chat/json.gbnf tests/fixtures/chat/signs.gbnf
 */
#include "text/grammar.h"
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every pair of some texts: enough tokens for all ways that masks are worked out in. */
#define TEXTS 20
static km_trie *small_trie(void) {
    static const char *const texts[TEXTS] = {
        "{",  "}",  "\"", "a",    "ab", "b",    " ",    "\n",       "1",        "[1,",
        "\\", "u0", "é",  "\xc3", "漢", "\xa9", "true", "\":\"x\"", "\xf0\x9f", ""};
    static char room[TEXTS * TEXTS][16];
    km_span spans[TEXTS * TEXTS];
    int32_t end = TEXTS * TEXTS - 1; /* the pair of two empty texts */
    for (int i = 0; i <= end; i++) {
        int n = snprintf(room[i], sizeof room[i], "%s%s", texts[i / TEXTS], texts[i % TEXTS]);
        spans[i] = (km_span){room[i], (size_t)n};
    }
    return km_trie_of(spans, end + 1, &end, 1, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static km_trie *trie;
    if (!trie) trie = small_trie();
    km_error err = {0};
    km_grammar *g = km_grammar_parse((const char *)data, size, &err);
    if (!g && err.code == KM_OK) __builtin_trap(); /* a refusal without a reason */
    km_guide *m = g ? km_guide_new(g, trie, &err) : NULL;
    if (g && !m && err.code == KM_OK) __builtin_trap();
    for (int step = 0; m && step < 12; step++) {
        const uint64_t *mask = km_guide_mask(m, &err);
        if (!mask) break;
        int32_t chosen = -1;
        for (int32_t i = 0; i < km_trie_vocab(trie); i++) {
            int32_t id = (int32_t)((i + step * 7) % km_trie_vocab(trie));
            if (km_mask_has(mask, id) && chosen < 0) chosen = id;
        }
        km_error refused = {0};
        for (int32_t id = 0; id < km_trie_vocab(trie) && step == 0; id++)
            if (!km_mask_has(mask, id) && km_guide_accept(m, id, &refused) == KM_OK)
                __builtin_trap();
        if (km_guide_accept(m, chosen, &err) != KM_OK) {
            if (err.code == KM_ERR_RANGE) __builtin_trap(); /* it was allowed */
            break;
        }
    }
    km_guide_free(m);
    km_grammar_free(g);
    return 0;
}
