/* The size-class pool. A free block's record is itself a small struct from the heap, recycled
 * through `spare`, because the block may be device memory that the host cannot write to. */
#include "tensor/mempool.h"
#include "base/alloc.h"

struct km_mempool_block {
    void *p;
    km_mempool_block *next;
};

/* Class c holds blocks of 256 * 2^(c/8) * (8 + c%8)/8 bytes. */
static size_t class_bytes(int c) { return ((size_t)256 << (c / 8)) / 8 * (size_t)(8 + c % 8); }

static int class_of(size_t bytes) {
    if (bytes <= 256) return 0;
    int octave = 63 - __builtin_clzll((unsigned long long)(bytes - 1)) - 8; /* 256 << octave < bytes */
    size_t low = (size_t)256 << octave, eighth = low / 8;
    size_t part = (bytes - low + eighth - 1) / eighth; /* 1..8 */
    return octave * 8 + (int)part;
}

size_t km_mempool_rounded(size_t bytes) { return class_bytes(class_of(bytes)); }

static void went_out(km_mempool *m, void *p, size_t size) {
    m->live += size;
    if (m->live > m->peak) m->peak = m->live;
    if (m->meter.changed) m->meter.changed(m->meter.user, p, (int64_t)size, m->live);
}

static void give_back(km_mempool *m, int c) {
    while (m->free[c]) {
        km_mempool_block *b = m->free[c];
        m->free[c] = b->next;
        m->raw_free(m->owner, b->p, class_bytes(c));
        m->held -= class_bytes(c);
        km_free(b); /* the spare records are those of blocks that are out */
    }
}

void km_mempool_trim(km_mempool *m) {
    if (m->watch && m->watch->frozen) return;
    for (int c = 0; c < KM_MEMPOOL_CLASSES; c++) give_back(m, c);
}

void *km_mempool_get(km_mempool *m, size_t bytes, size_t *cap) {
    if (bytes > (size_t)1 << 46) return NULL;
    int c = class_of(bytes);
    size_t size = class_bytes(c);
    void *p = NULL;
    km_mempool_block *b = m->free[c];
    if (b) {
        m->free[c] = b->next;
        p = b->p;
        b->next = m->spare;
        m->spare = b;
        m->hits++;
    } else {
        /* The record is made now, so that giving the block back can never fail. */
        km_mempool_block *record = km_calloc(1, sizeof *record);
        if (!record) return NULL;
        bool fits = !m->limit || m->held + size <= m->limit;
        if (fits) p = m->raw_alloc(m->owner, size);
        if (!p) {
            km_mempool_trim(m);
            fits = !m->limit || m->held + size <= m->limit;
            if (fits) p = m->raw_alloc(m->owner, size);
        }
        if (!p) {
            km_free(record);
            return NULL;
        }
        record->next = m->spare;
        m->spare = record;
        m->held += size;
        m->misses++;
    }
    went_out(m, p, size);
    *cap = size;
    if (m->watch) m->watch->got(m->watch->user, p, size);
    return p;
}

bool km_mempool_take(km_mempool *m, void *p, size_t cap) {
    for (km_mempool_block **at = &m->free[class_of(cap)]; *at; at = &(*at)->next) {
        km_mempool_block *b = *at;
        if (b->p != p) continue;
        *at = b->next;
        b->next = m->spare;
        m->spare = b;
        went_out(m, p, cap);
        return true;
    }
    return false;
}

void km_mempool_put(km_mempool *m, void *p, size_t cap) {
    if (m->watch && m->watch->keeps(m->watch->user, p, cap)) return;
    km_mempool_block *b = m->spare;
    m->spare = b->next;
    int c = class_of(cap);
    b->p = p;
    b->next = m->free[c];
    m->free[c] = b;
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
