/* Tokenizers: text to ids and back. One type serves all kinds: bytes, characters, byte-level BPE
 * (trained here or loaded), SentencePiece and WordPiece. A tokenizer is what a Hugging Face
 * tokenizer.json describes: added tokens, a normaliser, a pre-tokeniser, a model, a template of
 * special tokens and a decoder; a GGUF file's tokenizer is brought into the same form.
 *
 * A km_token never changes once made, and any number of threads may use it at once. */
#ifndef KM_TOKEN_TOKEN_H
#define KM_TOKEN_TOKEN_H
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct km_token km_token;

/* A text that lies in memory, a mapped file for instance; it need not be valid UTF-8, and it may
 * contain any byte. A corpus is an array of these: no piece of text reaches across two. */
typedef struct km_span {
    const char *data;
    size_t bytes;
} km_span;

typedef struct km_ids { /* ids that grow; all-zero is a valid empty list */
    int32_t *data;
    size_t len, cap;
} km_ids;

km_status km_ids_put(km_ids *ids, const int32_t *more, size_t n, km_error *err);
void km_ids_free(km_ids *ids);

/* Called now and then from the thread that made the call: `done` of `total` of what `stage` names
 * ("counting" bytes, "merging" pairs, "encoding" bytes). Returning false stops the work with
 * KM_ERR_STATE. */
typedef bool (*km_token_progress)(void *user, const char *stage, int64_t done, int64_t total);

/* ---- Making one ---- */

/* 256 tokens, the bytes; id = byte. */
km_token *km_token_bytes(km_error *err);

/* The distinct characters of the texts, by code point: the lowest gets id 0. Text that is not
 * UTF-8 is refused, with its place. */
km_token *km_token_chars(const km_span *texts, size_t n, km_error *err);

/* Byte-level BPE with GPT-2's way of splitting text: ids 0 to 255 are the bytes in GPT-2's order,
 * then come the merges, then the special tokens. The merges do not depend on the number of
 * threads, and equal those of Hugging Face's trainer. */
#define KM_TOKEN_END "<|endoftext|>"
typedef struct km_bpe_options {
    int64_t vocab;              /* tokens in all, special ones included: at least 256 and those.
                                 * A text with too few pairs gives fewer. */
    int64_t min_count;          /* a pair that occurs less often is not merged; 0 means 2 */
    int threads;                /* 0: one per core */
    const char *const *special; /* n_special texts that become one token each; the one that is
                                 * KM_TOKEN_END is the end-of-text token */
    size_t n_special;
    km_token_progress progress; /* may be NULL */
    void *user;
} km_bpe_options;
km_token *km_token_train_bpe(const km_span *texts, size_t n, const km_bpe_options *options,
                             km_error *err);

/* From a tokenizer.json, a folder that holds one, or a .gguf. */
km_token *km_token_load(const char *path, km_error *err);
/* From the text of a tokenizer.json; `name` stands for it in messages. */
km_token *km_token_parse(const char *json, size_t bytes, const char *name, km_error *err);

/* Writes a tokenizer.json that Hugging Face's `tokenizers` loads and that gives the same ids. */
km_status km_token_save(const km_token *t, const char *path, km_error *err);

void km_token_free(km_token *t); /* NULL is fine */

/* ---- What it is ---- */

int64_t km_token_vocab(const km_token *t); /* the largest id + 1 */
/* "bytes", "chars", "bpe", "spm", "wordpiece" or "words" */
const char *km_token_kind(const km_token *t);
int32_t km_token_bos(const km_token *t); /* -1: none; as for the next three */
int32_t km_token_eos(const km_token *t);
int32_t km_token_unk(const km_token *t);
int32_t km_token_pad(const km_token *t);
int32_t km_token_find(const km_token *t, const char *text); /* the token of this text; -1: none */
bool km_token_is_special(const km_token *t, int32_t id);    /* control token, not text */
/* Whether generation ends at this token: eos, and the ends of turns that families use. */
bool km_token_is_end(const km_token *t, int32_t id);
/* What the token stands for, as bytes (not NUL-terminated; part of a character perhaps); NULL for
 * an id that is no token. It lives as long as t. */
const char *km_token_text(const km_token *t, int32_t id, size_t *bytes);
/* A number that differs between tokenizers that give different ids: for the names of caches. */
uint64_t km_token_hash(const km_token *t);

/* ---- Text to ids ---- */

enum {
    KM_TOKEN_PLAIN = 0,
    KM_TOKEN_ADD_SPECIAL = 1,   /* put the bos and eos that the tokenizer wants around the text */
    KM_TOKEN_PARSE_SPECIAL = 2, /* "<|endoftext|>" in the text means that token, not its letters */
    KM_TOKEN_SKIP_SPECIAL = 4   /* decoding: leave special tokens out; otherwise they are text */
};

/* Adds the ids of the text to *out. A character that the tokenizer has no token for gives its
 * unknown token; without one the call fails, and says which character and where. */
km_status km_token_encode(const km_token *t, const char *text, size_t bytes, unsigned flags,
                          km_ids *out, km_error *err);

/* The same ids for a large text, on several threads (0: one per core), without holding them all:
 * they come to `sink` in order, some at a time, from the calling thread. A sink that does not
 * return KM_OK stops the work (and sets err). */
typedef km_status (*km_ids_sink)(void *user, const int32_t *ids, size_t n, km_error *err);
typedef struct km_encode_options {
    unsigned flags;
    int threads;
    size_t part;                /* bytes that a thread takes at a time; 0: 256 KiB */
    km_token_progress progress; /* may be NULL */
    void *user;                 /* of progress */
} km_encode_options;
km_status km_token_encode_large(const km_token *t, const char *text, size_t bytes,
                                const km_encode_options *options, km_ids_sink sink, void *user,
                                km_error *err);

/* ---- Ids to text ---- */

/* Adds the text to *out: bytes, which are UTF-8 when the ids came from UTF-8. An id that is no
 * token is an error. */
km_status km_token_decode(const km_token *t, const int32_t *ids, size_t n, unsigned flags,
                          km_text *out, km_error *err);

/* The same, id by id, for showing a text while it is made: what it adds to *out is always whole
 * UTF-8 characters. Bytes that cannot become one turn into U+FFFD. */
typedef struct km_token_stream {
    const km_token *token;
    unsigned flags;
    bool started;          /* a first token was written: SentencePiece drops its space */
    unsigned char held[4]; /* the beginning of a character */
    int n_held;
} km_token_stream;
km_token_stream km_token_stream_begin(const km_token *t, unsigned flags);
km_status km_token_stream_put(km_token_stream *s, int32_t id, km_text *out, km_error *err);
void km_token_stream_end(km_token_stream *s, km_text *out); /* what is still held, as U+FFFD */

#endif
