/* Encoding, from the inside: what one thread needs for it, and the ways into it that the parallel
 * encoder takes. */
#ifndef KM_TOKEN_ENCODE_H
#define KM_TOKEN_ENCODE_H
#include "token/internal.h"

#define KM_CACHED_BYTES 23
#define KM_CACHED_IDS 9
#define KM_CACHE_BITS 16

typedef struct km_cached { /* the ids of a piece of text met before; one cache line */
    uint64_t key[3];       /* the text, and its length + 1 in the last byte; 0: empty */
    int32_t n;
    int32_t id[KM_CACHED_IDS];
} km_cached;

typedef struct km_symbol {
    uint32_t at, len;      /* in the piece; len 0: merged into the one before */
    int32_t id;            /* -1: no token has this text */
    uint32_t before, next; /* neighbours that live; UINT32_MAX: none */
} km_symbol;

typedef struct km_candidate { /* a pair that may merge */
    uint32_t rank, at;        /* at: the left symbol */
    uint32_t len;             /* of both together, when it was found */
    int32_t to;
} km_candidate;

struct km_scratch { /* what a thread works with; reused from call to call */
    km_scratch *next;
    km_matcher *matcher;
    km_cached *cache; /* NULL: not made yet */
    km_text buffer[4];
    km_text word; /* WordPiece: "##" and the rest of a word */
    km_symbol *symbol;
    size_t symbols;
    km_candidate *heap;
    size_t heap_len, heap_room;
};

km_scratch *km_scratch_take(const km_token *t, km_error *err);
void km_scratch_give(const km_token *t, km_scratch *s);
void km_scratch_free(km_scratch *s);

/* For encoding from the middle of a text: borders between pieces where the rest of the text can be
 * taken up by somebody else with the same result. */
typedef struct km_encode_cut {
    const char *limit; /* stop at the first border here or later */
    const char *stop;  /* where that was; NULL: the text ended first */
    struct km_encode_mark {
        const char *at;
        size_t ids; /* how many there were before it */
    } * mark;       /* the first borders met */
    int n_marks, room;
} km_encode_cut;

typedef struct km_encoder { /* one call, on one thread */
    const km_token *t;
    km_scratch *s;
    km_ids *out;
    const char *origin; /* the caller's text, to name a place in it */
    size_t origin_bytes;
    unsigned flags;
    km_error *err;
    km_encode_cut *cut;                                                   /* NULL: none */
    km_status (*large)(struct km_encoder *e, const char *text, size_t n); /* NULL: encode here */
} km_encoder;

/* model.c: the ids of one piece, which no later step cuts. */
km_status km_encode_piece(km_encoder *e, const char *text, size_t n);
/* The ids of bytes that are not UTF-8. */
km_status km_encode_bytes(km_encoder *e, const char *text, size_t n);
/* An error that names the character at `text`, and its place when that is in the caller's text. */
km_status km_encode_unknown(const km_encoder *e, const char *text, size_t n);

/* split.c: cuts valid text by all steps, and encodes the pieces. */
km_status km_encode_split(km_encoder *e, const char *text, size_t n);
/* The first border at or after `from` where the border rule cuts; n when there is none. */
size_t km_border_next(const km_token *t, const char *text, size_t n, size_t from);

/* encode.c: a whole text; and a stretch of it without added tokens, from the normaliser on. */
km_status km_encode_all(km_encoder *e, const char *text, size_t n);
km_status km_encode_stretch(km_encoder *e, km_text_place place, const char *text, size_t n);

static inline km_status km_put_id(km_encoder *e, int32_t id) {
    km_ids *o = e->out;
    if (o->len < o->cap) {
        o->data[o->len++] = id;
        return KM_OK;
    }
    return km_ids_put(o, &id, 1, e->err);
}

#endif
