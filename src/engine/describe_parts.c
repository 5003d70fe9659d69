/* The parts of a description. */
#include "engine/describe.h"
#include "base/log.h"
#include "base/json_read.h"
#include "model/config.h"
#include "model/layout.h"
#include "report/json.h"
#include "token/gguf.h"
#include <stdio.h>
#include <string.h>

/* ---- Tensors ---- */

static double elements(km_shape s) {
    double n = 1;
    for (int i = 0; i < s.ndim; i++) n *= (double)s.dim[i];
    return n;
}

static void add_to(json_t *o, const char *key, double more) {
    double was = json_number_value(json_object_get(o, key));
    json_object_set_new(o, key, km_json_count(was + more));
}

/* Counts one tensor in, and lists it when there is a list. */
static void count_tensor(json_t *v, const char *name, const char *type, km_shape shape,
                         size_t bytes) {
    json_t *types = json_object_get(v, "types"), *one = json_object_get(types, type);
    if (!one) {
        one = json_object();
        json_object_set_new(types, type, one);
    }
    add_to(one, "tensors", 1);
    add_to(one, "parameters", elements(shape));
    add_to(one, "bytes", (double)bytes);
    add_to(v, "tensors", 1);
    add_to(v, "parameters", elements(shape));
    add_to(v, "bytes", (double)bytes);
    json_t *list = json_object_get(v, "tensor_list");
    if (!list) return;
    json_t *dims = json_array();
    for (int i = 0; i < shape.ndim; i++) json_array_append_new(dims, json_integer(shape.dim[i]));
    json_array_append_new(list,
                          json_pack("{s:o, s:s, s:o, s:o}", "name", km_json_text(name), "type",
                                    type, "shape", dims, "bytes", km_json_count((double)bytes)));
}

static json_t *begin(int files, bool list) {
    json_t *v = json_pack("{s:i, s:i, s:i, s:i, s:{}}", "files", files, "tensors", 0, "parameters",
                          0, "bytes", 0, "types");
    if (list) json_object_set_new(v, "tensor_list", json_array());
    return v;
}

json_t *km_info_safetensors(const km_safetensors *f, bool list) {
    json_t *v = begin(km_safetensors_files(f), list), *meta = json_object();
    for (int i = 0; i < km_safetensors_count(f); i++) {
        const km_st_tensor *t = km_safetensors_at(f, i);
        count_tensor(v, t->name, t->type, t->shape, t->bytes);
    }
    for (int i = 0; i < km_safetensors_meta_count(f); i++) {
        const char *key = km_safetensors_meta_key(f, i);
        json_object_set_new(meta, key, json_string(km_safetensors_meta(f, key)));
    }
    json_object_set_new(v, "metadata", meta);
    return v;
}

/* ---- Models ---- */

/* Sizes that decide the memory a model takes; 0 where unknown. */
typedef struct sizes {
    int64_t layers, kv_heads, key, value, context;
} sizes;

static void add_memory(json_t *model, const sizes *s, const km_describe_options *o) {
    double element = (double)km_dtype_size(o->cache) / (double)km_dtype_block(o->cache);
    double token = element * (double)s->layers * (double)s->kv_heads * (double)(s->key + s->value);
    int64_t context = o->context ? o->context : s->context;
    if (token <= 0 || context <= 0) return;
    if (s->context > 0 && context > s->context)
        km_note(KM_LOG_WARN, "a context of %lld is beyond the model's of %lld tokens",
                (long long)context, (long long)s->context);
    json_object_set_new(model, "cache_type", json_string(km_dtype_name(o->cache)));
    json_object_set_new(model, "cache_bytes_per_token", km_json_count(token));
    json_object_set_new(model, "cache_context", json_integer(context));
    json_object_set_new(model, "cache_bytes", km_json_count(token * (double)context));
}

