/* From text files to tokens: the cache, the split, weights, and texts that will not do. */
#include "scratch.h"
#include "train/dataset.h"
#include <fcntl.h>
#include <sys/stat.h>

static km_error err;

static const char text[] = "the quick brown fox jumps over the lazy dog. ";

/* A file of `n` copies of the sentence. */
static void write_text(const char *path, int n) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < n; i++) fputs(text, f);
    fclose(f);
}

static km_dataset_options options(void) {
    return (km_dataset_options){.cache = scratch_dir, .val = 0.1, .threads = 2, .context = 16};
}

typedef struct made {
    km_text_source *sources;
    int n;
    km_token *token;
    km_dataset data;
} made;

static km_status make(made *m, const km_dataset_options *o, const char *const *arguments, int n) {
    *m = (made){.n = n};
    km_status s = km_sources_open(&m->sources, arguments, n, &err);
    if (s != KM_OK) return s;
    m->token = km_token_bytes(&err);
    assert_non_null(m->token);
    return km_dataset_open(&m->data, m->sources, n, m->token, o, &err);
}

static void drop(made *m) {
    km_dataset_close(&m->data);
    km_token_free(m->token);
    km_sources_close(m->sources, m->n);
}

#define FILES(...)                                                                                 \
    (const char *const[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)

static void text_becomes_tokens_with_the_end_for_validation(void **state) {
    (void)state;
    made m;
    km_dataset_options o = options();
    write_text(scratch("a.txt"), 100);
    assert_done(make(&m, &o, FILES(scratch("a.txt"))));
    int64_t n = 100 * (int64_t)strlen(text);
    assert_int_equal(m.data.train, n * 9 / 10);
    assert_int_equal(m.data.train + m.data.val, n);
    int32_t got[9];
    km_tokens_get(&m.data.parts[0].tokens, 45, 9, got);
    for (int i = 0; i < 9; i++) assert_int_equal(got[i], text[i]);
    assert_false(m.data.parts[0].cached);
    drop(&m);
}

static bool was_cached(const char *path) {
    made m;
    km_dataset_options o = options();
    assert_done(make(&m, &o, FILES(path)));
    bool cached = m.data.parts[0].cached;
    drop(&m);
    return cached;
}

static void tokens_are_made_once_for_a_text(void **state) {
    (void)state;
    const char *path = scratch("a.txt");
    write_text(path, 100);
    assert_false(was_cached(path));
    assert_true(was_cached(path));
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_true(was_cached(path)); /* touched, but the same bytes */
    write_text(path, 101);
    assert_false(was_cached(path));
    assert_true(was_cached(path));
    FILE *f = fopen(path, "r+"); /* the same size, other bytes */
    fputs("THE", f);
    fclose(f);
    assert_false(was_cached(path));
}

static int damage(const char *folder) {
    char command[PATH_MAX];
    snprintf(command, sizeof command,
             "for f in %s/*.tokens; do printf x | dd of=\"$f\" bs=1 seek=70 "
             "conv=notrunc 2>/dev/null; done",
             folder);
    return system(command);
}

static void damaged_tokens_are_made_anew(void **state) {
    (void)state;
    const char *path = scratch("a.txt");
    write_text(path, 100);
    assert_false(was_cached(path));
    assert_int_equal(damage(scratch_dir), 0);
    assert_false(was_cached(path));
    assert_true(was_cached(path));
}

static void a_folder_stands_for_its_files_in_order(void **state) {
    (void)state;
    made m;
    km_dataset_options o = options();
    mkdir(scratch("texts"), 0777);
    mkdir(scratch("texts/deep"), 0777);
    scratch_write(scratch("texts/b.txt"), "bbbbbbbbbbbbbbbbbbbb", 20);
    scratch_write(scratch("texts/a.txt"), "aaaaaaaaaaaaaaaaaaaa", 20);
    scratch_write(scratch("texts/deep/c.md"), "cccccccccccccccccccc", 20);
    scratch_write(scratch("texts/.hidden"), "x", 1);
    scratch_write(scratch("texts/empty"), "", 0);
    assert_done(make(&m, &o, FILES(scratch("texts"))));
    int32_t got[60];
    assert_int_equal(m.data.parts[0].tokens.count, 60);
    km_tokens_get(&m.data.parts[0].tokens, 0, 60, got);
    assert_int_equal(got[0], 'a');
    assert_int_equal(got[20], 'b');
    assert_int_equal(got[59], 'c');
    drop(&m);
}

static void weights_share_out_what_is_left(void **state) {
    (void)state;
    made m;
    char weighted[2][PATH_MAX];
    km_dataset_options o = options();
    const char *a = scratch("a.txt"), *b = scratch("b.txt");
    write_text(a, 100);
    write_text(b, 300);
    assert_done(make(&m, &o, FILES(a, b)));
    assert_true(m.data.parts[0].weight > 0.2499 && m.data.parts[0].weight < 0.2501);
    drop(&m);
    snprintf(weighted[0], PATH_MAX, "%s:0.7", a);
    snprintf(weighted[1], PATH_MAX, "%s:2.1", b);
    assert_done(make(&m, &o, FILES(weighted[0], b)));
    assert_true(m.data.parts[1].weight > 0.2999 && m.data.parts[1].weight < 0.3001);
    uint64_t one = km_dataset_hash(&m.data);
    drop(&m);
    assert_done(make(&m, &o, FILES(weighted[0], weighted[1])));
    assert_true(m.data.parts[1].weight > 0.7499 && m.data.parts[1].weight < 0.7501);
    assert_true(km_dataset_hash(&m.data) != one);
    drop(&m);
    assert_says(make(&m, &o, FILES(a, weighted[1])), "leaves nothing");
    drop(&m);
    snprintf(weighted[0], PATH_MAX, "%s:-1", a);
    assert_says(make(&m, &o, FILES(weighted[0])), "a weight is a number above 0");
}

static void a_token_file_serves_as_data(void **state) {
    (void)state;
    made m;
    km_dataset_options o = options();
    write_text(scratch("a.txt"), 100);
    assert_done(make(&m, &o, FILES(scratch("a.txt"))));
    drop(&m);
    char command[3 * PATH_MAX];
    snprintf(command, sizeof command, "mv %s/*.tokens %s", scratch_dir, scratch("mine.tokens"));
    assert_int_equal(system(command), 0);
    assert_done(make(&m, &o, FILES(scratch("mine.tokens"))));
    assert_int_equal(m.data.parts[0].tokens.count, 100 * (int64_t)strlen(text));
    drop(&m);
}

static void what_is_no_text_is_refused(void **state) {
    (void)state;
    made m;
    km_dataset_options o = options();
    scratch_write(scratch("empty"), "", 0);
    assert_says(make(&m, &o, FILES(scratch("empty"))), "is empty");
    assert_says(make(&m, &o, FILES(scratch("none"))), "cannot open");
    mkdir(scratch("folder"), 0777);
    assert_says(make(&m, &o, FILES(scratch("folder"))), "holds no text");
    scratch_write(scratch("tiny"), "short", 5);
    assert_says(make(&m, &o, FILES(scratch("tiny"))), "--context 16 takes at least 17");
    drop(&m);
    o.val = 0.01;
    scratch_write(scratch("small"), text, 20);
    assert_says(make(&m, &o, FILES(scratch("small"))), "leaves 1 tokens for validation");
    drop(&m);
}

static void bytes_that_are_not_utf8_are_named(void **state) {
    (void)state;
    km_text_source *s;
    scratch_write(scratch("bad"), "good\nline\xC3\xA9\nand \xFF", 17);
    const char *path = scratch("bad");
    assert_done(km_sources_open(&s, &path, 1, &err));
    assert_says(km_sources_check_utf8(s, 1, &err), "byte 16, in line 3, is 0xFF");
    km_sources_close(s, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH(text_becomes_tokens_with_the_end_for_validation),
        SCRATCH(tokens_are_made_once_for_a_text),
        SCRATCH(damaged_tokens_are_made_anew),
        SCRATCH(a_folder_stands_for_its_files_in_order),
        SCRATCH(weights_share_out_what_is_left),
        SCRATCH(a_token_file_serves_as_data),
        SCRATCH(what_is_no_text_is_refused),
        SCRATCH(bytes_that_are_not_utf8_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
