/* Products of bf16 by tiles (AMX) or by pairs (AVX-512 BF16), sums in f32. c is cut into blocks whose sums stay in a core's cache;
 * b is laid out for tiles once for all rows, some columns at a time; rows of a are read where they lie,
 * or laid out where they cannot be. */
#ifndef KM_BACKEND_CPU_GEMM_TILES_H
#define KM_BACKEND_CPU_GEMM_TILES_H
#include "backend/cpu/gemm.h"

#define KM_TILE_DEPTH 32 /* of k, in one tile */

/* Where a tile of 16 rows of a lies: rows `stride` bytes apart, the next 32 of k `next` bytes on. */
typedef struct km_tile_rows {
    const char *data;
    int64_t stride, next;
} km_tile_rows;

typedef struct km_gemm_tiles {
    /* 32 of k and 16 columns to a tile of b, [16][16][2]; zeros behind `depth` and `cols`. b(p, j) is
     * src[p * ld + j], or turned src[j * ld + p]. */
    void (*pack_b)(uint16_t *dst, const uint16_t *src, int64_t ld, bool turned, int64_t depth,
                   int64_t cols);
    /* 16 rows and 32 of k to a tile of a, [16][32], likewise; a(i, p) is src[i * ld + p], or turned
     * src[p * ld + i]. */
    void (*pack_a)(uint16_t *dst, const uint16_t *src, int64_t ld, bool turned, int64_t rows,
                   int64_t depth);
    /* c (16 * rows, 16 * cols), at most two tiles each way and ldc floats apart, (+)= `depths` tiles of
     * a and of b, whose columns of tiles are b_next bytes apart. */
    void (*multiply)(const km_tile_rows *a, int rows, const uint16_t *b, int64_t b_next, int cols,
                     int64_t depths, bool add, float *c, int64_t ldc);
    void (*begin)(void); /* before a thread's products, and after them */
    void (*end)(void);
} km_gemm_tiles;

/* "tiles (AMX)", "pairs (AVX-512 BF16)"; NULL where products of bf16 have no kernels of their own. */
const char *km_gemm_tiles_name(void);

/* Whether g is a product for tiles here and now: of bf16, one product, large enough. */
bool km_gemm_tiles_suit(const km_gemm *g);
km_status km_gemm_tiles_run(km_ctx *ctx, const km_gemm *g);

#endif
