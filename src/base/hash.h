/* A hash table of numbers (open addressing, linear probing): it finds which of the caller's things
 * may be the one that is looked for, and the caller compares. The things lie elsewhere, by number.
 *   for (size_t step = 0; (i = km_hash_next(&table, hash, &step)) != KM_HASH_NONE;)
 *       if (same(things[i], wanted)) return i;
 */
#ifndef KM_BASE_HASH_H
#define KM_BASE_HASH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KM_HASH_NONE UINT32_MAX

typedef struct km_hash_slot {
    uint32_t hash, number; /* number: plus 1; 0: empty */
} km_hash_slot;

typedef struct km_hash { /* all-zero is a valid empty table */
    km_hash_slot *slot;  /* (slots), at most half full */
    size_t slots, n;
} km_hash;

/* The next number put under this hash, in the order they came; step begins at 0. KM_HASH_NONE:
 * there is no more. */
static inline uint32_t km_hash_next(const km_hash *t, uint32_t hash, size_t *step) {
    if (!t->slots) return KM_HASH_NONE;
    for (;;) {
        km_hash_slot s = t->slot[(hash + (*step)++) & (t->slots - 1)];
        if (!s.number) return KM_HASH_NONE;
        if (s.hash == hash) return s.number - 1;
    }
}

bool km_hash_put(km_hash *t, uint32_t hash, uint32_t number); /* false: out of memory */
void km_hash_clear(km_hash *t);                               /* keeps the memory */
void km_hash_free(km_hash *t);

uint32_t km_hash_bytes(const void *p, size_t n);
static inline uint32_t km_hash_u64(uint64_t x) { /* every bit of x counts in the low ones */
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(x >> 32);
}

#endif
