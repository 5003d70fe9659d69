/* Chunks and their free ranges. What is in use needs no record, since whoever gives a block back
 * says how large it is. Giving back must not fail, so there is room for its range beforehand: a
 * chunk of k blocks has at most k + 1 free ranges. */
#include "tensor/chunks.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/util.h"
#include <stdint.h>
#include <string.h>

#define GROWTH 16 /* a new chunk is about this part of what is held */
#define AHEAD 6   /* what is expected lies in chunks of at most so many times c->most */

typedef struct byte_range {
    size_t begin, bytes;
} byte_range;

struct km_chunk {
    char *base;
    size_t bytes;
    byte_range *range; /* free ones, by place; no two touch */
    int n, cap;
    int blocks; /* in use */
};

static size_t rounded(size_t bytes) {
    return (size_t)km_round_up(bytes ? bytes : 1, KM_CHUNK_ALIGN);
}

/* ---- Chunks ---- */

/* The first chunk above an address. */
static int above(const km_chunks *c, const void *p) {
    int low = 0, high = c->n;
    while (low < high) {
        int middle = (low + high) / 2;
        if ((uintptr_t)c->at[middle].base > (uintptr_t)p)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool reserve_chunk(km_chunks *c) { return km_array_reserve(&c->at, &c->cap, c->n + 1); }

/* For one block more than there are now. */
static bool reserve_ranges(km_chunk *k) {
    return km_array_reserve(&k->range, &k->cap, k->blocks + 2);
}

/* Large blocks have chunks of their own: small ones would keep them from going back. */
static bool is_large(const km_chunks *c, size_t bytes) { return bytes >= c->most / 2; }

static size_t all_free(const km_chunks *c) {
    size_t sum = 0;
    for (int i = 0; i < c->n; i++)
        for (int j = 0; j < c->at[i].n; j++) sum += c->at[i].range[j].bytes;
    return sum;
}

/* How large the next chunk is: as large as what is expected, less what there is room for, so that
 * nothing is left over in the end. Where nobody said what comes, it is a part of what is held.
 * Blocks come in many copies, one for each layer of a model, so one that is a large part of a chunk
 * gets a chunk for several of its size. */
static size_t next_chunk(const km_chunks *c, size_t bytes) {
    size_t size = c->held / GROWTH;
    if (c->expected) {
        size_t room = all_free(c);
        size = c->expected > room ? c->expected - room : 0;
        if (size > AHEAD * c->most) size = AHEAD * c->most;
        return (size_t)km_round_up(size < bytes ? bytes : size, c->grain);
    }
    if (size > c->most) size = c->most;
    if (size < bytes) size = bytes;
    if (bytes > size / 8) size = (size + bytes / 2) / bytes * bytes;
    return (size_t)km_round_up(size, c->grain);
}

/* A new chunk for a block of that size, all of it free but the rounded end of a large one; NULL when
 * out of memory. */
static km_chunk *add_chunk(km_chunks *c, size_t bytes) {
    km_chunk k = {0};
    bool large = is_large(c, bytes);
    if (!reserve_chunk(c) || !reserve_ranges(&k)) return NULL;
    k.bytes = large ? (size_t)km_round_up(bytes, c->grain) : next_chunk(c, bytes);
    k.base = c->raw_alloc(c->owner, k.bytes);
    while (!k.base && k.bytes > bytes) {
        size_t half = (size_t)km_round_up(k.bytes / 2, c->grain);
        k.bytes = half > bytes && half < k.bytes ? half : bytes;
        k.base = c->raw_alloc(c->owner, k.bytes);
    }
    if (!k.base) {
        km_free(k.range);
        return NULL;
    }
    k.range[k.n++] = (byte_range){0, large ? bytes : k.bytes};
    c->held += k.bytes;
    int i = above(c, k.base);
    memmove(c->at + i + 1, c->at + i, (size_t)(c->n - i) * sizeof *c->at);
    c->at[i] = k;
    c->n++;
    return &c->at[i];
}

static void drop_chunk(km_chunks *c, int i) {
    km_chunk k = c->at[i];
    c->n--;
    memmove(c->at + i, c->at + i + 1, (size_t)(c->n - i) * sizeof *c->at);
    c->held -= k.bytes;
    c->raw_free(c->owner, k.base, k.bytes);
    km_free(k.range);
}

void km_chunks_close(km_chunks *c) {
    while (c->n > 0) drop_chunk(c, c->n - 1);
    km_free(c->at);
    c->at = NULL;
    c->cap = 0;
}

/* ---- Blocks ---- */

/* Cuts a block off the front of a range. */
static void *cut(km_chunk *k, int i, size_t bytes) {
    byte_range *r = &k->range[i];
    char *p = k->base + r->begin;
    r->begin += bytes;
    r->bytes -= bytes;
    k->blocks++;
    if (r->bytes > 0) return p;
    k->n--;
    memmove(r, r + 1, (size_t)(k->n - i) * sizeof *r);
    return p;
}

/* The range of least size that has room; its place in *at. */
static km_chunk *best_fit(const km_chunks *c, size_t bytes, int *at) {
    km_chunk *best = NULL;
    for (int i = 0; i < c->n; i++) {
        km_chunk *k = &c->at[i];
        for (int j = 0; j < k->n; j++) {
            if (k->range[j].bytes < bytes || (best && best->range[*at].bytes <= k->range[j].bytes))
                continue;
            best = k;
            *at = j;
        }
    }
    return best;
}

void *km_chunks_get(km_chunks *c, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = rounded(bytes);
    int at = 0;
    bool large = is_large(c, bytes);
    km_chunk *k = large ? NULL : best_fit(c, bytes, &at);
    if (k && !reserve_ranges(k)) return NULL;
    if (!k) {
        at = 0;
        k = add_chunk(c, bytes);
    }
    if (!k && large) { /* better among others than nowhere */
        k = best_fit(c, bytes, &at);
        if (k && !reserve_ranges(k)) return NULL;
    }
    if (!k) return NULL;
    if (!large) c->expected -= bytes < c->expected ? bytes : c->expected;
    return cut(k, at, bytes);
}

void km_chunks_expect(km_chunks *c, size_t bytes) {
    if (bytes == 0)
        c->expected = 0;
    else if (bytes < c->most && !is_large(c, rounded(bytes)))
        c->expected += rounded(bytes);
}

void km_chunks_put(km_chunks *c, void *p, size_t bytes) {
    int i = above(c, p) - 1;
    km_chunk *k = &c->at[i];
    bytes = rounded(bytes);
    if (--k->blocks == 0) {
        drop_chunk(c, i);
        return;
    }
    size_t begin = (size_t)((char *)p - k->base);
    int j = 0; /* the range behind it */
    while (j < k->n && k->range[j].begin < begin) j++;
    bool before = j > 0 && k->range[j - 1].begin + k->range[j - 1].bytes == begin;
    bool behind = j < k->n && begin + bytes == k->range[j].begin;
    if (before) k->range[j - 1].bytes += bytes;
    if (behind && before) {
        k->range[j - 1].bytes += k->range[j].bytes;
        k->n--;
        memmove(k->range + j, k->range + j + 1, (size_t)(k->n - j) * sizeof *k->range);
    } else if (behind) {
        k->range[j].begin = begin;
        k->range[j].bytes += bytes;
    } else if (!before) {
        memmove(k->range + j + 1, k->range + j, (size_t)(k->n - j) * sizeof *k->range);
        k->range[j] = (byte_range){begin, bytes};
        k->n++;
    }
}
