/* Token files: a text as numbers, mapped and never read whole. Byte by byte in
 * docs/formats/tokens.md: magic, version, the tokens (u16 or u32, 64-byte aligned), what they were
 * made from, a section table at the end, XXH3 checksums over all of it. There is no size limit
 * below that of the file system. */
#ifndef KM_TRAIN_TOKENS_H
#define KM_TRAIN_TOKENS_H
#include "base/file.h"
#include <stdbool.h>

/* A file that the tokens were made from. */
typedef struct km_tokens_source {
    char *path; /* absolute */
    uint64_t bytes;
    int64_t mtime; /* nanoseconds */
    uint64_t hash; /* XXH3 of its bytes */
} km_tokens_source;

/* What the file says about itself. */
typedef struct km_tokens_meta {
    uint64_t tokenizer; /* km_token_hash of the one that made them */
    int64_t vocab;      /* every token is below this */
    bool special;       /* whether the text's special tokens were read as such */
    km_tokens_source *sources;
    int n_sources;
} km_tokens_meta;

typedef struct km_tokens {
    km_map map;
    const void *data; /* (count) u16 or u32, in the mapping */
    int width;        /* bytes of one: 2 or 4 */
    int64_t count;
    km_tokens_meta meta;
} km_tokens;

/* Whether the file begins as a token file does; false also when it cannot be read. */
bool km_tokens_is(const char *path);
/* Maps and checks all of it, the tokens' checksum included. */
km_status km_tokens_open(km_tokens *t, const char *path, km_error *err);
void km_tokens_close(km_tokens *t);
void km_tokens_meta_clear(km_tokens_meta *m);
/* Tokens [at, at + n) as i32, which must lie in the file. */
void km_tokens_get(const km_tokens *t, int64_t at, int64_t n, int32_t *out);

/* Writing: tokens in order, then what they were made from. The file appears at commit, whole. */
typedef struct km_tokens_writer km_tokens_writer;
km_tokens_writer *km_tokens_create(const char *path, int64_t vocab, km_error *err);
km_status km_tokens_put(km_tokens_writer *w, const int32_t *ids, size_t n, km_error *err);
km_status km_tokens_commit(km_tokens_writer *w, const km_tokens_meta *meta, km_error *err);
void km_tokens_abort(km_tokens_writer *w); /* NULL is fine */

#endif
