/* A model described as JSON: what km_model_describe tells, and all metadata of its file. */
#include "base/alloc.h"
#include "base/utf8.h"
#include "engine/engine.h"
#include "format/gguf.h"
#include "model/convert.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS 64 /* of an array; a vocabulary is told by its length */

static json_t *text_json(const char *text, size_t bytes) {
    return km_utf8_valid(text, bytes) == bytes ? json_stringn_nocheck(text, bytes)
                                               : json_string("(not UTF-8)");
}

static json_t *value_json(const km_gguf_value *v);

static json_t *array_json(const km_gguf_value *v) {
    json_t *list = json_array();
    km_gguf_value item;
    int n = 0;
    for (km_gguf_iter it = km_gguf_begin(v); n < ITEMS && km_gguf_next(&it, &item); n++)
        json_array_append_new(list, value_json(&item));
    if (v->array.count <= ITEMS) return list;
    return json_pack("{s:s, s:I, s:o}", "array", km_gguf_type_name(v->array.type), "length",
                     (json_int_t)v->array.count, "first", list);
}

static json_t *value_json(const km_gguf_value *v) {
    switch (v->type) {
    case KM_GGUF_F32:
    case KM_GGUF_F64: return isfinite(v->f) ? json_real(v->f) : json_null();
    case KM_GGUF_U8:
    case KM_GGUF_U16:
    case KM_GGUF_U32:
    case KM_GGUF_U64: return json_integer((json_int_t)v->u);
    case KM_GGUF_I8:
    case KM_GGUF_I16:
    case KM_GGUF_I32:
    case KM_GGUF_I64: return json_integer((json_int_t)v->i);
    case KM_GGUF_BOOL: return json_boolean(v->b);
    case KM_GGUF_STRING: return text_json(v->text.data, v->text.size);
    default: return array_json(v);
    }
}

static json_t *metadata_json(const km_model *m, km_error *err) {
    json_t *all = json_object();
    km_gguf *g = km_is_gguf(m->path) ? km_gguf_open(m->path, err) : NULL;
    for (int i = 0; g && i < km_gguf_meta_count(g); i++)
        json_object_set_new(all, km_gguf_meta_key(g, i), value_json(km_gguf_meta_at(g, i)));
    km_gguf_close(g);
    return all;
}

char *km_model_describe_json(km_model *m) {
    km_error err = {0};
    km_model_info o = km_model_describe(m);
    if (!o.size) return NULL;
    json_t *v = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:s, s:o}",
        "path", o.path, "name", o.name, "architecture", o.architecture, "devices", o.devices,
        "file_type", o.file_type, "parameters", (json_int_t)o.parameters, "bytes",
        (json_int_t)o.bytes, "context", (json_int_t)o.context, "trained_context",
        (json_int_t)o.trained_context, "vocab", (json_int_t)o.vocab, "dim", (json_int_t)o.dim,
        "layers", (json_int_t)o.layers, "heads", (json_int_t)o.heads, "kv_heads",
        (json_int_t)o.kv_heads, "has_template", o.has_template, "can_embed", o.can_embed,
        "can_rank", o.can_rank, "tokenizer", km_token_kind(m->token), "metadata",
        metadata_json(m, &err));
    char *text = v ? json_dumps(v, JSON_INDENT(2)) : NULL, *own = text ? km_strdup(text) : NULL;
    free(text);
    json_decref(v);
    if (!own && err.code == KM_OK) km_no_memory_for(&err, "a description");
    if (err.code == KM_OK) return own;
    km_free(own);
    km_last_error_set(&err);
    return NULL;
}
