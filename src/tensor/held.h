/* The pool's blocks that a captured step used. Every replay writes to them, so that they serve nobody
 * else: those that are free when the capture ends are taken out of the pool, and those still in use
 * are kept back when their user returns them. */
#ifndef KM_TENSOR_HELD_H
#define KM_TENSOR_HELD_H
#include "tensor/mempool.h"

typedef struct km_held_block {
    void *p;
    size_t cap;
    bool ours; /* out of the pool; otherwise somebody still uses it */
} km_held_block;

typedef struct km_held {
    km_held_block *block; /* sorted by address once taken */
    int n, cap;
    bool failed; /* no memory for the list */
} km_held;

void km_held_note(km_held *h, void *p, size_t cap); /* the pool has handed it out */
void km_held_take(km_held *h, km_mempool *pool);    /* the capture ends */
bool km_held_keeps(km_held *h, void *p); /* it comes back: true where it is now the graph's own */
/* Gives the graph's own blocks back, to the pool, or (after km_mempool_free) to the device; and frees the
 * list. */
void km_held_give(km_held *h, km_mempool *pool);
void km_held_drop(km_held *h, km_mempool *pool);

#endif
