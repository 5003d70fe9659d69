/* What the files that build an index share: the work of a rank (make.c), and what ranks do together
 * (make_ranks.c). */
#ifndef KM_VECTOR_MAKE_IMPL_H
#define KM_VECTOR_MAKE_IMPL_H
#include "vector/make.h"

typedef struct km_build_work {
    km_ctx *ctx;
    km_comm *comm;
    km_input *in;
    const uint64_t *ids;
    const km_index_options *o;
    int64_t first, rows, total, dim; /* the part of this rank, and all */
    size_t memory;
    km_made *made;
    double energy, lost, measured;
    km_heldout *held; /* queries that recall is measured with, or NULL */
    bool known;       /* their neighbours are, on the first rank at least */
    km_crowd crowd;   /* where recall is asked for */
} km_build_work;

typedef struct km_rank_part { /* what rank 0 hears of a rank */
    uint64_t hash;
    int64_t rows;
} km_rank_part;

/* s, or an error where another rank has one: all go on, or none. */
km_status km_ranks_agree(km_comm *comm, km_status s, km_error *err);
/* What the parts of all ranks, of which this one's is the file `part`, find of the held-out queries'
 * neighbours: m->made->recall on every rank. */
km_status km_ranks_recall(km_build_work *m, const char *part, km_error *err);
/* Sums what the ranks made; rank 0 writes the manifest. All fail when one does. */
km_status km_ranks_join(km_build_work *m, const char *path, km_status s, km_rank_part own,
                        double bytes, km_error *err);

#endif
