/* Constrained decoding: grammars that hold a model to a language, GBNF, the notation of llama.cpp, and masks of the
 * tokens that may come next.
 *
 *     root ::= "yes" | "no" [!.]{1,3} | list     # alternatives, literals, classes, repetition
 *     list ::= "[" ( item ("," item)* )? "]"     # groups, * + ? {m} {m,} {m,n}
 *     item ::= [^\]",\x00-\x1F]+ | list          # references, recursion, escapes
 *
 * A grammar is parsed once and never changes. A trie over the vocabulary is made once a tokenizer.
 * A guide walks the two against each other: it follows one sequence, and remembers the masks of
 * the states it has seen. Grammars come from strangers too: what would grow without bound is an
 * error with a reason. */
#ifndef KM_TEXT_GRAMMAR_H
#define KM_TEXT_GRAMMAR_H
#include "base/error.h"
#include "token/token.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Grammars ---- */

typedef struct km_grammar km_grammar;

/* Parses GBNF; the text begins with the rule `root`. NULL with *err set: the line and what is wrong
 * there. Rules that begin with themselves (left recursion) are refused. */
km_grammar *km_grammar_parse(const char *text, size_t bytes, km_error *err);
void km_grammar_free(km_grammar *g); /* NULL is fine */

/* ---- Vocabularies ---- */

typedef struct km_trie km_trie;

/* The tokens of a tokenizer by their bytes. Special tokens are no text and never match; those that
 * end a generation are allowed where the grammar may end. */
km_trie *km_trie_new(const km_token *t, km_error *err);
/* The same for tokens given one by one: texts[id], where an empty text never matches; the ids of
 * `ends` end a generation. The texts are copied. */
km_trie *km_trie_of(const km_span *texts, int64_t n, const int32_t *ends, size_t n_ends,
                    km_error *err);
void km_trie_free(km_trie *t); /* NULL is fine */
int64_t km_trie_vocab(const km_trie *t);

/* ---- Guides ---- */

typedef struct km_guide km_guide; /* for one thread at a time */

/* At the beginning of a sequence. The grammar and the trie must outlive it; the trie may be NULL
 * when only bytes are matched. */
km_guide *km_guide_new(const km_grammar *g, const km_trie *t, km_error *err);
void km_guide_free(km_guide *m);  /* NULL is fine */
void km_guide_reset(km_guide *m); /* to the beginning; what it remembers stays */

/* Which tokens may come next: bit id % 64 of word id / 64. Valid until the next call. NULL with
 * *err set: KM_ERR_UNSUPPORTED when the grammar is too ambiguous to tell, KM_ERR_STATE when no
 * token of the vocabulary fits. After the end nothing may come but an end. */
const uint64_t *km_guide_mask(km_guide *m, km_error *err);
static inline bool km_mask_has(const uint64_t *mask, int32_t id) {
    return mask[id / 64] >> (id % 64) & 1;
}

/* Goes on by a token. One that may not come is KM_ERR_RANGE, and changes nothing. */
km_status km_guide_accept(km_guide *m, int32_t id, km_error *err);
/* Goes on by bytes, which may end within a character. */
km_status km_guide_feed(km_guide *m, const char *bytes, size_t n, km_error *err);
bool km_guide_may_end(const km_guide *m);  /* what was read is a whole text of the grammar */
bool km_guide_must_end(const km_guide *m); /* and nothing longer is */

typedef struct km_guide_stats {
    size_t states;     /* remembered now */
    uint64_t masks;    /* asked for */
    uint64_t computed; /* of these, not remembered */
} km_guide_stats;
km_guide_stats km_guide_counts(const km_guide *m);

#endif
