/* Writing .kmx files in one pass: sections as they come, their checksums on the way, the table at
 * the end. */
#include "base/alloc.h"
#include "base/array.h"
#include "base/file.h"
#include "vector/kmx.h"
#include <string.h>
#include <xxhash.h>

static const char magic[8] = {'K', 'M', 'X', 'I', 'N', 'D', 'E', 'X'};

enum { ROW = 64, TRAILER = 64 };

struct km_kmx_writer {
    km_writer *file;
    uint8_t rows[KM_KMX_MAX_SECTIONS * ROW];
    int n_rows;
    bool open; /* a section is being written */
    XXH3_state_t *section, *block;
    size_t in_block; /* bytes of the block so far */
    uint64_t offset, bytes, first;
    uint64_t *hashes; /* of all blocks */
    uint64_t n_hashes, room;
    km_error error;
};

static void put_u32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}

static void put_u64(uint8_t *p, uint64_t v) {
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)(v >> 8 * i);
}

static void put_head(km_writer *file, const km_kmx_head *h) {
    uint8_t p[KM_KMX_PAGE] = {0};
    uint64_t energy;
    memcpy(&energy, &h->energy, 8);
    memcpy(p, magic, 8);
    put_u32(p + 8, KM_KMX_VERSION);
    put_u32(p + 12, KM_KMX_VERSION);
    put_u32(p + 16, 0x0a0b0c0du);
    put_u32(p + 20, (uint32_t)h->metric);
    put_u32(p + 24, (uint32_t)h->mode);
    put_u32(p + 28, (uint32_t)h->dtype);
    put_u64(p + 32, (uint64_t)h->dim);
    put_u64(p + 40, (uint64_t)h->rows);
    put_u64(p + 48, (uint64_t)h->dead);
    put_u64(p + 56, (uint64_t)h->cells);
    put_u64(p + 64, (uint64_t)h->code_bytes);
    put_u64(p + 72, h->next_id);
    put_u64(p + 80, h->seed);
    put_u32(p + 88, (uint32_t)h->id_bits);
    put_u32(p + 92, (uint32_t)h->anchor_dtype);
    put_u32(p + 96, (uint32_t)h->rerank);
    put_u64(p + 104, energy);
    put_u64(p + KM_KMX_PAGE - 8, XXH3_64bits(p, KM_KMX_PAGE - 8));
    km_writer_put(file, p, sizeof p);
}

km_kmx_writer *km_kmx_create(const char *path, const km_kmx_head *h, km_error *err) {
    km_kmx_writer *w = km_calloc(1, sizeof *w);
    if (w) {
        w->section = XXH3_createState();
        w->block = XXH3_createState();
    }
    if (!w || !w->section || !w->block)
        km_error_set(err, KM_ERR_MEMORY, "cannot write '%s': out of memory", path);
    else if ((w->file = km_writer_open(path, err))) {
        put_head(w->file, h);
        return w;
    }
    km_kmx_abort(w);
    return NULL;
}

static void end_block(km_kmx_writer *w) {
    if (!km_array_reserve(&w->hashes, &w->room, w->n_hashes + 1)) {
        km_error_set(&w->error, KM_ERR_MEMORY, "cannot write the index: out of memory");
        return;
    }
    w->hashes[w->n_hashes++] = XXH3_64bits_digest(w->block);
    XXH3_64bits_reset(w->block);
    w->in_block = 0;
}

static void end_section(km_kmx_writer *w, const char *name) {
    if (w->in_block) end_block(w);
    uint8_t *row = w->rows + ROW * w->n_rows;
    memset(row, 0, ROW);
    memcpy(row, name, strlen(name));
    put_u64(row + 8, w->offset);
    put_u64(row + 16, w->bytes);
    put_u64(row + 24, XXH3_64bits_digest(w->section));
    put_u64(row + 32, w->first);
}

static void align(km_kmx_writer *w) {
    static const uint8_t zeros[KM_KMX_PAGE];
    size_t over = (size_t)(km_writer_offset(w->file) % KM_KMX_PAGE);
    if (over) km_writer_put(w->file, zeros, KM_KMX_PAGE - over);
}

/* The name is kept in the row from the begin on. */
static void close_section(km_kmx_writer *w) {
    if (!w->open) return;
    char name[9] = {0};
    memcpy(name, w->rows + ROW * w->n_rows, 8);
    end_section(w, name);
    w->n_rows++;
    w->open = false;
}

void km_kmx_begin(km_kmx_writer *w, km_kmx_section s) {
    close_section(w);
    align(w);
    w->open = true;
    w->offset = km_writer_offset(w->file);
    w->bytes = w->in_block = 0;
    w->first = w->n_hashes;
    memset(w->rows + ROW * w->n_rows, 0, ROW);
    memcpy(w->rows + ROW * w->n_rows, km_kmx_name(s), strlen(km_kmx_name(s)));
    XXH3_64bits_reset(w->section);
    XXH3_64bits_reset(w->block);
}

void km_kmx_put(km_kmx_writer *w, const void *data, size_t n) {
    const uint8_t *p = data;
    if (n == 0) return;
    km_writer_put(w->file, data, n);
    XXH3_64bits_update(w->section, data, n);
    w->bytes += n;
    while (n > 0) {
        size_t take = KM_KMX_BLOCK - w->in_block;
        if (take > n) take = n;
        XXH3_64bits_update(w->block, p, take);
        w->in_block += take;
        p += take;
        n -= take;
        if (w->in_block == KM_KMX_BLOCK) end_block(w);
    }
}

km_status km_kmx_commit(km_kmx_writer *w, uint64_t *bytes, uint64_t *table_hash, km_error *err) {
    close_section(w);
    align(w);
    uint64_t table = km_writer_offset(w->file);
    size_t n_rows = (size_t)w->n_rows * ROW;
    for (uint64_t i = 0; i < w->n_hashes; i++) {
        uint64_t h = w->hashes[i];
        put_u64((uint8_t *)&w->hashes[i], h);
    }
    XXH3_64bits_reset(w->section);
    XXH3_64bits_update(w->section, w->rows, n_rows);
    XXH3_64bits_update(w->section, w->hashes, (size_t)w->n_hashes * 8);
    uint64_t hash = XXH3_64bits_digest(w->section);
    km_writer_put(w->file, w->rows, n_rows);
    km_writer_put(w->file, w->hashes, (size_t)w->n_hashes * 8);
    uint8_t t[TRAILER] = {0};
    put_u64(t, table);
    put_u64(t + 8, (uint64_t)w->n_rows);
    put_u64(t + 16, w->n_hashes);
    put_u64(t + 24, hash);
    put_u64(t + 32, km_writer_offset(w->file) + TRAILER);
    put_u64(t + 48, XXH3_64bits(t, 48));
    memcpy(t + 56, magic, 8);
    km_writer_put(w->file, t, sizeof t);
    if (bytes) *bytes = km_writer_offset(w->file);
    if (table_hash) *table_hash = hash;
    km_status s = w->error.code;
    if (s != KM_OK)
        km_error_set(err, s, "%s", w->error.text);
    else {
        s = km_writer_commit(w->file, err);
        w->file = NULL;
    }
    km_kmx_abort(w);
    return s;
}

void km_kmx_passing(km_kmx_writer *w) { km_writer_passing(w->file); }

void km_kmx_abort(km_kmx_writer *w) {
    if (!w) return;
    km_writer_abort(w->file);
    XXH3_freeState(w->section);
    XXH3_freeState(w->block);
    km_free(w->hashes);
    km_free(w);
}
