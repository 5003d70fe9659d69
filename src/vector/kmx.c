/* Reading .kmx files: nothing in them is believed before it is checked. */
#include "vector/kmx.h"
#include "base/alloc.h"
#include "base/file.h"
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const char magic[8] = {'K', 'M', 'X', 'I', 'N', 'D', 'E', 'X'};
static const char *const names[KM_KMX_SECTIONS] = {"META",  "CELLS", "ANCHORS", "CODER",
                                                   "CODES", "IDS",   "DEAD",    "VECTORS"};

enum { ROW = 64, TRAILER = 64 };

typedef struct kmx_section {
    char name[9];
    uint64_t offset, bytes, hash, first; /* first: its first block */
} kmx_section;

struct km_kmx {
    km_map map;
    const uint8_t *data;
    size_t size;
    char *shown;
    km_kmx_head head;
    kmx_section parts[KM_KMX_MAX_SECTIONS];
    int n_parts;
    int known[KM_KMX_SECTIONS]; /* index into parts, or -1 */
    const uint8_t *hashes;
    uint64_t n_blocks, table_hash;
    _Atomic uint8_t *checked; /* a block each: 1 when it was found right */
};

const char *km_kmx_name(km_kmx_section s) { return names[s]; }

static uint32_t u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t u64(const uint8_t *p) { return (uint64_t)u32(p) | (uint64_t)u32(p + 4) << 32; }

static km_status bad(const km_kmx *f, km_error *err, const char *why) {
    return km_error_set(err, KM_ERR_FORMAT, "'%s' is a damaged index: %s", f->shown, why);
}

static bool zeros(const uint8_t *p, size_t n) {
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) any |= p[i];
    return any == 0;
}

/* ---- Packed ids ---- */

int km_id_bits(uint64_t most) {
    int bits = 1;
    while (bits < 64 && most >> bits) bits++;
    return bits > 56 ? 64 : bits;
}

size_t km_id_bytes(int64_t n, int bits) {
    return (size_t)(((uint64_t)n * (uint64_t)bits + 7) / 8 + 8);
}

void km_id_put(uint8_t *packed, int64_t i, int bits, uint64_t id) {
    uint64_t at = (uint64_t)i * (uint64_t)bits, word;
    uint8_t *p = packed + at / 8;
    memcpy(&word, p, 8);
    word |= id << at % 8; /* at most 56 + 7 bits, or 64 at a whole byte */
    memcpy(p, &word, 8);
}

uint64_t km_id_get(const uint8_t *packed, int64_t i, int bits) {
    uint64_t at = (uint64_t)i * (uint64_t)bits, word;
    memcpy(&word, packed + at / 8, 8);
    word >>= at % 8;
    return bits == 64 ? word : word & (((uint64_t)1 << bits) - 1);
}

size_t km_kmx_vector_bytes(const km_kmx_head *h) {
    return h->rerank == KM_RERANK_F16    ? 2 * (size_t)h->dim
           : h->rerank == KM_RERANK_INT8 ? 4 + (size_t)h->dim
                                         : 0;
}

/* ---- The frame ---- */

static km_status read_head(km_kmx *f, km_error *err) {
    const uint8_t *p = f->data;
    km_kmx_head *h = &f->head;
    if (f->size < 8 || memcmp(p, magic, 8) != 0)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' is no .kmx index", f->shown);
    if (f->size < 2 * KM_KMX_PAGE + TRAILER) return bad(f, err, "it is cut short");
    if (u32(p + 16) == 0x0d0c0b0au)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' was written on a big-endian machine",
                            f->shown);
    if (u32(p + 12) > KM_KMX_VERSION)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s' is an index of version %" PRIu32 ", which takes a newer Kermes; "
                            "this one reads version %d",
                            f->shown, u32(p + 8), KM_KMX_VERSION);
    if (XXH3_64bits(p, KM_KMX_PAGE - 8) != u64(p + KM_KMX_PAGE - 8))
        return bad(f, err, "the checksum of its header is wrong");
    bool fits = u32(p + 8) >= 1 && u32(p + 12) >= 1 && u32(p + 16) == 0x0a0b0c0du &&
                u32(p + 20) <= KM_METRIC_COSINE && u32(p + 24) <= 2 &&
                u32(p + 28) < KM_DTYPE_COUNT && u64(p + 32) >= 1 && u64(p + 32) <= 65536 &&
                u64(p + 40) <= (uint64_t)INT64_MAX >> 24 && u64(p + 48) <= u64(p + 40) &&
                u64(p + 56) >= 1 && u64(p + 56) <= 1u << 24 && u64(p + 64) <= 1u << 24 &&
                (u64(p + 64) == 0) == (u32(p + 24) == 0) && u32(p + 88) >= 1 &&
                (u32(p + 88) <= 56 || u32(p + 88) == 64) && u32(p + 92) <= 1 && u32(p + 96) <= 2 &&
                u32(p + 100) == 0 && zeros(p + 112, KM_KMX_PAGE - 120);
    if (!fits) return bad(f, err, "a value in its header cannot be");
    uint64_t energy = u64(p + 104);
    *h = (km_kmx_head){.metric = (km_metric)u32(p + 20),
                       .mode = (int)u32(p + 24),
                       .dtype = (km_dtype)u32(p + 28),
                       .dim = (int64_t)u64(p + 32),
                       .rows = (int64_t)u64(p + 40),
                       .dead = (int64_t)u64(p + 48),
                       .cells = (int64_t)u64(p + 56),
                       .code_bytes = (int64_t)u64(p + 64),
                       .next_id = u64(p + 72),
                       .seed = u64(p + 80),
                       .id_bits = (int)u32(p + 88),
                       .anchor_dtype = (km_dtype)u32(p + 92),
                       .rerank = (km_rerank)u32(p + 96)};
    memcpy(&h->energy, &energy, 8);
    return KM_OK;
}

