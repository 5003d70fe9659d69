/* Conversion: opens the source, lays out the target's tensors, and hands both to the writer of the
 * target's format. The tokenizer's part is convert_token.c. */
#include "model/convert.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/json_read.h"
#include "model/arch.h"
#include "model/convert_job.h"
#include "model/config.h"
#include "tensor/dtype.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

bool km_is_gguf(const char *path) {
    char head[4] = "";
    if (km_names_gguf(path)) return true;
    FILE *f = fopen(path, "rb");
    bool yes = f && fread(head, 1, 4, f) == 4 && memcmp(head, "GGUF", 4) == 0;
    if (f) fclose(f);
    return yes;
}

bool km_names_gguf(const char *path) {
    size_t n = strlen(path);
    return n > 5 && strcasecmp(path + n - 5, ".gguf") == 0;
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- The source ---- */

/* A checkpoint keeps low-rank corrections apart from its weights, which alone are the model that
 * the run began with. */
static km_status refuse_lora(const char *folder, km_error *err) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/optimizer.safetensors", folder);
    if (access(path, F_OK) != 0) return KM_OK;
    km_safetensors *f = km_safetensors_open(path, err);
    if (!f) return err->code;
    bool lora = false;
    for (int i = 0; i < km_safetensors_count(f) && !lora; i++)
        lora = strncmp(km_safetensors_at(f, i)->name, "model.", 6) == 0 &&
               strstr(km_safetensors_at(f, i)->name, ".lora_");
    km_safetensors_close(f);
    if (!lora) return KM_OK;
    return km_error_set(
        err, KM_ERR_UNSUPPORTED,
        "'%s' holds LoRA corrections that are not merged; convert the run's 'model' "
        "or 'best'",
        folder);
}

/* Between folders and GGUF: models that only GGUF holds, as far as Kermes knows. */
static km_status can_convert(const km_convert_job *j, km_error *err) {
    const km_config *c = &j->config;
    const km_traits *t = km_arch_traits(c->arch);
    if (t->post_norms || t->joined_up)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "'%s': %s models can only be converted from GGUF into GGUF", j->o->in,
                            t->name);
    if (c->rope.kind == KM_ROPE_DIVISORS || (c->rope.magnitude > 0 && c->rope.kind != KM_ROPE_YARN))
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "'%s': its rotation is stretched by %s, which config.json has no words "
                            "for",
                            j->o->in,
                            c->rope.kind == KM_ROPE_DIVISORS ? "divisors" : "an attention factor");
    return KM_OK;
}

static km_status open_gguf(km_convert_job *j, km_error *err) {
    const char *in = j->o->in;
    km_map m;
    km_status s = km_map_open(&m, in, err);
    if (s != KM_OK) return s;
    bool gguf = m.size >= 4 && memcmp(m.data, "GGUF", 4) == 0;
    km_map_close(&m);
    if (!gguf)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s' is no GGUF file; of a Hugging Face model, give its folder", in);
    j->weights.gguf = km_gguf_open(in, err);
    if (!j->weights.gguf) return err->code;
    j->weights.blocks = true;
    j->from = KM_STORE_GGUF;
    return km_config_from_gguf(&j->config, j->weights.gguf, err);
}

static km_status open_folder(km_convert_job *j, km_error *err) {
    km_status s = km_config_load(&j->config, j->o->in, err);
    if (s == KM_OK) s = refuse_lora(j->o->in, err);
    if (s != KM_OK) return s;
    j->weights.st = km_safetensors_open(j->o->in, err);
    j->from = KM_STORE_HF;
    return j->weights.st ? KM_OK : err->code;
}

/* The rows of the model's layout give way to the file's own tensors, which are as many or more. */
static km_status keep_tensors(km_convert_job *j, km_error *err) {
    const km_gguf *g = j->weights.gguf;
    km_layout_row *rows = km_calloc((size_t)km_gguf_count(g) + 1, sizeof *rows);
    km_stored *stored = km_calloc((size_t)km_gguf_count(g) + 1, sizeof *stored);
    km_layout_free(&j->layout);
    km_free(j->stored);
    j->stored = stored;
    j->layout = (km_layout){rows, 0};
    if (!rows || !stored) return km_no_memory(err);
    for (int i = 0; i < km_gguf_count(g); i++) {
        const km_gguf_tensor *t = km_gguf_at(g, i);
        km_layout_row *r = &rows[j->layout.n++];
        *r = (km_layout_row){.shape = t->shape, .full = t->shape.ndim < 2};
        snprintf(r->gguf, sizeof r->gguf, "%s", t->name);
        snprintf(r->name, sizeof r->name, "%s", t->name);
        stored[i] = (km_stored){t->info->dtype, t->data};
    }
    return KM_OK;
}

