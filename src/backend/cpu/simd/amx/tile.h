/* Tiles of AMX: eight of 16 rows of 64 bytes. Their numbers are part of an instruction, so these are
 * macros. A thread lays the tiles out before it uses them and lets them go after, so that no system
 * saves 8 KiB for a thread that has nothing in them.
 *
 *   KM_TILE_DOT(c, a, b)    c (16, 16) of int32 += a (16 rows, 64 bytes) b (64, 16): b holds four
 *                           elements of each column side by side, [16][16][4]
 *   KM_TILE_DOT_BF16        the same of f32 and bf16, k 32 deep: b is [16][16][2]
 *
 * A product takes 16 cycles and its sum 52, a load of a tile from the nearest cache 8: a kernel has at
 * least four sums under way, and as many products as loads. */
#ifndef KM_BACKEND_CPU_SIMD_AMX_TILE_H
#define KM_BACKEND_CPU_SIMD_AMX_TILE_H
#include "backend/cpu/simd/tile_pack.h"

#define KM_TILE_ROWS 16
#define KM_TILE_BYTES 64

/* What the compiler has not written yet would not be seen by a tile's load, nor a tile's store by it. */
#define KM_TILE_FENCE() __asm__ volatile("" ::: "memory")

KM_INLINE void km_tiles_begin(void) {
    struct {
        uint8_t palette, start, rest[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) shape.bytes[i] = KM_TILE_BYTES, shape.rows[i] = KM_TILE_ROWS;
    KM_TILE_FENCE();
    _tile_loadconfig(&shape);
}
KM_INLINE void km_tiles_end(void) { _tile_release(); }

#define KM_TILE_ZERO(t) _tile_zero(t)
#define KM_TILE_LOAD(t, p, stride) _tile_loadd(t, p, stride)
#define KM_TILE_STORE(t, p, stride) _tile_stored(t, p, stride)
#define KM_TILE_DOT(c, a, b) _tile_dpbssd(c, a, b)
#define KM_TILE_DOT_BF16(c, a, b) _tile_dpbf16ps(c, a, b)

#endif
