/* The size-class pool. A free block's record is itself a small struct from the heap, recycled
 * through `spare`, because the block may be device memory that the host cannot write to. */
#include "tensor/mempool.h"
#include "base/alloc.h"
#include "base/array.h"

#define EXACT ((size_t)64 << 10) /* blocks beyond are not as large as their class */
#define UNIT ((size_t)512)       /* but rounded up to this */

struct km_mempool_block {
    void *p;
    size_t size;
    km_mempool_block *next;
};

/* Class c holds blocks of at most 256 * 2^(c/8) * (8 + c%8)/8 bytes, and more than class c - 1. */
static size_t class_bytes(int c) { return ((size_t)256 << (c / 8)) / 8 * (size_t)(8 + c % 8); }

static int class_of(size_t bytes) {
    if (bytes <= 256) return 0;
    int octave =
        63 - __builtin_clzll((unsigned long long)(bytes - 1)) - 8; /* 256 << octave < bytes */
    size_t low = (size_t)256 << octave, eighth = low / 8;
    size_t part = (bytes - low + eighth - 1) / eighth; /* 1..8 */
    return octave * 8 + (int)part;
}

size_t km_mempool_rounded(size_t bytes) {
    return bytes > EXACT ? (bytes + UNIT - 1) / UNIT * UNIT : class_bytes(class_of(bytes));
}

/* ---- The device's memory ---- */

static void *raw_get(void *owner, size_t bytes) {
    km_mempool *m = owner;
    if (m->limit && m->held + bytes > m->limit) return NULL;
    void *p = m->raw_alloc(m->owner, bytes);
    if (p) m->held += bytes;
    return p;
}

static void raw_put(void *owner, void *p, size_t bytes) {
    km_mempool *m = owner;
    m->raw_free(m->owner, p, bytes);
    m->held -= bytes;
}

void km_mempool_in_chunks(km_mempool *m, size_t grain, size_t most) {
    m->chunks = (km_chunks){
        .raw_alloc = raw_get, .raw_free = raw_put, .owner = m, .grain = grain, .most = most};
}

void km_mempool_expect(km_mempool *m, size_t bytes) {
    if (m->chunks.grain) km_chunks_expect(&m->chunks, bytes ? km_mempool_rounded(bytes) : 0);
}

static void *device_get(km_mempool *m, size_t size) {
    return m->chunks.grain ? km_chunks_get(&m->chunks, size) : raw_get(m, size);
}

/* ---- Memory elsewhere ---- */

static km_mempool_spilled *spilled_at(const km_mempool *m, const void *p) {
    for (int i = 0; i < m->n_spilled; i++)
        if (m->spilled[i].p == p) return &m->spilled[i];
    return NULL;
}

static void spill_end(km_mempool *m, km_mempool_spilled *b) {
    m->spilled_bytes -= b->size;
    m->spill_free(m->owner, b->p, b->size);
    *b = m->spilled[--m->n_spilled];
}

/* A cached one that serves without wasting more than a quarter; NULL: there is none. */
static km_mempool_spilled *spilled_fit(const km_mempool *m, size_t size) {
    km_mempool_spilled *best = NULL;
    for (int i = 0; i < m->n_spilled; i++) {
        km_mempool_spilled *b = &m->spilled[i];
        if (!b->out && b->size >= size && b->size - size <= size / 4 &&
            (!best || b->size < best->size))
            best = b;
    }
    return best;
}

static km_mempool_spilled *spill(km_mempool *m, size_t size) {
    if (!km_array_reserve(&m->spilled, &m->cap_spilled, m->n_spilled + 1)) return NULL;
    void *p = m->spill_alloc(m->owner, size);
    if (!p) return NULL;
    m->spilled[m->n_spilled] = (km_mempool_spilled){.p = p, .size = size};
    m->spilled_bytes += size;
    return &m->spilled[m->n_spilled++];
}

void km_mempool_close_spilled(km_mempool *m) {
    while (m->n_spilled) spill_end(m, &m->spilled[m->n_spilled - 1]);
    km_free(m->spilled);
    m->spilled = NULL;
    m->cap_spilled = 0;
}

void km_mempool_drop(km_mempool *m, void *p, size_t cap) {
    km_mempool_spilled *elsewhere = spilled_at(m, p);
    if (elsewhere) {
        spill_end(m, elsewhere);
        return;
    }
    if (m->chunks.grain)
        km_chunks_put(&m->chunks, p, cap);
    else
        raw_put(m, p, cap);
}

/* ---- Blocks ---- */

static void went_out(km_mempool *m, void *p, size_t size) {
    m->live += size;
    if (m->live > m->peak) m->peak = m->live;
    if (m->meter.changed) m->meter.changed(m->meter.user, p, (int64_t)size, m->live);
}

/* Takes a record out of its list, and the block with it. */
static void give_up(km_mempool *m, km_mempool_block **at) {
    km_mempool_block *b = *at;
    *at = b->next;
    km_mempool_drop(m, b->p, b->size);
    km_free(b); /* the spare records are those of blocks that are out */
}

static void *hand_out(km_mempool *m, km_mempool_block **at, size_t *cap) {
    km_mempool_block *b = *at;
    *at = b->next;
    b->next = m->spare;
    m->spare = b;
    *cap = b->size;
    went_out(m, b->p, b->size);
    return b->p;
}

static void *hand_out_spilled(km_mempool *m, km_mempool_spilled *b, size_t *cap) {
    b->out = true;
    *cap = b->size;
    went_out(m, b->p, b->size);
    return b->p;
}

