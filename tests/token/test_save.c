/* What we save: files that are, byte for byte, those that Hugging Face's `tokenizers` was seen to
 * read with the same ids (tests/fixtures/token/saved_*), and tokenizers inside of GGUF files. */
#include "token/gguf.h"
#include "token/token_support.h"
#include <jansson.h>

static const char *fixture(const char *name, const char *suffix) {
    static char path[4096];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/token/%s%s", source ? source : ".", name,
             suffix);
    return path;
}

static char temp[64];

static const char *temp_file(const char *suffix) {
    snprintf(temp, sizeof temp, "/tmp/kermes-save-%ld%s", (long)getpid(), suffix);
    return temp;
}

/* Their ids for the rows of a file, where we have them: they leave unknown characters out. */
static void check_rows(const km_token *t, const char *name, size_t at_least) {
    json_t *cases = json_load_file(fixture(name, ".cases.json"), JSON_ALLOW_NUL, NULL);
    assert_non_null(cases);
    size_t checked = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *row = json_array_get(cases, i), *text = json_object_get(row, "text");
        const json_t *list = json_object_get(row, "ids");
        km_ids ids = {0};
        km_error err = {0};
        if (km_token_encode(t, json_string_value(text), json_string_length(text),
                            KM_TOKEN_PARSE_SPECIAL, &ids, &err) == KM_OK) {
            assert_int_equal(ids.len, json_array_size(list));
            for (size_t k = 0; k < ids.len; k++)
                assert_int_equal(ids.data[k], json_integer_value(json_array_get(list, k)));
            checked++;
        }
        km_ids_free(&ids);
    }
    assert_true(checked >= at_least);
    json_decref(cases);
}

static void check_saved(const km_token *t, const char *name, size_t at_least) {
    const char *path = temp_file(".json");
    assert_fine(km_token_save(t, path, &token_err));
    km_map ours, theirs;
    assert_fine(km_map_open(&ours, path, &token_err));
    assert_fine(km_map_open(&theirs, fixture(name, ".json"), &token_err));
    assert_int_equal(ours.size, theirs.size);
    assert_memory_equal(ours.data, theirs.data, ours.size);
    km_map_close(&ours);
    km_map_close(&theirs);
    km_token *again = km_token_load(path, &token_err);
    assert_made(again);
    assert_string_equal(km_token_kind(again), km_token_kind(t));
    assert_true(km_token_hash(again) == km_token_hash(t));
    assert_int_equal(km_token_eos(again), km_token_eos(t));
    check_rows(t, name, at_least);
    check_rows(again, name, at_least);
    km_token_free(again);
    unlink(path);
}

static void a_trained_tokenizer_is_saved_as_hugging_face_reads_it(void **state) {
    (void)state;
    km_map map;
    assert_fine(km_map_open(&map, fixture("text", ".txt"), &token_err));
    const char *special[] = {KM_TOKEN_END};
    km_span span = {(const char *)map.data, map.size};
    km_bpe_options o = {.vocab = 400, .special = special, .n_special = 1};
    km_token *t = km_token_train_bpe(&span, 1, &o, &token_err);
    assert_made(t);
    check_saved(t, "saved_bpe", 70);
    km_token_free(t);
    km_map_close(&map);
}

static void characters_are_saved_as_hugging_face_reads_them(void **state) {
    (void)state;
    km_map map;
    assert_fine(km_map_open(&map, fixture("text", ".txt"), &token_err));
    km_token *t = km_token_chars(&(km_span){(const char *)map.data, map.size}, 1, &token_err);
    assert_made(t);
    check_saved(t, "saved_chars", 20);
    km_token_free(t);
    km_map_close(&map);
}

static void bytes_are_saved_as_hugging_face_reads_them(void **state) {
    (void)state;
    km_token *t = km_token_bytes(&token_err);
    assert_made(t);
    check_saved(t, "saved_bytes", 70);
    km_token_free(t);
}

static void every_character_survives_a_file(void **state) {
    (void)state;
    km_text text = {0};
    km_text_put(&text, "\0\x01\t\n\r\"\\/\x7F", 9);
    km_text_add(&text, "é\xE2\x80\xA8日🦙");
    km_token *t = km_token_chars(&(km_span){text.data, text.len}, 1, &token_err);
    assert_made(t);
    const char *path = temp_file(".json");
    assert_fine(km_token_save(t, path, &token_err));
    km_token *again = km_token_load(path, &token_err);
    assert_made(again);
    assert_returns(again, text.data, text.len);
    assert_true(km_token_hash(again) == km_token_hash(t));
    km_token_free(t);
    km_token_free(again);
    km_text_free(&text);
    unlink(path);
}

static void a_tokenizer_goes_through_gguf_unchanged(void **state) {
    km_token *t = km_token_load(fixture(*state, ".json"), &token_err);
    assert_made(t);
    const char *path = temp_file(".gguf");
    km_gguf_out *out = km_gguf_out_new(&token_err);
    km_gguf_put_string(out, "general.architecture", "test");
    assert_fine(km_token_put_gguf(t, out, &token_err));
    assert_fine(km_gguf_write(out, path, &token_err));
    km_gguf_out_free(out);
    km_token *again = km_token_load(path, &token_err);
    assert_made(again);
    assert_int_equal(km_token_vocab(again), km_token_vocab(t));
    token_seed = 31;
    for (int i = 0; i < 300; i++) {
        km_text text = token_random_text(1 + token_random(200), false);
        for (unsigned flags = 0; flags < 4; flags++) {
            km_ids want = token_encode(t, text.data, text.len, flags);
            token_check(again, text.data, text.len, flags, want.data, want.len, __FILE__, __LINE__);
            km_ids_free(&want);
        }
        km_text_free(&text);
    }
    km_token_free(t);
    km_token_free(again);
    unlink(path);
}

static void what_gguf_cannot_say_is_refused(void **state) {
    (void)state;
    const char *const names[] = {"words", "chars", "splits", "gpt2_prefix"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        km_token *t = km_token_load(fixture(names[i], ".json"), &token_err);
        assert_made(t);
        km_gguf_out *out = km_gguf_out_new(&token_err);
        assert_int_equal(km_token_put_gguf(t, out, &token_err), KM_ERR_UNSUPPORTED);
        assert_says("GGUF has no");
        km_gguf_out_free(out);
        km_token_free(t);
    }
}

#define GGUF(name)                                                                                 \
    {                                                                                              \
        "a_tokenizer_goes_through_gguf_unchanged (" name ")",                                      \
            a_tokenizer_goes_through_gguf_unchanged, token_setup, NULL, (void *)(name)             \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_trained_tokenizer_is_saved_as_hugging_face_reads_it, token_setup),
        cmocka_unit_test_setup(characters_are_saved_as_hugging_face_reads_them, token_setup),
        cmocka_unit_test_setup(bytes_are_saved_as_hugging_face_reads_them, token_setup),
        cmocka_unit_test_setup(every_character_survives_a_file, token_setup),
        GGUF("gpt2"),
        GGUF("trained"),
        GGUF("llama3"),
        GGUF("qwen2"),
        GGUF("smollm"),
        GGUF("bert"),
        GGUF("llama_spm"),
        cmocka_unit_test_setup(what_gguf_cannot_say_is_refused, token_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
