/* Large texts on several threads: the ids of one thread, for every kind of tokenizer and for text
 * that offers no good place to cut it. */
#include "support/sanitized.h"
#include "token/token_support.h"

static km_token *load(const char *name) {
    char path[4096];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/token/%s.json", source ? source : ".", name);
    km_token *t = km_token_load(path, &token_err);
    assert_made(t);
    return t;
}

typedef struct collected {
    km_ids ids;
    size_t calls, stop_after;
} collected;

static km_status collect(void *user, const int32_t *ids, size_t n, km_error *err) {
    collected *c = user;
    if (++c->calls == c->stop_after) return km_error_set(err, KM_ERR_FILE, "the sink is full");
    return km_ids_put(&c->ids, ids, n, err);
}

static void compare(const km_token *t, const char *text, size_t n, unsigned flags) {
    km_ids want = token_encode(t, text, n, flags);
    static const size_t part[] = {0, 100, 1500, 6000};
    for (int threads = 1; threads <= 3; threads++) {
        collected got = {0};
        km_encode_options o = {.flags = flags, .threads = threads, .part = part[threads]};
        assert_fine(km_token_encode_large(t, text, n, &o, collect, &got, &token_err));
        size_t same = 0;
        while (same < want.len && same < got.ids.len && want.data[same] == got.ids.data[same])
            same++;
        if (same < want.len || want.len != got.ids.len)
            fail_msg("%d threads: %zu ids, not %zu; different from id %zu on", threads, got.ids.len,
                     want.len, same);
        km_ids_free(&got.ids);
    }
    km_ids_free(&want);
}

static void threads_give_the_ids_of_one(void **state) {
    km_token *t = load(*state);
    token_seed = 11;
    for (int i = 0; i < 3; i++) {
        km_text text = token_random_text(SANITIZED ? 20000 : 60000, i == 2);
        compare(t, text.data, text.len, i ? 0 : KM_TOKEN_ADD_SPECIAL | KM_TOKEN_PARSE_SPECIAL);
        km_text_free(&text);
    }
    km_token_free(t);
}

static void text_without_good_places_is_cut_right(void **state) {
    km_token *t = load(*state);
    static char text[24000];
    static const char *const fill[] = {" ", "\n", "a",  "ab", " \n",  "1",      "!",
                                       "é", "日", "a ", "'s", "\r\n", "a\n\n ", "  x"};
    for (size_t k = 0; k < sizeof fill / sizeof *fill; k++) {
        size_t n = strlen(fill[k]), length = sizeof text / n * n;
        for (size_t i = 0; i < length; i++) text[i] = fill[k][i % n];
        compare(t, text, length, 0);
    }
    /* Long stretches of each, one after the other. */
    token_seed = 21;
    for (int round = 0; round < 4; round++) {
        size_t length = 0;
        while (length + 5100 < sizeof text) {
            const char *f = fill[token_random(sizeof fill / sizeof *fill)];
            size_t n = strlen(f);
            for (uint32_t i = 1 + token_random(5000) / (uint32_t)n; i > 0; i--, length += n)
                memcpy(text + length, f, n);
        }
        compare(t, text, length, 0);
    }
    km_token_free(t);
}

static void an_unknown_character_far_inside_is_named_with_its_place(void **state) {
    (void)state;
    static char text[1200000];
    memset(text, 'a', sizeof text);
    for (size_t i = 99; i < sizeof text; i += 100) text[i] = '\n';
    km_token *t = km_token_chars(&(km_span){text, sizeof text}, 1, &token_err);
    assert_made(t);
    text[1000042] = '?';
    collected got = {0};
    km_encode_options o = {.threads = 3};
    assert_int_equal(km_token_encode_large(t, text, sizeof text, &o, collect, &got, &token_err),
                     KM_ERR_RANGE);
    assert_says("'?' (U+003F) at byte 1000042 (line 10001, column 43)");
    km_ids_free(&got.ids);
    km_token_free(t);
}

static void a_sink_can_refuse(void **state) {
    (void)state;
    km_token *t = km_token_bytes(&token_err);
    km_text text = {0};
    while (text.len < 5000000) km_text_add(&text, "some text that is repeated\n");
    collected got = {.stop_after = 2};
    assert_int_equal(km_token_encode_large(t, text.data, text.len, NULL, collect, &got, &token_err),
                     KM_ERR_FILE);
    assert_says("the sink is full");
    assert_int_equal(got.calls, 2);
    km_ids_free(&got.ids);
    km_text_free(&text);
    km_token_free(t);
}

static bool count_progress(void *user, const char *stage, int64_t done, int64_t total) {
    int64_t *last = user;
    assert_string_equal(stage, "encoding");
    assert_true(done >= *last && done <= total);
    *last = done;
    return done < total / 2;
}

static void progress_is_told_and_can_stop_it(void **state) {
    (void)state;
    km_token *t = load("gpt2");
    km_text text = token_random_text(4 << 20, false);
    int64_t last = 0;
    collected got = {0};
    km_encode_options o = {.threads = 2, .part = 50000, .progress = count_progress, .user = &last};
    assert_int_equal(km_token_encode_large(t, text.data, text.len, &o, collect, &got, &token_err),
                     KM_ERR_STATE);
    assert_says("stopped while encoding");
    assert_true(last > 0 && (size_t)last < text.len);
    km_ids_free(&got.ids);
    km_text_free(&text);
    km_token_free(t);
}

#define ROW(test, name)                                                                            \
    { #test " (" name ")", test, token_setup, NULL, (void *)(name) }

int main(void) {
    const struct CMUnitTest tests[] = {
        ROW(threads_give_the_ids_of_one, "gpt2"),
        ROW(threads_give_the_ids_of_one, "gpt2_prefix"),
        ROW(threads_give_the_ids_of_one, "llama3"),
        ROW(threads_give_the_ids_of_one, "qwen2"),
        ROW(threads_give_the_ids_of_one, "smollm"),
        ROW(threads_give_the_ids_of_one, "falcon"),
        ROW(threads_give_the_ids_of_one, "splits"),
        ROW(threads_give_the_ids_of_one, "bert"),
        ROW(threads_give_the_ids_of_one, "words"),
        ROW(threads_give_the_ids_of_one, "chars"),
        ROW(threads_give_the_ids_of_one, "llama_spm"),
        ROW(threads_give_the_ids_of_one, "tinyllama"),
        ROW(threads_give_the_ids_of_one, "metaspace_words"),
        ROW(text_without_good_places_is_cut_right, "gpt2"),
        ROW(text_without_good_places_is_cut_right, "llama3"),
        ROW(text_without_good_places_is_cut_right, "smollm"),
        ROW(text_without_good_places_is_cut_right, "llama_spm"),
        cmocka_unit_test_setup(an_unknown_character_far_inside_is_named_with_its_place,
                               token_setup),
        cmocka_unit_test_setup(a_sink_can_refuse, token_setup),
        cmocka_unit_test_setup(progress_is_told_and_can_stop_it, token_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
