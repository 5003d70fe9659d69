/* Adapters in files: Hugging Face's PEFT folders, and GGUF files as llama.cpp's convert_lora_to_gguf
 * writes them. Both name a layer and have two matrices, A (rank, in) and B (out, rank); GGUF has the
 * rows of rotated layers in another order. Nothing in a file is believed. */
#include "base/alloc.h"
#include "base/json_read.h"
#include "base/shown.h"
#include "model/adapters.h"
#include "model/arch.h"
#include "model/layout.h"
#include "tensor/dtype.h"
#include "tensor/quant.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PREFIX "base_model.model."

struct km_adapter_file {
    char path[4096];    /* of the tensors */
    km_safetensors *st; /* one of the two is NULL */
    km_gguf *gguf;
    km_layout layout; /* of the model's tensors */
    double alpha;
    int64_t rank;   /* that PEFT's config names; 0: a GGUF file */
    bool root;      /* alpha / sqrt(rank): rsLoRA */
    bool patterns;  /* layers may have other ranks than that */
    json_t *alphas; /* PEFT's alpha_pattern; or NULL */
    bool *used;     /* of each tensor: a layer has asked for it */
};

typedef struct adapter_tensor { /* one of either kind of file */
    const char *name;
    km_dtype dtype;
    km_shape shape;
    const void *data;
    int at;
} adapter_tensor;

/* ---- PEFT's config ---- */

static km_status refuse(const json_t *o, const char *key, const char *what, const char *path,
                        km_error *err) {
    bool on = false;
    km_status s = km_json_bool(o, key, &on, path, err);
    if (s != KM_OK || !on) return s;
    return km_error_set(err, KM_ERR_UNSUPPORTED, "'%s': %s is not supported", path, what);
}

static km_status read_config(km_adapter_file *f, const char *path, km_error *err) {
    const char *kind = "LORA";
    json_t *o = km_json_load(path, err);
    if (!o) return err->code;
    km_status s = km_json_string(o, "peft_type", &kind, path, err);
    if (s == KM_OK && strcmp(kind, "LORA") != 0) {
        char shown[KM_SHOWN];
        s = km_error_set(err, KM_ERR_UNSUPPORTED, "'%s': an adapter of type %s, not LORA", path,
                         km_shown(shown, kind));
    }
    if (s == KM_OK) s = km_json_int(o, "r", 1, 65536, &f->rank, path, err);
    if (s == KM_OK) s = km_json_real(o, "lora_alpha", 0, 1e9, &f->alpha, path, err);
    if (s == KM_OK && (f->rank == 0 || f->alpha <= 0))
        s = km_error_set(err, KM_ERR_FORMAT, "'%s': \"%s\" is missing", path,
                         f->rank ? "lora_alpha" : "r");
    if (s == KM_OK) s = km_json_bool(o, "use_rslora", &f->root, path, err);
    if (s == KM_OK) s = refuse(o, "use_dora", "DoRA", path, err);
    const json_t *ranks = json_object_get(o, "rank_pattern");
    json_t *alphas = json_object_get(o, "alpha_pattern");
    f->patterns = json_object_size(ranks) > 0;
    if (s == KM_OK && json_object_size(alphas) > 0) f->alphas = json_incref(alphas);
    json_decref(o);
    return s;
}

/* A layer's alpha: that of the pattern which is its name or an end of it, else the config's. */
static double alpha_of(const km_adapter_file *f, const char *layer) {
    const char *key;
    json_t *value;
    size_t n = strlen(layer);
    json_object_foreach(f->alphas, key, value) {
        size_t k = strlen(key);
        if (k <= n && strcmp(layer + n - k, key) == 0 && (k == n || layer[n - k - 1] == '.') &&
            json_is_number(value))
            return json_number_value(value);
    }
    return f->alpha;
}

/* ---- Opening ---- */

static km_status join(char out[4096], const char *folder, const char *file, km_error *err) {
    int n = snprintf(out, 4096, "%s/%s", folder, file);
    if (n >= 0 && n < 4096) return KM_OK;
    return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", folder);
}

static km_status open_folder(km_adapter_file *f, const char *path, km_error *err) {
    char config[4096];
    km_status s = join(config, path, "adapter_config.json", err);
    if (s == KM_OK) s = read_config(f, config, err);
    if (s == KM_OK) s = join(f->path, path, "adapter_model.safetensors", err);
    if (s == KM_OK && !(f->st = km_safetensors_open(f->path, err))) s = err->code;
    return s;
}

