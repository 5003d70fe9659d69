/* An IVF index in memory, kept like an LSM tree: a frame that never changes (metric, anchors, coder) and segments of rows, each
 * sorted by cell (IVF list). A file opened is one segment, mapped; every batch added is another, and small
 * ones are joined. Saving writes all of them as one.
 *
 * Nobody waits for anybody's work. The list of segments is a snapshot, immutable and counted: whoever
 * reads takes the current one and keeps it as long as it likes. A change is worked out beside it and
 * swapped in. Only the bits of deleted rows change in place, atomically. */
#ifndef KM_VECTOR_INDEX_H
#define KM_VECTOR_INDEX_H
#include "base/handle.h"
#include "base/threads.h"
#include "vector/coder.h"
#include "vector/kmx.h"
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

typedef struct km_segment {
    _Atomic int refs; /* snapshots that list it */
    int64_t rows;
    const uint64_t *start;  /* (cells + 1): the first row of each cell */
    const uint8_t *codes;   /* rows x code_bytes, packed cell by cell; NULL in anchors-only */
    const uint8_t *ids;     /* rows x id_bits */
    const uint8_t *vectors; /* rows x vector_bytes, or NULL */
    _Atomic uint8_t *dead;  /* a bit for each deleted row */
    _Atomic int64_t dead_rows;
    uint64_t least, most; /* of the ids, where `ranged`: lookups pass other segments over */
    bool ranged;
    bool joining; /* being replaced; under the lock for changes */
    int id_bits;
    km_kmx *file;   /* what codes, ids, vectors point into; NULL: `owned`, or those of `of` */
    void *owned[4]; /* start, codes, ids, vectors; of a file only start */
    struct km_segment *of; /* of a copy with its own bits: the segment whose rows it shows */
} km_segment;

typedef struct km_snapshot { /* the rows of an index at one moment */
    _Atomic int refs;
    uint64_t next_id;
    double file_bytes; /* of the files opened, while nothing has changed; 0 otherwise */
    int n;
    km_segment *at[];
} km_snapshot;

struct km_index {
    km_handle handle;
    atomic_int users; /* its owner, and calls whose callbacks may close it */
    km_metric metric;
    km_index_mode mode;
    km_rerank rerank;
    km_dtype dtype;
    int64_t dim, cells;
    size_t code_bytes, vector_bytes;
    uint64_t seed;
    double energy;
    bool half;       /* anchors are exact in f16, and kept so in files */
    float *anchors;  /* (cells, dim) */
    km_coder *coder; /* NULL in anchors-only */
    int64_t axes;
    float *turned; /* (cells, axes): anchors as scans want them */
    /* Of products and cosine: the length R that rows have, or 0 where lengths differ; for L2, 0. Among
     * rows of one length products rank as squared distances do, <q, x> = (|q|^2 + R^2 - |q - x|^2) / 2,
     * and these are told better: what a code loses along the anchor counts for nothing. */
    float length;
    _Atomic uint8_t
        *mixed; /* (cells) 1: rows of other lengths are or were there, so products it is */
    json_t *meta;
    km_snapshot *rows; /* the current one: read and replaced under `swap`, held for nothing else */
    pthread_mutex_t swap;
    pthread_mutex_t change; /* held while a change that is ready is put in */
    pthread_t joiner;       /* joins large segments while there are any; under `change` */
    enum { KM_NO_JOINER, KM_JOINER_WORKS, KM_JOINER_ENDS } joiner_state;
    km_threads *pool; /* for searches on all cores; made by the first of them */
    pthread_mutex_t pool_lock;
};

/* Sets mode and code sizes and turned anchors; takes `anchors` (cells, dim) and coder over,
 * also when it fails. `half` rounds the anchors to f16 if that is harmless. */
km_index *km_index_frame(km_threads *t, km_metric metric, km_rerank rerank, int64_t dim,
                         float *anchors, int64_t cells, km_coder *coder, km_error *err);
bool km_anchors_to_half(float *anchors, int64_t n); /* rounds them, if f16 serves; else false */

