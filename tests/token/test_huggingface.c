/* Tokenizers that Hugging Face's `tokenizers` made, and the ids it gives: ours must be the same.
 * The files come from scripts/fixtures/make_tokenizers.py. */
#include "token/token_support.h"
#include <jansson.h>

static const char *fixture(const char *name, const char *suffix) {
    static char path[4096];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/token/%s%s", source ? source : ".", name,
             suffix);
    return path;
}

static json_t *load_cases(const char *name) {
    json_error_t why;
    json_t *cases = json_load_file(fixture(name, ".cases.json"), JSON_ALLOW_NUL, &why);
    if (!cases) fail_msg("%s: %s", name, why.text);
    assert_true(json_array_size(cases) > 60);
    return cases;
}

static size_t read_list(const json_t *list, int32_t *out, size_t room) {
    size_t n = json_array_size(list);
    assert_true(n <= room);
    for (size_t i = 0; i < n; i++) out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

static void check_decoding(const km_token *t, const int32_t *ids, size_t n, const json_t *want) {
    km_text text = {0};
    assert_fine(km_token_decode(t, ids, n, 0, &text, &token_err));
    if (text.len != json_string_length(want) ||
        memcmp(km_text_str(&text), json_string_value(want), text.len) != 0)
        fail_msg("decoded '%s', not '%s'", km_text_str(&text), json_string_value(want));
    km_text_free(&text);
}

static void check_cases(const km_token *t, const char *name) {
    static int32_t want[4096];
    json_t *cases = load_cases(name);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *row = json_array_get(cases, i), *text = json_object_get(row, "text");
        const char *s = json_string_value(text);
        size_t length = json_string_length(text);
        size_t n = read_list(json_object_get(row, "with_special"), want, 4096);
        token_check(t, s, length, KM_TOKEN_ADD_SPECIAL | KM_TOKEN_PARSE_SPECIAL, want, n, __FILE__,
                    __LINE__);
        n = read_list(json_object_get(row, "ids"), want, 4096);
        token_check(t, s, length, KM_TOKEN_PARSE_SPECIAL, want, n, __FILE__, __LINE__);
        check_decoding(t, want, n, json_object_get(row, "decoded"));
    }
    json_decref(cases);
}

static void a_file_of_theirs_gives_their_ids(void **state) {
    const char *name = *state;
    km_token *t = km_token_load(fixture(name, ".json"), &token_err);
    assert_made(t);
    check_cases(t, name);
    km_token_free(t);
}

static void a_file_saved_again_gives_the_same_ids(void **state) {
    const char *name = *state;
    char path[] = "/tmp/kermes-token-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    km_token *t = km_token_load(fixture(name, ".json"), &token_err);
    assert_made(t);
    assert_fine(km_token_save(t, path, &token_err));
    km_token *again = km_token_load(path, &token_err);
    assert_made(again);
    assert_true(km_token_hash(t) == km_token_hash(again));
    assert_int_equal(km_token_vocab(t), km_token_vocab(again));
    assert_string_equal(km_token_kind(t), km_token_kind(again));
    check_cases(again, name);
    km_token_free(t);
    km_token_free(again);
    unlink(path);
}

#define ROWS(name)                                                                                 \
    {"a_file_of_theirs_gives_their_ids (" name ")", a_file_of_theirs_gives_their_ids, token_setup, \
     NULL, (void *)(name)},                                                                        \
    {                                                                                              \
        "a_file_saved_again_gives_the_same_ids (" name ")", a_file_saved_again_gives_the_same_ids, \
            token_setup, NULL, (void *)(name)                                                      \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        ROWS("gpt2"),
        ROWS("gpt2_prefix"),
        ROWS("llama3"),
        ROWS("qwen2"),
        ROWS("smollm"),
        ROWS("falcon"),
        ROWS("splits"),
        ROWS("bert"),
        ROWS("words"),
        ROWS("chars"),
        ROWS("llama_spm"),
        ROWS("tinyllama"),
        ROWS("metaspace_words"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
