/* Reading models from Hugging Face folders: every tensor is checked before the first is changed. */
#include "base/alloc.h"
#include "base/shown.h"
#include "model/files.h"
#include <string.h>

/* "transformer.h.0..." is also known as "h.0...", and "model.norm" as "norm". */
static const char *short_name(const char *name) {
    if (strncmp(name, "transformer.", 12) == 0) return name + 12;
    if (strncmp(name, "model.", 6) == 0) return name + 6;
    return name;
}

static const km_st_tensor *find(const km_safetensors *f, const km_param *p) {
    const km_st_tensor *t = km_safetensors_find(f, p->name);
    return t ? t : km_safetensors_find(f, short_name(p->name));
}

/* The shape that a file has for a parameter: without padding of the vocabulary, and transposed. */
static km_shape file_shape(const km_net *m, const km_param *p) {
    km_shape s = p->t->shape;
    if (p->t == m->wte.w || p->t == m->head.w) s.dim[0] = m->config.vocab;
    if (p->conv1d) s = KM_SHAPE(s.dim[1], s.dim[0]);
    return s;
}

/* Tensors that older files carry along and nobody needs: causal masks, rotation frequencies, and
 * the head's weights when they are the embedding's. */
static bool is_ballast(const km_net *m, const char *name) {
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t e = strlen(ends[i]);
        if (n >= e && strcmp(name + n - e, ends[i]) == 0) return true;
    }
    return m->config.tied && strcmp(name, "lm_head.weight") == 0;
}

static bool is_known(const km_net *m, const char *name) {
    if (is_ballast(m, name)) return true;
    for (int i = 0; i < m->params.n; i++) {
        const char *mine = m->params.at[i].name;
        if (strcmp(name, mine) == 0 || strcmp(name, short_name(mine)) == 0) return true;
    }
    return false;
}

static bool is_zero_bias(const km_net *m, const char *name) {
    size_t n = strlen(name);
    return !m->config.bias && m->config.arch == KM_ARCH_GPT2 && n > 5 &&
           strcmp(name + n - 5, ".bias") == 0;
}

static km_status check(const km_net *m, const km_safetensors *f, km_error *err) {
    const char *file = km_safetensors_file(f, 0);
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT], name[KM_SHOWN];
    for (int i = 0; i < m->params.n; i++) {
        const km_param *p = &m->params.at[i];
        const km_st_tensor *t = find(f, p);
        if (!t)
            return km_error_set(err, KM_ERR_FORMAT, "'%s': the tensor '%s' %s is missing", file,
                                p->name, km_shape_text(a, file_shape(m, p)));
        if (!km_shape_equal(t->shape, file_shape(m, p)))
            return km_error_set(
                err, KM_ERR_SHAPE, "'%s': the tensor '%s' is %s, but the config makes it %s", file,
                p->name, km_shape_text(a, t->shape), km_shape_text(b, file_shape(m, p)));
        if (t->dtype == KM_DTYPE_COUNT || !km_dtype_is_float(t->dtype))
            return km_error_set(err, KM_ERR_UNSUPPORTED, "'%s': the tensor '%s' is of type %s",
                                file, p->name, km_shown(name, t->type));
    }
    for (int i = 0; i < km_safetensors_count(f); i++) {
        const km_st_tensor *t = km_safetensors_at(f, i);
        if (!is_known(m, t->name) && !is_zero_bias(m, t->name))
            return km_error_set(err, KM_ERR_FORMAT,
                                "'%s': the config has no place for the tensor '%s' %s", file,
                                km_shown(name, t->name), km_shape_text(a, t->shape));
    }
    return KM_OK;
}

static void fill(km_ctx *ctx, const km_net *m, km_param *p, const km_st_tensor *t) {
    km_scope_begin(ctx);
    km_no_grad_begin(ctx);
    km_tensor *x = km_from_data(ctx, t->dtype, t->shape, t->data);
    if (p->conv1d) x = km_transpose(ctx, x, 0, 1);
    km_shape s = file_shape(m, p);
    if (!p->conv1d && s.dim[0] != p->t->shape.dim[0]) { /* padding stays what it is */
        km_assign(ctx, km_narrow(ctx, p->t, 0, 0, s.dim[0]), x);
    } else {
        km_assign(ctx, p->t, x);
    }
    km_no_grad_end(ctx);
    km_scope_end(ctx, NULL);
}

km_status km_net_read(km_net *m, const km_safetensors *f, km_error *err) {
    km_status s = check(m, f, err);
    for (int i = 0; i < m->params.n && s == KM_OK; i++) {
        km_param *p = &m->params.at[i];
        fill(m->ctx, m, p, find(f, p));
        if (km_failed(m->ctx))
            s = km_error_set(err, km_ctx_status(m->ctx), "%s", km_ctx_error(m->ctx));
    }
    return s;
}

/* The dtype of all float tensors of the file, f32 when they differ. */
static km_dtype common_dtype(const km_safetensors *f) {
    km_dtype d = KM_DTYPE_COUNT;
    for (int i = 0; i < km_safetensors_count(f); i++) {
        km_dtype t = km_safetensors_at(f, i)->dtype;
        if (t == KM_DTYPE_COUNT || !km_dtype_is_float(t)) continue;
        if (d != KM_DTYPE_COUNT && d != t) return KM_F32;
        d = t;
    }
    return d == KM_F16 || d == KM_BF16 ? d : KM_F32;
}

km_net *km_net_load(km_ctx *ctx, const char *folder, km_dtype dtype, km_error *err) {
    km_config c;
    if (km_config_load(&c, folder, err) != KM_OK) return NULL;
    km_safetensors *f = km_safetensors_open(folder, err);
    if (!f) return NULL;
    km_net *m = km_net_new(ctx, &c, dtype == KM_DTYPE_COUNT ? common_dtype(f) : dtype);
    if (!m)
        km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    else if (km_net_read(m, f, err) != KM_OK) {
        km_net_free(m);
        m = NULL;
    }
    km_safetensors_close(f);
    return m;
}
