/* A hash table of numbers: growing it, and hashes of bytes by XXH3. */
#include "base/hash.h"
#include "base/alloc.h"
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static void place(km_hash_slot *slot, size_t slots, km_hash_slot s) {
    size_t at = s.hash & (slots - 1);
    while (slot[at].number) at = (at + 1) & (slots - 1);
    slot[at] = s;
}

static bool grow(km_hash *t) {
    size_t slots = t->slots ? 2 * t->slots : 64;
    km_hash_slot *slot = km_calloc(slots, sizeof *slot);
    if (!slot) return false;
    /* From behind the first gap on, so that equal hashes keep their order around the end. */
    size_t gap = 0;
    while (t->slots && t->slot[gap].number) gap++;
    for (size_t i = 0; i < t->slots; i++) {
        km_hash_slot s = t->slot[(gap + i) & (t->slots - 1)];
        if (s.number) place(slot, slots, s);
    }
    km_free(t->slot);
    t->slot = slot;
    t->slots = slots;
    return true;
}

bool km_hash_put(km_hash *t, uint32_t hash, uint32_t number) {
    if (2 * (t->n + 1) > t->slots && !grow(t)) return false;
    place(t->slot, t->slots, (km_hash_slot){hash, number + 1});
    t->n++;
    return true;
}

void km_hash_clear(km_hash *t) {
    if (t->n) memset(t->slot, 0, t->slots * sizeof *t->slot);
    t->n = 0;
}

void km_hash_free(km_hash *t) {
    km_free(t->slot);
    *t = (km_hash){0};
}

uint32_t km_hash_bytes(const void *p, size_t n) { return (uint32_t)XXH3_64bits(p, n); }
