/* A model's configuration as GGUF metadata: "gpt2.block_count" and the like. */
#include "base/shown.h"
#include "model/arch.h"
#include "model/layout.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gguf_reader {
    const km_gguf *g;
    const char *arch;
    km_error *err;
    km_status status;
} gguf_reader;

static const char *key_of(const gguf_reader *r, const char *name, char *key, size_t n) {
    snprintf(key, n, "%s.%s", r->arch, name);
    return key;
}

static int64_t whole(gguf_reader *r, const char *name, int64_t value) {
    char key[96];
    if (r->status == KM_OK)
        r->status =
            km_gguf_int(r->g, key_of(r, name, key, sizeof key), 1, INT32_MAX, &value, r->err);
    return value;
}

static int64_t needed(gguf_reader *r, const char *name) {
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

static double real(gguf_reader *r, const char *name, double lo, double hi, double value) {
    char key[96];
    if (r->status == KM_OK)
        r->status = km_gguf_real(r->g, key_of(r, name, key, sizeof key), lo, hi, &value, r->err);
    return shortest(value);
}

static const char *word(gguf_reader *r, const char *name, const char *value) {
    char key[96];
    if (r->status == KM_OK)
        r->status = km_gguf_string(r->g, key_of(r, name, key, sizeof key), &value, r->err);
    return value;
}

/* A tensor of divisors, one a pair, as Llama 3 and Phi 3 have. */
static bool has_divisors(gguf_reader *r, const km_config *c, const char *name) {
    const km_gguf_tensor *t = km_gguf_find(r->g, name);
    int64_t pairs = (c->rope_dims ? c->rope_dims : c->head_dim) / 2;
    if (!t || r->status != KM_OK) return false;
    if (t->info->dtype != KM_F32 || t->shape.ndim != 1 || t->shape.dim[0] != pairs)
        r->status = km_error_set(r->err, KM_ERR_SHAPE, "'%s': '%s' is not [%lld] of f32",
                                 km_gguf_path(r->g), name, (long long)pairs);
    return r->status == KM_OK;
}

/* YaRN's own, of rotated q and k. */
static double usual_magnitude(double factor) { return factor > 1 ? 0.1 * log(factor) + 1 : 1; }

/* What a file says of stretched rotation means what it does to llama.cpp: without a type a factor
 * divides all frequencies, and attn_factor is there for every type, none among them (converters of
 * Phi 3 write it beside the divisors, and no type). */
static void read_scaling(gguf_reader *r, km_config *c) {
    char text[KM_SHOWN];
    const char *type = word(r, "rope.scaling.type", "linear");
    km_rope_config *s = &c->rope;
    s->factor = real(r, "rope.scaling.factor", 0, 1e6, 0);
    if (s->factor == 0) s->factor = real(r, "rope.scale_linear", 0, 1e6, 1);
    if (s->factor == 0) s->factor = 1;
    s->original = whole(r, "rope.scaling.original_context_length", c->context);
    double attn = real(r, "rope.scaling.attn_factor", 1e-3, 1e3, 1);
    if (attn != 1) s->magnitude = attn;
    if (strcmp(type, "yarn") == 0) {
        s->kind = KM_ROPE_YARN;
        s->beta_fast = real(r, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32);
        s->beta_slow = real(r, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1);
        if (attn != 1) s->magnitude = attn * usual_magnitude(s->factor);
    } else if (strcmp(type, "longrope") == 0) {
        s->kind = KM_ROPE_DIVISORS;
    } else if (strcmp(type, "linear") == 0) {
        s->kind = s->factor != 1 ? KM_ROPE_LINEAR : KM_ROPE_PLAIN;
    } else if (strcmp(type, "none") != 0) {
        if (r->status == KM_OK)
            r->status = km_error_set(r->err, KM_ERR_UNSUPPORTED,
                                     "'%s': rope scaling of type '%s' is not supported",
                                     km_gguf_path(r->g), km_shown(text, type));
    }
    if (has_divisors(r, c, "rope_freqs.weight") || has_divisors(r, c, "rope_factors_long.weight")) {
        if (s->factor != 1 && strcmp(type, "none") != 0 && r->status == KM_OK)
            r->status = km_error_set(r->err, KM_ERR_UNSUPPORTED,
                                     "'%s': rotation stretched by a factor and by divisors at once "
                                     "is not supported",
                                     km_gguf_path(r->g));
        s->kind = KM_ROPE_DIVISORS;
    } else if (s->kind == KM_ROPE_DIVISORS && r->status == KM_OK)
        r->status = km_error_set(r->err, KM_ERR_FORMAT, "'%s': rope_factors_long.weight is missing",
                                 km_gguf_path(r->g));
    if (s->kind == KM_ROPE_PLAIN) *s = (km_rope_config){.magnitude = s->magnitude};
}

static void read_rotation(gguf_reader *r, km_config *c, const km_traits *t) {
    int64_t head = c->head_dim ? c->head_dim : c->heads ? c->dim / c->heads : 0;
    int64_t dims = whole(r, "rope.dimension_count", head);
    if (dims != head && t->gguf_pairs == KM_ROPE_ADJACENT && r->status == KM_OK)
        r->status = km_error_set(r->err, KM_ERR_UNSUPPORTED,
                                 "'%s': heads that are rotated in part are not supported for %s",
                                 km_gguf_path(r->g), t->name);
    if (r->status != KM_OK) return;
    c->head_dim = head;
    c->rope_dims = dims == head ? 0 : (int)dims;
    c->rope_base = real(r, "rope.freq_base", 1, 1e12, t->rope_base);
    read_scaling(r, c);
}

static void read_windows(gguf_reader *r, km_config *c, const km_traits *t) {
    char key[96];
    if (r->status == KM_OK) /* 0: none */
        r->status = km_gguf_int(r->g, key_of(r, "attention.sliding_window", key, sizeof key), 0,
                                INT32_MAX, &c->window, r->err);
    if (c->window >= c->context) c->window = 0;
    c->full_every = c->window ? t->full_every : 0;
    c->local_rope_base = real(r, "rope.freq_base_swa", 1, 1e12, t->local_rope_base);
    c->attn_softcap = real(r, "attn_logit_softcapping", 0, 1e6, t->attn_softcap);
    c->logit_softcap = real(r, "final_logit_softcapping", 0, 1e6, t->logit_softcap);
    if (t->wide_layers && c->layers == t->wide_layers)
        c->attn_scale = 1 / sqrt((double)c->dim / c->heads);
}

/* What would change the model if it were ignored. */
static void refuse_others(gguf_reader *r, const km_config *c) {
    char key[96];
    bool causal = true;
    if (r->status == KM_OK)
        r->status =
            km_gguf_bool(r->g, key_of(r, "attention.causal", key, sizeof key), &causal, r->err);
    if (!causal && r->status == KM_OK)
        r->status = km_error_set(r->err, KM_ERR_UNSUPPORTED,
                                 "'%s': attention.causal is false: a model whose tokens see those "
                                 "after them cannot go on with a text; only causal ones are run",
                                 km_gguf_path(r->g));
    if (km_arch_traits(c->arch)->learned_positions) return;
    if (whole(r, "attention.value_length", c->head_dim) != c->head_dim && r->status == KM_OK)
        r->status = km_error_set(r->err, KM_ERR_UNSUPPORTED,
                                 "'%s': values of another length than keys are not supported",
                                 km_gguf_path(r->g));
    int64_t experts = 0;
    if (r->status == KM_OK)
        r->status = km_gguf_int(r->g, key_of(r, "expert_count", key, sizeof key), 0, INT32_MAX,
                                &experts, r->err);
    if (experts > 0 && r->status == KM_OK)
        r->status = km_error_set(r->err, KM_ERR_UNSUPPORTED,
                                 "'%s': mixtures of experts are not supported", km_gguf_path(r->g));
}

km_status km_config_from_gguf(km_config *c, const km_gguf *g, km_error *err) {
    char text[KM_SHOWN];
    gguf_reader r = {g, "", err, KM_OK};
    *c = (km_config){0};
    r.status = km_gguf_string(g, "general.architecture", &r.arch, err);
    if (r.status != KM_OK) return r.status;
    c->arch = km_arch_find(r.arch);
    if (c->arch == KM_ARCH_COUNT)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "'%s': the architecture '%s' is not supported; %s are", km_gguf_path(g),
                            km_shown(text, r.arch), km_arch_names());
    const km_traits *t = km_arch_traits(c->arch);
    c->layers = (int)needed(&r, "block_count");
    c->heads = (int)needed(&r, "attention.head_count");
    c->kv_heads = (int)whole(&r, "attention.head_count_kv", c->heads);
    c->dim = needed(&r, "embedding_length");
    c->hidden = needed(&r, "feed_forward_length");
    c->context = needed(&r, "context_length");
    c->head_dim = whole(&r, "attention.key_length", 0);
    c->norm_eps = real(&r,
                       t->learned_positions ? "attention.layer_norm_epsilon"
                                            : "attention.layer_norm_rms_epsilon",
                       0, 1, t->norm_eps);
    c->bias = t->learned_positions;
    if (!t->learned_positions) {
        read_rotation(&r, c, t);
        read_windows(&r, c, t);
    }
    refuse_others(&r, c);
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

static void put_real(const km_config *c, km_gguf_out *out, const char *name, double v) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", km_arch_name(c->arch), name);
    km_gguf_put_f32(out, key, (float)v);
}

