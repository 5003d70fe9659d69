/* Answers of /v1/responses that are kept, so that a later request goes on from one by its id. Bounded by
 * number and bytes, the least recently used dropped first; a key sees its own alone. Workers look into it
 * while the loop adds, so it has a lock of its own. */
#ifndef KM_SERVE_API_RESPONSE_STORE_H
#define KM_SERVE_API_RESPONSE_STORE_H
#include "base/error.h"

typedef struct km_response_store km_response_store;

/* most: how many are kept; bytes: of all together. NULL: out of memory. */
km_response_store *km_response_store_new(size_t most, size_t bytes);
void km_response_store_free(km_response_store *s); /* NULL is fine */

typedef struct km_kept_response { /* JSON */
    char *response;               /* as it was answered */
    char *input;                  /* the request's items, with ids */
    char *talk; /* all items so far, those of the answers before and this answer's among them */
} km_kept_response;

/* Takes a copy of all three; one that is larger than the bound is not kept. */
void km_response_store_put(km_response_store *s, uint64_t key, const char *id,
                           const km_kept_response *r);
/* A copy of what is kept (km_kept_response_free); false: there is none of this key under that id, or
 * memory is short. */
bool km_response_store_get(km_response_store *s, uint64_t key, const char *id,
                           km_kept_response *out);
bool km_response_store_delete(km_response_store *s, uint64_t key, const char *id);
void km_kept_response_free(km_kept_response *r);

#endif