static km_status open_source(km_convert_job *j, km_error *err) {
    km_status s = is_folder(j->o->in) ? open_folder(j, err) : open_gguf(j, err);
    if (s == KM_OK && j->from != j->to) s = can_convert(j, err);
    if (s == KM_OK) s = km_layout_of(&j->config, &j->layout, err);
    if (s != KM_OK) return s;
    j->stored = km_calloc((size_t)j->layout.n, sizeof *j->stored);
    if (!j->stored) return km_no_memory(err);
    s = km_weights_find(&j->weights, &j->config, &j->layout, j->stored, err);
    if (s == KM_OK && j->from == KM_STORE_GGUF && j->to == KM_STORE_GGUF) s = keep_tensors(j, err);
    if (s != KM_OK) return s;
    j->items = km_calloc((size_t)j->layout.n, sizeof *j->items);
    if (!j->items) return km_no_memory(err);
    if (j->o->imatrix && !(j->imatrix = km_imatrix_load(j->o->imatrix, err))) return err->code;
    return km_convert_fill_open(j, err);
}

static void close_job(km_convert_job *j) {
    km_safetensors_close(j->weights.st);
    km_gguf_close(j->weights.gguf);
    km_layout_free(&j->layout);
    km_free(j->items);
    km_free(j->stored);
    km_imatrix_free(j->imatrix);
    km_convert_fill_close(j);
}

/* ---- The target's tensors ---- */

static km_dtype target_dtype(const km_convert_job *j, const km_mix_model *model, int i) {
    const km_layout_row *r = &j->layout.row[i];
    km_dtype d = j->stored[i].dtype;
    bool gguf = j->to == KM_STORE_GGUF;
    if (gguf && j->o->mix) d = km_mix_dtype(j->o->mix, model, r->gguf, r->shape);
    if (!gguf && km_dtype_is_block(d)) d = KM_F32;
    if (j->o->dtype != KM_DTYPE_COUNT && !j->o->mix) d = j->o->dtype;
    if (d == KM_F64 || (gguf && r->full)) d = KM_F32;
    if (gguf && strncmp(r->gguf, "position_embd", 13) == 0) d = KM_F32;
    return d;
}

/* The importance of a matrix's inputs, where it matters. */
static km_status weigh(km_convert_job *j, km_convert_item *it, km_error *err) {
    if (!j->imatrix || !km_dtype_is_block(it->dtype)) return KM_OK;
    const km_imatrix_row *known = km_imatrix_find(j->imatrix, it->row->gguf);
    int64_t in = it->row->shape.dim[it->row->shape.ndim - 1];
    if (known && known->in != in)
        return km_error_set(err, KM_ERR_SHAPE,
                            "'%s' knows %lld inputs of '%s', which has %lld: it is another model's",
                            j->o->imatrix, (long long)known->in, it->row->gguf, (long long)in);
    it->importance = known && known->count > 0 ? known->mean : NULL;
    j->unweighed += !it->importance;
    return KM_OK;
}

static km_status plan_items(km_convert_job *j, km_error *err) {
    const km_config *c = &j->config;
    km_mix_model model = {c->layers, c->heads / c->kv_heads, c->tied, j->imatrix != NULL};
    km_status s = KM_OK;
    for (int i = 0; i < j->layout.n && s == KM_OK; i++) {
        const km_layout_row *r = &j->layout.row[i];
        km_convert_item *it = &j->items[i];
        *it = (km_convert_item){j, r, &j->stored[i], target_dtype(j, &model, i), NULL};
        int64_t n = 1;
        for (int d = 0; d < r->shape.ndim; d++) n *= r->shape.dim[d];
        j->parameters += (uint64_t)n;
        j->total += (uint64_t)km_dtype_bytes(it->dtype, n);
        s = weigh(j, it, err);
    }
    return s;
}

