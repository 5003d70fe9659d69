/* Writing models as Hugging Face folders. A parameter is brought to the host only when its turn in
 * the file comes, so that a model needs no second copy of itself. */
#include "base/alloc.h"
#include "model/files.h"
#include <stdio.h>
#include <string.h>

/* What the writer's callback needs to know of one tensor. */
typedef struct km_net_item {
    km_net *m;
    km_tensor *t; /* NULL: zeros */
    bool conv1d;
    km_shape shape; /* in the file */
    char *name;     /* of a bias that the model does not have; else NULL */
    char *host;     /* the bytes, from the first piece to the last */
} km_net_item;

static km_status bring(km_net_item *it, size_t bytes, km_error *err) {
    km_ctx *ctx = it->m->ctx;
    it->host = km_alloc(bytes ? bytes : 1);
    if (!it->host) return km_no_memory_for(err, "%zu bytes", bytes);
    km_scope_begin(ctx);
    km_no_grad_begin(ctx);
    km_tensor *x = it->t;
    if (it->conv1d)
        x = km_transpose(ctx, x, 0, 1);
    else if (it->shape.dim[0] != x->shape.dim[0])
        x = km_narrow(ctx, x, 0, 0, it->shape.dim[0]);
    km_read(ctx, x, it->host, bytes);
    km_no_grad_end(ctx);
    km_scope_end(ctx, NULL);
    if (!km_failed(ctx)) return KM_OK;
    return km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
}

static km_status fill(void *user, size_t offset, void *dst, size_t bytes, km_error *err) {
    km_net_item *it = user;
    if (!it->t) {
        memset(dst, 0, bytes);
        return KM_OK;
    }
    size_t all = (size_t)km_shape_count(it->shape) * km_dtype_size(it->m->dtype);
    if (!it->host && bring(it, all, err) != KM_OK) return err ? err->code : KM_ERR_MEMORY;
    memcpy(dst, it->host + offset, bytes);
    if (offset + bytes < all) return KM_OK;
    km_free(it->host);
    it->host = NULL;
    return KM_OK;
}

static void add(km_net_items *out, km_net_item it, const char *name) {
    out->user[out->n] = it;
    out->item[out->n] = (km_st_item){.name = name,
                                     .dtype = it.m->dtype,
                                     .shape = it.shape,
                                     .fill = fill,
                                     .user = &out->user[out->n]};
    out->n++;
}

/* GPT-2 always has biases for transformers: those of p's layer, as zeros. */
static km_status add_zero_bias(km_net_items *out, km_net *m, const km_param *p, km_error *err) {
    size_t n = strlen(p->name);
    if (n < 7 || strcmp(p->name + n - 7, ".weight") != 0 || p->t == m->wte.w || p->t == m->wpe.w ||
        p->t == m->head.w)
        return KM_OK;
    char *name = km_strdup(p->name);
    if (!name) return km_no_memory(err);
    strcpy(name + n - 7, ".bias");
    add(out, (km_net_item){.m = m, .shape = KM_SHAPE(p->t->shape.dim[0]), .name = name}, name);
    return KM_OK;
}

km_status km_net_items_of(km_net *m, km_net_items *out, km_error *err) {
    *out = (km_net_items){0};
    if (m->borrowed)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "a model opened from a GGUF file is not saved; convert the file");
    size_t most = 2 * (size_t)m->params.n;
    *out =
        (km_net_items){km_calloc(most, sizeof *out->item), 0, km_calloc(most, sizeof *out->user)};
    km_status s = out->item && out->user ? KM_OK : km_no_memory(err);
    bool no_bias = m->config.arch == KM_ARCH_GPT2 && !m->config.bias;
    for (int i = 0; i < m->params.n && s == KM_OK; i++) {
        const km_param *p = &m->params.at[i];
        if (strstr(p->name, ".lora_")) continue;
        km_shape shape = p->t->shape;
        if (p->t == m->wte.w || p->t == m->head.w) shape.dim[0] = m->config.vocab;
        if (p->conv1d) shape = KM_SHAPE(shape.dim[1], shape.dim[0]);
        add(out, (km_net_item){.m = m, .t = p->t, .conv1d = p->conv1d, .shape = shape}, p->name);
        if (no_bias) s = add_zero_bias(out, m, p, err);
    }
    if (s != KM_OK) km_net_items_free(out);
    return s;
}

void km_net_items_free(km_net_items *items) {
    for (int i = 0; i < items->n; i++) {
        km_free(items->user[i].name);
        km_free(items->user[i].host);
    }
    km_free(items->item);
    km_free(items->user);
    *items = (km_net_items){0};
}

km_status km_net_save(km_net *m, const char *folder, km_error *err) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (n < 0 || (size_t)n >= sizeof path)
        return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", folder);
    km_error why = {0};
    km_net_items items;
    km_status s = km_net_items_of(m, &items, &why);
    km_st_pair format = {"format", "pt"}; /* transformers refuses files that do not say so */
    if (s == KM_OK) s = km_safetensors_write(path, items.item, items.n, &format, 1, &why);
    if (s == KM_OK) {
        snprintf(path, sizeof path, "%s/config.json", folder);
        s = km_config_save(&m->config, path, &why);
    }
    km_net_items_free(&items);
    return s == KM_OK ? KM_OK : km_error_set(err, why.code, "%s", why.text);
}
