/* The file of keys, and SHA-256 (FIPS 180-4) for it: keys are long random texts, so a plain hash is
 * enough to make the file useless to whoever reads it. */
#include "serve/api/keys.h"
#include "base/alloc.h"
#include "base/file.h"
#include "serve/serve.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

/* ---- SHA-256 ---- */

static uint32_t rotated(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha_block(uint32_t h[8], const unsigned char *p) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + w[i - 7] +
               (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotated(v[4], 6) ^ rotated(v[4], 11) ^ rotated(v[4], 25);
        uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t s0 = rotated(v[0], 2) ^ rotated(v[0], 13) ^ rotated(v[0], 22);
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

void km_sha256(const void *data, size_t n, unsigned char out[32]) {
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const unsigned char *p = data;
    unsigned char last[128] = {0};
    size_t left = n;
    for (; left >= 64; left -= 64, p += 64) sha_block(h, p);
    memcpy(last, p, left);
    last[left] = 0x80;
    size_t blocks = left >= 56 ? 2 : 1;
    for (int i = 0; i < 8; i++)
        last[64 * blocks - 1 - (size_t)i] = (unsigned char)((uint64_t)n * 8 >> 8 * i);
    for (size_t i = 0; i < blocks; i++) sha_block(h, last + 64 * i);
    for (int i = 0; i < 32; i++) out[i] = (unsigned char)(h[i / 4] >> (24 - 8 * (i % 4)));
}

void km_hex(char *out, const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) sprintf(out + 2 * i, "%02x", bytes[i]);
}

km_status km_serve_new_key(const char *name, char **key, char **line, km_error *err) {
    unsigned char random[24], hash[32];
    char hex[65];
    *key = *line = NULL;
    if (!*name || strlen(name) > 60 || strpbrk(name, " \t\n#"))
        return km_error_set(err, KM_ERR_RANGE, "a key's name is 1 to 60 characters without spaces");
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return km_error_set(err, KM_ERR_STATE, "the system gives no random bytes");
    *key = km_alloc(80);
    *line = km_alloc(200);
    if (!*key || !*line) return km_error_set(err, KM_ERR_MEMORY, "out of memory");
    km_hex(hex, random, sizeof random);
    snprintf(*key, 80, "km-%s", hex);
    km_sha256(*key, strlen(*key), hash);
    km_hex(hex, hash, 32);
    snprintf(*line, 200, "%s sha256:%s", name, hex);
    return KM_OK;
}

/* ---- The file ---- */

struct km_keys {
    char *path;
    struct timespec changed;
    km_key *keys;
    size_t n;
};

static bool read_hash(const char *hex, unsigned char out[32]) {
    if (strncmp(hex, "sha256:", 7) != 0 || strlen(hex) != 71) return false;
    for (int i = 0; i < 32; i++) {
        char pair[3] = {hex[7 + 2 * i], hex[8 + 2 * i], 0}, *end;
        out[i] = (unsigned char)strtoul(pair, &end, 16);
        if (*end || pair[0] == '-' || pair[0] == '+' || pair[0] == ' ') return false;
    }
    return true;
}

static bool read_setting(km_key *k, const char *word) {
    const char *value = strchr(word, '=');
    char *end = NULL;
    if (!value) return false;
    value++;
    if (strncmp(word, "expires=", 8) == 0) {
        struct tm tm = {0};
        const char *rest = strptime(value, "%Y-%m-%d", &tm);
        if (!rest || *rest) return false;
        k->expires = (int64_t)timegm(&tm) + 86400; /* the day itself is included */
        return true;
    }
    if (strncmp(word, "models=", 7) == 0) {
        if (!*value || strlen(value) >= sizeof k->models) return false;
        strcpy(k->models, value);
        return true;
    }
    long n = strtol(value, &end, 10);
    if (end == value || *end) return false;
    if (strncmp(word, "priority=", 9) == 0) return k->priority = (int)n, n >= -100 && n <= 100;
    if (strncmp(word, "parallel=", 9) == 0) return k->parallel = n, n > 0;
    if (strncmp(word, "tokens=", 7) == 0) return k->tokens = n, n > 0;
    return false;
}

static km_status read_line(km_keys *k, char *line, int number, km_error *err) {
    char *save = NULL, *name = strtok_r(line, " \t\r", &save),
         *hash = strtok_r(NULL, " \t\r", &save), *word;
    km_key key = {0};
    if (!name || name[0] == '#') return KM_OK;
    if (strlen(name) >= sizeof key.name || !hash || !read_hash(hash, key.hash))
        return km_error_set(
            err, KM_ERR_FORMAT,
            "%s, line %d: a key is NAME sha256:HEX; 'kermes serve --new-key NAME' makes one",
            k->path, number);
    strcpy(key.name, name);
    memcpy(&key.number, key.hash, sizeof key.number);
    key.number |= 1;
    while ((word = strtok_r(NULL, " \t\r", &save)))
        if (!read_setting(&key, word))
            return km_error_set(
                err, KM_ERR_FORMAT,
                "%s, line %d: '%.60s' is none of expires=YYYY-MM-DD, parallel=N, tokens=N, priority=N, models=A,B",
                k->path, number, word);
    km_key *more = km_realloc(k->keys, (k->n + 1) * sizeof *more);
    if (!more) return km_error_set(err, KM_ERR_MEMORY, "out of memory for keys");
    k->keys = more;
    more[k->n++] = key;
    return KM_OK;
}

static km_status read_file(km_keys *k, km_error *err) {
    km_map map = {0};
    km_status s = km_map_open(&map, k->path, err);
    char *text = s == KM_OK ? km_alloc(map.size + 1) : NULL;
    if (text) {
        memcpy(text, map.data ? (const char *)map.data : "", map.size);
        text[map.size] = '\0';
        char *line = text;
        for (int number = 1; line && s == KM_OK; number++) {
            char *next = strchr(line, '\n');
            if (next) *next++ = '\0';
            s = read_line(k, line, number, err);
            line = next;
        }
    } else if (s == KM_OK) {
        s = km_error_set(err, KM_ERR_MEMORY, "out of memory for keys");
    }
    km_free(text);
    km_map_close(&map);
    return s;
}

km_keys *km_keys_open(const char *path, km_error *err) {
    km_keys *k = km_calloc(1, sizeof *k);
    if (k) k->path = km_strdup(path);
    if (!k || !k->path) {
        km_free(k);
        km_error_set(err, KM_ERR_MEMORY, "out of memory for keys");
        return NULL;
    }
    if (km_keys_reload(k, err) == KM_OK) return k;
    km_keys_free(k);
    return NULL;
}

void km_keys_free(km_keys *k) {
    if (!k) return;
    km_free(k->keys);
    km_free(k->path);
    km_free(k);
}

km_status km_keys_reload(km_keys *k, km_error *err) {
    struct stat st;
    if (stat(k->path, &st) == 0 && k->keys && st.st_mtim.tv_sec == k->changed.tv_sec &&
        st.st_mtim.tv_nsec == k->changed.tv_nsec)
        return KM_OK;
    km_keys fresh = {.path = k->path};
    km_status s = read_file(&fresh, err);
    if (s == KM_OK && fresh.n == 0)
        s = km_error_set(err, KM_ERR_FORMAT, "%s holds no keys", k->path);
    if (s != KM_OK) {
        km_free(fresh.keys);
        return s;
    }
    km_free(k->keys);
    k->keys = fresh.keys;
    k->n = fresh.n;
    k->changed = st.st_mtim;
    return KM_OK;
}

/* All keys are compared in full, so that the time tells nothing about any of them. */
const km_key *km_keys_find(const km_keys *k, const char *key) {
    unsigned char hash[32];
    const km_key *found = NULL;
    km_sha256(key, strlen(key), hash);
    for (size_t i = 0; i < k->n; i++) {
        unsigned char differs = 0;
        for (int b = 0; b < 32; b++) differs |= hash[b] ^ k->keys[i].hash[b];
        if (!differs) found = &k->keys[i];
    }
    return found && (!found->expires || (int64_t)time(NULL) < found->expires) ? found : NULL;
}

size_t km_keys_count(const km_keys *k) { return k->n; }
