/* config.json as Hugging Face writes it for GPT-2, Llama and their kin. Each architecture has a table of its
 * keys; what a model would do differently if a key were ignored is refused by name. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/shown.h"
#include "model/arch.h"
#include "model/config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST ((int64_t)1 << 31)

/* ---- Reading ---- */

typedef struct json_reader {
    const json_t *o;
    const char *shown;
    km_error *err;
    km_status status;
} json_reader;

static int64_t up_to(json_reader *r, const char *key, int64_t lo, int64_t hi, int64_t value) {
    if (r->status == KM_OK) r->status = km_json_int(r->o, key, lo, hi, &value, r->shown, r->err);
    return value;
}

static int64_t whole(json_reader *r, const char *key, int64_t lo, int64_t value) {
    return up_to(r, key, lo, MOST, value);
}

static double real(json_reader *r, const char *key, double lo, double hi, double value) {
    if (r->status == KM_OK) r->status = km_json_real(r->o, key, lo, hi, &value, r->shown, r->err);
    return value;
}

static bool truth(json_reader *r, const char *key, bool value) {
    if (r->status == KM_OK) r->status = km_json_bool(r->o, key, &value, r->shown, r->err);
    return value;
}

static const char *word(json_reader *r, const char *key, const char *value) {
    if (r->status == KM_OK) r->status = km_json_string(r->o, key, &value, r->shown, r->err);
    return value;
}

/* A size without which there is no model. */
static int64_t needed_up_to(json_reader *r, const char *key, int64_t hi) {
    int64_t v = up_to(r, key, 1, hi, 0);
    if (r->status == KM_OK && v == 0)
        r->status = km_error_set(r->err, KM_ERR_FORMAT, "'%s': \"%s\" is missing", r->shown, key);
    return v;
}

static int64_t needed(json_reader *r, const char *key) { return needed_up_to(r, key, MOST); }
static int count(json_reader *r, const char *key) { return (int)needed_up_to(r, key, 65536); }

/* A switch that Kermes knows in one position only. */
static void fixed(json_reader *r, const char *key, bool must_be) {
    if (truth(r, key, must_be) != must_be && r->status == KM_OK)
        r->status = km_error_set(r->err, KM_ERR_UNSUPPORTED, "'%s': \"%s\": %s is not supported",
                                 r->shown, key, must_be ? "false" : "true");
}

static void one_of(json_reader *r, const char *key, const char *first, const char *second) {
    char text[KM_SHOWN];
    const char *v = word(r, key, first);
    if (r->status != KM_OK || strcmp(v, first) == 0 || strcmp(v, second) == 0) return;
    r->status =
        km_error_set(r->err, KM_ERR_UNSUPPORTED, "'%s': \"%s\" is '%s'; only '%s' is supported",
                     r->shown, key, km_shown(text, v), first);
}

static void read_gpt2(json_reader *r, km_config *c) {
    c->arch = KM_ARCH_GPT2;
    c->layers = count(r, "n_layer");
    c->heads = count(r, "n_head");
    c->dim = needed(r, "n_embd");
    c->hidden = whole(r, "n_inner", 1, 0);
    c->context =
        json_object_get(r->o, "n_positions") ? needed(r, "n_positions") : needed(r, "n_ctx");
    c->vocab = needed(r, "vocab_size");
    c->norm_eps = real(r, "layer_norm_epsilon", 0, 1, 1e-5);
    c->dropout = real(r, "resid_pdrop", 0, 1, 0.1);
    c->tied = truth(r, "tie_word_embeddings", true);
    c->bias = truth(r, "kermes_bias", true);
    one_of(r, "activation_function", "gelu_new", "gelu_pytorch_tanh");
    fixed(r, "scale_attn_weights", true);
    fixed(r, "scale_attn_by_inverse_layer_idx", false);
    fixed(r, "add_cross_attention", false);
}

