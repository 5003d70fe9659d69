/* Tokenizers of GGUF files against the ids that their families' own tokenizers give, for the
 * vocabularies in ../shared/data; and hand-made files, good and bad. */
#include "token/gguf.h"
#include "token/internal.h"
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
    /* The same once it went through a tokenizer.json. */
    snprintf(path, sizeof path, "/tmp/kermes-gguf-%ld.json", (long)getpid());
    assert_fine(km_token_save(t, path, &token_err));
    km_token *saved = km_token_load(path, &token_err);
    assert_made(saved);
    assert_true(km_token_hash(saved) == km_token_hash(t));
    unlink(path);
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
        token_check(saved, text, (size_t)(stop - text), 0, want, n, __FILE__, __LINE__);
        text = stop + sizeof between - 1;
        cases++;
    }
    assert_true(cases >= 45);
    km_map_close(&in);
    km_map_close(&out);
    km_token_free(t);
    km_token_free(saved);
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

/* ---- Hand-made files ---- */

/* A SentencePiece of a few letters, as a file in the making. */
#define SPACE "\xE2\x96\x81"
enum { N_SPM = 3 + 256 + 9 };

static km_gguf_out *small_spm(size_t scores) {
    static char bytes[256][8];
    const char *tokens[N_SPM] = {"<unk>", "<s>", "</s>"};
    const char *const rest[] = {SPACE, "a", "b", "ab", SPACE "a", "aab", "é", "bé", SPACE SPACE};
    int32_t types[N_SPM];
    float score[N_SPM];
    for (int b = 0; b < 256; b++) {
        snprintf(bytes[b], sizeof bytes[b], "<0x%02X>", b);
        tokens[3 + b] = bytes[b];
    }
    for (int i = 0; i < 9; i++) tokens[259 + i] = rest[i];
    for (int i = 0; i < N_SPM; i++) {
        types[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
        score[i] = -(float)i;
    }
    km_gguf_out *out = km_gguf_out_new(&token_err);
    km_gguf_put_string(out, "tokenizer.ggml.model", "llama");
    km_gguf_put_strings(out, "tokenizer.ggml.tokens", tokens, NULL, N_SPM);
    km_gguf_put_array(out, "tokenizer.ggml.token_type", KM_GGUF_I32, types, N_SPM);
    km_gguf_put_array(out, "tokenizer.ggml.scores", KM_GGUF_F32, score, scores);
    km_gguf_put_u32(out, "tokenizer.ggml.bos_token_id", 1);
    km_gguf_put_u32(out, "tokenizer.ggml.eos_token_id", 2);
    km_gguf_put_u32(out, "tokenizer.ggml.unknown_token_id", 0);
    return out;
}

/* Writes the file and loads its tokenizer. */
static km_token *load_made(km_gguf_out *out) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/kermes-made-%ld.gguf", (long)getpid());
    assert_fine(km_gguf_write(out, path, &token_err));
    km_gguf_out_free(out);
    km_token *t = km_token_load(path, &token_err);
    unlink(path);
    return t;
}