static void put_scaling(const km_config *c, km_gguf_out *out) {
    const km_rope_config *r = &c->rope;
    bool yarn = r->kind == KM_ROPE_YARN;
    char key[96];
    if (!yarn && r->kind != KM_ROPE_LINEAR) return; /* Llama 3's are a tensor of divisors */
    snprintf(key, sizeof key, "%s.rope.scaling.type", km_arch_name(c->arch));
    km_gguf_put_string(out, key, yarn ? "yarn" : "linear");
    put_real(c, out, "rope.scaling.factor", r->factor);
    if (!yarn) return;
    put(c, out, "rope.scaling.original_context_length", r->original);
    put_real(c, out, "rope.scaling.yarn_beta_fast", r->beta_fast);
    put_real(c, out, "rope.scaling.yarn_beta_slow", r->beta_slow);
    if (r->magnitude > 0) /* the file's is a share of the usual one */
        put_real(c, out, "rope.scaling.attn_factor", r->magnitude / usual_magnitude(r->factor));
}

void km_config_put_gguf(const km_config *c, km_gguf_out *out) {
    km_gguf_put_string(out, "general.architecture", km_arch_name(c->arch));
    put(c, out, "block_count", c->layers);
    put(c, out, "context_length", c->context);
    put(c, out, "embedding_length", c->dim);
    put(c, out, "feed_forward_length", c->hidden);
    put(c, out, "attention.head_count", c->heads);
    if (c->arch == KM_ARCH_GPT2) {
        put_real(c, out, "attention.layer_norm_epsilon", c->norm_eps);
        return;
    }
    put(c, out, "attention.head_count_kv", c->kv_heads);
    put(c, out, "attention.key_length", c->head_dim);
    put(c, out, "attention.value_length", c->head_dim);
    put(c, out, "rope.dimension_count", c->rope_dims ? c->rope_dims : c->head_dim);
    put(c, out, "vocab_size", c->vocab);
    put_real(c, out, "rope.freq_base", c->rope_base);
    put_real(c, out, "attention.layer_norm_rms_epsilon", c->norm_eps);
    if (c->window) put(c, out, "attention.sliding_window", c->window);
    put_scaling(c, out);
}
