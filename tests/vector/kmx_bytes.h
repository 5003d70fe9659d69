/* Index files as bytes, for tests that damage them: finding their parts, and putting checksums right
 * again so that what is behind them is reached. */
#ifndef KM_TESTS_VECTOR_KMX_BYTES_H
#define KM_TESTS_VECTOR_KMX_BYTES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <xxhash.h>

static inline uint64_t kmx_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline void kmx_put(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }

/* Where the table stands and what is in it; false when the trailer is not one. */
static inline bool kmx_table(const uint8_t *d, size_t n, uint64_t *table, uint64_t *rows,
                             uint64_t *blocks) {
    if (n < 4096 + 64) return false;
    const uint8_t *t = d + n - 64;
    *table = kmx_u64(t);
    *rows = kmx_u64(t + 8);
    *blocks = kmx_u64(t + 16);
    return *table <= n - 64 && *rows <= 16 && *blocks <= n / 8 &&
           *table + 64 * *rows + 8 * *blocks == n - 64;
}

static inline void kmx_seal(uint8_t *d, size_t n) {
    uint64_t table, rows, blocks;
    if (n >= 4096) kmx_put(d + 4088, XXH3_64bits(d, 4088));
    if (!kmx_table(d, n, &table, &rows, &blocks)) return;
    for (uint64_t i = 0; i < rows; i++) {
        uint8_t *row = d + table + 64 * i;
        uint64_t at = kmx_u64(row + 8), bytes = kmx_u64(row + 16), block = kmx_u64(row + 32);
        if (at > table || bytes > table - at) continue;
        kmx_put(row + 24, XXH3_64bits(d + at, (size_t)bytes));
        for (uint64_t b = 0; b * 65536 < bytes && block + b < blocks; b++) {
            uint64_t left = bytes - b * 65536;
            kmx_put(d + table + 64 * rows + 8 * (block + b),
                    XXH3_64bits(d + at + b * 65536, (size_t)(left < 65536 ? left : 65536)));
        }
    }
    uint8_t *t = d + n - 64;
    kmx_put(t + 24, XXH3_64bits(d + table, (size_t)(64 * rows + 8 * blocks)));
    kmx_put(t + 48, XXH3_64bits(t, 48));
}

#endif