static void sentencepiece_merges_by_score_and_falls_back_to_bytes(void **state) {
    (void)state;
    km_token *t = load_made(small_spm(N_SPM));
    assert_made(t);
    assert_string_equal(km_token_kind(t), "spm");
    assert_int_equal(km_token_bos(t), 1);
    assert_int_equal(km_token_eos(t), 2);
    /* "ab" scores higher than " a": 259 space, 260 a, 262 ab, 263 space a */
    assert_ids(t, "ab a", 259, 262, 263);
    assert_ids(t, "bé", 259, 266);
    assert_ids(t, "z\n", 259, 3 + 'z', 3 + '\n');
    assert_ids(t, "\xFF", 3 + 0xFF);
    token_check(t, "a", 1, KM_TOKEN_ADD_SPECIAL, (int32_t[]){1, 263}, 2, __FILE__, __LINE__);
    /* Control tokens are not made of letters. */
    token_check(t, "<s>", 3, KM_TOKEN_PARSE_SPECIAL, (int32_t[]){1}, 1, __FILE__, __LINE__);
    km_ids ids = token_encode(t, "<s>", 3, 0);
    assert_true(ids.len == 4);
    km_ids_free(&ids);
    assert_returns(t, "ab  a zé\n", 10);
    char path[64];
    snprintf(path, sizeof path, "/tmp/kermes-made-%ld.json", (long)getpid());
    assert_fine(km_token_save(t, path, &token_err));
    km_token *again = km_token_load(path, &token_err);
    assert_made(again);
    unlink(path);
    assert_true(km_token_hash(again) == km_token_hash(t));
    assert_ids(again, "ab a", 259, 262, 263);
    assert_int_equal(km_token_eos(again), 2);
    km_token_free(again);
    km_token_free(t);
}

static void a_stream_of_bytes_waits_for_whole_characters(void **state) {
    (void)state;
    km_token *t = load_made(small_spm(N_SPM));
    assert_made(t);
    km_token_stream s = km_token_stream_begin(t, KM_TOKEN_SKIP_SPECIAL);
    const int32_t ids[] = {1, 263, 3 + 0xE6, 3 + 0x97, 3 + 0xA5, 263, 2};
    const char *const want[] = {"", "a", "", "", "日", " a", ""};
    for (size_t i = 0; i < 7; i++) {
        km_text out = {0};
        assert_fine(km_token_stream_put(&s, ids[i], &out, &token_err));
        assert_string_equal(km_text_str(&out), want[i]);
        km_text_free(&out);
    }
    km_token_free(t);
}

/* ---- Byte-level BPE ---- */

static char letters[256][4]; /* bytes as GPT-2's alphabet writes them */

static void write_letters(void) {
    for (int b = 0; b < 256; b++) {
        unsigned cp = km_byte_char[b];
        if (cp < 0x80)
            snprintf(letters[b], sizeof letters[b], "%c", (char)cp);
        else
            snprintf(letters[b], sizeof letters[b], "%c%c", (char)(0xC0 | cp >> 6),
                     (char)(0x80 | (cp & 63)));
    }
}

/* Two runs of 256 spaces become one of 512, as in the vocabularies of GPT-NeoX's family: the merge
 * is 1,025 bytes long. */
static void merges_of_any_length_are_read(void **state) {
    (void)state;
    enum { N = 10 }; /* 1, 2, 4 to 512 spaces */
    static char runs[N][1025], merge[N - 1][2 * 1024 + 2];
    const char *tokens[N], *merges[N - 1];
    write_letters();
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 1 << i; k++) strcat(runs[i], letters[' ']);
        tokens[i] = runs[i];
        if (i == 0) continue;
        snprintf(merge[i - 1], sizeof merge[0], "%s %s", runs[i - 1], runs[i - 1]);
        merges[i - 1] = merge[i - 1];
    }
    assert_int_equal(strlen(merge[N - 2]), 1025);
    km_gguf_out *out = km_gguf_out_new(&token_err);
    km_gguf_put_string(out, "tokenizer.ggml.model", "gpt2");
    km_gguf_put_string(out, "tokenizer.ggml.pre", "olmo");
    km_gguf_put_strings(out, "tokenizer.ggml.tokens", tokens, NULL, N);
    km_gguf_put_strings(out, "tokenizer.ggml.merges", merges, NULL, N - 1);
    km_token *t = load_made(out);
    assert_made(t);
    char text[800];
    memset(text, ' ', sizeof text);
    token_check(t, text, 512, 0, (int32_t[]){9}, 1, __FILE__, __LINE__);
    token_check(t, text, 771, 0, (int32_t[]){9, 8, 1, 0}, 4, __FILE__, __LINE__);
    km_token_free(t);
}

