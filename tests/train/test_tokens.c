/* Token files: what is put in comes out, and what is damaged is found out. */
#include "scratch.h"
#include "train/tokens.h"

static km_error err;

static void make(const char *path, int64_t vocab, int64_t count) {
    km_tokens_writer *w = km_tokens_create(path, vocab, &err);
    assert_non_null(w);
    for (int64_t i = 0; i < count; i++) {
        int32_t id = (int32_t)(i * 7919 % vocab);
        assert_int_equal(km_tokens_put(w, &id, 1, &err), KM_OK);
    }
    char name[] = "/somewhere/a text.txt";
    km_tokens_source source = {.path = name, .bytes = 12345, .mtime = -7, .hash = 0xFEEDu};
    km_tokens_meta meta = {.tokenizer = 0xABCDEF0123456789u,
                           .vocab = vocab,
                           .special = true,
                           .sources = &source,
                           .n_sources = 1};
    assert_done(km_tokens_commit(w, &meta, &err));
}

static void check_round_trip(int64_t vocab, int width) {
    km_tokens t;
    make(scratch("t"), vocab, 10000);
    assert_true(km_tokens_is(scratch("t")));
    assert_done(km_tokens_open(&t, scratch("t"), &err));
    assert_int_equal(t.width, width);
    assert_int_equal(t.count, 10000);
    assert_int_equal(t.meta.vocab, vocab);
    assert_true(t.meta.tokenizer == 0xABCDEF0123456789u);
    assert_true(t.meta.special);
    assert_int_equal(t.meta.n_sources, 1);
    assert_string_equal(t.meta.sources[0].path, "/somewhere/a text.txt");
    assert_int_equal(t.meta.sources[0].mtime, -7);
    assert_int_equal((uintptr_t)t.data % 64, 0);
    int32_t got[100];
    km_tokens_get(&t, 5000, 100, got);
    for (int i = 0; i < 100; i++) assert_int_equal(got[i], (5000 + i) * 7919ll % vocab);
    km_tokens_close(&t);
}

static void tokens_come_back_as_they_were(void **state) {
    (void)state;
    check_round_trip(65, 2);
    check_round_trip(65536, 2);
    check_round_trip(65537, 4);
}

static void a_token_outside_the_vocabulary_is_refused(void **state) {
    (void)state;
    km_tokens_writer *w = km_tokens_create(scratch("t"), 100, &err);
    int32_t ids[] = {1, 100}, negative = -1;
    assert_says(km_tokens_put(w, ids, 2, &err), "outside its vocabulary of 100");
    assert_says(km_tokens_put(w, &negative, 1, &err), "outside its vocabulary of 100");
    km_tokens_abort(w);
    assert_int_not_equal(access(scratch("t"), F_OK), 0);
}

/* Every byte in turn is changed: the file must be refused, never read wrong. Bytes of padding and
 * the zeros of header and trailer carry nothing: a file may still be right with those changed. */
static void any_changed_byte_is_found(void **state) {
    (void)state;
    make(scratch("t"), 65, 100);
    km_map m;
    assert_done(km_map_open(&m, scratch("t"), &err));
    uint8_t *copy = malloc(m.size);
    memcpy(copy, m.data, m.size);
    size_t n = m.size;
    km_map_close(&m);
    int refused = 0;
    for (size_t i = 0; i < n; i++) {
        copy[i] ^= 0x41;
        scratch_write(scratch("bad"), copy, n);
        copy[i] ^= 0x41;
        km_tokens t;
        km_error why = {0};
        if (km_tokens_open(&t, scratch("bad"), &why) != KM_OK) {
            assert_null(strchr(why.text, '\n'));
            refused++;
            continue;
        }
        assert_int_equal(t.count, 100);
        int32_t got[100];
        km_tokens_get(&t, 0, 100, got);
        for (int k = 0; k < 100; k++) assert_int_equal(got[k], k * 7919 % 65);
        km_tokens_close(&t);
    }
    assert_true(refused > (int)n / 2);
    free(copy);
}

static void a_file_cut_short_or_of_another_kind_is_refused(void **state) {
    (void)state;
    km_tokens t;
    make(scratch("t"), 65, 100);
    km_map m;
    assert_done(km_map_open(&m, scratch("t"), &err));
    for (size_t n = 0; n < m.size; n += 13) {
        scratch_write(scratch("short"), m.data, n);
        km_error why = {0};
        assert_int_not_equal(km_tokens_open(&t, scratch("short"), &why), KM_OK);
    }
    km_map_close(&m);
    assert_says(km_tokens_open(&t, scratch("short"), &err), "is damaged: its end is missing");
    scratch_write(scratch("text"),
                  "once upon a time there was a text that was long enough for the "
                  "header and the trailer of a token file, and still was none.",
                  130 - 9);
    assert_false(km_tokens_is(scratch("text")));
    assert_says(km_tokens_open(&t, scratch("text"), &err), "is not a token file");
    assert_says(km_tokens_open(&t, scratch("none"), &err), "cannot open");
}

static void nothing_appears_before_commit(void **state) {
    (void)state;
    km_tokens_writer *w = km_tokens_create(scratch("t"), 10, &err);
    assert_int_not_equal(access(scratch("t"), F_OK), 0);
    km_tokens_abort(w);
    km_tokens_abort(NULL);
    assert_null(km_tokens_create("/no/such/folder/t", 10, &err));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH(tokens_come_back_as_they_were),
        SCRATCH(a_token_outside_the_vocabulary_is_refused),
        SCRATCH(any_changed_byte_is_found),
        SCRATCH(a_file_cut_short_or_of_another_kind_is_refused),
        SCRATCH(nothing_appears_before_commit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
