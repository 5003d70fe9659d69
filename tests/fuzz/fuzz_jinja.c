/* Fuzzes chat templates: whatever parses can be rendered, within its limits.
 * seeds: scripts/fixtures/chat/qwen3.jinja scripts/fixtures/chat/llama3.2.jinja scripts/fixtures/chat/mistral-nemo.jinja scripts/fixtures/chat/gemma3.jinja
 */
#include "text/jinja.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *variables;
    static const char text[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\" s \"},{\"role\":\"user\",\"content\":\"\\u00e9\"},"
        "{\"role\":\"assistant\",\"content\":\"<think>a</think>b\"}],\"tools\":[{\"function\":{\"name\":\"f\","
        "\"parameters\":{\"a\":[1,2.5,null,true]}}}],\"add_generation_prompt\":true,\"bos_token\":\"<s>\","
        "\"eos_token\":\"</s>\",\"n\":3,\"x\":[3,1,2]}";
    if (!variables) variables = json_loads(text, 0, NULL);
    km_error err = {0};
    km_text out = {0};
    km_jinja_limits limits = {.steps = 20000, .memory = (size_t)4 << 20, .now = 1700000000};
    km_jinja *t = km_jinja_parse((const char *)data, size, "input", &err);
    if (!t && err.code == KM_OK) __builtin_trap(); /* a refusal without a reason */
    if (t && km_jinja_render(t, variables, &limits, &out, &err) != KM_OK &&
        (err.code == KM_OK || out.len))
        __builtin_trap();
    km_text_free(&out);
    km_jinja_free(t);
    return 0;
}
