/* Counting the pieces of texts, for training: which there are and how often, cut by GPT-2's
 * pattern, on several threads. Texts are not copied: a piece is known by where it was seen. */
#ifndef KM_TOKEN_COUNT_H
#define KM_TOKEN_COUNT_H
#include "base/threads.h"
#include "token/token.h"

typedef struct km_counted_piece {
    const char *text;
    uint32_t len, hash;
    uint64_t start; /* its first bytes, up to eight: short pieces are told apart without a look */
    int64_t count;
} km_counted_piece;

typedef struct km_pieces {  /* all-zero is valid and empty */
    km_counted_piece *slot; /* open addressing; count 0: empty. After counting: a plain list */
    size_t used, size;
} km_pieces;

/* The pieces of all texts, in *out as a list of out->used. What they are and their counts do not
 * depend on the number of threads; their order does. Bytes that are not UTF-8 are left out. */
km_status km_count_pieces(const km_span *texts, size_t n, km_threads *threads,
                          km_token_progress progress, void *user, km_pieces *out, km_error *err);
void km_pieces_free(km_pieces *p);

#endif
