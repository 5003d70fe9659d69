/* Ops of vector quantisation: which of a few centres is nearest to each row, and what the rows of a
 * cell add up to. The (rows, centres) matrix of distances never exists, and nothing is on the tape. */
#ifndef KM_OPS_NEAREST_H
#define KM_OPS_NEAREST_H
#include "kermes.h"

/* x (n, d), c (k, d) f32 -> *id (n) i32, *dist (n) f32: the nearest centre and its squared distance,
 * the lower id of equals. work (may be NULL) is km_nearest_work's: the device's own notes on x, which
 * are made by the call that has `fresh` set and used by later ones with the same x. `quick`: distances
 * may be off by a few parts in 10^5 of |x|^2 + |c|^2, about the mean; which centre is nearest is as
 * exact as ever. */
km_status km_nearest_of(km_ctx *ctx, km_tensor *x, km_tensor *c, km_tensor *work, bool fresh,
                        bool quick, km_tensor **id, km_tensor **dist);
/* Kept, the caller's; NULL without an error where the device has no use for notes. */
km_tensor *km_nearest_work(km_ctx *ctx, const km_tensor *x);

/* x (n, d), id (n) i32, weight? (n) f32, dist? (n) f32 -> of each of k cells: the sum of weight * x
 * (k, d), the sum of weights (k), the number of rows (k), the sum of dist (k), all f32. weight NULL:
 * 1; dist NULL: 0. Rows whose id is not in [0, k) are in no cell. The same bits every run, whatever
 * the number of threads. */
typedef struct km_cell_sums_result {
    km_tensor *sum, *mass, *count, *spread;
} km_cell_sums_result;
km_status km_cell_sums(km_ctx *ctx, km_tensor *x, km_tensor *id, km_tensor *weight, km_tensor *dist,
                       int64_t k, km_cell_sums_result *out);

#endif
