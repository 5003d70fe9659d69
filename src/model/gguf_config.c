/* A model's configuration as GGUF metadata: "gpt2.block_count" and the like. */
#include "format/shown.h"
#include "model/layout.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const km_gguf *g;
    const char *arch;
    km_error *err;
    km_status status;
} reader;

static const char *key_of(const reader *r, const char *name, char *key, size_t n) {
    snprintf(key, n, "%s.%s", r->arch, name);
    return key;
}

static int64_t whole(reader *r, const char *name, int64_t value) {
    char key[96];
    if (r->status == KM_OK)
        r->status =
            km_gguf_int(r->g, key_of(r, name, key, sizeof key), 1, INT32_MAX, &value, r->err);
    return value;
}

static int64_t needed(reader *r, const char *name) {
    int64_t v = whole(r, name, 0);
    if (r->status == KM_OK && v == 0)
        r->status = km_error_set(r->err, KM_ERR_FORMAT, "'%s': %s.%s is missing",
                                 km_gguf_path(r->g), r->arch, name);
    return v;
}

/* The file has an f32 where 1e-05 was meant: the shortest decimal that gives it. */
static double shortest(double v) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtof(text, NULL) == (float)v) return strtod(text, NULL);
    }
    return v;
}

static double real(reader *r, const char *name, double lo, double hi, double value) {
    char key[96];
    if (r->status == KM_OK)
        r->status = km_gguf_real(r->g, key_of(r, name, key, sizeof key), lo, hi, &value, r->err);
    return shortest(value);
}

/* What would change the model if it were ignored. */
static void refuse_rope_scaling(reader *r) {
    char key[96], text[KM_SHOWN];
    const char *type = "none";
    if (r->status == KM_OK)
        r->status =
            km_gguf_string(r->g, key_of(r, "rope.scaling.type", key, sizeof key), &type, r->err);
    if (r->status == KM_OK && strcmp(type, "none") != 0)
        r->status = km_error_set(r->err, KM_ERR_UNSUPPORTED,
                                 "'%s': rope scaling of type '%s' is not supported",
                                 km_gguf_path(r->g), km_shown(text, type));
}

km_status km_config_from_gguf(km_config *c, const km_gguf *g, km_error *err) {
    char text[KM_SHOWN];
    reader r = {g, "", err, KM_OK};
    *c = (km_config){0};
    r.status = km_gguf_string(g, "general.architecture", &r.arch, err);
    if (r.status != KM_OK) return r.status;
    bool gpt2 = strcmp(r.arch, "gpt2") == 0;
    if (!gpt2 && strcmp(r.arch, "llama") != 0)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "'%s': the architecture '%s' is not supported; gpt2 and llama are",
                            km_gguf_path(g), km_shown(text, r.arch));
    c->arch = gpt2 ? KM_ARCH_GPT2 : KM_ARCH_LLAMA;
    c->layers = (int)needed(&r, "block_count");
    c->heads = (int)needed(&r, "attention.head_count");
    c->kv_heads = (int)whole(&r, "attention.head_count_kv", c->heads);
    c->dim = needed(&r, "embedding_length");
    c->hidden = needed(&r, "feed_forward_length");
    c->context = needed(&r, "context_length");
    c->head_dim = whole(&r, "attention.key_length", 0);
    c->norm_eps = real(
        &r, gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 0, 1, 1e-5);
    c->bias = gpt2;
    if (!gpt2) {
        c->rope_base = real(&r, "rope.freq_base", 1, 1e12, 10000);
        refuse_rope_scaling(&r);
        int64_t head = c->head_dim ? c->head_dim : c->heads ? c->dim / c->heads : 0;
        if (whole(&r, "rope.dimension_count", head) != head && r.status == KM_OK)
            r.status = km_error_set(err, KM_ERR_UNSUPPORTED,
                                    "'%s': heads that are rotated in part are not supported",
                                    km_gguf_path(g));
    }
    if (r.status != KM_OK) return r.status;
    /* The table has the last word on the vocabulary, as it has in ggml. */
    const km_gguf_tensor *table = km_gguf_find(g, "token_embd.weight");
    if (!table || table->shape.ndim != 2)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' holds no matrix token_embd.weight",
                            km_gguf_path(g));
    c->vocab = table->shape.dim[0];
    c->tied = !km_gguf_find(g, "output.weight");
    km_error why = {0};
    if (km_config_complete(c, &why) != KM_OK)
        return km_error_set(err, why.code, "'%s': %s", km_gguf_path(g), why.text);
    return KM_OK;
}

static void put(const km_config *c, km_gguf_out *out, const char *name, int64_t v) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", km_arch_name(c->arch), name);
    km_gguf_put_u32(out, key, (uint32_t)v);
}

void km_config_put_gguf(const km_config *c, km_gguf_out *out) {
    km_gguf_put_string(out, "general.architecture", km_arch_name(c->arch));
    put(c, out, "block_count", c->layers);
    put(c, out, "context_length", c->context);
    put(c, out, "embedding_length", c->dim);
    put(c, out, "feed_forward_length", c->hidden);
    put(c, out, "attention.head_count", c->heads);
    if (c->arch == KM_ARCH_GPT2) {
        km_gguf_put_f32(out, "gpt2.attention.layer_norm_epsilon", (float)c->norm_eps);
        return;
    }
    put(c, out, "attention.head_count_kv", c->kv_heads);
    put(c, out, "attention.key_length", c->head_dim);
    put(c, out, "attention.value_length", c->head_dim);
    put(c, out, "rope.dimension_count", c->head_dim);
    put(c, out, "vocab_size", c->vocab);
    km_gguf_put_f32(out, "llama.rope.freq_base", (float)c->rope_base);
    km_gguf_put_f32(out, "llama.attention.layer_norm_rms_epsilon", (float)c->norm_eps);
}
