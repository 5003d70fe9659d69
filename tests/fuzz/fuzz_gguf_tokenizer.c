/* Fuzzes the tokenizers of GGUF files: what loads encodes any bytes without harm, and decodes what
 * it gave.
 * seeds: tests/fixtures/token/bpe.gguf tests/fixtures/token/spm.gguf tests/fixtures/token/bert.gguf
 */
#include "token/gguf.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const km_token *t, const char *text, size_t n) {
    km_ids ids = {0};
    km_text back = {0};
    km_error err = {0};
    km_status s =
        km_token_encode(t, text, n, KM_TOKEN_ADD_SPECIAL | KM_TOKEN_PARSE_SPECIAL, &ids, &err);
    if ((s == KM_OK) != (err.code == KM_OK)) __builtin_trap();
    if (s == KM_OK && km_token_decode(t, ids.data, ids.len, 0, &back, &err) != KM_OK)
        __builtin_trap();
    km_ids_free(&ids);
    km_text_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "Hello, we've 12345 tokens <|endoftext|>\n\n  na\xC3\xAFve \xFF\xC3 "
                               "\xE6\x97\xA5\xE6\x9C\xAC <s> word kalo mi 'S x\r\n\t ";
    km_error err = {0};
    km_gguf *g = km_gguf_parse(data, size, "input", &err);
    if (!g) return 0;
    km_token *t = km_token_from_gguf(g, &err);
    km_gguf_close(g);
    if (!t && (err.code == KM_OK || strchr(err.text, '\n'))) __builtin_trap();
    if (!t) return 0;
    use(t, text, sizeof text - 1);
    use(t, (const char *)data, size < 400 ? size : 400);
    km_token_free(t);
    return 0;
}