static bool lacking(int byte) { return byte == 0x16 || byte == 0xC1 || byte >= 0xF5; }

/* Most bytes, "!!", and an end of text that the file calls unknown, too, as many do. */
static km_gguf_out *small_bpe(void) {
    const char *tokens[260] = {"<|end|>"}, *merges[] = {"! !"};
    int32_t types[260] = {3}, n = 1;
    write_letters();
    for (int b = 0; b < 256; b++)
        if (!lacking(b)) tokens[n++] = letters[b];
    tokens[n++] = "!!";
    for (int i = 1; i < n; i++) types[i] = 1;
    km_gguf_out *out = km_gguf_out_new(&token_err);
    km_gguf_put_string(out, "tokenizer.ggml.model", "gpt2");
    km_gguf_put_string(out, "tokenizer.ggml.pre", "gpt-2");
    km_gguf_put_strings(out, "tokenizer.ggml.tokens", tokens, NULL, (size_t)n);
    km_gguf_put_array(out, "tokenizer.ggml.token_type", KM_GGUF_I32, types, (size_t)n);
    km_gguf_put_strings(out, "tokenizer.ggml.merges", merges, NULL, 1);
    km_gguf_put_u32(out, "tokenizer.ggml.eos_token_id", 0);
    km_gguf_put_u32(out, "tokenizer.ggml.unknown_token_id", 0);
    return out;
}

static void returns_all_but(const km_token *t, const char *text, size_t n) {
    km_ids ids = token_encode(t, text, n, 0);
    km_text back = {0};
    for (size_t i = 0; i < ids.len; i++) assert_int_not_equal(ids.data[i], 0);
    assert_fine(km_token_decode(t, ids.data, ids.len, 0, &back, &token_err));
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (lacking((unsigned char)text[i])) continue;
        assert_true(kept < back.len);
        assert_int_equal(back.data[kept++], text[i]);
    }
    assert_int_equal(kept, back.len);
    km_text_free(&back);
    km_ids_free(&ids);
}

static void bytes_without_a_token_are_dropped_and_nothing_stands_for_them(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/kermes-made-%ld.json", (long)getpid());
    km_token *t = load_made(small_bpe());
    assert_made(t);
    assert_int_equal(km_token_unk(t), 0); /* by name */
    assert_fine(km_token_save(t, path, &token_err));
    km_token *saved = km_token_load(path, &token_err);
    unlink(path);
    assert_made(saved);
    assert_true(km_token_hash(saved) == km_token_hash(t));
    const km_token *both[] = {t, saved};
    for (int k = 0; k < 2; k++) {
        for (int b = 0; b < 256; b++) {
            char text[] = {'a', (char)b, 'b'}, alone[] = {(char)b};
            returns_all_but(both[k], text, 3);
            returns_all_but(both[k], alone, 1);
        }
        char all[256];
        for (int b = 0; b < 256; b++) all[b] = (char)b;
        returns_all_but(both[k], all, 256);
        token_check(both[k], "\x16", 1, 0, NULL, 0, __FILE__, __LINE__);
        /* What is left of a piece merges, as it does in tokenizers. */
        km_ids whole = token_encode(both[k], "!!", 2, 0);
        assert_int_equal(whole.len, 1);
        token_check(both[k], "!\x16!", 3, 0, whole.data, 1, __FILE__, __LINE__);
        km_ids_free(&whole);
    }
    km_token_free(saved);
    km_token_free(t);
}

/* A tokenizer.json may say what unknown text becomes. */
static void a_declared_unknown_token_is_used(void **state) {
    (void)state;
    static const char json[] =
        "{\"added_tokens\": [], \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false, \"use_regex\": true}, "
        "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", "
        "\"unk_token\": \"?\", \"vocab\": {\"?\": 0, \"a\": 1}, \"merges\": []}}";
    char path[64];
    snprintf(path, sizeof path, "/tmp/kermes-made-%ld.json", (long)getpid());
    FILE *f = fopen(path, "w");
    fputs(json, f);
    fclose(f);
    km_token *t = km_token_load(path, &token_err);
    unlink(path);
    assert_made(t);
    assert_ids(t, "aba", 1, 0, 1);
    km_token_free(t);
}

