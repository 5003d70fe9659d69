/* Tokenizer files that are broken, cut short or meant to harm: one clear line each, and nothing
 * left on the heap. */
#include "token/token_support.h"

static const char head[] = "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                           "\"decoder\":{\"type\":\"ByteLevel\"},";

static void refused(const char *json, const char *part, const char *file, int line) {
    int64_t live = km_alloc_live();
    km_token *t = km_token_parse(json, strlen(json), "x.json", &token_err);
    if (t) print_error("'%.80s' was taken\n", json);
    _assert_true(t == NULL, "it is refused", file, line);
    _assert_true(strncmp(token_err.text, "x.json: ", 8) == 0, "the file is named", file, line);
    token_says(part, file, line);
    _assert_true(km_alloc_live() == live, "nothing is left behind", file, line);
}
#define REFUSED(json, part) refused(json, part, __FILE__, __LINE__)

static void broken_json_is_refused(void **state) {
    (void)state;
    REFUSED("", "not a tokenizer.json");
    REFUSED("[]", "not a tokenizer.json");
    REFUSED("{}", "it has no model");
    REFUSED("{\"model\":", "the file ends too early");
    REFUSED("{\"model\":{}", "the file ends too early");
    REFUSED("{\"model\":{}}x", "something after the end");
    REFUSED("{\"model\":null}", "it has no model");
    REFUSED("{\"a\":\"\xFF\"}", "a string that is not UTF-8 at byte");
    REFUSED("{\"a\":\"\\ud800\"}", "half a surrogate");
    REFUSED("{\"a\":\"\\x\"}", "a wrong escape");
    char deep[4000] = "{\"a\":";
    memset(deep + 5, '[', 3000);
    REFUSED(deep, "nested too deep");
}

static void broken_models_are_refused(void **state) {
    (void)state;
    REFUSED("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "type 'Unigram' is not supported");
    REFUSED("{\"model\":{\"type\":\"BPE\"}}", "no vocabulary");
    REFUSED("{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", "the vocabulary is empty");
    REFUSED("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0}}}",
            "id 0 is given twice, to 'a' and to 'b'");
    REFUSED("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1}}}", "has id -1");
    REFUSED("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999999999999999}}}", "has id");
    REFUSED("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4000000}}}",
            "more than half of the ids have no token");
    REFUSED("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5}}}", "no whole number");
    REFUSED("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"}}}", "no whole number");
    REFUSED("{\"model\":{\"type\":\"BPE\",\"vocab\":[\"a\"]}}", "no vocabulary");
    REFUSED("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"end_of_word_suffix\":\"</w>\"}}",
            "end_of_word_suffix is not supported");
    REFUSED("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"dropout\":0.1}}", "dropout");
}

static void merges_that_cannot_be_are_refused(void **state) {
    (void)state;
#define BPE(merges)                                                                                \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[" merges "]}}"
    REFUSED(BPE("\"a c\""), "merge 0 is of 'c', which is no token");
    REFUSED(BPE("\"a b\",\"ab b\""), "merge 1 makes 'abb', which is no token");
    REFUSED(BPE("\"ab\""), "not two tokens");
    REFUSED(BPE("\"a b c\""), "not two tokens");
    REFUSED(BPE("[\"a\"]"), "no ','");
    REFUSED(BPE("7"), "no string");
    REFUSED("{\"model\":{\"type\":\"BPE\",\"merges\":[\"a b\"],\"vocab\":{\"a\":0}}}",
            "merge 0 is of 'b', which is no token");
#undef BPE
}

static void unknown_sections_are_refused_by_name(void **state) {
    (void)state;
#define WITH(section) "{" section ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}"
    REFUSED(WITH("\"normalizer\":{\"type\":\"Precompiled\"}"), "normalizer 'Precompiled'");
    REFUSED(WITH("\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}"), "pre_tokenizer 'Unicode");
    REFUSED(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Odd\"}"), "'Odd'");
    REFUSED(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\","
                 "\"pattern\":{\"Regex\":\"(\"}}"),
            "pattern '(' cannot be used");
    REFUSED(WITH("\"decoder\":{\"type\":\"CTC\"}"), "decoder 'CTC'");
    REFUSED(WITH("\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"a\",7],"
                 "\"cls\":[\"a\",0]}"),
            "names an id that is no token");
    REFUSED(WITH("\"added_tokens\":[{\"id\":0,\"content\":\"z\"}]"),
            "id 0 is given twice, to 'a' and to 'z'");
    REFUSED(WITH("\"added_tokens\":[{\"id\":1}]"), "without id or content");
    REFUSED(WITH("\"added_tokens\":{}"), "added_tokens is no list");
#undef WITH
}