/* The kind of stretching that an object names, with its numbers. */
static void read_stretch(json_reader *in, const char *key, const char *kind, km_config *c) {
    km_rope_config *p = &c->rope;
    char text[KM_SHOWN];
    if (in->status != KM_OK || strcmp(kind, "default") == 0) return;
    *p = (km_rope_config){.factor = real(in, "factor", 1, 1e6, 1)};
    p->original = up_to(in, "original_max_position_embeddings", 1, MOST, c->context);
    if (strcmp(kind, "linear") == 0) {
        p->kind = KM_ROPE_LINEAR;
    } else if (strcmp(kind, "yarn") == 0) {
        p->kind = KM_ROPE_YARN;
        p->beta_fast = real(in, "beta_fast", 1e-3, 1e6, 32);
        p->beta_slow = real(in, "beta_slow", 1e-3, 1e6, 1);
        p->magnitude = real(in, "attention_factor", 0, 1e3, 0);
    } else if (strcmp(kind, "llama3") == 0) {
        p->kind = KM_ROPE_LLAMA3;
        p->low_factor = real(in, "low_freq_factor", 1e-3, 1e6, 1);
        p->high_factor = real(in, "high_freq_factor", 1e-3, 1e6, 4);
        if (in->status == KM_OK && p->high_factor <= p->low_factor)
            in->status =
                km_error_set(in->err, KM_ERR_RANGE,
                             "'%s': \"high_freq_factor\" must be above low_freq_factor", in->shown);
    } else if (in->status == KM_OK) {
        in->status =
            km_error_set(in->err, KM_ERR_UNSUPPORTED, "'%s': \"%s\" of type '%s' is not supported",
                         in->shown, key, km_shown(text, kind));
    }
}

/* "rope_scaling" (older) and "rope_parameters" (newer files) may stretch the rotation. */
static void read_rope(json_reader *r, const char *key, km_config *c) {
    const json_t *o = json_object_get(r->o, key);
    if (r->status != KM_OK || !o || json_is_null(o)) return;
    json_reader in = {o, r->shown, r->err, KM_OK};
    if (!json_is_object(o))
        in.status =
            km_error_set(r->err, KM_ERR_FORMAT, "'%s': \"%s\" must be an object", r->shown, key);
    read_stretch(&in, key, word(&in, "rope_type", word(&in, "type", "default")), c);
    c->rope_base = real(&in, "rope_theta", 1, 1e12, c->rope_base);
    r->status = in.status;
}

/* llama, and those that are llama with more or less. */
static void read_rotary(json_reader *r, km_config *c) {
    const km_traits *t = km_arch_traits(c->arch);
    c->layers = count(r, "num_hidden_layers");
    c->heads = count(r, "num_attention_heads");
    c->kv_heads = (int)up_to(r, "num_key_value_heads", 1, 65536, c->heads);
    c->dim = needed(r, "hidden_size");
    c->head_dim = whole(r, "head_dim", 1, c->arch == KM_ARCH_QWEN3 ? 128 : 0);
    c->hidden = needed(r, "intermediate_size");
    c->context = needed(r, "max_position_embeddings");
    c->vocab = needed(r, "vocab_size");
    c->norm_eps = real(r, "rms_norm_eps", 0, 1, 1e-6);
    c->rope_base = real(r, "rope_theta", 1, 1e12, t->rope_base);
    read_rope(r, "rope_scaling", c);
    read_rope(r, "rope_parameters", c);
    c->dropout = real(r, "kermes_dropout", 0, 1, 0);
    c->tied = truth(r, "tie_word_embeddings", false);
    one_of(r, "hidden_act", "silu", "swish");
    if (c->arch != KM_ARCH_QWEN2) fixed(r, "attention_bias", false);
    fixed(r, "mlp_bias", false);
    fixed(r, "use_sliding_window", false);
}

/* Mistral: llama, whose older models look no further back than a window. */
static void read_mistral(json_reader *r, km_config *c) {
    c->arch = KM_ARCH_LLAMA;
    read_rotary(r, c);
    c->window = whole(r, "sliding_window", 1, 0);
    if (c->window >= c->context) c->window = 0;
}

