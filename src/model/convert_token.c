/* The tokenizer's way through a conversion. Between folders its files are copied as they are;
 * between GGUF files its keys are; from one to the other it is loaded and written anew. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/json_read.h"
#include "model/convert_job.h"
#include "token/gguf.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool in_folder(const km_convert_job *j, const char *name, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/%s", j->o->in, name);
    return j->from == KM_STORE_HF && access(path, F_OK) == 0;
}

/* The tokenizer that was asked for, or the source's own; NULL without an error: there is none. */
static km_token *load(const km_convert_job *j, km_error *err) {
    char path[PATH_MAX];
    if (j->o->no_tokenizer) return NULL;
    if (j->o->tokenizer) return km_token_load(j->o->tokenizer, err);
    if (j->from == KM_STORE_HF)
        return in_folder(j, "tokenizer.json", path) ? km_token_load(path, err) : NULL;
    return km_gguf_get(j->weights.gguf, "tokenizer.ggml.model")
               ? km_token_from_gguf(j->weights.gguf, err)
               : NULL;
}

static km_status check_size(const km_convert_job *j, int64_t tokens, km_error *err) {
    if (tokens <= j->config.vocab) return KM_OK;
    return km_error_set(err, KM_ERR_RANGE,
                        "the tokenizer has %lld tokens, but the model was made for %lld",
                        (long long)tokens, (long long)j->config.vocab);
}

/* ---- Into GGUF ---- */

/* GGUF has one token for each row of the table: rows that the tokenizer does not use get a name. */
static km_status pad_tokens(const km_convert_job *j, km_gguf_out *out, km_error *err) {
    static const char key[] = "tokenizer.ggml.tokens", types[] = "tokenizer.ggml.token_type",
                      scores[] = "tokenizer.ggml.scores";
    enum { NAME = 24, UNUSED = 5 };
    size_t want = (size_t)j->config.vocab, n = 0;
    km_gguf_value v, item;
    if (!km_gguf_out_get(out, key, &v) || v.type != KM_GGUF_ARRAY || v.array.count >= want)
        return KM_OK;
    size_t have = (size_t)v.array.count;
    const char **text = km_calloc(want, sizeof *text);
    size_t *size = km_calloc(want, sizeof *size);
    char *names = km_alloc((want - have) * NAME), *copy = km_alloc(v.array.bytes + 1);
    float *numbers = km_calloc(want, sizeof *numbers);
    int32_t *type = km_calloc(want, sizeof *type);
    km_status s = KM_OK;
    if (!text || !size || !names || !copy || !numbers || !type) {
        s = km_no_memory(err);
    } else {
        char *to = copy; /* the array moves when more is put */
        for (km_gguf_iter it = km_gguf_begin(&v); km_gguf_next(&it, &item); n++) {
            text[n] = to;
            size[n] = item.text.size;
            memcpy(to, item.text.data, item.text.size);
            to += item.text.size;
        }
        for (; n < want; n++) {
            text[n] = names + (n - have) * NAME;
            size[n] = (size_t)snprintf(names + (n - have) * NAME, NAME, "[PAD%zu]", n);
        }
        km_gguf_drop(out, key);
        km_gguf_put_strings(out, key, text, size, want);
        for (n = 0; n < want; n++) type[n] = UNUSED;
        if (km_gguf_out_get(out, types, &v) && v.type == KM_GGUF_ARRAY && v.array.count == have &&
            v.array.type == KM_GGUF_I32) {
            memcpy(type, v.array.data, have * sizeof *type);
            km_gguf_drop(out, types);
            km_gguf_put_array(out, types, KM_GGUF_I32, type, want);
        }
        if (km_gguf_out_get(out, scores, &v) && v.type == KM_GGUF_ARRAY && v.array.count == have &&
            v.array.type == KM_GGUF_F32) {
            for (n = 0; n < want; n++) numbers[n] = -1000;
            memcpy(numbers, v.array.data, have * sizeof *numbers);
            km_gguf_drop(out, scores);
            km_gguf_put_array(out, scores, KM_GGUF_F32, numbers, want);
        }
    }
    km_free(text);
    km_free(size);
    km_free(names);
    km_free(copy);
    km_free(numbers);
    km_free(type);
    return s;
}

/* Hugging Face keeps the chat template beside the tokenizer. */
static km_status put_template(const km_convert_job *j, km_gguf_out *out, km_error *err) {
    char path[PATH_MAX];
    km_gguf_value v;
    if (km_gguf_out_get(out, "tokenizer.chat_template", &v)) return KM_OK;
    if (!in_folder(j, "tokenizer_config.json", path)) return KM_OK;
    json_t *o = km_json_load(path, err);
    if (!o) return err->code;
    const char *text = json_string_value(json_object_get(o, "chat_template"));
    if (text) km_gguf_put_string(out, "tokenizer.chat_template", text);
    json_decref(o);
    return KM_OK;
}

