/* Fuzzes the safetensors reader: whatever opens can be read to its last byte.
 * seeds: tests/fixtures/formats/every.safetensors tests/fixtures/formats/model-00001-of-00002.safetensors
 */
#include "format/safetensors.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static volatile uint64_t sink;
    km_error err = {0};
    km_safetensors *f = km_safetensors_parse(data, size, "input", &err);
    if (!f && err.code == KM_OK) __builtin_trap(); /* a refusal without a reason */
    uint64_t h = 0;
    for (int i = 0; i < km_safetensors_count(f); i++) {
        const km_st_tensor *t = km_safetensors_at(f, i);
        for (size_t k = 0; k < t->bytes; k++) h += ((const uint8_t *)t->data)[k];
        if (km_safetensors_find(f, t->name) != t) __builtin_trap();
    }
    for (int i = 0; i < km_safetensors_meta_count(f); i++)
        h += strlen(km_safetensors_meta(f, km_safetensors_meta_key(f, i)));
    sink = h;
    (void)sink;
    km_safetensors_close(f);
    return 0;
}
