/* Low-rank corrections in files, as Hugging Face's PEFT keeps them. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/json_read.h"
#include "format/safetensors.h"
#include "base/shown.h"
#include "model/lora.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "base_model.model."

static km_status path_in(char *out, size_t size, const char *folder, const char *file,
                         km_error *err) {
    int n = snprintf(out, size, "%s/%s", folder, file);
    if (n >= 0 && (size_t)n < size) return KM_OK;
    return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", folder);
}

static km_status failed(const km_ctx *ctx, km_error *err) {
    return km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
}

/* ---- Writing ---- */

typedef struct name_list {
    json_t *names;
} name_list;

static void add_name(void *user, km_nn_linear *l, const char *name) {
    if (l->lora.a) json_array_append_new(((name_list *)user)->names, json_string(name));
}

static km_status save_config(km_net *m, const char *path, km_error *err) {
    name_list l = {json_array()};
    km_lora_each(m, add_name, &l);
    json_t *o =
        json_pack("{s:s, s:s, s:i, s:f, s:f, s:s, s:b, s:n, s:o}", "peft_type", "LORA", "task_type",
                  "CAUSAL_LM", "r", m->lora_rank, "lora_alpha", m->lora_alpha, "lora_dropout", 0.0,
                  "bias", "none", "fan_in_fan_out", m->config.arch == KM_ARCH_GPT2,
                  "base_model_name_or_path", "target_modules", l.names);
    char *text = o ? json_dumps(o, JSON_INDENT(2)) : NULL;
    json_decref(o);
    km_error why = {0};
    km_writer *w = text ? km_writer_open(path, &why) : NULL;
    if (w) {
        km_writer_printf(w, "%s\n", text);
        km_writer_commit(w, &why);
    } else if (!text) {
        km_error_set(&why, KM_ERR_MEMORY, "'%s': out of memory", path);
    }
    free(text);
    return why.code == KM_OK ? KM_OK : km_error_set(err, why.code, "%s", why.text);
}

/* The corrections, all brought to the host: they are small. */
static km_status save_tensors(km_net *m, const char *path, km_error *err) {
    km_st_item *item = km_calloc((size_t)m->params.n, sizeof *item);
    km_error why = {0};
    int n = 0;
    if (!item) return km_error_set(err, KM_ERR_MEMORY, "lora: out of memory");
    for (int i = 0; i < m->params.n && why.code == KM_OK; i++) {
        const km_param *p = &m->params.at[i];
        if (!strstr(p->name, ".lora_")) continue;
        size_t bytes = (size_t)km_shape_count(p->t->shape) * km_dtype_size(p->t->dtype);
        char *name = km_alloc(strlen(p->name) + sizeof PREFIX);
        void *data = km_alloc(bytes ? bytes : 1);
        if (name) sprintf(name, PREFIX "%s", p->name);
        item[n++] =
            (km_st_item){.name = name, .dtype = p->t->dtype, .shape = p->t->shape, .data = data};
        if (!name || !data)
            km_error_set(&why, KM_ERR_MEMORY, "lora: out of memory");
        else if (km_read(m->ctx, p->t, data, bytes) != KM_OK)
            failed(m->ctx, &why);
    }
    km_st_pair format = {"format", "pt"};
    if (why.code == KM_OK) km_safetensors_write(path, item, n, &format, 1, &why);
    for (int i = 0; i < n; i++) {
        km_free((void *)item[i].name);
        km_free((void *)item[i].data);
    }
    km_free(item);
    return why.code == KM_OK ? KM_OK : km_error_set(err, why.code, "%s", why.text);
}

km_status km_lora_save(km_net *m, const char *folder, km_error *err) {
    char config[4096], tensors[4096];
    if (!m->lora_rank) return km_error_set(err, KM_ERR_STATE, "lora: the model has no corrections");
    km_status s = path_in(config, sizeof config, folder, "adapter_config.json", err);
    if (s == KM_OK) s = path_in(tensors, sizeof tensors, folder, "adapter_model.safetensors", err);
    if (s == KM_OK) s = save_tensors(m, tensors, err);
    return s == KM_OK ? save_config(m, config, err) : s;
}

/* ---- Reading ---- */

typedef struct reading {
    km_net *m;
    const km_safetensors *f;
    int rank;
    double alpha;
    bool attach; /* first a pass that only checks */
    int n;       /* layers with corrections */
    km_error *err;
    km_status status;
} reading;

