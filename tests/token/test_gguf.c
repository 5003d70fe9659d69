/* Tokenizers of GGUF files against the ids that their families' own tokenizers give, for the
 * vocabularies in ../shared/data; and hand-made files, good and bad. */
#include "token/gguf.h"
#include "token/token_support.h"

static const char *data_folder(void) {
    static char path[4096];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/../shared/data/vocab", source ? source : ".");
    return access(path, R_OK) == 0 ? path : NULL;
}

/* The texts of NAME.inp, each against its line of NAME.out. */
static void compare(const char *name) {
    const char *folder = data_folder();
    if (!folder) {
        print_message("skipped: no ../shared/data\n");
        skip();
    }
    char path[5000];
    km_map in, out;
    snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf", folder, name);
    km_token *t = km_token_load(path, &token_err);
    assert_made(t);
    snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf.inp", folder, name);
    assert_fine(km_map_open(&in, path, &token_err));
    snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf.out", folder, name);
    assert_fine(km_map_open(&out, path, &token_err));
    static const char between[] = "\n__ggml_vocab_test__\n";
    const char *text = (const char *)in.data, *end = text + in.size;
    const char *line = (const char *)out.data, *out_end = line + out.size;
    int cases = 0;
    while (text < end && line < out_end) {
        const char *stop = memmem(text, (size_t)(end - text), between, sizeof between - 1);
        if (!stop) break;
        int32_t want[1024];
        size_t n = 0;
        for (char *next; line < out_end && *line != '\n'; line = next) {
            want[n++] = (int32_t)strtol(line, &next, 10);
            if (next == line) break;
            while (next < out_end && *next == ' ') next++;
        }
        line++;
        token_check(t, text, (size_t)(stop - text), 0, want, n, __FILE__, __LINE__);
        text = stop + sizeof between - 1;
        cases++;
    }
    assert_true(cases >= 45);
    km_map_close(&in);
    km_map_close(&out);
    km_token_free(t);
}

static void gpt2_gives_the_expected_ids(void **state) {
    (void)state;
    compare("gpt-2");
}
static void sentencepiece_gives_the_expected_ids(void **state) {
    (void)state;
    compare("llama-spm");
}
static void wordpiece_gives_the_expected_ids(void **state) {
    (void)state;
    compare("bert-bge");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(gpt2_gives_the_expected_ids, token_setup),
        cmocka_unit_test_setup(sentencepiece_gives_the_expected_ids, token_setup),
        cmocka_unit_test_setup(wordpiece_gives_the_expected_ids, token_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
