/* Weighing models: rows of the layout with the dtypes that a file, or a mix, has for them. */
#include "model/weigh.h"
#include "base/alloc.h"
#include "model/arch.h"
#include "model/convert.h"
#include "model/cut.h"
#include "model/files.h"
#include "model/layout.h"
#include "model/parts.h"
#include "tensor/mempool.h"
#include <stdlib.h>
#include <string.h>

/* As open.c puts it on a GPU: rows of whole units of 64 in the types they have, the rest in f32. */
static double bytes_of(km_shape s, km_dtype d) {
    bool as_it_is = s.ndim == 2 && s.dim[1] % 64 == 0;
    if (!as_it_is && d != KM_F64) d = KM_F32;
    return (double)km_mempool_rounded((size_t)km_dtype_bytes(d, km_shape_count(s)));
}

static void add(km_weighed *w, const km_layout_row *r, km_shape shape, km_dtype d) {
    double bytes = bytes_of(shape, d);
    int layer = strncmp(r->gguf, "blk.", 4) == 0 ? atoi(r->gguf + 4) : -1;
    if (layer >= 0 && layer < w->config.layers) {
        w->layer[layer] += bytes;
        if (km_net_can_lend(d, shape)) w->stays[layer] += bytes;
    } else if (strncmp(r->gguf, "output", 6) == 0)
        w->head += bytes;
    else
        w->embedding += bytes;
}

static km_status begin(km_weighed *w, km_layout *l, km_error *err) {
    w->layer = km_calloc(2 * (size_t)w->config.layers, sizeof *w->layer);
    if (!w->layer) return km_no_memory(err);
    w->stays = w->layer + w->config.layers;
    return km_layout_of(&w->config, l, err);
}

static km_status weigh_gguf(const char *path, const km_comm *comm, km_weighed *w, km_error *err) {
    km_share share = {0};
    km_layout l = {0};
    km_stored *found = NULL;
    km_gguf *g = km_gguf_open(path, err);
    if (!g) return err->code;
    km_weights file = {.gguf = g, .blocks = true};
    km_status s = km_config_from_gguf(&w->config, g, err);
    if (s == KM_OK) s = begin(w, &l, err);
    if (s == KM_OK && !(found = km_calloc((size_t)l.n, sizeof *found))) s = km_no_memory(err);
    if (s == KM_OK) s = km_weights_find(&file, &w->config, &l, found, err);
    if (s == KM_OK && km_comm_size(comm) > 1)
        s = km_share_of(&w->config, &l, found, km_comm_rank(comm), km_comm_size(comm), &share, err);
    for (int i = 0; i < l.n && s == KM_OK; i++)
        add(w, &l.row[i], km_share_cut(&w->config, &share, &l.row[i]).shape, found[i].dtype);
    if (s == KM_OK) w->config = km_share_config(&w->config, &share);
    km_layout_free(&l);
    km_free(found);
    km_gguf_close(g);
    return s;
}

/* A folder's tensors are all brought into one dtype: the one asked for, or the widest there. None is
 * used where it lies. */
static km_status weigh_folder(const char *path, km_dtype dtype, km_weighed *w, km_error *err) {
    km_layout l = {0};
    km_status s = km_config_load(&w->config, path, err);
    km_safetensors *f = s == KM_OK ? km_safetensors_open(path, err) : NULL;
    if (!f) return err->code;
    if (dtype == KM_DTYPE_COUNT) {
        dtype = KM_F16;
        for (int i = 0; i < km_safetensors_count(f); i++)
            if (km_safetensors_at(f, i)->dtype == KM_F32) dtype = KM_F32;
    }
    s = begin(w, &l, err);
    for (int i = 0; i < l.n && s == KM_OK; i++) add(w, &l.row[i], l.row[i].shape, dtype);
    if (s == KM_OK) memset(w->stays, 0, sizeof *w->stays * (size_t)w->config.layers);
    km_layout_free(&l);
    km_safetensors_close(f);
    return s;
}

km_status km_weigh(const char *path, const km_open_options *o, km_weighed *out, km_error *err) {
    km_error own = {0};
    if (!err) err = &own;
    *out = (km_weighed){0};
    km_status s = km_is_gguf(path) ? weigh_gguf(path, o ? o->comm : NULL, out, err)
                                   : weigh_folder(path, o ? o->dtype : KM_DTYPE_COUNT, out, err);
    if (s == KM_OK && o && o->context > 0 && o->context < out->config.context)
        out->config.context = o->context;
    if (s != KM_OK) km_weighed_free(out);
    return s;
}

km_status km_weigh_mix(const km_config *c, const km_mix *mix, km_weighed *out, km_error *err) {
    km_error own = {0};
    km_layout l = {0};
    if (!err) err = &own;
    *out = (km_weighed){.config = *c};
    km_status s = begin(out, &l, err);
    km_mix_model model = {c->layers, c->heads / c->kv_heads, c->tied, false};
    for (int i = 0; i < l.n && s == KM_OK; i++)
        add(out, &l.row[i], l.row[i].shape,
            km_mix_dtype(mix, &model, l.row[i].gguf, l.row[i].shape));
    km_layout_free(&l);
    if (s != KM_OK) km_weighed_free(out);
    return s;
}

void km_weighed_free(km_weighed *w) {
    km_free(w->layer);
    w->layer = w->stays = NULL;
}

double km_weighed_part(const km_weighed *w, int first, int last) {
    double bytes = 0;
    for (int i = first; i < last; i++) bytes += w->layer[i];
    bool tied = w->config.tied, end = last == w->config.layers;
    if (first == 0 || (end && tied)) bytes += w->embedding;
    return end ? bytes + w->head : bytes;
}
