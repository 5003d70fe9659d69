/* SHA-256 (FIPS 180-4), by which hubs name what a file must hold, and which keeps
 * a server's keys out of their file. */
#ifndef KM_BASE_SHA256_H
#define KM_BASE_SHA256_H
#include <stddef.h>
#include <stdint.h>

typedef struct km_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
} km_sha256;

void km_sha256_begin(km_sha256 *s);
void km_sha256_put(km_sha256 *s, const void *data, size_t n);
void km_sha256_end(km_sha256 *s, uint8_t out[32]);
void km_hex(char *out, const uint8_t *bytes, size_t n); /* out[2 n + 1] */

#endif
