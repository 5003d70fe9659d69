/* Tiles of bf16: a block of 32 x 32 sums.
 *
 * Floor for 32 x 32 sums and 32 of k (32,768 multiply-adds): four products of 16 cycles, 64, to four
 * loads of tiles, 8 each from the nearest cache. */
#include "backend/cpu/gemm_tiles.h"
#include "backend/cpu/simd/amx/tile.h"

/* Sums begin at what c holds, or at zero. */
#define OPEN(t, add, c, ldc)                                                                       \
    do {                                                                                           \
        if (add)                                                                                   \
            KM_TILE_LOAD(t, c, (ldc)*4);                                                           \
        else                                                                                       \
            KM_TILE_ZERO(t);                                                                       \
    } while (0)

static void multiply(const km_tile_rows *a, int rows, const uint16_t *b, int64_t b_next, int cols,
                     int64_t depths, bool add, float *c, int64_t ldc) {
    const char *a0 = a[0].data, *a1 = a[rows - 1].data, *b0 = (const char *)b, *b1 = b0 + b_next;
    int64_t s0 = a[0].stride, s1 = a[rows - 1].stride, n0 = a[0].next, n1 = a[rows - 1].next;
    KM_TILE_FENCE();
    OPEN(0, add, c, ldc);
    if (rows == 2 && cols == 2) {
        OPEN(1, add, c + 16, ldc);
        OPEN(2, add, c + 16 * ldc, ldc);
        OPEN(3, add, c + 16 * ldc + 16, ldc);
        for (int64_t k = 0; k < depths; k++, a0 += n0, a1 += n1, b0 += 1024, b1 += 1024) {
            KM_TILE_LOAD(4, a0, s0);
            KM_TILE_LOAD(6, b0, 64);
            KM_TILE_DOT_BF16(0, 4, 6);
            KM_TILE_LOAD(7, b1, 64);
            KM_TILE_DOT_BF16(1, 4, 7);
            KM_TILE_LOAD(5, a1, s1);
            KM_TILE_DOT_BF16(2, 5, 6);
            KM_TILE_DOT_BF16(3, 5, 7);
        }
        KM_TILE_STORE(1, c + 16, ldc * 4);
        KM_TILE_STORE(2, c + 16 * ldc, ldc * 4);
        KM_TILE_STORE(3, c + 16 * ldc + 16, ldc * 4);
    } else if (cols == 2) {
        OPEN(1, add, c + 16, ldc);
        for (int64_t k = 0; k < depths; k++, a0 += n0, b0 += 1024, b1 += 1024) {
            KM_TILE_LOAD(4, a0, s0);
            KM_TILE_LOAD(6, b0, 64);
            KM_TILE_DOT_BF16(0, 4, 6);
            KM_TILE_LOAD(7, b1, 64);
            KM_TILE_DOT_BF16(1, 4, 7);
        }
        KM_TILE_STORE(1, c + 16, ldc * 4);
    } else if (rows == 2) {
        OPEN(2, add, c + 16 * ldc, ldc);
        for (int64_t k = 0; k < depths; k++, a0 += n0, a1 += n1, b0 += 1024) {
            KM_TILE_LOAD(4, a0, s0);
            KM_TILE_LOAD(6, b0, 64);
            KM_TILE_DOT_BF16(0, 4, 6);
            KM_TILE_LOAD(5, a1, s1);
            KM_TILE_DOT_BF16(2, 5, 6);
        }
        KM_TILE_STORE(2, c + 16 * ldc, ldc * 4);
    } else {
        for (int64_t k = 0; k < depths; k++, a0 += n0, b0 += 1024) {
            KM_TILE_LOAD(4, a0, s0);
            KM_TILE_LOAD(6, b0, 64);
            KM_TILE_DOT_BF16(0, 4, 6);
        }
    }
    KM_TILE_STORE(0, c, ldc * 4);
    KM_TILE_FENCE();
}

static void begin(void) { km_tiles_begin(); }
static void end(void) { km_tiles_end(); }

extern const km_gemm_tiles km_gemm_tiles_amx;
const km_gemm_tiles km_gemm_tiles_amx = {km_pack_tile_b, km_pack_tile_a, multiply, begin, end};
