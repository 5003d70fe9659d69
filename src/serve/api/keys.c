/* The file of keys: they are long random texts, so a plain SHA-256 is enough to make the file useless to
 * whoever reads it. */
#include "serve/api/keys.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/sha256.h"
#include "serve/serve.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

static void hash_of(const char *key, unsigned char out[32]) {
    km_sha256 s;
    km_sha256_begin(&s);
    km_sha256_put(&s, key, strlen(key));
    km_sha256_end(&s, out);
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
    hash_of(*key, hash);
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
    hash_of(key, hash);
    for (size_t i = 0; i < k->n; i++) {
        unsigned char differs = 0;
        for (int b = 0; b < 32; b++) differs |= hash[b] ^ k->keys[i].hash[b];
        if (!differs) found = &k->keys[i];
    }
    return found && (!found->expires || (int64_t)time(NULL) < found->expires) ? found : NULL;
}
