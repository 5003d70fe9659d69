/* The families of byte-level BPE that GGUF files name: their patterns cut text as they do in
 * Hugging Face's `tokenizers` (tests/fixtures/token/families.json). */
#include "token/families.h"
#include "token/token_support.h"

static json_t *load_fixture(void) {
    char path[4096];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/token/families.json", source ? source : ".");
    json_t *v = json_load_file(path, JSON_ALLOW_NUL, NULL);
    assert_non_null(v);
    return v;
}

static void every_family_cuts_text_as_hugging_face_does(void **state) {
    (void)state;
    json_t *all = load_fixture(), *base = json_object_get(all, "base");
    const json_t *texts = json_object_get(all, "texts");
    int families = 0;
    const char *name;
    json_t *section;
    json_object_foreach(json_object_get(all, "sections"), name, section) {
        const km_family *f = km_family_find(name);
        assert_non_null(f);
        json_t *own = km_family_section(f);
        if (!json_equal(own, section))
            fail_msg("%s: its section changed; make the fixture again", name);
        json_object_set_new(base, "pre_tokenizer", own);
        char *dump = json_dumps(base, JSON_COMPACT);
        km_token *t = km_token_parse(dump, strlen(dump), name, &token_err);
        assert_made(t);
        const json_t *lists = json_object_get(json_object_get(all, "ids"), name);
        assert_true(json_array_size(lists) == json_array_size(texts));
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *text = json_array_get(texts, i), *list = json_array_get(lists, i);
            int32_t want[512];
            size_t n = json_array_size(list);
            assert_true(n <= 512);
            for (size_t k = 0; k < n; k++)
                want[k] = (int32_t)json_integer_value(json_array_get(list, k));
            token_check(t, json_string_value(text), json_string_length(text), 0, want, n, __FILE__,
                        __LINE__);
        }
        km_token_free(t);
        free(dump);
        families++;
    }
    int n;
    km_family_list(&n);
    assert_int_equal(families, n);
    json_decref(all);
}

static void families_are_found_by_whole_names(void **state) {
    (void)state;
    const char *const known[] = {"gpt-2",  "llama-bpe", "qwen2",    "smollm",     "deepseek-llm",
                                 "falcon", "starcoder", "mpt",      "refact",     "command-r",
                                 "tekken", "gpt-4o",    "chatglm4", "deepseek-v3"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_non_null(km_family_find(known[i]));
    const char *const unknown[] = {"", " ", "gpt", "gpt-2 ", "qwen", "2 phi-2", "llama"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_null(km_family_find(unknown[i]));
    assert_true(km_family_find("llama-bpe")->ignore_merges);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_family_cuts_text_as_hugging_face_does, token_setup),
        cmocka_unit_test_setup(families_are_found_by_whole_names, token_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