/* The dtype of the matrices, when they are all alike. */
static km_dtype common_dtype(const km_convert_job *j) {
    km_dtype d = KM_DTYPE_COUNT;
    for (int i = 0; i < j->layout.n; i++) {
        if (j->layout.row[i].full) continue;
        if (d != KM_DTYPE_COUNT && d != j->items[i].dtype) return KM_DTYPE_COUNT;
        d = j->items[i].dtype;
    }
    return d;
}

/* ---- A GGUF file ---- */

/* The last part of the path, without a suffix: "models/tiny.gguf" is called "tiny". */
static void put_name(km_gguf_out *out, const char *path) {
    char name[256];
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/') start--;
    snprintf(name, sizeof name, "%.*s", (int)(end - start < 255 ? end - start : 255), path + start);
    if (km_names_gguf(name)) name[strlen(name) - 5] = 0;
    km_gguf_put_string(out, "general.name", name);
}

/* What a GGUF source says beyond its sizes: names, licences, the tokenizer. */
static void put_rest(km_gguf_out *out, const km_gguf *g, bool no_tokenizer) {
    static const char *const own[] = {"general.file_type", "general.quantization_version",
                                      "general.alignment"};
    for (int i = 0; i < km_gguf_meta_count(g); i++) {
        const char *key = km_gguf_meta_key(g, i);
        km_gguf_value v;
        bool skip = strncmp(key, "split.", 6) == 0 || km_gguf_out_get(out, key, &v) ||
                    (no_tokenizer && strncmp(key, "tokenizer.", 10) == 0);
        for (size_t k = 0; k < sizeof own / sizeof *own; k++) skip = skip || !strcmp(key, own[k]);
        if (!skip) km_gguf_put_value(out, key, km_gguf_meta_at(g, i));
    }
}

/* What kind of file it is, in ggml's numbers: as asked, as it was, or by its matrices. */
static void put_type(const km_convert_job *j, km_gguf_out *out) {
    bool kept = j->weights.gguf && j->o->dtype == KM_DTYPE_COUNT, blocks = false;
    km_dtype d = common_dtype(j);
    int64_t type = d == KM_F16 ? 1 : d == KM_BF16 ? 32 : 0;
    if (j->o->mix)
        type = j->o->mix->file_type;
    else if (kept)
        km_gguf_int(j->weights.gguf, "general.file_type", 0, INT32_MAX, &type, NULL);
    km_gguf_put_u32(out, "general.file_type", (uint32_t)type);
    for (int i = 0; i < j->layout.n; i++) blocks = blocks || km_dtype_is_block(j->items[i].dtype);
    if (blocks) km_gguf_put_u32(out, "general.quantization_version", 2);
}

/* GGUF has Llama 3's stretched rotation as what each pair's frequency is divided by. The numbers
 * must stay until the file is written. */
static km_status put_divisors(const km_convert_job *j, km_gguf_out *out, float **divisors,
                              km_error *err) {
    const km_config *c = &j->config;
    int64_t n = (c->rope_dims ? c->rope_dims : c->head_dim) / 2;
    if (j->from == KM_STORE_GGUF || c->rope.kind != KM_ROPE_LLAMA3) return KM_OK;
    *divisors = km_alloc((size_t)n * sizeof **divisors);
    if (!*divisors) return km_no_memory(err);
    km_rope_divisors(c, *divisors);
    km_gguf_add(out, "rope_freqs.weight", KM_GGML_F32, KM_SHAPE(n), *divisors, NULL, NULL);
    return KM_OK;
}

static km_status write_gguf(km_convert_job *j, km_error *err) {
    km_gguf_out *out = km_gguf_out_new(err);
    if (!out) return err->code;
    bool other = j->o->tokenizer || j->o->no_tokenizer;
    if (j->weights.gguf) { /* all that it says */
        put_rest(out, j->weights.gguf, other);
    } else {
        km_config_put_gguf(&j->config, out);
        put_name(out, j->o->in);
    }
    put_type(j, out);
    km_status s = km_convert_token_gguf(j, out, err);
    for (int i = 0; i < j->layout.n && s == KM_OK; i++) {
        km_ggml_type type = KM_GGML_F32;
        km_ggml_of_dtype(j->items[i].dtype, &type);
        km_gguf_add(out, j->layout.row[i].gguf, type, j->layout.row[i].shape, NULL, km_convert_fill,
                    &j->items[i]);
    }
    float *divisors = NULL;
    if (s == KM_OK) s = put_divisors(j, out, &divisors, err);
    if (s == KM_OK) s = km_gguf_write(out, j->o->out, err);
    km_free(divisors);
    km_gguf_out_free(out);
    return s;
}

