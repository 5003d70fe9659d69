/* The paged KV cache of many sequences: for each layer a pool of pages, and for each
 * sequence a table of the pages that hold its tokens. The pools are reserved when the cache is made
 * and never move or grow; on the host the system gives memory as pages are first written. Sequences
 * that share a beginning share its pages; one that goes on in a shared page gets its own copy first. */
#ifndef KM_INFER_CACHE_H
#define KM_INFER_CACHE_H
#include "model/parts.h"

typedef struct km_cache km_cache;

typedef struct km_cache_options {
    km_dtype dtype;    /* f32, f16, bf16, q8_0, q4_0 */
    int64_t sequences; /* at most so many at once */
    int64_t context;   /* tokens of one at most */
    int64_t pages;     /* of KM_KV_PAGE tokens, for all; 0: so many that none ever lacks one */
} km_cache_options;

/* Each layer's pools are where the layer is: a model in parts has a cache in parts. NULL with the
 * context's error set. */
km_cache *km_cache_new(km_ctx *ctx, const km_net *m, const km_cache_options *o);
void km_cache_free(km_cache *c); /* NULL is fine */
/* What it reserves: the most that the cache can come to hold. */
size_t km_cache_bytes(const km_config *c, const km_cache_options *o);
/* How many pages so many bytes hold, in all layers together; no more than could be used. */
int64_t km_cache_pages_in(const km_config *c, const km_cache_options *o, size_t bytes);

/* A new sequence, empty or (fork) with all that another holds; -1 with *err set. */
int km_cache_join(km_cache *c, km_error *err);
int km_cache_fork(km_cache *c, int sequence, km_error *err);
void km_cache_leave(km_cache *c, int sequence);
void km_cache_pages(const km_cache *c, int64_t *all, int64_t *unused);
int64_t km_cache_length(const km_cache *c, int sequence);
int64_t km_cache_pages_left(const km_cache *c); /* that no sequence has */
/* How many of these n more tokens would take. */
int64_t km_cache_pages_for(const km_cache *c, int sequence, int64_t n);
/* Pages for n more tokens, of the sequence alone where they will be written. KM_ERR_MEMORY, with
 * nothing changed, when too few are left: whoever leaves or is cut gives some back. */
km_status km_cache_reserve(km_cache *c, int sequence, int64_t n, km_error *err);
void km_cache_add(km_cache *c, int sequence, int64_t n); /* they are in it now */
/* Forgets what comes after the first `length` tokens. False, and nothing done, when what they need
 * is gone: behind a window that all layers have, pages are given back as the text goes on. */
bool km_cache_cut(km_cache *c, int sequence, int64_t length);
bool km_cache_can_cut(const km_cache *c, int sequence, int64_t length);

/* Pools and table for a step of the model's nth part (0: the only one, as a rule); the table is
 * brought up to date. rows is the caller's, of that part's context. */
km_status km_cache_place(km_cache *c, int part, km_tensor *rows, int64_t last, km_net_place *out);

/* For files: page i of a sequence (of those that hold its tokens) in one of the 2 * layers pools,
 * out of it or into it; 0 bytes behind the window. */
size_t km_cache_page_bytes(const km_cache *c);
int km_cache_pools(const km_cache *c);
bool km_cache_has_page(const km_cache *c, int sequence, int64_t i);
km_status km_cache_page_read(km_cache *c, int sequence, int64_t i, int pool, void *to);
km_status km_cache_page_write(km_cache *c, int sequence, int64_t i, int pool, const void *from);
/* Pages for `length` tokens of an empty sequence but for the first `absent` ones, all of them in. */
km_status km_cache_restore(km_cache *c, int sequence, int64_t length, int64_t absent,
                           km_error *err);

#endif