#define BROKEN(out, says_what)                                                                     \
    do {                                                                                           \
        assert_null(load_made(out));                                                               \
        assert_says(says_what);                                                                    \
    } while (0)

static void broken_tokenizers_are_refused(void **state) {
    (void)state;
    const char *two[] = {"a", "b"}, *merges[] = {"a b"}, *one[] = {"ab"};
    BROKEN(km_gguf_out_new(&token_err), "it holds no tokenizer");
    km_gguf_out *out = km_gguf_out_new(&token_err);
    km_gguf_put_string(out, "tokenizer.ggml.model", "t5");
    BROKEN(out, "a tokenizer of type 't5' is not supported");
    out = km_gguf_out_new(&token_err);
    km_gguf_put_string(out, "tokenizer.ggml.model", "gpt2");
    BROKEN(out, "it holds no tokens");
    out = km_gguf_out_new(&token_err);
    km_gguf_put_string(out, "tokenizer.ggml.model", "gpt2");
    km_gguf_put_string(out, "tokenizer.ggml.pre", "kalomi");
    BROKEN(out, "the pre-tokenizer 'kalomi' is not known");
    out = km_gguf_out_new(&token_err);
    km_gguf_put_string(out, "tokenizer.ggml.model", "gpt2");
    km_gguf_put_strings(out, "tokenizer.ggml.tokens", two, NULL, 2);
    BROKEN(out, "it holds no merges");
    out = km_gguf_out_new(&token_err);
    km_gguf_put_string(out, "tokenizer.ggml.model", "gpt2");
    km_gguf_put_strings(out, "tokenizer.ggml.tokens", two, NULL, 2);
    km_gguf_put_strings(out, "tokenizer.ggml.merges", merges, NULL, 1);
    BROKEN(out, "merge 0, 'a b', is of or makes something that is no token");
    out = km_gguf_out_new(&token_err);
    km_gguf_put_string(out, "tokenizer.ggml.model", "gpt2");
    km_gguf_put_strings(out, "tokenizer.ggml.tokens", two, NULL, 2);
    km_gguf_put_strings(out, "tokenizer.ggml.merges", one, NULL, 1);
    BROKEN(out, "a merge that is not two tokens");
    out = km_gguf_out_new(&token_err);
    km_gguf_put_string(out, "tokenizer.ggml.model", "bert");
    km_gguf_put_strings(out, "tokenizer.ggml.tokens", two, NULL, 2);
    km_gguf_put_array(out, "tokenizer.ggml.token_type", KM_GGUF_I32, (int32_t[]){1}, 1);
    BROKEN(out, "token_type has not one entry for each token");
    BROKEN(small_spm(N_SPM - 1), "it has not one score for each token");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(gpt2_gives_the_expected_ids, token_setup),
        cmocka_unit_test_setup(sentencepiece_gives_the_expected_ids, token_setup),
        cmocka_unit_test_setup(wordpiece_gives_the_expected_ids, token_setup),
        cmocka_unit_test_setup(sentencepiece_merges_by_score_and_falls_back_to_bytes, token_setup),
        cmocka_unit_test_setup(a_stream_of_bytes_waits_for_whole_characters, token_setup),
        cmocka_unit_test_setup(merges_of_any_length_are_read, token_setup),
        cmocka_unit_test_setup(bytes_without_a_token_are_dropped_and_nothing_stands_for_them,
                               token_setup),
        cmocka_unit_test_setup(a_declared_unknown_token_is_used, token_setup),
        cmocka_unit_test_setup(broken_tokenizers_are_refused, token_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