static void a_sequence_within_itself_many_times_is_refused(void **state) {
    (void)state;
    km_text json = {0};
    km_text_add(&json, "{\"normalizer\":");
    for (int i = 0; i < 30; i++) km_text_add(&json, "{\"type\":\"Sequence\",\"normalizers\":[");
    km_text_add(&json, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 30; i++) km_text_add(&json, "]}");
    km_text_add(&json, ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}");
    REFUSED(km_text_str(&json), "nested too deep");
    km_text_free(&json);
}

static void a_vocabulary_with_holes_works_around_them(void **state) {
    (void)state;
    char json[1000];
    snprintf(json, sizeof json,
             "%s\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":5,\"b\":2},\"merges\":[]}}", head);
    km_token *t = km_token_parse(json, strlen(json), "x.json", &token_err);
    assert_made(t);
    assert_int_equal(km_token_vocab(t), 6);
    assert_ids(t, "ab", 5, 2);
    km_text text = {0};
    assert_int_equal(km_token_decode(t, (int32_t[]){3}, 1, 0, &text, &token_err), KM_ERR_RANGE);
    assert_says("id 3 is no token");
    assert_ids(t, "abc", 5, 2); /* a byte that has no token is dropped */
    km_token_free(t);
}

static void a_file_cut_anywhere_is_refused(void **state) {
    (void)state;
    char path[4096];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/token/llama3.json", source ? source : ".");
    km_map map;
    assert_fine(km_map_open(&map, path, &token_err));
    int64_t live = km_alloc_live();
    size_t n = map.size;
    while (n > 0 && map.data[n - 1] != '}') n--;
    for (size_t cut = 0; cut < n; cut += 1 + cut / 100) {
        assert_null(km_token_parse((const char *)map.data, cut, "x.json", &token_err));
        assert_true(token_err.code == KM_ERR_FORMAT);
        assert_says("x.json: ");
    }
    assert_int_equal(km_alloc_live(), live);
    km_map_close(&map);
}

static void files_that_are_not_there_are_named(void **state) {
    (void)state;
    assert_null(km_token_load("/nowhere/tokenizer.json", &token_err));
    assert_says("/nowhere/tokenizer.json");
    assert_null(km_token_load("/tmp/", &token_err));
    assert_says("folder '/tmp/' holds no tokenizer.json");
    assert_null(km_token_load("/dev/null", &token_err));
    assert_says("/dev/null");
    assert_null(km_token_load("", &token_err));
    assert_says("no tokenizer given");
    km_token *t = km_token_bytes(&token_err);
    assert_int_equal(km_token_save(t, "/nowhere/x.json", &token_err), KM_ERR_FILE);
    assert_says("/nowhere");
    km_token_free(t);
}

/* A merge whose result is one of its own parts' ancestors cannot loop: each step shortens. */
static void merges_in_a_ring_end(void **state) {
    (void)state;
    char json[1000];
    snprintf(json, sizeof json,
             "%s\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1,\"aaa\":2,\"aaaa\":3},"
             "\"merges\":[\"a a\",\"aa a\",\"a aa\",\"aa aa\",\"aaa a\",\"a aaa\",\"a a\"]}}",
             head);
    km_token *t = km_token_parse(json, strlen(json), "x.json", &token_err);
    assert_made(t);
    char text[5000];
    memset(text, 'a', sizeof text);
    for (size_t n = 1; n < sizeof text; n = n * 3 / 2 + 1) assert_returns(t, text, n);
    km_token_free(t);
}

static void a_word_of_a_megabyte_takes_no_age(void **state) {
    (void)state;
    token_seed = 77;
    static char text[1 << 20];
    for (size_t i = 0; i < sizeof text; i++) text[i] = "abcd"[token_random(4)];
    km_token *t = km_token_train_bpe(&(km_span){text, sizeof text}, 1,
                                     &(km_bpe_options){.vocab = 2000}, &token_err);
    assert_made(t);
    assert_int_equal(km_token_vocab(t), 2000);
    assert_returns(t, text, sizeof text);
    km_token_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(broken_json_is_refused, token_setup),
        cmocka_unit_test_setup(broken_models_are_refused, token_setup),
        cmocka_unit_test_setup(merges_that_cannot_be_are_refused, token_setup),
        cmocka_unit_test_setup(unknown_sections_are_refused_by_name, token_setup),
        cmocka_unit_test_setup(a_sequence_within_itself_many_times_is_refused, token_setup),
        cmocka_unit_test_setup(a_vocabulary_with_holes_works_around_them, token_setup),
        cmocka_unit_test_setup(a_file_cut_anywhere_is_refused, token_setup),
        cmocka_unit_test_setup(files_that_are_not_there_are_named, token_setup),
        cmocka_unit_test_setup(merges_in_a_ring_end, token_setup),
        cmocka_unit_test_setup(a_word_of_a_megabyte_takes_no_age, token_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
