/* Bytes and characters, what a tokenizer tells about itself, and decoding as a stream. */
#include "token/token_support.h"

static km_token *chars_of(const char *text) {
    km_span span = {text, strlen(text)};
    km_token *t = km_token_chars(&span, 1, &token_err);
    assert_made(t);
    return t;
}

static void bytes_are_their_own_ids(void **state) {
    (void)state;
    int64_t live = km_alloc_live();
    km_token *t = km_token_bytes(&token_err);
    assert_made(t);
    assert_int_equal(km_token_vocab(t), 256);
    assert_string_equal(km_token_kind(t), "bytes");
    assert_int_equal(km_token_eos(t), -1);
    assert_ids(t, "aé\n", 'a', 0xC3, 0xA9, '\n');
    char all[256];
    for (int i = 0; i < 256; i++) all[i] = (char)i;
    assert_returns(t, all, sizeof all);
    assert_returns(t, "", 0);
    km_token_free(t);
    assert_int_equal(km_alloc_live(), live);
}

static void characters_are_numbered_by_code_point(void **state) {
    (void)state;
    km_token *t = chars_of("hello wörld\n🦙");
    assert_int_equal(km_token_vocab(t), 11);
    assert_string_equal(km_token_kind(t), "chars");
    assert_ids(t, "\n d🦙ö", 0, 1, 2, 10, 9);
    assert_returns(t, "world hello\n", 12);
    size_t n;
    assert_memory_equal(km_token_text(t, 10, &n), "🦙", 4);
    assert_int_equal(n, 4);
    assert_null(km_token_text(t, 11, &n));
    assert_null(km_token_text(t, -1, &n));
    assert_int_equal(km_token_find(t, "ö"), 9);
    assert_int_equal(km_token_find(t, "x"), -1);
    km_token_free(t);
}

static void an_unknown_character_is_named_with_its_place(void **state) {
    (void)state;
    km_token *t = chars_of("abc\nö ");
    km_ids ids = {0};
    assert_int_equal(km_token_encode(t, "ab\nöab?c", 9, 0, &ids, &token_err), KM_ERR_RANGE);
    assert_says("'?' (U+003F) at byte 7 (line 2, column 4)");
    assert_int_equal(ids.len, 0);
    assert_int_equal(km_token_encode(t, "a\x01", 2, 0, &ids, &token_err), KM_ERR_RANGE);
    assert_says("the character U+0001 at byte 1 (line 1, column 2)");
    assert_int_equal(km_token_encode(t, "a\xFFz", 3, 0, &ids, &token_err), KM_ERR_RANGE);
    assert_says("byte 0xFF, which is not UTF-8, at byte 1");
    km_ids_free(&ids);
    km_token_free(t);
}

static void text_that_is_no_text_makes_no_characters(void **state) {
    (void)state;
    km_span bad = {"ab\xC3(", 4}, none = {"", 0};
    assert_null(km_token_chars(&bad, 1, &token_err));
    assert_says("text 1 is not UTF-8: byte 0xC3 at 2");
    assert_null(km_token_chars(&none, 1, &token_err));
    assert_says("an empty text");
}

static void ids_that_are_no_tokens_are_refused(void **state) {
    (void)state;
    km_token *t = km_token_bytes(&token_err);
    km_text text = {0};
    km_text_add(&text, "kept");
    assert_int_equal(km_token_decode(t, (int32_t[]){65, 256}, 2, 0, &text, &token_err),
                     KM_ERR_RANGE);
    assert_says("id 256 is no token; the vocabulary has 256");
    assert_int_equal(km_token_decode(t, (int32_t[]){-1}, 1, 0, &text, &token_err), KM_ERR_RANGE);
    assert_says("id -1");
    assert_string_equal(km_text_str(&text), "kept");
    km_text_free(&text);
    km_token_free(t);
}

