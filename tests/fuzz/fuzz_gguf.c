/* Fuzzes the GGUF reader: whatever opens can be read to its last byte, and its metadata makes a
 * model or a reason why not.
 * seeds: tests/fixtures/formats/every.gguf tests/fixtures/models/llama.gguf
 */
#include "base/alloc.h"
#include "format/gguf.h"
#include "model/layout.h"
#include <string.h>

static uint64_t walk(const km_gguf_value *v) {
    uint64_t h = v->type;
    km_gguf_value item;
    if (v->type == KM_GGUF_STRING)
        for (size_t i = 0; i < v->text.size; i++) h += (uint8_t)v->text.data[i];
    for (km_gguf_iter it = km_gguf_begin(v); km_gguf_next(&it, &item);) h += walk(&item);
    return h;
}

static void make_model(km_gguf *g) {
    km_config c;
    km_layout l = {0};
    km_weights w = {.gguf = g};
    if (!g || km_config_from_gguf(&c, g, NULL) != KM_OK || c.layers > 64) return;
    if (km_layout_of(&c, &l, NULL) != KM_OK) __builtin_trap();
    km_stored *found = km_calloc((size_t)l.n, sizeof *found);
    if (found) km_weights_find(&w, &c, &l, found, NULL);
    km_free(found);
    km_layout_free(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static volatile uint64_t sink;
    km_error err = {0};
    km_gguf *g = km_gguf_parse(data, size, "input", &err);
    if (!g && err.code == KM_OK) __builtin_trap(); /* a refusal without a reason */
    uint64_t h = 0;
    for (int i = 0; i < km_gguf_count(g); i++) {
        const km_gguf_tensor *t = km_gguf_at(g, i);
        for (size_t k = 0; k < t->bytes; k++) h += ((const uint8_t *)t->data)[k];
        if (km_gguf_find(g, t->name) != t) __builtin_trap();
    }
    for (int i = 0; i < km_gguf_meta_count(g); i++) {
        h += walk(km_gguf_meta_at(g, i));
        if (km_gguf_get(g, km_gguf_meta_key(g, i)) != km_gguf_meta_at(g, i)) __builtin_trap();
    }
    sink = h;
    (void)sink;
    make_model(g);
    km_gguf_close(g);
    return 0;
}