/* The size that a section must have; UINT64_MAX: any. */
static uint64_t wanted_bytes(const km_kmx_head *h, km_kmx_section s) {
    uint64_t rows = (uint64_t)h->rows;
    switch (s) {
    case KM_KMX_CELLS: return 8 * ((uint64_t)h->cells + 1);
    case KM_KMX_ANCHORS:
        return (uint64_t)h->cells * (uint64_t)h->dim * (h->anchor_dtype == KM_F16 ? 2 : 4);
    case KM_KMX_CODES: return rows * (uint64_t)h->code_bytes;
    case KM_KMX_IDS: return km_id_bytes(h->rows, h->id_bits);
    case KM_KMX_DEAD: return h->dead ? (rows + 7) / 8 : 0;
    case KM_KMX_VECTORS: return rows * km_kmx_vector_bytes(h);
    default: return UINT64_MAX;
    }
}

static km_status read_row(km_kmx *f, const uint8_t *p, uint64_t table, uint64_t *end,
                          uint64_t *block, km_error *err) {
    kmx_section *s = &f->parts[f->n_parts];
    memcpy(s->name, p, 8);
    s->offset = u64(p + 8);
    s->bytes = u64(p + 16);
    s->hash = u64(p + 24);
    s->first = u64(p + 32);
    uint64_t blocks = s->bytes / KM_KMX_BLOCK + (s->bytes % KM_KMX_BLOCK != 0);
    if (s->offset % KM_KMX_PAGE || s->offset < *end || s->offset > table ||
        s->bytes > table - s->offset || s->first != *block || blocks > f->n_blocks - *block ||
        !zeros(p + 40, 24))
        return bad(f, err, "its table of sections cannot be");
    if (!zeros(f->data + *end, (size_t)(s->offset - *end)))
        return bad(f, err, "there is something between two sections");
    for (int k = 0; k < KM_KMX_SECTIONS; k++)
        if (strcmp(s->name, names[k]) == 0) {
            if (f->known[k] >= 0) return bad(f, err, "a section is there twice");
            uint64_t wanted = wanted_bytes(&f->head, (km_kmx_section)k);
            if (wanted != UINT64_MAX && wanted != s->bytes)
                return bad(f, err, "a section does not have its size");
            f->known[k] = f->n_parts;
        }
    *end = s->offset + s->bytes;
    *block += blocks;
    f->n_parts++;
    return KM_OK;
}

static km_status read_table(km_kmx *f, km_error *err) {
    const uint8_t *t = f->data + f->size - TRAILER;
    if (memcmp(t + 56, magic, 8) != 0 || XXH3_64bits(t, 48) != u64(t + 48) || u64(t + 40) != 0)
        return bad(f, err, "it is cut short, or its end is damaged");
    uint64_t table = u64(t), rows = u64(t + 8), limit = f->size - TRAILER;
    f->n_blocks = u64(t + 16);
    f->table_hash = u64(t + 24);
    if (u64(t + 32) != f->size || rows > KM_KMX_MAX_SECTIONS || table % KM_KMX_PAGE ||
        table > limit || f->n_blocks > (limit - table) / 8 ||
        rows * ROW + f->n_blocks * 8 != limit - table)
        return bad(f, err, "its end does not fit its length");
    const uint8_t *p = f->data + table;
    if (XXH3_64bits(p, (size_t)(limit - table)) != f->table_hash)
        return bad(f, err, "the checksum of its table of sections is wrong");
    f->hashes = p + rows * ROW;
    uint64_t end = KM_KMX_PAGE, block = 0;
    for (int k = 0; k < KM_KMX_SECTIONS; k++) f->known[k] = -1;
    for (uint64_t i = 0; i < rows; i++) {
        km_status s = read_row(f, p + i * ROW, table, &end, &block, err);
        if (s != KM_OK) return s;
    }
    if (block != f->n_blocks || !zeros(f->data + end, (size_t)(table - end)))
        return bad(f, err, "its table of sections cannot be");
    for (int k = 0; k < KM_KMX_SECTIONS; k++) {
        uint64_t wanted = wanted_bytes(&f->head, (km_kmx_section)k);
        bool needed = k == KM_KMX_CODER  ? f->head.mode != 0
                      : k == KM_KMX_META ? false
                                         : wanted != 0;
        if (needed && f->known[k] < 0) return bad(f, err, "a section is missing");
    }
    return KM_OK;
}

