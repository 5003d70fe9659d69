/* Scans of codes on the GPU: what both sides know.
 *
 * Rows are decoded a chunk at a time into tiles of f16, [tile][64 columns][row][column], swizzled as
 * tensor cores read them; queries lie the same way. A product of both, and a constant to each row, is
 * what rows are told apart by. What may be among the best of a query goes to its list; lists are cut
 * to the best after each chunk, and these are worked out again in f32 at the end. */
#ifndef KM_CUDA_SCAN_ARGS_H
#define KM_CUDA_SCAN_ARGS_H
#include <stdint.h>

#define KM_SCAN_QUERIES 128  /* in a tile */
#define KM_SCAN_ROWS 256     /* in a tile */
#define KM_SCAN_DEPTH 64     /* columns of a tile */
#define KM_SCAN_BATCH 1024   /* queries that are searched for together, at most */
#define KM_SCAN_LIST 4096    /* rows a list holds */
#define KM_SCAN_KEEP 256     /* rows kept of a list, at most */
#define KM_SCAN_SAMPLE 16384 /* rows that give a first limit */
#define KM_SCAN_GROUPS 16 /* groups of rows in a tile of the sample, whose smallest values count */
#define KM_SCAN_THREADS 384 /* of the Hopper kernel: one warpgroup copies, two multiply */

/* Queries stay in shared memory where they have few columns. */
#define KM_SCAN_RESIDENT 8
#define KM_SCAN_STAGES(slices) ((slices) > 6 && (slices) <= KM_SCAN_RESIDENT ? 3 : 4)
#define KM_SCAN_SHARED(slices)                                                                     \
    (1024 + KM_SCAN_STAGES(slices) * 32768 + 256 +                                                 \
     ((slices) <= KM_SCAN_RESIDENT ? (slices) : KM_SCAN_STAGES(slices)) * 16384)

typedef struct km_scan_args {
    const uint8_t *codes; /* (n, stride): the columns' levels, one after the other */
    const uint8_t *scale; /* (n): which of the scales */
    const int32_t *cell;  /* (n): rows of no cell are left out */
    const int32_t *place; /* (d + 1): the bit at which a column's level begins */
    const float *amp;     /* (d) */
    const float *tables;  /* (10, 256): levels of 0 to 8 bits, and the scales */
    const float *centre;  /* (cells, d) */
    const int32_t *rate;  /* (d), of trellises: which windows a column looks into; or NULL */
    const float *windows; /* (9, 4096) */
    const float *query;   /* (queries, d) of this batch */
    int32_t *id;          /* (queries, k) */
    float *dist;
    uint32_t *reach; /* 2: the largest residual and the largest centre there can be, as bits */
    void *query_tiles, *row_tiles;
    float *factor;            /* (padded queries): of a product */
    float *add;               /* (padded rows): of a row */
    unsigned long long *list; /* (queries, KM_SCAN_LIST) value and row */
    uint32_t *count;          /* (queries): rows on the list, or offered to it */
    uint32_t *over;           /* (queries): not 0: some were lost */
    float *limit;             /* (padded queries): what is above it is not among the best */
    int64_t stride, first;    /* the first row of this pass, */
    int64_t rows, step;       /* how many, and how far apart */
    int64_t n;
    int32_t d, cells, slices, queries, k, keep, tiles, product, aligned, sample, exact;
    float lost;
} km_scan_args;

#endif
