/* The texts of tokens by id, and ids by text. All texts lie in one block, so a vocabulary of
 * 150,000 tokens is a few allocations. */
#ifndef KM_TOKEN_VOCAB_H
#define KM_TOKEN_VOCAB_H
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KM_VOCAB_MAX (1 << 24) /* ids are below this; a larger one is a mistake in the file */

typedef struct km_vocab_item {
    uint32_t at, len; /* in the block; at == KM_VOCAB_HOLE: no token has this id */
} km_vocab_item;
#define KM_VOCAB_HOLE UINT32_MAX

typedef struct km_vocab { /* all-zero is a valid empty vocabulary */
    char *block;
    size_t used, room;
    km_vocab_item *item;
    int32_t count, room_items; /* the largest id + 1 */
    int32_t *slot;             /* open addressing; -1: empty */
    uint32_t mask;
} km_vocab;

/* Gives the id this text. An id that has one already is refused. */
km_status km_vocab_put(km_vocab *v, int64_t id, const char *text, size_t n, km_error *err);
/* Makes km_vocab_find work for the ids for which listed[id] is true (NULL: for all). Of equal
 * texts the last one is found. */
km_status km_vocab_index(km_vocab *v, const bool *listed, km_error *err);
int32_t km_vocab_find(const km_vocab *v, const char *text, size_t n); /* -1: none */
void km_vocab_free(km_vocab *v);

static inline bool km_vocab_has(const km_vocab *v, int64_t id) {
    return id >= 0 && id < v->count && v->item[id].at != KM_VOCAB_HOLE;
}
static inline const char *km_vocab_text(const km_vocab *v, int32_t id, size_t *n) {
    *n = v->item[id].len;
    return v->block + v->item[id].at;
}

#endif