/* Holds an open index through a public call, which otherwise fails. */
bool km_index_usable(km_holding *held, const char *call, const km_index *x);
void km_index_drop(km_index *x);

/* Opens an index or a manifest. */
km_index *km_index_load(const char *path, km_error *err);
km_index *km_index_from_file(km_kmx *file, km_error *err); /* the file is taken over either way */
/* Adds the rows of a file as a segment; the file is the index's from then on, also on failure. */
km_status km_index_attach(km_index *x, km_kmx *file, km_error *err);

/* Writes it all as one file. *bytes, *hash may be NULL. */
km_status km_index_store(km_index *x, const char *path, bool compact, uint64_t *bytes,
                         uint64_t *hash, km_error *err);
/* META, and the sections that do not depend on rows. */
km_status km_index_put_frame(const km_index *x, km_kmx_writer *w, km_error *err);
km_kmx_head km_index_head(const km_index *x, int64_t rows, int64_t dead, uint64_t next_id,
                          int id_bits);
double km_index_size(const km_index *x); /* of the file that a save would write */
/* Of a file with that header and so many bytes of META and CODER. */
double km_file_size(const km_kmx_head *h, double meta, double coder);

/* ---- Rows ---- */

typedef struct km_new_rows { /* rows to become a segment, in any order */
    int64_t n;
    const int32_t *cell;    /* (n) */
    const uint8_t *codes;   /* (n, code_bytes), not packed */
    const uint8_t *vectors; /* (n, vector_bytes) */
} km_new_rows;

/* The rows sorted by cell, without ids yet; (n) where each row went, which the caller frees. */
km_segment *km_segment_new(const km_index *x, const km_new_rows *r, int64_t **order, km_error *err);
/* Gives the rows their ids. */
km_status km_segment_name(km_segment *s, const uint64_t *ids, const int64_t *order, km_error *err);
/* The same rows with bits of their own, which later deletions do not change. */
km_segment *km_segment_frozen(km_segment *s);
void km_segment_hold(km_segment *s); /* one reference more */
void km_segment_drop(km_segment *s); /* one reference less; NULL is fine */
bool km_segment_is_dead(const km_segment *s, int64_t row);
bool km_segment_kill(km_segment *s, int64_t row); /* false: it was dead already */
/* Checks what a file says of rows [first, first + n), before it is used. */
km_status km_segment_check(const km_index *x, const km_segment *s, int64_t first, int64_t n,
                           bool vectors, km_error *err);
/* The rows' codes, unpacked: from a whole cell of a segment, since packing is by cell. */
km_status km_segment_codes(const km_index *x, const km_segment *s, int64_t cell, uint8_t *codes,
                           km_error *err);

/* ---- Snapshots ---- */

km_snapshot *km_index_rows(const km_index *x); /* the current one; never NULL */
void km_snapshot_drop(km_snapshot *v);         /* NULL is fine */
/* The same rows, where deletions that come later do not show; NULL without memory. */
km_snapshot *km_index_frozen(km_index *x, km_error *err);
/* After reading rows, with what came of it: that, or that a file of the index became shorter meanwhile,
 * so that the result is not to be used. */
km_status km_snapshot_intact(const km_snapshot *v, km_status status, km_error *err);
int64_t km_snapshot_count(const km_snapshot *v, int64_t *dead); /* rows, the deleted among them */
/* Room for n segments, to be filled and put in by km_index_swap. */
km_snapshot *km_snapshot_new(int n, km_error *err);
/* Puts a snapshot in, with its segments' references; `change` is held, or nobody else knows x. */
void km_index_swap(km_index *x, km_snapshot *next);
/* Puts a segment behind the others; takes it over, also when it fails. `change` is held, or nobody
 * else knows x. */
km_status km_index_list(km_index *x, km_segment *s, uint64_t next_id, double file_bytes,
                        km_error *err);
/* Joins small segments, those that take a while in a thread of their own. */
void km_index_tidy(km_index *x);
void km_index_end_joins(km_index *x); /* waits for that thread */

