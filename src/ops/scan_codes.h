/* The op behind searches on a GPU: every row of a set of codes against a batch of queries, and the
 * nearest few of each. Distances exist only where they may be among these. Nothing is on the tape. */
#ifndef KM_OPS_SCAN_CODES_H
#define KM_OPS_SCAN_CODES_H
#include "kermes.h"

#define KM_SCAN_TABLES 10 /* of 256: levels of 0 to 8 bits, then scales */
#define KM_SCAN_MOST 200  /* k at most */

/* Row i is y_i = centre[cell_i] + scales[scale_i] * (amp_j * level_j) over its columns j. The level of
 * column j is the number at bits [place_j, place_{j+1}) of the row's code, lowest bit first, at most 8
 * of them, looked up in the table of so many bits. In trellis codes it is the window of 12 bits from
 * place_j on, looked up in the windows of rate_j. Rows whose cell does not exist are left out. */
typedef struct km_coded {
    km_tensor *codes;   /* (n, stride) u8, stride a multiple of 4 */
    km_tensor *scale;   /* (n) u8 */
    km_tensor *cell;    /* (n) i32 */
    km_tensor *place;   /* (d + 1) i32; of levels, never falling */
    km_tensor *amp;     /* (d) f32 */
    km_tensor *tables;  /* (KM_SCAN_TABLES, 256) f32 */
    km_tensor *centre;  /* (cells, d) f32 */
    km_tensor *rate;    /* (d) i32, 0 to 8; NULL: levels */
    km_tensor *windows; /* (9, 4096) f32, with rate */
    float lost;         /* times a row's scale squared is added to its squared distance */
} km_coded;

typedef struct km_scan_codes_options {
    bool product;  /* minus the inner product; else |q - y|^2 + lost * scale^2 */
    bool exact;    /* every row in f32, for checks: slow */
    int64_t chunk; /* rows that a GPU decodes at a time; 0: what suits it */
} km_scan_codes_options;

/* query (q, d) f32 -> *id (q, k) i32, the rows with the k smallest distances, nearest first, the lower
 * of equals; *dist (q, k) f32. Past the last row: -1 and infinity. 1 <= k <= KM_SCAN_MOST. On a GPU,
 * rows beyond the k-th may take its place when their distances differ by less than f16 can tell. */
km_status km_scan_coded(km_ctx *ctx, km_tensor *query, const km_coded *rows, int64_t k,
                        const km_scan_codes_options *options, km_tensor **id, km_tensor **dist);

#endif
