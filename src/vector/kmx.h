/* The .kmx file: header, sections, their checksums (docs/formats/kmx.md). Opening maps the file and
 * checks its frame: header, table, trailer, the zeros between sections, and every size. What is in a
 * section is checked when it is asked for, block by block, each block once. */
#ifndef KM_VECTOR_KMX_H
#define KM_VECTOR_KMX_H
#include "base/error.h"
#include <stddef.h>
#include <stdint.h>

enum { KM_KMX_VERSION = 1, KM_KMX_PAGE = 4096, KM_KMX_BLOCK = 65536, KM_KMX_MAX_SECTIONS = 16 };

typedef enum km_kmx_section {
    KM_KMX_META,
    KM_KMX_CELLS,
    KM_KMX_ANCHORS,
    KM_KMX_CODER,
    KM_KMX_CODES,
    KM_KMX_IDS,
    KM_KMX_DEAD,
    KM_KMX_VECTORS,
    KM_KMX_SECTIONS
} km_kmx_section;

const char *km_kmx_name(km_kmx_section s); /* "CODES" */

typedef enum km_rerank { KM_RERANK_NONE, KM_RERANK_F16, KM_RERANK_INT8 } km_rerank;

typedef struct km_kmx_head {
    km_metric metric;
    int mode;       /* 0 anchors only, 1 fast, 2 dense */
    km_dtype dtype; /* of the vectors it was made from */
    int64_t dim, rows, dead, cells;
    int64_t code_bytes; /* 0 in mode 0 */
    uint64_t next_id, seed;
    int id_bits; /* 1 to 56, or 64 */
    km_dtype anchor_dtype;
    km_rerank rerank;
    double energy;
} km_kmx_head;

size_t km_kmx_vector_bytes(const km_kmx_head *h); /* of one row of VECTORS; 0: none */

/* ---- Reading ---- */

typedef struct km_kmx km_kmx;

km_kmx *km_kmx_open(const char *path, km_error *err);
/* A file in memory, at an address that is a multiple of 8; it must stay. */
km_kmx *km_kmx_parse(const void *data, size_t bytes, const char *shown, km_error *err);
void km_kmx_close(km_kmx *f); /* NULL is fine */

const km_kmx_head *km_kmx_header(const km_kmx *f);
uint64_t km_kmx_file_bytes(const km_kmx *f);
uint64_t km_kmx_table_hash(const km_kmx *f);
int km_kmx_count(const km_kmx *f); /* sections, unknown ones included */
/* The i-th section's name, size and place; for `info`. */
const char *km_kmx_at(const km_kmx *f, int i, uint64_t *offset, uint64_t *bytes);

/* KM_OK, or the file became shorter while it was used (km_map_check): to be asked after reading. */
km_status km_kmx_intact(const km_kmx *f, km_error *err);
/* A section's bytes, not yet checked; NULL with *bytes 0 when it is absent or empty. */
const uint8_t *km_kmx_data(const km_kmx *f, km_kmx_section s, size_t *bytes);
/* Checks the blocks that hold bytes [at, at + n) of a section, if nobody has before. Thread safe. */
km_status km_kmx_check(km_kmx *f, km_kmx_section s, size_t at, size_t n, km_error *err);
/* Checks every block of every section, and the sections' own checksums. *blocks: how many. */
km_status km_kmx_verify(km_kmx *f, int64_t *blocks, km_error *err);

/* ---- Writing: sections in any order, each in as many pieces as one likes ---- */

typedef struct km_kmx_writer km_kmx_writer;

km_kmx_writer *km_kmx_create(const char *path, const km_kmx_head *h, km_error *err);
void km_kmx_begin(km_kmx_writer *w, km_kmx_section s); /* ends the one before */
void km_kmx_put(km_kmx_writer *w, const void *data, size_t n);
/* Puts all in place, or nothing: `path` changes only when the file is whole and on disk. Frees w
 * either way. *bytes and *table_hash may be NULL. */
km_status km_kmx_commit(km_kmx_writer *w, uint64_t *bytes, uint64_t *table_hash, km_error *err);
void km_kmx_abort(km_kmx_writer *w);   /* NULL is fine */
void km_kmx_passing(km_kmx_writer *w); /* as km_writer_passing */

/* ---- Packed ids ---- */

int km_id_bits(uint64_t most);           /* for ids up to `most` */
size_t km_id_bytes(int64_t n, int bits); /* of n ids, the zeros behind them included */
void km_id_put(uint8_t *packed, int64_t i, int bits, uint64_t id); /* into zeros */
uint64_t km_id_get(const uint8_t *packed, int64_t i, int bits);

#endif
