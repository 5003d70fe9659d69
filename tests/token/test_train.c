/* Training byte-level BPE: what Hugging Face learns from the same text, whatever the number of
 * threads, and text that is hard on it. */
#include "support/sanitized.h"
#include "token/internal.h"
#include "token/token_support.h"

static km_token *train_with(const km_span *texts, size_t n, int64_t vocab, int threads) {
    km_bpe_options o = {.vocab = vocab, .threads = threads};
    km_token *t = km_token_train_bpe(texts, n, &o, &token_err);
    assert_made(t);
    return t;
}

static km_token *train(const char *text, size_t n, int64_t vocab, int threads) {
    return train_with(&(km_span){text, n}, 1, vocab, threads);
}

static void open_text(km_map *map) {
    char path[4096];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/token/text.txt", source ? source : ".");
    assert_fine(km_map_open(map, path, &token_err));
}

static void the_merges_are_those_of_hugging_face(void **state) {
    (void)state;
    km_map map;
    open_text(&map);
    char path[4096];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/token/trained.json", source ? source : ".");
    km_token *theirs = km_token_load(path, &token_err);
    assert_made(theirs);
    km_token *ours = train((const char *)map.data, map.size, 900, 2);
    assert_int_equal(theirs->merges.count, 900 - 256);
    assert_int_equal(ours->merges.count, theirs->merges.count);
    for (int32_t i = 0; i < ours->merges.count; i++)
        assert_memory_equal(&ours->merges.list[i], &theirs->merges.list[i], sizeof(km_merge));
    assert_true(km_token_hash(ours) == km_token_hash(theirs));
    km_token_free(ours);
    km_token_free(theirs);
    km_map_close(&map);
}

static void threads_do_not_change_the_result(void **state) {
    (void)state;
    token_seed = 99;
    km_text text = token_random_text(SANITIZED ? 1 << 20 : 3 << 20, true);
    km_token *one = train(text.data, text.len, 700, 1);
    for (int threads = 2; threads <= 5; threads += SANITIZED ? 3 : 1) {
        km_token *many = train(text.data, text.len, 700, threads);
        assert_true(km_token_hash(one) == km_token_hash(many));
        km_token_free(many);
    }
    assert_returns(one, text.data, text.len);
    km_token_free(one);
    km_text_free(&text);
}

/* The plain way: all pairs counted anew for each merge. */
static void slow_train(const char *text, size_t n, km_merge *out, int count) {
    int32_t *s = malloc(n * sizeof *s);
    int32_t rank[256];
    for (int i = 0; i < 256; i++) rank[km_byte_order[i]] = i;
    for (size_t i = 0; i < n; i++) s[i] = rank[(unsigned char)text[i]];
    for (int m = 0; m < count; m++) {
        int32_t vocab = 256 + m;
        int64_t *pairs = calloc((size_t)vocab * (size_t)vocab, sizeof *pairs), best = 0;
        for (size_t i = 0; i + 1 < n; i++) pairs[s[i] * vocab + s[i + 1]]++;
        for (int64_t k = 1; k < (int64_t)vocab * vocab; k++)
            if (pairs[k] > pairs[best]) best = k;
        out[m] = (km_merge){(int32_t)(best / vocab), (int32_t)(best % vocab), vocab};
        size_t made = 0;
        for (size_t i = 0; i < n; i++) {
            bool hit = i + 1 < n && s[i] == out[m].left && s[i + 1] == out[m].right;
            s[made++] = hit ? vocab : s[i];
            i += hit;
        }
        n = made;
        free(pairs);
    }
    free(s);
}