static void a_stream_never_shows_half_a_character(void **state) {
    (void)state;
    km_token *t = km_token_bytes(&token_err);
    const char *text = "aé日🦙z";
    km_token_stream s = km_token_stream_begin(t, 0);
    km_text all = {0};
    for (const char *p = text; *p; p++) {
        km_text out = {0};
        assert_fine(km_token_stream_put(&s, (unsigned char)*p, &out, &token_err));
        /* Whole characters, and only once their last byte is here. */
        assert_true(out.len == 0 || ((unsigned char)out.data[0] & 0xC0) != 0x80);
        assert_true((((unsigned char)p[1] & 0xC0) == 0x80) == (out.len == 0));
        km_text_put(&all, km_text_str(&out), out.len);
        km_text_free(&out);
    }
    km_token_stream_end(&s, &all);
    assert_string_equal(km_text_str(&all), text);
    km_text_free(&all);
    km_token_free(t);
}

static void a_stream_shows_what_cannot_be_text_as_such(void **state) {
    (void)state;
    km_token *t = km_token_bytes(&token_err);
    km_token_stream s = km_token_stream_begin(t, 0);
    km_text out = {0};
    const unsigned char bytes[] = {'a', 0xFF, 'b', 0xC3, 'c', 0xF0, 0x9F};
    for (size_t i = 0; i < sizeof bytes; i++)
        assert_fine(km_token_stream_put(&s, bytes[i], &out, &token_err));
    assert_string_equal(km_text_str(&out), "a\xEF\xBF\xBD"
                                           "b\xEF\xBF\xBD"
                                           "c");
    km_token_stream_end(&s, &out);
    assert_string_equal(km_text_str(&out), "a\xEF\xBF\xBD"
                                           "b\xEF\xBF\xBD"
                                           "c\xEF\xBF\xBD");
    km_text_free(&out);
    km_token_free(t);
}

static void tokenizers_that_differ_have_different_hashes(void **state) {
    (void)state;
    km_token *a = chars_of("abc"), *b = chars_of("abcd"), *c = chars_of("cab");
    assert_true(km_token_hash(a) == km_token_hash(c));
    assert_true(km_token_hash(a) != km_token_hash(b));
    km_token_free(a);
    km_token_free(b);
    km_token_free(c);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    int64_t live = km_alloc_live();
    km_span span = {"to be or not to be, that is the question 'tis nobler to be", 58};
    int fine = 0; /* a cache that could not be had is done without; the end is when all is fine */
    for (int64_t nth = 0; fine < 4; nth++) {
        km_error err = {0};
        km_ids ids = {0};
        km_alloc_fail_nth(nth);
        km_token *t =
            km_token_train_bpe(&span, 1, &(km_bpe_options){.vocab = 270, .threads = 1}, &err);
        km_status s = t ? km_token_encode(t, span.data, span.bytes, 0, &ids, &err) : err.code;
        km_alloc_fail_nth(-1);
        fine = s == KM_OK ? fine + 1 : 0;
        if (!t || s != KM_OK) assert_int_equal(err.code, KM_ERR_MEMORY);
        km_ids_free(&ids);
        km_token_free(t);
        assert_int_equal(km_alloc_live(), live);
        assert_true(nth < 5000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(bytes_are_their_own_ids, token_setup),
        cmocka_unit_test_setup(characters_are_numbered_by_code_point, token_setup),
        cmocka_unit_test_setup(an_unknown_character_is_named_with_its_place, token_setup),
        cmocka_unit_test_setup(text_that_is_no_text_makes_no_characters, token_setup),
        cmocka_unit_test_setup(ids_that_are_no_tokens_are_refused, token_setup),
        cmocka_unit_test_setup(a_stream_never_shows_half_a_character, token_setup),
        cmocka_unit_test_setup(a_stream_shows_what_cannot_be_text_as_such, token_setup),
        cmocka_unit_test_setup(tokenizers_that_differ_have_different_hashes, token_setup),
        cmocka_unit_test_setup(every_allocation_may_fail, token_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
