/* What the tests of training share: a temporary folder, small files in it, and comparing bytes. */
#ifndef KM_TESTS_TRAIN_SCRATCH_H
#define KM_TESTS_TRAIN_SCRATCH_H
#include "base/alloc.h"
#include "base/file.h"
#include "train/checkpoint.h"
#include "train/demo.h"
#include "train/train.h"
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char scratch_dir[64];
static int64_t scratch_live; /* heap blocks before the test */

static inline int scratch_open(void **state) {
    (void)state;
    snprintf(scratch_dir, sizeof scratch_dir, "/tmp/kermes-test-XXXXXX");
    scratch_live = km_alloc_live();
    return mkdtemp(scratch_dir) ? 0 : -1;
}

static inline int scratch_close(void **state) {
    (void)state;
    km_folder_remove(scratch_dir);
    int64_t left = km_alloc_live() - scratch_live;
    if (left) print_error("%lld heap blocks were left behind\n", (long long)left);
    return left ? -1 : 0;
}

#define SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_open, scratch_close)

/* The path of a name in the folder; four are valid at a time. */
static inline const char *scratch(const char *name) {
    static char paths[4][PATH_MAX];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s", scratch_dir, name);
    return path;
}

/* A run of a tiny model on `bytes` of the grammar's text, into the folder `out` of the test; four are
 * valid at a time. The steps and what happens between them are the test's to say. */
static inline km_train_settings scratch_run(const char *out, size_t bytes, km_error *err) {
    static char paths[4][PATH_MAX], text[PATH_MAX];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s", scratch(out));
    snprintf(text, sizeof text, "%s", scratch("text.txt"));
    if (access(text, F_OK) != 0) assert_int_equal(km_demo_write(text, 1, bytes, err), KM_OK);
    km_train_settings s = km_train_defaults();
    s.data.at[s.data.n++] = text;
    s.out = path;
    s.layers = s.heads = 2;
    s.dim = 16;
    s.context = 16;
    s.batch = 4;
    s.warmup = 5;
    s.lr = 1e-2;
    s.eval_batches = 4;
    s.device = "cpu";
    s.threads = 2;
    return s;
}

static inline void scratch_write(const char *path, const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void assert_ok_or_say(km_status s, const km_error *err) {
    if (s != KM_OK) print_error("%s\n", err->text);
    assert_int_equal(s, KM_OK);
}
#define assert_done(call)                                                                          \
    do {                                                                                           \
        err = (km_error){0};                                                                       \
        km_status status_ = (call);                                                                \
        assert_ok_or_say(status_, &err);                                                           \
    } while (0)

/* The call fails, in one line that contains `part`. */
#define assert_says(call, part)                                                                    \
    do {                                                                                           \
        err = (km_error){0};                                                                       \
        assert_int_not_equal(call, KM_OK);                                                         \
        if (!strstr(err.text, part)) fail_msg("'%s' does not say '%s'", err.text, part);           \
        assert_null(strchr(err.text, '\n'));                                                       \
    } while (0)

static inline bool same_bytes(const char *a, const char *b) {
    km_map x, y;
    km_error err = {0};
    if (km_map_open(&x, a, &err) != KM_OK) return false;
    if (km_map_open(&y, b, &err) != KM_OK) {
        km_map_close(&x);
        return false;
    }
    bool same = x.size == y.size && memcmp(x.data, y.data, x.size) == 0;
    km_map_close(&x);
    km_map_close(&y);
    return same;
}

#endif