static km_status read_config(km_config *c, const json_t *o, const char *shown, km_error *err) {
    json_reader r = {o, shown, err, KM_OK};
    char text[KM_SHOWN];
    *c = (km_config){0};
    if (!json_is_object(o))
        return km_error_set(err, KM_ERR_FORMAT, "'%s' is not a JSON object", shown);
    const char *type = word(&r, "model_type", NULL);
    if (r.status != KM_OK) return r.status;
    if (!type) return km_error_set(err, KM_ERR_FORMAT, "'%s': \"model_type\" is missing", shown);
    c->arch = km_arch_of_type(type);
    if (strcmp(type, "gpt2") == 0)
        read_gpt2(&r, c);
    else if (strcmp(type, "mistral") == 0)
        read_mistral(&r, c);
    else if (c->arch == KM_ARCH_LLAMA || c->arch == KM_ARCH_QWEN2 || c->arch == KM_ARCH_QWEN3)
        read_rotary(&r, c);
    else
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "'%s': models of type '%s' are not supported; gpt2, llama, mistral, "
                            "qwen2 and qwen3 are",
                            shown, km_shown(text, type));
    c->vocab_pad = whole(&r, "kermes_vocab_pad", 0, 0);
    if (r.status != KM_OK) return r.status;
    km_error why = {0};
    if (km_config_complete(c, &why) != KM_OK)
        return km_error_set(err, why.code, "'%s': %s", shown, why.text);
    return KM_OK;
}

km_status km_config_parse(km_config *c, const char *json, size_t bytes, km_error *err) {
    json_t *o = km_json_parse(json, bytes, "config.json", err);
    if (!o) return err ? err->code : KM_ERR_FORMAT;
    km_status s = read_config(c, o, "config.json", err);
    json_decref(o);
    return s;
}

/* path, or config.json in it when it is a folder. */
static km_status config_path(char *out, size_t size, const char *path, km_error *err) {
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    int n = snprintf(out, size, "%s%s", path, folder ? "/config.json" : "");
    if (n < 0 || (size_t)n >= size)
        return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", path);
    return KM_OK;
}

km_status km_config_load(km_config *c, const char *path, km_error *err) {
    char full[4096];
    km_status s = config_path(full, sizeof full, path, err);
    if (s != KM_OK) return s;
    km_error why = {0};
    json_t *o = km_json_load(full, &why);
    if (!o) return km_error_set(err, why.code, "%s", why.text);
    s = read_config(c, o, full, err);
    json_decref(o);
    return s;
}

/* ---- Writing ---- */

/* Numbers that a double does not hold exactly are written as short as they can be read back. */
static json_t *short_real(double v) {
    char text[32];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    return json_real(strtod(text, NULL));
}

static void put_int(json_t *o, const char *key, int64_t v) {
    json_object_set_new(o, key, json_integer(v));
}

static void put_bool(json_t *o, const char *key, bool v) {
    json_object_set_new(o, key, json_boolean(v));
}

static void put_real(json_t *o, const char *key, double v) {
    json_object_set_new(o, key, short_real(v));
}

static json_t *gpt2_json(const km_config *c) {
    json_t *o = json_pack("{s:[s], s:s, s:s}", "architectures", "GPT2LMHeadModel", "model_type",
                          "gpt2", "activation_function", "gelu_new");
    put_int(o, "n_layer", c->layers);
    put_int(o, "n_head", c->heads);
    put_int(o, "n_embd", c->dim);
    put_int(o, "n_inner", c->hidden);
    put_int(o, "n_positions", c->context);
    put_int(o, "n_ctx", c->context);
    put_int(o, "vocab_size", c->vocab);
    put_real(o, "layer_norm_epsilon", c->norm_eps);
    put_real(o, "resid_pdrop", c->dropout);
    put_real(o, "embd_pdrop", c->dropout);
    put_real(o, "attn_pdrop", 0);
    put_bool(o, "scale_attn_weights", true);
    put_bool(o, "tie_word_embeddings", c->tied);
    if (!c->bias) put_bool(o, "kermes_bias", false);
    return o;
}

