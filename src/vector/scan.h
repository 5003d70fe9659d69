/* Scanning codes: one query against packed rows of codes, in the query's full precision.
 *
 * With p = q - anchor and a row's decoded residual r^, the estimate is
 *   L2:             |p|^2 - 2 <p, r^> + |r^|^2 + (the part of |r|^2 that the code lost)
 *   inner product:  -(<q, anchor> + <q, r^>)
 * so smaller is nearer for both. Most rows are left out before that, by bounds from a part of their
 * bits that hold for all but one in a thousand. A scan belongs to one thread at a time. */
#ifndef KM_VECTOR_SCAN_H
#define KM_VECTOR_SCAN_H
#include "vector/coder.h"

typedef struct km_scan km_scan;

/* Buffers for queries on `c`, which must outlive it. NULL with *err set when out of memory. */
km_scan *km_scan_new(const km_coder *c, km_error *err);
/* One more like `s`, which must outlive it. */
km_scan *km_scan_like(const km_scan *s, km_error *err);
void km_scan_free(km_scan *s); /* NULL is fine */

/* The query (dim), and what is asked: squared L2 distance, or minus the inner product, for cosine too:
 * there rows and queries are scaled to length 1 by the caller. */
void km_scan_query(km_scan *s, const float *query, km_metric metric);

/* The cell whose rows come next: its anchor, turned by km_coder_turn (km_coder_turned floats), or
 * NULL for rows that were coded without one. `add` is added to each distance. */
void km_scan_cell(km_scan *s, const float *turned_anchor, float add);
/* The same for who knows `own`, |query - anchor|^2, or <query, anchor> where products are asked:
 * `axes` is what km_coder_turn_rows makes of the anchor. */
void km_scan_cell_at(km_scan *s, const float *axes, float own, float add);

/* Asks memory for what the next cell begins with, of its anchor and of n packed rows. */
void km_scan_expect(const km_scan *s, const float *axes, const uint8_t *packed, int64_t n);

/* Asks for another metric for the cells that come, of the same query; `aim` as for km_scan_aim. */
void km_scan_switch(km_scan *s, km_metric metric, float aim);

/* What the query's limit will be about, for the cells that come: it decides how much of a row is
 * looked at first, and so has a part in keys. Until then, and for INFINITY, it is not known. */
void km_scan_aim(km_scan *s, float limit);

/* Rows that may be among the nearest. `key` is the larger of dist and of what the row's leading bits
 * let expect at least: who ranks by it finds the same rows whatever limits they were asked with. */
typedef struct km_near {
    float key, dist;
    int32_t row;
} km_near;

/* Of n rows as km_coder_pack left them, those whose key is at most `limit`, and perhaps others, in
 * their order; room for n. Returns how many. n is at most km_coder_block_rows or a whole piece. */
int64_t km_scan_near(km_scan *s, const uint8_t *packed, int64_t n, float limit, km_near *near);

/* The same for several scans of one coder, each with its query, its cell, its limit and its room: a
 * dense row is then decoded once for all of them. count[j] is how many of scan j. */
void km_scan_near_each(km_scan *const *s, int scans, const uint8_t *packed, int64_t n,
                       const float *limit, km_near *const *near, int64_t *count);

/* dist (n) of all n rows; those with a key above `limit` may get INFINITY instead. */
void km_scan_codes(km_scan *s, const uint8_t *packed, int64_t n, float limit, float *dist);

#endif