/* ---- A folder ---- */

static km_status write_config(km_convert_job *j, km_error *err) {
    char path[PATH_MAX];
    json_t *o = NULL;
    if (j->from == KM_STORE_HF) { /* what it says beyond what Kermes reads is kept */
        snprintf(path, sizeof path, "%s/config.json", j->o->in);
        o = km_json_load(path, err);
    } else {
        char *text = km_config_text(&j->config, err);
        if (text) o = km_json_parse(text, strlen(text), "config.json", err);
        km_free(text);
    }
    if (!o) return err->code;
    static const char *const names[] = {
        [KM_F32] = "float32", [KM_F16] = "float16", [KM_BF16] = "bfloat16"};
    km_dtype d = common_dtype(j);
    const char *key = json_object_get(o, "dtype") ? "dtype" : "torch_dtype";
    if (d <= KM_BF16)
        json_object_set_new(o, key, json_string(names[d]));
    else
        json_object_del(o, key);
    const char *class = km_arch_traits(j->config.arch)->class_name;
    json_object_set_new(o, "architectures", json_pack("[s]", class));
    km_convert_token_ids(j, o);
    km_status s = km_convert_save_json(j->o->out, "config.json", o, err);
    json_decref(o);
    return s;
}

static km_status write_folder(km_convert_job *j, km_error *err) {
    char path[PATH_MAX];
    km_st_item *items = km_calloc((size_t)j->layout.n, sizeof *items);
    if (!items) return km_no_memory(err);
    for (int i = 0; i < j->layout.n; i++)
        items[i] = (km_st_item){.name = j->layout.row[i].name,
                                .dtype = j->items[i].dtype,
                                .shape = km_layout_shape(&j->layout.row[i], KM_STORE_HF),
                                .fill = km_convert_fill,
                                .user = &j->items[i]};
    km_st_pair format = {"format", "pt"}; /* transformers refuses files that do not say so */
    snprintf(path, sizeof path, "%s/model.safetensors", j->o->out);
    km_status s = km_safetensors_write(path, items, j->layout.n, &format, 1, err);
    km_free(items);
    if (s == KM_OK) s = km_convert_token_folder(j, err);
    return s == KM_OK ? write_config(j, err) : s;
}

/* ---- All of it ---- */

km_status km_convert_save_json(const char *folder, const char *name, json_t *o, km_error *err) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    if (!text) return km_no_memory(err);
    km_writer *w = km_writer_open(path, err);
    if (w) {
        km_writer_put(w, text, strlen(text));
        km_writer_put(w, "\n", 1);
        km_writer_commit(w, err);
    }
    free(text);
    return err->code;
}

km_status km_convert_weights(const km_conversion *o, km_conversion_done *done, km_error *err) {
    km_error own = {0};
    km_convert_job j = {.o = o};
    if (strlen(o->in) + 64 > PATH_MAX || strlen(o->out) + 64 > PATH_MAX)
        return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", o->in);
    j.to = km_names_gguf(o->out) ? KM_STORE_GGUF : KM_STORE_HF;
    km_status s = open_source(&j, &own);
    if (s == KM_OK) s = plan_items(&j, &own);
    if (s == KM_OK) {
        s = j.to == KM_STORE_GGUF ? write_gguf(&j, &own) : write_folder(&j, &own);
    }
    if (s == KM_OK && done)
        *done = (km_conversion_done){.config = j.config,
                                     .from_gguf = j.from == KM_STORE_GGUF,
                                     .to_gguf = j.to == KM_STORE_GGUF,
                                     .tensors = j.layout.n,
                                     .parameters = j.parameters,
                                     .bytes = j.total,
                                     .tokens = j.tokens,
                                     .unweighed = j.unweighed};
    close_job(&j);
    return s == KM_OK ? KM_OK : km_error_set(err, own.code, "%s", own.text);
}
