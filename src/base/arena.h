/* A step arena: bump allocation of small, short-lived structs (tensors, tape nodes).
 * Nothing is freed by hand; a reset gives everything back at once and keeps the memory,
 * so a loop that repeats the same step stops allocating after its first round. */
#ifndef KM_BASE_ARENA_H
#define KM_BASE_ARENA_H
#include <stddef.h>

typedef struct km_arena_chunk km_arena_chunk;
typedef struct km_arena {
    km_arena_chunk *first, *current; /* chunks in the order they were made */
    size_t used;                     /* bytes handed out since the last reset */
    size_t peak;                     /* largest `used` ever */
} km_arena;

/* Zeroed memory, 16-byte aligned, valid until the next reset; NULL when out of memory.
 * An all-zero km_arena is a valid empty arena. */
void *km_arena_alloc(km_arena *a, size_t bytes);
void km_arena_reset(km_arena *a); /* everything handed out is gone; memory is kept */
void km_arena_free(km_arena *a);  /* the memory itself is given back */

#endif
