/* Anchors, the coarse centroids of an IVF index: a few points that stand for many. They are learnt
 * by k-means with deterministic annealing: rounds of assigning every vector to
 * its nearest anchor and moving each anchor towards the (robust) mean of its cell, in steps that grow
 * as a temperature falls; now and then anchors that are close are merged and wide cells are split.
 * The last rounds are full steps to plain means. Plain Lloyd is an option.
 *
 * Same seed, same device, same options: the same anchors, for any number of threads. */
#ifndef KM_VECTOR_ANCHORS_H
#define KM_VECTOR_ANCHORS_H
#include "comm/comm.h"

typedef struct km_anchor_options {
    int64_t count;    /* of anchors; 0: chosen from n. Fewer come out when fewer serve as well */
    km_metric metric; /* cosine: vectors are scaled to length 1, and so are anchors */
    uint64_t seed;
    bool lloyd;                  /* plain Lloyd: full steps to means, no maintenance */
    km_anchor_training training; /* but a tolerance of 0 is -1: on until nothing changes */
    int64_t piece; /* vectors on the device at once; 0: all, or what it has room for */
    /* Told after each round, on rank 0's thread; false stops. NULL: no callback. */
    bool (*progress)(void *user, int round, int rounds, double energy);
    void *user;
} km_anchor_options;

/* Refuses settings out of range. */
km_status km_anchors_check(const km_anchor_training *training, km_error *err);

typedef struct km_anchors {
    km_ctx *ctx;
    km_tensor *centre; /* kept: (count, dim) f32, on the context's device */
    int64_t count, dim;
    km_metric metric;
    double energy; /* mean squared distance of the training vectors to their anchors */
    int rounds;    /* that were run */
    int64_t merged, split, reseeded; /* by maintenance */
} km_anchors;

/* How many anchors serve n vectors. */
int64_t km_anchors_auto(int64_t n);

/* Learns anchors of x (n, d), finite. With a communicator each rank gives its own rows (any number,
 * even none) and all get the same anchors. On failure *out is empty and the context has the error. */
km_status km_anchors_train(km_ctx *ctx, const float *x, int64_t n, int64_t d,
                           const km_anchor_options *options, km_comm *comm, km_anchors *out);
/* Anchors that are known already: centre (count, dim) is copied. */
km_status km_anchors_from(km_ctx *ctx, const float *centre, int64_t count, int64_t dim,
                          km_metric metric, km_anchors *out);
/* The nearest anchor of each row of x (n, dim) and (dist may be NULL) its squared distance; for cosine,
 * that of x scaled to length 1. Any n: rows go through the device in blocks. */
km_status km_anchors_assign(km_ctx *ctx, const km_anchors *a, const float *x, int64_t n,
                            int32_t *id, float *dist);
/* The anchors' elements into centre (count, dim). */
km_status km_anchors_read(km_ctx *ctx, const km_anchors *a, float *centre);
void km_anchors_release(km_anchors *a); /* empty is fine */

/* ---- Shared by the files about anchors ---- */

/* x (n, d), each row scaled to length 1; rows of zeros stay. */
km_tensor *km_unit_rows(km_ctx *ctx, km_tensor *x);
/* Kept: host memory as a tensor on the context's device, in place where that is the host's memory. */
km_tensor *km_vectors_in(km_ctx *ctx, const float *x, int64_t n, int64_t d);

/* ---- First anchors: k-means++ on a sample ---- */

/* Rows of the sample for k anchors of n vectors. */
int64_t km_seed_sample_rows(int64_t n, int64_t k);

/* Picks up to k of the rows of x (n, d), each with probability proportional to its squared distance
 * to those picked before, and writes their numbers to pick. Returns how many: fewer than k where no
 * other row differs from those picked. -1 with the context's error set. */
int64_t km_seed_pick(km_ctx *ctx, const float *x, int64_t n, int64_t d, int64_t k, uint64_t seed,
                     int64_t *pick);

#endif