static json_t *describe(const km_config *c, const km_describe_options *o) {
    json_t *v = json_pack("{s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:b}", "architecture",
                          km_arch_name(c->arch), "layers", c->layers, "heads", c->heads, "kv_heads",
                          c->kv_heads, "head_dim", (json_int_t)c->head_dim, "dim",
                          (json_int_t)c->dim, "hidden", (json_int_t)c->hidden, "context",
                          (json_int_t)c->context, "vocab", (json_int_t)c->vocab, "tied", c->tied);
    sizes s = {c->layers, c->kv_heads, c->head_dim, c->head_dim, c->context};
    add_memory(v, &s, o);
    return v;
}

json_t *km_info_config(const char *path, const json_t *config, const km_describe_options *o) {
    km_config c;
    km_error why = {0};
    if (km_config_load(&c, path, &why) == KM_OK) return describe(&c, o);
    json_t *v = json_object();
    const char *type = NULL;
    km_json_string(config, "model_type", &type, path, NULL);
    json_object_set_new(v, "architecture", km_json_text(type ? type : "unknown"));
    json_object_set_new(v, "unsupported", km_json_text(why.text));
    return v;
}

static int64_t gguf_size(const km_gguf *g, const char *arch, const char *name, int64_t fallback) {
    char key[160];
    int64_t v = fallback;
    snprintf(key, sizeof key, "%.80s.%s", arch, name);
    return km_gguf_int(g, key, 0, INT32_MAX, &v, NULL) == KM_OK ? v : 0;
}

/* Of any architecture, since the keys are alike. */
static json_t *describe_gguf(const km_gguf *g, const km_describe_options *o, km_error *why) {
    const char *arch = "unknown";
    km_gguf_string(g, "general.architecture", &arch, NULL);
    int64_t heads = gguf_size(g, arch, "attention.head_count", 0);
    int64_t dim = gguf_size(g, arch, "embedding_length", 0), head = heads > 0 ? dim / heads : 0;
    sizes s = {gguf_size(g, arch, "block_count", 0),
               gguf_size(g, arch, "attention.head_count_kv", heads),
               gguf_size(g, arch, "attention.key_length", head),
               gguf_size(g, arch, "attention.value_length", head),
               gguf_size(g, arch, "context_length", 0)};
    const km_gguf_tensor *table = km_gguf_find(g, "token_embd.weight");
    json_t *v = json_pack(
        "{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "architecture", km_json_text(arch),
        "layers", (json_int_t)s.layers, "heads", (json_int_t)heads, "kv_heads",
        (json_int_t)s.kv_heads, "head_dim", (json_int_t)s.key, "dim", (json_int_t)dim, "hidden",
        (json_int_t)gguf_size(g, arch, "feed_forward_length", 0), "context", (json_int_t)s.context,
        "vocab", (json_int_t)(table && table->shape.ndim == 2 ? table->shape.dim[0] : 0), "tied",
        !km_gguf_find(g, "output.weight"));
    add_memory(v, &s, o);
    if (why->code != KM_OK) json_object_set_new(v, "unsupported", km_json_text(why->text));
    return v;
}

/* ---- GGUF ---- */

static json_t *gguf_json(const km_gguf_value *v) {
    enum { SHOWN = 8 };
    switch (v->type) {
    case KM_GGUF_F32: return km_json_number(v->f, 7);
    case KM_GGUF_F64: return km_json_number(v->f, 17);
    case KM_GGUF_BOOL: return json_boolean(v->b);
    case KM_GGUF_STRING: {
        json_t *text = json_stringn(v->text.data, v->text.size);
        return text ? text
                    : json_pack("{s:s, s:I}", "array", "u8", "count",
                                (json_int_t)v->text.size); /* not UTF-8 */
    }
    case KM_GGUF_ARRAY: {
        json_t *first = json_array();
        km_gguf_value item;
        km_gguf_iter it = km_gguf_begin(v);
        while (json_array_size(first) < SHOWN && km_gguf_next(&it, &item))
            json_array_append_new(first, gguf_json(&item));
        if (v->array.count <= SHOWN) return first;
        return json_pack("{s:s, s:o, s:o}", "array", km_gguf_type_name(v->array.type), "count",
                         km_json_count((double)v->array.count), "first", first);
    }
    case KM_GGUF_I8:
    case KM_GGUF_I16:
    case KM_GGUF_I32:
    case KM_GGUF_I64: return json_integer(v->i);
    default: return v->u <= INT64_MAX ? json_integer((json_int_t)v->u) : json_real((double)v->u);
    }
}

