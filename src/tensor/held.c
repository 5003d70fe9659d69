/* Blocks of captured steps. */
#include "tensor/held.h"
#include "base/alloc.h"
#include "base/array.h"
#include <stdlib.h>

void km_held_note(km_held *h, void *p, size_t cap) {
    if (h->failed) return;
    if (!km_array_reserve(&h->block, &h->cap, h->n + 1))
        h->failed = true;
    else
        h->block[h->n++] = (km_held_block){p, cap, false};
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const km_held_block *)a)->p,
              y = (uintptr_t)((const km_held_block *)b)->p;
    return (x > y) - (x < y);
}

void km_held_take(km_held *h, km_mempool *pool) {
    int n = 0;
    if (h->n) qsort(h->block, (size_t)h->n, sizeof *h->block, by_address);
    for (int i = 0; i < h->n; i++) {
        if (n > 0 && h->block[n - 1].p == h->block[i].p) continue; /* handed out again */
        h->block[n] = h->block[i];
        h->block[n].ours = km_mempool_take(pool, h->block[n].p, h->block[n].cap);
        n++;
    }
    h->n = n;
}

bool km_held_keeps(km_held *h, void *p) {
    km_held_block key = {.p = p};
    if (!h->n) return false;
    km_held_block *b = bsearch(&key, h->block, (size_t)h->n, sizeof key, by_address);
    if (!b || b->ours) return false;
    b->ours = true;
    return true;
}

static void done(km_held *h) {
    km_free(h->block);
    *h = (km_held){0};
}

void km_held_give(km_held *h, km_mempool *pool) {
    for (int i = 0; i < h->n; i++)
        if (h->block[i].ours) km_mempool_put(pool, h->block[i].p, h->block[i].cap);
    done(h);
}

void km_held_drop(km_held *h, km_mempool *pool) {
    for (int i = 0; i < h->n; i++)
        if (h->block[i].ours) km_mempool_drop(pool, h->block[i].p, h->block[i].cap);
    done(h);
}
