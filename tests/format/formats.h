/* What the tests of file formats share: a folder of their own, fixtures in memory of their exact
 * size (so that a sanitizer sees the first byte read beyond them), and hostile copies of them. */
#ifndef KM_TESTS_FORMAT_FORMATS_H
#define KM_TESTS_FORMAT_FORMATS_H
#include "base/alloc.h"
#include "base/error.h"
#include <dirent.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[256];

static inline const char *in_folder(const char *name) {
    static char path[4][PATH_MAX];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, PATH_MAX, "%s/%s", folder, name);
    return p;
}

static inline int make_folder(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/kermes-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int entries(void) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    if (d) closedir(d);
    return n;
}

static inline int empty_folder(void **state) {
    (void)state;
    km_alloc_fail_nth(-1);
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' || strlen(e->d_name) > 2) unlink(in_folder(e->d_name));
    if (d) closedir(d);
    return 0;
}

static inline int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

typedef struct blob { /* a file in memory, at its exact size */
    uint8_t *data;
    size_t size;
} blob;

static inline blob read_blob(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) print_error("cannot open %s\n", path);
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    blob b = {.size = (size_t)ftell(f)};
    rewind(f);
    b.data = malloc(b.size ? b.size : 1);
    assert_int_equal(fread(b.data, 1, b.size, f), b.size);
    fclose(f);
    return b;
}

static inline const char *fixture_path(const char *name) {
    static char path[PATH_MAX];
    const char *src = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/formats/%s", src ? src : ".", name);
    return path;
}

static inline blob fixture(const char *name) { return read_blob(fixture_path(name)); }

static inline void write_blob(const char *path, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static inline uint64_t fnv(const void *data, size_t n) {
    const uint8_t *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* The error is there, and its text is one printable line. */
static inline void assert_one_line(const km_error *err) {
    assert_int_not_equal(err->code, KM_OK);
    assert_true(strlen(err->text) > 10);
    for (const char *p = err->text; *p; p++) assert_true((unsigned char)*p >= 0x20 && *p != 0x7f);
}

/* Tries a file in memory: reads all of it when it opens, and returns whether it did. */
typedef bool (*try_fn)(const uint8_t *data, size_t size);

/* Cuts the file short at every length, and changes each of its first `front` bytes in several
 * ways; every outcome must be a clean one, and the whole file must open. */
static inline void maul(const blob *b, size_t front, bool short_may_open, try_fn attempt) {
    assert_true(attempt(b->data, b->size));
    for (size_t n = 0; n < b->size; n++) {
        uint8_t *cut = malloc(n ? n : 1);
        memcpy(cut, b->data, n);
        bool opened = attempt(cut, n);
        assert_true(!opened || short_may_open);
        free(cut);
    }
    static const uint8_t flips[] = {0x01, 0x02, 0x10, 0x80, 0xff};
    for (size_t i = 0; i < front; i++) {
        uint8_t was = b->data[i];
        for (size_t k = 0; k < sizeof flips; k++) {
            b->data[i] = was ^ flips[k];
            attempt(b->data, b->size);
        }
        b->data[i] = 0;
        attempt(b->data, b->size);
        b->data[i] = was;
    }
    /* Counts and lengths of eight bytes, anywhere, made huge. */
    for (size_t i = 0; i + 8 <= front; i++) {
        uint8_t was[8];
        memcpy(was, b->data + i, 8);
        memset(b->data + i, 0xff, 8);
        attempt(b->data, b->size);
        b->data[i + 7] = 0x7f;
        attempt(b->data, b->size);
        memset(b->data + i, 0, 8);
        b->data[i + 4] = 1; /* 4 GiB */
        attempt(b->data, b->size);
        memcpy(b->data + i, was, 8);
    }
}

#endif
