/* A memory pool over a device's raw allocator: blocks in size classes, eight to each doubling,
 * reused most recent first. Small blocks are as large as their class, so that at most 1/8 is
 * wasted; large ones, such as weights, are as large as was asked for, and serve smaller requests of
 * their class too. After the first steps of a loop every request is a hit. Not thread safe: a pool
 * belongs to one context, and on a GPU to one stream, which is what makes immediate reuse right
 * (work is ordered). */
#ifndef KM_TENSOR_MEMPOOL_H
#define KM_TENSOR_MEMPOOL_H
#include "base/error.h"
#include "tensor/chunks.h"
#include <stdint.h>

#define KM_MEMPOOL_CLASSES 320
/* No block is larger: 64 TiB, and where addresses have 32 bits half of what they reach. */
#if PTRDIFF_MAX > INT32_MAX
#define KM_MEMPOOL_MOST ((int64_t)1 << 46)
#else
#define KM_MEMPOOL_MOST ((int64_t)PTRDIFF_MAX)
#endif

typedef struct km_mempool_block km_mempool_block;

/* Sees blocks go out and come back. A captured graph watches the pool: the blocks it used are
 * written by every replay, so they must not serve anybody else. Nothing is trimmed while
 * `frozen`. */
typedef struct km_mempool_watch {
    void (*got)(void *user, void *p, size_t cap);
    bool (*keeps)(void *user, void *p, size_t cap); /* true: the block stays out of the cache */
    void *user;
    bool frozen;
} km_mempool_watch;

/* Told of every change of the live bytes: `bytes` more, or fewer when negative, `live` then. */
typedef struct km_mempool_meter {
    void (*changed)(void *user, void *p, int64_t bytes, size_t live); /* NULL for none */
    void *user;
} km_mempool_meter;

/* A block that lies elsewhere, since the device had no room (km_mempool_get_anywhere). */
typedef struct km_mempool_spilled {
    void *p;
    size_t size;
    bool out; /* not in the cache */
} km_mempool_spilled;

typedef struct km_mempool {
    void *(*raw_alloc)(void *owner, size_t bytes); /* NULL when out of memory */
    void (*raw_free)(void *owner, void *p, size_t bytes);
    /* Other memory that the device's kernels reach, slower than its own; NULL: there is none. */
    void *(*spill_alloc)(void *owner, size_t bytes);
    void (*spill_free)(void *owner, void *p, size_t bytes);
    void (*before_free)(void *owner); /* before cached blocks are given up; NULL for none */
    void *owner;
    km_chunks chunks; /* between the pool and the device, if they are in use */
    size_t limit;     /* ceiling of held bytes; 0 for none */
    km_mempool_block *free[KM_MEMPOOL_CLASSES];
    km_mempool_block *spare;     /* records without a block */
    size_t live, peak;           /* bytes of blocks that are out */
    size_t held;                 /* bytes that the device was asked for */
    km_mempool_spilled *spilled; /* all that lie elsewhere, cached ones too */
    int n_spilled, cap_spilled;
    size_t spilled_bytes;
    uint64_t hits, misses;
    const km_mempool_watch *watch; /* NULL for none */
    km_mempool_meter meter;
} km_mempool;

/* Blocks are carved out of chunks of at most `most` bytes from now on; `grain` is what the device
 * rounds up to. Before the first block, and the pool does not move any more. */
void km_mempool_in_chunks(km_mempool *m, size_t grain, size_t most);
/* A new block of that many bytes will be asked for soon; 0: no more of those announced will. */
void km_mempool_expect(km_mempool *m, size_t bytes);
/* What a block of that many bytes takes of the device. */
size_t km_mempool_rounded(size_t bytes);
/* A block of at least `bytes` (0 counts as 1), 64-byte aligned; NULL when out of memory, after
 * cached blocks were given back and the request tried once more. *cap receives the usable size. */
void *km_mempool_get(km_mempool *m, size_t bytes, size_t *cap);
/* The same, and what finds no room on the device is taken elsewhere. *spilled receives whether it was. Blocks
 * that came from there are tried before cached ones of the device are given up, so that a loop which is
 * larger than the device asks neither of them for anything once it is warm. */
void *km_mempool_get_anywhere(km_mempool *m, size_t bytes, size_t *cap, bool *spilled);
void km_mempool_put(km_mempool *m, void *p, size_t cap); /* cap as received */
/* Takes one certain block out of the cache, as if it had been handed out; false if it is not there. */
bool km_mempool_take(km_mempool *m, void *p, size_t cap);
void km_mempool_trim(km_mempool *m); /* gives cached blocks back */
void km_mempool_free(km_mempool *m); /* trims and frees the records */
/* After km_mempool_free: a block that was still out, straight back to the device. Where there are
 * chunks, km_chunks_close is the end of all. */
void km_mempool_drop(km_mempool *m, void *p, size_t cap);
/* The end of blocks that lie elsewhere, those that are out included. */
void km_mempool_close_spilled(km_mempool *m);

#endif
