/* The arguments of the kernels that attend over the paged cache. For C and CUDA. */
#ifndef KM_CUDA_ATTEND_ARGS_H
#define KM_CUDA_ATTEND_ARGS_H
#include "backend/cuda/kernels/gemm/tensor_map.h"
#include <stdint.h>

#define KM_ATTEND_PAGE 64  /* tokens in a page */
#define KM_ATTEND_HEADS 16 /* query heads of one key head that a block takes at once */
#define KM_ATTEND_FEW_THREADS 256
#define KM_ATTEND_CLUSTER 8 /* blocks that share a key head in the kernel for one token */
#define KM_ATTEND_ONE_SHARED(dp, rows)                                                             \
    (8 * KM_ATTEND_PAGE * (dp) + KM_ATTEND_HEADS * (4 * KM_ATTEND_PAGE + 10 * (dp) + 12 * 4) +     \
     (dp)*4 + (rows) * (dp)*4 + 16)
#define KM_ATTEND_SOLE_ROWS 16 /* rows that come each by itself, over few pages */
#define KM_ATTEND_TILE 64      /* (token, head) rows of a block in the kernel for prompts */

#define KM_ATTEND_PLAIN_THREADS 128 /* of the kernel for heads of any size */
#define KM_ATTEND_PLAIN_SHARED(d) ((2 * (d) + KM_ATTEND_PLAIN_THREADS) * 4)

/* Of the kernels for any mix of rows on Hopper (attend_pages.cuh). */
#define KM_ATTEND_SHARED_ROWS 1024  /* of a call, at most */
#define KM_ATTEND_PAGES_THREADS 256 /* a warpgroup that works, and one of which a warp fetches */
#define KM_ATTEND_STAGES_16(d) ((d) == 128 ? 3 : 6)
#define KM_ATTEND_MOST_STAGES 8
#define KM_ATTEND_AHEAD 4 /* pages that a block asks for while the kernel in front is at work */
#define KM_ATTEND_SIDE (4 * KM_ATTEND_MOST_STAGES * 8 + (3 * KM_ATTEND_SHARED_ROWS + 6) * 4)
#define KM_ATTEND_SHARED_16(d)                                                                     \
    (KM_ATTEND_STAGES_16(d) * 2 * KM_ATTEND_PAGE * (d)*2 + KM_ATTEND_SIDE)
/* Blocks of 32 as they are, and a tile of keys and one of values in f16. */
#define KM_ATTEND_STAGES_BLOCKS(bits, d) ((d) == 128 && (bits) == 8 ? 3 : 6)
#define KM_ATTEND_SHARED_BLOCKS(bits, d)                                                           \
    (2 * KM_ATTEND_PAGE * (d)*2 +                                                                  \
     KM_ATTEND_STAGES_BLOCKS(bits, d) * 2 * KM_ATTEND_PAGE * (d) / 32 * (2 + 4 * (bits)) +         \
     KM_ATTEND_SIDE)
#define KM_ATTEND_SLOT(d) (KM_ATTEND_TILE * ((d) + 2)) /* floats */

enum { KM_CACHE_F32, KM_CACHE_F16, KM_CACHE_BF16, KM_CACHE_Q8_0, KM_CACHE_Q4_0 };

typedef struct km_attend_args {
    const void *q, *k, *v; /* f32; q after km_attend_append: f32 of its own */
    int64_t ldq, ldk, ldv; /* from row to row, in elements */
    float *out;            /* (rows, heads d) */
    float *turned;         /* (rows, heads d): q normalised and rotated, made by append */
    int32_t *where; /* (rows): a row's position, or -1; made by append if not NULL, and then the
                            * results of rows that do not count are 0 */
    uint8_t *cache_k, *cache_v;
    const int32_t *row, *table;
    const float *q_norm, *k_norm, *divisors;
    float *partial;     /* (rows, kv_heads * parts, splits, KM_ATTEND_HEADS, d + 2); in
                                * attend_plain_append keys on their way, (rows, kv_heads, d) */
    uint32_t *counters; /* (rows, kv_heads * parts) */
    int32_t rows, heads, kv_heads, d, group,
        parts; /* parts: blocks that share a key head's heads */
    int32_t pages, sequences, max_pages, window, splits, cache;
    int32_t dims, adjacent; /* rotation; dims 0: none */
    double log2_base;
    float scale, softcap, eps;
    float magnitude; /* of rotated elements */
    int32_t early;   /* what the cache holds may be read before the kernel in front ends */
} km_attend_args;

/* The cache as (pages kv_heads KM_ATTEND_PAGE, d), in boxes of 64 x 64 elements; of 16 bits only. */
typedef struct km_attend_pages_args {
    km_tensor_map k, v;
    km_attend_args a; /* partial: two to a block, of KM_ATTEND_SLOT(d) */
} km_attend_pages_args;

#endif
