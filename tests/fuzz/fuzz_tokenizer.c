/* Fuzzes tokenizer.json: what loads encodes any bytes without harm, alone and in parts with the
 * same ids, and decodes what it gave.
 * seeds: tests/fixtures/token/gpt2.json tests/fixtures/token/llama3.json tests/fixtures/token/llama_spm.json tests/fixtures/token/metaspace_words.json tests/fixtures/token/bert.json tests/fixtures/token/words.json tests/fixtures/token/chars.json tests/fixtures/token/splits.json tests/fixtures/token/falcon.json
 */
#include "token/token.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static km_status collect(void *user, const int32_t *ids, size_t n, km_error *err) {
    return km_ids_put(user, ids, n, err);
}

static void use(const km_token *t, const char *text, size_t n) {
    km_ids ids = {0}, again = {0};
    km_text back = {0};
    km_error err = {0}, other = {0};
    const unsigned flags = KM_TOKEN_ADD_SPECIAL | KM_TOKEN_PARSE_SPECIAL;
    km_encode_options options = {.flags = flags, .threads = 1, .part = 64};
    km_status s = km_token_encode(t, text, n, flags, &ids, &err);
    if ((s == KM_OK) != (err.code == KM_OK)) __builtin_trap();
    km_status large = km_token_encode_large(t, text, n, &options, collect, &again, &other);
    if (s == KM_OK && large == KM_OK &&
        (ids.len != again.len || (ids.len && memcmp(ids.data, again.data, ids.len * 4) != 0)))
        __builtin_trap();
    if (s == KM_OK && km_token_decode(t, ids.data, ids.len, 0, &back, &err) != KM_OK)
        __builtin_trap();
    for (size_t i = 0; i < ids.len; i++)
        if (ids.data[i] < 0 || ids.data[i] >= km_token_vocab(t)) __builtin_trap();
    km_ids_free(&ids);
    km_ids_free(&again);
    km_text_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "Hello, we've 12345 tokens <|endoftext|>\n\n  na\xC3\xAFve \xFF\xC3 "
                               "\xE6\x97\xA5\xE6\x9C\xAC <s> word kalo mi 'S x\r\n\t ";
    km_error err = {0};
    km_token *t = km_token_parse((const char *)data, size, "input", &err);
    if (!t && (err.code == KM_OK || strchr(err.text, '\n'))) __builtin_trap();
    if (!t) return 0;
    use(t, text, sizeof text - 1);
    use(t, (const char *)data, size < 400 ? size : 400);
    km_token_free(t);
    return 0;
}
