/* Blocks carved out of chunks. A GPU's driver hands memory out in pieces of 2 MiB, and a model has
 * hundreds of tensors that are a little larger or far smaller than that: one driver's block for
 * each would waste a seventh of what the model takes. Here blocks of any size lie side by side in
 * chunks; a block goes where it leaves least over, freed neighbours become one range again, and a
 * chunk in which nothing is left goes back at once. Chunks start small and grow with what is held,
 * so that the unused end of the last one stays a small part of all: about a twentieth, with blocks
 * of many megabytes. Whoever says beforehand which blocks will come gets chunks that fit them.
 *
 * The chunks' memory is never touched: all records are on the heap. Not thread safe, and without a
 * notion of time: like a pool, it belongs to one stream, whose order makes reuse right. */
#ifndef KM_TENSOR_CHUNKS_H
#define KM_TENSOR_CHUNKS_H
#include <stdbool.h>
#include <stddef.h>

#define KM_CHUNK_ALIGN ((size_t)512) /* of blocks; the raw allocator's blocks have it too */

typedef struct km_chunk km_chunk;

typedef struct km_chunks {
    void *(*raw_alloc)(void *owner, size_t bytes); /* NULL when out of memory */
    void (*raw_free)(void *owner, void *p, size_t bytes);
    void *owner;
    size_t grain; /* what raw blocks are rounded up to anyway; 0: not in use */
    size_t most;  /* of a chunk, about; blocks of half of that have one of their own */
    km_chunk *at; /* by address */
    int n, cap;
    size_t held;     /* bytes of all chunks */
    size_t expected; /* bytes of blocks that will be asked for soon */
} km_chunks;

/* A block; NULL when out of memory. Where a chunk cannot be had, a smaller one is tried, and the
 * block alone in the end. */
void *km_chunks_get(km_chunks *c, size_t bytes);
/* Never fails; bytes as asked for. */
void km_chunks_put(km_chunks *c, void *p, size_t bytes);
/* A block of that many bytes will be asked for, besides those announced before and not asked for
 * yet; 0: no more will. */
void km_chunks_expect(km_chunks *c, size_t bytes);
/* Gives all chunks back, with what is left in them. */
void km_chunks_close(km_chunks *c);

#endif
