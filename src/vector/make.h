/* From a file of vectors to an index file, in blocks and inside a budget of memory. */
#ifndef KM_VECTOR_MAKE_H
#define KM_VECTOR_MAKE_H
#include "comm/comm.h"
#include "vector/heldout.h"
#include "vector/index.h"
#include "vector/input.h"

typedef struct km_made { /* what came out, over all ranks */
    int64_t rows, skipped, anchors, dim;
    int64_t first_skipped; /* the row of the input; -1: none was */
    double bytes;          /* of all index files */
    size_t code_bytes;
    double energy, mse;    /* mean squared distance to anchors, and to what the codes give back */
    km_told_recall recall; /* against all vectors; NaN when it was not measured */
    int rounds, parts;     /* parts: index files; 1 without ranks */
} km_made;

/* ids (rows) may be NULL: the rows' numbers. With ranks, each takes its part of the rows, `path` becomes
 * a manifest, and the parts stand beside it. */
km_status km_index_make(km_ctx *ctx, km_comm *comm, km_input *in, const uint64_t *ids,
                        const char *path, const km_index_options *o, km_made *made, km_error *err);

/* The name of rank r's index: "v.kmx" -> "v-0.kmx". */
void km_part_path(char *out, size_t size, const char *path, int rank);

#endif
