/* Anchors: a few points that stand for many. They are learnt by rounds of assigning every vector to
 * its nearest anchor and moving each anchor towards the (robust) mean of its cell, in steps that grow
 * as a temperature falls; now and then anchors that are close are merged and wide cells are split.
 * The last rounds are full steps to plain means. Plain Lloyd is an option.
 *
 * Same seed, same device, same options: the same anchors, for any number of threads. */
#ifndef KM_VECTOR_ANCHORS_H
#define KM_VECTOR_ANCHORS_H
#include "comm/comm.h"

typedef enum km_robust {
    KM_ROBUST_HUBER,   /* far vectors pull with a bounded force while it is warm */
    KM_ROBUST_TRIMMED, /* they do not pull at all */
    KM_ROBUST_NONE
} km_robust;

typedef struct km_anchor_round { /* what a round of training did */
    int round;          /* from 1 */
    double temperature; /* 0: full steps to plain means */
    double energy, change; /* change: of the energy since the round before, as a part of it */
    int64_t reassigned; /* vectors that went to another anchor */
    int64_t merged, split, anchors; /* by maintenance after the round; anchors there are then */
    bool converged;     /* the last one, because nothing changes any more, or less than `settle` */
} km_anchor_round;

typedef struct km_anchor_options {
    int64_t count;     /* of anchors; 0: chosen from n. Fewer come out when fewer serve as well */
    int rounds;        /* at most; 0: 25 */
    km_metric metric;  /* cosine: vectors are scaled to length 1, and so are anchors */
    uint64_t seed;
    bool lloyd;        /* plain Lloyd: full steps to means, no maintenance */
    km_robust robust;
    double heat;       /* the first temperature, in [0, 1]; 0: the default, 0.5 */
    double cooling;    /* each round's temperature is this part of the last one's; 0: linear */
    double momentum;   /* of the last move added to the next while it is warm; 0: none */
    int maintain;      /* rounds between maintenance; 0: chosen, -1: never */
    double settle;     /* stop when a round improves the energy by less than this part; 0: never */
    int64_t piece;     /* vectors on the device at once; 0: all, or what it has room for */
    /* Told after each round, on rank 0's thread; false stops. NULL: nobody asks. */
    bool (*progress)(void *user, int round, int rounds, double energy);
    /* All about each round, after its maintenance. NULL: no callback. */
    void (*report)(void *user, const km_anchor_round *round);
    void *user;
} km_anchor_options;

typedef struct km_anchors {
    km_ctx *ctx;
    km_tensor *centre;   /* kept: (count, dim) f32, on the context's device */
    int64_t count, dim;
    km_metric metric;
    double energy;       /* mean squared distance of the training vectors to their anchors */
    int rounds;          /* that were run */
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
km_status km_anchors_assign(km_ctx *ctx, const km_anchors *a, const float *x, int64_t n, int32_t *id,
                            float *dist);
/* The anchors' elements into centre (count, dim). */
km_status km_anchors_read(km_ctx *ctx, const km_anchors *a, float *centre);
void km_anchors_release(km_anchors *a); /* empty is fine */

#endif