static km_status want_text(const km_adapter_file *f, const char *key, const char *want,
                           km_error *err) {
    const char *got = NULL;
    char shown[KM_SHOWN];
    km_status s = km_gguf_string(f->gguf, key, &got, err);
    if (s != KM_OK || (got && strcmp(got, want) == 0)) return s;
    return km_error_set(err, KM_ERR_FORMAT, "'%s': %s is %s, not %s", f->path, key,
                        got ? km_shown(shown, got) : "missing", want);
}

static km_status open_gguf(km_adapter_file *f, const km_net *m, const char *path, km_error *err) {
    int n = snprintf(f->path, sizeof f->path, "%s", path);
    if (n < 0 || (size_t)n >= sizeof f->path)
        return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", path);
    if (!(f->gguf = km_gguf_open(path, err))) return err->code;
    km_status s = want_text(f, "general.type", "adapter", err);
    if (s == KM_OK) s = want_text(f, "adapter.type", "lora", err);
    if (s == KM_OK) s = want_text(f, "general.architecture", km_arch_name(m->config.arch), err);
    if (s == KM_OK) s = km_gguf_real(f->gguf, "adapter.lora.alpha", 0, 1e9, &f->alpha, err);
    return s;
}

km_adapter_file *km_adapter_file_open(const km_net *m, const char *path, km_error *err) {
    struct stat st;
    km_adapter_file *f = km_calloc(1, sizeof *f);
    if (!f) {
        km_no_memory_for(err, "an adapter");
        return NULL;
    }
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    km_status s = folder ? open_folder(f, path, err) : open_gguf(f, m, path, err);
    if (s == KM_OK) s = km_layout_of(&m->config, &f->layout, err);
    if (s == KM_OK && !(f->used = km_calloc((size_t)km_adapter_file_tensors(f) + 1, sizeof(bool))))
        s = km_no_memory_for(err, "an adapter");
    if (s == KM_OK) return f;
    km_adapter_file_close(f);
    return NULL;
}

void km_adapter_file_close(km_adapter_file *f) {
    if (!f) return;
    km_safetensors_close(f->st);
    km_gguf_close(f->gguf);
    km_layout_free(&f->layout);
    json_decref(f->alphas);
    km_free(f->used);
    km_free(f);
}

int km_adapter_file_tensors(const km_adapter_file *f) {
    return f->gguf ? km_gguf_count(f->gguf) : km_safetensors_count(f->st);
}

const char *km_adapter_file_path(const km_adapter_file *f) { return f->path; }

static adapter_tensor tensor_at(const km_adapter_file *f, int i) {
    if (f->gguf) {
        const km_gguf_tensor *t = km_gguf_at(f->gguf, i);
        return (adapter_tensor){t->name, t->info->dtype, t->shape, t->data, i};
    }
    const km_st_tensor *t = km_safetensors_at(f->st, i);
    return (adapter_tensor){t->name, t->dtype, t->shape, t->data, i};
}

const char *km_adapter_file_stray(const km_adapter_file *f) {
    for (int i = 0; i < km_adapter_file_tensors(f); i++)
        if (!f->used[i]) return tensor_at(f, i).name;
    return NULL;
}

/* ---- A layer ---- */

/* The layout's row of the layer's weights; NULL: it has none there. */
static const km_layout_row *row_of(const km_adapter_file *f, const char *layer) {
    size_t n = strlen(layer);
    for (int i = 0; i < f->layout.n; i++) {
        const km_layout_row *r = &f->layout.row[i];
        if (strncmp(r->name, layer, n) == 0 && strcmp(r->name + n, ".weight") == 0) return r;
    }
    return NULL;
}

/* One of a layer's two matrices; name NULL: it is not there. b: the second. */
static adapter_tensor find(const km_adapter_file *f, const char *layer, bool b) {
    char name[400];
    const km_layout_row *r = row_of(f, layer);
    if (f->gguf)
        snprintf(name, sizeof name, "%s.lora_%c", r ? r->gguf : "", b ? 'b' : 'a');
    else
        snprintf(name, sizeof name, PREFIX "%s.lora_%c.weight", layer, b ? 'B' : 'A');
    for (int i = 0; i < km_adapter_file_tensors(f); i++) {
        adapter_tensor t = tensor_at(f, i);
        if (strcmp(t.name, name) == 0) return t;
    }
    return (adapter_tensor){0};
}

