/* API keys: a file of hashes with names, limits and expiry, read again when it changes. One line each:
 *
 *     name sha256:HEX [expires=2027-01-31] [parallel=N] [tokens=N] [models=a,b] [priority=N] [admin]
 *
 * Lines that begin with # are comments. Comparison takes the same time whatever the key. */
#ifndef KM_SERVE_API_KEYS_H
#define KM_SERVE_API_KEYS_H
#include "base/error.h"

typedef struct km_key {
    char name[64];
    unsigned char hash[32];
    int64_t expires;  /* seconds since 1970; 0: never */
    int64_t parallel; /* requests at once; 0: no limit */
    int64_t tokens;   /* of one answer; 0: no limit */
    int priority;
    char models[256]; /* names, with commas between; "": all */
    uint64_t number;  /* stays the same while the file is read again: a hash of the hash */
} km_key;

typedef struct km_keys km_keys;
km_keys *km_keys_open(const char *path, km_error *err);
void km_keys_free(km_keys *k);
/* Reads the file again if it changed. On an error the keys stay as they were. */
km_status km_keys_reload(km_keys *k, km_error *err);
/* The key's entry, or NULL: unknown or expired. The entry lives until the next reload but one, so it is
 * copied where it is kept. */
const km_key *km_keys_find(const km_keys *k, const char *key);

#endif
