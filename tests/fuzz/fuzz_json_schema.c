/* Fuzzes JSON schemas: whatever is taken becomes a grammar, or is refused with a reason.
 * seeds: tests/fixtures/chat/person.schema.json
 */
#include "text/json_schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    km_error err = {0};
    json_t *schema = json_loadb((const char *)data, size, 0, NULL);
    km_text gbnf = {0};
    if (schema && km_json_schema_gbnf(schema, size % 2, &gbnf, &err) == KM_OK) {
        km_grammar *g = km_grammar_parse(gbnf.data, gbnf.len, &err);
        /* What we wrote ourselves can be too large or begin with itself, but it is always GBNF. */
        if (!g && err.code == KM_ERR_FORMAT) __builtin_trap();
        km_guide *m = g ? km_guide_new(g, NULL, &err) : NULL;
        if (m && km_guide_feed(m, "{", 1, &err) == KM_OK) km_guide_feed(m, "\"name", 5, &err);
        km_guide_free(m);
        km_grammar_free(g);
    } else if (schema && err.code == KM_OK) {
        __builtin_trap(); /* a refusal without a reason */
    }
    km_text_free(&gbnf);
    json_decref(schema);
    return 0;
}