static void one_long_word_is_merged_as_by_counting_anew(void **state) {
    (void)state;
    token_seed = 5;
    char text[4000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = "aaaaabbbc"[token_random(9)];
    km_merge want[80];
    slow_train(text, sizeof text, want, 80);
    km_token *t = train(text, sizeof text, 256 + 80, 1);
    assert_int_equal(t->merges.count, 80);
    for (int i = 0; i < 80; i++) assert_memory_equal(&t->merges.list[i], &want[i], sizeof *want);
    assert_returns(t, text, sizeof text);
    km_token_free(t);
}

static void runs_of_one_letter_merge_from_the_left(void **state) {
    (void)state;
    for (size_t n = 2; n < 40; n++) {
        char text[40];
        memset(text, 'a', n);
        km_merge want[8] = {{0}};
        km_bpe_options o = {.vocab = 264, .min_count = 1, .threads = 1};
        km_token *t = km_token_train_bpe(&(km_span){text, n}, 1, &o, &token_err);
        assert_made(t);
        slow_train(text, n, want, t->merges.count);
        for (int i = 0; i < t->merges.count; i++)
            assert_memory_equal(&t->merges.list[i], &want[i], sizeof *want);
        assert_returns(t, text, n);
        km_token_free(t);
    }
}

static void several_texts_count_together_but_do_not_touch(void **state) {
    (void)state;
    km_span texts[] = {{"xyxyxy", 6}, {"", 0}, {"qxy", 3}, {"q", 1}, {"q", 1}, {"q", 1}};
    km_token *t = train_with(texts, 6, 300, 2);
    assert_true(t->merges.count >= 1);
    size_t n;
    const char *first = km_token_text(t, 256, &n);
    assert_int_equal(n, 2);
    assert_memory_equal(first, "xy", 2);
    for (int32_t id = 256; id < km_token_vocab(t); id++) {
        const char *s = km_token_text(t, id, &n);
        assert_null(memmem(s, n, "qq", 2));
    }
    km_token_free(t);
}

static void special_tokens_come_last_and_end_the_text(void **state) {
    (void)state;
    const char *special[] = {"<|user|>", KM_TOKEN_END};
    km_bpe_options o = {.vocab = 262, .special = special, .n_special = 2};
    km_span span = {"ababab abab cdcd cdcdcd", 23};
    km_token *t = km_token_train_bpe(&span, 1, &o, &token_err);
    assert_made(t);
    assert_int_equal(km_token_vocab(t), 262);
    assert_int_equal(km_token_eos(t), 261);
    assert_int_equal(km_token_find(t, "<|user|>"), 260);
    assert_true(km_token_is_special(t, 260) && km_token_is_end(t, 261) && !km_token_is_end(t, 260));
    token_check(t, "<|endoftext|>", 13, KM_TOKEN_PARSE_SPECIAL, (int32_t[]){261}, 1, __FILE__,
                __LINE__);
    km_ids ids = token_encode(t, "<|endoftext|>", 13, 0);
    assert_true(ids.len > 5);
    km_ids_free(&ids);
    km_text text = {0};
    assert_fine(
        km_token_decode(t, (int32_t[]){260, 261}, 2, KM_TOKEN_SKIP_SPECIAL, &text, &token_err));
    assert_int_equal(text.len, 0);
    km_text_free(&text);
    km_token_free(t);
}

static bool stop_at_once(void *user, const char *stage, int64_t done, int64_t total) {
    (void)stage;
    assert_true(done <= total);
    return --*(int *)user > 0;
}

static void training_can_be_stopped(void **state) {
    (void)state;
    token_seed = 3;
    km_text text = token_random_text(200000, false);
    km_span span = {text.data, text.len};
    for (int after = 1; after < 4; after++) {
        int left = after;
        km_bpe_options o = {.vocab = 2000, .threads = 2, .progress = stop_at_once, .user = &left};
        assert_null(km_token_train_bpe(&span, 1, &o, &token_err));
        assert_int_equal(token_err.code, KM_ERR_STATE);
        assert_says("stopped while");
    }
    km_text_free(&text);
}

static void what_cannot_be_trained_is_refused(void **state) {
    (void)state;
    km_span span = {"abc", 3}, empty = {"", 0};
    const char *twice[] = {"<a>", "<a>"};
    assert_null(km_token_train_bpe(&span, 1, &(km_bpe_options){.vocab = 255}, &token_err));
    assert_says("it takes 256 at least");
    assert_null(km_token_train_bpe(&span, 1, &(km_bpe_options){.vocab = INT64_MAX}, &token_err));
    assert_says("at most");
    assert_null(km_token_train_bpe(&empty, 1, &(km_bpe_options){.vocab = 300}, &token_err));
    assert_says("an empty text");
    assert_null(km_token_train_bpe(
        &span, 1, &(km_bpe_options){.vocab = 300, .special = twice, .n_special = 2}, &token_err));
    assert_says("'<a>' is given twice");
    /* Too little text gives a smaller vocabulary, not an error. */
    km_token *t = train("abc", 3, 5000, 1);
    assert_int_equal(km_token_vocab(t), 256);
    km_token_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_merges_are_those_of_hugging_face, token_setup),
        cmocka_unit_test_setup(threads_do_not_change_the_result, token_setup),
        cmocka_unit_test_setup(one_long_word_is_merged_as_by_counting_anew, token_setup),
        cmocka_unit_test_setup(runs_of_one_letter_merge_from_the_left, token_setup),
        cmocka_unit_test_setup(several_texts_count_together_but_do_not_touch, token_setup),
        cmocka_unit_test_setup(special_tokens_come_last_and_end_the_text, token_setup),
        cmocka_unit_test_setup(training_can_be_stopped, token_setup),
        cmocka_unit_test_setup(what_cannot_be_trained_is_refused, token_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