static bool frozen(const km_mempool *m) { return m->watch && m->watch->frozen; }

static void give_up_spilled(km_mempool *m) {
    for (int i = m->n_spilled - 1; i >= 0; i--) {
        if (m->spilled[i].out) continue;
        if (m->before_free) m->before_free(m->owner);
        spill_end(m, &m->spilled[i]);
    }
}

static void give_up_cached(km_mempool *m) {
    bool told = !m->before_free;
    if (frozen(m)) return;
    for (int c = 0; c < KM_MEMPOOL_CLASSES; c++)
        while (m->free[c]) {
            if (!told) m->before_free(m->owner);
            told = true;
            give_up(m, &m->free[c]);
        }
}

void km_mempool_trim(km_mempool *m) {
    give_up_cached(m);
    if (!frozen(m)) give_up_spilled(m);
}

/* The cached block of a class that leaves least over; the latest of several. NULL: all are too
 * small. */
static km_mempool_block **best_fit(km_mempool *m, int c, size_t size) {
    km_mempool_block **best = NULL;
    for (km_mempool_block **at = &m->free[c]; *at; at = &(*at)->next) {
        if ((*at)->size == size) return at;
        if ((*at)->size > size && (!best || (*at)->size < (*best)->size)) best = at;
    }
    return best;
}

static void give_up_smallest(km_mempool *m, int c) {
    km_mempool_block **least = &m->free[c];
    if (!*least || frozen(m)) return;
    if (m->before_free) m->before_free(m->owner);
    for (km_mempool_block **at = least; *at; at = &(*at)->next)
        if ((*at)->size < (*least)->size) least = at;
    give_up(m, least);
}

/* A new block. If there are cached ones of its class, which are too small, it takes the place of
 * one: a class never has more blocks than were out at once, though sizes change with every
 * prompt's length. */
static void *make(km_mempool *m, int c, size_t size, bool gently) {
    if (gently) return device_get(m, size);
    give_up_smallest(m, c);
    void *p = device_get(m, size);
    if (p) return p;
    give_up_cached(m);
    return device_get(m, size);
}

/* A block of the device's own. Gently: nothing that is cached is given up for it. */
static void *get_own(km_mempool *m, size_t bytes, size_t *cap, bool gently) {
    int c = class_of(bytes);
    size_t size = km_mempool_rounded(bytes);
    km_mempool_block **cached = best_fit(m, c, size);
    void *p;
    if (cached) {
        p = hand_out(m, cached, cap);
        m->hits++;
    } else {
        /* The record is made now, so that giving the block back can never fail. */
        km_mempool_block *record = km_calloc(1, sizeof *record);
        if (!record) return NULL;
        p = make(m, c, size, gently);
        if (!p) {
            km_free(record);
            return NULL;
        }
        record->next = m->spare;
        m->spare = record;
        m->misses++;
        *cap = size;
        went_out(m, p, size);
    }
    return p;
}

void *km_mempool_get(km_mempool *m, size_t bytes, size_t *cap) {
    void *p = bytes > (size_t)KM_MEMPOOL_MOST ? NULL : get_own(m, bytes, cap, false);
    if (p && m->watch) m->watch->got(m->watch->user, p, *cap);
    return p;
}

void *km_mempool_get_anywhere(km_mempool *m, size_t bytes, size_t *cap, bool *spilled) {
    *spilled = false;
    if (bytes > (size_t)KM_MEMPOOL_MOST) return NULL;
    size_t size = km_mempool_rounded(bytes);
    void *p = m->n_spilled ? get_own(m, bytes, cap, true) : NULL;
    km_mempool_spilled *b = p ? NULL : spilled_fit(m, size);
    if (b) m->hits++;
    if (!p && !b) p = get_own(m, bytes, cap, false);
    if (!p && !b && m->spill_alloc && (b = spill(m, size))) m->misses++;
    if (b) p = hand_out_spilled(m, b, cap);
    *spilled = b;
    if (p && m->watch) m->watch->got(m->watch->user, p, *cap);
    return p;
}

bool km_mempool_take(km_mempool *m, void *p, size_t cap) {
    km_mempool_spilled *elsewhere = spilled_at(m, p);
    if (elsewhere) {
        if (elsewhere->out) return false;
        hand_out_spilled(m, elsewhere, &cap);
        return true;
    }
    for (km_mempool_block **at = &m->free[class_of(cap)]; *at; at = &(*at)->next)
        if ((*at)->p == p) {
            hand_out(m, at, &cap);
            return true;
        }
    return false;
}

void km_mempool_put(km_mempool *m, void *p, size_t cap) {
    if (m->watch && m->watch->keeps(m->watch->user, p, cap)) return;
    km_mempool_spilled *elsewhere = spilled_at(m, p);
    if (elsewhere) {
        elsewhere->out = false;
    } else {
        km_mempool_block *b = m->spare;
        m->spare = b->next;
        int c = class_of(cap);
        b->p = p;
        b->size = cap;
        b->next = m->free[c];
        m->free[c] = b;
    }
    m->live -= cap;
    if (m->meter.changed) m->meter.changed(m->meter.user, p, -(int64_t)cap, m->live);
}

void km_mempool_free(km_mempool *m) {
    m->watch = NULL;
    km_mempool_trim(m);
    while (m->spare) {
        km_mempool_block *b = m->spare;
        m->spare = b->next;
        km_free(b);
    }
}