static km_status check(const km_adapter_file *f, const adapter_tensor *t, km_shape want,
                       km_error *err) {
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT], name[KM_SHOWN];
    bool known =
        t->dtype < KM_DTYPE_COUNT && (km_dtype_is_float(t->dtype) || km_dtype_is_block(t->dtype));
    if (known && km_shape_equal(t->shape, want)) return KM_OK;
    return km_error_set(err, KM_ERR_SHAPE, "'%s': the tensor '%s' is %s, not %s of floats", f->path,
                        km_shown(name, t->name), km_shape_text(a, t->shape),
                        km_shape_text(b, want));
}

int km_adapter_file_find(const km_adapter_file *f, const char *layer, const km_tensor *w, int *rank,
                         km_error *err) {
    adapter_tensor a = find(f, layer, false), b = find(f, layer, true);
    char shown[KM_SHOWN];
    if (!a.name && !b.name) return 0;
    if (!a.name || !b.name) {
        km_error_set(err, KM_ERR_FORMAT, "'%s': '%s' has no other matrix beside it", f->path,
                     km_shown(shown, a.name ? a.name : b.name));
        return -1;
    }
    int64_t r = a.shape.ndim == 2 ? a.shape.dim[0] : 0;
    if (r < 1 || r > 65536 || (f->rank && !f->patterns && r != f->rank)) r = f->rank ? f->rank : 1;
    if (check(f, &a, KM_SHAPE(r, w->shape.dim[1]), err) != KM_OK ||
        check(f, &b, KM_SHAPE(w->shape.dim[0], r), err) != KM_OK)
        return -1;
    f->used[a.at] = f->used[b.at] = true;
    *rank = (int)r;
    return 1;
}

/* All of a tensor as floats. */
static km_status floats(const adapter_tensor *t, const km_layout_row *r, km_store from, km_store to,
                        float *out, km_error *err) {
    size_t n = (size_t)km_shape_count(t->shape);
    km_stored s = {t->dtype, t->data};
    float *plain = NULL;
    if (km_dtype_is_block(t->dtype)) {
        if (!(plain = km_alloc(sizeof *plain * n))) return km_no_memory_for(err, "an adapter");
        km_dequantise(t->dtype, t->data, (int64_t)n, plain);
        s = (km_stored){KM_F32, plain};
    }
    km_status status = km_layout_copy(r, &s, from, to, KM_F32, 0, n, out, err);
    km_free(plain);
    return status;
}

km_status km_adapter_file_read(const km_adapter_file *f, const char *layer, km_rope_pairs pairs,
                               float *a, float *b, km_error *err) {
    adapter_tensor ta = find(f, layer, false), tb = find(f, layer, true);
    const km_layout_row *own = row_of(f, layer);
    int64_t rank = ta.shape.dim[0], outs = tb.shape.dim[0];
    double alpha = alpha_of(f, layer);
    /* A GGUF file without an alpha, or of 0, means B A as it is. */
    double scale = alpha > 0 ? alpha / (f->root ? sqrt((double)rank) : (double)rank) : 1;
    km_store from = f->gguf ? KM_STORE_GGUF : KM_STORE_HF;
    km_store to = pairs == KM_ROPE_ADJACENT ? KM_STORE_GGUF : KM_STORE_HF;
    km_layout_row plain = {.shape = ta.shape};
    km_layout_row turned = {.shape = tb.shape, .rope_heads = own ? own->rope_heads : 0};
    float *sides = km_alloc(sizeof *sides * (size_t)(rank * outs));
    if (!sides) return km_no_memory_for(err, "an adapter");
    km_status s = floats(&ta, &plain, from, from, a, err);
    if (s == KM_OK) s = floats(&tb, &turned, from, to, sides, err);
    for (int64_t o = 0; o < outs && s == KM_OK; o++)
        for (int64_t r = 0; r < rank; r++) b[r * outs + o] = (float)(scale * sides[o * rank + r]);
    km_free(sides);
    return s;
}