/* "rope_scaling", as read_stretch reads it. */
static json_t *stretch_json(const km_config *c) {
    static const char *const kinds[] = {
        [KM_ROPE_LINEAR] = "linear", [KM_ROPE_YARN] = "yarn", [KM_ROPE_LLAMA3] = "llama3"};
    const km_rope_config *p = &c->rope;
    json_t *o = json_pack("{s:s}", "rope_type", kinds[p->kind]);
    put_real(o, "factor", p->factor);
    put_int(o, "original_max_position_embeddings", p->original);
    if (p->kind == KM_ROPE_YARN) {
        put_real(o, "beta_fast", p->beta_fast);
        put_real(o, "beta_slow", p->beta_slow);
        if (p->magnitude > 0) put_real(o, "attention_factor", p->magnitude);
    }
    if (p->kind == KM_ROPE_LLAMA3) {
        put_real(o, "low_freq_factor", p->low_factor);
        put_real(o, "high_freq_factor", p->high_factor);
    }
    return o;
}

static json_t *rotary_json(const km_config *c) {
    const km_traits *t = km_arch_traits(c->arch);
    bool mistral = c->arch == KM_ARCH_LLAMA && c->window > 0;
    json_t *o = json_pack("{s:[s], s:s, s:s}", "architectures",
                          mistral ? "MistralForCausalLM" : t->class_name, "model_type",
                          mistral ? "mistral" : t->type, "hidden_act", "silu");
    if (mistral) put_int(o, "sliding_window", c->window);
    if (c->rope.kind != KM_ROPE_PLAIN && c->rope.kind != KM_ROPE_DIVISORS)
        json_object_set_new(o, "rope_scaling", stretch_json(c));
    put_int(o, "num_hidden_layers", c->layers);
    put_int(o, "num_attention_heads", c->heads);
    put_int(o, "num_key_value_heads", c->kv_heads);
    put_int(o, "hidden_size", c->dim);
    put_int(o, "head_dim", c->head_dim);
    put_int(o, "intermediate_size", c->hidden);
    put_int(o, "max_position_embeddings", c->context);
    put_int(o, "vocab_size", c->vocab);
    put_real(o, "rms_norm_eps", c->norm_eps);
    put_real(o, "rope_theta", c->rope_base);
    put_bool(o, "attention_bias", t->qkv_bias);
    put_bool(o, "mlp_bias", false);
    put_bool(o, "tie_word_embeddings", c->tied);
    if (c->dropout > 0) put_real(o, "kermes_dropout", c->dropout);
    return o;
}

char *km_config_text(const km_config *c, km_error *err) {
    json_t *o = c->arch == KM_ARCH_GPT2 ? gpt2_json(c) : rotary_json(c);
    if (c->vocab_pad > 1) put_int(o, "kermes_vocab_pad", c->vocab_pad);
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL; /* Jansson's own memory */
    size_t n = text ? strlen(text) : 0;
    char *own = text ? km_alloc(n + 2) : NULL;
    if (own) {
        memcpy(own, text, n);
        memcpy(own + n, "\n", 2);
    } else {
        km_error_set(err, KM_ERR_MEMORY, "config.json: out of memory");
    }
    free(text);
    json_decref(o);
    return own;
}

km_status km_config_save(const km_config *c, const char *path, km_error *err) {
    char full[4096];
    km_status s = config_path(full, sizeof full, path, err);
    if (s != KM_OK) return s;
    char *text = km_config_text(c, err);
    if (!text) return KM_ERR_MEMORY;
    km_error why = {0};
    km_writer *w = km_writer_open(full, &why);
    if (w) {
        km_writer_put(w, text, strlen(text));
        km_writer_commit(w, &why);
    }
    km_free(text);
    return why.code == KM_OK ? KM_OK : km_error_set(err, why.code, "%s", why.text);
}