km_status km_convert_token_gguf(km_convert_job *j, km_gguf_out *out, km_error *err) {
    km_gguf_value v;
    if (km_gguf_out_get(out, "tokenizer.ggml.tokens", &v)) { /* copied from a GGUF source */
        j->tokens = v.type == KM_GGUF_ARRAY ? (int64_t)v.array.count : 0;
        return check_size(j, j->tokens, err);
    }
    km_token *t = load(j, err);
    if (!t) return err->code;
    km_status s = check_size(j, km_token_vocab(t), err);
    km_error why = {0};
    if (s == KM_OK) s = km_token_put_gguf(t, out, &why);
    if (why.code != KM_OK)
        s = km_error_set(err, why.code, "%s%s", why.text,
                         why.code == KM_ERR_UNSUPPORTED ? " (it can be left out)" : "");
    if (s == KM_OK) s = pad_tokens(j, out, err);
    if (s == KM_OK && !j->o->tokenizer) s = put_template(j, out, err);
    j->tokens = km_token_vocab(t);
    km_token_free(t);
    return s;
}

/* ---- Into a folder ---- */

static km_status copy_file(const char *from, const char *folder, const char *name, km_error *err) {
    char to[PATH_MAX];
    km_map m;
    km_status s = km_map_open(&m, from, err);
    if (s != KM_OK) return s;
    snprintf(to, sizeof to, "%s/%s", folder, name);
    km_writer *w = km_writer_open(to, err);
    if (w) {
        km_writer_put(w, m.data, m.size);
        if (km_map_check(&m, err) == KM_OK)
            km_writer_commit(w, err);
        else
            km_writer_abort(w);
    }
    km_map_close(&m);
    return err->code;
}

/* What transformers wants to know before it opens tokenizer.json. */
static km_status write_token_config(const km_convert_job *j, const km_token *t, km_error *err) {
    json_t *o = json_pack("{s:s, s:I, s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                          "model_max_length", (json_int_t)j->config.context,
                          "clean_up_tokenization_spaces", 0);
    static const char *const keys[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    const int32_t ids[] = {km_token_bos(t), km_token_eos(t), km_token_unk(t), km_token_pad(t)};
    for (int i = 0; o && i < 4; i++) {
        size_t n;
        const char *text = ids[i] >= 0 ? km_token_text(t, ids[i], &n) : NULL;
        if (text) json_object_set_new(o, keys[i], json_stringn(text, n));
    }
    const km_gguf_value *v = km_gguf_get(j->weights.gguf, "tokenizer.chat_template");
    if (o && v && v->type == KM_GGUF_STRING)
        json_object_set_new(o, "chat_template", json_stringn(v->text.data, v->text.size));
    km_status s =
        o ? km_convert_save_json(j->o->out, "tokenizer_config.json", o, err) : km_no_memory(err);
    json_decref(o);
    return s;
}

km_status km_convert_token_folder(km_convert_job *j, km_error *err) {
    static const char *const files[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "generation_config.json"};
    char path[PATH_MAX];
    if (j->o->no_tokenizer) return KM_OK;
    km_token *t = load(j, err);
    if (!t && err->code != KM_OK) return err->code;
    km_status s = t ? check_size(j, km_token_vocab(t), err) : KM_OK;
    bool own = j->from == KM_STORE_HF && !j->o->tokenizer;
    for (size_t i = 0; own && i < sizeof files / sizeof *files && s == KM_OK; i++)
        if (in_folder(j, files[i], path)) s = copy_file(path, j->o->out, files[i], err);
    snprintf(path, sizeof path, "%s/tokenizer.json", j->o->out);
    if (t && !own && s == KM_OK) s = km_token_save(t, path, err);
    if (t && s == KM_OK && !(own && in_folder(j, "tokenizer_config.json", path)))
        s = write_token_config(j, t, err);
    if (t && s == KM_OK) {
        j->tokens = km_token_vocab(t);
        j->bos = km_token_bos(t);
        j->eos = km_token_eos(t);
    }
    km_token_free(t);
    return s;
}

void km_convert_token_ids(const km_convert_job *j, json_t *config) {
    static const char *const keys[] = {"bos_token_id", "eos_token_id"};
    const int32_t ids[] = {j->bos, j->eos};
    /* Where transformers wrote the file, a key that is not there has its default there. */
    bool theirs = json_object_get(config, "transformers_version") != NULL;
    for (int i = 0; i < 2; i++) {
        if (json_object_get(config, keys[i])) continue;
        if (j->tokens > 0 && ids[i] >= 0)
            json_object_set_new(config, keys[i], json_integer(ids[i]));
        else if (!theirs)
            json_object_set_new(config, keys[i], json_null());
    }
}