km_status km_kmx_intact(const km_kmx *f, km_error *err) { return km_map_check(&f->map, err); }

static km_kmx *open_bytes(km_kmx *f, km_error *err) {
    km_status s = read_head(f, err);
    if (s == KM_OK) s = read_table(f, err);
    if (km_kmx_intact(f, err) != KM_OK) s = KM_ERR_FILE;
    if (s == KM_OK) {
        f->checked = km_calloc((size_t)f->n_blocks + 1, 1);
        if (f->checked) return f;
        km_error_set(err, KM_ERR_MEMORY, "cannot open '%s': out of memory", f->shown);
    }
    km_kmx_close(f);
    return NULL;
}

static km_kmx *make(const char *shown, km_error *err) {
    km_kmx *f = km_calloc(1, sizeof *f);
    if (f && !(f->shown = km_strdup(shown))) {
        km_free(f);
        f = NULL;
    }
    if (!f) km_error_set(err, KM_ERR_MEMORY, "cannot open '%s': out of memory", shown);
    return f;
}

km_kmx *km_kmx_open(const char *path, km_error *err) {
    km_kmx *f = make(path, err);
    if (!f) return NULL;
    if (km_map_open(&f->map, path, err) != KM_OK) {
        km_kmx_close(f);
        return NULL;
    }
    f->data = f->map.data;
    f->size = f->map.size;
    return open_bytes(f, err);
}

km_kmx *km_kmx_parse(const void *data, size_t bytes, const char *shown, km_error *err) {
    km_kmx *f = make(shown, err);
    if (!f) return NULL;
    f->data = data;
    f->size = bytes;
    return open_bytes(f, err);
}

void km_kmx_close(km_kmx *f) {
    if (!f) return;
    km_map_close(&f->map);
    km_free(f->checked);
    km_free(f->shown);
    km_free(f);
}

/* ---- What is in it ---- */

const km_kmx_head *km_kmx_header(const km_kmx *f) { return &f->head; }
uint64_t km_kmx_file_bytes(const km_kmx *f) { return f->size; }
uint64_t km_kmx_table_hash(const km_kmx *f) { return f->table_hash; }
int km_kmx_count(const km_kmx *f) { return f->n_parts; }

const char *km_kmx_at(const km_kmx *f, int i, uint64_t *offset, uint64_t *bytes) {
    *offset = f->parts[i].offset;
    *bytes = f->parts[i].bytes;
    return f->parts[i].name;
}

const uint8_t *km_kmx_data(const km_kmx *f, km_kmx_section s, size_t *bytes) {
    int i = f->known[s];
    *bytes = i < 0 ? 0 : (size_t)f->parts[i].bytes;
    return *bytes ? f->data + f->parts[i].offset : NULL;
}

static km_status check_blocks(km_kmx *f, const kmx_section *p, uint64_t first, uint64_t last,
                              km_error *err) {
    for (uint64_t b = first; b <= last; b++) {
        _Atomic uint8_t *mark = &f->checked[p->first + b];
        if (atomic_load_explicit(mark, memory_order_relaxed)) continue;
        uint64_t at = b * KM_KMX_BLOCK, n = p->bytes - at;
        if (n > KM_KMX_BLOCK) n = KM_KMX_BLOCK;
        if (XXH3_64bits(f->data + p->offset + at, (size_t)n) !=
            u64(f->hashes + 8 * (p->first + b))) {
            if (km_kmx_intact(f, err) != KM_OK) return KM_ERR_FILE;
            return km_error_set(err, KM_ERR_FORMAT,
                                "'%s' is a damaged index: the checksum of section %s is wrong in "
                                "bytes %" PRIu64 " to %" PRIu64 " of the file",
                                f->shown, p->name, p->offset + at, p->offset + at + n - 1);
        }
        atomic_store_explicit(mark, 1, memory_order_relaxed);
    }
    return KM_OK;
}

km_status km_kmx_check(km_kmx *f, km_kmx_section s, size_t at, size_t n, km_error *err) {
    int i = f->known[s];
    if (n == 0 || i < 0) return KM_OK;
    return check_blocks(f, &f->parts[i], at / KM_KMX_BLOCK, (at + n - 1) / KM_KMX_BLOCK, err);
}

km_status km_kmx_verify(km_kmx *f, int64_t *blocks, km_error *err) {
    km_status s = KM_OK;
    for (int i = 0; s == KM_OK && i < f->n_parts; i++) {
        const kmx_section *p = &f->parts[i];
        if (p->bytes) s = check_blocks(f, p, 0, (p->bytes - 1) / KM_KMX_BLOCK, err);
        if (s == KM_OK && XXH3_64bits(f->data + p->offset, (size_t)p->bytes) != p->hash)
            s = bad(f, err, "the checksum of a whole section is wrong");
    }
    if (blocks) *blocks = (int64_t)f->n_blocks;
    return s;
}
