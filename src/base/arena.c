/* The step arena: a chain of chunks, each twice the last. A reset after a step that needed
 * several replaces them by one that holds the whole step, so the next round finds all its
 * memory in one piece and asks the heap for nothing. */
#include "base/arena.h"
#include "base/alloc.h"
#include <stdint.h>
#include <string.h>

/* Under AddressSanitizer what was not handed out is poisoned: a tensor used after its step
 * is then caught at the first touch. */
#if defined(__SANITIZE_ADDRESS__)
#define KM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KM_ASAN 1
#endif
#endif
#ifdef KM_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n) ((void)0)
#define UNPOISON(p, n) ((void)0)
#endif

#define GRAIN ((size_t)16)
#define FIRST_CHUNK ((size_t)16 << 10)

struct km_arena_chunk {
    km_arena_chunk *next;
    size_t capacity, used;
    _Alignas(16) uint8_t data[];
};

static km_arena_chunk *chunk_new(size_t capacity) {
    if (capacity > SIZE_MAX - sizeof(km_arena_chunk)) return NULL;
    km_arena_chunk *c = km_alloc(sizeof *c + capacity);
    if (!c) return NULL;
    c->next = NULL;
    c->capacity = capacity;
    c->used = 0;
    POISON(c->data, capacity);
    return c;
}

static void chunks_free(km_arena *a) {
    for (km_arena_chunk *c = a->first, *next; c; c = next) {
        next = c->next;
        UNPOISON(c->data, c->capacity);
        km_free(c);
    }
    a->first = a->current = NULL;
}

static km_arena_chunk *chunk_add(km_arena *a, size_t bytes) {
    size_t capacity = FIRST_CHUNK;
    if (a->current && a->current->capacity <= SIZE_MAX / 2) capacity = a->current->capacity * 2;
    km_arena_chunk *c = chunk_new(capacity < bytes ? bytes : capacity);
    if (!c) return NULL;
    if (a->current)
        a->current->next = c;
    else
        a->first = c;
    return a->current = c;
}

void *km_arena_alloc(km_arena *a, size_t bytes) {
    if (bytes > SIZE_MAX - GRAIN) return NULL;
    size_t n = bytes ? (bytes + GRAIN - 1) / GRAIN * GRAIN : GRAIN;
    km_arena_chunk *c = a->current;
    if (!c || c->capacity - c->used < n) c = chunk_add(a, n);
    if (!c) return NULL;
    void *p = c->data + c->used;
    c->used += n;
    a->used += n;
    if (a->peak < a->used) a->peak = a->used;
    UNPOISON(p, bytes);
    return memset(p, 0, bytes);
}

void km_arena_reset(km_arena *a) {
    a->used = 0;
    if (!a->first) return;
    if (a->first->next) {
        chunks_free(a);
        /* Should this fail, the arena is empty and the next step grows it again. */
        a->first = a->current = chunk_new(a->peak);
        return;
    }
    a->first->used = 0;
    POISON(a->first->data, a->first->capacity);
}

void km_arena_free(km_arena *a) {
    chunks_free(a);
    *a = (km_arena){0};
}
