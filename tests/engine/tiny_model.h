/* The small model that comes with Kermes, opened for a test, and greedy generations. */
#ifndef KM_TESTS_ENGINE_TINY_MODEL_H
#define KM_TESTS_ENGINE_TINY_MODEL_H
#include "base/alloc.h"
#include "kermes.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static inline const char *tiny_path(void) {
    static char path[4096];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/models/kermes-tiny.gguf", source ? source : ".");
    return path;
}

static inline km_model_options tiny_options(void) {
    km_model_options o = km_model_defaults();
    o.device = "cpu";
    o.threads = 1;
    o.context = 256;
    return o;
}

static inline km_model *tiny_model(void) {
    km_model_options o = tiny_options();
    km_model *m = km_model_open(tiny_path(), &o);
    if (!m) fail_msg("%s", km_last_error());
    return m;
}

static inline km_generation tiny_greedy(km_model *m, int64_t tokens) {
    km_generation g = km_generation_defaults(m);
    g.sampling = km_sampling_defaults();
    g.sampling.temperature = 0;
    g.max_tokens = tokens;
    g.past_end = true;
    return g;
}

static inline int64_t tiny_ids(km_model *m, const char *text, int32_t *ids, size_t cap) {
    int64_t n = km_tokenize(m, text, strlen(text), KM_TOKENS_ADD_SPECIAL, ids, cap);
    assert_true(n > 0 && (size_t)n <= cap);
    return n;
}

#endif