static json_t *gguf_tokenizer(const km_gguf *g) {
    const char *model = NULL, *pre = NULL;
    km_gguf_string(g, "tokenizer.ggml.model", &model, NULL);
    km_gguf_string(g, "tokenizer.ggml.pre", &pre, NULL);
    const km_gguf_value *tokens = km_gguf_get(g, "tokenizer.ggml.tokens");
    if (!model) return NULL;
    json_t *v = json_pack(
        "{s:o, s:o}", "kind", km_json_text(model), "tokens",
        km_json_count(tokens && tokens->type == KM_GGUF_ARRAY ? (double)tokens->array.count : 0));
    if (pre) json_object_set_new(v, "family", km_json_text(pre));
    static const char *const names[] = {"bos", "eos"};
    for (int i = 0; i < 2; i++) {
        char key[64];
        int64_t id = -1;
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", names[i]);
        if (km_gguf_int(g, key, 0, INT32_MAX, &id, NULL) == KM_OK && id >= 0)
            json_object_set_new(v, names[i], json_integer(id));
    }
    const km_gguf_value *chat = km_gguf_get(g, "tokenizer.chat_template");
    json_object_set_new(v, "chat_template", json_boolean(chat != NULL));
    return v;
}

json_t *km_info_gguf(const km_gguf *g, const km_describe_options *o) {
    json_t *v = begin(km_gguf_files(g), o->tensors), *meta = json_object();
    json_object_set_new(v, "version", json_integer(km_gguf_version(g)));
    for (int i = 0; i < km_gguf_count(g); i++) {
        const km_gguf_tensor *t = km_gguf_at(g, i);
        count_tensor(v, t->name, t->info->name, t->shape, t->bytes);
    }
    for (int i = 0; i < km_gguf_meta_count(g); i++) {
        json_t *key = km_json_text(km_gguf_meta_key(g, i)); /* valid UTF-8 or made so */
        json_object_set_new(meta, json_string_value(key), gguf_json(km_gguf_meta_at(g, i)));
        json_decref(key);
    }
    km_config c;
    km_error why = {0};
    if (km_gguf_get(g, "general.architecture")) {
        if (km_gguf_count(g) > 0) km_config_from_gguf(&c, g, &why);
        json_object_set_new(v, "model", describe_gguf(g, o, &why));
    }
    json_t *token = gguf_tokenizer(g);
    if (token) json_object_set_new(v, "tokenizer", token);
    json_object_set_new(v, "metadata", meta);
    return v;
}

/* ---- Tokenizers ---- */

json_t *km_info_tokenizer(const char *path, km_error *err) {
    km_token *t = km_token_load(path, err);
    if (!t) return NULL;
    json_t *v =
        json_pack("{s:s, s:I}", "kind", km_token_kind(t), "tokens", (json_int_t)km_token_vocab(t));
    static const char *const names[] = {"bos", "eos", "unk", "pad"};
    const int32_t ids[] = {km_token_bos(t), km_token_eos(t), km_token_unk(t), km_token_pad(t)};
    for (int i = 0; i < 4; i++)
        if (ids[i] >= 0) json_object_set_new(v, names[i], json_integer(ids[i]));
    json_t *special = json_array();
    for (int32_t id = 0; id < km_token_vocab(t) && json_array_size(special) < 16; id++) {
        size_t n;
        const char *text = km_token_is_special(t, id) ? km_token_text(t, id, &n) : NULL;
        if (text) json_array_append_new(special, json_stringn(text, n));
    }
    json_object_set_new(v, "special", special);
    km_token_free(t);
    return v;
}