/* Live rows of a cell, over all segments, as places; `places` has room for km_cell_rows. */
typedef struct km_row_place {
    int32_t segment; /* of the snapshot */
    int64_t row;
} km_row_place;
int64_t km_cell_rows(const km_snapshot *v, int64_t cell);
int64_t km_cell_live(const km_snapshot *v, int64_t cell, bool with_dead, km_row_place *places);

/* ---- What one does with an index; the public calls are these with their arguments checked ---- */

/* Cells and codes of x (n, dim), finite; of cosine, x is scaled to length 1 in place. */
typedef struct km_encoded {
    int32_t *cell;
    uint8_t *codes, *vectors;
    double energy, lost; /* sums of squared distances: to anchors, and to what codes give back */
} km_encoded;
typedef struct km_index_encoder km_index_encoder; /* anchors on the context's device, and buffers */
km_index_encoder *km_index_encoder_new(km_ctx *ctx, const km_index *x, int64_t block,
                                       km_error *err);
void km_index_encoder_free(km_index_encoder *e);
/* At most `block` rows. `lost` is worked out only with measure. */
km_status km_index_encoder_run(km_index_encoder *e, float *rows, int64_t n, bool measure,
                               km_encoded *out, km_error *err);

km_status km_index_append(km_ctx *ctx, km_index *x, const float *rows, int64_t n,
                          const uint64_t *ids, km_error *err);
km_status km_index_remove(km_index *x, const uint64_t *ids, int64_t n, bool missing_ok,
                          int64_t *removed, km_error *err);
/* All of `other`, its ids moved by `shift`. */
km_status km_index_absorb(km_ctx *ctx, km_index *x, km_index *other, uint64_t shift, km_error *err);
/* An id above every other; the `span` ids from it on are given to nobody else. */
km_status km_index_behind(km_index *x, uint64_t span, uint64_t *id, km_error *err);
bool km_index_same_frame(const km_index *a, const km_index *b); /* anchors and coder are the same */
/* The order of ids, and of structures that begin with one, for qsort and bsearch. */
int km_by_id(const void *a, const void *b);
/* All live ids, ascending; the caller frees them. */
uint64_t *km_index_live_ids(const km_index *x, int64_t *n, km_error *err);
/* Vectors by id: places of many ids at once, then decoding block by block. */
km_row_place *km_index_places(const km_index *x, const km_snapshot *v, const uint64_t *ids,
                              int64_t n, km_error *err);
km_status km_index_restore(const km_index *x, const km_snapshot *v, km_threads *t,
                           const km_row_place *places, int64_t n, float *out, km_error *err);
/* The cell, which is its anchor, of each place. */
void km_index_cells(const km_index *x, const km_snapshot *v, const km_row_place *places, int64_t n,
                    int32_t *cells);
km_status km_index_find(km_index *x, const float *queries, int64_t n, int64_t k,
                        const km_search_options *o, km_threads *t, uint64_t *ids, float *dist,
                        km_error *err);
void km_unit(float *x, int64_t n, int64_t dim); /* rows scaled to length 1; zeros stay */
float km_distance(km_metric metric, const float *a, const float *b,
                  int64_t dim); /* cosine: of unit rows */
int64_t km_index_live(const km_index *x);
/* Notes which cells get rows of another length than x->length: (n) cells of rows (n, dim). */
void km_index_note_lengths(const km_index *x, const float *rows, const int32_t *cell, int64_t n);
/* The same for rows that come with their codes from another index of the same anchors. */
void km_index_mix(km_index *x, const km_index *other);
/* Makes decoded rows (n, dim), which codes have shortened, as long as they were. */
void km_restore_lengths(const km_index *x, float *rows, int64_t n);
bool km_index_is_mixed(const km_index *x); /* some cell is */
/* The length that nearly all of rows (n, dim) have, or 0. */
float km_common_length(const float *rows, int64_t n, int64_t dim, km_error *err);

#endif