static const km_st_tensor *find(const reading *r, const char *layer, const char *part) {
    char name[400];
    snprintf(name, sizeof name, PREFIX "%s.%s.weight", layer, part);
    return km_safetensors_find(r->f, name);
}

static bool fits(reading *r, const km_st_tensor *t, km_shape want) {
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
    bool is_float = t->dtype != KM_DTYPE_COUNT && km_dtype_is_float(t->dtype);
    if (is_float && km_shape_equal(t->shape, want)) return true;
    r->status =
        km_error_set(r->err, KM_ERR_SHAPE, "lora: the tensor '%s' is %s %s, not %s of floats",
                     t->name, t->type, km_shape_text(a, t->shape), km_shape_text(b, want));
    return false;
}

static void put(km_ctx *ctx, km_tensor *dst, const km_st_tensor *t) {
    km_scope_begin(ctx);
    km_assign(ctx, dst, km_from_data(ctx, t->dtype, t->shape, t->data));
    km_scope_end(ctx, NULL);
}

static void read_one(void *user, km_nn_linear *l, const char *name) {
    reading *r = user;
    const km_st_tensor *a = find(r, name, "lora_A"), *b = find(r, name, "lora_B");
    if (r->status != KM_OK || (!a && !b)) return;
    if (!a || !b) {
        r->status = km_error_set(r->err, KM_ERR_FORMAT,
                                 "lora: one of the two tensors of '%s' is missing", name);
        return;
    }
    r->n++;
    if (!fits(r, a, KM_SHAPE(r->rank, l->w->shape.dim[1]))) return;
    if (!fits(r, b, KM_SHAPE(l->w->shape.dim[0], r->rank)) || !r->attach) return;
    km_lora_attach(r->m, l, name, r->rank, r->alpha);
    if (!l->lora.a) return;
    put(r->m->ctx, l->lora.a, a);
    put(r->m->ctx, l->lora.b, b);
}

static km_status read_config(const char *path, int64_t *rank, double *alpha, km_error *err) {
    json_t *o = km_json_load(path, err);
    if (!o) return err ? err->code : KM_ERR_FORMAT;
    *rank = 0;
    *alpha = 0;
    km_status s = km_json_int(o, "r", 1, 65536, rank, path, err);
    if (s == KM_OK) s = km_json_real(o, "lora_alpha", 0, 1e9, alpha, path, err);
    if (s == KM_OK && (*rank == 0 || *alpha <= 0))
        s = km_error_set(err, KM_ERR_FORMAT, "'%s': \"%s\" is missing", path,
                         *rank ? "lora_alpha" : "r");
    json_decref(o);
    return s;
}

km_status km_lora_load(km_net *m, const char *folder, km_error *err) {
    char path[4096], shown[KM_SHOWN];
    int64_t rank;
    double alpha;
    km_error own = {0};
    if (!err) err = &own;
    if (m->lora_rank)
        return km_error_set(err, KM_ERR_STATE, "lora: the model has corrections already");
    km_status s = path_in(path, sizeof path, folder, "adapter_config.json", err);
    if (s == KM_OK) s = read_config(path, &rank, &alpha, err);
    if (s == KM_OK) s = path_in(path, sizeof path, folder, "adapter_model.safetensors", err);
    if (s != KM_OK) return s;
    km_safetensors *f = km_safetensors_open(path, err);
    if (!f) return err->code;
    reading r = {.m = m, .f = f, .rank = (int)rank, .alpha = alpha, .err = err};
    km_lora_each(m, read_one, &r);
    if (r.status == KM_OK && 2 * r.n != km_safetensors_count(f)) {
        const km_st_tensor *t = km_safetensors_at(f, 0);
        r.status =
            km_error_set(err, KM_ERR_FORMAT,
                         "'%s': %d of the %d tensors fit no layer of the model ('%s' is one of "
                         "the file's)",
                         path, km_safetensors_count(f) - 2 * r.n, km_safetensors_count(f),
                         t ? km_shown(shown, t->name) : "");
    }
    if (r.status == KM_OK) {
        km_net_freeze(m, "*", true);
        r.attach = true;
        km_lora_each(m, read_one, &r);
        m->lora_rank = r.rank;
        m->lora_alpha = alpha;
        if (km_failed(m->ctx)) r.status = failed(m->ctx, err);
    }
    km_safetensors_close(f);
    return r.status;
}
